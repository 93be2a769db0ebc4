// unwrap_calls goes through the nodes; each of the three kinds of calls has a function that appends what it means.
#include "exported/unwrapped.h"

#include <ATen/Functions.h>
#include <ATen/native/TypeProperties.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "exported/program.h"

namespace tower::exported {
namespace {

std::string place_of(const Node& node) { return "step " + node.name + " (" + node.target + ")"; }

[[noreturn]] void fail(const Node& node, const std::string& why) { throw FileError(place_of(node) + " " + why); }

/// The target that an argument names.
std::string called_by(const Node& node, size_t place) {
  if (node.inputs.size() > place)
    if (const auto* name = std::get_if<IValue>(&node.inputs[place].value.value); name && name->isString())
      return name->toStringRef();
  fail(node, "does not say which operator it calls");
}

/// Gives arguments that are given by their places the names of the operator's signature.
void name_arguments(Node& node, const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].name.empty()) continue;
    if (i >= schema.arguments().size()) fail(node, "has more arguments than the operator");
    node.inputs[i].name = schema.arguments()[i].name();
  }
}

/// A call that writes, as one of copies.
class CallOfCopies {
 public:
  CallOfCopies(const Node& node, std::vector<Node>& nodes, const FindMeta& meta_of)
      : node_(node), nodes_(nodes), meta_of_(meta_of) {}

  void append() {
    Node call{node_.name, called_by(node_, 0), {}, {}};
    const auto op = find_operator(call.target);
    if (!op) {
      // Its name will be refused.
      call.outputs = node_.outputs;
      nodes_.push_back(std::move(call));
      return;
    }
    for (size_t i = 1; i < node_.inputs.size(); ++i)
      if (!given_.emplace(node_.inputs[i].name, node_.inputs[i].value).second) fail(node_, "has an argument twice");
    // One result that is None where the operator has none.
    const size_t results = op->schema().returns().size(), own = std::max<size_t>(results, 1);
    next_ = own;
    if (const auto bases = given_.find("_all_bases"); bases != given_.end()) {
      const auto* list = std::get_if<std::vector<Argument>>(&bases->second.value);
      if (!list) fail(node_, "has no list of what is written to");
      bases_ = *list;
      note_strided();
      for (size_t i = 0; i < bases_.size(); ++i) bases_[i] = copied(bases_[i], strided_.count(i) != 0);
      given_.erase(bases);
      for (const c10::Argument& argument : op->schema().arguments())
        if (writes(argument)) call.inputs.push_back({argument.name(), written(argument)});
    } else {
      for (const c10::Argument& argument : op->schema().arguments())
        if (writes(argument)) call.inputs.push_back({argument.name(), copied(taken(argument.name()), false)});
    }
    if (next_ != node_.outputs.size()) fail(node_, "has another number of results than what it writes to");
    for (auto& [name, argument] : given_) call.inputs.push_back({name, std::move(argument)});
    call.outputs.assign(node_.outputs.begin(), node_.outputs.begin() + static_cast<std::ptrdiff_t>(results));
    nodes_.push_back(std::move(call));
  }

 private:
  static bool writes(const c10::Argument& argument) {
    return argument.alias_info() && argument.alias_info()->isWrite();
  }

  Argument taken(const std::string& name) {
    const auto found = given_.find(name);
    if (found == given_.end()) fail(node_, "lacks the argument \"" + name + "\"");
    Argument argument = std::move(found->second);
    given_.erase(found);
    return argument;
  }
  /// A number that says where a view lies; nothing where it is None.
  std::optional<int64_t> number(const std::string& name) {
    const Argument argument = taken(name);
    if (std::holds_alternative<std::monostate>(argument.value)) return std::nullopt;
    const auto* value = std::get_if<IValue>(&argument.value);
    if (!value || !value->isInt()) fail(node_, "has an argument \"" + name + "\" that is no number");
    return value->toInt();
  }

