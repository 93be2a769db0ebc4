#include "compile/contract.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <map>

#include "compile/kernel_calls.h"
#include "compile/places.h"

namespace tower::compiler {
namespace {

constexpr int64_t kFewTerms = 4096;     // that are not worth a call
constexpr int64_t kFewOfExample = 128;  // that one lane of a kernel computes

// Each dimension of a tensor has a label: equal ones go together in a product.
using Labels = std::vector<int>;

// A tensor as it is read: of the dimensions without a label, which have one element, that one.
struct Factor {
  ValueId value;
  Labels labels;  // −1: none
};

std::string letters(const Labels& labels) {
  std::string text;
  for (const int label : labels)
    if (label >= 0) text += static_cast<char>('a' + label);
  return text;
}

class Contraction final : public KernelOperator {
 public:
  Contraction(Labels a, Labels b, const Labels& result, Sizes sizes, Sizes strides)
      : KernelOperator("tower::contraction"),
        a_(std::move(a)),
        b_(std::move(b)),
        equation_(letters(a_) + "," + letters(b_) + "->" + letters(result)),
        sizes_(std::move(sizes)),
        strides_(std::move(strides)) {}

  void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const override {
    const Tensor sum = at::einsum(equation_, {read(*operands[0], a_), read(*operands.back(), b_)});
    if (sum.strides().equals(strides_)) *results[0] = sum;
    else *results[0] = Tensor(at::detail::empty_strided_cpu(sizes_, strides_, sum.scalar_type())).copy_(sum);
  }

 private:
  static Tensor read(Tensor t, const Labels& labels) {
    for (size_t d = labels.size(); d-- > 0;)
      if (labels[d] < 0) t = t.select(static_cast<int64_t>(d), 0);
    return t;
  }

  Labels a_, b_;
  std::string equation_;
  Sizes sizes_, strides_;
};

class Pass {
 public:
  explicit Pass(Graph& graph) : graph_(graph), reader_(graph.values.size(), kNobody) {
    for (size_t n = 0; n < graph.calls.size(); ++n)
      for (const ValueId id : graph.calls[n].operands) {
        size_t& reader = reader_[static_cast<size_t>(id)];
        reader = reader == kNobody ? n : kSeveral;
      }
    for (const ValueId id : graph.results)
      if (id != kNoValue) reader_[static_cast<size_t>(id)] = kSeveral;
  }

  void run() {
    for (size_t n = 0; n < graph_.calls.size(); ++n) contract(n);
  }

 private:
  static constexpr size_t kNobody = static_cast<size_t>(-1), kSeveral = static_cast<size_t>(-2);
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }

  void contract(size_t n) {
    const Call& call = graph_.calls[n];
    Factor a, b;
    Labels labels;
    if (!product_of(call, a, b, labels)) return;
    const Labels all = labels;
    // From reader to reader.
    size_t last = n, summed_at = n;
    Labels summed = labels;
    for (;;) {
      const size_t next = reader_[static_cast<size_t>(graph_.calls[last].results[0])];
      if (next >= graph_.calls.size() || !follow(graph_.calls[next], labels)) break;
      last = next;
      if (graph_.calls[next].op->name() == "aten::sum.dim_IntList" || graph_.calls[next].op->name() == "aten::sum") {
        summed_at = next;
        summed = labels;
      }
    }
    if (summed_at == n || !is_worth_it(call, a, b, all, summed)) return;
    const Value& result = value(graph_.calls[summed_at].results[0]);
    const auto order = order_in_memory(result);
    if (!order || summed.size() != result.sizes.size()) return;
    auto op = c10::make_intrusive<Contraction>(a.labels, b.labels, summed, result.sizes,
                                               strides_in_order(result.sizes, *order));
    std::vector<ValueId> operands{a.value};
    if (b.value != a.value) operands.push_back(b.value);
    graph_.calls[summed_at] =
        KernelOperator::call_of(std::move(op), std::move(operands), graph_.calls[summed_at].results);
  }

