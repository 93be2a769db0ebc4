#if __has_include(<torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>)
#if __has_include(<gloo/transport/device.h>)
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include <cstdlib>

#include "mesh/gloo.h"
#include "tower/errors.h"

namespace tower::mesh {

#ifdef USE_C10D_GLOO
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, const std::string& host) {
  using c10d::ProcessGroupGloo;
  const auto options = ProcessGroupGloo::Options::create(timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface       ? ProcessGroupGloo::createDeviceForInterface(interface)
                             : !host.empty() ? ProcessGroupGloo::createDeviceForHostname(host)
                                             : ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
}
#else
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>&, int, int, std::chrono::milliseconds,
                                            const std::string&) {
  throw MeshError(
      "Mesh::from_environment: Tower was built without the headers of gloo, LibTorch's engine for CPUs. Install them "
      "(Debian: libgloo-dev) and build Tower again, or make a process group yourself and use Mesh::from_group.");
}
#endif

}  // namespace tower::mesh
#endif
