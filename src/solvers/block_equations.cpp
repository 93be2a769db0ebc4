// From blocks to a step. Unknowns that are eliminated first, e, have matrices Hₑ of their own, and ties Wₑₒ to others,
// o:
//
//   | Hₑ  W  | |xₑ|   |bₑ|         Hₑ = L Lᵀ,  Z = L⁻¹ W,   S = Hₒ − Zᵀ Z,   S xₒ = bₒ − Zᵀ L⁻¹ bₑ,
//   | Wᵀ  Hₒ | |xₒ| = |bₒ|         xₑ = L⁻ᵀ (L⁻¹ bₑ − Z xₒ)
//
// (the Schur complement). assemble() makes Hₑ, W and Hₒ of the blocks' Jacobians, factor() L, Z and S, solve() the
// rest. An unknown's part is written by one thread, so that sums have one order.
#include "solvers/block_equations.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <utility>

namespace tower::solvers {
namespace {

size_t place(int64_t k) { return static_cast<size_t>(k); }

// Of row-major matrices: to `out`, of `rows` rows in a matrix of `out_width` columns, is added sign · aᵀ b, for a of
// {depth, a_width} and b of {depth, b_width}, whose first columns are taken.
struct Product {
  double sign;
  int64_t depth, rows, a_width, b_width, out_width;
};
template <size_t columns>
void add_columns(double* out, const double* a, const double* b, const Product& p) {
  for (int64_t i = 0; i < p.rows; ++i) {
    double sums[columns] = {};
    for (int64_t k = 0; k < p.depth; ++k) {
      const double factor = a[k * p.a_width + i];
      for (size_t j = 0; j < columns; ++j) sums[j] += factor * b[k * p.b_width + static_cast<int64_t>(j)];
    }
    for (size_t j = 0; j < columns; ++j) out[i * p.out_width + static_cast<int64_t>(j)] += p.sign * sums[j];
  }
}
// One function for each number of columns up to this: loops of a known length are vectors.
constexpr int64_t kColumns = 12;
template <size_t... columns>
constexpr auto each_number_of_columns(std::index_sequence<columns...>) {
  return std::array{&add_columns<columns + 1>...};
}
void add_product(double* out, const double* a, const double* b, int64_t columns, const Product& p) {
  static constexpr auto kAdd = each_number_of_columns(std::make_index_sequence<kColumns>());
  for (int64_t done = 0; done < columns; done += kColumns)
    kAdd[place(std::min(columns - done, kColumns) - 1)](out + done, a, b + done, p);
}

// The Cholesky factor of a small matrix, in its place. Whether it is positive definite.
bool factor_small(double* m, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < j; ++i) m[i * n + j] = 0;
    for (int64_t i = j; i < n; ++i) {
      double value = m[i * n + j];
      for (int64_t k = 0; k < j; ++k) value -= m[i * n + k] * m[j * n + k];
      if (i > j) {
        m[i * n + j] = value / m[j * n + j];
      } else if (value > 0 && std::isfinite(value)) {
        m[j * n + j] = std::sqrt(value);
      } else {
        return false;
      }
    }
  }
  return true;
}
// L⁻¹ of {n, columns}, in its place, and L⁻ᵀ.
void solve_lower(const double* lower, int64_t n, double* x, int64_t columns) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double value = x[i * columns + j];
      for (int64_t k = 0; k < i; ++k) value -= lower[i * n + k] * x[k * columns + j];
      x[i * columns + j] = value / lower[i * n + i];
    }
}
void solve_upper(const double* lower, int64_t n, double* x, int64_t columns) {
  for (int64_t i = n - 1; i >= 0; --i)
    for (int64_t j = 0; j < columns; ++j) {
      double value = x[i * columns + j];
      for (int64_t k = i + 1; k < n; ++k) value -= lower[k * n + i] * x[k * columns + j];
      x[i * columns + j] = value / lower[i * n + i];
    }
}
// x −= or += m v, of {rows, columns}.
void add_image(double* x, double sign, const double* m, const double* v, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) x[i] += sign * m[i * columns + j] * v[j];
}

// A block's part of what its term has.
struct OfBlock {
  const double *residuals, *jacobian;
  int64_t depth, width;
};
OfBlock of_block(const BlockValues& values, int64_t block) {
  const int64_t depth = values.jacobians.size(1), width = values.jacobians.size(2);
  return {values.residuals.const_data_ptr<double>() + block * depth,
          values.jacobians.const_data_ptr<double>() + block * depth * width, depth, width};
}

constexpr int64_t kEliminatedAtOnce = 64;

