// The mesh on LibTorch's distributed engine, c10d.
//
// A tour. Engine is the mesh's state: it makes a C10dGroup for each axis, and knows how a process finds out what went
// wrong with another. A collective begins with a message from each process to all (mesh/opening.h), which says what it
// is and has room for little ones. What is larger follows in one call of the group's backend for each dtype (sums and
// extrema: mesh/reduction.h), or for all of it (gather, in bytes). Exchange has a message for each process that is to
// have something (mesh/parcel.h). When one fails, or the mapped function throws, the process writes what happened on
// the board, a store that all can read, and then closes its connections. So the others' collectives fail at once,
// whatever their timeout, and they read there whom it was. Nothing is repaired: the mesh is of no more use, but the
// process can go on.
#include <ATen/Functions.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/level.h"
#include "core/operator.h"
#include "mesh/board.h"
#include "mesh/gloo.h"
#include "mesh/mesh.h"
#include "mesh/owner.h"
#include "mesh/parcel.h"
#include "mesh/reduction.h"
#include "tower/errors.h"

namespace tower {
namespace {

using c10d::Store;
using mesh::as_bytes;
using mesh::Board;
using mesh::bytes_in;
using mesh::Extremum;
using mesh::Parcel;
using mesh::StorePointer;
using mesh::Tensors;
using std::chrono::milliseconds;
using GroupOfProcesses = c10::intrusive_ptr<c10d::ProcessGroup>;

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, std::min(text.find('\n'), text.find("Exception raised from"))));
}

class Engine;

class C10dGroup final : public mesh::Group {
 public:
  C10dGroup(Engine& engine, std::string axis, int64_t rank, std::vector<int64_t> members, GroupOfProcesses processes)
      : Group(std::move(axis), rank, static_cast<int64_t>(members.size())),
        engine_(engine),
        members_(std::move(members)),
        wire_{std::move(processes), size()} {}

  mesh::Owner& owner() override;
  Tensors sum(const char* name, const Tensors& tensors) override { return begin_sum(name, tensors)->wait(); }
  std::unique_ptr<Unfinished> begin_sum(const char* name, const Tensors& tensors) override;
  Tensors extremum(const char* name, Extremum which, const Tensors& tensors) override;
  Tensors gather(const char* name, const Tensors& parts, const std::vector<int64_t>& sizes) override;
  void exchange(const char* name, const Tensors& parts, const std::vector<Tensors>& give,
                const std::vector<Tensors>& take) override;
  void check_agreement(const char* what, const Tensors& values) override;
  void fail(const std::string& why) noexcept override;

  void close() { wire_.processes.reset(); }

 private:
  class Begun;
  std::unique_ptr<Begun> begin(const char* name, mesh::Reduction::Kind kind, const Tensors& tensors);
  // Whether the processes' tensors are alike, or parts whose first dimension is each process's own.
  enum class Alike : uint8_t { whole, rows };
  // Runs a collective on tensors like `like`, and waits for it.
  template <class Start>
  void run(const char* name, const Tensors& like, Alike alike, Start&& start);
  // Runs a part of one.
  template <class F>
  void guarded(const char* name, F&& f);
  void go_on();
  void compare(const char* name, const Tensors& like, Alike alike);
  [[noreturn]] void refuse_differing(const char* name) const;
  Tensor gather_bytes(const Tensor& bytes);

  Engine& engine_;
  std::vector<int64_t> members_;
  mesh::Wire wire_;
  int64_t number_ = 0;      // of collectives
  Begun* begun_ = nullptr;  // the latest, of which only the first message was sent
};

class Engine final : public Mesh::State {
 public:
  /// `of`: the group that it is of, whose store others may still ask when this process has its mesh.
  Engine(std::vector<MeshAxis> axes, int64_t rank, MeshOptions options, StorePointer store, GroupOfProcesses of = {})
      : State(std::move(axes), rank, options), of_(std::move(of)), store_(std::move(store)), board_(store_, rank) {}

  // Process 0 has the board, and stays until the others have read it.
  ~Engine() override {
    try {
      if (!broken_.empty() && rank() == 0) board_.wait_until_told(size());
    } catch (const std::exception&) {  // nobody is left who could be told
    }
  }

