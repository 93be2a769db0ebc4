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
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "solvers/small_blocks.h"

namespace tower::solvers {
namespace {

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
// Squares are added up by so many blocks, whatever threads there are.
constexpr int64_t kBlocksOfASum = 1024;

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

BlockEquations::BlockEquations(std::shared_ptr<const BlockPattern> pattern, FitSolver solver, double tolerance)
    : pattern_(std::move(pattern)), solver_(solver), tolerance_(tolerance) {
  if (solver_ == FitSolver::cholesky) factors_ = block_factors(*pattern_);
  if (solver_ == FitSolver::qr) qr_ = block_qr(*pattern_);
  const int64_t e = pattern_->eliminated_size();
  gradient_ = diagonal_ = held_ = zeros();
  own_.resize(place(pattern_->num_eliminated() * e * e));
  ties_.resize(place(pattern_->tie_values()));
  entries_.resize(place(pattern_->entry_values()));
  for (size_t kind = 0; kind < pattern_->kinds().size(); ++kind) {
    const auto& [count, size, held] = pattern_->kinds()[kind];
    if (pattern_->eliminated(static_cast<int64_t>(kind))) continue;
    if (held.empty()) other_held_.insert(other_held_.end(), place(count), 0);
    else other_held_.insert(other_held_.end(), held.begin(), held.end());
  }
  for (int64_t row = 0; row < pattern_->num_others(); ++row) {
    diagonal_starts_.push_back(static_cast<int64_t>(diagonal_factors_.size()));
    if (solver_ == FitSolver::conjugate_gradients)
      diagonal_factors_.resize(diagonal_factors_.size() + place(pattern_->size(row) * pattern_->size(row)));
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
  values_ = &values;
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
      held_.others[place(offset + i)] = held ? 1 : 0;
    }
  });
}

namespace {

// Of a block {rows, columns} no more than a unit on the diagonal where numbers of either side are held.
void untie(double* block, int64_t rows, int64_t columns, const double* held_rows, const double* held_columns,
           bool is_diagonal) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      if (held_rows[i] != 0 || held_columns[j] != 0) block[i * columns + j] = is_diagonal && i == j ? 1 : 0;
}

}  // namespace

void BlockEquations::hold(const BlockVector& numbers) {
  held_ = held_.with(numbers, [](double a, double b) { return a != 0 || b != 0 ? 1. : 0.; });
  gradient_ = gradient_.with(held_, [](double value, double held) { return held != 0 ? 0. : value; });
  const int64_t size = pattern_->eliminated_size();
  at::parallel_for(0, pattern_->num_eliminated(), kEliminatedAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const double* held = held_.eliminated.data() + e * size;
      untie(own_.data() + e * size * size, size, size, held, held, true);
      for (const auto& tie : pattern_->ties().of(e))
        untie(ties_.data() + tie.values, size, pattern_->size(tie.other), held,
              held_.others.data() + pattern_->offset(tie.other), false);
    }
  });
  for (int64_t row = 0; row < pattern_->num_others(); ++row)
    for (const auto& [column, start] : pattern_->entries().of(row))
      untie(entries_.data() + start, pattern_->size(row), pattern_->size(column),
            held_.others.data() + pattern_->offset(row), held_.others.data() + pattern_->offset(column), row == column);
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
    held_.eliminated[place(e * size + i)] = held ? 1 : 0;
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
  if (qr_) return qr_->factor(*values_, held_.others, diagonal_.others, added.others);
  lower_ = own_;
  images_ = ties_;
  left_ = entries_;
  std::atomic<bool> is_definite = true;
  at::parallel_for(0, pattern_->num_eliminated(), kEliminatedAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end && is_definite; ++e)
      if (!factor_eliminated(e, added)) is_definite = false;
  });
  if (!is_definite) return false;
  for (int64_t row = 0; row < pattern_->num_others(); ++row) {
    double* diagonal = left_.data() + pattern_->entries().of(row).begin()->values;
    const int64_t size = pattern_->size(row);
    for (int64_t i = 0; i < size; ++i) diagonal[i * size + i] += added.others[place(pattern_->offset(row) + i)];
  }
  if (solver_ == FitSolver::conjugate_gradients) return factor_diagonal();
  each_row(pattern_->num_others(), [&](int64_t row, double** blocks) {
    for (const auto& [column, start] : pattern_->entries().of(row)) blocks[column] = left_.data() + start;
    subtract_eliminated(row, blocks);
  });
  return factors_->factor(left_.data());
}