// f(row, blocks) for each row of what is left, where blocks[column] is to be set by f. Rows in the upper triangle get
// shorter: the first goes with the last.
template <class F>
void each_row(int64_t rows, const F& f) {
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<double*> blocks(place(rows));
    for (int64_t k = begin; k < end; ++k) f(k % 2 == 0 ? k / 2 : rows - 1 - k / 2, blocks.data());
  });
}

}  // namespace

double BlockVector::dot(const BlockVector& another) const {
  double sum = 0;
  for (size_t i = 0; i < eliminated.size(); ++i) sum += eliminated[i] * another.eliminated[i];
  for (size_t i = 0; i < others.size(); ++i) sum += others[i] * another.others[i];
  return sum;
}

BlockEquations::BlockEquations(std::shared_ptr<const BlockPattern> pattern)
    : pattern_(std::move(pattern)), factors_(block_factors(*pattern_)) {
  const int64_t e = pattern_->eliminated_size();
  gradient_ = diagonal_ = zeros();
  own_.resize(place(pattern_->num_eliminated() * e * e));
  ties_.resize(place(pattern_->tie_values()));
  entries_.resize(place(pattern_->entry_values()));
  for (size_t kind = 0; kind < pattern_->kinds().size(); ++kind) {
    const auto& [count, size, held] = pattern_->kinds()[kind];
    if (pattern_->eliminated(static_cast<int64_t>(kind))) continue;
    if (held.empty()) other_held_.insert(other_held_.end(), place(count), 0);
    else other_held_.insert(other_held_.end(), held.begin(), held.end());
  }
}

BlockVector BlockEquations::zeros() const {
  return {std::vector<double>(place(pattern_->num_eliminated() * pattern_->eliminated_size())),
          std::vector<double>(place(pattern_->num_remaining()))};
}

bool BlockEquations::is_held(int64_t kind, int64_t row) const {
  const std::vector<uint8_t>& held = pattern_->kinds()[place(kind)].held;
  return !held.empty() && held[place(row)] != 0;
}

void BlockEquations::assemble(const std::vector<BlockValues>& values) {
  at::parallel_for(0, pattern_->num_eliminated(), kEliminatedAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) assemble_eliminated(e, values);
  });
  each_row(pattern_->num_others(), [&](int64_t row, double** blocks) {
    for (const auto& [column, start] : pattern_->entries().of(row)) {
      blocks[column] = entries_.data() + start;
      std::fill_n(blocks[column], pattern_->size(row) * pattern_->size(column), 0.);
    }
    const int64_t size = pattern_->size(row), offset = pattern_->offset(row);
    double* gradient = gradient_.others.data() + offset;
    std::fill_n(gradient, size, 0.);
    const bool held = other_held_[place(row)] != 0;
    if (!held)
      for (const BlockPattern::Place& used : pattern_->other_places().of(row)) {
        const BlockTerm& term = pattern_->terms()[place(used.term)];
        const OfBlock of = of_block(values[place(used.term)], used.block);
        const double* mine = of.jacobian + term.uses[place(used.use)].column;
        add_product(gradient, mine, of.residuals, 1, {1, of.depth, size, of.width, 1, 1});
        for (const BlockUse& use : term.uses) {
          if (pattern_->eliminated(use.kind)) continue;
          const int64_t column = pattern_->number(use.kind, use.rows[place(used.block)]);
          if (column < row || other_held_[place(column)] != 0) continue;
          const int64_t columns = pattern_->size(column);
          add_product(blocks[column], mine, of.jacobian + use.column, columns,
                      {1, of.depth, size, of.width, of.width, columns});
        }
      }
    for (int64_t i = 0; i < size; ++i) {
      double& diagonal = blocks[row][i * size + i];
      if (held) diagonal = 1;
      diagonal_.others[place(offset + i)] = diagonal;
    }
  });
}

