#include "fuse/matrix_products.h"

#include <string>

#include "fuse/kernel_calls.h"
#include "graph/operand_dims.h"
#include "kernels/gemm.h"

namespace tower::compiler {
namespace {

constexpr int64_t kNoDim = -1;

// Where a dimension of the result, or what is summed over, is in the operands.
struct Dimension {
  int64_t a = kNoDim, b = kNoDim, s = kNoDim;
};

class ProductOperator final : public MemoryKernel {
 public:
  ProductOperator(std::vector<Dimension> dimensions, Dimension inner, bool adds, const Value& result,
                  const Places& order)
      : MemoryKernel({{result.sizes, strides_in_order(result.sizes, order), result.dtype}}, "tower::product"),
        dimensions_(std::move(dimensions)),
        inner_(inner),
        adds_(adds) {}

  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override {
    const InMemory &a = operands[adds_], &b = operands[adds_ + size_t{1}], &c = results[0];
    const InMemory* s = adds_ ? &operands[0] : nullptr;
    // What has one element is the same for all.
    const auto stride = [](const InMemory* t, int64_t d) {
      return d == kNoDim || along(t->sizes, d) == 1 ? 0 : along(t->strides, d);
    };
    Gemm gemm;
    for (size_t d = 0; d < dimensions_.size(); ++d) {
      const Dimension& at = dimensions_[d];
      gemm.axes.push_back({c.sizes[d], stride(&a, at.a), stride(&b, at.b), stride(s, at.s), c.strides[d]});
    }
    gemm.inner = {along(a.sizes, inner_.a), stride(&a, inner_.a), stride(&b, inner_.b), 0, 0};
    const auto memory = [](const InMemory& t) { return GemmMemory(t.data, t.elements()); };
    gemm.run(c.dtype, memory(a), memory(b), s ? memory(*s) : GemmMemory(), memory(c));
  }

 private:
  const std::vector<Dimension> dimensions_;  // of the result
  const Dimension inner_;
  const bool adds_;
};

bool is_one(const IValue& v) { return v.toScalar().equal(1); }

}  // namespace

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
