#include "fuse/systems_in_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "fuse/memory_steps.h"
#include "graph/operand_dims.h"
#include "numbers/element.h"
#include "records/on_matrices.h"

namespace tower::compiler {
namespace {

using rules::OnMatrices;

constexpr int64_t kNoDim = -1;

// An operand or result of the call, where the step has it.
struct Matrices {
  bool is_there = false;
  size_t number = 0;  // of the operand, or among the results that are given
  Places batch = {};  // of each dimension before the matrix's own, where it is; or kNoDim
  // Dimensions of a matrix's rows and columns, or of a vector's elements.
  int64_t row = kNoDim, column = kNoDim;
};

// How the call goes over matrices: dimensions that count them, and others that count right-hand sides of one.
struct Batches {
  Sizes sizes;  // of all dimensions: those of matrices come first
  size_t systems = 0;
};

struct SystemsForm {
  int64_t tasks = 0;
  Batches batches;
  std::array<Matrices, kSystemOperands> operands;  // of the mantissa: where the logarithm of the determinant's size is
  bool identity = false;                           // in the place of right-hand sides
  Type type = Type::f64;
};

int64_t size_at(at::IntArrayRef sizes, int64_t dim) { return dim == kNoDim ? 1 : along(sizes, dim); }

class SystemsOperator final : public MemoryKernel, public StepsInMemory {
 public:
  SystemsOperator(SystemsForm form, std::vector<Result> made)
      : MemoryKernel(std::move(made), "tower::systems"), form_(std::move(form)) {}

  void run_in(c10::ArrayRef<InMemory> /*operands*/, c10::ArrayRef<InMemory> /*results*/) const override {
    TORCH_INTERNAL_ASSERT(false, "systems in memory are steps of programs: the process has LibTorch's");
  }

  bool is_another_kernel() const override { return true; }
  MemorySteps steps(c10::ArrayRef<InMemory> operands, Kernels& kernels) const override {
    const Matrices& matrix = form_.operands[kSystemMatrix];
    const InMemory& of_matrix = operands[matrix.number];
    const int64_t bytes = size_of(form_.type), rows = size_at(of_matrix.sizes, matrix.row),
                  columns = size_at(of_matrix.sizes, matrix.column), column = bytes_of_system_column(rows, bytes);
    const Matrices& sides = form_.operands[kSystemSides];
    const int64_t of_one = form_.identity   ? rows
                           : sides.is_there ? size_at(operands[sides.number].sizes, sides.column)
                                            : 0;
    MemorySteps all;
    MemoryStep step{kStepOfSystems, kernels.elimination(form_.type), 0, 1};
    step.tasks = form_.tasks;
    step.systems = static_cast<int64_t>(form_.batches.systems);
    step.sizes = form_.batches.sizes;
    int64_t of_all = of_one;
    for (size_t d = form_.batches.systems; d < step.sizes.size(); ++d) of_all *= step.sizes[d];
    for (const int64_t size : {rows, columns, of_one}) step.sizes.push_back(size);
    for (int k = 0; k < kSystemOperands; ++k)
      (k < kSystemSolution ? step.inputs : step.outputs).push_back(place_of(k, operands));
    const auto own = [&](int operand, int64_t bytes_of_it) {
      MemoryStep::Place& place = step.inputs[static_cast<size_t>(operand)];
      place.in = MemoryStep::made;
      place.number = all.make(bytes_of_it);
    };
    own(kSystemOwnMatrix, column * columns);
    own(kSystemOwnPivots, std::min(rows, columns) * static_cast<int64_t>(sizeof(int32_t)));
    if (form_.operands[kSystemSolution].is_there) own(kSystemOwnSides, column * of_all);
    if (form_.operands[kSystemMantissa].is_there || form_.operands[kSystemSign].is_there)
      add_size(std::move(step), all, kernels);
    else all.steps.push_back(std::move(step));
    return all;
  }

