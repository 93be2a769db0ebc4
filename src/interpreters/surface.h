// What every transform does at its surface: check what it was given, put arguments in, take results out.
#pragma once

#include <string>

#include "core/wrapper.h"
#include "tower/dynamic.h"

namespace tower {

class Vjp;
using dynamic::Tensors;

/// What comes out of `level` for the result `t` of a function that was given `inputs` there. What is one of them, or a
/// view of one, is the caller's tensor, or that view of it.
Tensor value_outside(const Tensor& t, const Level& level, const Tensors& inputs);

/// Throws UnsupportedError unless `t` is something that transforms can carry (dense, strided, unnamed, not quantized).
void check_supported(const Tensor& t, const char* transform, const std::string& what);
/// Throws where an output is undefined or cannot be carried.
void check_outputs(const Tensors& outs, const char* transform);

/// Throws DerivativeError unless `t` is of a floating point or complex dtype.
void check_differentiable(const Tensor& t, const char* transform, const std::string& what);

/// Throws ArgumentError unless `given` (a tangent or cotangent; undefined: zero) fits `like`.
void check_direction(const Tensor& given, const Meta& like, const char* transform, const std::string& what);

std::string ordinal(const char* what, size_t index);

/// Whether one of `tensors` is `w`.
bool is_among(const Tensors& tensors, const Wrapper& w);

/// `t`, or a copy of it where elements share memory because a dimension was expanded.
Tensor not_expanded(Tensor t);

/// A derivative as a tensor that the calling code might have made: no view of what the rules made it from, in memory
/// of its own, and inside of a function one of that function's tensors, which takes any write.
Tensor as_new(Tensor derivative);

/// After the function: writes what it put into its arguments in place to the caller's tensors, which the arguments have
/// as their values from then on. `inputs` are the wrappers of `level` that the function was given, `originals` the
/// caller's tensors, `dims` their mapped dimensions under vmap. False if nothing was written; otherwise what was taken
/// out of the level before may be out of date. Throws MutationError, before anything is changed, if the function
/// changed the shape of an argument, or wrote to one that shares memory with another.
bool write_back(const Level& level, const Tensors& inputs, const Tensors& originals, const dynamic::Dims& dims = {});
/// The numbers of the arguments that the function wrote to; throws as write_back does.
std::vector<size_t> check_writes(const Level& level, const Tensors& inputs, const Tensors& originals);
/// Throws MutationError if argument `i`, which was written to, shares memory with another.
void check_shared(const Tensors& originals, size_t i, const std::string& transform);

/// Argument numbers, negative ones resolved, checked for range and repetition.
std::vector<int64_t> check_argnums(std::vector<int64_t> argnums, size_t num_args, const char* transform);

/// An argument or a result without its value: with how it lies in memory, for a derivative of zero lies like that.
struct Outline : Meta {
  Sizes strides;

  explicit Outline(const Tensor& t) : Meta(t), strides(t.strides()) {}
  Tensor zeros() const;
};

/// Pullback of an evaluated function: shared by vjp, grad and jacrev.
struct Evaluated {
  Tensors outs;  // values
  Tensors aux;
  c10::intrusive_ptr<c10::intrusive_ptr_target> tape;
  std::vector<int64_t> in_slots, out_slots;
  std::vector<Outline> in_metas, out_metas;
};

/// Runs `f` with the primals `argnums` tracked.
Evaluated evaluate(const dynamic::FunctionWithAux& f, const Tensors& primals, const std::vector<int64_t>& argnums,
                   const char* label, bool forward);
/// The same on a level that was made for it.
Evaluated evaluate(const dynamic::FunctionWithAux& f, const Tensors& primals, const std::vector<int64_t>& argnums,
                   const c10::intrusive_ptr<Vjp>& level);
/// Drops from the tape what the outputs do not depend on: for pullbacks that are kept.
void prune(const Evaluated& e);
/// Cotangents of the tracked primals (undefined: zero).
Tensors pull_back(const Evaluated& e, const Tensors& cotangents, const char* label, bool consume);
/// Tangents of the outputs (undefined: zero) from those of the tracked primals, of what was evaluated `forward`.
Tensors push_forward(const Evaluated& e, const Tensors& tangents);
/// As above with zeros materialised, in tensors that callers can write to.
Tensors with_zeros(Tensors tensors, const std::vector<Outline>& metas);

dynamic::FunctionWithAux without_aux(dynamic::Function f);

}  // namespace tower
