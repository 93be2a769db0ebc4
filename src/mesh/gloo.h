// LibTorch's engine for CPUs. Its header needs gloo's (Debian: libgloo-dev), which is why it is included in one place.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tower::mesh {

/// Throws MeshError where Tower was built without gloo's headers. `host`: a name of this machine that the others know;
/// empty: LibTorch finds one.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, const std::string& host);
/// Connections of its own between processes of `given`, by the same devices; null if that is not gloo's, or Tower does
/// not know gloo.
c10::intrusive_ptr<c10d::Backend> make_gloo_like(c10d::Backend& given, const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, std::chrono::milliseconds timeout);

}  // namespace tower::mesh
