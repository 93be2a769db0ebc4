#include "compile/contract.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <map>

#include "compile/gemm.h"
#include "compile/kernel_calls.h"
#include "compile/places.h"

namespace tower::compiler {
namespace {

constexpr int64_t kFewTerms = 4096;     // that are not worth a call
constexpr int64_t kFewOfExample = 128;  // that one lane of a kernel computes

// What a dimension of a product runs over has a label: equal ones go together. Dimensions of one element have none.
using Labels = std::vector<int>;

// A tensor as it is read.
struct Factor {
  ValueId value;
  Labels labels;         // of each dimension; −1: none
  bool squared = false;  // each element
};

// A value that is a sum of products: over the labels that none of its dimensions has.
struct Product {
  std::vector<Factor> factors;
  std::vector<int64_t> sizes;                // of labels
  std::vector<Labels> dims;                  // of the value; several labels: one after the other, the last one fastest
  size_t first;                              // the call whose result has all the terms
  std::optional<size_t> sum = std::nullopt;  // the last call that summed
  bool root = false;                         // the value is the square root of that
};

bool has(const Labels& labels, int label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

// A tensor on the way to the sum.
struct Term {
  Tensor t;
  Labels labels;         // of each dimension
  bool squared = false;  // its elements are still to be
};

// Of each row, in float64.
Tensor sums_of_squares(const Tensor& rows) {
  constexpr int64_t kTogether = 16;
  const int64_t n = rows.size(1);
  const Tensor sums = at::empty({rows.size(0)}, at::kDouble);
  for (int64_t row = 0; row < rows.size(0); ++row) {
    const float* x = rows.const_data_ptr<float>() + row * n;
    double parts[kTogether] = {};
    int64_t i = 0;
    for (; i + kTogether <= n; i += kTogether)
      for (int64_t k = 0; k < kTogether; ++k) parts[k] += static_cast<double>(x[i + k]) * x[i + k];
    for (; i < n; ++i) parts[0] += static_cast<double>(x[i]) * x[i];
    double sum = 0;
    for (const double part : parts) sum += part;
    sums.mutable_data_ptr<double>()[row] = sum;
  }
  return sums;
}

// With dimensions for these labels, in this order; one of size one where it has none.
Tensor in_order(const Term& term, const Labels& order) {
  if (term.labels == order) return term.t;
  c10::SmallVector<int64_t, 6> dims;
  for (const int label : order)
    if (const auto at = std::find(term.labels.begin(), term.labels.end(), label); at != term.labels.end())
      dims.push_back(at - term.labels.begin());
  Tensor t = term.t.permute(dims);
  for (size_t d = 0; d < order.size(); ++d)
    if (!has(term.labels, order[d])) t = t.unsqueeze(static_cast<int64_t>(d));
  return t;
}

int64_t size_of(const Labels& labels, const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (const int label : labels) n *= sizes[static_cast<size_t>(label)];
  return n;
}

// Sums of squares of float32 are those of float64: a factor's square alone may be out of range where that of the
// product is not.
class Contraction final : public KernelOperator {
 public:
  Contraction(Product product, std::vector<size_t> operands, const Value& result, const Places& order)
      : KernelOperator("tower::contraction"),
        product_(std::move(product)),
        operands_(std::move(operands)),
        sizes_(result.sizes),
        strides_(strides_in_order(result.sizes, order)),
        dtype_(result.dtype) {
    strides_of_labels_.resize(product_.sizes.size());
    for (size_t d = 0; d < product_.dims.size(); ++d) {
      const Labels& labels = product_.dims[d];
      left_.insert(left_.end(), labels.begin(), labels.end());
      int64_t stride = strides_[d];
      for (size_t k = labels.size(); k-- > 0;) {
        strides_of_labels_[static_cast<size_t>(labels[k])] = stride;
        stride *= product_.sizes[static_cast<size_t>(labels[k])];
      }
    }
  }

  void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const override {
    std::vector<Term> terms;
    for (size_t k = 0; k < operands_.size(); ++k) terms.push_back(read(*operands[operands_[k]], product_.factors[k]));
    if (terms.size() > 2)
      for (Term& term : terms)
        if (term.squared) term = {term.t.to(at::kDouble).square(), term.labels};
    // One by one into the smallest that there is, until the last two.
    std::stable_sort(terms.begin(), terms.end(),
                     [](const Term& a, const Term& b) { return a.t.numel() < b.t.numel(); });
    while (terms.size() > 2) {
      terms[1] = product_of(terms[0], terms[1], still_wanted(terms));
      terms.erase(terms.begin());
    }
    for (size_t k = 0; k < terms.size(); ++k) terms[k] = without_own(terms[k], terms[1 - k]);
    *results[0] = at::detail::empty_strided_cpu(sizes_, strides_, dtype_);
    if (!product_.root && terms[0].t.scalar_type() == dtype_)
      return write_product(terms[0], terms[1], *results[0], strides_of_labels_);
    const Tensor sum = in_order(product_of(terms[0], terms[1], left_), left_);
    results[0]->copy_((product_.root ? sum.sqrt() : sum).reshape(sizes_));
  }

 private:
  static Term read(Tensor t, const Factor& factor) {
    Term term{{}, {}, factor.squared};
    for (size_t d = factor.labels.size(); d-- > 0;)
      if (factor.labels[d] < 0) t = t.select(static_cast<int64_t>(d), 0);
    for (const int label : factor.labels)
      if (label >= 0) term.labels.push_back(label);
    term.t = std::move(t);
    return term;
  }

  // What the result and the terms after the first two have.
  Labels still_wanted(const std::vector<Term>& terms) const {
    Labels labels = left_;
    for (size_t k = 2; k < terms.size(); ++k)
      labels.insert(labels.end(), terms[k].labels.begin(), terms[k].labels.end());
    return labels;
  }

  // Summed over what it alone has.
  Term without_own(const Term& term, const Term& other) const {
    c10::SmallVector<int64_t, 6> own;
    Labels kept;
    std::vector<int64_t> sizes;
    for (size_t d = 0; d < term.labels.size(); ++d) {
      const bool stays = has(left_, term.labels[d]) || has(other.labels, term.labels[d]);
      if (stays) sizes.push_back(term.t.size(static_cast<int64_t>(d)));
      if (stays) kept.push_back(term.labels[d]);
      else own.push_back(static_cast<int64_t>(d));
    }
    if (own.empty()) return {term.squared ? term.t.to(at::kDouble).square() : term.t, kept};
    if (!term.squared) return {term.t.sum(own), kept};
    Labels order = kept;
    int64_t n = 1;
    for (const int64_t d : own) {
      order.push_back(term.labels[static_cast<size_t>(d)]);
      n *= term.t.size(d);
    }
    const Tensor rows = in_order(term, order).reshape({size_of(kept, product_.sizes), n}).contiguous();
    return {sums_of_squares(rows).view(sizes), kept};
  }

  // Summed over what is in both and not in `kept`.
  Term product_of(const Term& a, const Term& b, const Labels& kept) const {
    Labels labels;
    for (const int label : a.labels)
      if (!has(b.labels, label) || has(kept, label)) labels.push_back(label);
    for (const int label : b.labels)
      if (!has(a.labels, label)) labels.push_back(label);
    Sizes shape;
    for (const int label : labels) shape.push_back(product_.sizes[static_cast<size_t>(label)]);
    const Tensor product = at::detail::empty_cpu(shape, a.t.scalar_type());
    std::vector<int64_t> strides(product_.sizes.size());
    for (size_t d = 0; d < labels.size(); ++d)
      strides[static_cast<size_t>(labels[d])] = product.stride(static_cast<int64_t>(d));
    write_product(a, b, product, strides);
    return {product, labels};
  }

  // Over the labels that `strides` has; summed over the others.
  void write_product(const Term& a, const Term& b, const Tensor& product, const std::vector<int64_t>& strides) const {
    if (a.t.numel() == 0 || b.t.numel() == 0) {
      product.zero_();
      return;
    }
    Gemm gemm;
    std::vector<GemmAxis> summed;
    for (size_t label = 0; label < product_.sizes.size(); ++label) {
      const auto stride = [&](const Term& term) {
        const auto at = std::find(term.labels.begin(), term.labels.end(), static_cast<int>(label));
        return at == term.labels.end() ? 0 : term.t.stride(at - term.labels.begin());
      };
      const GemmAxis axis{product_.sizes[label], stride(a), stride(b), 0, strides[label]};
      if (strides[label] != 0) gemm.axes.push_back(axis);
      else if (has(a.labels, static_cast<int>(label))) summed.push_back(axis);  // and in `b`
    }
    if (summed.empty()) {
      Labels labels;
      Sizes sizes, of_product;
      for (size_t label = 0; label < strides.size(); ++label) {
        if (strides[label] == 0) continue;
        labels.push_back(static_cast<int>(label));
        sizes.push_back(product_.sizes[label]);
        of_product.push_back(strides[label]);
      }
      Tensor out = product.as_strided(sizes, of_product);
      at::mul_out(out, in_order(a, labels), in_order(b, labels));
      return;
    }
    if (gemm.sum_over(summed)) return gemm.run(a.t, b.t, {}, product);
    // What is summed over is one dimension of copies: of the smaller one, if the larger one lies so that it will do.
    const bool first = a.t.numel() >= b.t.numel();
    const Term &larger = first ? a : b, &smaller = first ? b : a;
    Labels order = larger.labels;
    const auto stride = [&](int label) {
      return larger.t.stride(std::find(larger.labels.begin(), larger.labels.end(), label) - larger.labels.begin());
    };
    const auto goes = [&](int label) { return strides[static_cast<size_t>(label)] == 0; };
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return stride(x) > stride(y); });
    const bool goes_last = goes(order.back());
    std::stable_partition(order.begin(), order.end(), [&](int label) { return goes(label) != goes_last; });
    for (const int label : smaller.labels)
      if (!has(order, label)) order.insert(goes_last ? order.begin() : order.end(), label);
    const auto copied = [&](const Term& term) {
      Labels labels;
      for (const int label : order)
        if (has(term.labels, label)) labels.push_back(label);
      return Term{in_order(term, labels).contiguous(), labels};
    };
    write_product(copied(a), copied(b), product, strides);
  }