  void add(size_t axis, GroupOfProcesses processes) {
    groups_.push_back(
        std::make_unique<C10dGroup>(*this, axes()[axis].name, rank_along(axis), members(axis), processes));
  }

  mesh::Owner& owner() { return *owner_; }
  /// Waits until all processes are there: who went on and ended would close connections that others are still making.
  void meet() {
    for (const auto& group : groups_) group->gather_number("the mesh's first message", rank());
  }
  void share(std::shared_ptr<mesh::Owner> owner) { owner_ = std::move(owner); }
  const std::string& broken() const { return broken_; }
  /// Says so on the board, and closes all connections.
  void give_up(const std::string& on_board, const std::string& why) {
    if (!broken_.empty()) return;
    broken_ = why;
    board_.write(on_board);
    for (const auto& group : groups_) group->close();
    if (Board::is_reason(on_board)) board_.write_told();
  }
  /// Who of `ranks` is to blame for a collective that failed.
  std::string blame(const std::vector<int64_t>& ranks) const {
    const auto found = board_.read(ranks);
    board_.write_told();
    if (!found) return "the process that holds the mesh's store, process 0, does not answer";
    std::string missing;
    int64_t count = 0;
    for (const int64_t r : ranks) {
      if (r == rank()) continue;
      const auto text = found->find(r);
      if (text != found->end() && Board::is_reason(text->second))
        return "process " + std::to_string(r) + " gave up: " + text->second.substr(1);
      if (text != found->end()) continue;
      missing += (count++ ? ", " : "") + std::to_string(r);
    }
    if (missing.empty()) return "the processes lost each other";
    return (count == 1 ? "process " : "processes ") + missing +
           " of the mesh did not answer: died, hangs, was stopped, or " + "is not in this collective";
  }

 private:
  mesh::Group& group(size_t axis) override { return *groups_[axis]; }

  GroupOfProcesses of_;
  StorePointer store_;
  Board board_;
  std::shared_ptr<mesh::Owner> owner_ = std::make_shared<mesh::Owner>();
  std::vector<std::unique_ptr<C10dGroup>> groups_;
  std::string broken_;
};

mesh::Owner& C10dGroup::owner() { return engine_.owner(); }

template <class Start>
void C10dGroup::run(const char* name, const Tensors& like, Alike alike, Start&& start) {
  guarded(name, [&] {
    ++number_;
    go_on();
    if (engine_.options().check) compare(name, like, alike);
    start();
  });
}

