#include "fuse/weighted_sums.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "fuse/linear_calls.h"
#include "fuse/plain_views.h"
#include "graph/operand_dims.h"
#include "numbers/element.h"
#include "numbers/fold.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

// NOTE [Weights]
// From a sum on, its terms are followed back as `value ⊙ weight`, summed over one dimension: a weight has one element
// in the dimension of a vmap, `shared`, and all of the value's in the others. At first it is one. What is linear in an
// operand, and reads nothing else that knows the shared dimension, goes over into the weight: the weight is put in the
// operand's place. Sums are followed in each of their terms. A product of matrices over the dimension that is summed
// multiplies the weight by its matrix. Where the value is a scale times a base (NOTE [Scales]), and the scale has one
// element in the dimension that is summed, the base is summed once. All else remains a sum of the value, weighted.
//
// That is done where it spares products; values that others read, too, are followed no further, as they are made
// anyway.
class WeightedSums {
 public:
  explicit WeightedSums(Graph& graph)
      : graph_(graph),
        before_(graph.calls),
        calls_(graph),
        makers_(graph.values.size(), kNobody),
        readers_(graph.values.size()) {
    for (size_t n = 0; n < before_.size(); ++n) {
      for (const ValueId id : before_[n].operands)
        if (id != kNoValue) ++readers_[id];
      for (const ValueId id : before_[n].results)
        if (id != kNoValue) makers_[id] = n;
    }
    for (const ValueId id : graph.results)
      if (id != kNoValue) ++readers_[id];
  }

  void run() {
    graph_.calls.clear();
    for (const Call& call : before_) {
      calls_.note(call);
      if (!is_made_of_weighted(call)) graph_.calls.push_back(call);
    }
  }

 private:
  static constexpr size_t kNobody = static_cast<size_t>(-1);

  const Sizes& sizes(ValueId id) const { return graph_.values[id].sizes; }

  bool is_made_of_weighted(const Call& call) {
    if (call.vmaps.empty() || !sums_one_dimension(call) || !has_products(call.operands[0])) return false;
    for (size_t v = call.vmaps.size(); v-- > 1;)
      if (call.vmaps[v].batch_size > 1 && calls_.alone_has(call, 0, {v}) && is_made(call, v)) return true;
    return false;
  }

  bool sums_one_dimension(const Call& call) {
    if (!calls_.fits(call) || call.operands.size() != 1 || !fold_rule(*call.op)) return false;
    const auto dtype = graph_.values[call.results[0]].dtype;
    if (graph_.values[call.operands[0]].dtype != dtype ||
        simple_fold(*call.op, call.args, *type_of(dtype)) != SimpleFold::sum)
      return false;
    const auto dims = static_cast<int64_t>(sizes(call.operands[0]).size() - call.vmaps.size());
    const auto over = fold_rule(*call.op)->dims(call.args, dims);
    if (over.size() != 1) return false;
    summed_ = call.vmaps.size() + static_cast<size_t>(over[0]);
    return true;
  }

  // Whether products may be on the way to a value.
  bool has_products(ValueId id) const {
    const size_t n = makers_[id];
    if (n == kNobody || readers_[id] != 1) return false;
    const Call& call = before_[n];
    if (call.op->contraction) return !call.vmaps.empty();
    return element_rule(*call.op) && std::any_of(call.operands.begin(), call.operands.end(), [&](ValueId operand) {
             return operand != kNoValue && has_products(operand);
           });
  }

  // The sum, without the products on the way to it; there are none where it is not.
  bool is_made(const Call& sum, size_t shared) {
    const size_t begin = graph_.calls.size();
    sum_ = &sum;
    shared_ = {shared};
    products_ = 0;
    terms_.clear();
    Sizes of_weight = sizes(sum.operands[0]);
    of_weight[shared] = 1;
    const ValueId one = calls_.add_value(sum.operands[0], of_weight);
    Value& v = graph_.values[one];
    v.origin = Origin::constant;
    v.tensor = at::ones(of_weight, at::TensorOptions().dtype(v.dtype));
    follow(sum.operands[0], one);
    if (products_ == 0) {
      graph_.calls.resize(begin);
      return false;
    }
    ValueId all = terms_[0];
    for (size_t k = 1; k < terms_.size(); ++k) all = calls_.add_by_elements(Op::add, all, terms_[k]);
    graph_.calls.back().results = sum.results;
    return true;
  }