Tensor BlockEquations::solve_left(const Tensor& b) const { return qr_ ? qr_->solve(b) : factors_->solve(b); }

BlockVector BlockEquations::solve(const BlockVector& b) const {
  return solve_around(b, [this](std::vector<double>& x) {
    if (solver_ == FitSolver::conjugate_gradients) return iterate_left(x);
    const Tensor left =
        solve_left(at::from_blob(x.data(), {static_cast<int64_t>(x.size()), 1}, at::TensorOptions(at::kDouble)))
            .contiguous();
    std::copy_n(left.const_data_ptr<double>(), x.size(), x.data());
  });
}

BlockVector BlockEquations::precondition(const BlockVector& b) const {
  if (solver_ != FitSolver::conjugate_gradients) return solve(b);
  return solve_around(b, [this](std::vector<double>& x) { precondition_left(x); });
}

BlockVector BlockEquations::step() const {
  if (!qr_) return solve(gradient_.with(gradient_, [](double value, double) { return -value; }));
  return {{}, qr_->least_squares(*values_)};
}

BlockVector BlockEquations::solve_around(const BlockVector& b, const SolveLeft& solve_left) const {
  const int64_t size = pattern_->eliminated_size();
  BlockVector x = b;
  for (int64_t e = 0; e < pattern_->num_eliminated(); ++e) {
    double* own = x.eliminated.data() + e * size;
    solve_lower(lower_.data() + e * size * size, size, own, 1);
    for (const auto& tie : pattern_->ties().of(e))
      add_product(x.others.data() + pattern_->offset(tie.other), images_.data() + tie.values, own, 1,
                  {-1, size, pattern_->size(tie.other), pattern_->size(tie.other), 1, 1});
  }
  solve_left(x.others);
  for (int64_t e = 0; e < pattern_->num_eliminated(); ++e) {
    double* own = x.eliminated.data() + e * size;
    for (const auto& tie : pattern_->ties().of(e))
      add_image(own, -1, images_.data() + tie.values, x.others.data() + pattern_->offset(tie.other), size,
                pattern_->size(tie.other));
    solve_upper(lower_.data() + e * size * size, size, own, 1);
  }
  return x;
}

std::pair<const double*, int64_t> BlockEquations::numbers_of(const BlockVector& v, const BlockUse& use,
                                                             int64_t block) const {
  const int64_t number = pattern_->number(use.kind, use.rows[place(block)]);
  if (!pattern_->eliminated(use.kind)) return {v.others.data() + pattern_->offset(number), pattern_->size(number)};
  const int64_t size = pattern_->eliminated_size();
  return {v.eliminated.data() + number * size, size};
}

double BlockEquations::squared_image(const BlockVector& v, const std::vector<BlockValues>& values) const {
  double sum = 0;
  for (size_t t = 0; t < values.size(); ++t) {
    const BlockTerm& term = pattern_->terms()[t];
    std::vector<double> sums(place((term.blocks + kBlocksOfASum - 1) / kBlocksOfASum));
    at::parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
      std::vector<double> image(place(values[t].jacobians.size(1)));
      for (int64_t part = begin; part < end; ++part)
        for (int64_t block = part * kBlocksOfASum; block < std::min((part + 1) * kBlocksOfASum, term.blocks); ++block) {
          std::fill(image.begin(), image.end(), 0.);
          const OfBlock of = of_block(values[t], block);
          for (const BlockUse& use : term.uses) {
            const auto [numbers, size] = numbers_of(v, use, block);
            for (int64_t k = 0; k < of.depth; ++k)
              add_image(&image[place(k)], 1, of.jacobian + k * of.width + use.column, numbers, 1, size);
          }
          for (const double value : image) sums[place(part)] += value * value;
        }
    });
    for (const double part : sums) sum += part;
  }
  return sum;
}

std::vector<Tensor> BlockEquations::inverse_blocks() const {
  const int64_t n = pattern_->num_remaining(), size = pattern_->eliminated_size();
  const Tensor inverse = solve_left(at::eye(n, at::kDouble)).contiguous();
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
  const std::vector<Tensor> held = tensors(held_);
  for (size_t k = 0; k < blocks.size(); ++k) {
    const Tensor fixed = held[k] != 0;
    blocks[k] = at::where(at::logical_or(fixed.unsqueeze(1), fixed.unsqueeze(2)), 0., blocks[k]);
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