  /// Which bases are seen by strides.
  void note_strided() {
    constexpr std::string_view end = "_storage_offset";
    for (const auto& [name, argument] : given_) {
      if (name.size() <= end.size() || name.compare(name.size() - end.size(), end.size(), end) != 0) continue;
      const auto base = given_.find(name.substr(0, name.size() - end.size()) + "_base_index");
      if (base == given_.end()) continue;
      if (const auto* index = std::get_if<IValue>(&base->second.value); index && index->isInt())
        strided_.insert(static_cast<size_t>(index->toInt()));
    }
  }
  /// Strides that a view was exported with are those of memory without gaps; of other memory it would be another view.
  void check_contiguous(const std::string& name) {
    const TensorMeta meta = meta_of_(name);
    int64_t expected = 1;
    bool contiguous = meta.offset.is_constant() && meta.offset.value() == 0;
    for (size_t d = meta.sizes.size(); contiguous && d-- > 0;) {
      contiguous = meta.sizes[d].is_constant() && meta.strides[d].is_constant() &&
                   (meta.sizes[d].value() == 1 || meta.strides[d].value() == expected);
      if (contiguous) expected *= meta.sizes[d].value();
    }
    if (!contiguous)
      throw NotSupported(place_of(node_) + " writes to a view of " + name +
                         " by strides, and that is not contiguous, or of sizes that vary: write to a copy of the view");
  }

  /// The copy of a tensor or list, which is the call's next result.
  Argument copied(const Argument& argument, bool contiguous) {
    const Argument result = next_ < node_.outputs.size() ? node_.outputs[next_] : Argument();
    ++next_;
    return copied_to(argument, result, contiguous);
  }
  Argument copied_to(const Argument& argument, const Argument& result, bool contiguous) {
    if (const auto* list = std::get_if<std::vector<Argument>>(&argument.value)) {
      const auto* results = std::get_if<std::vector<Argument>>(&result.value);
      if (!results || results->size() != list->size()) fail(node_, "gives another list than it writes to");
      std::vector<Argument> copies;
      for (size_t i = 0; i < list->size(); ++i) copies.push_back(copied_to((*list)[i], (*results)[i], contiguous));
      return {std::move(copies)};
    }
    const auto* name = std::get_if<Name>(&argument.value);
    if (!name) return argument;
    if (contiguous) check_contiguous(name->text);
    const Argument copy = std::holds_alternative<Name>(result.value) ? result : fresh();
    const auto format = contiguous ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve;
    nodes_.push_back({node_.name,
                      "torch.ops.aten.clone.default",
                      {{"self", argument}, {"memory_format", {IValue(static_cast<int64_t>(format))}}},
                      {copy}});
    return copy;
  }
  /// A name that no value of Python's has.
  Argument fresh() { return {Name{node_.name + "#" + std::to_string(count_++)}}; }

  /// What an argument that is written to is, in terms of the copies.
  Argument written(const c10::Argument& argument) {
    c10::TypePtr type = argument.type();
    if (const auto maybe = type->cast<c10::OptionalType>()) type = maybe->getElementType();
    const std::string name = "_" + argument.name();
    if (!type->cast<c10::ListType>()) return view(name);
    const auto length = number(name + "_length");
    if (!length) return {};
    if (*length < 0 || static_cast<size_t>(*length) > given_.size()) fail(node_, "has a list of another length");
    std::vector<Argument> list;
    for (int64_t i = 0; i < *length; ++i) list.push_back(view(name + "_" + std::to_string(i)));
    return {std::move(list)};
  }
  Argument view(const std::string& name) {
    const auto index = number(name + "_base_index");
    if (!index) return {};
    if (*index < 0 || static_cast<size_t>(*index) >= bases_.size()) fail(node_, "writes to a tensor that is not there");
    const Argument& base = bases_[static_cast<size_t>(*index)];
    const auto is_given = [&](const char* what) { return given_.count(name + what) != 0; };
    if (is_given("_alias")) {
      taken(name + "_alias");
      return base;
    }
    const auto seen = [&](const char* target, std::vector<NamedArgument> inputs) {
      inputs.insert(inputs.begin(), {"self", base});
      const Argument result = fresh();
      nodes_.push_back({node_.name, target, std::move(inputs), {result}});
      return result;
    };
    if (is_given("_storage_offset"))
      return seen("torch.ops.aten.as_strided.default", {{"size", taken(name + "_size")},
                                                        {"stride", taken(name + "_stride")},
                                                        {"storage_offset", taken(name + "_storage_offset")}});
    if (is_given("_slice_dim"))
      return seen("torch.ops.aten.slice.Tensor", {{"dim", taken(name + "_slice_dim")},
                                                  {"start", taken(name + "_slice_start")},
                                                  {"end", taken(name + "_slice_end")}});
    return base;
  }

