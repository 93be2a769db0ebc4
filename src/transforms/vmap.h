// One vmap level over a whole batch: what vmap and the Jacobians share.
#pragma once

#include "transforms/surface.h"

namespace tower {

class SharedDraws;

/// Runs `f` once under a vmap level. `dims`: non-negative mapped dimensions; aux comes back with the batch in front.
/// Chunks of one batch whose examples share random numbers are given the same `shared_draws`.
std::pair<Tensors, Tensors> map_once(const dynamic::FunctionWithAux& f, const Tensors& args, const dynamic::Dims& dims,
                                     int64_t batch_size, const dynamic::Dims& out_dims, Randomness randomness,
                                     const char* label, SharedDraws* shared_draws = nullptr);

/// Runs `f` under a jvp level named `label`: outputs, tangents (zeros materialised), aux.
std::tuple<Tensors, Tensors, Tensors> push_forward(const dynamic::FunctionWithAux& f, const Tensors& primals,
                                                   const Tensors& tangents, const char* label,
                                                   const JvpOptions& options = {});

}  // namespace tower
