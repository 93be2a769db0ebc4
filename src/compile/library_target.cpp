#include "compile/library_target.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "kernels/cpu.h"
#include "tower/errors.h"

namespace tower::compiler {

LibraryTarget::LibraryTarget(const ExportOptions& options, Math math) : options_(options) {
  for (const std::string& kind : options.also)
    if (kind != "ll" && kind != "s")
      throw ArgumentError(
          "export_c: '" + kind +
          "' among also is nothing that can be written besides. It is \"ll\", LLVM's text of kernels, or "
          "\"s\", their assembler.");
  if (!options.target.empty()) {
    target_ = Target::named(options.target);
    if (!target_)
      throw ArgumentError("export_c: there is no target '" + options.target + "'. Those known are " + Target::names() +
                          "; without one, a library is for this CPU.");
  }
  if (target_ || !options.also.empty())
    kernels_ = std::make_shared<Kernels>(math, target_ ? *target_ : Llvm::get().here());
}

const std::shared_ptr<Kernels>& LibraryTarget::kernels(const std::shared_ptr<Kernels>& of_process) const {
  return kernels_ ? kernels_ : of_process;
}

Machine LibraryTarget::machine() const {
  return target_ ? target_->machine : Cpu::get().machine().value_or(Machine::x86_64);
}

std::string LibraryTarget::text() const {
  if (target_) return options_.target;
  const std::string features = c10::Join(", ", Cpu::get().features());
  return (machine() == Machine::x86_64 ? "x86-64 with " : "aarch64 with ") +
         (features.empty() ? "no extensions" : features);
}

std::vector<OtherFile> LibraryTarget::others(const std::string& name, const Kernel& kernel) const {
  std::vector<OtherFile> files;
  for (const std::string& kind : options_.also) {
    const Module& module = kernel.written()->module;
    const Target& target = target_ ? *target_ : Llvm::get().here();
    files.push_back({name + "." + kind, kind == "ll" ? module.text : Llvm::get().assembler(module, target)});
  }
  return files;
}

}  // namespace tower::compiler