 private:
  // Strides along the step's dimensions.
  MemoryStep::Place place_of(int k, c10::ArrayRef<InMemory> operands) const {
    const Matrices& at = form_.operands[static_cast<size_t>(k)];
    const size_t dims = form_.batches.sizes.size();
    MemoryStep::Place place{MemoryStep::nothing, 0, 0, 0, Sizes(dims + 3, 0)};
    if (!at.is_there) return place;
    const bool is_operand = k < kSystemSolution;
    place.in = is_operand ? MemoryStep::operand : MemoryStep::result;
    place.number = at.number;
    const at::IntArrayRef sizes = is_operand ? operands[at.number].sizes : at::IntArrayRef(made()[at.number].sizes),
                          strides =
                              is_operand ? operands[at.number].strides : at::IntArrayRef(made()[at.number].strides);
    // What has one element is the same for all.
    const auto stride = [&](int64_t d) { return d == kNoDim || along(sizes, d) == 1 ? 0 : along(strides, d); };
    for (size_t d = 0; d < dims; ++d) place.strides[d] = stride(at.batch[d]);
    place.strides[dims] = stride(at.row);
    const bool is_of_sides = k == kSystemSides || k == kSystemSolution;
    place.strides[dims + (is_of_sides ? 2 : 1)] = stride(at.column);
    return place;
  }

  // The determinant's sign and size, which come together: log |m 2ᵉ| = log m + e log 2, of all matrices.
  void add_size(MemoryStep step, MemorySteps& all, Kernels& kernels) const {
    const auto output = [&](int k) -> MemoryStep::Place& {
      return step.outputs[static_cast<size_t>(k - kSystemSolution)];
    };
    const bool has_logarithm = form_.operands[kSystemMantissa].is_there;
    const MemoryStep::Place given = output(has_logarithm ? kSystemMantissa : kSystemSign);
    const int64_t lanes = count(made()[given.number].sizes);
    for (const int k : {kSystemDeterminant, kSystemSign, kSystemMantissa, kSystemExponent}) {
      if (output(k).in != MemoryStep::nothing && k != kSystemMantissa) continue;
      output(k) = given;
      output(k).in = MemoryStep::made;
      output(k).number = all.make(lanes * size_of(form_.type));
    }
    const size_t of_mantissa = output(kSystemMantissa).number, of_exponent = output(kSystemExponent).number;
    all.steps.push_back(std::move(step));
    if (!has_logarithm) return;
    Region region;
    const E mantissa(region.graph, region.graph.input(form_.type, 0)),
        exponent(region.graph, region.graph.input(form_.type, 1));
    region.inputs = {{form_.type, false}, {form_.type, false}};
    region.outputs = {(log(mantissa) + exponent * std::log(2.0)).id()};
    MemoryStep logarithm{kStepOfLanes, kernels.get(region), 0, lanes};
    logarithm.inputs = {{MemoryStep::made, of_mantissa, 0, 1}, {MemoryStep::made, of_exponent, 0, 1}};
    logarithm.outputs = {{MemoryStep::result, given.number, 0, 1}};
    all.steps.push_back(std::move(logarithm));
  }

  const SystemsForm form_;
};

// ---- what a call comes to ----

// Whether the matrix is read, and its factor written, transposed; and what is done then.
struct Tasks {
  bool transposes;
  int64_t tasks;
};
Tasks tasks_of(const OnMatrices& how) {
  const bool solves = how.solution != OnMatrices::kNone;
  constexpr int64_t kLu = kExchangesRows | kSolvesLower | kLowerIsUnit | kSolvesUpper;
  switch (how.given) {
    case OnMatrices::to_lu:  // X A = B is Aᵀ Xᵀ = Bᵀ
      return {!how.left, kFactorsLu | (solves ? kLu : 0)};
    case OnMatrices::to_cholesky:
      return {how.upper, kFactorsCholesky};
    case OnMatrices::lu:
      if (how.transposed != how.left) return {false, solves ? kLu : 0};
      return {true, kSolvesLower | kSolvesUpper | kUpperIsUnit | kExchangesBack};
    case OnMatrices::cholesky:
      return {how.upper, kMirrorsLower | kSolvesLower | kSolvesUpper};
    default:
      if (how.upper == how.left) return {!how.left, kSolvesUpper | (how.unit ? kUpperIsUnit : 0)};
      return {!how.left, kSolvesLower | (how.unit ? kLowerIsUnit : 0)};
  }
}

// Puts together what the step needs of a call; fails where it does something else.
class FormWriter {
 public:
  FormWriter(const Graph& graph, const Call& call, const OnMatrices& how, const std::vector<ValueId>& results)
      : graph_(graph), call_(call), how_(how), results_(results), tasks_(tasks_of(how)) {}

