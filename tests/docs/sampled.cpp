#include "sampled.h"

#include <ATen/ops/stack.h>

namespace docs {

namespace td = tower::dynamic;

Sampled::Sampled(const op_db::Entry& entry, const std::string& text) {
  const auto dtype = entry.real ? at::kDouble : at::kComplexDouble;
  const auto sample = op_db::parse_sample(entry, text, dtype);
  leaves_ = op_db::make_leaves(entry, sample, dtype, 0);
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const auto& spec = sample.leaves[i].spec;
    leaves_[i] = op_db::projected(spec, leaves_[i]);
    mappable_.push_back(!spec.unmapped);
    differentiable_.push_back(spec.differentiable());
  }
  f_ = [op = *entry.op, sample](const td::Tensors& in) {
    td::Tensors defined;
    for (auto& t : op_db::call(op, sample, in))
      if (t.defined()) defined.push_back(t);
    return defined;
  };
}

td::Tensors Sampled::with(const td::Tensors& primals, const td::Tensors& leaves) const {
  td::Tensors all = leaves;
  for (size_t i = 0, next = 0; i < all.size(); ++i)
    if (differentiable_[i]) all[i] = primals[next++];
  return all;
}

td::Tensors Sampled::differentiable(const td::Tensors& outputs) const {
  td::Tensors result;
  for (const auto& t : outputs)
    if (t.is_floating_point() || t.is_complex()) result.push_back(t);
  return result;
}

td::Function Sampled::partial() const {
  return [*this](const td::Tensors& in) { return differentiable(f_(with(in, leaves_))); };
}

td::Tensors Sampled::primals() const {
  td::Tensors result;
  for (size_t i = 0; i < leaves_.size(); ++i)
    if (differentiable_[i]) result.push_back(leaves_[i]);
  return result;
}

td::Function Sampled::mapped(const td::Function& f, size_t more) const {
  td::Dims dims;
  for (const bool mappable : mappable_) dims.push_back(mappable ? std::optional<int64_t>(0) : std::nullopt);
  dims.insert(dims.end(), more, 0);
  return td::vmap(f, dims, {0});
}

td::Tensors Sampled::batch(int64_t examples) const {
  td::Tensors batch;
  for (size_t i = 0; i < leaves_.size(); ++i)
    batch.push_back(mappable_[i] ? at::stack(td::Tensors(static_cast<size_t>(examples), leaves_[i])) : leaves_[i]);
  return batch;
}

td::Function Sampled::mapped_gradients() const {
  const size_t count = leaves_.size();
  const td::Function gradients = [*this, count](const td::Tensors& in) {
    const auto split = in.begin() + static_cast<std::ptrdiff_t>(count);
    const td::Tensors leaves(in.begin(), split);
    td::Tensors primals;
    for (size_t i = 0; i < count; ++i)
      if (differentiable_[i]) primals.push_back(leaves[i]);
    const auto f = [&](const td::Tensors& x) { return differentiable(f_(with(x, leaves))); };
    return td::vjp(f, primals).second(td::Tensors(split, in.end()));
  };
  return mapped(gradients, partial()(primals()).size());
}

td::Tensors Sampled::batch_and_cotangents(int64_t examples) const {
  td::Tensors all = batch(examples);
  for (const auto& t : partial()(primals())) all.push_back(at::stack(td::Tensors(static_cast<size_t>(examples), t)));
  return all;
}

}  // namespace docs
