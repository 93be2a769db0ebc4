#include "fuse/sums_as_products.h"

#include <algorithm>
#include <map>

#include "fuse/contraction.h"
#include "graph/effects.h"
#include "graph/pointwise.h"
#include "numbers/fold.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

// What a call computes with its elements, where that is a product of two of them; the same one twice: its square.
enum class ByElements : uint8_t { other, product, square };

class SummedProducts {
 public:
  explicit SummedProducts(Graph& graph) : graph_(graph), known_(graph.values.size()) {}

  void run() {
    for (size_t n = 0; n < graph_.calls.size(); ++n) {
      const Call& call = graph_.calls[n];
      if (call.results.size() != 1 || call.results[0] == kNoValue || call.operands.empty()) continue;
      std::optional<Product> product = follow(n);
      if (!product) product = product_of(n);
      if (!product) continue;
      if (sums(call) && product->first != n && !serves_lanes(*product)) {
        sums_.emplace(n, *product);
        product->sum = n;
      }
      known_[call.results[0]] = std::move(product);
    }
    keep_those_that_replace_their_products();
    for (const auto& [n, product] : sums_) replace(n, product);
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[id]; }

  // ---- products ----

  // Of two tensors, each with dimensions that the other has not.
  std::optional<Product> product_of(size_t n) const {
    const Call& call = graph_.calls[n];
    const Value& result = value(call.results[0]);
    if (call.operands.size() != 2 || !is_summed_in_itself(result.dtype) || !result.device.is_cpu() ||
        count(result.sizes) < thresholds().fewest_terms)
      return std::nullopt;
    const bool by_elements = by_elements_of(call) == ByElements::product;
    if (!by_elements && !contracts(call)) return std::nullopt;
    Product product{{}, {}, {}, n};
    for (const int64_t size : result.sizes) product.dims.push_back(new_labels(product, size));
    const auto label_of = [&](size_t dim) { return product.dims[dim].empty() ? -1 : product.dims[dim][0]; };
    std::map<char, int> summed;
    for (const size_t k : {0, 1}) {
      const Value& v = value(call.operands[k]);
      if (v.dtype != result.dtype || !v.device.is_cpu()) return std::nullopt;
      Factor factor{call.operands[k], Labels(v.sizes.size(), -1)};
      if (by_elements) {
        const Places places =
            places_of(call, k, static_cast<int64_t>(v.sizes.size()), static_cast<int64_t>(result.sizes.size()));
        for (size_t d = 0; d < places.size(); ++d)
          if (places[d] >= 0 && along(v.sizes, places[d]) == result.sizes[d])
            along(factor.labels, places[d]) = label_of(d);
      } else {
        const Seen s = seen(call, k, v.sizes.size(), kNoAxis);
        for (size_t m = 0; m < s.of_vmaps.size(); ++m)
          if (s.of_vmaps[m] >= 0) along(factor.labels, s.of_vmaps[m]) = label_of(m);
        const Contraction& how = *call.op->contraction;
        const std::string& letters = k == 0 ? how.a : how.b;
        for (size_t d = 0; d < letters.size(); ++d) {
          const auto dim = static_cast<size_t>(s.of_example[d]);
          const size_t in_result = how.result.find(letters[d]);
          if (in_result != std::string::npos) {
            factor.labels[dim] = label_of(call.vmaps.size() + in_result);
          } else {
            if (k == 0)
              for (const int label : new_labels(product, v.sizes[dim])) summed[letters[d]] = label;
            const auto found = summed.find(letters[d]);
            factor.labels[dim] = found == summed.end() ? -1 : found->second;
          }
        }
      }
      product.factors.push_back(std::move(factor));
    }
    const auto only_in = [&](size_t k) {
      const Labels &mine = product.factors[k].labels, &others = product.factors[1 - k].labels;
      return std::any_of(mine.begin(), mine.end(), [&](int label) { return label >= 0 && !has(others, label); });
    };
    if (!only_in(0) || !only_in(1)) return std::nullopt;
    // What neither has is a size that would be lost.
    for (const Labels& labels : product.dims)
      for (const int label : labels)
        if (!has(product.factors[0].labels, label) && !has(product.factors[1].labels, label)) return std::nullopt;
    return product;
  }

  static Labels new_labels(Product& product, int64_t size) {
    if (size == 1) return {};
    product.sizes.push_back(size);
    return {static_cast<int>(product.sizes.size()) - 1};
  }