  const Node& node_;
  std::vector<Node>& nodes_;
  const FindMeta& meta_of_;
  std::map<std::string, Argument> given_;
  std::vector<Argument> bases_;
  std::set<size_t> strided_;
  size_t next_ = 0, count_ = 0;
};

// with_effects(token, operator, arguments…) gives a token and the operator's results.
void append_effect(const Node& node, std::vector<Node>& nodes) {
  if (node.inputs.size() < 2 || node.outputs.empty()) fail(node, "has no token");
  Node call{node.name, called_by(node, 1), {node.inputs.begin() + 2, node.inputs.end()}, {}};
  call.outputs.assign(node.outputs.begin() + 1, node.outputs.end());
  if (const auto op = find_operator(call.target)) {
    name_arguments(call, op->schema());
    if (op->schema().returns().empty()) call.outputs.clear();  // a None
  }
  nodes.push_back(std::move(call));
}

// out_dtype(operator, dtype, arguments…): in the dtype of the arguments and that one together, then cast to that one.
void append_wide(const Node& node, std::vector<Node>& nodes, const FindMeta& meta_of) {
  Node call{node.name, called_by(node, 0), {}, {}};
  const auto* wanted = node.inputs.size() > 1 ? std::get_if<IValue>(&node.inputs[1].value.value) : nullptr;
  if (!wanted || !wanted->isInt() || node.outputs.size() != 1) fail(node, "has no dtype, or several results");
  if (wanted->toInt() < 0 || wanted->toInt() >= static_cast<int64_t>(at::ScalarType::NumOptions))
    fail(node, "has a dtype that is none");
  const auto dtype = static_cast<at::ScalarType>(wanted->toInt());
  call.inputs.assign(node.inputs.begin() + 2, node.inputs.end());

  int64_t together = 0;
  try {
    at::native::ResultTypeState state = {};
    state = at::native::update_result_type_state(at::empty({1}, dtype), state);
    for (const NamedArgument& input : call.inputs) {
      if (const auto* name = std::get_if<Name>(&input.value.value)) {
        const TensorMeta meta = meta_of(name->text);
        const std::vector<int64_t> sizes(meta.sizes.empty() ? 0 : 1, 1);  // without dimensions it counts as a number
        state = at::native::update_result_type_state(at::empty(sizes, meta.dtype), state);
      } else if (const auto* value = std::get_if<IValue>(&input.value.value); value && value->isScalar()) {
        state = at::native::update_result_type_state(value->toScalar(), state);
      }
    }
    together = static_cast<int64_t>(at::native::result_type(state));
  } catch (const c10::Error&) {
    fail(node, "has dtypes that have none in common");
  }
  const auto cast = [&](const Argument& from, const Argument& to, int64_t as) {
    nodes.push_back({node.name, "torch.ops.aten.to.dtype", {{"self", from}, {"dtype", {IValue(as)}}}, {to}});
  };
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!std::holds_alternative<Name>(call.inputs[i].value.value)) continue;
    const Argument wide{Name{node.name + "#" + std::to_string(i)}};
    cast(call.inputs[i].value, wide, together);
    call.inputs[i].value = wide;
  }
  if (const auto op = find_operator(call.target)) name_arguments(call, op->schema());
  const Argument result{Name{node.name + "#"}};
  call.outputs.push_back(result);
  nodes.push_back(std::move(call));
  cast(result, node.outputs.front(), static_cast<int64_t>(dtype));
}

}  // namespace

void unwrap_calls(Graph& graph, const FindMeta& meta_of) {
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    if (node.target == "torch.ops.higher_order.auto_functionalized" ||
        node.target == "torch.ops.higher_order.auto_functionalized_v2")
      CallOfCopies(node, nodes, meta_of).append();
    else if (node.target == "torch.ops.higher_order.with_effects") append_effect(node, nodes);
    else if (node.target == "torch.ops.higher_order.out_dtype") append_wide(node, nodes, meta_of);
    else nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

}  // namespace tower::exported
