// Which operators compiled functions compute in kernels, for docs/coverage.md: of each sample, the graph of the
// operator alone, mapped, and of its mapped gradients, and whether rules (numbers/element.h, fuse/small.h) take all
// calls.
#include "fused.h"

#include <array>
#include <cstdio>
#include <map>
#include <sstream>

#include "fuse/opened.h"
#include "fuse/rows.h"
#include "fuse/unrolled.h"
#include "graph/trace.h"
#include "numbers/thresholds.h"
#include "sampled.h"

namespace docs {
namespace {

namespace compiler = tower::compiler;
namespace td = tower::dynamic;

constexpr int64_t kExamples = 8;

// The calls that no kernel takes.
std::vector<compiler::Call> left_of(const compiler::Graph& graph) {
  const compiler::Unrolled unrolled(graph, compiler::thresholds().most_operations, false);
  const compiler::Rows rows(graph);
  std::vector<compiler::Call> left;
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    const compiler::Call& call = graph.calls[n];
    if (compiler::gives_view(call) || rows.joining().spaces[n]) continue;
    if (!unrolled.takes(n)) left.push_back(call);
  }
  return left;
}

// Nothing where there is nothing to compute.
std::optional<bool> is_fused(const td::Function& f, const td::Tensors& args) {
  compiler::Graph graph = compiler::trace(f, args, "compile").graph;
  graph.simplify();
  if (graph.calls.empty()) return std::nullopt;
  // As a whole, or by what they are made of: one sample is one operator, or few.
  return left_of(graph).empty() || left_of(compiler::Opened(graph).graph()).empty();
}

// Of the samples of an operator under one transform.
struct Count {
  int fused = 0, all = 0;
  void add(std::optional<bool> fused_too) {
    if (!fused_too) return;
    fused += *fused_too;
    ++all;
  }
  const char* text() const { return all == 0 ? "-" : fused == all ? "yes" : fused > 0 ? "some" : "no"; }
};
using Counts = std::array<Count, 3>;
constexpr std::array<const char*, 3> kTransforms{"plain", "vmap", "vmap(grad)"};

bool has_elements(const td::Tensors& tensors) {
  for (const auto& t : tensors)
    if (t.numel() == 0) return false;
  return true;
}

void count(const op_db::Entry& entry, const std::string& text, Counts& counts) {
  const Sampled sample(entry, text);
  if (sample.leaves().empty() || !has_elements(sample.leaves())) return;
  const auto tried = [](const auto& f) -> std::optional<bool> {
    try {
      return f();
    } catch (const std::exception&) {
      return false;  // refused
    }
  };
  counts[0].add(tried([&] { return is_fused(sample.all(), sample.leaves()); }));
  counts[1].add(tried([&] { return is_fused(sample.mapped(), sample.batch(kExamples)); }));
  if (entry.refuses("vjp") || entry.has("no_autograd") || sample.primals().empty()) return;
  try {
    if (sample.partial()(sample.primals()).empty()) return;
  } catch (const std::exception&) {
    return;
  }
  counts[2].add(tried([&] { return is_fused(sample.mapped_gradients(), sample.batch_and_cotangents(kExamples)); }));
}

}  // namespace

std::string fused_operators(const std::string& op_db_folder) {
  std::map<std::string, Counts> operators;
  for (const auto& entry : op_db::load(op_db_folder)) {
    if (!entry.op || entry.has("no_samples")) continue;
    Counts& counts = operators[entry.name];
    for (const std::string& text : entry.sample_texts)
      if (text[0] != '!') count(entry, text, counts);
  }
  std::map<std::array<std::string, 3>, std::vector<std::string>> alike;
  Counts totals;
  for (const auto& [name, counts] : operators) {
    std::array<std::string, 3> texts;
    for (size_t k = 0; k < texts.size(); ++k) {
      texts[k] = counts[k].text();
      if (texts[k] != "-") totals[k].add(texts[k] == "yes");
    }
    alike[texts].push_back(name);
  }
  std::ostringstream out;
  out << "|";
  for (const char* transform : kTransforms) out << " " << transform << " |";
  out << " operators |\n|---|---|---|---|\n";
  for (auto row = alike.rbegin(); row != alike.rend(); ++row) {
    out << "|";
    for (const std::string& text : row->first) out << " " << text << " |";
    for (const std::string& name : row->second) out << " `" << name << "`";
    out << " |\n";
  }
  out << "\n| | operators | all samples in kernels | share |\n|---|--:|--:|--:|\n";
  for (size_t k = 0; k < totals.size(); ++k) {
    char share[16];
    std::snprintf(share, sizeof share, "%.0f %%", 100.0 * totals[k].fused / totals[k].all);
    out << "| " << kTransforms[k] << " | " << totals[k].all << " | " << totals[k].fused << " | " << share << " |\n";
  }
  return out.str();
}

}  // namespace docs
