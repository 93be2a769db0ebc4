#include "compile/kernel_calls.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "compile/bytes.h"
#include "tower/errors.h"
#include "interpreters/surface.h"

namespace tower::compiler {
namespace {

// All that decides what a region's kernel is, bit by bit.
std::string bytes_of(const Region& region) {
  std::vector<Id> roots = region.outputs;
  for (const Region::OfRow& of_row : region.of_row)
    if (of_row.folded != kNone) roots.push_back(of_row.folded);
  ByteWriter out;
  region.graph.write(out, roots);
  out.number(region.single);
  out.list(region.inputs, [&](const Region::Input& input) {
    out.number(static_cast<int64_t>(input.type));
    out.number(input.repeated);
  });
  out.numbers(region.outputs);
  for (size_t k = 0; k < region.outputs.size(); ++k) out.number(region.is_added(k));
  out.list(region.of_row, [&](const Region::OfRow& of_row) {
    out.number(of_row.how);
    out.number(of_row.folded);
  });
  out.numbers(region.once);
  out.number(region.levels);
  return out.take();
}

c10::Argument list(const char* name) { return c10::Argument(name, c10::ListType::ofTensors()); }

}  // namespace

std::shared_ptr<const Kernel> Kernels::find(const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(bytes);
  return found == known_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<const Kernel> Kernels::get(const Region& region) {
  const std::string bytes = bytes_of(region);
  if (auto kernel = find(bytes)) return kernel;
  auto made = std::make_shared<const Kernel>(region, source_);
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Kernel>& known = known_[bytes];
  if (auto first = known.lock()) return first;  // another thread was faster
  known = made;
  return made;
}

bool Kernels::knows(const Region& region) {
  return find(bytes_of(region)) || source_.knows([&] { return Kernel::key_of(region, source_); });
}

std::vector<std::shared_ptr<const Kernel>> Kernels::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Kernel>> kernels;
  for (const auto& [bytes, known] : known_)
    if (auto kernel = known.lock()) kernels.push_back(std::move(kernel));
  return kernels;
}

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
    const Value& v = graph.values[static_cast<size_t>(operands[k])];
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

Readers::Readers(const Graph& graph) : graph_(graph), uses_(graph.values.size()) {
  for (const Call& call : graph.calls)
    for (const ValueId id : call.operands) ++uses_[static_cast<size_t>(id)];
  for (const ValueId id : graph.results)
    if (id != kNoValue) ++uses_[static_cast<size_t>(id)];
}

std::vector<ValueId> Readers::elsewhere(const std::vector<size_t>& calls) const {
  std::unordered_map<ValueId, size_t> here;
  for (const size_t n : calls)
    for (const ValueId id : graph_.calls[n].operands) ++here[id];
  std::vector<ValueId> ids;
  for (const size_t n : calls)
    for (const ValueId id : graph_.calls[n].results)
      if (id != kNoValue && uses_[static_cast<size_t>(id)] > here[id]) ids.push_back(id);
  // Nobody reads anything: what is computed last stands for it.
  if (ids.empty()) ids.push_back(graph_.calls[calls.back()].results[0]);
  return ids;
}

}  // namespace tower::compiler
