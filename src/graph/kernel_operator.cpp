#include "graph/kernel_operator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "interpreters/surface.h"
#include "tower/errors.h"

namespace tower::compiler {
namespace {

c10::Argument list(const char* name) { return c10::Argument(name, c10::ListType::ofTensors()); }

}  // namespace

KernelOperator::KernelOperator(const char* name)
    : Operator(name, c10::FunctionSchema(name, "", {list("operands")}, {list("results")})) {
  foreign_ = false;  // what it does is known
}

void KernelOperator::call(Stack& stack) const {
  const std::vector<Tensor> operands = stack[0].toTensorVector();
  std::vector<Tensor> results(results_);
  c10::SmallVector<const Tensor*, 8> from;
  c10::SmallVector<Tensor*, 4> to;
  for (const Tensor& t : operands) from.push_back(&t);
  for (Tensor& t : results) to.push_back(&t);
  run(from, to);
  stack.assign(1, IValue(std::move(results)));
}

void KernelOperator::refuse(c10::ArrayRef<const Tensor*> operands) const {
  const std::string who =
      "compile: " + name() + (stands_for_.empty() ? "" : ", which stands for " + stands_for_ + ",") + " was made for ";
  if (operands.size() != read_.size())
    throw UnsupportedError(who + std::to_string(read_.size()) + " operands, and is given " +
                           std::to_string(operands.size()) + ".");
  size_t k = 0;
  while (read_[k].is_like(*operands[k])) ++k;
  Meta expected;
  expected.sizes = read_[k].sizes;
  expected.dtype = c10::typeMetaToScalarType(read_[k].dtype);
  throw UnsupportedError(who + expected.describe() + " as " + ordinal("operand", k) + ", and is given " +
                         (operands[k]->defined() ? Meta(*operands[k]).describe() : "an undefined tensor") +
                         ". What a compiled function computes must have shapes that follow from those of its "
                         "arguments; call it uncompiled where they do not, and report this.");
}

Call KernelOperator::call_of(c10::intrusive_ptr<KernelOperator> op, const Graph& graph, std::vector<ValueId> operands,
                             std::vector<ValueId> results, const std::vector<std::string>& of) {
  constexpr size_t kNamed = 4;
  for (size_t n = 0; n < std::min(of.size(), kNamed); ++n) op->stands_for_ += (n ? ", " : "") + of[n];
  if (of.size() > kNamed) op->stands_for_ += ", …";
  Call call;
  c10::List<Tensor> holes;
  const Tensor hole = at::detail::empty_cpu({0}, at::kFloat);
  for (size_t k = 0; k < operands.size(); ++k) {
    holes.push_back(hole);
    call.places.push_back({0, static_cast<uint16_t>(k)});
    const Value& v = graph.values[operands[k]];
    op->read_.push_back({c10::scalarTypeToTypeMeta(v.dtype), v.sizes});
  }
  call.args.assign(1, IValue(std::move(holes)));
  call.operands = std::move(operands);
  op->results_ = results.size();
  call.results = std::move(results);
  call.op = call.bound = op.get();
  call.owner = std::move(op);
  return call;
}

int64_t InMemory::elements() const {
  if (of) return static_cast<int64_t>(of->storage().nbytes()) / element_size() - of->storage_offset();
  return static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, 1));
}

Tensor InMemory::tensor() const {
  return of ? *of : at::from_blob(data, sizes, strides, at::TensorOptions().dtype(dtype));
}

size_t MemoryKernel::Result::bytes() const {
  return at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
}

Tensor MemoryKernel::Result::allocate() const { return at::detail::empty_strided_cpu(sizes, strides, dtype); }

void MemoryKernel::compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const {
  c10::SmallVector<InMemory, 8> from;
  for (const Tensor* t : operands) from.push_back(InMemory::read(*t));
  c10::SmallVector<InMemory, 4> to;
  for (size_t k = 0; k < results.size(); ++k) {
    *results[k] = made_[k].allocate();
    to.push_back(made_[k].written(*results[k]));
  }
  run_in(from, to);
}

}  // namespace tower::compiler
