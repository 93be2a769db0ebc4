// A compiled function and its derivatives as CasADi's external functions. With f(x, u) → (y):
//
//   f            the program of the compiled function
//   jac_f        each result by each argument: the entries of the sparse Jacobian, from as few directional derivatives
//                as its colouring needs (tower/sparse.h), each at its place in a block of CasADi's
//   fwd1_f       along one direction of the arguments
//   adj1_f       along one of the results
//   jac_adj1_f   of adj1_f each result by each argument: the Hessian, and the Jacobian transposed, whose numbers are
//                those of jac_f's program
//
// These are the names that CasADi looks for when it differentiates an external function. Derivatives are derived from
// the function's graph, and traced, at numbers that stand for any.
#include "compile/export_casadi.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "compile/casadi_function.h"
#include "compile/compiled_graph.h"
#include "compile/program_text.h"
#include "compile/specialisations.h"
#include "kernels/template.h"
#include "sparse/compressed.h"
#include "tower/errors.h"
#include "tower/sparse.h"
#include "tower/version.h"

namespace tower::compiler {
namespace {

using dynamic::Function;
using dynamic::Tensors;

std::string count_text(size_t n) { return std::to_string(n); }

// A tensor that is a matrix of CasADi's: a scalar, a column, or a matrix.
struct Matrix {
  Sizes sizes, strides;

  int64_t rows() const { return sizes.empty() ? 1 : sizes[0]; }
  int64_t columns() const { return sizes.size() < 2 ? 1 : sizes[1]; }
  int64_t count() const { return rows() * columns(); }
  CasadiPattern dense() const { return {rows(), columns()}; }

