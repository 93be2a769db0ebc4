#include "exported/program.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>

#include "tower/errors.h"

namespace tower::exported {
namespace {

using As = Operand::As;
using Kind = Operand::Kind;

/// The values of a graph that are known so far, by name.
class Scope {
 public:
  size_t define(const std::string& name) {
    if (!places_.emplace(name, places_.size()).second) throw FileError("value \"" + name + "\" is made twice");
    return places_.size() - 1;
  }
  size_t find(const std::string& name, const std::string& reader) const {
    const auto found = places_.find(name);
    if (found == places_.end()) throw FileError(reader + " reads \"" + name + "\", which nothing before it makes");
    return found->second;
  }
  size_t size() const { return places_.size(); }

 private:
  std::unordered_map<std::string, size_t> places_;
};

Operand operand_of(const Argument& argument, const Scope& scope, const std::string& reader, Missing& missing) {
  Operand operand;
  if (const auto* constant = std::get_if<IValue>(&argument.value)) {
    operand.constant = *constant;
  } else if (const auto* name = std::get_if<Name>(&argument.value)) {
    operand.kind = Kind::value;
    operand.place = scope.find(name->text, reader);
  } else if (const auto* list = std::get_if<std::vector<Argument>>(&argument.value)) {
    operand.kind = Kind::list;
    for (const Argument& element : *list) operand.list.push_back(operand_of(element, scope, reader, missing));
  } else if (const auto* graph = std::get_if<std::shared_ptr<const Graph>>(&argument.value)) {
    operand.kind = Kind::program;
    operand.program = std::make_shared<const Program>(**graph, missing);
  }
  return operand;
}

Targets targets_of(const Argument& argument, Scope& scope, const std::string& maker) {
  const auto place = [&](const Argument& a) -> Target {
    if (const auto* name = std::get_if<Name>(&a.value)) return scope.define(name->text);
    if (!std::holds_alternative<std::monostate>(a.value)) throw FileError(maker + " has a result without a name");
    return std::nullopt;
  };
  if (const auto* list = std::get_if<std::vector<Argument>>(&argument.value)) {
    Targets targets{/*list=*/true, {}};
    for (const Argument& element : *list) targets.places.push_back(place(element));
    return targets;
  }
  return {/*list=*/false, {place(argument)}};
}

/// As what an argument of that type is taken; anything: such arguments can only be left out.
As as_type(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return As::tensor;
    case c10::TypeKind::NumberType:
      return As::number;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return As::real;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return As::integer;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return As::boolean;
    case c10::TypeKind::StringType:
      return As::string;
    case c10::TypeKind::DeviceObjType:
      return As::device;
    default:
      return As::anything;
  }
}

As as_list(As element, bool optional) {
  switch (element) {
    case As::tensor:
      return optional ? As::optional_tensors : As::tensors;
    case As::number:
      return As::numbers;
    case As::real:
      return As::reals;
    case As::integer:
      return As::integers;
    case As::boolean:
      return As::booleans;
    case As::string:
      return As::strings;
    default:
      return As::anything;
  }
}

bool is_number(const IValue& v) { return v.isInt() || v.isDouble() || v.isBool() || v.isComplexDouble(); }

/// For messages.
std::string described(const IValue& v) {
  if (v.isTensor()) return "a tensor";
  return v.isNone() || v.isString() || (is_number(v) && !v.isComplexDouble()) ? text_of(v)
                                                                              : "of the type " + v.tagKind();
}

[[noreturn]] void refuse_operand(const Step& step, const IValue& v) {
  throw ArgumentError("exported model: step " + step.name + " gives " + step.target + " an argument that is " +
                      described(v) + ", which is of another type than it takes.");
}

IValue single(const IValue& v, As as, bool optional, const Step& step) {
  if (v.isNone()) {
    if (optional || as == As::anything) return v;
    refuse_operand(step, v);
  }
  switch (as) {
    case As::tensor:
      if (v.isTensor()) return v;
      if (is_number(v)) {
        // As C++ code that gives a number for a tensor: its type does not decide the result's.
        at::Tensor number = c10::scalar_to_tensor(v.toScalar());
        number.unsafeGetTensorImpl()->set_wrapped_number(true);
        return number;
      }
      break;
    case As::number:
      if (is_number(v)) return v;
      break;
    case As::real:
      if (v.isDouble()) return v;
      if (v.isInt()) return static_cast<double>(v.toInt());
      break;
    case As::integer:
      if (v.isInt()) return v;
      break;
    case As::boolean:
      if (v.isBool()) return v;
      break;
    case As::string:
      if (v.isString()) return v;
      break;
    case As::device:
      if (v.isDevice()) return v;
      break;
    default:
      return v;
  }
  refuse_operand(step, v);
}

template <class T, class Get>
IValue list_of(const Operand& operand, const Values& values, const Step& step, As element, bool optional, Get&& get) {
  c10::List<T> list;
  list.reserve(operand.list.size());
  for (const Operand& e : operand.list) list.push_back(get(single(value_of(e, values, step), element, optional, step)));
  return list;
}

/// A file's calls reach what operators compute; one that opens files by itself is another matter.
bool opens_files(const c10::OperatorHandle& op) { return op.operator_name().name == "aten::from_file"; }

/// Whether a node writes to one of its arguments.
bool writes(const Node& node) {
  const auto op = find_operator(node.target);
  return op && op->schema().is_mutable();
}

/// The exporter writes `view` where it saw strides that allow one; those of a kernel's result are another's under a
/// transform. `reshape` is the same view where there is one, and else a copy, which is no different where nothing
/// writes.
c10::OperatorHandle of_any_strides(const c10::OperatorHandle& op) {
  static const auto reshape = c10::Dispatcher::singleton().findSchemaOrThrow("aten::reshape", "");
  return op.operator_name() == c10::OperatorName("aten::view", "") ? reshape : op;
}

/// What a step is given, in the order of the operator's signature, with defaults for what it is not given.
std::vector<Operand> in_order_of_signature(const Node& node, std::vector<Operand> given,
                                           const c10::FunctionSchema& schema, const std::string& reader) {
  const auto& arguments = schema.arguments();
  std::vector<Operand> operands(arguments.size());
  std::vector<bool> there(arguments.size(), false);
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& name = node.inputs[i].name;
    const auto found =
        std::find_if(arguments.begin(), arguments.end(), [&](const auto& a) { return a.name() == name; });
    const size_t place = static_cast<size_t>(found - arguments.begin());
    if (found == arguments.end() || there[place])
      throw FileError(reader + " has an argument \"" + name + "\", of which " + node.target + " has none, or had one");
    there[place] = true;
    operands[place] = std::move(given[i]);
  }
  for (size_t place = 0; place < arguments.size(); ++place) {
    const c10::Argument& argument = arguments[place];
    Operand& operand = operands[place];
    if (!there[place]) {
      if (!argument.default_value())
        throw FileError(reader + " lacks the argument \"" + argument.name() + "\" of " + node.target);
      operand.constant = *argument.default_value();
      operand.optional = true;
      continue;  // As it is: a default has the type.
    }
    c10::TypePtr type = argument.type();
    if (const auto maybe = type->cast<c10::OptionalType>()) {
      operand.optional = true;
      type = maybe->getElementType();
    }
    if (const auto list = type->cast<c10::ListType>()) {
      const auto maybe = list->getElementType()->cast<c10::OptionalType>();
      operand.as = as_list(as_type(maybe ? *maybe->getElementType() : *list->getElementType()), maybe != nullptr);
      if (operand.kind == Kind::constant && is_number(operand.constant)) {
        // int[2] stride=1: one for all.
        Operand all;
        all.kind = Kind::list;
        all.as = operand.as;
        all.list.assign(static_cast<size_t>(argument.N().value_or(1)), operand);
        for (Operand& element : all.list) element.as = As::anything;
        operand = std::move(all);
      }
    } else {
      operand.as = as_type(*type);
    }
    if (operand.as == As::anything && (operand.kind != Kind::constant || !operand.constant.isNone()))
      throw NotSupported(reader + ": the argument \"" + argument.name() + "\" of " + node.target + ", of the type " +
                         type->str());
  }
  return operands;
}

