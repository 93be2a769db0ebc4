// The mesh on LibTorch's distributed engine, c10d.
//
// A tour. Engine is the mesh's state (mesh/engine.h; mesh/making.cpp makes it): it has a C10dGroup for each axis, and
// knows how a process finds out what went wrong with another. A collective begins with a message from each process to
// all (mesh/first_message.h), which says what it is and has room for little ones. What is larger follows in one call of
// the group's backend for each dtype (sums and extrema: mesh/reduction.h), or for all of it (gather, in bytes).
// Exchange has a message for each process that is to have something (mesh/message_to_one.h). When one fails, or the
// mapped function throws, the process writes what happened on the notice board (mesh/notice_board.h), a store that all
// can read, and then closes its connections. So the others' collectives fail at once, whatever their timeout, and they
// read there whom it was. Nothing is repaired: the mesh is of no more use, but the process can go on.
#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/level.h"
#include "core/operator.h"
#include "mesh/engine.h"
#include "mesh/message_to_one.h"
#include "tower/errors.h"

namespace tower::mesh {

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, std::min(text.find('\n'), text.find("Exception raised from"))));
}

// ---- the mesh ------------------------------------------------------------------------------------------------------

Engine::Engine(std::vector<MeshAxis> axes, int64_t rank, MeshOptions options, StorePointer store, GroupOfProcesses of)
    : State(std::move(axes), rank, options),
      process_(::getpid()),
      of_(std::move(of)),
      store_(std::move(store)),
      notices_(store_, rank) {}

// Process 0 has the notice board, and stays until the others have read it. A process that was forked from one of the
// mesh's has none of the threads that would have to end: it leaves all as it is.
Engine::~Engine() {
  if (forked()) {
    for (const auto& group : groups_) group->leave();
    of_.release();
    return;
  }
  try {
    if (!broken_.empty() && rank() == 0) notices_.wait_until_told(size());
  } catch (const std::exception&) {  // nobody is left who could be told
  }
}

bool Engine::forked() const { return process_ != ::getpid(); }

void Engine::add(size_t axis, GroupOfProcesses processes) {
  groups_.push_back(std::make_unique<C10dGroup>(*this, axes()[axis].name, rank_along(axis), members(axis), processes));
}

void Engine::meet() {
  for (const auto& group : groups_) group->gather_number("the mesh's first message", rank());
}

void Engine::prove(const Secret& secret, const std::string& mesh) {
  for (const auto& group : groups_) group->prove(secret, mesh);
}

void Engine::give_up(const std::string& on_board, const std::string& why) {
  if (!broken_.empty()) return;
  broken_ = why;
  notices_.write(on_board);
  for (const auto& group : groups_) group->close();
  if (NoticeBoard::is_reason(on_board)) notices_.write_told();
}

namespace {

// A description's lines: the collective, and each of its tensors.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return lines;
}

// What stands in an error for `text`, of which the other process says `other`.
std::string in_short(const std::string& text, const std::string& other) {
  constexpr size_t kFew = 8;
  const std::vector<std::string> lines = lines_of(text), others = lines_of(other);
  std::string result = lines[0];
  if (lines.size() <= kFew && others.size() <= kFew) {
    for (size_t k = 1; k < lines.size(); ++k) result += (k > 1 ? ", " : " ") + lines[k];
    return result;
  }
  result += " " + std::to_string(lines.size() - 1) + " tensors";
  for (size_t k = 1; k < lines.size(); ++k)
    if (k >= others.size() || lines[k] != others[k])
      return result + ", number " + std::to_string(k - 1) + " " + lines[k];
  return result;
}

}  // namespace

std::optional<std::string> Engine::difference(const std::vector<int64_t>& ranks, const std::string& mine) const {
  const auto differs = [&](const std::string& theirs) { return theirs != mine; };
  for (const auto& [rank, theirs] : notices_.read_doing(ranks, differs))
    if (differs(theirs))
      return "the processes do not do the same: here it is " + in_short(mine, theirs) + "; in process " +
             std::to_string(rank) + " it is " + in_short(theirs, mine) +
             ". All processes of an axis call the same collectives in the same order, with the same shapes and dtypes";
  return std::nullopt;
}

