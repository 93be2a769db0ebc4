#include "kernels/gemm_tiles.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

// A tile of the result stays in registers: R rows of N vectors. B's columns are read where they are, if they are next
// to each other: a tile computes for as long as reading them takes. Else they are copied into vectors, a block of terms
// at a time, and so may lie in any way: those of several products with one A are the columns of one, which may lie
// apart in the result. A panel is the columns of one tile; of many rows, all panels of a block of terms are copied
// first, and then each block of rows meets all of them while its terms are in the cache (after Goto and van de Geijn,
// Anatomy of high-performance matrix multiplication, 2008).
//
// NOTE [Tiles]
// Where vectors have 64 bytes there are 32 registers: a tile is 8 rows of 3 vectors. Of 32 bytes there are 16, and a
// tile is 6 rows of 2. (One of 4 rows of 3 vectors needs all 16: compilers then keep one of its sums in memory, which
// takes twice as long.) The smaller tile reads B more often, where its rows lie in more pages than the CPU knows at
// once: there B is copied for more than a few rows.

constexpr int64_t kPage = 4096;  // bytes: rows so far apart lie in the same few places of a cache
constexpr int kVectors = 3;      // the widest tile

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

template <class T, int B, int N, int R>
TOWER_INLINE void add_terms(Vector<T, B> (&sums)[R][N], const T* a, int64_t row_of_a, int64_t term_of_a, const T* panel,
                            int64_t step, int64_t terms) {
  for (int64_t k = 0; k < terms; ++k) {
    Vector<T, B> b[N];
    TOWER_UNROLL
    for (int v = 0; v < N; ++v) __builtin_memcpy(&b[v], panel + k * step + v * kLanes<T, B>, B);
    TOWER_UNROLL
    for (int r = 0; r < R; ++r) {
      const T x = a[r * row_of_a + k * term_of_a];
      TOWER_UNROLL
      for (int v = 0; v < N; ++v) sums[r][v] += x * b[v];
    }
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
  // Where A's terms follow each other, addresses take fewer registers.
  if (m.inner.a == 1) add_terms<T, B, N, R>(sums, a, m.rows.a, 1, panel, step, terms);
  else add_terms<T, B, N, R>(sums, a, m.rows.a, m.inner.a, panel, step, terms);
  // To what there is already: of the blocks before, or S.
  const bool again = term != 0;
  const T* before = again ? c : m.s ? m.s + row * m.rows.s + (apart ? 0 : column * m.columns.s) : nullptr;
  const int64_t before_row = again ? m.rows.c : m.rows.s, before_column = again ? m.columns.c : m.columns.s;
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
      for (int v = 0; v < N; ++v) __builtin_memcpy(c + r * m.rows.c + v * kLanes<T, B>, &sums[r][v], B);
    }
    return;
  }
  alignas(B) T room[R * kWidth];
  TOWER_UNROLL
  for (int r = 0; r < R; ++r) {
    TOWER_UNROLL
    for (int v = 0; v < N; ++v) __builtin_memcpy(room + r * kWidth + v * kLanes<T, B>, &sums[r][v], B);
  }
  const int64_t* before_apart = !apart ? nullptr : again ? apart->c : apart->s;
  put_rows<T>({R, columns, c, m.rows.c, m.columns.c, before, before_row, before_column, apart, before_apart}, room,
              kWidth);
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

// Terms of columns that lie as in one matrix.
template <class T, int B>
TOWER_INLINE void pack(T* panel, int64_t width, const Matrices<T>& m, int64_t column, int64_t columns, int64_t term,
                       int64_t terms) {
  const T* b = m.b + term * m.inner.b + column * m.columns.b;
  if (m.inner.b == 1 && m.columns.b != 1) return pack_transposed<T, B>(panel, width, b, m.columns.b, columns, terms);
  for (int64_t k = 0; k < terms; ++k) {
    copy_few(panel + k * width, 1, b + k * m.inner.b, m.columns.b, columns);
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

}  // namespace

int vector_bytes(int64_t columns, int64_t element) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool has_64 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512f");
  if (has_64 && columns * element >= thresholds().fewest_wide_vectors * 64) return 64;
#endif
  static_cast<void>(columns), static_cast<void>(element);
  return 32;
}

template <class T>
bool reads_in_place(const Matrices<T>& m, int bytes) {
  return m.outer.size == 1 && m.columns.b == 1 &&
         (m.rows.size <= kFewRows || (bytes == 64 && m.inner.b * static_cast<int64_t>(sizeof(T)) % kPage != 0));
}
template bool reads_in_place(const Matrices<float>& m, int bytes);
template bool reads_in_place(const Matrices<double>& m, int bytes);

