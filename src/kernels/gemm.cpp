#include "kernels/gemm.h"

#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm_tiles.h"
#include "kernels/threads.h"
#include "numbers/thresholds.h"
#include "tower/errors.h"

namespace tower::compiler {
namespace {

constexpr int64_t kWholeTiles = 24;     // rows, a multiple of those of tiles
constexpr int64_t kBlockOfA = 1 << 15;  // elements, half of a cache of 512 KB
constexpr int64_t kMostOfA = 1 << 21;   // bytes of a block of terms, where B's columns are copied anew for each

// ---- which are small ----

// LibTorch's products are better where there is a vector, or much of everything: in tiles of vectors of 32 bytes, which
// are a quarter as large, of a quarter as much.
bool is_small(int64_t rows, int64_t columns, int64_t terms, int64_t element) {
  const Thresholds& limits = thresholds();
  const int64_t all = rows * columns * terms;
  if (rows == 1 || columns == 1) return all <= limits.most_of_vector;
  return columns < limits.few_columns || rows <= kFewRows || terms <= limits.few_of_sum ||
         std::max(columns, terms) <= limits.most_of_panel / (vector_bytes(columns, element) == 64 ? 1 : 4) ||
         all <= limits.most_of_product || std::max(rows, columns) <= limits.most_of_square;
}

// A few columns of many rows are better than a few rows, where B has to be copied for these.
bool is_thin(const GemmAxis& rows, const GemmAxis& columns) {
  return rows.size > 1 && rows.size <= kMostRows && columns.size >= 4 && columns.b != 1;
}

// ---- tensors ----

// Two dimensions that are walked as one.
bool follow_each_other(const GemmAxis& outer, const GemmAxis& inner) {
  return outer.a == inner.a * inner.size && outer.b == inner.b * inner.size && outer.s == inner.s * inner.size &&
         outer.c == inner.c * inner.size;
}

using Axes = c10::SmallVector<GemmAxis, 6>;

// Takes the largest dimension, or the one in which the result is contiguous, out of `axes`.
GemmAxis take(Axes& axes) {
  if (axes.empty()) return {1, 0, 0, 0, 0};
  auto best = axes.begin();
  for (auto it = axes.begin(); it != axes.end(); ++it)
    if (best->c != 1 && (it->c == 1 || it->size > best->size)) best = it;
  const GemmAxis taken = *best;
  axes.erase(best);
  return taken;
}

// What is computed: products of matrices, at these places.
struct Products {
  GemmAxis rows, columns, inner;
  GemmAxis outer{1, 0, 0, 0, 0};  // of few columns, of products with one A
  Axes others;
  bool swapped = false;  // Cᵀ = Bᵀ Aᵀ
  bool in_tiles;         // or LibTorch's

  // `thin`: whether few rows may become columns.
  Products(const Gemm& gemm, int64_t element, bool thin = true) : inner(gemm.inner) {
    Axes axes;
    for (const GemmAxis& axis : gemm.axes)
      if (axis.size != 1) axes.push_back(axis);
    std::stable_sort(axes.begin(), axes.end(), [](const GemmAxis& x, const GemmAxis& y) { return x.c > y.c; });
    Axes of_rows, of_columns;
    for (const GemmAxis& axis : axes) {
      Axes& group = axis.a != 0 && axis.b == 0 ? of_rows : axis.a == 0 && axis.b != 0 ? of_columns : others;
      if (group.empty() || !follow_each_other(group.back(), axis)) {
        group.push_back(axis);
      } else {
        const int64_t size = group.back().size * axis.size;
        group.back() = axis;
        group.back().size = size;
      }
    }
    rows = take(of_rows);
    columns = take(of_columns);
    others.insert(others.end(), of_rows.begin(), of_rows.end());
    others.insert(others.end(), of_columns.begin(), of_columns.end());
    swapped = (rows.size != 1 && rows.c == 1 && columns.c != 1) || (thin && is_thin(rows, columns));
    if (swapped) {
      std::swap(rows, columns);
      for (GemmAxis* axis : {&rows, &columns, &inner}) std::swap(axis->a, axis->b);
      for (GemmAxis& axis : others) std::swap(axis.a, axis.b);
    }
    in_tiles = is_small(rows.size, columns.size, inner.size, element);
    if (in_tiles && columns.size < thresholds().few_columns) take_outer_columns();
  }

  void take_outer_columns() {
    auto best = others.end();
    for (auto it = others.begin(); it != others.end(); ++it)
      if (it->a == 0 && it->b != 0 && (best == others.end() || it->size > best->size)) best = it;
    if (best == others.end()) return;
    outer = *best;
    others.erase(best);
  }

  int64_t count() const {
    int64_t n = 1;
    for (const GemmAxis& axis : others) n *= axis.size;
    return n;
  }

