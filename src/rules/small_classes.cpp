// Losses of numbered classes: of items [C], [N, C] or [N, C, …] each has a target, which chooses among the classes, or
// is the one that is ignored. A target that is neither is out of range, and LibTorch's call raises.
#include "rules/small_classes.h"

#include <ATen/core/Reduction.h>

#include "rules/small_places.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

class Targets {
 public:
  Targets(const SmallCall& c, Indexing& by, const Small& x, const Small& targets, const Small* weight, int64_t ignored)
      : by_(by), x_(x), weight_(weight), along_(x.sizes, x.sizes.size() == 1 ? 0 : 1) {
    works_ = is_float(c.type(0)) && along_.outer * along_.inner == targets.ids.size() &&
             (!weight || weight->ids.size() == along_.length);
    for (size_t t = 0; works_ && t < targets.ids.size(); ++t) {
      const E target = c.at(targets, t), is_ignored = target == static_cast<double>(ignored);
      counts_.push_back(!is_ignored);
      places_.push_back(by.place(where(is_ignored, 0, target), along_.n(), Negative::refused));
    }
    works_ = works_ && by.works();
  }

  bool works() const { return works_; }
  size_t size() const { return places_.size(); }
  /// Whether target t is not ignored.
  const E& counts(size_t t) const { return counts_[t]; }
  /// The element of the target's class, and its weight.
  E score(size_t t) const {
    return by_.chosen(x_, along_.at(t / along_.inner, 0, t % along_.inner),
                      Indexing::Step{places_[t], along_.n(), along_.inner});
  }
  E weight(size_t t, const E& like) const {
    return weight_ ? by_.chosen(*weight_, 0, Indexing::Step{places_[t], along_.n(), 1}) : like.like(1.0);
  }
  /// Puts `value` in the place of the class, if it counts, in what has zeros there.
  void put(size_t t, const E& value, std::vector<E>& elements) const {
    for (int64_t k = 0; k < along_.n(); ++k) {
      E& old = elements[along_.at(t / along_.inner, static_cast<size_t>(k), t % along_.inner)];
      old = Indexing::changed_at(places_[t], k, old, [&](const E& zero) { return where(counts_[t], value, zero); });
    }
  }

 private:
  const Indexing& by_;
  const Small& x_;
  const Small* weight_;
  Along along_;
  std::vector<Place> places_;
  std::vector<E> counts_;
  bool works_;
};

}  // namespace

// (x, target, weight, reduction, ignored) → loss, total weight
SmallResults nll_forward(const SmallCall& c) {
  const Small &x = *c.operands[0], &target = *c.operands[1];
  const int64_t reduction = c.arg(3).toInt();
  const bool each = reduction == at::Reduction::None && x.sizes.size() > 1;
  Indexing by(c);
  const Targets targets(c, by, x, target, c.tensor(2), c.arg(4).toInt());
  if (!targets.works()) return {};
  const E zero = c.constant(c.type(0), 0);
  E sum = zero, total = zero;
  std::vector<E> losses;
  for (size_t t = 0; t < targets.size(); ++t) {
    const E weight = targets.weight(t, zero), score = targets.score(t) * weight;
    if (each) losses.push_back(where(targets.counts(t), -score, zero));
    else {
      sum = where(targets.counts(t), sum - score, sum);
      total = where(targets.counts(t), total + weight, total);
    }
  }
  if (!each) losses = {reduction == at::Reduction::Mean ? sum / total : sum};
  SmallResults results = c.give(each ? target.sizes : Sizes{}, losses);
  results.push_back({{}, {total.id()}, c.dtypes[1]});
  return by.checked(std::move(results));
}

// (cotangent, x, target, weight, reduction, ignored, total weight)
SmallResults nll_backward(const SmallCall& c) {
  const Small &ct = *c.operands[0], &x = *c.operands[1], &target = *c.operands[2], &total = *c.tensor(6);
  const int64_t reduction = c.arg(4).toInt();
  const bool each = reduction == at::Reduction::None && x.sizes.size() > 1;
  Indexing by(c);
  const Targets targets(c, by, x, target, c.tensor(3), c.arg(5).toInt());
  if (!targets.works() || ct.ids.size() != (each ? targets.size() : 1) || total.ids.size() != 1) return {};
  const E zero = c.constant(c.type(0), 0);
  std::vector<E> elements(x.ids.size(), zero);
  for (size_t t = 0; t < targets.size(); ++t) {
    E slope = -c.at(ct, each ? t : 0);
    if (reduction == at::Reduction::Mean) slope = slope / c.at(total, 0);
    targets.put(t, targets.weight(t, zero) * slope, elements);
  }
  return by.give(x.sizes, elements);
}

}  // namespace tower::rules::small