  // ---- what becomes of them ----

  std::optional<Product> follow(size_t n) const {
    const Call& call = graph_.calls[n];
    for (const ValueId id : call.operands)
      if (id == kNoValue || value(id).dtype != value(call.results[0]).dtype) return std::nullopt;
    for (size_t k = 0; k < call.operands.size() && k < 2; ++k) {
      const auto& known = known_[call.operands[k]];
      if (!known || known->root) continue;
      switch (by_elements_of(call)) {
        case ByElements::product:
          return multiplied(call, *known, k);
        case ByElements::square:
          return squared(call, *known);
        case ByElements::other:
          if (contracts(call)) return contracted(call, *known, k);
          return k == 0 && call.operands.size() == 1 ? of_one(call, *known) : std::nullopt;
      }
    }
    return std::nullopt;
  }

  // Dimensions with their labels: of each vmap, and of an example; none where the operand is not mapped over all.
  struct Dims {
    std::vector<Labels> vmaps, example;
  };
  static std::optional<Dims> dims_in(const Call& call, const Product& product, size_t k) {
    const Seen s = seen(call, k, product.dims.size(), kNoAxis);
    Dims dims;
    for (const int64_t d : s.of_vmaps) {
      if (d < 0) return std::nullopt;
      dims.vmaps.push_back(along(product.dims, d));
    }
    for (const int64_t d : s.of_example) dims.example.push_back(along(product.dims, d));
    return dims;
  }

  std::optional<Product> of_one(const Call& call, const Product& product) const {
    auto found = dims_in(call, product, 0);
    if (!found) return std::nullopt;
    std::vector<Labels>& dims = found->example;
    Product result = product;
    const SimpleFold fold = fold_of(call);
    if (fold != SimpleFold::no) {
      sum_over(dims, call);
      if (fold == SimpleFold::root_of_squares) {
        auto squares = squared(call, product);
        if (!squares) return std::nullopt;
        result = std::move(*squares);
        result.root = true;
      }
    } else if (call.op->moves == Moves::in_order || call.op->moves == Moves::nothing) {
      const Sizes& sizes = value(call.results[0]).sizes;
      if (!regroup(dims, product.sizes, {sizes.begin() + static_cast<std::ptrdiff_t>(call.vmaps.size()), sizes.end()}))
        return std::nullopt;
    } else if (call.op->view_keeps) {
      if (!permute(dims, call)) return std::nullopt;
    } else {
      return std::nullopt;
    }
    result.dims = found->vmaps;
    result.dims.insert(result.dims.end(), dims.begin(), dims.end());
    return result;
  }

  void sum_over(std::vector<Labels>& dims, const Call& call) const {
    const bool keep = value(call.results[0]).sizes.size() == call.vmaps.size() + dims.size();
    std::vector<bool> gone(dims.size());
    for (const int64_t d : fold_rule(*call.op)->dims(call.args, static_cast<int64_t>(dims.size())))
      along(gone, d) = true;
    std::vector<Labels> left;
    for (size_t d = 0; d < dims.size(); ++d)
      if (!gone[d]) left.push_back(dims[d]);
      else if (keep) left.emplace_back();
    dims = std::move(left);
  }

  // A view that shows all dimensions whole, in another order.
  bool permute(std::vector<Labels>& dims, const Call& call) const {
    const Value& base = value(call.operands[0]);
    Sizes sizes;
    for (const int64_t d : seen(call, 0, base.sizes.size(), kNoAxis).of_example) sizes.push_back(along(base.sizes, d));
    const Sizes kept = call.op->view_keeps(sizes, call.args, 0);
    if (kept.size() != dims.size() || std::find(kept.begin(), kept.end(), -1) != kept.end()) return false;
    const std::vector<Labels> before = dims;
    for (size_t d = 0; d < kept.size(); ++d) dims[d] = along(before, kept[d]);
    return true;
  }

  // The same labels in the same order, in dimensions of other sizes.
  static bool regroup(std::vector<Labels>& dims, const std::vector<int64_t>& of_labels, const Sizes& sizes) {
    Labels all;
    for (const Labels& labels : dims) all.insert(all.end(), labels.begin(), labels.end());
    std::vector<Labels> grouped;
    size_t next = 0;
    for (const int64_t size : sizes) {
      grouped.emplace_back();
      int64_t got = 1;
      while (got < size && next < all.size()) {
        grouped.back().push_back(all[next]);
        got *= along(of_labels, all[next++]);
      }
      if (got != size) return false;
    }
    dims = std::move(grouped);
    return next == all.size();
  }