  struct Place {
    int64_t a = 0, b = 0, s = 0, c = 0;
  };
  Place place(int64_t n) const {
    Place at;
    for (size_t d = others.size(); d-- > 0;) {
      const GemmAxis& axis = others[d];
      const int64_t i = n % axis.size;
      n /= axis.size;
      at.a += i * axis.a;
      at.b += i * axis.b;
      at.s += i * axis.s;
      at.c += i * axis.c;
    }
    return at;
  }
};

// The matrices of the first product.
template <class T>
Matrices<T> first_of(const Products& p, const T* a, const T* b, const T* s, T* c) {
  Matrices<T> m{a, b, s, c, p.rows, p.columns, p.inner};
  m.outer = p.outer;
  return m;
}

template <class T>
Matrices<T> rows_of(Matrices<T> m, int64_t begin, int64_t end) {
  m.a += begin * m.rows.a;
  m.c += begin * m.rows.c;
  if (m.s) m.s += begin * m.rows.s;
  m.rows.size = end - begin;
  return m;
}

// Adds the rows in blocks of much the same size.
template <class T>
void add_blocks(std::vector<Matrices<T>>& blocks, const Matrices<T>& m) {
  const int64_t rows = m.rows.size, count = std::max<int64_t>(rows / kRowsOfBlock, 1),
                block = ((rows - 1) / count / kWholeTiles + 1) * kWholeTiles;
  for (int64_t row = 0; row < rows; row += block) blocks.push_back(rows_of(m, row, std::min(row + block, rows)));
}

template <class T>
void multiply_all_rows(const Matrices<T>& m) {
  const int64_t rows = m.rows.size, columns = m.outer.size * m.columns.size, terms = std::min(m.inner.size, kTerms) + 1;
  const bool in_place = reads_in_place(m, vector_bytes(columns, sizeof(T)));
  if (m.outer.size == 1 && !in_place && rows > kRowsOfBlock && columns >= thresholds().few_columns) {
    std::vector<Matrices<T>> blocks;
    add_blocks(blocks, m);
    return multiply_by_one<T>(blocks);
  }
  // A's rows are in the cache when the next columns read them.
  const int64_t most = m.outer.size != 1 ? std::max<int64_t>(kBlockOfA / (m.inner.size + 1), 64)
                       : in_place        ? kBlockOfA / terms
                                         : kMostOfA / static_cast<int64_t>(sizeof(T)) / terms,
                blocks = (rows + most - 1) / most,
                block = ((rows + blocks - 1) / blocks + kWholeTiles - 1) / kWholeTiles * kWholeTiles;
  for (int64_t row = 0; row < rows; row += block) rows_of(m, row, std::min(row + block, rows)).multiply();
}

template <class T>
void run_small(const Products& p, const T* pa, const T* pb, const T* ps, T* pc) {
  const auto multiply = [&](const Products::Place& at, int64_t begin, int64_t end) {
    const Matrices<T> m = first_of(p, pa + at.a, pb + at.b, ps ? ps + at.s : nullptr, pc + at.c);
    multiply_all_rows(rows_of(m, begin, end));
  };
  const int64_t grain = thresholds().grain_of_product;
  const int64_t matrices = p.count(), terms_of_row = std::max<int64_t>(p.outer.size * p.columns.size * p.inner.size, 1),
                terms = p.rows.size * terms_of_row;
  if (matrices == 1) {
    share_among_threads(p.rows.size, grain / terms_of_row,
                        [&](int64_t begin, int64_t end) { multiply({}, begin, end); });
  } else {
    share_among_threads(matrices, grain / std::max<int64_t>(terms, 1), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) multiply(p.place(n), 0, p.rows.size);
    });
  }
}

template <class T>
void run_large(const Products& p, const T* pa, const T* pb, const T* ps, T* pc) {
  const int64_t m = p.rows.size, n = p.columns.size, k = p.inner.size;
  const auto matrix = [](const T* data, int64_t rows, int64_t columns, int64_t row, int64_t column) {
    return at::from_blob(const_cast<T*>(data), {rows, columns}, {row, column}, c10::CppTypeToScalarType<T>::value);
  };
  for (int64_t i = 0; i < p.count(); ++i) {
    const Products::Place at = p.place(i);
    const at::Tensor left = matrix(pa + at.a, m, k, p.rows.a, p.inner.a),
                     right = matrix(pb + at.b, k, n, p.inner.b, p.columns.b);
    at::Tensor product = matrix(pc + at.c, m, n, p.rows.c, p.columns.c);
    if (ps) at::cpu::addmm_out(product, matrix(ps + at.s, m, n, p.rows.s, p.columns.s), left, right);
    else at::cpu::mm_out(product, left, right);
  }
}

template <class T>
void run_products(const Products& p, const GemmMemory& a, const GemmMemory& b, const GemmMemory& s,
                  const GemmMemory& c) {
  const auto *left = static_cast<const T*>(a.data), *right = static_cast<const T*>(b.data),
             *added = static_cast<const T*>(s.data);
  if (p.swapped) std::swap(left, right);
  if (p.in_tiles) run_small(p, left, right, added, static_cast<T*>(c.data));
  else run_large(p, left, right, added, static_cast<T*>(c.data));
}

