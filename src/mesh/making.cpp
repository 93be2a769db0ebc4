// How meshes are made: from torchrun's variables, or of a group that the program has.
//
// A tour. The processes meet in a store (mesh/store.h), each calls its name there (RollCall) with what it makes, and
// when all have, they connect, by gloo or by what the group has. What waits in there has limits of its own, or none, so
// all of it runs on a thread that is left behind when MeshOptions::timeout is over (mesh/in_time.h).
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mesh/engine.h"
#include "mesh/gloo.h"
#include "mesh/in_time.h"
#include "mesh/store.h"
#include "tower/detail/spellings.h"

namespace tower {
namespace mesh {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// For messages: a function of Mesh.
std::string of_mesh(const char* name) { return std::string("Mesh") + detail::spellings().scope + name; }

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value)
    throw MeshError(of_mesh("from_environment") + ": the variable " + name +
                    " is not set. Start the program with torchrun, or with script/launch -n PROCESSES PROGRAM.");
  return value;
}

int number_in(const char* name, int most) {
  const std::string text = variable(name);
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = !text.empty() && error == std::errc() && end == text.data() + text.size() && number >= 0;
  if (!is_number && error != std::errc::result_out_of_range)
    throw MeshError(of_mesh("from_environment") + ": " + name + " is '" + text + "', which is no number.");
  if (!is_number || number > most)
    throw MeshError(of_mesh("from_environment") + ": " + name + " is " + text + ", and the most is " +
                    std::to_string(most) + ".");
  return static_cast<int>(number);
}

// What a mesh that cannot be made was waiting for, as far as the thread that makes it has come.
class Progress {
 public:
  void is(std::string what) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return what_;
  }

 private:
  mutable std::mutex mutex_;
  std::string what_;
};
using ProgressPointer = std::shared_ptr<Progress>;
using EnginePointer = std::shared_ptr<Engine>;

// Throws MeshError where it fails, or takes longer than `timeout`.
EnginePointer made_in_time(const std::string& who, milliseconds timeout,
                           std::function<EnginePointer(const ProgressPointer&)> make) {
  const auto progress = std::make_shared<Progress>();
  try {
    const auto made = in_time<EnginePointer>(
        timeout, [progress, make = std::move(make)]() -> EnginePointer { return make(progress); });
    if (made) return *made;
  } catch (const std::exception& error) {
    throw MeshError(who + " failed, " + progress->text() + ": " + first_line(error.what()));
  }
  throw MeshError(who + ": no mesh after " + std::to_string(timeout.count()) + " ms (the mesh's timeout), " +
                  progress->text() + ".");
}

// Each process says which it is of how many, and what it makes, and waits for the others.
class RollCall {
 public:
  RollCall(StorePointer store, int64_t rank, int64_t size, const std::vector<MeshAxis>& axes)
      : store_(std::move(store)), rank_(rank), size_(size) {
    own_ = "of " + std::to_string(size) + " processes, with axes";
    for (const MeshAxis& axis : axes) own_ += " " + axis.name + " " + std::to_string(axis.size);
  }

  void hold(Clock::time_point end) {
    store_->set(key(rank_), std::vector<uint8_t>(own_.begin(), own_.end()));
    std::vector<std::string> keys;
    for (int64_t r = 0; r < size_; ++r) keys.push_back(key(r));
    try {
      store_->wait(keys, std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(end - Clock::now())));
    } catch (const MeshError&) {
      refuse(present());
      throw;
    }
    const auto values = store_->multiGet(keys);
    std::vector<std::string> said;
    for (const auto& value : values) said.emplace_back(value.begin(), value.end());
    refuse(said);
  }

 private:
  static std::string key(int64_t rank) { return "present/" + std::to_string(rank); }

  // What each said; empty where it is not there.
  std::vector<std::string> present() {
    std::vector<std::string> said;
    for (int64_t r = 0; r < size_; ++r) {
      const bool there = store_->check({key(r)});
      const auto value = there ? store_->get(key(r)) : std::vector<uint8_t>();
      said.emplace_back(value.begin(), value.end());
    }
    return said;
  }

  // Throws where one is missing, or makes another mesh.
  void refuse(const std::vector<std::string>& said) const {
    std::string missing;
    int64_t count = 0;
    for (int64_t r = 0; r < size_; ++r) {
      const std::string& theirs = said[static_cast<size_t>(r)];
      if (!theirs.empty() && theirs != own_)
        throw MeshError("the processes do not make the same mesh: here it is one " + own_ + "; in process " +
                        std::to_string(r) + " one " + theirs);
      if (theirs.empty()) missing += (count++ ? ", " : "") + std::to_string(r);
    }
    if (count > 0)
      throw MeshError((count == 1 ? "process " : "processes ") + missing + " of " + std::to_string(size_) +
                      " did not come, or makes a mesh with other axes. Are all started, with the same WORLD_SIZE, and "
                      "do all make their meshes in the same order?");
  }

  StorePointer store_;
  int64_t rank_, size_;
  std::string own_;
};

