// Groups of c10d that a test makes itself.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "mesh/first_message.h"
#include "mesh/gloo.h"

namespace processes {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Backend = c10::intrusive_ptr<c10d::Backend>;
using Work = c10::intrusive_ptr<c10d::Work>;

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

// Gloo's, which cannot be split, and notes for each message what it is: one from each process to all ("all"), with
// which every collective begins, a sum or extremum of what was too large for that, for each dtype, or a message to
// another process ("to 1").
class Noting final : public c10d::Backend {
 public:
  explicit Noting(processes::Backend gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  void note(const std::string& what) { said_ += (said_.empty() ? "" : " ") + what; }
  std::string said() { return std::exchange(said_, {}); }

  const std::string getBackendName() const override { return "noting"; }
  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    note(options.reduceOp == c10d::ReduceOp::RedOpType::SUM ? "sum" : "extremum");
    return gloo_->allreduce(tensors, options);
  }
  Work _allgather_base(at::Tensor& whole, at::Tensor& part, const c10d::AllgatherOptions& options) override {
    note("all");
    return gloo_->_allgather_base(whole, part, options);
  }
  Work send(std::vector<at::Tensor>& tensors, int process, int tag) override {
    note((static_cast<int64_t>(tensors[0].nbytes()) == tower::mesh::kFirst ? "to " : "rest to ") +
         std::to_string(process));
    return gloo_->send(tensors, process, tag);
  }
  Work recv(std::vector<at::Tensor>& tensors, int process, int tag) override {
    return gloo_->recv(tensors, process, tag);
  }

 private:
  processes::Backend gloo_;
  std::string said_;
};

}  // namespace processes
