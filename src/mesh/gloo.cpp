#include "mesh/gloo.h"

#include <cstdlib>

#include "tower/mesh.h"
#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

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

c10::intrusive_ptr<c10d::Backend> make_gloo_like(c10d::Backend& given, const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, std::chrono::milliseconds timeout) {
  using c10d::ProcessGroupGloo;
  auto* gloo = dynamic_cast<ProcessGroupGloo*>(&given);
  if (!gloo) return {};
  const auto options = ProcessGroupGloo::Options::create(timeout);
  options->devices = gloo->getOptions()->devices;
  options->threads = gloo->getOptions()->threads;
  return c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
}
#else
c10::intrusive_ptr<c10d::Backend> make_gloo_like(c10d::Backend&, const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                 std::chrono::milliseconds) {
  return {};
}
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>&, int, int, std::chrono::milliseconds,
                                            const std::string&) {
  throw MeshError(
      "Tower was built without gloo, LibTorch's engine for CPUs: its headers were missing, or "
      "this LibTorch has none. Install the headers (Debian: libgloo-dev) and build Tower again, or make a process "
      "group yourself and make the mesh by from_group.");
}
#endif

}  // namespace tower::mesh