// Whether these are products with one B, of one matrix each, for which tiles are good.
bool have_one_right(c10::ArrayRef<Products> all, c10::ArrayRef<GemmCall> calls) {
  const auto right = [&](size_t k) { return all[k].swapped ? calls[k].a.data : calls[k].b.data; };
  const auto alike = [](const GemmAxis& x, const GemmAxis& y) { return x.size == y.size && x.b == y.b; };
  const Products& first = all[0];
  const Thresholds& limits = thresholds();
  int64_t rows = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    const Products& p = all[k];
    if (right(k) != right(0) || p.count() != 1 || p.outer.size != 1 || !alike(p.columns, first.columns) ||
        !alike(p.inner, first.inner))
      return false;
    rows += p.rows.size;
  }
  return rows > kFewRows && first.columns.size >= limits.few_columns &&
         std::max(first.columns.size, first.inner.size) <= limits.most_of_panel;
}

template <class T>
void run_with_one(c10::ArrayRef<Products> all, c10::ArrayRef<GemmCall> calls) {
  std::vector<Matrices<T>> blocks;
  for (size_t k = 0; k < all.size(); ++k) {
    const GemmCall& call = calls[k];
    const auto *left = static_cast<const T*>(call.a.data), *right = static_cast<const T*>(call.b.data);
    if (all[k].swapped) std::swap(left, right);
    add_blocks(blocks, first_of(all[k], left, right, static_cast<const T*>(call.s.data), static_cast<T*>(call.c.data)));
  }
  // Each thread copies the columns.
  const int64_t of_block = std::max<int64_t>(kRowsOfBlock * all[0].columns.size * all[0].inner.size, 1);
  share_among_threads(
      std::ssize(blocks), 2 + thresholds().grain_of_product / of_block, [&](int64_t begin, int64_t end) {
        multiply_by_one<T>(
            c10::ArrayRef<Matrices<T>>(blocks).slice(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      });
}

}  // namespace

bool Gemm::sum_over(std::vector<GemmAxis> dimensions) {
  std::erase_if(dimensions, [](const GemmAxis& axis) { return axis.size == 1; });
  if (dimensions.empty()) return true;
  std::sort(dimensions.begin(), dimensions.end(), [](const GemmAxis& x, const GemmAxis& y) { return x.a > y.a; });
  inner = dimensions.back();
  for (size_t d = dimensions.size() - 1; d-- > 0;) {
    if (!follow_each_other(dimensions[d], inner)) return false;
    inner.size *= dimensions[d].size;
  }
  return true;
}

GemmMemory::GemmMemory(const at::Tensor& t)
    : data(t.defined() ? const_cast<void*>(t.const_data_ptr()) : nullptr),
      elements(t.defined() ? static_cast<int64_t>(t.storage().nbytes() / t.itemsize()) - t.storage_offset() : 0) {}

// Throws where the product would read or write beyond the memory; `step`: how far apart its elements are.
void Gemm::check(const char* name, const GemmMemory& memory, int64_t GemmAxis::*step) const {
  int64_t last = (inner.size - 1) * (inner.*step);
  for (const GemmAxis& axis : axes) last += (axis.size - 1) * (axis.*step);
  if (last >= memory.elements)
    throw UnsupportedError(std::string("compile: a matrix product reads or writes element ") + std::to_string(last) +
                           " of " + name + ", whose memory has " + std::to_string(memory.elements) +
                           ": it was made for other sizes or strides.");
}

bool Gemm::is_empty() const {
  return std::any_of(axes.begin(), axes.end(), [](const GemmAxis& axis) { return axis.size == 0; });
}

void Gemm::check(const GemmMemory& a, const GemmMemory& b, const GemmMemory& s, const GemmMemory& c) const {
  if (inner.size > 0) {
    check("the left operand", a, &GemmAxis::a);
    check("the right operand", b, &GemmAxis::b);
  }
  if (s.data) check("what is added", s, &GemmAxis::s);
  check("the result", c, &GemmAxis::c);
}

void Gemm::run(at::ScalarType dtype, const GemmMemory& a, const GemmMemory& b, const GemmMemory& s,
               const GemmMemory& c) const {
  if (is_empty()) return;
  check(a, b, s, c);
  const Products p(*this, static_cast<int64_t>(c10::elementSize(dtype)));
  if (dtype == at::kFloat) run_products<float>(p, a, b, s, c);
  else run_products<double>(p, a, b, s, c);
}

void run_with_one_right(at::ScalarType dtype, c10::ArrayRef<GemmCall> calls) {
  std::vector<Products> all;
  for (const GemmCall& call : calls) {
    if (call.gemm.is_empty()) break;
    call.gemm.check(call.a, call.b, call.s, call.c);
    all.emplace_back(call.gemm, static_cast<int64_t>(c10::elementSize(dtype)), false);
  }
  if (all.size() < calls.size() || calls.empty() || !have_one_right(all, calls)) {
    for (const GemmCall& call : calls) call.gemm.run(dtype, call.a, call.b, call.s, call.c);
  } else if (dtype == at::kFloat) {
    run_with_one<float>(all, calls);
  } else {
    run_with_one<double>(all, calls);
  }
}

}  // namespace tower::compiler
