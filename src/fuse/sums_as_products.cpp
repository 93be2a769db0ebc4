#include "fuse/sums_as_products.h"

#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <map>

#include "fuse/contraction.h"

namespace tower::compiler {
namespace {

constexpr int64_t kFewTerms = 4096;     // that are not worth a call
constexpr int64_t kFewOfExample = 128;  // that one lane of a kernel computes

// What each dimension of a matrix product's operands and results is.
constexpr int kRow = 1000, kInner = 1001, kColumn = 1002;

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
      known_[at(call.results[0])] = std::move(product);
    }
    keep_those_that_replace_their_products();
    for (const auto& [n, product] : sums_) replace(n, product);
  }

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }
  const Value& value(ValueId id) const { return graph_.values[at(id)]; }

  // ---- products ----

  // Of two tensors, each with dimensions that the other has not.
  std::optional<Product> product_of(size_t n) const {
    const Call& call = graph_.calls[n];
    const bool by_elements = call.op->name() == "aten::mul.Tensor";
    if ((!by_elements && call.op->name() != "aten::mm") || call.operands.size() != 2) return std::nullopt;
    const Value& result = value(call.results[0]);
    if (!at::isFloatingType(result.dtype) || !result.device.is_cpu() || count(result.sizes) < kFewTerms)
      return std::nullopt;
    Product product{{}, {}, {}, n};
    for (const int64_t size : result.sizes) product.dims.push_back(new_labels(product, size));
    const auto label_of = [&](size_t dim) { return product.dims[dim].empty() ? -1 : product.dims[dim][0]; };
    int inner = -1;
    for (const size_t k : {0, 1}) {
      const Value& v = value(call.operands[k]);
      if (v.dtype != result.dtype || !v.device.is_cpu()) return std::nullopt;
      Factor factor{call.operands[k], Labels(v.sizes.size(), -1)};
      if (by_elements) {
        const Places places =
            places_of(call, k, static_cast<int64_t>(v.sizes.size()), static_cast<int64_t>(result.sizes.size()));
        for (size_t d = 0; d < places.size(); ++d)
          if (places[d] >= 0 && v.sizes[static_cast<size_t>(places[d])] == result.sizes[d])
            factor.labels[static_cast<size_t>(places[d])] = label_of(d);
      } else {
        const Seen s = seen(call, k, v.sizes.size(), kNoAxis);
        for (size_t m = 0; m < s.of_vmaps.size(); ++m)
          if (s.of_vmaps[m] >= 0) factor.labels[static_cast<size_t>(s.of_vmaps[m])] = label_of(m);
        const auto own = static_cast<size_t>(s.of_example[k]), other = static_cast<size_t>(s.of_example[1 - k]);
        factor.labels[own] = label_of(result.sizes.size() - 2 + k);
        if (k == 0)
          for (const int label : new_labels(product, v.sizes[other])) inner = label;
        factor.labels[other] = inner;
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
    const std::string& name = call.op->name();
    for (const ValueId id : call.operands)
      if (id == kNoValue || value(id).dtype != value(call.results[0]).dtype) return std::nullopt;
    for (size_t k = 0; k < call.operands.size() && k < 2; ++k) {
      const auto& known = known_[at(call.operands[k])];
      if (!known || known->root) continue;
      if (name == "aten::mul.Tensor")
        return call.operands[0] == call.operands[1] ? squared(call, *known) : multiplied(call, *known, k);
      if (name == "aten::mv" || name == "aten::mm") return contracted(call, *known, k);
      return k == 0 ? of_one(call, *known) : std::nullopt;
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
      dims.vmaps.push_back(product.dims[static_cast<size_t>(d)]);
    }
    for (const int64_t d : s.of_example) dims.example.push_back(product.dims[static_cast<size_t>(d)]);
    return dims;
  }

  std::optional<Product> of_one(const Call& call, const Product& product) const {
    const std::string& name = call.op->name();
    auto found = dims_in(call, product, 0);
    if (!found) return std::nullopt;
    std::vector<Labels>& dims = found->example;
    const auto wrapped = [&](int64_t d) {
      return static_cast<size_t>(at::maybe_wrap_dim(d, static_cast<int64_t>(dims.size())));
    };
    Product result = product;
    if (name == "aten::pow.Tensor_Scalar") {
      const at::Scalar exponent = call.args[1].toScalar();
      if (exponent.isComplex() || exponent.toDouble() != 2) return std::nullopt;
      return squared(call, product);
    }
    if (name == "aten::square") return squared(call, product);
    if (name == "aten::sum") {
      if (!call.args[1].isNone()) return std::nullopt;
      dims.clear();
    } else if (name == "aten::sum.dim_IntList") {
      if (!call.args[3].isNone() || !sum_over(dims, call.args[1], call.args[2].toBool())) return std::nullopt;
    } else if (is_norm(name)) {
      auto squares = squared(call, product);
      const IValue& order = call.args[1];  // none: two
      if (!squares || (!order.isNone() && order.toScalar().toDouble() != 2) ||
          (call.args.size() > 4 && !call.args[4].isNone()) || !sum_over(dims, call.args[2], call.args[3].toBool()))
        return std::nullopt;
      result = std::move(*squares);
      result.root = true;
    } else if (name == "aten::transpose.int") {
      if (dims.empty()) return std::nullopt;
      std::swap(dims[wrapped(call.args[1].toInt())], dims[wrapped(call.args[2].toInt())]);
    } else if (name == "aten::t") {
      std::reverse(dims.begin(), dims.end());
    } else if (name == "aten::permute") {
      const std::vector<Labels> before = dims;
      const auto order = call.args[1].toIntVector();
      for (size_t d = 0; d < order.size(); ++d) dims[d] = before[wrapped(order[d])];
    } else if (name == "aten::view" || name == "aten::_unsafe_view" || name == "aten::unsqueeze" ||
               name == "aten::squeeze.dim" || name == "aten::clone") {
      const Sizes& sizes = value(call.results[0]).sizes;
      if (!regroup(dims, product.sizes, {sizes.begin() + static_cast<std::ptrdiff_t>(call.vmaps.size()), sizes.end()}))
        return std::nullopt;
    } else {
      return std::nullopt;
    }
    result.dims = found->vmaps;
    result.dims.insert(result.dims.end(), dims.begin(), dims.end());
    return result;
  }

  static bool sum_over(std::vector<Labels>& dims, const IValue& over, bool keep) {
    std::vector<bool> gone(dims.size(), over.isNone() || over.toIntVector().empty());
    if (!over.isNone())
      for (const int64_t d : over.toIntVector()) {
        if (dims.empty()) return false;
        gone[static_cast<size_t>(at::maybe_wrap_dim(d, static_cast<int64_t>(dims.size())))] = true;
      }
    std::vector<Labels> left;
    for (size_t d = 0; d < dims.size(); ++d)
      if (!gone[d]) left.push_back(dims[d]);
      else if (keep) left.emplace_back();
    dims = std::move(left);
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
        got *= of_labels[static_cast<size_t>(all[next++])];
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
      if (places[d] < 0 || other.sizes[static_cast<size_t>(places[d])] == 1) continue;
      if (product.dims[d].size() != 1) return std::nullopt;
      factor.labels[static_cast<size_t>(places[d])] = product.dims[d][0];
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
    const bool matrix = call.op->name() == "aten::mm";
    const std::vector<int> roles[2] = {{kRow, kInner},
                                       matrix ? std::vector<int>{kInner, kColumn} : std::vector<int>{kInner}};
    Factor factor{call.operands[1 - k], Labels(other.sizes.size(), -1)};
    const auto give = [&](int64_t dim, const Labels& labels) {
      if (dim < 0 || labels.empty()) return true;
      if (labels.size() == 1) factor.labels[static_cast<size_t>(dim)] = labels[0];
      return labels.size() == 1;
    };
    for (size_t v = 0; v < s.of_vmaps.size(); ++v)
      if (!give(s.of_vmaps[v], mine->vmaps[v])) return std::nullopt;
    std::map<int, Labels> of_role;
    for (size_t d = 0; d < roles[k].size(); ++d) of_role[roles[k][d]] = mine->example[d];
    for (size_t d = 0; d < roles[1 - k].size(); ++d) {
      const int role = roles[1 - k][d];
      const int64_t dim = s.of_example[d];
      if (role != kInner && other.sizes[static_cast<size_t>(dim)] != 1) return std::nullopt;
      if (role == kInner && !give(dim, of_role[kInner])) return std::nullopt;
    }
    Product result = product;
    result.factors.push_back(std::move(factor));
    result.dims = mine->vmaps;
    result.dims.push_back(of_role[kRow]);
    if (matrix) result.dims.push_back(of_role[kColumn]);
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

  // (self, order, dims, keepdim, …)
  static bool is_norm(const std::string& name) {
    return name == "aten::linalg_vector_norm" || name == "aten::norm.ScalarOpt_dim";
  }
  static bool sums(const Call& call) {
    const std::string& name = call.op->name();
    return name == "aten::sum" || name == "aten::sum.dim_IntList" || is_norm(name) || name == "aten::mv" ||
           name == "aten::mm";
  }

  // Whether a kernel has the terms of one example in one lane.
  bool serves_lanes(const Product& product) const {
    const Call& call = graph_.calls[product.first];
    const Sizes& sizes = value(call.results[0]).sizes;
    return !call.vmaps.empty() && !product.dims.empty() && has(product.dims[0], 0) && sizes[0] > 1 &&
           count(sizes) / sizes[0] <= kFewOfExample;
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
    std::vector<bool> values(graph_.values.size()), calls(graph_.calls.size());
    for (const ValueId id : graph_.results)
      if (id != kNoValue) values[at(id)] = true;
    for (size_t n = graph_.calls.size(); n-- > 0;) {
      const Call& call = graph_.calls[n];
      calls[n] = call.random() || call.opaque() ||
                 std::any_of(call.results.begin(), call.results.end(),
                             [&](ValueId id) { return id != kNoValue && values[at(id)]; });
      if (!calls[n]) continue;
      if (const auto sum = sums_.find(n); sum != sums_.end())
        for (const Factor& factor : sum->second.factors) values[at(factor.value)] = true;
      else
        for (const ValueId id : call.operands) values[at(id)] = true;
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
  std::vector<std::optional<Product>> known_;  // of each value
  std::map<size_t, Product> sums_;             // of calls
};

}  // namespace

void contract_summed_products(Graph& graph) {
  // A factor that is written to before the sum would be read too late.
  if (std::none_of(graph.calls.begin(), graph.calls.end(), [](const Call& call) { return call.effect; }))
    SummedProducts(graph).run();
}

}  // namespace tower::compiler