/// Calls visit(place) for each value that it reads.
template <class Visit>
void for_each_place(const Operand& operand, Visit&& visit) {
  if (operand.kind == Kind::value) visit(operand.place);
  for (const Operand& element : operand.list) for_each_place(element, visit);
}

void keep_results(const Step& step, Values& results, Values& values) {
  const auto keep = [&](const Target& target, IValue value) {
    if (target) values[*target] = std::move(value);
  };
  if (results.size() != step.results.size())
    throw ArgumentError("exported model: step " + step.name + " of " + step.target + " gave " +
                        std::to_string(results.size()) + " results where the file has " +
                        std::to_string(step.results.size()) + ".");
  for (size_t i = 0; i < results.size(); ++i) {
    const Targets& targets = step.results[i];
    if (!targets.list) {
      keep(targets.places.front(), std::move(results[i]));
      continue;
    }
    if (!results[i].isTensorList() || results[i].toListRef().size() != targets.places.size())
      throw ArgumentError("exported model: step " + step.name + " of " + step.target +
                          " gave another list of results than the file has.");
    const auto elements = results[i].toListRef();
    for (size_t e = 0; e < elements.size(); ++e) keep(targets.places[e], elements[e]);
  }
}

/// One place for each result, whether the file has lists of them or not.
void flatten_results(Step& step) {
  std::vector<Targets> flat;
  for (const Targets& targets : step.results)
    for (const Target& place : targets.places) flat.push_back({/*list=*/false, {place}});
  step.results = std::move(flat);
}

}  // namespace