  // Of the k-th number by columns, where it lies.
  int64_t place(int64_t k) const {
    return sizes.empty() ? 0 : k % rows() * strides[0] + (sizes.size() < 2 ? 0 : k / rows() * strides[1]);
  }
  std::vector<int64_t> places() const {
    std::vector<int64_t> all;
    bool as_they_lie = true;
    for (int64_t k = 0; k < count(); ++k) {
      all.push_back(place(k));
      as_they_lie = as_they_lie && all.back() == k;
    }
    return as_they_lie ? std::vector<int64_t>() : all;
  }
  // Of the k-th number by rows, as derivatives count them, which one it is by columns.
  int64_t by_columns(int64_t k) const { return k / columns() + k % columns() * rows(); }
};

Sizes fixed(const std::vector<Extent>& extents) {
  Sizes numbers;
  for (const Extent extent : extents) numbers.push_back(extent.fixed);
  return numbers;
}

std::vector<Matrix> matrices_of(const std::vector<PointerProgram::Operand>& operands, const char* what) {
  std::vector<Matrix> matrices;
  for (size_t k = 0; k < operands.size(); ++k) {
    const auto refuse = [&](const std::string& why) {
      throw UnsupportedError("export_c: for CasADi, " + std::string(what) + " " + count_text(k) + " " + why);
    };
    const auto& operand = operands[k];
    if (operand.dtype != at::kDouble)
      refuse(std::string("is of ") + c10::toString(operand.dtype) + ". Its numbers are doubles: convert to float64.");
    if (operand.sizes.size() > 2)
      refuse("has " + count_text(operand.sizes.size()) +
             " dimensions. It has matrices: reshape to two dimensions or fewer.");
    Matrix matrix{fixed(operand.sizes), fixed(operand.strides)};
    std::vector<int64_t> places = matrix.places();
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] != static_cast<int64_t>(i)) refuse("lies with gaps, or shares memory among its elements.");
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

// ---- derivatives ----

// Arguments to derive and trace at, which no value is read of: between 0.5 and 1.5, and well-conditioned where they are
// square, so that roots, logarithms and factors have no reason to fail.
Tensor some_of(const Matrix& matrix) {
  const int64_t n = matrix.count();
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  Tensor numbers = at::arange(1, n + 1, options).mul(0.6180339887498949).frac().add(0.5).reshape(matrix.sizes);
  if (matrix.rows() == matrix.columns() && matrix.rows() > 1)
    numbers = (numbers + numbers.t()) / 2 + matrix.rows() * at::eye(matrix.rows(), options);
  return at::empty_strided(matrix.sizes, matrix.strides, options).copy_(numbers);
}

Tensors some_of(const std::vector<Matrix>& matrices) {
  Tensors all;
  for (const Matrix& matrix : matrices) all.push_back(some_of(matrix));
  return all;
}

// Seeds are traced row by row.
std::vector<Matrix> row_by_row(std::vector<Matrix> matrices) {
  for (Matrix& matrix : matrices) matrix.strides = Sizes(c10::contiguous_strides(matrix.sizes));
  return matrices;
}

Tensors part_of(const Tensors& x, size_t begin, size_t count) {
  return {x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

class CasadiLibrary {
 public:
  CasadiLibrary(std::shared_ptr<const PointerProgram> program, std::shared_ptr<Kernels> of_process,
                const std::string& name, const ExportOptions& options, const LibraryTarget& target)
      : options_(options),
        target_(target),
        name_(name),
        of_process_(std::move(of_process)),
        program_(std::move(program)),
        graph_(program_->graph(), of_process_),
        x_(matrices_of(program_->arguments(), "argument")),
        y_(matrices_of(program_->results(), "result")),
        inputs_(named(x_, options.argument_names, "i", "argument")),
        outputs_(named(y_, options.result_names, "o", "result")) {
    for (const int64_t k : options.parameters) {
      if (k < 0 || k >= static_cast<int64_t>(x_.size()))
        throw ArgumentError("export_c: " + std::to_string(k) + " among the parameters is the position of no argument.");
      inputs_[static_cast<size_t>(k)].is_differentiated = false;
    }
    for (size_t k = 0; k < x_.size(); ++k)
      if (inputs_[k].is_differentiated) free_.push_back(k);
  }

  LibraryFiles files() {
    add_function();
    if (options_.derivatives > 0 && !free_.empty()) add_first();
    if (options_.derivatives > 1 && !free_.empty()) add_second();
    return {header(), source(), object_file(code_, target_.machine()), cmake_text(name_, "SHARED"), "", others_};
  }

 private:
  static std::vector<CasadiMatrix> named(const std::vector<Matrix>& matrices, const std::vector<std::string>& names,
                                         const char* prefix, const char* what) {
    check_names(names, matrices.size(), what);
    std::vector<CasadiMatrix> all;
    for (size_t k = 0; k < matrices.size(); ++k)
      all.push_back({names.empty() ? prefix + count_text(k) : names[k], matrices[k].dense()});
    return all;
  }

  // ---- programs ----

  // Its text and machine code become the library's.
  const ProgramTables* add_program(std::shared_ptr<const PointerProgram> program, const std::string& name) {
    const ProgramText text(*program, name, options_, target_);
    programs_ += text.text();
    append(code_, text.code());
    append(others_, text.others());
    made_.push_back(std::move(program));
    return &made_.back()->tables();
  }

  // A function that is derived from the graph, traced at `x` with constants as they are. `name`: CasADi's.
  std::shared_ptr<const PointerProgram> program_of(const Function& f, const Tensors& x, const std::string& name) try {
    const auto state = std::make_shared<tower::detail::Specialisations::State>(of_process_);
    tower::detail::Specialisations(state).run(
        x, tower::detail::StaticKey::of(), f, [] { return tower::detail::Specialisations::Rest(); },
        tower::detail::Specialisations::always_same);
    return state->by_pointers("export_c", target_.kernels(of_process_), {/*frozen=*/true, options_.loop_steps});
  } catch (const UnsupportedError& e) {
    throw UnsupportedError(std::string(e.what()) + " That is so of its derivative " + name +
                           "; CasADi needs none that is not asked for by the option derivatives.");
  }

  // ---- the function's own arguments, in those of programs and of CasADi ----

  CasadiOperand operand(const Matrix& matrix, size_t position) const {
    return {matrix.count(), {{position, matrix.count(), matrix.places()}}};
  }
  std::vector<CasadiOperand> operands(const std::vector<Matrix>& matrices, size_t first) const {
    std::vector<CasadiOperand> all;
    for (const Matrix& matrix : matrices) all.push_back(operand(matrix, first + all.size()));
    return all;
  }
  template <class T>
  static void append(std::vector<T>& list, const std::vector<T>& more) {
    list.insert(list.end(), more.begin(), more.end());
  }
  // Matrices under other names. `no_numbers`: which are not read, or are zero.
  static std::vector<CasadiMatrix> with_prefix(const std::string& prefix, std::vector<CasadiMatrix> matrices,
                                               bool no_numbers = false) {
    for (CasadiMatrix& matrix : matrices) {
      matrix.name = prefix + matrix.name;
      if (no_numbers || !matrix.is_differentiated)
        matrix.pattern = CasadiPattern::empty(matrix.pattern.rows, matrix.pattern.columns);
      if (no_numbers) matrix.is_differentiated = false;
    }
    return matrices;
  }

  Tensors run(const Tensors& x) const { return graph_.run(x); }
  Tensors free_of(const Tensors& x) const {
    Tensors free;
    for (const size_t k : free_) free.push_back(x[k]);
    return free;
  }
  // The function of the arguments that it is differentiated by; the others are as in `x`.
  Function of_free(const Tensors& x) const {
    return [this, x](const Tensors& free) {
      Tensors all = x;
      for (size_t k = 0; k < free_.size(); ++k) all[free_[k]] = free[k];
      return run(all);
    };
  }
  // The sum of the products of results and seeds.
  Function weighted(const Tensors& x, const Tensors& seeds) const {
    return [f = of_free(x), seeds](const Tensors& free) {
      const Tensors y = f(free);
      Tensor sum;
      for (size_t k = 0; k < y.size(); ++k) {
        const Tensor part = (y[k] * seeds[k]).sum();
        sum = sum.defined() ? sum + part : part;
      }
      return Tensors{sum};
    };
  }
  std::vector<Matrix> free_matrices() const {
    std::vector<Matrix> free;
    for (const size_t k : free_) free.push_back(x_[k]);
    return free;
  }

  // ---- functions ----

  void add_function() {
    CasadiRun run{name_, add_program(program_, name_), operands(x_, 0), operands(y_, 0)};
    functions_.push_back({name_, inputs_, outputs_, {std::move(run)}});
  }

  void add_first() {
    add_jacobian();
    add_forward();
    add_reverse();
  }

  // A sparse matrix of derivatives, in blocks, each of which is one of CasADi's results.
  struct Blocks {
    struct Entry {
      int64_t column, row;
      size_t place;  // in the pattern
      auto operator<=>(const Entry&) const = default;
    };
    std::map<size_t, CasadiPattern> patterns;      // by the position of the result
    std::map<size_t, std::vector<Entry>> entries;  // in the result's order
  };
  // Of each element of all matrices, the one that it is in, and which it is there.
  static std::vector<std::pair<size_t, int64_t>> located(const std::vector<Matrix>& matrices) {
    std::vector<std::pair<size_t, int64_t>> all;
    for (size_t m = 0; m < matrices.size(); ++m)
      for (int64_t k = 0; k < matrices[m].count(); ++k) all.emplace_back(m, k);
    return all;
  }
  // `position`: of the block of one of `rows` and one of `columns`. `transposed`: the blocks are.
  template <class Position>
  static Blocks blocks_of(const Sparsity& sparsity, const std::vector<Matrix>& rows, const std::vector<Matrix>& columns,
                          bool transposed, const Position& position) {
    const auto of_row = located(rows), of_column = located(columns);
    Blocks blocks;
    for (size_t r = 0; r < of_row.size(); ++r)
      for (auto e = static_cast<size_t>(sparsity.starts()[r]); e < static_cast<size_t>(sparsity.starts()[r + 1]); ++e) {
        const auto [row_matrix, in_rows] = of_row[r];
        const auto [column_matrix, in_columns] = of_column[static_cast<size_t>(sparsity.columns()[e])];
        const int64_t row = rows[row_matrix].by_columns(in_rows),
                      column = columns[column_matrix].by_columns(in_columns);
        const size_t at = position(row_matrix, column_matrix);
        const int64_t height = rows[row_matrix].count(), width = columns[column_matrix].count();
        blocks.patterns.try_emplace(
            at, transposed ? CasadiPattern::empty(width, height) : CasadiPattern::empty(height, width));
        blocks.entries[at].push_back(transposed ? Blocks::Entry{row, column, e} : Blocks::Entry{column, row, e});
      }
    for (auto& [at, entries] : blocks.entries) {
      std::sort(entries.begin(), entries.end());
      CasadiPattern& pattern = blocks.patterns.at(at);
      pattern.is_dense = static_cast<int64_t>(entries.size()) == pattern.rows * pattern.columns;
      if (!pattern.is_dense)
        for (const auto& entry : entries) pattern.entries.emplace_back(entry.column, entry.row);
    }
    return blocks;
  }

  // The program that computes the derivatives of a sparse matrix along the directions of its colouring, and where the
  // entries are among its results.
  struct SparseProgram {
    std::string name;
    const ProgramTables* tables = nullptr;
    std::vector<int64_t> counts = {};                     // of the numbers of each result
    std::vector<std::pair<size_t, int64_t>> places = {};  // of each entry: which result, and the place in its memory
  };
  static Tensors all_of(const sparse::Compressed::Derivatives& derivatives) {
    Tensors all;
    for (const auto* lists : {&derivatives.by_columns, &derivatives.by_rows})
      for (const sparse::InParts& parts : *lists) all.insert(all.end(), parts.begin(), parts.end());
    return all;
  }
  SparseProgram sparse_program(const std::string& name, const sparse::Compressed& compressed, const Function& f,
                               const Tensors& x, const std::vector<Matrix>& rows, const std::vector<Matrix>& columns) {
    SparseProgram made{name};
    const auto program = program_of(f, x, name);
    // Directions in the first dimension, and in the others a result or argument, whose elements are counted by rows.
    const auto& results = program->results();
    for (const auto& result : results) made.counts.push_back(c10::multiply_integers(fixed(result.sizes)));
    const auto place_in = [&](size_t result, int64_t direction, int64_t element) {
      const Sizes sizes = fixed(results[result].sizes), strides = fixed(results[result].strides);
      int64_t place = direction * strides[0];
      for (size_t dim = sizes.size() - 1; dim > 0; --dim) {
        place += element % sizes[dim] * strides[dim];
        element /= sizes[dim];
      }
      return place;
    };
    // For a direction of all, the result that has it and which of its rows it is; for each result or argument.
    struct Row {
      size_t result;
      int64_t row;
    };
    size_t next = 0;
    const auto directions_of = [&](const std::vector<Matrix>& matrices, int64_t directions) {
      std::vector<std::vector<Row>> found(directions > 0 ? matrices.size() : 0);
      for (auto& of_matrix : found)
        for (; static_cast<int64_t>(of_matrix.size()) < directions; ++next)
          for (int64_t row = 0; row < results[next].sizes[0].fixed; ++row) of_matrix.push_back({next, row});
      return found;
    };
    const auto by_columns = directions_of(rows, compressed.columns()),
               by_rows = directions_of(columns, compressed.rows());
    const auto of_row = located(rows), of_column = located(columns);
    const auto first_by_rows = compressed.columns() * static_cast<int64_t>(of_row.size());
    for (const int64_t place : compressed.places()) {
      const bool is_by_columns = place < first_by_rows;
      const auto& numbers = is_by_columns ? of_row : of_column;
      const int64_t within = is_by_columns ? place : place - first_by_rows,
                    width = static_cast<int64_t>(numbers.size());
      const auto [matrix, element] = numbers[static_cast<size_t>(within % width)];
      const auto [result, row] = (is_by_columns ? by_columns : by_rows)[matrix][static_cast<size_t>(within / width)];
      made.places.emplace_back(result, place_in(result, row, element));
    }
    made.tables = add_program(program, name);
    return made;
  }

  // The blocks' entries as parts of what a sparse program gives.
  static std::vector<CasadiOperand> results_of(const SparseProgram& program, const Blocks& blocks) {
    std::vector<CasadiOperand> results;
    for (const int64_t count : program.counts) results.push_back({count, {}});
    for (const auto& [at, entries] : blocks.entries)
      for (size_t k = 0; k < entries.size(); ++k) {
        const auto [result, place] = program.places[entries[k].place];
        auto& parts = results[result].parts;
        if (parts.empty() || parts.back().matrix != at) parts.push_back({at, 0});
        parts.back().count += 1;
        parts.back().places.push_back(place);
        parts.back().numbers.push_back(static_cast<int64_t>(k));
      }
    return results;
  }

  void add_jacobian() {
    const std::string name = "jac_" + name_;
    const Tensors x = some_of(x_);
    jacobian_ = dynamic::jacobian_sparsity(of_free(x), free_of(x));
    CasadiFunction jacobian{name, inputs_, {}, {}};
    append(jacobian.arguments, with_prefix("out_", outputs_, /*no_numbers=*/true));
    for (size_t o = 0; o < y_.size(); ++o)
      for (size_t i = 0; i < x_.size(); ++i)
        jacobian.results.push_back(
            {"jac_" + outputs_[o].name + "_" + inputs_[i].name, CasadiPattern::empty(y_[o].count(), x_[i].count())});
    if (jacobian_->num_entries() > 0) {
      const sparse::Compressed compressed(*jacobian_, /*symmetric=*/false);
      const Function derivatives = [&](const Tensors& all) {
        return all_of(compressed.derivatives(of_free(all), free_of(all), std::nullopt));
      };
      jacobian_program_ = sparse_program(name, compressed, derivatives, x, y_, free_matrices());
      const Blocks blocks = blocks_of(*jacobian_, y_, free_matrices(), /*transposed=*/false,
                                      [this](size_t o, size_t i) { return o * x_.size() + free_[i]; });
      add_blocks(jacobian, *jacobian_program_, blocks, operands(x_, 0));
    }
    functions_.push_back(std::move(jacobian));
  }
  static void add_blocks(CasadiFunction& function, const SparseProgram& program, const Blocks& blocks,
                         std::vector<CasadiOperand> arguments) {
    for (const auto& [at, pattern] : blocks.patterns) function.results[at].pattern = pattern;
    function.runs.push_back({program.name, program.tables, std::move(arguments), results_of(program, blocks)});
  }

  void add_forward() {
    const std::string name = "fwd1_" + name_;
    const Function along = [this](const Tensors& all) {
      const Tensors x = part_of(all, 0, x_.size()), seeds = part_of(all, x_.size(), free_.size());
      return dynamic::linearize(of_free(x), free_of(x)).second(seeds);
    };
    const std::vector<Matrix> seeds = row_by_row(free_matrices());
    Tensors given = some_of(x_);
    append(given, some_of(seeds));
    const auto program = program_of(along, given, name);
    CasadiRun run{name, add_program(program, name), operands(x_, 0),
                  operands(matrices_of(program->results(), "result"), 0)};
    for (size_t k = 0; k < free_.size(); ++k)
      run.arguments.push_back(operand(seeds[k], x_.size() + y_.size() + free_[k]));
    CasadiFunction forward{name, inputs_, with_prefix("fwd_", outputs_), {std::move(run)}};
    append(forward.arguments, with_prefix("out_", outputs_, /*no_numbers=*/true));
    append(forward.arguments, with_prefix("fwd_", inputs_));
    functions_.push_back(std::move(forward));
  }

  void add_reverse() {
    const std::string name = "adj1_" + name_;
    const Function along = [this](const Tensors& all) {
      const Tensors x = part_of(all, 0, x_.size()), seeds = part_of(all, x_.size(), y_.size());
      return dynamic::vjp(of_free(x), free_of(x)).second(seeds);
    };
    const std::vector<Matrix> seeds = row_by_row(y_);
    Tensors given = some_of(x_);
    append(given, some_of(seeds));
    const auto program = program_of(along, given, name);
    CasadiRun run{name, add_program(program, name), operands(x_, 0), {}};
    append(run.arguments, operands(seeds, x_.size() + y_.size()));
    const std::vector<Matrix> results = matrices_of(program->results(), "result");
    for (size_t k = 0; k < free_.size(); ++k) run.results.push_back(operand(results[k], free_[k]));
    CasadiFunction reverse{name, inputs_, with_prefix("adj_", inputs_), {std::move(run)}};
    append(reverse.arguments, with_prefix("out_", outputs_, /*no_numbers=*/true));
    append(reverse.arguments, with_prefix("adj_", outputs_));
    functions_.push_back(std::move(reverse));
  }

  void add_second() {
    const std::string name = "jac_adj1_" + name_;
    const CasadiFunction reverse = functions_.back();
    CasadiFunction second{name, reverse.arguments, {}, {}};
    append(second.arguments, with_prefix("out_", reverse.results, /*no_numbers=*/true));
    for (const CasadiMatrix& result : reverse.results)
      for (const CasadiMatrix& argument : reverse.arguments)
        second.results.push_back({"jac_" + result.name + "_" + argument.name,
                                  CasadiPattern::empty(result.pattern.rows * result.pattern.columns,
                                                       argument.pattern.rows * argument.pattern.columns)});
    const size_t width = reverse.arguments.size();
    add_hessian(second, width);
    // By the seeds of adj1_f: the Jacobian, transposed.
    if (jacobian_program_)
      add_blocks(second, *jacobian_program_,
                 blocks_of(*jacobian_, y_, free_matrices(), /*transposed=*/true,
                           [&](size_t o, size_t i) { return free_[i] * width + x_.size() + y_.size() + o; }),
                 operands(x_, 0));
    functions_.push_back(std::move(second));
  }

  void add_hessian(CasadiFunction& second, size_t width) {
    const std::string name = "hess_" + name_;
    const std::vector<Matrix> seeds = row_by_row(y_), free = free_matrices();
    const Tensors x = some_of(x_), weights = some_of(seeds);
    const Sparsity pattern = dynamic::hessian_sparsity(weighted(x, weights), free_of(x));
    if (pattern.num_entries() == 0) return;
    const sparse::Compressed compressed(pattern, /*symmetric=*/true);
    std::vector<int64_t> argnums(free_.size());
    std::iota(argnums.begin(), argnums.end(), 0);
    const Function derivatives = [&](const Tensors& all) {
      const Tensors at = part_of(all, 0, x_.size()), by = part_of(all, x_.size(), y_.size());
      return all_of(compressed.derivatives(dynamic::grad(weighted(at, by), argnums), free_of(at), std::nullopt));
    };
    Tensors given = x;
    append(given, weights);
    const SparseProgram program = sparse_program(name, compressed, derivatives, given, free, free);
    std::vector<CasadiOperand> arguments = operands(x_, 0);
    append(arguments, operands(seeds, x_.size() + y_.size()));
    add_blocks(second, program,
               blocks_of(pattern, free, free, /*transposed=*/false,
                         [&](size_t i, size_t j) { return free_[i] * width + free_[j]; }),
               std::move(arguments));
  }

  // ---- files ----

  std::string header() const {
    std::string declarations;
    for (const CasadiFunction& function : functions_) declarations += function.declaration() + "\n";
    return filled(
        R"(
/* {name}: a function that Tower {version} compiled, and derivatives of it, as CasADi calls external functions:
 *
 *   {name} = casadi.external("{name}", "./lib{name}.so")
 *
 * Numbers of matrices lie column by column; an argument that is null is zero, and a result that is null is not wanted.
 * What they return besides 0: 1, a division of integers by zero; 2, a loop that reached its bound; 4, a matrix that
 * cannot be factored; 8, an index out of range; 16, no memory for the states of a loop; added up. Several threads may
 * call them at once. Nothing is allocated.
 *
 * Its machine code is for {target}.
 */
#ifndef TOWER_EXPORTED_{name}
#define TOWER_EXPORTED_{name}

#ifdef __cplusplus
extern "C" {
#endif

{declarations}
#ifdef __cplusplus
}
#endif

#endif
)",
        Holes{{"name", name_}, {"version", version()}, {"target", target_.text()}, {"declarations", declarations}});
  }

  std::string source() const {
    std::string text = filled(R"(
/* Written by Tower {version} (export_c). {name}.h says what it is; its machine code is {name}_kernels.o. */
#include "{name}.h"

)",
                              Holes{{"version", version()}, {"name", name_}});
    text += text_that_runs_programs() + programs_ + text_of_casadi_calls();
    for (const CasadiFunction& function : functions_) text += function.text();
    return text;
  }

  const ExportOptions& options_;
  const LibraryTarget& target_;
  const std::string name_;
  const std::shared_ptr<Kernels> of_process_;
  const std::shared_ptr<const PointerProgram> program_;
  const CompiledGraph graph_;
  const std::vector<Matrix> x_, y_;
  std::vector<CasadiMatrix> inputs_, outputs_;
  std::vector<size_t> free_;  // arguments that the function is differentiated by

  std::vector<std::shared_ptr<const PointerProgram>> made_;
  std::string programs_;
  std::vector<NamedCode> code_;
  std::vector<OtherFile> others_;
  std::vector<CasadiFunction> functions_;
  std::optional<Sparsity> jacobian_;
  std::optional<SparseProgram> jacobian_program_;  // if it has entries
};

}  // namespace

LibraryFiles casadi_library(std::shared_ptr<const PointerProgram> program, std::shared_ptr<Kernels> of_process,
                            const std::string& name, const ExportOptions& options, const LibraryTarget& target) {
  if (options.captured == ExportOptions::Captured::arguments)
    throw ArgumentError("export_c: for CasADi, captured tensors are constants. Make them arguments of the function.");
  if (program->tables().any_number)
    throw UnsupportedError(
        "export_c: for CasADi, a function is of one example, and this one was called with two numbers of examples. "
        "Compile it without vmap, or call it with one.");
  if (options.derivatives < 0 || options.derivatives > 2)
    throw ArgumentError("export_c: derivatives is " + std::to_string(options.derivatives) + "; it is 0, 1 or 2.");
  return CasadiLibrary(std::move(program), std::move(of_process), name, options, target).files();
}

}  // namespace tower::compiler