  // Of a product, not of a sum of several.
  std::optional<Product> squared(const Call& call, const Product& product) const {
    if (value(call.results[0]).dtype != at::kFloat || is_sum(product)) return std::nullopt;
    for (size_t v = 0; v < call.vmaps.size(); ++v)
      for (const int64_t d : call.vmaps[v].dims)
        if (d != 0) return std::nullopt;
    Product result = product;
    for (Factor& factor : result.factors) {
      if (factor.squared) return std::nullopt;
      factor.squared = true;
    }
    return result;
  }

  // By a tensor that has nothing of its own.
  std::optional<Product> multiplied(const Call& call, const Product& product, size_t k) const {
    const Value &result = value(call.results[0]), &other = value(call.operands[1 - k]);
    if (result.sizes.size() != product.dims.size() || has_squares(product)) return std::nullopt;
    const auto dims = static_cast<int64_t>(result.sizes.size());
    const Places mine = places_of(call, k, dims, dims);
    for (size_t d = 0; d < mine.size(); ++d)
      if (mine[d] != static_cast<int64_t>(d) || value(call.operands[k]).sizes[d] != result.sizes[d])
        return std::nullopt;
    const Places places = places_of(call, 1 - k, static_cast<int64_t>(other.sizes.size()), dims);
    Factor factor{call.operands[1 - k], Labels(other.sizes.size(), -1)};
    for (size_t d = 0; d < places.size(); ++d) {
      if (places[d] < 0 || along(other.sizes, places[d]) == 1) continue;
      if (product.dims[d].size() != 1) return std::nullopt;
      along(factor.labels, places[d]) = product.dims[d][0];
    }
    Product all = product;
    all.factors.push_back(std::move(factor));
    return all;
  }

  // A product with a vector, or with a matrix of one row or column.
  std::optional<Product> contracted(const Call& call, const Product& product, size_t k) const {
    const Value& other = value(call.operands[1 - k]);
    const auto mine = dims_in(call, product, k);
    const Seen s = seen(call, 1 - k, other.sizes.size(), kNoAxis);
    if (!mine || has_squares(product)) return std::nullopt;
    const Contraction& how = *call.op->contraction;
    const std::string &own = k == 0 ? how.a : how.b, &others = k == 0 ? how.b : how.a;
    Factor factor{call.operands[1 - k], Labels(other.sizes.size(), -1)};
    const auto give = [&](int64_t dim, const Labels& labels) {
      if (dim < 0 || labels.empty()) return true;
      if (labels.size() == 1) along(factor.labels, dim) = labels[0];
      return labels.size() == 1;
    };
    for (size_t v = 0; v < s.of_vmaps.size(); ++v)
      if (!give(s.of_vmaps[v], mine->vmaps[v])) return std::nullopt;
    std::map<char, Labels> of_letter;
    for (size_t d = 0; d < own.size(); ++d) of_letter[own[d]] = mine->example[d];
    for (size_t d = 0; d < others.size(); ++d) {
      const int64_t dim = s.of_example[d];
      const bool shared = own.find(others[d]) != std::string::npos;
      if (shared ? !give(dim, of_letter[others[d]]) : along(other.sizes, dim) != 1) return std::nullopt;
    }
    Product result = product;
    result.factors.push_back(std::move(factor));
    result.dims = mine->vmaps;
    for (const char letter : how.result) result.dims.push_back(of_letter[letter]);
    return result;
  }

  static bool has_squares(const Product& product) {
    return std::any_of(product.factors.begin(), product.factors.end(), [](const Factor& f) { return f.squared; });
  }

  static bool is_sum(const Product& product) {
    Labels left;
    for (const Labels& labels : product.dims) left.insert(left.end(), labels.begin(), labels.end());
    return std::any_of(product.factors.begin(), product.factors.end(), [&](const Factor& factor) {
      return std::any_of(factor.labels.begin(), factor.labels.end(),
                         [&](int label) { return label >= 0 && !has(left, label); });
    });
  }

  bool sums(const Call& call) const { return fold_of(call) != SimpleFold::no || contracts(call); }

  // ---- what calls do ----

