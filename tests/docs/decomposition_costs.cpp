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

// The first sample of an operator as a function of its tensors.
struct Sampled {
  td::Function f;
  td::Tensors leaves;
  std::vector<bool> mappable, differentiable;

  explicit Sampled(const op_db::Entry& entry) {
    const auto dtype = entry.real ? at::kDouble : at::kComplexDouble;
    const auto sample = op_db::parse_sample(entry, entry.sample_texts[0], dtype);
    leaves = op_db::make_leaves(entry, sample, dtype, 0);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto& spec = sample.leaves[i].spec;
      leaves[i] = op_db::projected(spec, leaves[i]);
      mappable.push_back(!spec.unmapped);
      differentiable.push_back(spec.differentiable());
    }
    f = [op = *entry.op, sample](const td::Tensors& in) {
      td::Tensors defined;
      for (auto& t : op_db::call(op, sample, in))
        if (t.defined()) defined.push_back(t);
      return defined;
    };
  }

  // `f` of the tensors in `chosen`, the others as they are.
  td::Function partial() const {
    return [*this](const td::Tensors& in) {
      td::Tensors all = leaves, result;
      for (size_t i = 0, next = 0; i < all.size(); ++i)
        if (differentiable[i]) all[i] = in[next++];
      for (const auto& t : f(all))
        if (t.is_floating_point() || t.is_complex()) result.push_back(t);
      return result;
    };
  }
  td::Tensors primals() const {
    td::Tensors result;
    for (size_t i = 0; i < leaves.size(); ++i)
      if (differentiable[i]) result.push_back(leaves[i]);
    return result;
  }

  void run(const std::string& transform) const {
    if (transform == "vmap") {
      td::Dims dims;
      td::Tensors batch;
      for (size_t i = 0; i < leaves.size(); ++i) {
        dims.push_back(mappable[i] ? std::optional<int64_t>(0) : std::nullopt);
        batch.push_back(mappable[i] ? at::stack({leaves[i], leaves[i]}) : leaves[i]);
      }
      td::vmap(f, dims, {0})(batch);
    } else if (transform == "vjp") {
      const auto [outputs, pullback] = td::vjp(partial(), primals());
      // Inside of a transform its operators are seen.
      td::vjp(
          [&](const td::Tensors& unused) {
            pullback(outputs);
            return unused;
          },
          {at::zeros({})});
    } else {
      td::jvp(partial(), primals(), primals());
    }
  }
};

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
        count = kernels([&] { Sampled(*entry).run(transform); });
      if (count) out << " " << *count << " |";
      else out << " |";
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace docs
