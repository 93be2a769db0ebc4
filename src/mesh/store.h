// The store by which the processes of a mesh find each other, and on which they write what became of them.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mesh/secret.h"

namespace tower::mesh {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

/// That of process 0, or of torchrun, at an address; process 0 holds it (`holds`), and listens at that address alone.
/// It waits without a limit where something silent answers there. A process has one connection to it, for all meshes.
StorePointer reach_store(const std::string& address, int port, bool holds, std::chrono::milliseconds timeout);
/// The connection is of no more use: the next mesh makes another.
void forget_store(const std::string& address, int port);

// A mesh's part of a store: keys that begin with its name, and values that were written by who knows the secret. Who
// waits asks again and again, so that the threads of a process do not wait for each other, who have one connection.
class MeshStore final : public c10d::Store {
 public:
  MeshStore(StorePointer shared, std::string name, Secret secret, std::chrono::milliseconds timeout)
      : Store(timeout), shared_(std::move(shared)), name_(std::move(name)), secret_(std::move(secret)) {}

  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override { return shared_->deleteKey(name_ + key); }
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override { return shared_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return shared_->hasExtendedApi(); }

 private:
  std::vector<uint8_t> opened(const std::string& key, const std::vector<uint8_t>& sealed) const;

  StorePointer shared_;
  std::string name_;
  Secret secret_;
};

}  // namespace tower::mesh
