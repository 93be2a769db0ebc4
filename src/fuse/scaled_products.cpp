#include "fuse/scaled_products.h"

#include <unordered_map>
#include <utility>

#include "fuse/linear_calls.h"
#include "graph/operand_dims.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

// NOTE [Scales]
// A scaled value is known as `scale ⊙ base`, two values with as many dimensions as it, whose sizes are its own or 1.
// The base has one example of those vmaps that only the scale is mapped over: `shared` dimensions, which lie in front.
//
// It begins with a product by elements. What is linear in it goes on with the same scale and another base: calls by
// elements whose other operands do not know the shared dimensions, and products of matrices that sum over dimensions in
// which the scale has one element. A call on the base is the call on the value with one example in the shared
// dimensions. Behind a product, the value is what multiplies the two; before it, it is computed as it was.
//
// As wherever sums of products are made in another order (fuse/sums_as_products.h), results differ by rounding.
class ScaledProducts {
 public:
  explicit ScaledProducts(Graph& graph) : graph_(graph), calls_(graph) {}

  void run() {
    const std::vector<Call> before = graph_.calls;
    graph_.calls.clear();
    for (const Call& call : before) {
      auto known = follow(call);
      if (!known) {
        const auto of_inner_vmaps = [&](const std::vector<size_t>& shared) {
          return shared.front() > 0 && shared.back() < call.vmaps.size();
        };
        if (auto scaled = calls_.scaled(call, of_inner_vmaps)) known = Known{std::move(*scaled)};
      }
      calls_.note(call);
      if (known && known->behind_product)
        calls_.add_by_elements(Op::mul, known->scaled.scale, known->scaled.base, call.results[0]);
      else graph_.calls.push_back(call);
      if (known) known_.emplace(call.results[0], std::move(*known));
    }
    if (!gains_) graph_.calls = before;
  }

 private:
  struct Known {
    LinearCalls::Scaled scaled;
    bool behind_product = false;
  };

  const Sizes& sizes(ValueId id) const { return graph_.values[id].sizes; }

  std::optional<Known> follow(const Call& call) {
    if (call.vmaps.empty() || !calls_.fits(call)) return std::nullopt;
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const auto found = known_.find(call.operands[k]);
      if (found == known_.end() || !calls_.alone_has(call, k, found->second.scaled.shared)) continue;
      const bool contracts = is_contracted(call, k, found->second.scaled);
      if (!contracts && !calls_.is_linear(call, k)) continue;
      Known known = found->second;
      known.scaled.base = calls_.add_for_one(call, k, known.scaled.base, known.scaled.shared);
      known.behind_product = known.behind_product || contracts;
      gains_ = gains_ || contracts;
      return known;
    }
    return std::nullopt;
  }

  bool is_contracted(const Call& call, size_t k, const LinearCalls::Scaled& scaled) const {
    if (!call.op->contraction || call.op->contraction->adds) return false;
    const Contraction& how = *call.op->contraction;
    const Sizes &all = sizes(call.results[0]), &of_scale = sizes(scaled.scale);
    if (all.size() != of_scale.size() || count(all) < thresholds().fewest_terms ||
        count(all) / all[0] <= thresholds().few_of_example)
      return false;
    const std::string& letters = k == 0 ? how.a : how.b;
    for (size_t d = 0; d < letters.size(); ++d)
      if (of_scale[call.vmaps.size() + d] != 1 && how.result.find(letters[d]) != d) return false;
    return true;
  }

  Graph& graph_;
  LinearCalls calls_;
  std::unordered_map<ValueId, Known> known_;
  bool gains_ = false;
};

}  // namespace

void take_scales_out_of_products(Graph& graph) {
  if (multiplies_for_examples(graph)) ScaledProducts(graph).run();
}

}  // namespace tower::compiler
