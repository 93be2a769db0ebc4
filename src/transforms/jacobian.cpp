// jacrev, jacfwd and hessian: a pullback, or a pushforward, mapped over a basis.
#include <ATen/Functions.h>

#include <numeric>

#include "core/memory.h"
#include "core/wrapper.h"
#include "interpreters/surface.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"
#include "tower/value_and_jacobian.h"
#include "transforms/vmap.h"

namespace tower::dynamic {
namespace {

int64_t numel(const Meta& m) { return c10::multiply_integers(m.sizes); }

void check_chunk(const JacobianOptions& options, const char* label) {
  if (options.chunk_size && *options.chunk_size <= 0)
    throw ArgumentError(std::string(label) + ": chunk_size is " + std::to_string(*options.chunk_size) +
                        "; it must be positive.");
}

// Rows [start, start + length) of the identity over `m`'s elements, each in m's shape.
Tensor basis(const Meta& m, int64_t start, int64_t length) {
  DispatchGuard keys;
  keys.see_every_operator(false);
  const int64_t n = numel(m);
  Tensor rows = length == n ? at::eye(n, m.options()) : at::zeros({length, n}, m.options());
  if (length != n) rows.diagonal(start).fill_(1);
  Sizes sizes{length};
  sizes.append(m.sizes.begin(), m.sizes.end());
  return rows.view(sizes);
}

Sizes sizes_of_both(const Meta& a, const Meta& b) {
  Sizes sizes = a.sizes;
  sizes.append(b.sizes.begin(), b.sizes.end());
  return sizes;
}

// Calls `run(start, length)` for each chunk of `total` and joins the results' first dimensions.
template <class Run>
Tensors in_chunks(int64_t total, std::optional<int64_t> chunk, Run&& run) {
  const int64_t step = chunk.value_or(std::max<int64_t>(total, 1));
  if (total <= step) return run(0, total);
  std::vector<Tensors> parts;
  for (int64_t start = 0; start < total; start += step) parts.push_back(run(start, std::min(step, total - start)));
  Tensors result;
  for (size_t k = 0; k < parts[0].size(); ++k) {
    Tensors pieces;
    for (const auto& p : parts) pieces.push_back(p[k]);
    result.push_back(at::cat(pieces, 0));
  }
  return result;
}

// The basis is real. Of complex numbers the entries of the Jacobian are those of a holomorphic function, in LibTorch's
// conventions; between real and complex numbers one of the two modes sees only half of the derivative.
void check_kinds(const Meta& out, const Meta& in, size_t k, bool by_rows) {
  const bool of_out = c10::isComplexType(out.dtype), of_in = c10::isComplexType(in.dtype);
  if (by_rows ? !(of_out && !of_in) : !(of_in && !of_out)) return;
  throw DerivativeError(std::string(by_rows ? "jacrev" : "jacfwd") + ": " + ordinal("output", k) + " is " +
                        out.describe() + " and an argument " + in.describe() + ", of whose derivative " +
                        (by_rows ? "reverse mode gives the real part only. Use jacfwd"
                                 : "forward mode gives what real directions show only. Use jacrev") +
                        ", or take the numbers apart with view_as_real.");
}

Tensors one_row(Tensors row) {
  for (Tensor& t : row) t = t.unsqueeze(0);
  return row;
}

// Chunks of one row are a loop without vmap, as they are in torch.func: for backward passes that vmap refuses.
Tensors jacobian_by_rows(const Evaluated& e, const JacobianOptions& options) {
  Tensors result;
  for (size_t k = 0; k < e.outs.size(); ++k) {
    const Meta& out = e.out_metas[k];
    check_differentiable(e.outs[k], "jacrev", ordinal("output", k));
    for (const Meta& in : e.in_metas) check_kinds(out, in, k, true);
    Tensors rows = in_chunks(numel(out), options.chunk_size, [&](int64_t start, int64_t length) {
      Function pullback = [&](const Tensors& ct) {
        Tensors cotangents(e.outs.size());
        cotangents[k] = ct[0];
        return with_zeros(pull_back(e, cotangents, "jacrev", false), e.in_metas);
      };
      const Tensor cotangents = basis(out, start, length);
      if (options.chunk_size == 1 && length == 1) return one_row(pullback({cotangents.squeeze(0)}));
      return map_once(without_aux(pullback), {cotangents}, {0}, length, {0}, Randomness::same, "jacrev").first;
    });
    for (size_t i = 0; i < rows.size(); ++i)
      result.push_back(as_new(rows[i].reshape(sizes_of_both(out, e.in_metas[i]))));
  }
  return result;
}

// What jacfwd computes, before it is put in shape.
struct Columns {
  std::vector<Tensors> columns;  // by differentiated argument, by output: [columns, output shape]
  std::vector<Outline> in_metas, out_metas;
  Tensors aux;
};

// Evaluates `f` once for each chunk of each argument, its primal computation unmapped.
Columns columns_by_evaluation(const FunctionWithAux& f, const Tensors& args, const std::vector<int64_t>& argnums,
                              const JacobianOptions& options) {
  Columns result;
  const auto writes = [&] {
    uint64_t sum = 0;
    for (const Tensor& t : args) sum += t.defined() ? write_count(t) : 0;
    return sum;
  };
  const uint64_t before = writes();
  for (int64_t a : argnums) {
    const Meta& in = result.in_metas.emplace_back(args[static_cast<size_t>(a)]);
    const bool first_argument = result.columns.empty();
    result.columns.push_back(in_chunks(numel(in), options.chunk_size, [&](int64_t start, int64_t length) {
      if (writes() != before)
        throw MutationError(
            "jacfwd: the function wrote to an argument, but is evaluated again for other columns, which shall be those "
            "of the same point. Clone the argument in the function, or use " +
            std::string(detail::spellings().same_draws) + ", which evaluates once.");
      FunctionWithAux push = [&](const Tensors& direction) {
        Tensors tangents(args.size());
        tangents[static_cast<size_t>(a)] = direction[0];
        auto [outs, out_tangents, extra] = push_forward(f, args, tangents, "jacfwd");
        result.out_metas.clear();
        for (size_t k = 0; k < outs.size(); ++k) {
          check_differentiable(outs[k], "jacfwd", ordinal("output", k));
          check_kinds(result.out_metas.emplace_back(outs[k]), in, k, false);
        }
        if (first_argument && start == 0) result.aux = extra;
        return std::pair(std::move(out_tangents), Tensors{});
      };
      return map_once(push, {basis(in, start, length)}, {0}, length, {0}, options.randomness, "jacfwd").first;
    }));
  }
  // Of the level that maps the columns; what an outer function made stays what it is there.
  for (Tensor& t : result.aux) t = strip_constants(t, top() ? top()->depth() : 0);
  return result;
}

// Evaluates `f` once and replays it for each chunk of each argument.
Columns columns_by_replay(const FunctionWithAux& f, const Tensors& args, const std::vector<int64_t>& argnums,
                          const JacobianOptions& options) {
  Evaluated e = evaluate(f, args, argnums, "jacfwd", true);
  prune(e);
  for (size_t k = 0; k < e.outs.size(); ++k) {
    check_differentiable(e.outs[k], "jacfwd", ordinal("output", k));
    for (const Meta& in : e.in_metas) check_kinds(e.out_metas[k], in, k, false);
  }
  std::vector<Tensors> columns;
  for (size_t i = 0; i < argnums.size(); ++i) {
    columns.push_back(in_chunks(numel(e.in_metas[i]), options.chunk_size, [&](int64_t start, int64_t length) {
      Function push = [&](const Tensors& direction) {
        Tensors tangents(argnums.size());
        tangents[i] = direction[0];
        return with_zeros(push_forward(e, tangents), e.out_metas);
      };
      return map_once(without_aux(push), {basis(e.in_metas[i], start, length)}, {0}, length, {0}, options.randomness,
                      "jacfwd")
          .first;
    }));
  }
  return {std::move(columns), std::move(e.in_metas), std::move(e.out_metas), std::move(e.aux)};
}

}  // namespace

FunctionWithAux jacrev(FunctionWithAux f, std::vector<int64_t> argnums, JacobianOptions options) {
  check_chunk(options, "jacrev");
  return [f = std::move(f), argnums = std::move(argnums), options](const Tensors& args) {
    const memory::InTransform here;
    Evaluated e = evaluate(f, args, check_argnums(argnums, args.size(), "jacrev"), "jacrev", false);
    prune(e);
    return std::pair(jacobian_by_rows(e, options), std::move(e.aux));
  };
}

Function jacrev(Function f, std::vector<int64_t> argnums, JacobianOptions options) {
  return [j = jacrev(without_aux(std::move(f)), std::move(argnums), options)](const Tensors& args) {
    return j(args).first;
  };
}

FunctionWithAux jacfwd(FunctionWithAux f, std::vector<int64_t> argnums, JacobianOptions options) {
  check_chunk(options, "jacfwd");
  return [f = std::move(f), argnums = std::move(argnums), options](const Tensors& args) {
    const memory::InTransform here;
    const auto checked = check_argnums(argnums, args.size(), "jacfwd");
    for (int64_t a : checked) {
      const Tensor& primal = args[static_cast<size_t>(a)];
      if (!primal.defined())
        throw ArgumentError("jacfwd: " + ordinal("argument", static_cast<size_t>(a)) + " is an undefined tensor.");
      check_differentiable(primal, "jacfwd", ordinal("argument", static_cast<size_t>(a)));
    }
    const Tensor& first = args[static_cast<size_t>(checked[0])];
    const bool one_chunk = checked.size() == 1 && first.numel() <= options.chunk_size.value_or(first.numel());
    // Draws that are the same for all columns are those of one evaluation.
    const bool replay = !one_chunk && options.randomness == Randomness::same;
    Columns c = (replay ? columns_by_replay : columns_by_evaluation)(f, args, checked, options);
    Tensors result;
    for (size_t k = 0; k < c.out_metas.size(); ++k)
      for (size_t i = 0; i < checked.size(); ++i)
        result.push_back(as_new(c.columns[i][k].movedim(0, -1).reshape(sizes_of_both(c.out_metas[k], c.in_metas[i]))));
    return std::pair(std::move(result), std::move(c.aux));
  };
}

Function jacfwd(Function f, std::vector<int64_t> argnums, JacobianOptions options) {
  return [j = jacfwd(without_aux(std::move(f)), std::move(argnums), options)](const Tensors& args) {
    return j(args).first;
  };
}

// The outputs are handed out as auxiliary tensors, before those that are.
FunctionWithAux value_and_jacobian(FunctionWithAux f, std::vector<int64_t> argnums, Mode mode,
                                   JacobianOptions options) {
  FunctionWithAux with_values = [f = std::move(f)](const Tensors& args) {
    auto [outs, aux] = f(args);
    Tensors values = outs;
    values.insert(values.end(), aux.begin(), aux.end());
    return std::pair(std::move(outs), std::move(values));
  };
  FunctionWithAux jacobian = mode == Mode::forward ? jacfwd(std::move(with_values), std::move(argnums), options)
                                                   : jacrev(std::move(with_values), std::move(argnums), options);
  return [j = std::move(jacobian)](const Tensors& args) {
    auto [blocks, values] = j(args);
    return std::pair(std::move(values), std::move(blocks));
  };
}

FunctionWithAux value_and_jacobian(Function f, std::vector<int64_t> argnums, Mode mode, JacobianOptions options) {
  return value_and_jacobian(without_aux(std::move(f)), std::move(argnums), mode, options);
}

FunctionWithAux hessian(FunctionWithAux f, std::vector<int64_t> argnums, JacobianOptions options) {
  return jacfwd(jacrev(std::move(f), argnums, options), argnums, options);
}

Function hessian(Function f, std::vector<int64_t> argnums, JacobianOptions options) {
  return jacfwd(jacrev(std::move(f), argnums, options), argnums, options);
}

}  // namespace tower::dynamic
