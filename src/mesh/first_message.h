// What begins a collective: a message of one length, whatever the collective is, which says what is meant.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_map>

#include "mesh/mark.h"

namespace tower::mesh {

using at::Tensor;

// NOTE [First messages]
// gloo ends the process where messages of one collective differ in length. So the first message of every collective has
// a length that all processes know, whatever it is, and a mark of what is meant: the name, dtypes and sizes, and how
// many collectives of the group came before. Each process sends its own to all, and all compare. What does not fit into
// it follows in a second one, when it is known that all mean the same. What fits is computed from the parts of all, in
// the order of the processes, so that they have the same to the last bit: a sum by LibTorch's ring of messages takes
// twice as many, one after the other.
//
// Programs repeat themselves. So the first message has room for what followed the last time that the processes had
// agreed on what came before. All of them know that, and come to the same length.
inline constexpr int64_t kFirst = 2048;  // bytes

class Foresight {
 public:
  explicit Foresight(int64_t processes) : most_(std::max(kFirst, kAll / processes)) {}
  /// The length of the next first message.
  int64_t room() const {
    const auto found = after_.find(latest_);
    return found == after_.end() ? kFirst : found->second;
  }
  /// What the processes have agreed on: its mark, and the bytes that it has to send.
  void learn(int64_t mark, int64_t bytes) {
    if (after_.size() >= kMarks) after_.clear();  // in all processes alike
    after_[latest_] = bytes > most_ ? kFirst : std::max(kFirst, bytes);
    latest_ = mark;
  }

  /// As many are remembered at most, however often the sizes change.
  static constexpr size_t kMarks = 4096;
  size_t remembered() const { return after_.size(); }

 private:
  // Of all processes together: more would cost more, where it is not needed, than a second message.
  static constexpr int64_t kAll = 128 << 10;

  int64_t most_, latest_ = 0;
  std::unordered_map<int64_t, int64_t> after_;
};

using WorkPointer = c10::intrusive_ptr<c10d::Work>;  // null: there is nothing to wait for

/// The processes of a group, to whom messages go.
struct Wire {
  c10::intrusive_ptr<c10d::ProcessGroup> processes;
  int64_t size;
  Foresight foresight{size};

  c10::intrusive_ptr<c10d::Backend> backend(const Tensor& buffer) const {
    return processes->getBackend(buffer.device().type());
  }
  /// Starts to send `bytes` to all; `all` gets those of each process, a row for each.
  WorkPointer gather(Tensor bytes, Tensor& all) const;
};

/// Waits until a message has come.
void wait_awake(const WorkPointer& work, const Tensor& buffer);

/// What this process sends to all when a collective begins, and what each of them sent.
class FirstMessage {
 public:
  /// `what` and `number`: of which all processes must say the same; the second is another for each collective.
  /// `bytes`: what is to be sent.
  FirstMessage(Wire& wire, const Mark& what, int64_t number, int64_t bytes, at::Device device);

  /// Whether it has room for what is to be sent. The places are then this process's, to be filled before begin.
  bool fits() const { return kMark + bytes_ <= own_.numel(); }
  Tensor place(int64_t begin, int64_t length) const { return own_.narrow(0, kMark + begin, length); }

  void begin() { work_ = wire_.gather(own_, all_); }
  /// Waits for the others. Whether they mean the same.
  bool agreed();
  /// The same, of a message that only asks for that: what follows is foreseen as if it had not been.
  bool agrees() const;
  /// What is in a place of each process, a row for each.
  Tensor rows(int64_t begin, int64_t length) const { return all_.narrow(1, kMark + begin, length); }

 private:
  static constexpr int64_t kMark = sizeof(std::array<int64_t, 2>);  // what follows is aligned for all types

  Wire& wire_;
  std::array<int64_t, 2> mark_;
  int64_t bytes_;
  Tensor own_, all_ = {};
  WorkPointer work_ = {};
};

/// How far apart places of numbers are, so that each is aligned.
inline int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace tower::mesh
