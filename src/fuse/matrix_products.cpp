#include "fuse/matrix_products.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fuse/kernel_calls.h"

namespace tower::compiler {
namespace {

using Dimension = ProductOperator::Dimension;
constexpr int64_t kNoDim = ProductOperator::kNoDim;

// What has one element is the same for all.
int64_t stride_of(const InMemory& t, int64_t d) {
  return d == kNoDim || along(t.sizes, d) == 1 ? 0 : along(t.strides, d);
}

bool is_one(const IValue& v) { return v.toScalar().equal(1); }

}  // namespace

ProductOperator::ProductOperator(std::vector<Dimension> dimensions, Dimension inner, bool adds, const Value& result,
                                 const Places& order)
    : MemoryKernel({{result.sizes, strides_in_order(result.sizes, order), result.dtype}}, "tower::product"),
      dimensions_(std::move(dimensions)),
      inner_(inner),
      adds_(adds) {}

GemmCall ProductOperator::gemm(c10::ArrayRef<InMemory> operands, const InMemory& c) const {
  const InMemory &a = operands[adds_], &b = operands[adds_ + size_t{1}];
  GemmCall call;
  for (size_t d = 0; d < dimensions_.size(); ++d) {
    const Dimension& at = dimensions_[d];
    call.gemm.axes.push_back(
        {c.sizes[d], stride_of(a, at.a), stride_of(b, at.b), adds_ ? stride_of(operands[0], at.s) : 0, c.strides[d]});
  }
  call.gemm.inner = {along(a.sizes, inner_.a), stride_of(a, inner_.a), stride_of(b, inner_.b), 0, 0};
  const auto memory = [](const InMemory& t) { return GemmMemory(t.data, t.elements()); };
  call.a = memory(a), call.b = memory(b), call.c = memory(c);
  if (adds_) call.s = memory(operands[0]);
  return call;
}

void ProductOperator::run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const {
  const GemmCall call = gemm(operands, results[0]);
  call.gemm.run(results[0].dtype, call.a, call.b, call.s, call.c);
}

MemorySteps ProductOperator::steps(c10::ArrayRef<InMemory> operands, Kernels& kernels) const {
  const InMemory &a = operands[adds_], &b = operands[adds_ + size_t{1}];
  const Type type = *type_of(made()[0].dtype);
  MemoryStep step{kStepOfProducts, kernels.product(type), 0, 1};
  step.inputs = {{MemoryStep::operand, adds_}, {MemoryStep::operand, adds_ + size_t{1}}, {MemoryStep::nothing, 0}};
  if (adds_) step.inputs[2].in = MemoryStep::operand;
  step.outputs = {{MemoryStep::result, 0}};
  const auto add = [&](int64_t size, const Dimension& at, int64_t of_result) {
    step.sizes.push_back(size);
    step.inputs[0].strides.push_back(stride_of(a, at.a));
    step.inputs[1].strides.push_back(stride_of(b, at.b));
    step.inputs[2].strides.push_back(adds_ ? stride_of(operands[0], at.s) : 0);
    step.outputs[0].strides.push_back(of_result);
  };
  const auto is_row = [](const Dimension& at) { return at.a != kNoDim && at.b == kNoDim; };
  const auto is_column = [](const Dimension& at) { return at.a == kNoDim && at.b != kNoDim; };
  // The last of each, which are matrices' in most cases; the others count products.
  std::optional<size_t> row, column;
  for (size_t d = 0; d < dimensions_.size(); ++d) {
    if (is_row(dimensions_[d])) row = d;
    if (is_column(dimensions_[d])) column = d;
  }
  const auto add_dimension = [&](size_t d) { add(made()[0].sizes[d], dimensions_[d], made()[0].strides[d]); };
  for (size_t d = 0; d < dimensions_.size(); ++d)
    if (d != row && d != column) add_dimension(d);
  for (const auto& d : {row, column}) {
    if (d) add_dimension(*d);
    else add(1, {}, 0);
  }
  add(along(a.sizes, inner_.a), inner_, 0);
  MemorySteps all;
  all.steps.push_back(std::move(step));
  return all;
}

std::optional<Call> product_of_matrices(const Graph& graph, const Call& call) {
  const std::optional<Contraction>& form = call.op->contraction;
  if (!form || (form->adds && (!is_one(call.args[3]) || !is_one(call.args[4])))) return std::nullopt;
  const auto value = [&](ValueId id) -> const Value& { return graph.values[id]; };
  const Value& result = value(call.results[0]);
  const auto order = order_in_memory(result);
  if (!order || (result.dtype != at::kFloat && result.dtype != at::kDouble)) return std::nullopt;
  for (const ValueId id : call.operands)
    if (value(id).dtype != result.dtype || !value(id).device.is_cpu()) return std::nullopt;

  std::vector<Dimension> dimensions(result.sizes.size());
  Dimension inner;
  const size_t vmaps = call.vmaps.size();
  const std::string& letters = form->result;
  const auto settle = [&](size_t operand, int64_t Dimension::*which, const std::string& of_operand) {
    const Seen s = seen(call, operand, value(call.operands[operand]).sizes.size(), kNoAxis);
    for (size_t v = 0; v < vmaps; ++v) dimensions[v].*which = s.of_vmaps[v];
    for (size_t d = 0; d < s.of_example.size(); ++d) {
      const size_t at = letters.find(of_operand[d]);
      Dimension& dimension = at == std::string::npos ? inner : dimensions[vmaps + at];
      dimension.*which = s.of_example[d];
    }
  };
  settle(form->adds, &Dimension::a, form->a);
  settle(form->adds + size_t{1}, &Dimension::b, form->b);
  if (form->adds) {
    const Seen s = seen(call, 0, value(call.operands[0]).sizes.size(), kNoAxis);
    settle(0, &Dimension::s, letters.substr(letters.size() - s.of_example.size()));
  }
  auto op = c10::make_intrusive<ProductOperator>(std::move(dimensions), inner, form->adds, result, *order);
  return KernelOperator::call_of(std::move(op), graph, call.operands, call.results, {call.op->name()});
}

}  // namespace tower::compiler
