// Messages that go from one process to another.
#pragma once

#include <ATen/Functions.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mesh/first_message.h"
#include "mesh/group.h"

namespace tower::mesh {

inline Tensor as_bytes(const Tensor& t) {
  const Tensor whole = t.resolve_conj().resolve_neg().contiguous();
  return whole.as_strided({whole.numel()}, {1}).view(at::kByte);  // of one element view() keeps any stride
}

inline int64_t bytes_in(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

// A first message that begins with a mark (NOTE [First messages]), and what did not fit into it.
class MessageToOne {
 public:
  using Backend = c10::intrusive_ptr<c10d::Backend>;
  /// `what`: of which both processes must say the same. `tensors`: which are sent, or written to.
  MessageToOne(Backend backend, Mark what, int64_t process, const Tensors& tensors)
      : backend_(std::move(backend)),
        process_(static_cast<int>(process)),
        tensors_(tensors),
        bytes_(bytes_in(tensors)),
        mark_(what.add(Mark({}, tensors, Alike::whole).value()).value()),
        first_{at::zeros({kFirst}, tensors[0].options().dtype(at::kByte))} {}

  void send() {
    Tensors flat;
    for (const Tensor& t : tensors_) flat.push_back(as_bytes(t));
    const Tensor bytes = at::cat(flat);
    mark().fill_(mark_);
    first_[0].narrow(0, kMark, in_first()).copy_(bytes.narrow(0, 0, in_first()));
    works_.push_back(backend_->send(first_, process_, kFirstTag));
    if (in_first() == bytes_) return;
    rest_ = {bytes.narrow(0, in_first(), bytes_ - in_first())};
    works_.push_back(backend_->send(rest_, process_, kRestTag));
  }
  void wait_until_sent() {
    for (const auto& work : works_) work->wait();
  }

  void expect_first() { works_.push_back(backend_->recv(first_, process_, kFirstTag)); }
  /// Whether what comes is what was expected.
  bool expect_rest() {
    works_.back()->wait();
    if (mark().item<int64_t>() != mark_) return false;
    if (in_first() == bytes_) return true;
    rest_ = {at::empty({bytes_ - in_first()}, first_[0].options())};
    works_.push_back(backend_->recv(rest_, process_, kRestTag));
    return true;
  }
  void unpack() {
    Tensor bytes = first_[0].narrow(0, kMark, in_first());
    if (!rest_.empty()) {
      works_.back()->wait();  // once: gloo would wait for another message
      bytes = at::cat({bytes, rest_[0]});
    }
    int64_t begin = 0;
    for (const Tensor& t : tensors_) {
      const auto length = static_cast<int64_t>(t.nbytes());
      t.view({-1}).view(at::kByte).copy_(bytes.narrow(0, begin, length));
      begin += length;
    }
  }

 private:
  static constexpr int64_t kMark = sizeof(int64_t);
  static constexpr int kFirstTag = 7101, kRestTag = 7102;

  Tensor mark() const { return first_[0].narrow(0, 0, kMark).view(at::kLong); }
  int64_t in_first() const { return std::min(bytes_, kFirst - kMark); }

  Backend backend_;
  int process_;
  const Tensors& tensors_;
  int64_t bytes_, mark_;
  Tensors first_, rest_ = {};  // one each
  std::vector<c10::intrusive_ptr<c10d::Work>> works_ = {};
};

}  // namespace tower::mesh