std::string Engine::differ(const std::vector<int64_t>& ranks, const std::string& mine) {
  notices_.write_doing(mine);
  give_up(NoticeBoard::lost(), "the processes did not do the same: here it was " + in_short(mine, mine));
  const auto text = difference(ranks, mine);
  notices_.write_told();
  return text.value_or("the processes do not do the same: here it is " + in_short(mine, mine) +
                       ", and what others do is not known");
}

std::string Engine::blame(const std::vector<int64_t>& ranks, const std::string& mine) const {
  const auto text = [&]() -> std::string {
    const auto found = notices_.read(ranks);
    if (!found) return "the process that holds the mesh's store, process 0, does not answer";
    std::string missing;
    int64_t count = 0;
    for (const int64_t r : ranks) {
      if (r == rank()) continue;
      const auto theirs = found->find(r);
      if (theirs != found->end() && NoticeBoard::is_reason(theirs->second))
        return "process " + std::to_string(r) + " gave up: " + theirs->second.substr(1);
      if (theirs != found->end()) continue;
      missing += (count++ ? ", " : "") + std::to_string(r);
    }
    if (missing.empty()) return difference(ranks, mine).value_or("the processes lost each other");
    return (count == 1 ? "process " : "processes ") + missing +
           " of the mesh did not answer: died, hangs, was stopped, or is not in this collective";
  }();
  notices_.write_told();
  return text;
}

// ---- collectives ---------------------------------------------------------------------------------------------------

C10dGroup::C10dGroup(Engine& engine, std::string axis, int64_t rank, std::vector<int64_t> members,
                     GroupOfProcesses processes)
    : Group(std::move(axis), rank, static_cast<int64_t>(members.size())),
      engine_(engine),
      members_(std::move(members)),
      wire_{std::move(processes), size()} {}

Owner& C10dGroup::owner() { return engine_.owner(); }

std::string C10dGroup::describe(const Doing& doing) const {
  std::string text =
      "collective " + std::to_string(doing.number) + " over axis '" + axis() + "', " + doing.name + " of";
  for (const Tensor& t : doing.tensors) {
    Meta meta;
    if (t.defined()) meta = Meta(t);
    if (doing.alike == Alike::rows) meta.sizes.erase(meta.sizes.begin());
    text += (doing.alike == Alike::rows ? "\nrows of " : "\n") + meta.describe();
  }
  return text;
}

// Messages are made of tensors' memory, which one of a Python class need not have.
void refuse_python_classes(const Group& group, const char* name, const Tensors& tensors) {
  for (const Tensor& t : tensors)
    if (t.defined() && t.key_set().has(c10::DispatchKey::Python))
      throw ArgumentError(
          group.where(name) + ": a tensor of " + tower::describe(t) +
          " is of a Python class, such as DTensor, which the mesh knows nothing of. Pass this process's "
          "part (DTensor: t.to_local()), or all of it (t.full_tensor()).");
}

template <class Start>
void C10dGroup::run(const char* name, const Tensors& like, Alike alike, Start&& start) {
  refuse_python_classes(*this, name, like);
  const Doing doing{name, number_ + 1, like, alike};
  guarded(doing, [&] {
    ++number_;
    go_on();
    if (engine_.options().check) compare(doing);
    start(doing);
  });
}

