// Compiled functions by pointers (tower/native.h).
#include "tower/native.h"

#include "compile/specialisations.h"
#include "tower/errors.h"

namespace tower {

std::shared_ptr<const compiler::PointerProgram> detail::Specialisations::by_pointers(const char* who, bool frozen,
                                                                                     std::int64_t loop_steps) const {
  return state_->by_pointers(who, state_->kernels, {frozen, loop_steps});
}

std::shared_ptr<const compiler::PointerProgram> detail::Specialisations::State::by_pointers(
    const char* who, const std::shared_ptr<compiler::Kernels>& made_by,
    const compiler::PointerProgram::Options& options) const {
  const auto known = this->known();
  if (known->graphs.empty())
    throw ArgumentError(std::string(who) +
                        ": the function has no graph yet. Call it with arguments of the kind that it is wanted for; "
                        "with two numbers of examples, for any.");
  const compiler::Specialisation& last = *known->graphs.front();
  if (last.graph->assumes())
    throw UnsupportedError(std::string(who) +
                           ": the function read a value when it was traced (bool(x.any()), a number in a captured "
                           "tensor), or what can change besides. Its graph is for that, and with others it is traced "
                           "again, which needs the process. Leave the reading outside of the compiled function.");
  if (!last.graph->fits())
    throw ArgumentError(std::string(who) +
                        ": a captured tensor has changed its shape since the function was called. Call it again.");
  for (const auto& family : known->families)
    if (family->modes == last.modes && family->statics == last.statics && family->tensors.count(last.tensors))
      return std::make_shared<const compiler::PointerProgram>(family->graph, made_by, who, options);
  return std::make_shared<const compiler::PointerProgram>(last.graph->graph(), made_by, who, options);
}

namespace {

std::string count_of(size_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

void check_dtypes(const std::vector<compiler::PointerProgram::Operand>& operands, const char* what,
                  at::ScalarType dtype) {
  for (size_t k = 0; k < operands.size(); ++k)
    if (operands[k].dtype != at::ScalarType::Undefined && operands[k].dtype != dtype)
      throw ArgumentError("native: " + std::string(what) + " " + std::to_string(k) + " is of " +
                          c10::toString(operands[k].dtype) + ", not of " + c10::toString(dtype) +
                          ". native<void, …> takes pointers to any type.");
}

}  // namespace

void detail::NativeCall::check_arguments(std::size_t arguments, at::ScalarType dtype) const {
  if (arguments != program_->arguments().size())
    throw ArgumentError("native: the function has " + count_of(program_->arguments().size(), "argument") + ", not " +
                        std::to_string(arguments) + ".");
  if (dtype == at::ScalarType::Undefined) return;
  check_dtypes(program_->arguments(), "argument", dtype);
  check_dtypes(program_->results(), "result", dtype);
}

void detail::NativeCall::run(std::int64_t n, const void* const* x, void* const* y, std::size_t results) const {
  if (results != program_->results().size())
    throw ArgumentError("native: the function has " + count_of(program_->results().size(), "result") + ", not " +
                        std::to_string(results) + ".");
  program_->run(n, x, y);
}

std::int64_t detail::NativeCall::work_bytes(std::int64_t n) const {
  return compiler::work_bytes_for(&program_->tables(), n);
}

}  // namespace tower
