// What a model is made of, as a page.
#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

#include "core/operator.h"
#include "exported/model.h"
#include "numbers/element.h"
#include "numbers/fold.h"
#include "numbers/small.h"
#include "tower/coverage.h"

namespace tower::exported {
namespace {

/// Who computes an operator in a compiled function.
std::string compiled_as(const c10::OperatorHandle& handle) {
  const Operator& op = Operator::of(handle);
  if (compiler::element_rule(op) || compiler::small_rule(op) || compiler::fold_rule(op) || op.moves != Moves::no ||
      op.contraction)
    return "kernels";
  return op.decomposes() ? "as its parts" : "LibTorch";
}

/// How often each target is called, in the graphs of branches and loops, too.
struct Calls {
  std::map<std::string, size_t> operators, others;
  std::map<std::string, std::string> compiled;  // by operator

  void count(const Program& program) {
    for (const Step& step : program.steps()) {
      if (step.op) {
        const std::string name = c10::toString(step.op->operator_name());
        if (++operators[name] == 1) compiled[name] = compiled_as(*step.op);
      } else {
        ++others[step.target];
      }
      for (const Operand& operand : step.operands)
        if (operand.program) count(*operand.program);
    }
  }
};

size_t bytes_of(const NamedTensors& tensors) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

std::string Model::report() const {
  std::ostringstream out;
  out << signature() << "\n";
  for (const auto& [symbol, range] : ranges_) {
    out << "  " << symbol << ": from " << range.least.value_or(0);
    if (range.most) out << " to " << *range.most;
    out << "\n";
  }
  out << parameters_.size() << " parameters (" << bytes_of(parameters_) << " bytes), " << buffers_.size()
      << " buffers (" << bytes_of(buffers_) << "), " << constants_.size() << " constants (" << bytes_of(constants_)
      << ")\n\n";

  Calls calls;
  calls.count(*program_);
  std::map<std::string, std::map<std::string, std::string>> served;
  for (const CoverageRow& row : coverage())
    if (calls.operators.count(row.op)) served[row.op][row.transform] = row.served;
  size_t width = 8;
  for (const auto& [name, times] : calls.operators) width = std::max(width, name.size());
  const auto line = [&](const std::string& times, const std::string& name, const std::string& vmap,
                        const std::string& vjp, const std::string& jvp, const std::string& compiled) {
    out << std::right << std::setw(6) << times << "  " << std::left << std::setw(static_cast<int>(width)) << name
        << "  " << std::setw(24) << vmap << "  " << std::setw(24) << vjp << "  " << std::setw(24) << jvp << "  "
        << compiled << "\n";
  };
  line("calls", "operator", "vmap", "vjp", "jvp", "compiled");
  for (const auto& [name, times] : calls.operators) {
    auto& by = served[name];
    line(std::to_string(times), name, by["vmap"], by["vjp"], by["jvp"], calls.compiled[name]);
  }
  if (!calls.others.empty()) out << "\nand, of sizes and of other graphs:\n";
  for (const auto& [target, times] : calls.others) out << std::right << std::setw(6) << times << "  " << target << "\n";
  return out.str();
}

}  // namespace tower::exported