  // The factors of a product and the labels of its dimensions.
  bool product_of(const Call& call, Factor& a, Factor& b, Labels& labels) const {
    const bool by_elements = call.op->name() == "aten::mul.Tensor";
    if ((!by_elements && call.op->name() != "aten::mm") || call.operands.size() != 2) return false;
    const Value& product = value(call.results[0]);
    if (!at::isFloatingType(product.dtype) || !product.device.is_cpu()) return false;
    const auto dims = static_cast<int>(product.sizes.size());
    for (int d = 0; d < dims; ++d) labels.push_back(d);
    for (const size_t k : {0, 1}) {
      const Value& v = value(call.operands[k]);
      if (v.dtype != product.dtype || !v.device.is_cpu()) return false;
      Factor& factor = k == 0 ? a : b;
      factor = {call.operands[k], Labels(v.sizes.size(), -1)};
      if (by_elements) {
        const Places places =
            places_of(call, k, static_cast<int64_t>(v.sizes.size()), static_cast<int64_t>(product.sizes.size()));
        for (int d = 0; d < dims; ++d)
          if (const int64_t at = places[static_cast<size_t>(d)];
              at >= 0 && v.sizes[static_cast<size_t>(at)] == product.sizes[static_cast<size_t>(d)])
            factor.labels[static_cast<size_t>(at)] = d;
        continue;
      }
      const Seen s = seen(call, k, v.sizes.size(), kNoAxis);
      for (size_t m = 0; m < s.of_vmaps.size(); ++m)
        if (s.of_vmaps[m] >= 0) factor.labels[static_cast<size_t>(s.of_vmaps[m])] = static_cast<int>(m);
      factor.labels[static_cast<size_t>(s.of_example[k])] = dims - 2 + static_cast<int>(k);  // rows of the first
      factor.labels[static_cast<size_t>(s.of_example[1 - k])] = dims;
    }
    return dims < 20;
  }

  // What becomes of the labels; false where the call is no sum and no permutation.
  bool follow(const Call& call, Labels& labels) const {
    const std::string& name = call.op->name();
    const Seen s = seen(call, 0, labels.size(), kNoAxis);
    if (std::find(s.of_vmaps.begin(), s.of_vmaps.end(), -1) != s.of_vmaps.end()) return false;
    Labels result, example;
    for (const int64_t d : s.of_vmaps) result.push_back(labels[static_cast<size_t>(d)]);
    for (const int64_t d : s.of_example) example.push_back(labels[static_cast<size_t>(d)]);
    const auto dims = static_cast<int64_t>(example.size());
    const auto wrapped = [&](int64_t d) { return static_cast<size_t>(at::maybe_wrap_dim(d, dims)); };
    if (name == "aten::sum") {
      if (!call.args[1].isNone()) return false;
      example.clear();
    } else if (name == "aten::sum.dim_IntList") {
      if (call.args[2].toBool() || !call.args[3].isNone()) return false;
      std::vector<bool> gone(example.size(), call.args[1].isNone());
      if (!call.args[1].isNone()) {
        const auto over = call.args[1].toIntVector();
        if (over.empty()) gone.assign(example.size(), true);
        for (const int64_t d : over) {
          if (dims == 0) return false;
          gone[wrapped(d)] = true;
        }
      }
      Labels left;
      for (size_t d = 0; d < example.size(); ++d)
        if (!gone[d]) left.push_back(example[d]);
      example = left;
    } else if (name == "aten::transpose.int") {
      if (dims == 0) return false;
      std::swap(example[wrapped(call.args[1].toInt())], example[wrapped(call.args[2].toInt())]);
    } else if (name == "aten::t") {
      std::reverse(example.begin(), example.end());
    } else if (name == "aten::permute") {
      const Labels before = example;
      const auto order = call.args[1].toIntVector();
      for (size_t d = 0; d < order.size(); ++d) example[d] = before[wrapped(order[d])];
    } else {
      return false;
    }
    result.insert(result.end(), example.begin(), example.end());
    labels = result;
    return true;
  }

  // The product has many more terms than the factors and the sum, and both factors have what is summed over.
  bool is_worth_it(const Call& call, const Factor& a, const Factor& b, const Labels& all, const Labels& summed) const {
    const int64_t terms = count(value(call.results[0]).sizes);
    if (terms < kFewTerms) return false;
    const auto has = [](const Labels& labels, int label) {
      return std::find(labels.begin(), labels.end(), label) != labels.end();
    };
    const auto size = [&](int label) { return value(call.results[0]).sizes[static_cast<size_t>(label)]; };
    if (!call.vmaps.empty() && has(summed, 0) && terms / size(0) <= kFewOfExample) return false;
    int64_t only_a = 1, only_b = 1;
    for (const int label : all) {
      const bool in_a = has(a.labels, label), in_b = has(b.labels, label);
      // Einsum sums over what is in one alone first; a size that neither has would be lost.
      if (!in_a && !in_b) return false;
      if (!has(summed, label)) continue;
      if (!in_b) only_a *= size(label);
      if (!in_a) only_b *= size(label);
    }
    return only_a > 1 && only_b > 1;
  }

  Graph& graph_;
  std::vector<size_t> reader_;
};

}  // namespace

void contract_summed_products(Graph& graph) {
  // A factor that is written to before the sum would be read too late.
  if (std::none_of(graph.calls.begin(), graph.calls.end(), [](const Call& call) { return call.effect; }))
    Pass(graph).run();
}

}  // namespace tower::compiler
