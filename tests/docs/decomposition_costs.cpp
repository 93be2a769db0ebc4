// What decompositions cost, for docs/coverage.md: how many kernels one call of the operator becomes.
#include "decomposition_costs.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <tower/coverage.h>
#include <tower/decompose.h>
#include <tower/dynamic.h>
#include <tower/explain.h>

#include <functional>
#include <map>
#include <optional>
#include <sstream>

#include "op_db/op_db.h"
#include "sampled.h"
#include "support.h"

namespace docs {
namespace {

namespace td = tower::dynamic;

bool is_view(const std::string& name) {
  const auto dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!op) return false;
  for (const auto& result : op->schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

// Kernels that ran on plain tensors; empty if the call is refused.
std::optional<int64_t> kernels(const std::function<void()>& call) {
  const tower::Explainer explainer;
  try {
    call();
  } catch (const std::exception&) {
    return std::nullopt;
  }
  int64_t count = 0;
  for (const auto& each : explainer.calls())
    if (each.level == "plain" && !is_view(each.op)) count += each.count;
  return count;
}

void run(const Sampled& sampled, const std::string& transform) {
  if (transform == "vmap") {
    sampled.mapped()(sampled.batch(2));
  } else if (transform == "vjp") {
    const auto [outputs, pullback] = td::vjp(sampled.partial(), sampled.primals());
    // Inside of a transform its operators are seen.
    td::vjp(
        [&](const td::Tensors& unused) {
          pullback(outputs);
          return unused;
        },
        {at::zeros({})});
  } else {
    td::jvp(sampled.partial(), sampled.primals(), sampled.primals());
  }
}

}  // namespace

std::string decomposition_costs(const std::string& op_db_folder) {
  std::map<std::string, std::optional<op_db::Entry>> entries;
  for (const auto& name : tower::decomposed_operators()) entries[name];
  for (auto& entry : op_db::load(op_db_folder)) {
    const auto found = entries.find("aten::" + entry.name);
    if (found != entries.end() && !found->second && !entry.sample_texts.empty()) found->second = std::move(entry);
  }
  std::map<std::pair<std::string, std::string>, std::string> served;
  for (const auto& row : tower::coverage()) served[{row.op, row.transform}] = row.served;

  std::ostringstream out;
  out << "| operator | vmap | vjp | jvp |\n|---|--:|--:|--:|\n";
  for (const auto& [name, entry] : entries) {
    out << "| `" << name.substr(6) << "` |";
    for (const std::string transform : {"vmap", "vjp", "jvp"}) {
      std::optional<int64_t> count;
      if (entry && served[{name, transform}] == "decomposition")
        count = kernels([&] { run(Sampled(*entry, entry->sample_texts[0]), transform); });
      if (count) out << " " << *count << " |";
      else out << " |";
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace docs
