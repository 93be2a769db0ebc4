// vjp, grad, linearize: the transforms that stand on the tape.
#include <ATen/Functions.h>

#include "core/bind.h"
#include "core/memory.h"
#include "interpreters/surface.h"
#include "interpreters/tape.h"
#include "tower/errors.h"

namespace tower::dynamic {
namespace {

std::vector<int64_t> all_arguments(const Tensors& primals) {
  std::vector<int64_t> all(primals.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return all;
}

// The function's evaluation and the gradients of its first output.
std::pair<Evaluated, Tensors> gradients(const FunctionWithAux& f, const std::vector<int64_t>& argnums,
                                        const Tensors& args) {
  const memory::InTransform here;
  const auto checked = check_argnums(argnums, args.size(), "grad");
  Evaluated e = evaluate(f, args, checked, "grad", false);
  if (e.outs.empty())
    throw ArgumentError("grad: the function returned nothing; its first output must be the scalar to differentiate.");
  const Meta& loss = e.out_metas[0];
  if (!loss.sizes.empty() && c10::multiply_integers(loss.sizes) != 1)
    throw DerivativeError("grad: the first output of the function must be a scalar, but it is " + loss.describe() +
                          ". Reduce it (sum, mean), or use vjp or jacrev.");
  if (!loss.sizes.empty())
    throw DerivativeError("grad: the first output of the function must be a scalar without dimensions, but it is " +
                          loss.describe() + ". Use squeeze() or sum().");
  if (!c10::isFloatingType(loss.dtype))
    throw DerivativeError(
        "grad: the first output of the function must be a real floating point number, but it is " + loss.describe() +
        (c10::isComplexType(loss.dtype) ? ". Take its real part or absolute value, or use vjp." : "."));
  Tensors cotangents(e.outs.size());
  {
    DispatchGuard keys;
    keys.see_every_operator(false);
    cotangents[0] = at::ones({}, loss.options());
  }
  Tensors grads = with_zeros(pull_back(e, cotangents, "grad", true), e.in_metas);
  return {std::move(e), std::move(grads)};
}

std::tuple<Tensors, Function, Tensors> with_pullback(const FunctionWithAux& f, const Tensors& primals,
                                                     VjpOptions options) {
  const memory::InTransform here;
  auto e = std::make_shared<Evaluated>(evaluate(f, primals, all_arguments(primals), "vjp", false));
  prune(*e);
  Function pullback = [e, options](const Tensors& cotangents) {
    const memory::InTransform here;
    return with_zeros(pull_back(*e, cotangents, "vjp", options.consume), e->in_metas);
  };
  Tensors outs = std::move(e->outs), aux = std::move(e->aux);
  return {std::move(outs), std::move(pullback), std::move(aux)};
}

}  // namespace

std::tuple<Tensors, Function, Tensors> vjp(FunctionWithAux f, const Tensors& primals) {
  return with_pullback(f, primals, {});
}

std::pair<Tensors, Function> vjp(Function f, const Tensors& primals, VjpOptions options) {
  auto [outs, pullback, aux] = with_pullback(without_aux(std::move(f)), primals, options);
  return {std::move(outs), std::move(pullback)};
}

FunctionWithAux grad(FunctionWithAux f, std::vector<int64_t> argnums) {
  return [f = std::move(f), argnums = std::move(argnums)](const Tensors& args) {
    auto [e, grads] = gradients(f, argnums, args);
    return std::pair(std::move(grads), std::move(e.aux));
  };
}

Function grad(Function f, std::vector<int64_t> argnums) {
  return [f = without_aux(std::move(f)), argnums = std::move(argnums)](const Tensors& args) {
    return gradients(f, argnums, args).second;
  };
}

FunctionWithAux grad_and_value(Function f, std::vector<int64_t> argnums) {
  return [f = without_aux(std::move(f)), argnums = std::move(argnums)](const Tensors& args) {
    auto [e, grads] = gradients(f, argnums, args);
    return std::pair(std::move(grads), std::move(e.outs));
  };
}

std::pair<Tensors, Function> linearize(Function f, const Tensors& primals) {
  const memory::InTransform here;
  auto e = std::make_shared<Evaluated>(
      evaluate(without_aux(std::move(f)), primals, all_arguments(primals), "linearize", true));
  prune(*e);
  Function pushforward = [e](const Tensors& tangents) {
    const memory::InTransform here;
    if (tangents.size() != e->in_slots.size())
      throw ArgumentError("linearize: the pushforward was given " + std::to_string(tangents.size()) +
                          " tangents, but the function has " + std::to_string(e->in_slots.size()) + " arguments.");
    for (size_t k = 0; k < tangents.size(); ++k)
      check_direction(tangents[k], e->in_metas[k], "linearize", ordinal("tangent", k));
    return with_zeros(push_forward(*e, tangents), e->out_metas);
  };
  Tensors outs = std::move(e->outs);
  return {std::move(outs), std::move(pushforward)};
}

}  // namespace tower::dynamic