template <class F>
void C10dGroup::guarded(const char* name, F&& f) {
  const mesh::Use use(*this, name);
  if (!engine_.broken().empty())
    throw MeshError(where(name) + ": the mesh is of no more use since " + engine_.broken() + ".");
  DispatchGuard keys;
  keys.see_no_operator();
  keys.skip_libtorch_autograd();
  try {
    use.check();
    f();
    use.check();
  } catch (const MeshError& error) {
    engine_.give_up(Board::reason(error.what()), error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string what = first_line(error.what());
    engine_.give_up(Board::lost(), where(name) + " failed");
    throw MeshError(where(name) + ": " + engine_.blame(members_) + ". LibTorch says: " + what +
                    (engine_.options().check ? "" : " (TOWER_MESH_CHECK=1 compares what processes call.)"));
  }
}

void C10dGroup::fail(const std::string& why) noexcept {
  try {
    engine_.give_up(Board::reason(first_line(why)), "this process gave up: " + first_line(why));
  } catch (const std::exception&) {  // the others find out by their timeout
  }
}

// A sum or extremum on its way. What did not fit into its first message is sent before the group's next collective
// begins, or when it is waited for: at the same place in all processes.
class C10dGroup::Begun final : public Unfinished {
 public:
  Begun(C10dGroup& group, const char* name, mesh::Reduction::Kind kind, const Tensors& tensors)
      : group_(group), use_(group, name), name_(name), reduction_(group.wire_, name, kind, tensors) {}
  ~Begun() override {
    if (group_.begun_ == this) group_.begun_ = nullptr;
  }

  void go_on() {
    group_.begun_ = nullptr;
    if (!reduction_.go_on()) group_.refuse_differing(name_);
  }
  std::vector<Tensor> wait() override {
    Tensors results;
    group_.guarded(name_, [&] {
      if (group_.begun_ == this) go_on();
      results = reduction_.finish();
    });
    return results;
  }

 private:
  C10dGroup& group_;
  mesh::Use use_;
  const char* name_;
  mesh::Reduction reduction_;
};

// What has begun before something else does.
void C10dGroup::go_on() {
  if (begun_) begun_->go_on();
}

std::unique_ptr<C10dGroup::Begun> C10dGroup::begin(const char* name, mesh::Reduction::Kind kind,
                                                   const Tensors& tensors) {
  std::unique_ptr<Begun> begun;
  run(name, tensors, Alike::whole, [&] {
    begun = std::make_unique<Begun>(*this, name, kind, tensors);
    begun_ = begun.get();
  });
  return begun;
}

std::unique_ptr<Unfinished> C10dGroup::begin_sum(const char* name, const Tensors& tensors) {
  return begin(name, c10d::ReduceOp::SUM, tensors);
}

Tensors C10dGroup::extremum(const char* name, Extremum which, const Tensors& tensors) {
  return begin(name, which == Extremum::largest ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN, tensors)->wait();
}

void C10dGroup::refuse_differing(const char* name) const {
  throw MeshError(
      where(name) +
      ": the processes do not do the same. All processes of an axis call the same collectives, with the same "
      "shapes and dtypes. Set TOWER_MESH_CHECK=1 to be told what they call.");
}

// The bytes of each process, one row for each.
Tensor C10dGroup::gather_bytes(const Tensor& bytes) {
  Tensor all;
  mesh::wait_awake(wire_.gather(bytes, all), bytes);
  return all;
}

std::string describe_row(const Tensor& t) {
  Meta meta(t);
  meta.sizes.erase(meta.sizes.begin());
  return meta.describe();
}

// The number of the collective, its name and its tensors as a text that all processes must agree on.
void C10dGroup::compare(const char* name, const Tensors& like, Alike alike) {
  std::string mine = "collective " + std::to_string(number_) + ", " + name + " of";
  for (const Tensor& t : like) mine += " " + (alike == Alike::whole ? describe(t) : "rows of " + describe_row(t));
  mine.resize(std::min<size_t>(mine.size(), mesh::kFirst - 1));
  Tensor bytes = at::zeros({mesh::kFirst}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  const Tensor all = gather_bytes(bytes);
  for (int64_t r = 0; r < size(); ++r) {
    const std::string theirs = static_cast<const char*>(all.select(0, r).const_data_ptr());
    if (theirs != mine)
      throw MeshError(where(name) + ": the processes do not do the same: here it is " + mine + ", in process " +
                      std::to_string(members_[static_cast<size_t>(r)]) + " " + theirs +
                      ". All processes of an axis call the same collectives with the same shapes and dtypes.");
  }
}

void C10dGroup::check_agreement(const char* what, const Tensors& values) {
  if (!engine_.options().check) return;
  run("comparison of what is shared", values, Alike::whole, [&] {
    std::vector<int64_t> own;
    for (const Tensor& t : values) {
      const Tensor bytes = t.defined() ? as_bytes(t.cpu()) : at::empty({0}, at::kByte);
      const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
      own.push_back(static_cast<int64_t>(std::hash<std::string_view>{}(text)));
    }
    const Tensor hashes = at::tensor(own, at::kLong), all = gather_bytes(hashes.view(at::kByte)).view(at::kLong);
    const Tensor differing = all.ne(hashes).nonzero();
    if (differing.numel() == 0) return;
    const auto process = differing[0][0].item<int64_t>(), k = differing[0][1].item<int64_t>();
    throw MeshError("vmap over axis '" + axis() + "' (process " + std::to_string(rank()) + " of " +
                    std::to_string(size()) + "): " + what + " " + std::to_string(k) + ", " +
                    describe(values[static_cast<size_t>(k)]) + ", is not the same here and in process " +
                    std::to_string(members_[static_cast<size_t>(process)]) +
                    ". What is not mapped is the same everywhere, to the last bit: give it a dimension that is mapped, "
                    "or make it alike before.");
  });
}

// In bytes, for all tensors together: each process's are put behind each other, and filled up to the longest.
Tensors C10dGroup::gather(const char* name, const Tensors& parts, const std::vector<int64_t>& sizes) {
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  Tensors wholes;
  run(name, parts, Alike::rows, [&] {
    Tensors padded;
    for (const Tensor& t : parts) {
      Sizes room(t.sizes());
      room[0] = most;
      Tensor own = at::zeros(room, t.options());
      own.narrow(0, 0, t.size(0)).copy_(t);
      padded.push_back(as_bytes(own));
    }
    const Tensor own = at::cat(padded);
    mesh::Opening opening(wire_, std::string(name) + std::to_string(own.numel()), own.numel(), own.device());
    if (opening.fits()) opening.place(0, own.numel()).copy_(own);
    opening.begin();
    if (!opening.agreed()) refuse_differing(name);
    const Tensor gathered = opening.fits() ? opening.rows(0, own.numel()) : gather_bytes(own);
    int64_t begin = 0;
    for (size_t k = 0; k < parts.size(); ++k) {
      Sizes shape(parts[k].sizes());
      shape[0] = most;
      Tensors rows;
      for (size_t r = 0; r < sizes.size(); ++r)
        rows.push_back(gathered.select(0, static_cast<int64_t>(r))
                           .narrow(0, begin, padded[k].numel())
                           .clone()
                           .view(parts[k].scalar_type())
                           .view(shape)
                           .narrow(0, 0, sizes[r]));
      wholes.push_back(at::cat(rows));
      begin += padded[k].numel();
    }
  });
  return wholes;
}

void C10dGroup::exchange(const char* name, const Tensors& parts, const std::vector<Tensors>& give,
                         const std::vector<Tensors>& take) {
  run(name, parts, Alike::rows, [&] {
    const auto backend = wire_.backend(parts[0]);
    std::vector<Parcel> sent, received;
    for (int64_t r = 0; r < size(); ++r) {
      const Tensors &to = give[static_cast<size_t>(r)], &from = take[static_cast<size_t>(r)];
      if (r == rank()) {
        for (size_t k = 0; k < to.size(); ++k) from[k].copy_(to[k]);
        continue;
      }
      if (bytes_in(from) > 0) received.emplace_back(backend, name, r, from).expect_first();
      if (bytes_in(to) > 0) sent.emplace_back(backend, name, r, to).send();
    }
    for (Parcel& parcel : received)
      if (!parcel.expect_rest()) refuse_differing(name);
    for (Parcel& parcel : received) parcel.unpack();
    for (Parcel& parcel : sent) parcel.wait_until_sent();
  });
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value)
    throw MeshError(std::string("Mesh::from_environment: the variable ") + name +
                    " is not set. Start the program with torchrun, or with script/launch -n PROCESSES PROGRAM.");
  return value;
}

int number_in(const char* name) {
  const std::string text = variable(name);
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || number < 0)
    throw MeshError(std::string("Mesh::from_environment: ") + name + " is '" + text + "', which is no number.");
  return static_cast<int>(number);
}