template <class F>
void C10dGroup::guarded(const Doing& doing, F&& f) {
  // Before all else: who holds the mutexes of a process that was forked is not in this one.
  if (engine_.forked())
    throw MeshError(where(doing.name) +
                    ": this process was forked from one of the mesh's, and has not its threads. "
                    "Make a mesh after forking, in each process.");
  const Use use(*this, doing.name);
  if (!engine_.broken().empty())
    throw MeshError(where(doing.name) + ": the mesh is of no more use since " + engine_.broken() + ".");
  DispatchGuard keys;
  keys.see_no_operator();
  keys.skip_libtorch_autograd();
  try {
    use.check();
    f();
    use.check();
  } catch (const MeshError& error) {
    engine_.give_up(NoticeBoard::reason(error.what()), error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string what = first_line(error.what()), mine = describe(doing);
    engine_.write_doing(mine);
    engine_.give_up(NoticeBoard::lost(), where(doing.name) + " failed");
    throw MeshError(where(doing.name) + ": " + engine_.blame(members_, mine) + ". LibTorch says: " + what +
                    (engine_.options().check ? "" : " (TOWER_MESH_CHECK=1 compares what processes call.)"));
  }
}

void C10dGroup::fail(const std::string& why) noexcept {
  try {
    if (engine_.forked()) return;
    engine_.give_up(NoticeBoard::reason(first_line(why)), "this process gave up: " + first_line(why));
  } catch (const std::exception&) {  // the others find out by their timeout
  }
}

// A sum or extremum on its way. What did not fit into its first message is sent before the group's next collective
// begins, or when it is waited for: at the same place in all processes.
class C10dGroup::Begun final : public Unfinished {
 public:
  Begun(C10dGroup& group, const Doing& doing, Reduction::Kind kind)
      : group_(group),
        use_(group, doing.name),
        name_(doing.name),
        number_(doing.number),
        reduction_(group.wire_, doing.name, doing.number, kind, doing.tensors) {}
  ~Begun() override {
    if (group_.begun_ == this) group_.begun_ = nullptr;
  }

  void go_on() {
    group_.begun_ = nullptr;
    if (!reduction_.go_on()) group_.refuse_differing(doing());
  }
  std::vector<Tensor> wait() override {
    Tensors results;
    group_.guarded(doing(), [&] {
      if (group_.begun_ == this) go_on();
      results = reduction_.finish();
    });
    return results;
  }

 private:
  Doing doing() const { return {name_, number_, reduction_.tensors(), Alike::whole}; }

  C10dGroup& group_;
  Use use_;
  const char* name_;
  int64_t number_;
  Reduction reduction_;
};

// What has begun before something else does.
void C10dGroup::go_on() {
  if (begun_) begun_->go_on();
}

std::unique_ptr<C10dGroup::Begun> C10dGroup::begin(const char* name, Reduction::Kind kind, const Tensors& tensors) {
  for (const Tensor& t : tensors)
    if (!Reduction::can_do(kind, t.scalar_type()))
      throw UnsupportedError(where(name) + ": of " + tower::describe(t) + " LibTorch has no " +
                             (kind == Reduction::Kind::SUM ? "sum" : "largest or smallest") +
                             ". Convert it before, as to Float.");
  std::unique_ptr<Begun> begun;
  run(name, tensors, Alike::whole, [&](const Doing& doing) {
    begun = std::make_unique<Begun>(*this, doing, kind);
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

// Says on the notice board what it was about to do, and closes the connections, so that others who do not know yet do
// the same.
void C10dGroup::refuse_differing(const Doing& doing) const {
  const std::string mine = describe(doing);
  throw MeshError(where(doing.name) + ": " + engine_.differ(members_, mine) + ".");
}

// The bytes of each process, one row for each.
Tensor C10dGroup::gather_bytes(const Tensor& bytes) {
  Tensor all;
  wait_awake(wire_.gather(bytes, all), bytes);
  return all;
}

// A message of its own, before anything of the collective is sent.
void C10dGroup::compare(const Doing& doing) {
  at::Device device = at::kCPU;
  for (const Tensor& t : doing.tensors)
    if (t.defined()) device = t.device();
  FirstMessage question(wire_, Mark(doing.name, doing.tensors, doing.alike).add('?'), doing.number, 0, device);
  question.begin();
  if (!question.agrees()) refuse_differing(doing);
}

void C10dGroup::check_agreement(const char* what, const Tensors& values) {
  if (!engine_.options().check) return;
  run("comparison of what is shared", values, Alike::whole, [&](const Doing&) {
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
                    tower::describe(values[static_cast<size_t>(k)]) + ", is not the same here and in process " +
                    std::to_string(members_[static_cast<size_t>(process)]) +
                    ". What is not mapped is the same everywhere, to the last bit: give it a dimension that is mapped, "
                    "or make it alike before.");
  });
}

// In bytes, for all tensors together: each process's are put behind each other, and filled up to the longest.
Tensors C10dGroup::gather(const char* name, const Tensors& parts, const std::vector<int64_t>& sizes) {
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  Tensors wholes;
  run(name, parts, Alike::rows, [&](const Doing& doing) {
    Tensors padded;
    for (const Tensor& t : parts) {
      Sizes room(t.sizes());
      room[0] = most;
      Tensor own = at::zeros(room, t.options());
      own.narrow(0, 0, t.size(0)).copy_(t);
      padded.push_back(as_bytes(own));
    }
    const Tensor own = at::cat(padded);
    FirstMessage first(wire_, Mark(name, parts, Alike::rows).add(most), number_, own.numel(), own.device());
    if (first.fits()) first.place(0, own.numel()).copy_(own);
    first.begin();
    if (!first.agreed()) refuse_differing(doing);
    const Tensor gathered = first.fits() ? first.rows(0, own.numel()) : gather_bytes(own);
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
  run(name, parts, Alike::rows, [&](const Doing& doing) {
    const auto backend = wire_.backend(parts[0]);
    const Mark what = Mark(name, parts, Alike::rows).add(number_);
    std::vector<MessageToOne> sent, received;
    for (int64_t r = 0; r < size(); ++r) {
      const Tensors &to = give[static_cast<size_t>(r)], &from = take[static_cast<size_t>(r)];
      if (r == rank()) {
        for (size_t k = 0; k < to.size(); ++k) from[k].copy_(to[k]);
        continue;
      }
      if (bytes_in(from) > 0) received.emplace_back(backend, what, r, from).expect_first();
      if (bytes_in(to) > 0) sent.emplace_back(backend, what, r, to).send();
    }
    for (MessageToOne& message : received)
      if (!message.expect_rest()) refuse_differing(doing);
    for (MessageToOne& message : received) message.unpack();
    for (MessageToOne& message : sent) message.wait_until_sent();
  });
}

// The one draws a number, the other answers with the code of both numbers, the places of both, and the mesh.
void C10dGroup::prove(const Secret& secret, const std::string& mesh) {
  if (size() == 1) return;
  const Tensors like{at::empty({size(), 1}, at::kByte)};
  run("proof of the secret", like, Alike::rows, [&](const Doing& doing) {
    const auto exchange = [&](int tag, const std::vector<std::string>& words, size_t length) {
      const auto backend = wire_.backend(like[0]);
      std::vector<Tensors> sent, received;
      std::vector<WorkPointer> works;
      for (int64_t r = 0; r < size(); ++r) {
        sent.push_back({at::empty({static_cast<int64_t>(length)}, at::kByte)});
        received.push_back({at::empty({static_cast<int64_t>(length)}, at::kByte)});
        std::memcpy(sent.back()[0].mutable_data_ptr(), words[static_cast<size_t>(r)].data(), length);
        if (r == rank()) continue;
        works.push_back(backend->recv(received.back(), static_cast<int>(r), tag));
        works.push_back(backend->send(sent.back(), static_cast<int>(r), tag));
      }
      for (const auto& work : works) work->wait();
      std::vector<std::string> result;
      for (const Tensors& r : received) result.emplace_back(static_cast<const char*>(r[0].const_data_ptr()), length);
      return result;
    };
    const auto message = [&](int64_t from, int64_t to, const std::string& asked, const std::string& drawn) {
      return "proof/" + mesh + axis() + "/" + std::to_string(members_[0]) + "/" + std::to_string(from) + "/" +
             std::to_string(to) + "/" + asked + "/" + drawn;
    };
    constexpr int kDrawnTag = 7103, kCodeTag = 7104;
    std::vector<std::string> drawn, codes;
    for (int64_t r = 0; r < size(); ++r) drawn.push_back(Secret::draw());
    const auto asked = exchange(kDrawnTag, drawn, Secret::kDrawn);
    for (int64_t r = 0; r < size(); ++r)
      codes.push_back(secret.code_of(message(rank(), r, asked[static_cast<size_t>(r)], drawn[static_cast<size_t>(r)])));
    const auto answers = exchange(kCodeTag, codes, Secret::kCode);
    for (int64_t r = 0; r < size(); ++r) {
      const auto k = static_cast<size_t>(r);
      if (r != rank() && !secret.is_code_of(answers[k], message(r, rank(), drawn[k], asked[k])))
        throw MeshError(where(doing.name) + ": who is connected in the place of process " +
                        std::to_string(members_[k]) + " does not know the secret (TOWER_MESH_SECRET).");
    }
  });
}

}  // namespace tower::mesh
