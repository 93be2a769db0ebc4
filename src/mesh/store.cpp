#include "mesh/store.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tuple>

#include "mesh/engine.h"
#include "tower/mesh.h"

namespace tower::mesh {
namespace {

// A socket that is bound to the address, one of this machine's. Negative: it cannot be, as where the port is taken, by
// another part of this program among others, or where the name stands for another machine that passes messages on.
int bound_socket(const std::string& address, int port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return -1;
  int bound = -1;
  for (const addrinfo* each = found; each && bound < 0; each = each->ai_next) {
    const int socket = ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
    const int on = 1;
    if (socket < 0) continue;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(socket, each->ai_addr, each->ai_addrlen) == 0) bound = socket;
    else ::close(socket);
  }
  ::freeaddrinfo(found);
  return bound;
}

StorePointer connect(const std::string& address, int port, bool holds, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = holds;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;
  // Of a store that listens everywhere, c10d asks for the names of all who connect, which takes 5 s where the answer of
  // a name server is lost.
  if (const int socket = holds ? bound_socket(address, port) : -1; socket >= 0) options.masterListenFd = socket;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

// Who is first connects, without a lock, and others that come meanwhile wait for that one.
using Key = std::tuple<pid_t, std::string, int>;  // of a process: those that it forks have not its threads
struct StoreConnections {
  std::mutex mutex;
  std::map<Key, std::shared_future<StorePointer>> stores;
  std::vector<StorePointer> held;  // until the process ends: others may make their next mesh while it has its last
};
StoreConnections& connections() {
  static auto& all = *new StoreConnections;
  return all;
}

}  // namespace

StorePointer reach_store(const std::string& address, int port, bool holds, std::chrono::milliseconds timeout) {
  StoreConnections& all = connections();
  const Key key{::getpid(), address, port};
  std::promise<StorePointer> promise;
  std::shared_future<StorePointer> store;
  bool first = false;
  {
    const std::lock_guard lock(all.mutex);
    const auto [found, is_new] = all.stores.try_emplace(key);
    if (is_new) found->second = promise.get_future().share();
    store = found->second;
    first = is_new;
  }
  if (!first) return store.get();
  try {
    promise.set_value(connect(address, port, holds, timeout));
  } catch (...) {
    promise.set_exception(std::current_exception());
    forget_store(address, port);
  }
  if (!holds) return store.get();
  const StorePointer result = store.get();
  const std::lock_guard lock(all.mutex);
  all.held.push_back(result);
  return result;
}

void forget_store(const std::string& address, int port) {
  std::shared_future<StorePointer> forgotten;  // closed without the lock
  const std::lock_guard lock(connections().mutex);
  const auto found = connections().stores.find({::getpid(), address, port});
  if (found == connections().stores.end()) return;
  forgotten = found->second;
  connections().stores.erase(found);
}

// ---- a mesh's part -------------------------------------------------------------------------------------------------

namespace {

// What stands before a value: whether there is a code.
constexpr uint8_t kPlain = 'p', kCoded = 'c';

std::vector<std::string> with_prefix(const std::string& prefix, const std::vector<std::string>& keys) {
  std::vector<std::string> result;
  for (const std::string& key : keys) result.push_back(prefix + key);
  return result;
}

// What `f` asks of the store. Of one that is gone c10d says that a connection was closed, not whose.
template <class F>
auto answer(F&& f) {
  try {
    return f();
  } catch (const c10::DistStoreError&) {
    throw;  // it answers, but not with what was asked for
  } catch (const std::exception& error) {
    throw MeshError("the mesh's store does not answer: process 0, or torchrun, which holds it, has ended (" +
                    first_line(error.what()) + ")");
  }
}

std::vector<uint8_t> sealed(const Secret& secret, const std::string& key, const std::vector<uint8_t>& value) {
  std::vector<uint8_t> result{secret.given() ? kCoded : kPlain};
  if (secret.given()) {
    const std::string code = secret.code_of("value/" + key + "\n" + std::string(value.begin(), value.end()));
    result.insert(result.end(), code.begin(), code.end());
  }
  result.insert(result.end(), value.begin(), value.end());
  return result;
}

}  // namespace

std::vector<uint8_t> MeshStore::opened(const std::string& key, const std::vector<uint8_t>& sealed) const {
  const bool coded = !sealed.empty() && sealed[0] == kCoded;
  if (coded && !secret_.given())
    throw MeshError("another process has a secret (TOWER_MESH_SECRET), and this one has none");
  if (!coded && secret_.given())
    throw MeshError(
        "somebody who has no secret wrote to the mesh's store: a stranger, or a process of the mesh without "
        "TOWER_MESH_SECRET");
  const size_t begin = coded ? 1 + Secret::kCode : 1;
  if (sealed.size() < begin) throw MeshError("somebody else wrote to the mesh's store");
  const std::vector<uint8_t> value(sealed.begin() + static_cast<ptrdiff_t>(begin), sealed.end());
  if (coded && !secret_.is_code_of(std::string(sealed.begin() + 1, sealed.begin() + static_cast<ptrdiff_t>(begin)),
                                   "value/" + name_ + key + "\n" + std::string(value.begin(), value.end())))
    throw MeshError(
        "somebody with another secret wrote to the mesh's store: a stranger, or a process of the mesh whose "
        "TOWER_MESH_SECRET differs");
  return value;
}

c10::intrusive_ptr<c10d::Store> MeshStore::clone() {
  return c10::make_intrusive<MeshStore>(shared_, name_, secret_, getTimeout());
}

void MeshStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  answer([&] { return shared_->set(name_ + key, sealed(secret_, name_ + key, value)); });
}

std::vector<uint8_t> MeshStore::get(const std::string& key) {
  wait({key});
  return opened(key, answer([&] { return shared_->get(name_ + key); }));
}

int64_t MeshStore::add(const std::string& key, int64_t value) {
  return answer([&] { return shared_->add(name_ + key, value); });
}

bool MeshStore::check(const std::vector<std::string>& keys) {
  return answer([&] { return shared_->check(with_prefix(name_, keys)); });
}

void MeshStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::chrono::microseconds pause{100};
  for (; !check(keys); pause = std::min(2 * pause, std::chrono::microseconds(10'000))) {
    if (std::chrono::steady_clock::now() > end) throw MeshError("what was awaited did not come into the mesh's store");
    std::this_thread::sleep_for(pause);
  }
}

std::vector<std::vector<uint8_t>> MeshStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  std::vector<std::vector<uint8_t>> values;
  if (hasExtendedApi()) values = answer([&] { return shared_->multiGet(with_prefix(name_, keys)); });
  else
    for (const std::string& key : keys) values.push_back(answer([&] { return shared_->get(name_ + key); }));
  for (size_t k = 0; k < keys.size(); ++k) values[k] = opened(keys[k], values[k]);
  return values;
}

void MeshStore::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
  for (size_t k = 0; k < keys.size(); ++k) set(keys[k], values[k]);
}

}  // namespace tower::mesh
