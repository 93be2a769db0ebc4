#include "solvers/vectors.h"

#include <ATen/Functions.h>

#include "core/level.h"
#include "operators/lifting.h"
#include "tower/errors.h"

namespace tower::solvers {

using dynamic::Tensors;

Unknowns::Unknowns(std::string name, const Tensors& like) : name_(std::move(name)) {
  if (like.empty()) throw ArgumentError(name_ + ": there are no tensors to solve for.");
  for (size_t k = 0; k < like.size(); ++k) {
    const auto place = [&] { return name_ + ": tensor " + std::to_string(k) + " of the unknowns is "; };
    if (!like[k].defined()) throw ArgumentError(place() + "undefined.");
    const Meta& meta = metas_.emplace_back(like[k]);
    if (!c10::isFloatingType(meta.dtype) && !c10::isComplexType(meta.dtype))
      throw ArgumentError(place() + describe(like[k]) + ". Only floating point numbers can be solved for.");
    if (meta.dtype != metas_[0].dtype || meta.device != metas_[0].device)
      throw ArgumentError(place() + describe(like[k]) + " and tensor 0 is " + metas_[0].describe() +
                          ". All unknowns must be of one dtype, on one device.");
    size_ += like[k].numel();
  }
}

void Unknowns::check(const Tensors& list, const char* whose) const {
  if (list.size() != metas_.size())
    throw ArgumentError(name_ + ": " + whose + " gave " + std::to_string(list.size()) + " tensors, but there are " +
                        std::to_string(metas_.size()) + " unknown ones. It must give one for each.");
  for (size_t k = 0; k < list.size(); ++k)
    if (!list[k].defined() || !metas_[k].matches(list[k]))
      throw ArgumentError(name_ + ": " + whose + " gave " +
                          (list[k].defined() ? describe(list[k]) : "an undefined tensor") + " for tensor " +
                          std::to_string(k) + " of the unknowns, which is " + metas_[k].describe() +
                          ". Shape and dtype must be the same.");
}

Tensor Unknowns::vector(const Tensors& list, const char* whose) const {
  check(list, whose);
  if (list.size() == 1) return list[0].reshape({-1});
  Tensors parts;
  for (const Tensor& t : list) parts.push_back(t.reshape({-1}));
  return at::cat(parts, 0);
}

Tensor Unknowns::own_vector(const Tensors& list, const char* whose) const {
  const Tensor all = vector(list, whose);
  return list.size() == 1 ? all.clone() : all;
}

Tensors Unknowns::list(const Tensor& vector) const {
  Tensors list;
  int64_t start = 0;
  for (const Meta& meta : metas_) {
    const int64_t length = c10::multiply_integers(meta.sizes);
    list.push_back((metas_.size() == 1 ? vector : vector.narrow(0, start, length)).reshape(meta.sizes));
    start += length;
  }
  return list;
}

VectorFunction Unknowns::on_vectors(dynamic::Function f, const char* whose) const {
  return [self = *this, f = std::move(f), whose](const Tensor& v) { return self.vector(f(self.list(v)), whose); };
}

// NOTE [Systems of several examples]
// A function that speaks of its argument to other examples mixes their unknowns: it is one system of them all, in which
// products and lengths are sums over the examples. One that speaks of other things alone is a system for each example.
// What goes through collectives with its argument is seen by a tangent.
speech::Axes mixed_axes(const VectorFunction& f, const Tensor& like) {
  if (!speech::may_speak()) return {};
  const speech::Listener listener;
  const auto of_list = [&](const Tensors& v) { return Tensors{f(v[0])}; };
  dynamic::jvp(of_list, {at::zeros_like(like)}, {like});
  return listener.axes_of_tangents();
}

bool any_example(const Tensor& condition) {
  const Tensor values = value_under_all_levels(condition);
  DispatchGuard keys;
  keys.see_every_operator(false);
  return speech::in_all_processes(condition, {values.any().item<bool>()})[0] > 0;
}

}  // namespace tower::solvers