namespace {

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
  } else if (!in_place) {
    pack<T, B>(panel, kWidth, m, column, columns, term, terms);
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

// All panels of a block of terms, `apart` elements from one to the next. Columns that follow each other are read term
// by term, as they lie in memory: panel by panel, each read would be of another page.
template <class T, int B>
TOWER_INLINE void pack_panels(T* panels, int64_t width, int64_t apart, const Matrices<T>& m, int64_t term,
                              int64_t terms) {
  const int64_t all = m.columns.size, whole = m.columns.b == 1 ? all / width : 0;
  for (int64_t k = 0; whole > 0 && k < terms; ++k) {
    const T* b = m.b + (term + k) * m.inner.b;
    T* to = panels + k * width;
    for (int64_t p = 0; p < whole; ++p, b += width, to += apart) copy_few(to, b, width);
  }
  for (int64_t p = whole; p * width < all; ++p)
    pack<T, B>(panels + p * apart, width, m, p * width, std::min(all - p * width, width), term, terms);
}

// A block of rows stays in the cache while it is multiplied by all columns.
template <class T, int B>
TOWER_INLINE void multiply_blocks(c10::ArrayRef<Matrices<T>> blocks) {
  constexpr int N = kVectorsIn<B>;
  constexpr int64_t kWidth = N * kLanes<T, B>;
  const Matrices<T>& first = blocks[0];
  // One line of a cache more: panels must not lie in the same few places of it.
  const int64_t all = first.columns.size, apart = std::min(kTerms, first.inner.size) * kWidth + 2 * kLanes<T, B>;
  const auto room = std::make_unique_for_overwrite<Vector<T, B>[]>(
      static_cast<size_t>((all + kWidth - 1) / kWidth * apart / kLanes<T, B>));
  T* const panels = reinterpret_cast<T*>(room.get());
  int64_t term = 0;
  do {
    const int64_t terms = std::min(kTerms, first.inner.size - term);
    pack_panels<T, B>(panels, kWidth, apart, first, term, terms);
    for (const Matrices<T>& m : blocks) {
      const T* from = panels;
      for (int64_t column = 0; column < all; column += kWidth, from += apart)
        multiply_rows_from<T, B, N, kRowsIn<B>>(m, from, kWidth, 0, column, std::min(all - column, kWidth), nullptr,
                                                term, terms);
    }
    term += terms;
  } while (term < first.inner.size);
}

struct OfMatrices {
  template <class T, int B>
  TOWER_INLINE static void run(const Matrices<T>& m) {
    multiply_matrices<T, B>(m);
  }
};
struct OfBlocks {
  template <class T, int B>
  TOWER_INLINE static void run(c10::ArrayRef<Matrices<T>> blocks) {
    multiply_blocks<T, B>(blocks);
  }
};

#if defined(__x86_64__) && defined(__GNUC__)
template <class Of, class T, class M>
[[gnu::target("avx2,fma")]] void multiply_by_32(const M& m) {
  Of::template run<T, 32>(m);
}
template <class Of, class T, class M>
[[gnu::target("avx2,fma,avx512f")]] void multiply_by_64(const M& m) {
  Of::template run<T, 64>(m);
}
template <class Of, class T, class M>
void multiply_here(const M& m, int64_t columns) {
  static const bool by_32 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (vector_bytes(columns, sizeof(T)) == 64) multiply_by_64<Of, T>(m);
  else if (by_32) multiply_by_32<Of, T>(m);
  else Of::template run<T, 32>(m);
}
#else
template <class Of, class T, class M>
void multiply_here(const M& m, int64_t) {
  Of::template run<T, 32>(m);
}
#endif

}  // namespace

template <class T>
void Matrices<T>::multiply() const {
  multiply_here<OfMatrices, T>(*this, outer.size * columns.size);
}
template struct Matrices<float>;
template struct Matrices<double>;

template <class T>
void multiply_by_one(c10::ArrayRef<Matrices<T>> blocks) {
  if (!blocks.empty()) multiply_here<OfBlocks, T>(blocks, blocks[0].columns.size);
}
template void multiply_by_one(c10::ArrayRef<Matrices<float>> blocks);
template void multiply_by_one(c10::ArrayRef<Matrices<double>> blocks);

}  // namespace tower::compiler