// Of processes that have a backend for the CPU.
GroupOfProcesses group_of(const StorePointer& store, int rank, int size,
                          const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  const auto type = c10d::ProcessGroup::BackendType::GLOO;
  group->setBackend(at::kCPU, type, backend);
  group->setDefaultBackend(type);
  return group;
}

// Meshes whose axes have the same names are made in the same order everywhere. Each process numbers its own, in the
// store: of a group there are as many as were made of that group.
std::string name_of_mesh(const StorePointer& shared, int64_t rank, const std::vector<MeshAxis>& axes) {
  std::string name = "tower/";
  for (const MeshAxis& axis : axes) name += axis.name + "/";
  return name + std::to_string(shared->add(name + "made by " + std::to_string(rank), 1));
}

// The store of process 0 stays until the process ends, for others may make their next mesh while it has its last.
void keep(const StorePointer& server, int port) {
  static std::mutex mutex;
  static auto& servers = *new std::map<int, StorePointer>;
  const std::lock_guard lock(mutex);
  servers.try_emplace(port, server);
}

// A mesh has connections of its own, which it closes when it is of no more use, and which the program's messages do not
// meet: gloo ends a process whose messages meet others. Null: they cannot be made.
GroupOfProcesses own_connections(c10d::ProcessGroup& group, const StorePointer& store, int64_t rank, size_t size,
                                 std::chrono::milliseconds timeout) {
  const auto devices = group.getDeviceTypes();
  if (devices.size() != 1 || !devices[0].is_cpu()) return {};
  const int own = static_cast<int>(rank), all = static_cast<int>(size);
  const auto backend = mesh::make_gloo_like(*group.getBackend(at::kCPU), store, own, all, timeout);
  return backend ? group_of(store, own, all, backend) : GroupOfProcesses{};
}

