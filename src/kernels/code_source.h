// Where kernels' machine code comes from: what a saved function brought along, a folder that the user named, and LLVM,
// which is looked for where the others do not have it.
//
// A kernel's key is a digest of its text. In a folder, code lies under a digest of that, the CPU and Tower's version.
// Any number of processes may share one. What cannot be read is generated again and replaced; beyond a number of files,
// those that were not used for longest go.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/cpu.h"
#include "kernels/llvm.h"
#include "tower/compile.h"

namespace tower::compiler {

class CodeSource {
 public:
  /// Without a folder in the options, that of the environment (TOWER_CACHE), if there is one.
  explicit CodeSource(const CompileOptions& options = {}, int64_t vector_bytes = Cpu::get().vector_bytes());
  /// Of code that is written to a file and not run here. It is generated in any case, and kept nowhere.
  CodeSource(Math math, Target target);

  Math math() const { return math_; }
  /// Of the vectors in kernels; 0 where the CPU has none that will do.
  int64_t vector_bytes() const { return vector_bytes_; }
  /// Code that is to be written, and the text that it was made of.
  struct Written {
    Module module;
    Binary binary;
  };
  struct Found {
    std::unique_ptr<Code> code;  // null: it is not run here
    bool generated;              // just now
    std::shared_ptr<const Written> written = nullptr;
  };
  /// Any number of threads at a time. Throws a CompileError.
  Found get(const Module& module, const std::string& key) const;
  static std::string key_of(const Module& module);

  /// Code that the source was given (by `add`), by key.
  using Known = std::map<std::string, Binary>;
  Known known() const;
  /// Whether code of this key is among what the source was given; `key` is called only if there is any.
  template <class F>
  bool knows(F&& key) const {
    return has_known() && find_known(key()).has_value();
  }
  void add(Known known);

 private:
  bool has_known() const;
  std::optional<Binary> find_known(const std::string& key) const;
  std::unique_ptr<Code> find(const std::string& key) const;
  void keep(const std::string& key, const Code& code) const;
  bool is_ours() const;
  std::string path_of(const std::string& key) const;
  void remove_oldest() const;

  const Math math_;
  const int64_t vector_bytes_;
  const std::optional<Target> target_;  // none: this machine, and the code is run
  std::string folder_;
  mutable std::mutex mutex_;  // of what is known; nothing is generated or loaded under it
  Known known_;
};

}  // namespace tower::compiler