void BlockEquations::assemble_eliminated(int64_t e, const std::vector<BlockValues>& values) {
  const int64_t size = pattern_->eliminated_size();
  double *own = own_.data() + e * size * size, *gradient = gradient_.eliminated.data() + e * size;
  std::fill_n(own, size * size, 0.);
  std::fill_n(gradient, size, 0.);
  const auto ties = pattern_->ties().of(e);
  for (const auto& tie : ties) std::fill_n(ties_.data() + tie.values, size * pattern_->size(tie.other), 0.);
  const bool held = is_held(*pattern_->eliminate(), e);
  if (!held)
    for (const BlockPattern::Place& used : pattern_->eliminated_places().of(e)) {
      const BlockTerm& term = pattern_->terms()[place(used.term)];
      const OfBlock of = of_block(values[place(used.term)], used.block);
      const double* mine = of.jacobian + term.uses[place(used.use)].column;
      add_product(gradient, mine, of.residuals, 1, {1, of.depth, size, of.width, 1, 1});
      add_product(own, mine, mine, size, {1, of.depth, size, of.width, of.width, size});
      for (const BlockUse& use : term.uses) {
        if (pattern_->eliminated(use.kind)) continue;
        const int64_t other = pattern_->number(use.kind, use.rows[place(used.block)]), columns = pattern_->size(other);
        if (other_held_[place(other)] != 0) continue;
        const auto* tie =
            std::lower_bound(ties.begin(), ties.end(), other, [](const auto& t, int64_t o) { return t.other < o; });
        add_product(ties_.data() + tie->values, mine, of.jacobian + use.column, columns,
                    {1, of.depth, size, of.width, of.width, columns});
      }
    }
  for (int64_t i = 0; i < size; ++i) {
    if (held) own[i * size + i] = 1;
    diagonal_.eliminated[place(e * size + i)] = own[i * size + i];
  }
}

bool BlockEquations::factor_eliminated(int64_t e, const BlockVector& added) {
  const int64_t size = pattern_->eliminated_size();
  double* lower = lower_.data() + e * size * size;
  for (int64_t i = 0; i < size; ++i) lower[i * size + i] += added.eliminated[place(e * size + i)];
  if (!factor_small(lower, size)) return false;
  for (const auto& tie : pattern_->ties().of(e))
    solve_lower(lower, size, images_.data() + tie.values, pattern_->size(tie.other));
  return true;
}

void BlockEquations::subtract_eliminated(int64_t row, double* const* blocks_of_row) {
  const int64_t depth = pattern_->eliminated_size(), size = pattern_->size(row);
  for (const int64_t number : pattern_->ties_of_others().of(row)) {
    const BlockPattern::Tie& mine = pattern_->ties().all[place(number)];
    for (const auto *another = &mine, *end = pattern_->ties().of(mine.eliminated).end(); another != end; ++another) {
      const int64_t columns = pattern_->size(another->other);
      add_product(blocks_of_row[another->other], images_.data() + mine.values, images_.data() + another->values,
                  columns, {-1, depth, size, size, columns, columns});
    }
  }
}

bool BlockEquations::factor(const BlockVector& added) {
  lower_ = own_;
  images_ = ties_;
  left_ = entries_;
  std::atomic<bool> is_definite = true;
  at::parallel_for(0, pattern_->num_eliminated(), kEliminatedAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end && is_definite; ++e)
      if (!factor_eliminated(e, added)) is_definite = false;
  });
  if (!is_definite) return false;
  each_row(pattern_->num_others(), [&](int64_t row, double** blocks) {
    for (const auto& [column, start] : pattern_->entries().of(row)) blocks[column] = left_.data() + start;
    const int64_t size = pattern_->size(row);
    for (int64_t i = 0; i < size; ++i) blocks[row][i * size + i] += added.others[place(pattern_->offset(row) + i)];
    subtract_eliminated(row, blocks);
  });
  return factors_->factor(left_.data());
}

BlockVector BlockEquations::solve(const BlockVector& b) const {
  const int64_t size = pattern_->eliminated_size();
  BlockVector x = b;
  for (int64_t e = 0; e < pattern_->num_eliminated(); ++e) {
    double* own = x.eliminated.data() + e * size;
    solve_lower(lower_.data() + e * size * size, size, own, 1);
    for (const auto& tie : pattern_->ties().of(e))
      add_product(x.others.data() + pattern_->offset(tie.other), images_.data() + tie.values, own, 1,
                  {-1, size, pattern_->size(tie.other), pattern_->size(tie.other), 1, 1});
  }
  const Tensor left = factors_->solve(
      at::from_blob(x.others.data(), {static_cast<int64_t>(x.others.size()), 1}, at::TensorOptions(at::kDouble)));
  const Tensor others = left.contiguous();
  std::copy_n(others.const_data_ptr<double>(), x.others.size(), x.others.data());
  for (int64_t e = 0; e < pattern_->num_eliminated(); ++e) {
    double* own = x.eliminated.data() + e * size;
    for (const auto& tie : pattern_->ties().of(e))
      add_image(own, -1, images_.data() + tie.values, x.others.data() + pattern_->offset(tie.other), size,
                pattern_->size(tie.other));
    solve_upper(lower_.data() + e * size * size, size, own, 1);
  }
  return x;
}

