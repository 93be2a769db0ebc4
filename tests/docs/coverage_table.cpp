// docs/coverage.md, from what the library says of itself.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>
#include <tower/coverage.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "core/operator.h"
#include "decomposition_costs.h"
#include "fused.h"
#include "missing_rules.h"
#include "support.h"
#include "verbs.h"

namespace docs {
namespace {

// How one operator is served.
struct Service {
  std::string vmap, vjp, jvp;
  auto operator<=>(const Service&) const = default;
};

// The part of an answer that many operators share: a refusal without its reason, an in-place form without its twin.
std::string kind_of(const std::string& served) {
  for (const char* first : {"refused", "error"})
    if (served.starts_with(first)) return first;
  return served;
}

bool writes(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& a) { return a.alias_info() && a.alias_info()->isWrite(); });
}

bool fills_out(const c10::FunctionSchema& schema) { return schema.arguments().back().is_out(); }

// What a record says of elements.
struct Known {
  std::string kernels, patterns;
  auto operator<=>(const Known&) const = default;
};

struct Covered {
  std::map<std::string, Service> functional;
  std::map<std::string, Known> known;                 // of those, where there is something
  std::map<std::string, std::array<int, 2>> writing;  // how operators that write are served -> how many in place, out=
  std::map<std::string, std::set<std::string>> unwritten;  // why operators that write are refused
  std::map<std::string, std::set<std::string>> reasons;    // why operators are refused
};

void note_elements(const tower::Operator& op, std::map<std::string, Known>& known) {
  Known words{known_to_kernels(op), known_to_patterns(op)};
  if (words == Known{}) return;
  for (std::string* text : {&words.kernels, &words.patterns})
    if (text->empty()) *text = op.decomposes() ? "its parts" : "-";
  if (op.no_derivative()) words.patterns = "no derivative";
  known[op.name().substr(6)] = std::move(words);
}

Covered covered() {
  Covered result;
  std::map<std::string, bool> functional, out;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.starts_with("aten::"))
      if (auto op = c10::Dispatcher::singleton().findSchema(name)) {
        functional[c10::toString(name)] = !writes(*op);
        if (!writes(*op)) note_elements(tower::Operator::of(*op), result.known);
        out[c10::toString(name)] = !op->schema().arguments().empty() && fills_out(op->schema());
      }
  for (const auto& row : tower::coverage()) {
    const auto found = functional.find(row.op);
    if (found == functional.end()) continue;
    if (!found->second) {
      if (row.transform != "vmap") continue;
      const bool twin = row.served.starts_with("in-place form of");
      ++result.writing[twin ? "by their functional form" : kind_of(row.served)][out[row.op]];
      if (row.served.starts_with("refused")) result.unwritten[row.served.substr(9)].insert(row.op.substr(6));
      continue;
    }
    Service& service = result.functional[row.op.substr(6)];
    (row.transform == "vmap" ? service.vmap : row.transform == "vjp" ? service.vjp : service.jvp) = kind_of(row.served);
    if (row.served.starts_with("refused")) result.reasons[row.served.substr(9)].insert(row.op.substr(6));
  }
  return result;
}

void counts(std::ostream& out, const Covered& all) {
  std::map<std::string, std::array<int, 3>> by_kind;
  for (const auto& [op, s] : all.functional) {
    ++by_kind[s.vmap.starts_with("family") ? "own rule, by a family" : s.vmap][0];
    ++by_kind[s.vjp][1];
    ++by_kind[s.jvp][2];
  }
  out << "| served by | vmap | vjp | jvp |\n|---|--:|--:|--:|\n";
  for (const auto& [kind, n] : by_kind)
    out << "| " << kind << " | " << n[0] << " | " << n[1] << " | " << n[2] << " |\n";
  out << "| **all** | **" << all.functional.size() << "** | **" << all.functional.size() << "** | **"
      << all.functional.size() << "** |\n";
}

void by_reasons(std::ostream& out) {
  out << "\n## Missing rules\n\n"
      << "Operators that have a rule for one interpreter and lack one for another (`tests/docs/missing_rules.txt`). "
         "Where\n"
      << "kernels of compiled functions have none, LibTorch is called between them; where patterns of sparsity have "
         "none,\n"
      << "all elements depend on all; sizes are of other numbers of examples, to which a compiled function is not "
         "followed\n"
      << "through such a view.\n\n"
      << "| lack one for | why | | operators |\n|---|---|--:|---|\n";
  for (const auto& [interpreter, why, ops] : reasons_for_missing_rules()) {
    out << "| " << interpreter << " | " << why << " | " << ops.size() << " |";
    for (const auto& op : ops) out << " `" << op << "`";
    out << " |\n";
  }
}

void by_verbs(std::ostream& out, const std::map<std::string, Known>& known) {
  out << "\n## What becomes of elements\n\n"
      << "What operators' records say of single elements\n"
      << "([how](adding_an_operator.md#what-compiled-functions-and-sparse-jacobians-know)): to kernels of compiled "
         "functions, and\n"
      << "to patterns of sparsity, where the words are what an element of a result depends on.\n\n"
      << "- **element**: one of the result, of those in its place. **fold**, **rows**: of a row, one number or one for "
         "each.\n"
      << "- **moves**: nothing is computed. **contracts**: a product. **small**: a rule for tensors that are small "
         "enough.\n"
      << "- **its parts**: it is opened up. **-**: LibTorch's, between kernels; all depends on all.\n\n"
      << "| kernels | patterns | | operators |\n|---|---|--:|---|\n";
  std::map<Known, std::vector<std::string>> alike;
  for (const auto& [op, words] : known) alike[words].push_back(op);
  for (const auto& [words, ops] : alike) {
    out << "| " << words.kernels << " | " << words.patterns << " | " << ops.size() << " |";
    for (const auto& op : ops) out << " `" << op << "`";
    out << " |\n";
  }
}

}  // namespace

