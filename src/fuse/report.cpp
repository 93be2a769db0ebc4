#include "fuse/report.h"

#include <algorithm>

#include "fuse/example_blocks.h"
#include "fuse/own_kernels.h"
#include "fuse/rows_by_index.h"
#include "fuse/short_sums.h"
#include "fuse/small.h"
#include "graph/kernel_operator.h"
#include "graph/raises.h"
#include "numbers/element.h"
#include "numbers/fold.h"

namespace tower::compiler {
namespace {

constexpr size_t kPage = 50;  // lines

std::string indented(const std::string& text) {
  std::string result;
  for (size_t begin = 0, end; begin < text.size(); begin = end) {
    end = text.find('\n', begin) + 1;
    result += "  " + text.substr(begin, end - begin);
  }
  return result;
}

// Why no kernel has the call.
std::string reason_for(const Graph& graph, const Call& call) {
  const Operator& op = *call.op;
  if (call.effect) return "they write to memory from outside";
  if (call.random()) return "they draw random numbers";
  if (call.opaque()) return "their code is not known";
  std::string strange;
  const auto look = [&](const std::vector<ValueId>& ids) {
    for (const ValueId id : ids) {
      if (id == kNoValue) continue;
      const Value& v = graph.values[id];
      if (!v.device.is_cpu()) strange = v.device.str();
      else if (!type_of(v.dtype)) strange = toString(v.dtype);
    }
  };
  look(call.operands);
  look(call.results);
  if (!strange.empty()) return "no kernels compute in " + strange;
  if (op.contraction) return "products that are the library's, of these sizes";
  if (!is_known_in_numbers(op)) return "no rule for kernels";
  if (element_rule(op) || fold_rule(op)) return "alone, or not worth it, of these sizes and strides";
  return "a rule for small tensors alone, or not worth it";
}

}  // namespace

void Report::add(const Report& other) {
  kernels += other.kernels;
  operators += other.operators;
  products += other.products;
  for (const auto& [reason, names] : other.left)
    for (const auto& [name, times] : names) left[reason][name] += times;
  lines += other.lines;
}

void Report::add_below(const std::string& title, const Report& other) {
  Report below = other;
  below.lines = title + "\n" + indented(other.lines);
  add(below);
}

std::string Report::summary() const {
  size_t calls = 0;
  std::string reasons;
  for (const auto& [reason, names] : left) {
    reasons += "  " + reason + ":";
    for (const auto& [name, times] : names) {
      reasons += (reasons.back() == ':' ? " " : ", ") + name + (times > 1 ? " ×" + std::to_string(times) : "");
      calls += times;
    }
    reasons += "\n";
  }
  return "kernels: " + std::to_string(kernels) + ", of " + std::to_string(operators) + " operators; " +
         (products > 0 ? "products of matrices: " + std::to_string(products) + "; " : "") +
         "calls left to LibTorch: " + std::to_string(calls) + "\n" + reasons;
}

void note_left(const Graph& fused, Report& report) {
  OwnKernels own{0, 0};
  size_t by_index = 0, of_short_rows = 0;
  for (const Call& call : fused.calls) {
    const auto* code = dynamic_cast<const HasOwnKernels*>(known_code(*call.op));
    if (const auto of_code = code ? code->own_kernels() : std::nullopt) {
      own.kernels += of_code->kernels;
      own.operators += of_code->operators;
      report.lines += call.op->name() + ": " + std::to_string(of_code->kernels) + " kernels of " +
                      std::to_string(of_code->operators) + " operators, tile by tile\n";
      continue;
    }
    if (dynamic_cast<const GoesOverBlocks*>(call.op)) continue;
    if (dynamic_cast<const RowsByIndex*>(call.op)) ++by_index;
    else if (dynamic_cast<const ShortSums*>(call.op)) ++of_short_rows;
    else if (dynamic_cast<const KernelOperator*>(call.op)) ++report.products;
    else if (!gives_view(call)) ++report.left[reason_for(fused, call)][call.op->name()];
  }
  if (by_index > 0) report.lines += "rows read or added by an index, as loops: " + std::to_string(by_index) + "\n";
  if (of_short_rows > 0) report.lines += "sums of short rows, as loops: " + std::to_string(of_short_rows) + "\n";
  report.products -= std::min(report.products, report.kernels);
  report.kernels += own.kernels;
  report.operators += own.operators;
}

std::string first_page(const std::string& text) {
  size_t end = 0, lines = 0;
  while (lines < kPage && end < text.size()) {
    end = text.find('\n', end) + 1;
    ++lines;
  }
  const auto more = std::count(text.begin() + static_cast<std::ptrdiff_t>(end), text.end(), '\n');
  return text.substr(0, end) + (more > 0 ? "… and " + std::to_string(more) + " lines more, in listing()\n" : "");
}

}  // namespace tower::compiler