// Meshes whose axes have the same names are made in the same order everywhere. Each process numbers its own, in the
// store: of a group there are as many as were made of that group.
std::string name_of_mesh(const StorePointer& shared, int64_t rank, const std::vector<MeshAxis>& axes) {
  std::string name = "tower/";
  for (const MeshAxis& axis : axes) name += axis.name + "/";
  return name + std::to_string(shared->add(name + "made by " + std::to_string(rank), 1)) + "/";
}

// Time for the thread that makes a mesh to say itself what is missing.
Clock::time_point end_of(milliseconds timeout) {
  return Clock::now() + timeout - std::min(timeout / 10, milliseconds(300));
}

// Of processes that have a backend for these devices.
GroupOfProcesses group_of(const StorePointer& store, int rank, int size, const std::vector<at::DeviceType>& devices,
                          const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  const auto type = c10d::ProcessGroup::BackendType::GLOO;
  for (const at::DeviceType device : devices) group->setBackend(device, type, backend);
  group->setDefaultBackend(type);
  return group;
}

// A mesh has connections of its own, which it closes when it is of no more use, and which the program's messages do not
// meet: gloo ends a process whose messages meet others. Null: they cannot be made. A group that init_process_group
// ("gloo") made has gloo's for the CPU, and the same for the devices of an accelerator that need not be there.
GroupOfProcesses own_connections(c10d::ProcessGroup& group, const StorePointer& store, int64_t rank, size_t size,
                                 milliseconds timeout) {
  const std::vector<at::Device> known = group.getDeviceTypes();
  if (std::none_of(known.begin(), known.end(), [](at::Device device) { return device.is_cpu(); })) return {};
  std::vector<at::DeviceType> devices{at::kCPU};
  const auto of_cpu = group.getBackend(at::kCPU);
  for (const at::Device device : known) {
    if (device.is_cpu()) continue;
    if (group.getBackend(device.type()) != of_cpu) return {};
    devices.push_back(device.type());
  }
  const int own = static_cast<int>(rank), all = static_cast<int>(size);
  const auto backend = make_gloo_like(*of_cpu, store, own, all, timeout);
  return backend ? group_of(store, own, all, devices, backend) : GroupOfProcesses{};
}

