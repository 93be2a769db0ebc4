// torch::nn modules, as they are, as functions of their parameters and buffers:
//
//   torch::nn::Linear net(4, 2);
//   auto params = tower::parameters_of(net);
//   auto loss = [&](const tower::NamedTensors& p, const at::Tensor& x) {
//     return tower::functional_call(net, p, {}, x).square().sum();
//   };
//   tower::NamedTensors grads = tower::grad(loss)(params, x);
//
// A module is given as itself, as a shared_ptr, or as a holder such as torch::nn::Linear. This header only declares
// torch::nn::Module: include LibTorch's modules yourself.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tower/substitution.h"

namespace torch::nn {
class Module;
}

namespace tower {

/// Parameters or buffers by name.
using NamedTensors = std::map<std::string, at::Tensor>;

namespace detail {

/// The module behind a holder or a pointer.
template <class M>
auto& module_behind(M& module) {
  if constexpr (requires { module.ptr(); }) {
    return *module.ptr();
  } else if constexpr (requires { *module; }) {
    return *module;
  } else {
    return module;
  }
}

NamedTensors parameters_of(const torch::nn::Module& module);
NamedTensors buffers_of(const torch::nn::Module& module);
Substitution substitute(const torch::nn::Module& module, const NamedTensors& params, const NamedTensors& buffers);
std::pair<NamedTensors, NamedTensors> stack_modules(const std::vector<const torch::nn::Module*>& modules);

}  // namespace detail

/// The values of the parameters of `module`, with those of its submodules, by name ("0.weight"). They share memory with
/// the module's own but do not require grad: only Tower differentiates them. A parameter that is tied (used under
/// several names) is listed once, under its first name.
template <class M>
NamedTensors parameters_of(const M& module) {
  return detail::parameters_of(detail::module_behind(module));
}

/// The values of the buffers of `module`, in the same way.
template <class M>
NamedTensors buffers_of(const M& module) {
  return detail::buffers_of(detail::module_behind(module));
}

/// module.forward(inputs…), with `params` and `buffers` in the place of its own. The module is not modified. What
/// is not named stays the module's own. Throws ArgumentError where the module has no parameter or buffer of a name,
/// where a shape is another one, and where a tied parameter is given different values under its names.
template <class M, class... Inputs>
auto functional_call(M&& module, const NamedTensors& params, const NamedTensors& buffers, Inputs&&... inputs) {
  auto& target = detail::module_behind(module);
  const Substitution scope = detail::substitute(target, params, buffers);
  return target.forward(std::forward<Inputs>(inputs)...);
}

/// {parameters, buffers} of `modules` of one architecture, stacked along a new first dimension: an ensemble to vmap
/// over. Throws ArgumentError where their names, shapes or dtypes differ.
template <class M>
std::pair<NamedTensors, NamedTensors> stack_modules(const std::vector<M>& modules) {
  std::vector<const torch::nn::Module*> behind;
  behind.reserve(modules.size());
  for (const M& module : modules) behind.push_back(&detail::module_behind(module));
  return detail::stack_modules(behind);
}

}  // namespace tower
