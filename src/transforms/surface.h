// What every transform does at its surface: check what it was given, put arguments in, take results out.
#pragma once

#include <string>

#include "core/wrapper.h"
#include "tower/dynamic.h"

namespace tower {

using dynamic::Tensors;

/// The value of `t` below `level` (a constant's or a tracked value's), or `t` itself.
inline Tensor value_below(const Tensor& t, const Level& level) {
  Wrapper* w = as_wrapper_of(t, level);
  return w ? w->payload().value : t;
}

/// Throws where an output is undefined or cannot be carried.
void check_outputs(const Tensors& outs, const char* transform);

/// Throws DerivativeError unless `t` is of a floating point or complex dtype.
void check_differentiable(const Tensor& t, const char* transform, const std::string& what);

/// Throws ArgumentError unless `given` (a tangent or cotangent; undefined: zero) fits `like`.
void check_direction(const Tensor& given, const Meta& like, const char* transform, const std::string& what);

std::string ordinal(const char* what, size_t index);

/// Throws MutationError if the function changed the shape of an argument in place, or wrote to one that shares memory
/// with another: `inputs` are the wrappers that it was given, `originals` the caller's tensors.
void check_writes(const Tensors& inputs, const Tensors& originals);

/// After the level has ended: writes what the function put into its arguments in place to the caller's tensors.
/// `inputs` are the wrappers the function was given, `originals` the caller's tensors.
void write_back(const Tensors& inputs, const Tensors& originals);

/// Argument numbers, negative ones resolved, checked for range and repetition.
std::vector<int64_t> check_argnums(std::vector<int64_t> argnums, size_t num_args, const char* transform);

/// Pullback of an evaluated function: shared by vjp, grad and jacrev.
struct Evaluated {
  Tensors outs;  // values
  Tensors aux;
  c10::intrusive_ptr<c10::intrusive_ptr_target> tape;
  std::vector<int64_t> in_slots, out_slots;
  std::vector<Meta> in_metas, out_metas;
};

/// Runs `f` with the primals `argnums` tracked.
Evaluated evaluate(const dynamic::FunctionWithAux& f, const Tensors& primals, const std::vector<int64_t>& argnums,
                   const char* label, bool forward);
/// Drops from the tape what the outputs do not depend on: for pullbacks that are kept.
void prune(const Evaluated& e);
/// Cotangents of the tracked primals (undefined: zero).
Tensors pull_back(const Evaluated& e, const Tensors& cotangents, const char* label, bool consume);
/// Tangents of the outputs (undefined: zero) from those of the tracked primals, of what was evaluated `forward`.
Tensors push_forward(const Evaluated& e, const Tensors& tangents);
/// As above with zeros materialised.
Tensors with_zeros(Tensors tensors, const std::vector<Meta>& metas);

dynamic::FunctionWithAux without_aux(dynamic::Function f);

}  // namespace tower