// Meshes without connections of their own send their messages by those of the group: to threads they are one.
std::shared_ptr<Owner> owner_of(const GroupOfProcesses& group) {
  static std::mutex mutex;
  static auto& owners = *new std::map<const c10d::ProcessGroup*, std::weak_ptr<Owner>>;
  const std::lock_guard lock(mutex);
  std::erase_if(owners, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Owner> owner = owners[group.get()].lock();
  if (!owner) owners[group.get()] = owner = std::make_shared<Owner>();
  return owner;
}

// With the members of one axis.
StorePointer store_of_axis(const Engine& engine, const StorePointer& store, size_t axis) {
  return c10::make_intrusive<c10d::PrefixStore>(
      engine.axes()[axis].name + "/" + std::to_string(engine.members(axis)[0]), store);
}

EnginePointer opened(EnginePointer engine, const Secret& secret, const std::string& name,
                     const ProgressPointer& progress) {
  if (secret.given()) {
    progress->is("waiting for the others to prove that they know the secret");
    engine->prove(secret, name);
  }
  progress->is("waiting for the others' first messages");
  engine->meet();
  return engine;
}

struct Environment {
  int rank, size, port;
  std::string address;
  bool holds_store;

  EnginePointer make(const std::vector<MeshAxis>& axes, const MeshOptions& options,
                     const ProgressPointer& progress) const {
    const Clock::time_point end = end_of(options.timeout);
    const Secret secret = Secret::from_environment();
    progress->is(holds_store ? "holding the store at " + address + ":" + std::to_string(port)
                             : "waiting for the store of process 0 at " + address + ":" + std::to_string(port));
    try {
      const StorePointer shared = reach_store(address, port, holds_store, options.timeout);
      const std::string name = name_of_mesh(shared, rank, axes);
      const StorePointer store = c10::make_intrusive<MeshStore>(shared, name, secret, options.timeout);
      progress->is("waiting for the others");
      RollCall(store, rank, size, axes).hold(end);
      const auto engine = std::make_shared<Engine>(axes, rank, options, store);
      const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
      const bool here = address == "localhost" || address == "127.0.0.1";
      progress->is(interface ? "connecting to the others, by GLOO_SOCKET_IFNAME=" + std::string(interface)
                             : "connecting to the others");
      for (size_t i = 0; i < axes.size(); ++i) {
        const StorePointer of_axis = store_of_axis(*engine, store, i);
        const int own = static_cast<int>(engine->rank_along(i)), all = static_cast<int>(axes[i].size);
        const auto backend = make_gloo(of_axis, own, all, options.timeout, here ? address : "");
        engine->add(i, group_of(of_axis, own, all, {at::kCPU}, backend));
      }
      return opened(engine, secret, name, progress);
    } catch (...) {
      forget_store(address, port);
      throw;
    }
  }
};

EnginePointer make_of_group(const GroupOfProcesses& group, const std::vector<MeshAxis>& axes,
                            const MeshOptions& options, const ProgressPointer& progress) {
  const Clock::time_point end = end_of(options.timeout);
  const Secret secret = Secret::from_environment();
  progress->is("waiting for the store of the group");
  const StorePointer shared = group->getStore();
  const std::string name = name_of_mesh(shared, group->getRank(), axes);
  const StorePointer store = c10::make_intrusive<MeshStore>(shared, name, secret, options.timeout);
  progress->is("waiting for the others");
  RollCall(store, group->getRank(), group->getSize(), axes).hold(end);
  const auto engine = std::make_shared<Engine>(axes, group->getRank(), options, store, group);
  progress->is("connecting to the others");
  for (size_t i = 0; i < axes.size(); ++i) {
    const std::vector<int64_t> members = engine->members(i);
    const StorePointer of_axis = store_of_axis(*engine, store, i);
    GroupOfProcesses processes =
        own_connections(*group, of_axis, engine->rank_along(i), members.size(), options.timeout);
    if (!processes) engine->share(owner_of(group));
    if (!processes && axes.size() == 1) processes = group;
    if (!processes)
      processes = group->splitGroup({members.begin(), members.end()}, options.timeout, std::nullopt,
                                    name + axes[i].name + "/" + std::to_string(members[0]), std::nullopt);
    engine->add(i, processes);
  }
  return opened(engine, secret, name, progress);
}

}  // namespace
}  // namespace mesh

Mesh Mesh::from_environment(std::vector<MeshAxis> axes, MeshOptions options) {
  constexpr int kMost = std::numeric_limits<int>::max(), kMostPort = 65535;
  mesh::Environment from{mesh::number_in("RANK", kMost), mesh::number_in("WORLD_SIZE", kMost),
                         mesh::number_in("MASTER_PORT", kMostPort), mesh::variable("MASTER_ADDR"), false};
  if (from.rank >= from.size)
    throw MeshError(mesh::of_mesh("from_environment") + ": RANK is " + std::to_string(from.rank) + ", but there are " +
                    std::to_string(from.size) + " processes (WORLD_SIZE), numbered from 0.");
  axes = mesh::sized(std::move(axes), from.size);
  // torchrun may hold the store itself.
  const char* held = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  from.holds_store = from.rank == 0 && !(held && std::string_view(held) == "True");
  const std::string who = mesh::of_mesh("from_environment") + " (process " + std::to_string(from.rank) + " of " +
                          std::to_string(from.size) + " at " + from.address + ":" + std::to_string(from.port) + ")";
  return Mesh(mesh::made_in_time(
      who, options.timeout, [=](const mesh::ProgressPointer& progress) { return from.make(axes, options, progress); }));
}

Mesh Mesh::from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::vector<MeshAxis> axes,
                      MeshOptions options) {
  if (!group) throw MeshError(mesh::of_mesh("from_group") + ": there is no group.");
  axes = mesh::sized(std::move(axes), group->getSize());
  const std::string who = mesh::of_mesh("from_group") + " (process " + std::to_string(group->getRank()) + " of " +
                          std::to_string(group->getSize()) + ")";
  return Mesh(mesh::made_in_time(who, options.timeout, [=](const mesh::ProgressPointer& progress) {
    return mesh::make_of_group(group, axes, options, progress);
  }));
}

}  // namespace tower
