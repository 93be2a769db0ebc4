// jvp and hvp.
#include "interpreters/jvp.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "core/memory.h"
#include "frontend/arguments.h"
#include "frontend/substitution.h"
#include "interpreters/surface.h"
#include "tower/errors.h"
#include "transforms/vmap.h"

namespace tower {

using dynamic::FunctionWithAux;

std::tuple<Tensors, Tensors, Tensors> push_forward(const FunctionWithAux& f, const Tensors& given,
                                                   const Tensors& directions, const char* label,
                                                   const JvpOptions& options) {
  const memory::InTransform here;
  const Tensors primals = frontend::stand_ins(given), tangents = frontend::stand_ins(directions);
  if (primals.size() != tangents.size())
    throw ArgumentError(std::string(label) + ": " + std::to_string(primals.size()) + " primals, but " +
                        std::to_string(tangents.size()) +
                        " tangents. Give one tangent for each primal (undefined: zero).");
  auto level = c10::make_intrusive<Jvp>(label);
  Tensors outs, out_tangents, aux, args = primals;
  std::vector<Outline> metas;
  {
    Scope scope(level);
    const c10::AutoFwGradMode forward(true);
    for (size_t i = 0; i < primals.size(); ++i) {
      if (!primals[i].defined())
        throw ArgumentError(std::string(label) + ": " + ordinal("primal", i) + " is an undefined tensor.");
      check_supported(primals[i], label, ordinal("primal", i));
      if (tangents[i].defined()) check_differentiable(primals[i], label, ordinal("primal", i));
      check_direction(tangents[i], Meta(primals[i]), label, ordinal("tangent", i));
      args[i] = wrap(*level, Payload{primals[i], tangents[i], -1});
    }
    const auto [results, extra] = [&] {
      const frontend::Arguments arguments(*level, args, primals);
      return f(args);
    }();
    check_outputs(results, label);
    const auto take_out = [&, &results = results, &extra = extra] {
      outs.clear(), out_tangents.clear(), aux.clear(), metas.clear();
      for (const Tensor& out : results) {
        Wrapper* w = as_wrapper_of(out, *level);
        out_tangents.push_back(w ? w->payload().tangent : Tensor());
        if (options.strict && !out_tangents.back().defined())
          throw DerivativeError(std::string(label) + ": " + ordinal("output", outs.size()) +
                                " does not depend on the primals, which strict does not allow.");
        outs.push_back(value_outside(out, *level, args));
        metas.emplace_back(out);
      }
      for (const Tensor& t : extra) aux.push_back(value_outside(t, *level, args));
    };
    take_out();
    if (write_back(*level, args, primals)) take_out();
  }
  return {std::move(outs), with_zeros(std::move(out_tangents), metas), std::move(aux)};
}

namespace dynamic {

std::tuple<Tensors, Tensors, Tensors> jvp(FunctionWithAux f, const Tensors& primals, const Tensors& tangents,
                                          JvpOptions options) {
  return push_forward(f, primals, tangents, "jvp", options);
}

std::pair<Tensors, Tensors> jvp(Function f, const Tensors& primals, const Tensors& tangents, JvpOptions options) {
  auto [outs, out_tangents, aux] = push_forward(without_aux(std::move(f)), primals, tangents, "jvp", options);
  return {std::move(outs), std::move(out_tangents)};
}

std::pair<Tensors, Tensors> hvp(Function f, const Tensors& primals, const Tensors& tangents) {
  std::vector<int64_t> all(primals.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  auto [grads, products, aux] = push_forward(without_aux(grad(std::move(f), all)), primals, tangents, "hvp");
  return {std::move(grads), std::move(products)};
}

}  // namespace dynamic
}  // namespace tower
