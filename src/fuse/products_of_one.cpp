#include "fuse/products_of_one.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "fuse/matrix_products.h"
#include "fuse/regions.h"
#include "graph/kernel_operator.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

using Calls = Regions::Calls;

constexpr size_t kMostTried = 4;  // groups of a matrix that a call may join, the last ones

std::vector<MemoryKernel::Result> made_by(const std::vector<const ProductOperator*>& products) {
  std::vector<MemoryKernel::Result> made;
  for (const ProductOperator* product : products) made.push_back(product->made()[0]);
  return made;
}

// Operands are those of the products, one after the other.
class ProductsOfOne final : public MemoryKernel, public StepsInMemory {
 public:
  ProductsOfOne(std::vector<const ProductOperator*> products, std::vector<size_t> first, std::vector<Call> owners)
      : MemoryKernel(made_by(products), "tower::product"),
        products_(std::move(products)),
        first_(std::move(first)),
        owners_(std::move(owners)) {}

  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override {
    std::vector<GemmCall> calls;
    for (size_t k = 0; k < products_.size(); ++k) calls.push_back(products_[k]->gemm(of(k, operands), results[k]));
    run_with_one_right(results[0].dtype, calls);
  }

  bool is_another_kernel() const override { return true; }
  MemorySteps steps(c10::ArrayRef<InMemory> operands, Kernels& kernels) const override {
    MemorySteps all;
    for (size_t k = 0; k < products_.size(); ++k)
      for (MemoryStep& step : products_[k]->steps(of(k, operands), kernels).steps) {
        for (MemoryStep::Place& place : step.inputs)
          if (place.in == MemoryStep::operand) place.number += first_[k];
        for (MemoryStep::Place& place : step.outputs) place.number = k;
        all.steps.push_back(std::move(step));
      }
    return all;
  }

 private:
  c10::ArrayRef<InMemory> of(size_t k, c10::ArrayRef<InMemory> operands) const {
    const size_t end = k + 1 < first_.size() ? first_[k + 1] : operands.size();
    return operands.slice(first_[k], end - first_[k]);
  }

  const std::vector<const ProductOperator*> products_;
  const std::vector<size_t> first_;  // operand of each
  const std::vector<Call> owners_;   // of the products
};

class JoinedProducts {
 public:
  explicit JoinedProducts(const Graph& graph)
      : graph_(graph), maker_(graph.values.size(), kNobody), group_of_(graph.calls.size(), kNobody) {
    for (size_t n = 0; n < graph.calls.size(); ++n)
      for (const ValueId id : graph.calls[n].results)
        if (id != kNoValue) maker_[id] = n;
    for (size_t n = 0; n < graph.calls.size(); ++n)
      if (dynamic_cast<const ProductOperator*>(graph.calls[n].op)) find_place(n);
    std::erase_if(groups_, [](const Calls& calls) { return calls.size() < 2; });
  }

  const std::vector<Calls>& all() const { return groups_; }

 private:
  static constexpr size_t kNobody = static_cast<size_t>(-1);

  // A matrix that is more than the fastest cache has, and less than what is LibTorch's.
  bool is_worth_it(ValueId id) const {
    const Sizes& sizes = graph_.values[id].sizes;
    const Thresholds& limits = thresholds();
    return sizes.size() == 2 && sizes[0] * sizes[1] >= limits.fewest_of_right &&
           std::max(sizes[0], sizes[1]) <= limits.most_of_panel;
  }

  void find_place(size_t n) {
    const std::vector<ValueId>& operands = graph_.calls[n].operands;
    for (const ValueId id : {operands[operands.size() - 1], operands[operands.size() - 2]}) {
      if (!is_worth_it(id)) continue;
      std::vector<size_t>& candidates = of_matrix_[id];
      const size_t tried = std::min(candidates.size(), kMostTried);
      for (size_t k = candidates.size(); k-- > candidates.size() - tried;) {
        Calls& group = groups_[candidates[k]];
        if (waits_for({n}, group) || waits_for(group, {n})) continue;
        group.push_back(n);
        group_of_[n] = candidates[k];
        return;
      }
    }
    for (const ValueId id : {operands[operands.size() - 1], operands[operands.size() - 2]}) {
      if (!is_worth_it(id)) continue;
      of_matrix_[id].push_back(groups_.size());
      group_of_[n] = groups_.size();
      groups_.push_back({n});
      return;
    }
  }

  // Whether some of `calls` read what `others` make, by way of other calls and groups too.
  bool waits_for(Calls calls, const Calls& others) const {
    std::vector<bool> seen(graph_.calls.size()), wanted(graph_.calls.size());
    for (const size_t n : others) wanted[n] = true;
    for (const size_t n : calls) seen[n] = true;
    while (!calls.empty()) {
      const size_t n = calls.back();
      calls.pop_back();
      for (const ValueId id : graph_.calls[n].operands) {
        if (id == kNoValue || maker_[id] == kNobody) continue;
        const size_t maker = maker_[id];
        if (wanted[maker]) return true;
        const auto visit = [&](size_t other) {
          if (!seen[other]) seen[other] = true, calls.push_back(other);
        };
        visit(maker);
        if (group_of_[maker] != kNobody)
          for (const size_t other : groups_[group_of_[maker]]) visit(other);
      }
    }
    return false;
  }

  const Graph& graph_;
  ById<ValueId, size_t> maker_;
  std::vector<size_t> group_of_;
  std::vector<Calls> groups_;
  std::unordered_map<ValueId, std::vector<size_t>> of_matrix_;
};

Call joined(const Graph& graph, const Calls& group) {
  std::vector<const ProductOperator*> products;
  std::vector<size_t> first;
  std::vector<Call> owners;
  std::vector<ValueId> operands, results;
  for (const size_t n : group) {
    const Call& call = graph.calls[n];
    products.push_back(dynamic_cast<const ProductOperator*>(call.op));
    first.push_back(operands.size());
    operands.insert(operands.end(), call.operands.begin(), call.operands.end());
    results.push_back(call.results[0]);
    owners.push_back(call);
  }
  auto op = c10::make_intrusive<ProductsOfOne>(std::move(products), std::move(first), std::move(owners));
  return KernelOperator::call_of(std::move(op), graph, std::move(operands), std::move(results));
}

}  // namespace

void join_products_of_one(Graph& graph) {
  const auto is_in_order = [](const Call& call) { return call.effect || call.opaque() || call.random(); };
  if (std::any_of(graph.calls.begin(), graph.calls.end(), is_in_order)) return;
  const JoinedProducts groups(graph);
  if (groups.all().empty()) return;
  const size_t n = graph.calls.size();
  const Joining alone{std::vector<std::optional<Space>>(n), [](const Call&, size_t) { return false; },
                      std::vector<int64_t>(n), 0};
  std::vector<Call> calls;
  for (const Calls& group : Regions::in_order(graph, alone, groups.all()))
    calls.push_back(group.size() > 1 ? joined(graph, group) : graph.calls[group[0]]);
  graph.calls = std::move(calls);
}

}  // namespace tower::compiler
