// The transforms over flat lists of tensors: the form that language bindings, plugins and the typed layer
// (tower/transforms.h) build on. Functions are plain callables; nothing here depends on templates.
//
//   namespace td = tower::dynamic;
//   td::Function per_example = td::vmap(td::grad(loss, {0}), {std::nullopt, 0}, {0});
//
// An undefined tensor stands for a zero wherever tangents or cotangents are passed in. What comes out is always
// defined: zeros are materialised at the surface.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace tower {

/// What a random operator means under `vmap`.
enum class Randomness {
  error,      ///< refuse it, naming the operator (the default: choose on purpose)
  different,  ///< every example draws for itself
  same,       ///< one draw is shared by all examples
};

/// How `vmap` maps.
struct VmapOptions {
  /// What a random operator means.
  Randomness randomness = Randomness::error;
  /// Examples evaluated at once; the whole batch when empty. Bounds peak memory.
  std::optional<int64_t> chunk_size = std::nullopt;
};

/// How `vjp` records.
struct VjpOptions {
  /// Lets the pullback free what was recorded as it runs. Less memory; it can then be called once.
  bool consume = false;
};

/// What `jvp` accepts.
struct JvpOptions {
  /// An output that does not depend on the primals is a DerivativeError instead of a zero derivative.
  bool strict = false;
};

/// How Jacobians and Hessians are computed.
struct JacobianOptions {
  /// Rows (jacrev) or columns (jacfwd) computed at once; all of them when empty. Bounds peak memory.
  std::optional<int64_t> chunk_size = std::nullopt;
  /// What a random operator of the function means in forward mode, where the columns of a chunk are mapped over.
  Randomness randomness = Randomness::same;
};

namespace dynamic {

/// Arguments, outputs, tangents: tensors by position.
using Tensors = std::vector<at::Tensor>;
/// What transforms take and give.
using Function = std::function<Tensors(const Tensors&)>;
/// A function that also returns auxiliary tensors, which are handed through and not differentiated.
using FunctionWithAux = std::function<std::pair<Tensors, Tensors>(const Tensors&)>;
/// One entry per argument (or output): the dimension that is mapped, negative counts from the end; empty: not mapped.
using Dims = std::vector<std::optional<int64_t>>;

/// Maps `f` over a dimension of its arguments, which `in_dims` has for each. Inside, `f` sees one example, without that
/// dimension. Every output gets its batch dimension at
/// `out_dims` (one entry per output, or a single entry for all outputs); an empty entry demands that the output does
/// not depend on the example. Throws ArgumentError where sizes differ, a dimension is out of range, or nothing is
/// mapped.
Function vmap(Function f, Dims in_dims, Dims out_dims, VmapOptions options = {});

/// Gradients of the first output of `f`, a real scalar without dimensions, with respect to the arguments `argnums`: one
/// for each of these, of its shape and dtype. Throws DerivativeError where the output is another, or one of
/// these arguments is of integers.
Function grad(Function f, std::vector<int64_t> argnums);
/// As above for the `argnums` of an `f` with auxiliary tensors, which are the second of the pair.
FunctionWithAux grad(FunctionWithAux f, std::vector<int64_t> argnums);
/// The gradients by `argnums`, as of `grad`, and, as the second of the pair, all outputs of `f` (the scalar first).
FunctionWithAux grad_and_value(Function f, std::vector<int64_t> argnums);

/// Outputs of `f` at `primals`, and the pullback: cotangents of the outputs (undefined: zero) to those of the primals.
/// The pullback can be called any number of times, also under other transforms, unless it was asked to consume its
/// tape: then a second call throws ConsumedError.
std::pair<Tensors, Function> vjp(Function f, const Tensors& primals, VjpOptions options = {});
/// The same of an `f` with auxiliary tensors, which come last.
std::tuple<Tensors, Function, Tensors> vjp(FunctionWithAux f, const Tensors& primals);

/// Outputs of `f` at `primals`, and their derivatives along `tangents` (undefined: zero), which have the primals'
/// shapes and dtypes: ArgumentError where they do not.
std::pair<Tensors, Tensors> jvp(Function f, const Tensors& primals, const Tensors& tangents, JvpOptions options = {});
/// The same of an `f` with auxiliary tensors, which come last.
std::tuple<Tensors, Tensors, Tensors> jvp(FunctionWithAux f, const Tensors& primals, const Tensors& tangents,
                                          JvpOptions options = {});

/// Outputs of `f` at `primals`, and the pushforward: a linear function of the tangents that reuses what the one
/// evaluation of `f` recorded.
std::pair<Tensors, Function> linearize(Function f, const Tensors& primals);

/// Jacobians of `f`, by rows (reverse mode): for each output in turn, one tensor for each of `argnums`, of the output's
/// shape followed by the argument's. Throws DerivativeError where an output or argument is of integers, or an
/// output is complex and an argument real.
Function jacrev(Function f, std::vector<int64_t> argnums, JacobianOptions options = {});
/// The same of an `f` with auxiliary tensors, which are the second of the pair.
FunctionWithAux jacrev(FunctionWithAux f, std::vector<int64_t> argnums, JacobianOptions options = {});

/// Jacobians of `f` by the arguments `argnums`, by columns (forward mode); the same layout as `jacrev`.
/// Throws DerivativeError where an output or argument is of integers, or an argument is complex and an output real.
Function jacfwd(Function f, std::vector<int64_t> argnums, JacobianOptions options = {});
/// The same of an `f` with auxiliary tensors, which are the second of the pair.
FunctionWithAux jacfwd(FunctionWithAux f, std::vector<int64_t> argnums, JacobianOptions options = {});

/// Second derivatives of `f` (forward over reverse): for each output, for each of `argnums` i, for each of `argnums` j,
/// a tensor of the output's shape followed by those of the arguments i and j.
Function hessian(Function f, std::vector<int64_t> argnums, JacobianOptions options = {});
/// The same of an `f` with auxiliary tensors, which are the second of the pair.
FunctionWithAux hessian(FunctionWithAux f, std::vector<int64_t> argnums, JacobianOptions options = {});

/// Hessian-vector products of the real scalar first output of `f`: gradients at `primals`, and their derivatives along
/// `tangents` (forward over reverse), both for every primal.
std::pair<Tensors, Tensors> hvp(Function f, const Tensors& primals, const Tensors& tangents);

}  // namespace dynamic
}  // namespace tower
