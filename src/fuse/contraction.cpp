#include "fuse/contraction.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <algorithm>

#include "kernels/gemm.h"

namespace tower::compiler {
namespace {

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

// The term's tensor with a dimension for each of these labels, in this order: of size one where the term lacks it.
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
  for (const int label : labels) n *= along(sizes, label);
  return n;
}

// Squares of float32 are computed and summed in float64: the square of a factor may be out of float32's range where the
// square of the product is not.
class ContractionOperator final : public MemoryKernel {
 public:
  ContractionOperator(Product product, std::vector<size_t> operands, const Value& result, const Places& order)
      : MemoryKernel({{result.sizes, strides_in_order(result.sizes, order), result.dtype}}, "tower::contraction"),
        product_(std::move(product)),
        operands_(std::move(operands)) {
    strides_of_labels_.resize(product_.sizes.size());
    for (size_t d = 0; d < product_.dims.size(); ++d) {
      const Labels& labels = product_.dims[d];
      left_.insert(left_.end(), labels.begin(), labels.end());
      int64_t stride = made()[0].strides[d];
      for (size_t k = labels.size(); k-- > 0;) {
        along(strides_of_labels_, labels[k]) = stride;
        stride *= along(product_.sizes, labels[k]);
      }
    }
  }

  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override {
    const Tensor result = results[0].tensor();
    std::vector<Term> terms;
    for (size_t k = 0; k < operands_.size(); ++k)
      terms.push_back(read(operands[operands_[k]].tensor(), product_.factors[k]));
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
    if (!product_.root && terms[0].t.scalar_type() == result.scalar_type())
      return write_product(terms[0], terms[1], result, strides_of_labels_);
    const Tensor sum = in_order(product_of(terms[0], terms[1], left_), left_);
    result.copy_((product_.root ? sum.sqrt() : sum).reshape(result.sizes()));
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
      order.push_back(along(term.labels, d));
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
    for (const int label : labels) shape.push_back(along(product_.sizes, label));
    const Tensor product = at::detail::empty_cpu(shape, a.t.scalar_type());
    std::vector<int64_t> strides(product_.sizes.size());
    for (size_t d = 0; d < labels.size(); ++d) along(strides, labels[d]) = product.stride(static_cast<int64_t>(d));
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
    const auto goes = [&](int label) { return along(strides, label) == 0; };
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
  const std::vector<size_t> operands_;      // of each factor
  Labels left_;                             // of the result, in order
  std::vector<int64_t> strides_of_labels_;  // in the result; zero: summed over
};

}  // namespace

c10::intrusive_ptr<KernelOperator> contraction(Product product, std::vector<size_t> operands, const Value& result,
                                               const Places& order) {
  return c10::make_intrusive<ContractionOperator>(std::move(product), std::move(operands), result, order);
}

}  // namespace tower::compiler