std::optional<c10::OperatorHandle> find_operator(const std::string& target) {
  constexpr std::string_view begin = "torch.ops.";
  if (target.compare(0, begin.size(), begin) != 0) return std::nullopt;
  const size_t space_end = target.find('.', begin.size()), name_end = target.rfind('.');
  if (space_end == target.npos || name_end <= space_end) return std::nullopt;
  const std::string overload = target.substr(name_end + 1);
  return c10::Dispatcher::singleton().findSchema({target.substr(begin.size(), space_end - begin.size()) +
                                                      "::" + target.substr(space_end + 1, name_end - space_end - 1),
                                                  overload == "default" ? "" : overload});
}

std::string text_of(const IValue& v) {
  if (v.isNone()) return "None";
  if (v.isBool()) return v.toBool() ? "True" : "False";
  if (v.isInt()) return std::to_string(v.toInt());
  if (v.isDouble()) {
    std::string text = std::to_string(v.toDouble());
    while (text.back() == '0' && text[text.size() - 2] != '.') text.pop_back();
    return text;
  }
  return v.isString() ? "\"" + v.toStringRef() + "\"" : v.tagKind();
}

IValue value_of(const Operand& operand, const Values& values, const Step& step) {
  if (operand.kind == Kind::value) return single(values[operand.place], operand.as, operand.optional, step);
  if (operand.kind == Kind::constant) {
    if (operand.constant.isList()) return operand.constant;  // a default
    return single(operand.constant, operand.as, operand.optional, step);
  }
  switch (operand.as) {
    case As::tensors:
      return list_of<at::Tensor>(operand, values, step, As::tensor, false,
                                 [](const IValue& v) { return v.toTensor(); });
    case As::optional_tensors:
      return list_of<std::optional<at::Tensor>>(operand, values, step, As::tensor, true, [](const IValue& v) {
        return v.isNone() ? std::nullopt : std::optional(v.toTensor());
      });
    case As::integers:
      return list_of<int64_t>(operand, values, step, As::integer, false, [](const IValue& v) { return v.toInt(); });
    case As::reals:
      return list_of<double>(operand, values, step, As::real, false, [](const IValue& v) { return v.toDouble(); });
    case As::booleans:
      return list_of<bool>(operand, values, step, As::boolean, false, [](const IValue& v) { return v.toBool(); });
    case As::strings:
      return list_of<std::string>(operand, values, step, As::string, false,
                                  [](const IValue& v) { return v.toStringRef(); });
    case As::numbers: {
      c10::impl::GenericList list(c10::NumberType::get());
      for (const Operand& e : operand.list) list.push_back(single(value_of(e, values, step), As::number, false, step));
      return list;
    }
    default:
      refuse_operand(step, IValue("a list"));
  }
}

