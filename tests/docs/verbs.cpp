#include "verbs.h"

#include "numbers/element.h"
#include "numbers/fold.h"
#include "numbers/small.h"

namespace docs {

namespace compiler = tower::compiler;
using tower::Depends;
using tower::Moves;
using tower::Operator;

std::string known_to_kernels(const Operator& op) {
  std::string words;
  const auto add = [&](bool known, const char* word) {
    if (known) words += (words.empty() ? "" : ", ") + std::string(word);
  };
  const compiler::FoldRule* fold = compiler::fold_rule(op);
  add(compiler::element_rule(op), "element");
  add(compiler::small_rule(op), "small");
  add(fold && !fold->goes_on, "fold");
  add(fold && fold->goes_on, "rows");
  add(op.moves != Moves::no, "moves");
  add(op.contraction.has_value(), "contracts");
  return words;
}

namespace {

// Empty where the record does not say it so.
const char* word_of(Depends depends) {
  switch (depends) {
    case Depends::unsaid:
    case Depends::on_all:
      return "";
    case Depends::on_its_place:
      return "its place";
    case Depends::on_second:
      return "its place in the second";
    case Depends::on_moved:
      return "moves";
    case Depends::on_shown:
      return "mask";
    case Depends::on_reduced:
      return "reduced dimensions";
    case Depends::on_dim:
      return "along a dimension";
    case Depends::on_other_two:
      return "the other two";
    case Depends::on_halves:
      return "both halves";
    case Depends::on_last_dims:
      return "last dimensions";
    case Depends::on_plane:
      return "plane";
    case Depends::on_matrices:
      return "matrices";
    case Depends::by_indices:
    case Depends::by_scatter:
    case Depends::by_index_along:
      return "indices";
    case Depends::on_window:
      return "window";
    case Depends::on_pooled_window:
      return "pooled window";
  }
  return "";
}

}  // namespace

// In the order in which sparse/rules.cpp asks.
std::string known_to_patterns(const Operator& op) {
  if (op.depends != Depends::unsaid) return word_of(op.depends);
  if (op.moves != Moves::no) return "moves";
  if (op.contraction) return "product";
  if (op.handle() && !op.foreign() && op.is_view()) return "moves";
  return op.vmap_is_pointwise || op.pointwise_tag() ? "pointwise" : "";
}

}  // namespace docs