  static bool contracts(const Call& call) { return call.op->contraction && !call.op->contraction->adds; }

  SimpleFold fold_of(const Call& call) const {
    const auto dtype = value(call.results[0]).dtype;
    if (call.operands.size() != 1 || !is_summed_in_itself(dtype) || value(call.operands[0]).dtype != dtype)
      return SimpleFold::no;
    return simple_fold(*call.op, call.args, *type_of(dtype));
  }

  ByElements by_elements_of(const Call& call) const {
    const auto dtype = value(call.results[0]).dtype;
    if (!element_rule(*call.op) || call.operands.size() > 2 || !type_of(dtype)) return ByElements::other;
    for (const ValueId id : call.operands)
      if (value(id).dtype != dtype) return ByElements::other;
    Expressions trial;
    const Type type = *type_of(dtype);
    std::vector<Id> inputs;
    for (const ValueId id : call.operands) inputs.push_back(trial.input(type, id == call.operands[0] ? 0 : 1));
    const auto ids = Pointwise{graph_}.elements_of(trial, call, [&](size_t k) { return inputs[k]; });
    if (ids.size() != 1 || trial[ids[0]].op != Op::mul) return ByElements::other;
    const auto& [a, b, none] = trial[ids[0]].args;
    if (a != inputs.front() && a != inputs.back()) return ByElements::other;
    if (b != inputs.front() && b != inputs.back()) return ByElements::other;
    return a == b ? ByElements::square : ByElements::product;
  }

  // Whether a kernel has the terms of one example in one lane.
  bool serves_lanes(const Product& product) const {
    const Call& call = graph_.calls[product.first];
    const Sizes& sizes = value(call.results[0]).sizes;
    return !call.vmaps.empty() && !product.dims.empty() && has(product.dims[0], 0) && sizes[0] > 1 &&
           count(sizes) / sizes[0] <= thresholds().few_of_example;
  }

  // ---- replacing ----

  // A sum is left as it is where somebody else needs its terms, or a sum on the way to it: these would be made anyway.
  void keep_those_that_replace_their_products() {
    for (bool changed = true; changed;) {
      changed = false;
      const std::vector<bool> needed = needed_calls();
      for (auto it = sums_.begin(); it != sums_.end();) {
        const Product& product = it->second;
        const bool in_vain = !needed[it->first] || needed[product.first] || (product.sum && needed[*product.sum]);
        changed = changed || in_vain;
        it = in_vain ? sums_.erase(it) : std::next(it);
      }
    }
  }

  std::vector<bool> needed_calls() const {
    ById<ValueId, bool> values(graph_.values.size());
    std::vector<bool> calls(graph_.calls.size());
    for (const ValueId id : graph_.results)
      if (id != kNoValue) values[id] = true;
    for (size_t n = graph_.calls.size(); n-- > 0;) {
      const Call& call = graph_.calls[n];
      calls[n] = call.random() || call.opaque() ||
                 std::any_of(call.results.begin(), call.results.end(),
                             [&](ValueId id) { return id != kNoValue && values[id]; });
      if (!calls[n]) continue;
      if (const auto sum = sums_.find(n); sum != sums_.end())
        for (const Factor& factor : sum->second.factors) values[factor.value] = true;
      else
        for (const ValueId id : call.operands) values[id] = true;
    }
    return calls;
  }

  void replace(size_t n, Product product) {
    const Value& result = value(graph_.calls[n].results[0]);
    const auto order = order_in_memory(result);
    if (!order) return;
    std::vector<ValueId> operands;
    std::vector<size_t> of_factors;
    for (const Factor& factor : product.factors) {
      const auto known = std::find(operands.begin(), operands.end(), factor.value);
      of_factors.push_back(static_cast<size_t>(known - operands.begin()));
      if (known == operands.end()) operands.push_back(factor.value);
    }
    auto op = contraction(std::move(product), std::move(of_factors), result, *order);
    graph_.calls[n] = KernelOperator::call_of(std::move(op), graph_, std::move(operands), graph_.calls[n].results);
  }

  Graph& graph_;
  ById<ValueId, std::optional<Product>> known_;
  std::map<size_t, Product> sums_;  // of calls
};

}  // namespace

void contract_summed_products(Graph& graph) {
  // A factor that is written to before the sum would be read too late.
  if (!has_effects(graph)) SummedProducts(graph).run();
}

}  // namespace tower::compiler
