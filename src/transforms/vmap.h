// One vmap level over a whole batch: what vmap and the Jacobians share.
#pragma once

#include "interpreters/surface.h"

namespace tower {

class Vmap;

/// Runs `f` once under `level`, which was made for it. `dims`: non-negative mapped dimensions; aux comes back with the
/// batch in front.
std::pair<Tensors, Tensors> map_once(const dynamic::FunctionWithAux& f, const Tensors& args, const dynamic::Dims& dims,
                                     const dynamic::Dims& out_dims, const c10::intrusive_ptr<Vmap>& level);
std::pair<Tensors, Tensors> map_once(const dynamic::FunctionWithAux& f, const Tensors& args, const dynamic::Dims& dims,
                                     int64_t batch_size, const dynamic::Dims& out_dims, Randomness randomness,
                                     const char* label);

/// Runs `f` under a jvp level named `label`: outputs, tangents (zeros materialised), aux.
std::tuple<Tensors, Tensors, Tensors> push_forward(const dynamic::FunctionWithAux& f, const Tensors& primals,
                                                   const Tensors& tangents, const char* label,
                                                   const JvpOptions& options = {});

}  // namespace tower