// Meshes without connections of their own send their messages by those of the group: to threads they are one.
std::shared_ptr<mesh::Owner> owner_of(const GroupOfProcesses& group) {
  static std::mutex mutex;
  static auto& owners = *new std::map<const c10d::ProcessGroup*, std::weak_ptr<mesh::Owner>>;
  const std::lock_guard lock(mutex);
  std::erase_if(owners, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<mesh::Owner> owner = owners[group.get()].lock();
  if (!owner) owners[group.get()] = owner = std::make_shared<mesh::Owner>();
  return owner;
}

}  // namespace

Mesh Mesh::from_environment(std::vector<MeshAxis> axes, MeshOptions options) {
  const int rank = number_in("RANK"), size = number_in("WORLD_SIZE"), port = number_in("MASTER_PORT");
  if (rank >= size)
    throw MeshError("Mesh::from_environment: RANK is " + std::to_string(rank) + ", but there are " +
                    std::to_string(size) + " processes (WORLD_SIZE), numbered from 0.");
  const std::string address = variable("MASTER_ADDR");
  axes = mesh::sized(std::move(axes), size);
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(port);
    // torchrun may hold the store itself.
    const char* held = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    store_options.isServer = rank == 0 && !(held && std::string_view(held) == "True");
    store_options.numWorkers = static_cast<size_t>(size);
    store_options.timeout = options.timeout;
    store_options.multiTenant = true;
    const StorePointer shared = c10::make_intrusive<c10d::TCPStore>(address, store_options);
    if (rank == 0) keep(shared, port);
    const StorePointer store = c10::make_intrusive<c10d::PrefixStore>(name_of_mesh(shared, rank, axes), shared);
    auto engine = std::make_shared<Engine>(std::move(axes), rank, options, store);
    for (size_t i = 0; i < engine->axes().size(); ++i) {
      const auto members = engine->members(i);
      const auto own =
          c10::make_intrusive<c10d::PrefixStore>(engine->axes()[i].name + "/" + std::to_string(members[0]), store);
      const int rank_here = static_cast<int>(engine->rank_along(i)), all = static_cast<int>(members.size());
      const bool here = address == "localhost" || address == "127.0.0.1";
      engine->add(
          i, group_of(own, rank_here, all, mesh::make_gloo(own, rank_here, all, options.timeout, here ? address : "")));
    }
    engine->meet();
    return Mesh(std::move(engine));
  } catch (const c10::Error& error) {
    throw MeshError("Mesh::from_environment: process " + std::to_string(rank) + " of " + std::to_string(size) +
                    " cannot reach the others at " + address + ":" + std::to_string(port) +
                    ". LibTorch says: " + first_line(error.what()));
  }
}

Mesh Mesh::from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::vector<MeshAxis> axes,
                      MeshOptions options) {
  if (!group) throw MeshError("Mesh::from_group: there is no group.");
  axes = mesh::sized(std::move(axes), group->getSize());
  const std::string name = name_of_mesh(group->getStore(), group->getRank(), axes);
  const StorePointer store = c10::make_intrusive<c10d::PrefixStore>(name, group->getStore());
  auto engine = std::make_shared<Engine>(std::move(axes), group->getRank(), options, store, group);
  for (size_t i = 0; i < engine->axes().size(); ++i) {
    const std::string label = engine->axes()[i].name + "/" + std::to_string(engine->members(i)[0]);
    const StorePointer of_axis = c10::make_intrusive<c10d::PrefixStore>(label, store);
    const std::vector<int64_t> members = engine->members(i);
    GroupOfProcesses processes =
        own_connections(*group, of_axis, engine->rank_along(i), members.size(), options.timeout);
    if (!processes) engine->share(owner_of(group));
    if (!processes && engine->axes().size() == 1) processes = group;
    if (!processes)
      processes = group->splitGroup({members.begin(), members.end()}, options.timeout, std::nullopt, name + "/" + label,
                                    std::nullopt);
    engine->add(i, processes);
  }
  engine->meet();
  return Mesh(std::move(engine));
}

}  // namespace tower