std::string coverage_document() {
  const Covered all = covered();
  std::ostringstream out;
  out << "<!-- Made by script/coverage. Do not edit. -->\n# Coverage\n\n"
      << "How each operator of LibTorch " << TORCH_VERSION_MAJOR << "." << TORCH_VERSION_MINOR
      << " is served under each transform, as `tower::coverage()` says. Written by `script/coverage`.\n\n"
      << "- **own rule** and **family: …**: rules of Tower's (families are described in `src/records/families.h`); an\n"
      << "  operator that has rules for some of its arguments counts.\n"
      << "- **decomposition**, **composite**: it runs as other operators, by Tower's formula or by LibTorch's.\n"
      << "- **loop**: once for each example, with a warning. **LibTorch autograd**: LibTorch's own formula, which "
         "costs a\n"
      << "  second evaluation. **transposed vjp**: the jvp, from the vjp.\n"
      << "- **no derivative**: its results are integers or piecewise constant, or it takes or returns no tensors.\n"
      << "- **random**: as the `randomness` of `vmap` says. **refused**, **error**: an exception that says why.\n\n"
      << "The table says which rule would be asked, not that every argument works: many of the operators under *loop*\n"
      << "and *LibTorch autograd* are LibTorch's internal kernels, for other devices or layouts. What is tested is in\n"
      << "`tests/op_db/`.\n\n"
      << "## Functional operators\n\n";
  counts(out, all);
  out << "\n## In-place and out= operators\n\nThey run as their functional form, whose rules serve them, and the "
         "result is\nthen written to the tensor, its base and its views. A composite is a sequence of others. The rest "
         "are "
         "refused, under\nevery transform; on plain tensors that no transform tracks all of them work.\n\n"
      << "| under every transform | in-place | out= |\n|---|--:|--:|\n";
  std::array<int, 2> total{};
  for (const auto& [kind, n] : all.writing) {
    out << "| " << kind << " | " << n[0] << " | " << n[1] << " |\n";
    for (size_t k : {0, 1}) total[k] += n[k];
  }
  out << "| **all** | **" << total[0] << "** | **" << total[1] << "** |\n\n| refused | why |\n|---|---|\n";
  for (const auto& [why, ops] : all.unwritten) {
    out << "|";
    for (const auto& op : ops) out << " `" << op << "`";
    out << " | " << why << " |\n";
  }
  out << "\n## Refused\n\n| operators | why |\n|---|---|\n";
  for (const auto& [why, ops] : all.reasons) {
    out << "|";
    for (const auto& op : ops) out << " `" << op << "`";
    out << " | " << why << " |\n";
  }

  by_reasons(out);
  out << "\n## Decompositions\n\n"
      << "How many kernels one call becomes (views are not counted), under the transforms that the decomposition "
         "serves, for the\noperator's first sample in the op database. With a rule of its own an operator is about one "
         "kernel under vmap, and two\nunder vjp (with its pullback) and jvp: that ratio is what a rule of its own "
         "could "
         "gain where tensors are small; where they\nare large, count the kernels that go over all of the data. "
         "`tower/decompose.h` replaces them.\n\n"
      << decomposition_costs(op_db_folder());

  std::map<std::string, std::map<Service, std::vector<std::string>>> by_family;
  for (const auto& [op, service] : all.functional) by_family[service.vmap][service].push_back(op);
  out << "\n## The operators, by how vmap serves them\n";
  for (const auto& [family, services] : by_family) {
    out << "\n### vmap: " << family << "\n\n| vjp | jvp | operators |\n|---|---|---|\n";
    for (const auto& [service, ops] : services) {
      out << "| " << service.vjp << " | " << service.jvp << " |";
      for (const auto& op : ops) out << " `" << op << "`";
      out << " |\n";
    }
  }
  by_verbs(out, all.known);
  out << "\n## Compiled functions\n\n"
      << "Which operators of the database `tests/op_db/` are computed in kernels by functions that are compiled "
         "(docs/compile.md),\nalone, under vmap, and as gradients under vmap: in all of their samples, in some, or in "
         "none; - where there is nothing to\ncompute or to differentiate. Views are not counted, nor are samples "
         "without elements. In none: they are LibTorch's, between\nkernels.\n\n"
      << fused_operators(op_db_folder());
  return out.str();
}

namespace {

TEST(coverage, the_document_is_what_the_library_says) {
  const std::string document = read("docs/coverage.md"), now = coverage_document();
  // Another LibTorch has other operators; the document is of the one that it names.
  const auto heading = [](const std::string& text) { return text.substr(0, text.find(" is served under")); };
  ASSERT_FALSE(document.empty());
  if (heading(document) == heading(now)) {
    EXPECT_TRUE(document == now) << "docs/coverage.md is out of date: run script/coverage";
  }
}

}  // namespace
}  // namespace docs
