// Groups of c10d that a test makes itself.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mesh/gloo.h"

namespace processes {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

/// Of the processes of torchrun's environment those that call it, all with the same name. `around`: makes the backend
/// of gloo's.
inline Group group_of(
    int rank, int size, const std::string& name, std::chrono::seconds timeout,
    const std::function<Backend(Backend)>& around = [](Backend gloo) { return gloo; }) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = std::string_view(std::getenv("RANK")) == "0";
  options.waitWorkers = false;
  options.multiTenant = true;
  const auto shared = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, shared);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                    around(tower::mesh::make_gloo(store, rank, size, timeout, "127.0.0.1")));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace processes
