#include "kernels/gemm.h"

#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/threads.h"
#include "numbers/thresholds.h"
#include "tower/errors.h"

namespace tower::compiler {
namespace {

// ---- small matrices ----
//
// A tile of the result stays in registers: R rows of N vectors. B's columns are read where they are, if they are next
// to each other: a tile computes for as long as reading them takes. Else they are copied into vectors, a block of terms
// at a time, and so may lie in any way: those of several products with one A are the columns of one, which may lie
// apart in the result.
//
// NOTE [Tiles]
// Where vectors have 64 bytes there are 32 registers: a tile is 8 rows of 3 vectors. Of 32 bytes there are 16, and a
// tile is 6 rows of 2. (One of 4 rows of 3 vectors needs all 16: compilers then keep one of its sums in memory, which
// takes twice as long.) The smaller tile reads B more often, where its rows lie in more pages than the CPU knows at
// once: there B is copied for more than a few rows.

constexpr int64_t kTerms = 256;         // in a block
constexpr int kVectors = 3;             // the widest tile
constexpr int kMostRows = 8;            // the highest
constexpr int64_t kWholeTiles = 24;     // rows, a multiple of those of tiles
constexpr int64_t kBlockOfA = 1 << 15;  // elements, half of a cache of 512 KB
constexpr int64_t kMostOfA = 1 << 21;   // bytes of a block of terms, where B's columns are copied anew for each
constexpr int64_t kFewRows = 16;        // fewer reads of B than a copy of it is worth
constexpr int64_t kPage = 4096;         // bytes: rows so far apart lie in the same few places of a cache

// Of vectors of B bytes: NOTE [Tiles].
template <int B>
constexpr int kVectorsIn = B == 64 ? kVectors : 2;
template <int B>
constexpr int kRowsIn = B == 64 ? kMostRows : 6;

// Vectors of B bytes.
template <class T, int B>
using Vector __attribute__((vector_size(B))) = T;
template <class T, int B>
constexpr int64_t kLanes = B / sizeof(T);

#define TOWER_INLINE [[gnu::always_inline]] inline
#define TOWER_UNROLL _Pragma("GCC unroll 8")

// Of fixed sizes, so that no library is called.
template <class T>
TOWER_INLINE void copy_few(T* to, const T* from, int64_t n) {
  constexpr int64_t L = kLanes<T, 32>;
  for (; n >= L; n -= L, to += L, from += L) __builtin_memcpy(to, from, 32);
  if (n & 4) __builtin_memcpy(to, from, 4 * sizeof(T)), to += 4, from += 4;
  if (n & 2) __builtin_memcpy(to, from, 2 * sizeof(T)), to += 2, from += 2;
  if (n & 1) *to = *from;
}
template <class T>
TOWER_INLINE void copy_few(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  if (to_step == 1 && from_step == 1) return copy_few(to, from, n);
  for (int64_t j = 0; j < n; ++j) to[j * to_step] = from[j * from_step];
}

template <class T, int L>
TOWER_INLINE void add_vector(T* to, const T* x, const T* y) {
  using V __attribute__((vector_size(L * sizeof(T)))) = T;
  V v, w;
  __builtin_memcpy(&v, x, sizeof v);
  __builtin_memcpy(&w, y, sizeof w);
  v += w;
  __builtin_memcpy(to, &v, sizeof v);
}
template <class T>
TOWER_INLINE void add_few(T* to, int64_t to_step, const T* x, const T* y, int64_t y_step, int64_t n) {
  int64_t j = 0;
  if (to_step == 1 && y_step == 1) {
    constexpr int64_t L = kLanes<T, 32>;
    for (; j + L <= n; j += L) add_vector<T, L>(to + j, x + j, y + j);
    for (; j + 2 <= n; j += 2) add_vector<T, 2>(to + j, x + j, y + j);
  }
  for (; j < n; ++j) to[j * to_step] = x[j] + y[j * y_step];
}

// Where columns are that lie apart: in the result, and in S.
struct Apart {
  const int64_t *c, *s;
};

// Rows of sums, in tiles, that are to lie in memory as `to` says, with what is added to them.
template <class T>
struct Rows {
  int64_t size, columns;
  T* to;
  int64_t to_row, to_column;
  const T* before;  // null: nothing is added
  int64_t before_row, before_column;
  const Apart* apart;  // null: columns follow each other
  const int64_t* before_apart;
};

// Rows that `width` elements of `sums` are for. Not where sums are made: of each tile there would be a copy.
template <class T>
[[gnu::noinline]] void put_rows(const Rows<T>& rows, const T* sums, int64_t width) {
  T* to = rows.to;
  const T* before = rows.before;
  for (int64_t r = 0; r < rows.size; ++r, to += rows.to_row, sums += width) {
    if (rows.apart) {
      for (int64_t j = 0; j < rows.columns; ++j)
        to[rows.apart->c[j]] = before ? before[rows.before_apart[j]] + sums[j] : sums[j];
    } else if (before) {
      add_few(to, rows.to_column, sums, before, rows.before_column, rows.columns);
    } else {
      copy_few(to, rows.to_column, sums, 1, rows.columns);
    }
    if (before) before += rows.before_row;
  }
}

// R rows from `row` on and `columns` columns from `column` on, of which a tile has room for more. `panel`: B's terms of
// these columns, `step` apart. `apart`: null where the columns follow each other.
template <class T, int B, int N, int R>
TOWER_INLINE void multiply_rows(const Matrices<T>& m, const T* panel, int64_t step, int64_t row, int64_t column,
                                int64_t columns, const Apart* apart, int64_t term, int64_t terms) {
  constexpr int64_t kWidth = N * kLanes<T, B>;
  T* c = m.c + row * m.rows.c + (apart ? 0 : column * m.columns.c);
  const T* a = m.a + row * m.rows.a + term * m.inner.a;
  const bool whole = columns == kWidth && m.columns.c == 1 && !apart;
  Vector<T, B> sums[R][N] = {};
  for (int64_t k = 0; k < terms; ++k) {
    Vector<T, B> b[N];
    TOWER_UNROLL
    for (int v = 0; v < N; ++v) __builtin_memcpy(&b[v], panel + k * step + v * kLanes<T, B>, B);
    TOWER_UNROLL
    for (int r = 0; r < R; ++r) {
      const T x = a[r * m.rows.a + k * m.inner.a];
      TOWER_UNROLL
      for (int v = 0; v < N; ++v) sums[r][v] += x * b[v];
    }
  }
  // To what there is already: of the blocks before, or S.
  const bool again = term != 0;
  const GemmAxis &of_rows = m.rows, &of_columns = m.columns;
  const T* before = again ? c : m.s ? m.s + row * of_rows.s + (apart ? 0 : column * of_columns.s) : nullptr;
  const int64_t before_row = again ? of_rows.c : of_rows.s, before_column = again ? of_columns.c : of_columns.s;
  if (whole && (!before || before_column == 1)) {
    if (before) {
      TOWER_UNROLL
      for (int r = 0; r < R; ++r) {
        TOWER_UNROLL
        for (int v = 0; v < N; ++v) {
          Vector<T, B> x;
          __builtin_memcpy(&x, before + r * before_row + v * kLanes<T, B>, B);
          sums[r][v] += x;
        }
      }
    }
    TOWER_UNROLL
    for (int r = 0; r < R; ++r) {
      TOWER_UNROLL
      for (int v = 0; v < N; ++v) __builtin_memcpy(c + r * of_rows.c + v * kLanes<T, B>, &sums[r][v], B);
    }
    return;
  }
  alignas(B) T room[R * kWidth];
  TOWER_UNROLL
  for (int r = 0; r < R; ++r) {
    TOWER_UNROLL
    for (int v = 0; v < N; ++v) __builtin_memcpy(room + r * kWidth + v * kLanes<T, B>, &sums[r][v], B);
  }
  put_rows<T>({R, columns, c, of_rows.c, of_columns.c, before, before_row, before_column, apart,
               !apart  ? nullptr
               : again ? apart->c
                       : apart->s},
              room, kWidth);
}

// All rows from `row` on, R at a time, of the rest half as many, and so on.
template <class T, int B, int N, int R>
TOWER_INLINE void multiply_rows_from(const Matrices<T>& m, const T* panel, int64_t step, int64_t row, int64_t column,
                                     int64_t columns, const Apart* apart, int64_t term, int64_t terms) {
  for (; row + R <= m.rows.size; row += R)
    multiply_rows<T, B, N, R>(m, panel, step, row, column, columns, apart, term, terms);
  if constexpr (R > 1) multiply_rows_from<T, B, N, R / 2>(m, panel, step, row, column, columns, apart, term, terms);
}

// Elements of x and of y in turn: of their first halves in `low`, of their second halves in `high`.
template <class T, int B, int... I>
TOWER_INLINE void interleave(const Vector<T, B>& x, const Vector<T, B>& y, Vector<T, B>& low, Vector<T, B>& high,
                             std::integer_sequence<int, I...>) {
  constexpr int L = sizeof...(I);
  low = __builtin_shufflevector(x, y, (I / 2 + (I % 2) * L)...);
  high = __builtin_shufflevector(x, y, (L / 2 + I / 2 + (I % 2) * L)...);
}

// Transposes a square of as many rows and columns as a vector has lanes.
template <class T, int B>
TOWER_INLINE void transpose(T* to, int64_t to_step, const T* from, int64_t from_step) {
  constexpr int L = kLanes<T, B>;
  Vector<T, B> rows[L], next[L];
  TOWER_UNROLL
  for (int i = 0; i < L; ++i) __builtin_memcpy(&rows[i], from + i * from_step, B);
  TOWER_UNROLL
  for (int done = 1; done < L; done *= 2) {
    TOWER_UNROLL
    for (int i = 0; i < L / 2; ++i)
      interleave<T, B>(rows[i], rows[i + L / 2], next[2 * i], next[2 * i + 1], std::make_integer_sequence<int, L>());
    TOWER_UNROLL
    for (int i = 0; i < L; ++i) rows[i] = next[i];
  }
  TOWER_UNROLL
  for (int i = 0; i < L; ++i) __builtin_memcpy(to + i * to_step, &rows[i], B);
}

// Terms of columns that are contiguous.
template <class T, int B>
TOWER_INLINE void pack_transposed(T* panel, int64_t width, const T* b, int64_t column_step, int64_t columns,
                                  int64_t terms) {
  constexpr int64_t L = kLanes<T, B>;
  int64_t column = 0;
  for (; column + L <= columns; column += L) {
    int64_t k = 0;
    for (; k + L <= terms; k += L)
      transpose<T, B>(panel + k * width + column, width, b + column * column_step + k, column_step);
    for (; k < terms; ++k)
      for (int64_t j = column; j < column + L; ++j) panel[k * width + j] = b[j * column_step + k];
  }
  for (int64_t k = 0; k < terms; ++k) {
    for (int64_t j = column; j < columns; ++j) panel[k * width + j] = b[j * column_step + k];
    for (int64_t j = columns; j < width; ++j) panel[k * width + j] = 0;
  }
}

// Terms of columns that lie apart, of which the first is `column`; where they are in the result, and in S.
template <class T>
TOWER_INLINE void pack_apart(const Matrices<T>& m, T* panel, int64_t width, int64_t* of_c, int64_t* of_s,
                             int64_t column, int64_t columns, int64_t term, int64_t terms) {
  for (int64_t j = 0; j < columns; ++j) {
    const int64_t outer = (column + j) / m.columns.size, own = (column + j) % m.columns.size;
    const T* b = m.b + outer * m.outer.b + own * m.columns.b + term * m.inner.b;
    for (int64_t k = 0; k < terms; ++k) panel[k * width + j] = b[k * m.inner.b];
    of_c[j] = outer * m.outer.c + own * m.columns.c;
    of_s[j] = outer * m.outer.s + own * m.columns.s;
  }
  for (int64_t k = 0; k < terms; ++k)
    for (int64_t j = columns; j < width; ++j) panel[k * width + j] = 0;
}

// Bytes of the vectors that products of so many columns are computed in, of elements of `element` bytes.
int vector_bytes(int64_t columns, int64_t element) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool has_64 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512f");
  if (has_64 && columns * element >= thresholds().fewest_wide_vectors * 64) return 64;
#endif
  static_cast<void>(columns), static_cast<void>(element);
  return 32;
}

// Whether B's columns are read where they are.
template <class T>
bool reads_in_place(const Matrices<T>& m, int bytes) {
  return m.outer.size == 1 && m.columns.b == 1 &&
         (m.rows.size <= kFewRows || (bytes == 64 && m.inner.b * static_cast<int64_t>(sizeof(T)) % kPage != 0));
}

template <class T, int B, int N>
TOWER_INLINE void multiply_columns(const Matrices<T>& m, int64_t column, int64_t columns, int64_t term, int64_t terms) {
  constexpr int64_t kWidth = N * kLanes<T, B>;
  constexpr int kRows = N == 1 ? kMostRows : kRowsIn<B>;
  alignas(B) T panel[kTerms * kWidth];
  int64_t of_c[kWidth], of_s[kWidth];
  const Apart columns_apart{of_c, of_s};
  const Apart* apart = m.outer.size == 1 ? nullptr : &columns_apart;
  const T* b = m.b + term * m.inner.b + column * m.columns.b;
  const bool in_place = columns == kWidth && reads_in_place(m, B);
  if (apart) {
    pack_apart(m, panel, kWidth, of_c, of_s, column, columns, term, terms);
  } else if (m.inner.b == 1 && m.columns.b != 1) {
    pack_transposed<T, B>(panel, kWidth, b, m.columns.b, columns, terms);
  } else if (!in_place) {
    for (int64_t k = 0; k < terms; ++k) {
      copy_few(panel + k * kWidth, 1, b + k * m.inner.b, m.columns.b, columns);
      for (int64_t j = columns; j < kWidth; ++j) panel[k * kWidth + j] = 0;
    }
  }
  multiply_rows_from<T, B, N, kRows>(m, in_place ? b : panel, in_place ? m.inner.b : kWidth, 0, column, columns, apart,
                                     term, terms);
}

// A block of terms of all rows and columns stays in the cache.
template <class T, int B>
TOWER_INLINE void multiply_matrices(const Matrices<T>& m) {
  constexpr int64_t L = kLanes<T, B>;
  const int64_t all = m.outer.size * m.columns.size;
  int64_t term = 0;
  do {
    const int64_t terms = std::min(kTerms, m.inner.size - term);
    for (int64_t column = 0; column < all;) {
      // Of four vectors, two and two: a tile of one reads more than it multiplies.
      const int64_t vectors = (all - column + L - 1) / L, panels = (vectors + kVectorsIn<B> - 1) / kVectorsIn<B>;
      const int64_t columns = std::min(all - column, (vectors + panels - 1) / panels * L);
      if (columns <= L) multiply_columns<T, B, 1>(m, column, columns, term, terms);
      else if (columns <= 2 * L) multiply_columns<T, B, 2>(m, column, columns, term, terms);
      else multiply_columns<T, B, kVectorsIn<B>>(m, column, columns, term, terms);
      column += columns;
    }
    term += terms;
  } while (term < m.inner.size);
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class T>
[[gnu::target("avx2,fma")]] void multiply_by_32(const Matrices<T>& m) {
  multiply_matrices<T, 32>(m);
}
template <class T>
[[gnu::target("avx2,fma,avx512f")]] void multiply_by_64(const Matrices<T>& m) {
  multiply_matrices<T, 64>(m);
}
template <class T>
void multiply_here(const Matrices<T>& m) {
  static const bool by_32 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (vector_bytes(m.outer.size * m.columns.size, sizeof(T)) == 64) multiply_by_64(m);
  else if (by_32) multiply_by_32(m);
  else multiply_matrices<T, 32>(m);
}
#else
template <class T>
void multiply_here(const Matrices<T>& m) {
  multiply_matrices<T, 32>(m);
}
#endif

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

  Products(const Gemm& gemm, int64_t element) : inner(gemm.inner) {
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
    swapped = (rows.size != 1 && rows.c == 1 && columns.c != 1) || is_thin(rows, columns);
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

template <class T>
void run_small(const Products& p, const T* pa, const T* pb, const T* ps, T* pc) {
  const auto multiply = [&](const Products::Place& at, int64_t begin, int64_t end) {
    Matrices<T> m{pa + at.a + begin * p.rows.a,
                  pb + at.b,
                  ps ? ps + at.s + begin * p.rows.s : nullptr,
                  pc + at.c + begin * p.rows.c,
                  p.rows,
                  p.columns,
                  p.inner};
    m.outer = p.outer;
    const int bytes = vector_bytes(p.outer.size * p.columns.size, sizeof(T));
    // A's rows are in the cache when the next columns read them.
    const int64_t rows = end - begin, terms_at_a_time = std::min(p.inner.size, kTerms) + 1,
                  most = p.outer.size != 1          ? std::max<int64_t>(kBlockOfA / (p.inner.size + 1), 64)
                         : reads_in_place(m, bytes) ? kBlockOfA / terms_at_a_time
                                                    : kMostOfA / static_cast<int64_t>(sizeof(T)) / terms_at_a_time,
                  blocks = (rows + most - 1) / most,
                  block = ((rows + blocks - 1) / blocks + kWholeTiles - 1) / kWholeTiles * kWholeTiles;
    for (int64_t row = begin; row < end; row += block) {
      m.rows.size = std::min(block, end - row);
      m.multiply();
      m.a += block * p.rows.a;
      m.c += block * p.rows.c;
      if (m.s) m.s += block * p.rows.s;
    }
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

}  // namespace

template <class T>
void Matrices<T>::multiply() const {
  multiply_here(*this);
}
template struct Matrices<float>;
template struct Matrices<double>;

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

void Gemm::run(at::ScalarType dtype, const GemmMemory& a, const GemmMemory& b, const GemmMemory& s,
               const GemmMemory& c) const {
  if (std::any_of(axes.begin(), axes.end(), [](const GemmAxis& axis) { return axis.size == 0; })) return;
  if (inner.size > 0) {
    check("the left operand", a, &GemmAxis::a);
    check("the right operand", b, &GemmAxis::b);
  }
  if (s.data) check("what is added", s, &GemmAxis::s);
  check("the result", c, &GemmAxis::c);
  const Products p(*this, static_cast<int64_t>(c10::elementSize(dtype)));
  if (dtype == at::kFloat) run_products<float>(p, a, b, s, c);
  else run_products<double>(p, a, b, s, c);
}

}  // namespace tower::compiler