double BlockEquations::squared_image(const BlockVector& v, const std::vector<BlockValues>& values) const {
  double sum = 0;
  std::vector<double> image;
  for (size_t t = 0; t < values.size(); ++t) {
    const BlockTerm& term = pattern_->terms()[t];
    for (int64_t block = 0; block < term.blocks; ++block) {
      const OfBlock of = of_block(values[t], block);
      image.assign(place(of.depth), 0);
      for (const BlockUse& use : term.uses) {
        const int64_t number = pattern_->number(use.kind, use.rows[place(block)]);
        const bool first = pattern_->eliminated(use.kind);
        const int64_t size = first ? pattern_->eliminated_size() : pattern_->size(number);
        const double* part = first ? v.eliminated.data() + number * size : v.others.data() + pattern_->offset(number);
        for (int64_t k = 0; k < of.depth; ++k)
          add_image(&image[place(k)], 1, of.jacobian + k * of.width + use.column, part, 1, size);
      }
      for (const double value : image) sum += value * value;
    }
  }
  return sum;
}

std::vector<Tensor> BlockEquations::inverse_blocks() const {
  const int64_t n = pattern_->num_remaining(), size = pattern_->eliminated_size();
  const Tensor inverse = factors_->solve(at::eye(n, at::kDouble)).contiguous();
  const double* all = inverse.const_data_ptr<double>();
  std::vector<Tensor> blocks;
  for (size_t k = 0; k < pattern_->kinds().size(); ++k) {
    const auto kind = static_cast<int64_t>(k);
    const auto& [count, width, held] = pattern_->kinds()[k];
    Tensor& of_kind = blocks.emplace_back(at::zeros({count, width, width}, at::kDouble));
    double* out = of_kind.mutable_data_ptr<double>();
    for (int64_t row = 0; row < count; ++row, out += width * width) {
      if (is_held(kind, row)) continue;
      if (!pattern_->eliminated(kind)) {
        const int64_t start = pattern_->offset(pattern_->number(kind, row));
        for (int64_t i = 0; i < width; ++i) std::copy_n(all + (start + i) * n + start, width, out + i * width);
        continue;
      }
      // Hₑ⁻¹ + L⁻ᵀ Z S⁻¹ Zᵀ L⁻¹: with R = L⁻¹ it is Rᵀ (1 + Z S⁻¹ Zᵀ) R.
      const double* lower = lower_.data() + row * size * size;
      for (int64_t i = 0; i < size; ++i) out[i * size + i] = 1;
      for (const auto& p : pattern_->ties().of(row))
        for (const auto& q : pattern_->ties().of(row))
          for (int64_t i = 0; i < size; ++i)
            for (int64_t j = 0; j < size; ++j)
              for (int64_t a = 0; a < pattern_->size(p.other); ++a)
                add_image(out + i * size + j, images_[place(p.values + i * pattern_->size(p.other) + a)],
                          all + (pattern_->offset(p.other) + a) * n + pattern_->offset(q.other),
                          images_.data() + q.values + j * pattern_->size(q.other), 1, pattern_->size(q.other));
      solve_upper(lower, size, out, size);  // L⁻ᵀ M, and of the transposed one again
      for (int64_t i = 0; i < size; ++i)
        for (int64_t j = 0; j < i; ++j) std::swap(out[i * size + j], out[j * size + i]);
      solve_upper(lower, size, out, size);
    }
  }
  return blocks;
}

std::vector<Tensor> BlockEquations::tensors(const BlockVector& v) const {
  std::vector<Tensor> result;
  const double* next = v.others.data();
  for (size_t k = 0; k < pattern_->kinds().size(); ++k) {
    const auto& [count, size, held] = pattern_->kinds()[k];
    const bool first = pattern_->eliminated(static_cast<int64_t>(k));
    Tensor& t = result.emplace_back(at::empty({count, size}, at::kDouble));
    std::copy_n(first ? v.eliminated.data() : next, count * size, t.mutable_data_ptr<double>());
    if (!first) next += count * size;
  }
  return result;
}

BlockVector BlockEquations::vector(const std::vector<Tensor>& tensors) const {
  BlockVector result;
  for (size_t k = 0; k < tensors.size(); ++k) {
    const Tensor t = tensors[k].to(at::kDouble).contiguous();
    auto& part = pattern_->eliminated(static_cast<int64_t>(k)) ? result.eliminated : result.others;
    part.insert(part.end(), t.const_data_ptr<double>(), t.const_data_ptr<double>() + t.numel());
  }
  return result;
}

}  // namespace tower::solvers
