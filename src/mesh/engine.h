// The state of a mesh on LibTorch's distributed engine, c10d.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mesh/mark.h"
#include "mesh/mesh.h"
#include "mesh/notice_board.h"
#include "mesh/owner.h"
#include "mesh/reduction.h"
#include "mesh/secret.h"

namespace tower::mesh {

using GroupOfProcesses = c10::intrusive_ptr<c10d::ProcessGroup>;

/// The first line of what LibTorch says.
std::string first_line(std::string_view text);

class Engine;

class C10dGroup final : public Group {
 public:
  C10dGroup(Engine& engine, std::string axis, int64_t rank, std::vector<int64_t> members, GroupOfProcesses processes);

  Owner& owner() override;
  Tensors sum(const char* name, const Tensors& tensors) override { return begin_sum(name, tensors)->wait(); }
  std::unique_ptr<Unfinished> begin_sum(const char* name, const Tensors& tensors) override;
  Tensors extremum(const char* name, Extremum which, const Tensors& tensors) override;
  Tensors gather(const char* name, const Tensors& parts, const std::vector<int64_t>& sizes) override;
  void exchange(const char* name, const Tensors& parts, const std::vector<Tensors>& give,
                const std::vector<Tensors>& take) override;
  void check_agreement(const char* what, const Tensors& values) override;
  void fail(const std::string& why) noexcept override;

  /// That those at the other ends of this process's connections know the secret, and to them that it does.
  void prove(const Secret& secret, const std::string& mesh);
  void close() { wire_.processes.reset(); }
  /// In a process that was forked, which has none of the threads: what cannot be closed is left as it is.
  void leave() { wire_.processes.release(); }

 private:
  class Begun;
  // A collective: its tensors here, and how many of the group came before it.
  struct Doing {
    const char* name;
    int64_t number;
    const Tensors& tensors;
    Alike alike;
  };
  std::unique_ptr<Begun> begin(const char* name, Reduction::Kind kind, const Tensors& tensors);
  // Runs a collective on tensors like `like`, and waits for it.
  template <class Start>
  void run(const char* name, const Tensors& like, Alike alike, Start&& start);
  // Runs a part of one.
  template <class F>
  void guarded(const Doing& doing, F&& f);
  void go_on();
  void compare(const Doing& doing);
  std::string describe(const Doing& doing) const;
  [[noreturn]] void refuse_differing(const Doing& doing) const;
  Tensor gather_bytes(const Tensor& bytes);

  Engine& engine_;
  std::vector<int64_t> members_;
  Wire wire_;
  int64_t number_ = 0;      // of collectives
  Begun* begun_ = nullptr;  // the latest, of which only the first message was sent
};

class Engine final : public Mesh::State {
 public:
  /// `of`: the group that it is of, whose store others may still ask when this process has its mesh.
  Engine(std::vector<MeshAxis> axes, int64_t rank, MeshOptions options, StorePointer store, GroupOfProcesses of = {});
  ~Engine() override;

  void add(size_t axis, GroupOfProcesses processes);
  /// Waits until all processes are there: who went on and ended would close connections that others are still making.
  void meet();
  void prove(const Secret& secret, const std::string& mesh);
  /// With other meshes that have the same connections.
  void share(std::shared_ptr<Owner> owner) { owner_ = std::move(owner); }

  Owner& owner() { return *owner_; }
  const std::string& broken() const { return broken_; }
  /// Whether this is a process that was forked from the mesh's.
  bool forked() const;
  /// Says so on the notice board, and closes all connections.
  void give_up(const std::string& on_board, const std::string& why);
  /// For others to compare with: the collective that failed here.
  void write_doing(const std::string& text) const { notices_.write_doing(text); }
  /// Gives up a collective, `mine`, of which it is known that others of `ranks` do something else. Says what.
  std::string differ(const std::vector<int64_t>& ranks, const std::string& mine);
  /// Who of `ranks` is to blame for a collective that failed, in which this process was doing `mine`.
  std::string blame(const std::vector<int64_t>& ranks, const std::string& mine) const;

 private:
  /// The first of `ranks` that does something else than `mine`, and both; nothing where none is known to.
  std::optional<std::string> difference(const std::vector<int64_t>& ranks, const std::string& mine) const;
  Group& group(size_t axis) override { return *groups_[axis]; }

  int64_t process_;  // the system's number
  GroupOfProcesses of_;
  StorePointer store_;
  NoticeBoard notices_;
  std::shared_ptr<Owner> owner_ = std::make_shared<Owner>();
  std::vector<std::unique_ptr<C10dGroup>> groups_;
  std::string broken_;
};

}  // namespace tower::mesh