  // The weighted value's sum, as terms.
  void follow(ValueId id, ValueId weight) {
    if (const auto scale = calls_.before_expanding(id); scale && is_one_in_sum(*scale)) return scaled(*scale, weight);
    const size_t n = makers_[id];
    if (n == kNobody || !calls_.fits(before_[n])) return summed(id, weight);
    const Call& call = before_[n];
    const size_t before = graph_.calls.size();
    const auto is_shared = [&](const std::vector<size_t>& dims) { return dims == shared_; };
    if (const auto found = calls_.scaled(call, is_shared); found && is_one_in_sum(found->scale))
      return scaled(found->scale, calls_.add_by_elements(Op::mul, found->base, weight));
    graph_.calls.resize(before);
    if (readers_[id] != 1) return summed(id, weight);
    const auto whole = [&](ValueId operand) { return sizes(operand) == sizes(id); };
    if (calls_.is_of(Op::add, call) && std::all_of(call.operands.begin(), call.operands.end(), whole) &&
        is_aligned(call, 0) && is_aligned(call, 1)) {
      for (const ValueId operand : call.operands) follow(operand, weight);
      return;
    }
    for (size_t k = 0; k < call.operands.size() && !call.vmaps.empty(); ++k) {
      if (!calls_.alone_has(call, k, shared_)) continue;
      if (call.op->contraction) {
        if (const auto found = through_product(call, k, weight)) return follow(call.operands[k], *found);
      } else if (calls_.is_linear(call, k)) {
        return follow(call.operands[k], calls_.add_for_one(call, k, weight, shared_));
      }
    }
    summed(id, weight);
  }

  bool is_one_in_sum(ValueId scale) const { return sizes(scale)[summed_] == 1; }

  // Dimensions of the operand are those of the result.
  bool is_aligned(const Call& call, size_t k) const {
    const Places at = places_of(call, k, static_cast<int64_t>(sizes(call.operands[k]).size()),
                                static_cast<int64_t>(sizes(call.results[0]).size()));
    return one_for_one(at, sizes(call.operands[k]), sizes(call.results[0]));
  }

  void summed(ValueId id, ValueId weight) {
    Call call = *sum_;
    call.operands = {calls_.add_by_elements(Op::mul, id, weight)};
    call.results = {calls_.add_value(sum_->results[0], sizes(sum_->results[0]))};
    graph_.calls.push_back(call);
    terms_.push_back(call.results[0]);
  }

  void scaled(ValueId scale, ValueId weighted_base) {
    const ValueId sum = calls_.add_for_one(*sum_, 0, weighted_base, shared_);
    if (sizes(sum).size() != sizes(scale).size()) {
      Sizes left = sizes(scale), strides = graph_.values[scale].strides;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(summed_));
      strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(summed_));
      graph_.calls.push_back(view_of(graph_, scale, std::move(left), std::move(strides)));
      scale = graph_.calls.back().results[0];
    }
    terms_.push_back(calls_.add_by_elements(Op::mul, scale, sum));
  }

  // The weight multiplied by the matrix: what weighs operand `k`.
  std::optional<ValueId> through_product(const Call& call, size_t k, ValueId weight) {
    const Contraction& how = *call.op->contraction;
    const std::string &mine = k == 0 ? how.a : how.b, &others = k == 0 ? how.b : how.a;
    const Sizes& all = sizes(call.results[0]);
    if (how.adds || count(all) < thresholds().fewest_terms || count(all) / all[0] <= thresholds().few_of_example ||
        mine.size() != how.result.size() || summed_ < call.vmaps.size())
      return std::nullopt;
    const size_t at = summed_ - call.vmaps.size();
    const char given = how.result[at], read = mine[at];
    for (size_t d = 0; d < mine.size(); ++d)
      if ((mine[d] == how.result[d]) == (d == at)) return std::nullopt;
    const size_t given_at = others.find(given), read_at = others.find(read);
    if (mine.find(given) != std::string::npos || how.result.find(read) != std::string::npos ||
        given_at == std::string::npos || read_at == std::string::npos)
      return std::nullopt;
    Call by_weight = call;
    const ValueId matrix = call.operands[1 - k];
    const Seen s = seen(call, 1 - k, sizes(matrix).size(), kNoAxis);
    graph_.calls.push_back(transposed(graph_, matrix, s.of_example[given_at], s.of_example[read_at]));
    by_weight.operands[1 - k] = graph_.calls.back().results[0];
    ++products_;
    return calls_.add_for_one(by_weight, k, weight, shared_, call.operands[k]);
  }

  Graph& graph_;
  const std::vector<Call> before_;
  LinearCalls calls_;
  ById<ValueId, size_t> makers_, readers_;  // calls, and how many
  // Of the sum that is followed:
  const Call* sum_ = nullptr;
  size_t summed_ = 0;           // the dimension
  std::vector<size_t> shared_;  // one dimension
  size_t products_ = 0;         // that are spared
  std::vector<ValueId> terms_;
};

}  // namespace

void take_products_out_of_sums(Graph& graph) {
  if (multiplies_for_examples(graph)) WeightedSums(graph).run();
}

}  // namespace tower::compiler