Program::Program(const Graph& graph, Missing& missing) {
  Scope scope;
  for (const Argument& input : graph.inputs) {
    const auto* name = std::get_if<Name>(&input.value);
    inputs_.push_back(name ? Target(scope.define(name->text)) : std::nullopt);
  }
  const bool any_writes = std::any_of(graph.nodes.begin(), graph.nodes.end(), writes);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    Step step;
    step.name = node.name.empty() ? "nodes[" + std::to_string(n) + "]" : node.name;
    step.target = node.target;
    const std::string reader = "step " + step.name + " (" + node.target + ")";
    for (const NamedArgument& input : node.inputs)
      step.operands.push_back(operand_of(input.value, scope, reader, missing));
    const auto op = find_operator(node.target);
    for (const Argument& output : node.outputs) step.results.push_back(targets_of(output, scope, reader));
    if ((step.size_function = find_size_function(node.target))) {
      if (step.results.size() > 1) throw FileError(reader + " has several results");
      if (op) step.operands = in_order_of_signature(node, std::move(step.operands), op->schema(), reader);
    } else if ((step.higher_order = find_higher_order(node.target))) {
      flatten_results(step);
      check_higher_order(node, step);
    } else if (op && !opens_files(*op)) {
      step.op = any_writes ? *op : of_any_strides(*op);
      const c10::FunctionSchema& schema = op->schema();
      step.operands = in_order_of_signature(node, std::move(step.operands), schema, reader);
      if (step.results.size() != schema.returns().size())
        throw FileError(reader + " has " + std::to_string(step.results.size()) + " results where the operator has " +
                        std::to_string(schema.returns().size()));
    } else {
      missing.insert(node.target + std::string(why_missing(node.target)));
    }
    steps_.push_back(std::move(step));
  }
  for (const Argument& output : graph.outputs)
    outputs_.push_back(operand_of(output, scope, "the graph's result", missing));
  places_ = scope.size();

  // The last step that reads a value, or makes it where none does.
  std::vector<size_t> last(places_, 0);
  for (size_t n = 0; n < steps_.size(); ++n) {
    const auto note = [&](size_t place) { last[place] = n; };
    for (const Targets& targets : steps_[n].results)
      for (const Target& place : targets.places)
        if (place) note(*place);
    for (const Operand& operand : steps_[n].operands) for_each_place(operand, note);
  }
  std::vector<bool> given(places_, false);
  for (const Operand& output : outputs_) for_each_place(output, [&](size_t place) { given[place] = true; });
  if (!steps_.empty())
    for (size_t place = 0; place < places_; ++place)
      if (!given[place]) steps_[last[place]].last_read.push_back(place);
}

Values Program::run(Values inputs) const {
  Values values(places_);
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i]) values[*inputs_[i]] = std::move(inputs[i]);
  Values stack;
  for (const Step& step : steps_) {
    stack.clear();
    if (step.higher_order) {
      stack = step.higher_order(step, values);
    } else {
      for (const Operand& operand : step.operands) stack.push_back(value_of(operand, values, step));
      if (step.size_function) {
        IValue result = step.size_function(stack);
        stack.clear();
        if (!step.results.empty()) stack.push_back(std::move(result));
      } else {
        try {
          step.op->callBoxed(stack);
        } catch (c10::Error& e) {
          e.add_context("in step " + step.name + " of an exported model");
          throw;
        }
      }
    }
    keep_results(step, stack, values);
    for (const size_t place : step.last_read) values[place] = IValue();
  }
  Values outputs;
  static const Step result{"result", "the graph's result", {}, nullptr, nullptr, {}, {}, {}};
  for (const Operand& output : outputs_) outputs.push_back(value_of(output, values, result));
  return outputs;
}

}  // namespace tower::exported