  std::optional<SystemsForm> write() {
    const bool solves = how_.solution != OnMatrices::kNone, permutes = asks(how_.permutation);
    add_operand(kSystemMatrix, how_.matrix, kOfMatrix, tasks_.transposes);
    add_operand(kSystemGivenPivots, how_.pivots, kOfVector, false);
    add_operand(kSystemSides, how_.sides, how_.vectors ? kOfVector : kOfMatrix, !how_.left);
    add_result(kSystemSolution, solves ? how_.solution : how_.permutation, how_.vectors ? kOfVector : kOfMatrix,
               !how_.left);
    add_result(kSystemFactor, how_.factor, kOfMatrix, tasks_.transposes);
    add_result(kSystemPivots, how_.exchanges, kOfVector, false);
    add_result(kSystemInfo, how_.info, kOfNumber, false);
    add_result(kSystemLower, how_.lower_factor, kOfMatrix, false);
    add_result(kSystemUpper, how_.upper_factor, kOfMatrix, false);
    add_result(kSystemDeterminant, how_.determinant, kOfNumber, false);
    add_result(kSystemSign, how_.sign, kOfNumber, false);
    add_result(kSystemMantissa, how_.logarithm, kOfNumber, false);
    // Of the transposed matrix there are other factors than are asked for, unless these are of Cholesky.
    const bool gives_lu =
        operand(kSystemFactor).is_there || operand(kSystemPivots).is_there || operand(kSystemInfo).is_there;
    if (tasks_.transposes && how_.given == OnMatrices::to_lu && gives_lu) return std::nullopt;
    form_.tasks = tasks_.tasks;
    if (solves && !operand(kSystemSolution).is_there)
      form_.tasks &= kFactorsLu;  // for the factors, or the error, alone
    if (permutes) form_.tasks |= kExchangesBack;
    form_.identity = permutes || (solves && how_.sides == OnMatrices::kNone);
    if (form_.identity) form_.tasks |= kSolvesForIdentity;
    if (call_.checks()) form_.tasks |= kMustFactor;
    form_.type = *type_of(value(how_.matrix).dtype);
    settle_batches();
    return form_;
  }

 private:
  enum OfOne : size_t { kOfNumber, kOfVector, kOfMatrix };  // dimensions of one, behind those that count them

  const Value& value(int operand) const { return graph_.values[call_.operands[static_cast<size_t>(operand)]]; }
  Matrices& operand(int k) { return form_.operands[static_cast<size_t>(k)]; }
  bool asks(int result) const {
    return result != OnMatrices::kNone &&
           std::find(results_.begin(), results_.end(), call_.results[static_cast<size_t>(result)]) != results_.end();
  }

  // Dimensions of vmaps, and then of the example's batch, aligned at the end.
  void add(int k, size_t number, const std::vector<int64_t>& of_vmaps, const std::vector<int64_t>& of_example,
           OfOne of_one, bool transposed) {
    Matrices& at = operand(k);
    at.is_there = true;
    at.number = number;
    at.batch.assign(of_vmaps.begin(), of_vmaps.end());
    const size_t batch = of_example.size() - of_one;
    at.batch.insert(at.batch.end(), of_example.begin(), of_example.begin() + static_cast<ptrdiff_t>(batch));
    if (of_one >= kOfVector) at.row = of_example[batch];
    if (of_one == kOfMatrix) at.column = of_example[batch + 1];
    if (transposed) std::swap(at.row, at.column);
    most_of_batch_ = std::max(most_of_batch_, batch);
  }
  void add_operand(int k, int number, OfOne of_one, bool transposed) {
    if (number == OnMatrices::kNone) return;
    const Seen s = seen(call_, static_cast<size_t>(number), value(number).sizes.size(), kNoAxis);
    add(k, static_cast<size_t>(number), s.of_vmaps, s.of_example, of_one, transposed);
  }
  void add_result(int k, int number, OfOne of_one, bool transposed) {
    if (number == OnMatrices::kNone || !asks(number)) return;
    const ValueId id = call_.results[static_cast<size_t>(number)];
    std::vector<int64_t> of_vmaps, of_example;
    for (size_t d = 0; d < graph_.values[id].sizes.size(); ++d)
      (d < call_.vmaps.size() ? of_vmaps : of_example).push_back(static_cast<int64_t>(d));
    const auto place = std::find(results_.begin(), results_.end(), id) - results_.begin();
    add(k, static_cast<size_t>(place), of_vmaps, of_example, of_one, transposed);
  }