  const Product product_;
  const std::vector<size_t> operands_;  // of each factor
  Labels left_;                         // of the result, in order
  const Sizes sizes_, strides_;
  const at::ScalarType dtype_;
  std::vector<int64_t> strides_of_labels_;  // in the result; zero: summed over
};

// What each dimension of a matrix product's operands and results is.
constexpr int kRow = 1000, kInner = 1001, kColumn = 1002;

class Pass {
 public:
  explicit Pass(Graph& graph) : graph_(graph), known_(graph.values.size()) {}

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

  // A sum that somebody else needs the terms of, or another sum of them, is left as it is.
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
    auto op = c10::make_intrusive<Contraction>(std::move(product), std::move(of_factors), result, *order);
    graph_.calls[n] = KernelOperator::call_of(std::move(op), std::move(operands), graph_.calls[n].results);
  }

  Graph& graph_;
  std::vector<std::optional<Product>> known_;  // of each value
  std::map<size_t, Product> sums_;             // of calls
};

}  // namespace

void contract_summed_products(Graph& graph) {
  // A factor that is written to before the sum would be read too late.
  if (std::none_of(graph.calls.begin(), graph.calls.end(), [](const Call& call) { return call.effect; }))
    Pass(graph).run();
}

}  // namespace tower::compiler
