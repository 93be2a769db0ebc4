// The kernels of a function: compiled once for equal regions.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/kernel.h"

namespace tower::compiler {

/// What has been compiled and is still there, by what the region is made of: graphs that differ in the number of lanes
/// share their kernels.
class Kernels {
 public:
  template <class... Options>
  explicit Kernels(const Options&... of_source) : source_(std::make_shared<CodeSource>(of_source...)) {}
  /// For a program that is drafted: what may be in places is drafted as well (Kernel::drafted), and all else `made`'s.
  static std::shared_ptr<Kernels> drafts_of(std::shared_ptr<Kernels> made);

  CodeSource& source() { return *source_; }
  /// Any number of threads at a time, which may compile the same: the kernel of the first stays. Throws a CompileError.
  std::shared_ptr<const Kernel> get(const Region& region);
  /// The kernel of products of matrices of this type (kernels/product_kernel.h). Throws a CompileError.
  std::shared_ptr<const Kernel> product(Type type);
  /// That of factorizations and solves (kernels/elimination_kernel.h). Throws a CompileError.
  std::shared_ptr<const Kernel> elimination(Type type);
  /// Whether the region's kernel is there, or its code is among what the source was given.
  bool knows(const Region& region);
  std::vector<std::shared_ptr<const Kernel>> all();

 private:
  std::shared_ptr<const Kernel> find(const std::string& bytes);
  std::shared_ptr<const Kernel> keep(const std::string& bytes, std::shared_ptr<const Kernel> made);

  std::shared_ptr<Kernels> made_;  // null: these are no drafts
  std::shared_ptr<CodeSource> source_;
  std::mutex mutex_;  // of what is known; nothing is compiled under it
  std::unordered_map<std::string, std::weak_ptr<const Kernel>> known_;
};

}  // namespace tower::compiler