  at::IntArrayRef sizes_of(int k) {
    const size_t number = operand(k).number;
    return graph_.values[k < kSystemSolution ? call_.operands[number] : results_[number]].sizes;
  }

  // A dimension in which neither the matrix nor what is given of it differs counts right-hand sides.
  void settle_batches() {
    const size_t vmaps = call_.vmaps.size(), dims = vmaps + most_of_batch_;
    for (Matrices& at : form_.operands)
      if (at.is_there)
        at.batch.insert(at.batch.begin() + static_cast<ptrdiff_t>(vmaps), dims - at.batch.size(), kNoDim);
    std::vector<size_t> systems, others;
    Sizes sizes(dims, 1);
    for (size_t d = 0; d < dims; ++d) {
      bool differs = !operand(kSystemSides).is_there || !operand(kSystemSolution).is_there;
      for (int k = 0; k < kSystemOperands; ++k) {
        if (!operand(k).is_there) continue;
        const int64_t size = size_at(sizes_of(k), operand(k).batch[d]);
        if (size == 1) continue;
        sizes[d] = size;
        differs = differs || (k != kSystemSides && k != kSystemSolution);
      }
      (differs ? systems : others).push_back(d);
    }
    form_.batches.systems = systems.size();
    systems.insert(systems.end(), others.begin(), others.end());
    for (const size_t d : systems) form_.batches.sizes.push_back(sizes[d]);
    for (Matrices& at : form_.operands) {
      if (!at.is_there) continue;
      Places batch;
      for (const size_t d : systems) batch.push_back(at.batch[d]);
      at.batch = batch;
    }
  }

  const Graph& graph_;
  const Call& call_;
  const OnMatrices& how_;
  const std::vector<ValueId>& results_;
  const Tasks tasks_;
  SystemsForm form_;
  size_t most_of_batch_ = 0;
};

}  // namespace

std::optional<Call> systems_in_memory(const Graph& graph, size_t n, const Readers& readers) {
  const Call& call = graph.calls[n];
  const rules::MatrixRule* const rule = rules::matrix_rule(*call.op);
  if (!rule || call.effect) return std::nullopt;
  const std::vector<ValueId> results = readers.elsewhere({n});
  std::vector<Sizes> operands;
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const Value& v = graph.values[call.operands[k]];
    if (!v.device.is_cpu()) return std::nullopt;
    Sizes& sizes = operands.emplace_back();
    for (const int64_t d : seen(call, k, v.sizes.size(), kNoAxis).of_example) sizes.push_back(along(v.sizes, d));
  }
  const auto how = (*rule)({call.args, operands});
  if (!how) return std::nullopt;
  const auto is_of_floats = [&](int k) {
    const at::ScalarType dtype = graph.values[call.operands[static_cast<size_t>(k)]].dtype;
    return dtype == at::kFloat || dtype == at::kDouble;
  };
  if (!is_of_floats(how->matrix) || (how->sides != OnMatrices::kNone && !is_of_floats(how->sides))) return std::nullopt;
  std::vector<MemoryKernel::Result> made;
  for (const ValueId id : results) {
    const Value& v = graph.values[id];
    const auto order = order_in_memory(v);
    if (!order) return std::nullopt;
    made.push_back({v.sizes, strides_in_order(v.sizes, *order), v.dtype});
  }
  auto form = FormWriter(graph, call, *how, results).write();
  if (!form) return std::nullopt;
  auto op = c10::make_intrusive<SystemsOperator>(std::move(*form), std::move(made));
  return KernelOperator::call_of(std::move(op), graph, call.operands, results, {call.op->name()});
}

}  // namespace tower::compiler
