// Higher-order operators of torch.export, each by Tower's own: a branch, a loop or a checkpoint of a file has whatever
// those have. Their bodies are graphs, run as functions of the tensors that they are given; other values are captured.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "exported/program.h"
#include "frontend/autocast.h"
#include "tower/checkpoint.h"
#include "tower/cond.h"
#include "tower/errors.h"
#include "tower/loops.h"

namespace tower::exported {
namespace {

using dynamic::Tensors;

/// The values of an operand, one or a list, one after the other.
void append_values(const Operand& operand, const Values& values, const Step& step, Values& all) {
  if (operand.kind == Operand::Kind::list)
    for (const Operand& element : operand.list) append_values(element, values, step, all);
  else all.push_back(value_of(operand, values, step));
}

/// Those of the operands from `first` on, without those behind `end`.
Values values_between(const Step& step, const Values& values, size_t first, size_t end) {
  Values all;
  for (size_t i = first; i < std::min(end, step.operands.size()); ++i)
    append_values(step.operands[i], values, step, all);
  return all;
}
Values values_from(const Step& step, const Values& values, size_t first) {
  return values_between(step, values, first, step.operands.size());
}

Tensors tensors_of(const Values& values, const Step& step, const char* what) {
  Tensors tensors;
  tensors.reserve(values.size());
  for (const IValue& v : values) {
    if (!v.isTensor())
      throw UnsupportedError("exported model: step " + step.name + " of " + step.target + " has " + what +
                             " that is no tensor, but " + v.tagKind() + ".");
    tensors.push_back(v.toTensor());
  }
  return tensors;
}

Values as_values(const Tensors& tensors) { return Values(tensors.begin(), tensors.end()); }

/// Runs a body, after a look at the number of its inputs, which a file could have otherwise.
Values run_body(const Program& body, Values inputs, const Step& step) {
  if (body.inputs() != inputs.size())
    throw ArgumentError("exported model: a graph of step " + step.name + " (" + step.target + ") has " +
                        std::to_string(body.inputs()) + " inputs, and is given " + std::to_string(inputs.size()) + ".");
  return body.run(std::move(inputs));
}

/// A body as a function of tensors, behind which it is given `more`.
dynamic::Function function_of(const Operand& body, Values more, const Step& step) {
  return [program = body.program, more = std::move(more),
          name = Step{step.name, step.target, {}, {}, {}, {}, {}, {}}](const Tensors& tensors) {
    Values inputs = as_values(tensors);
    inputs.insert(inputs.end(), more.begin(), more.end());
    return tensors_of(run_body(*program, std::move(inputs), name), name, "a result");
  };
}

/// A body's operands, of which the tensors are passed and the others captured.
struct Passed {
  Values others;
  std::vector<size_t> places;
  Tensors tensors;

  explicit Passed(Values operands) : others(std::move(operands)) {
    for (size_t i = 0; i < others.size(); ++i) {
      if (!others[i].isTensor()) continue;
      places.push_back(i);
      tensors.push_back(others[i].toTensor());
      others[i] = IValue();
    }
  }

  dynamic::Function function_of(const Operand& body, const Step& step) const {
    return [program = body.program, others = others, places = places,
            name = Step{step.name, step.target, {}, {}, {}, {}, {}, {}}](const Tensors& tensors) {
      Values inputs = others;
      for (size_t i = 0; i < places.size(); ++i) inputs[places[i]] = tensors[i];
      return tensors_of(run_body(*program, std::move(inputs), name), name, "a result");
    };
  }
};

// cond(predicate, graph, graph, operands)
Values run_cond(const Step& step, const Values& values) {
  const IValue predicate = value_of(step.operands[0], values, step);
  if (!predicate.isTensor()) {
    const bool holds = predicate.isBool() ? predicate.toBool() : predicate.isInt() && predicate.toInt() != 0;
    return run_body(*step.operands[holds ? 1 : 2].program, values_from(step, values, 3), step);
  }
  const Passed passed(values_from(step, values, 3));
  return as_values(dynamic::cond(predicate.toTensor(), passed.function_of(step.operands[1], step),
                                 passed.function_of(step.operands[2], step), passed.tensors));
}

// while_loop(graph, graph, state, operands)
Values run_while_loop(const Step& step, const Values& values) {
  const Values more = values_from(step, values, 3);
  const auto holds = function_of(step.operands[0], more, step);
  return as_values(dynamic::while_loop(
      [holds](const Tensors& state) {
        const Tensors result = holds(state);
        if (result.size() != 1) throw ArgumentError("exported model: the predicate of a while_loop has no one result.");
        return result.front();
      },
      function_of(step.operands[1], more, step), tensors_of(values_between(step, values, 2, 3), step, "a state")));
}

/// The scan of a body that is given a carry, elements and operands, and gives the next carry and what is stacked.
Values scanned(const Operand& body, const Tensors& start, const Tensors& inputs, const Values& more, const Step& step) {
  const auto function = function_of(body, more, step);
  const size_t carried = start.size();
  auto [last, stacked] = dynamic::scan(
      [function, carried](const Tensors& carry, const Tensors& elements) {
        Tensors both = carry;
        both.insert(both.end(), elements.begin(), elements.end());
        Tensors results = function(both);
        if (results.size() < carried) throw ArgumentError("exported model: the graph of a scan gives no whole carry.");
        Tensors outputs(results.begin() + static_cast<std::ptrdiff_t>(carried), results.end());
        results.resize(carried);
        return std::pair(std::move(results), std::move(outputs));
      },
      start, inputs);
  Values results = as_values(last);
  results.insert(results.end(), stacked.begin(), stacked.end());
  return results;
}

// scan(graph, carry, inputs, operands)
Values run_scan(const Step& step, const Values& values) {
  return scanned(step.operands[0], tensors_of(values_between(step, values, 1, 2), step, "a carry"),
                 tensors_of(values_between(step, values, 2, 3), step, "an input"), values_from(step, values, 3), step);
}

// map_impl(graph, inputs, operands)
Values run_map(const Step& step, const Values& values) {
  return scanned(step.operands[0], {}, tensors_of(values_between(step, values, 1, 2), step, "an input"),
                 values_from(step, values, 2), step);
}

// associative_scan(graph, elements, operands)
Values run_associative_scan(const Step& step, const Values& values) {
  const auto function = function_of(step.operands[0], values_from(step, values, 2), step);
  return as_values(dynamic::associative_scan(
      [function](const Tensors& a, const Tensors& b) {
        Tensors both = a;
        both.insert(both.end(), b.begin(), b.end());
        return function(both);
      },
      tensors_of(values_between(step, values, 1, 2), step, "an element")));
}

// tag_activation_checkpoint(graph, operands...)
Values run_checkpoint(const Step& step, const Values& values) {
  const Passed passed(values_from(step, values, 1));
  return as_values(dynamic::checkpoint(passed.function_of(step.operands[0], step), passed.tensors));
}

// invoke_subgraph(graph, name, operands...)
Values run_invoke_subgraph(const Step& step, const Values& values) {
  return run_body(*step.operands[0].program, values_from(step, values, 2), step);
}

// hints_wrapper(graph, operands, {})
Values run_hints_wrapper(const Step& step, const Values& values) {
  return run_body(*step.operands[0].program, values_from(step, values, 1), step);
}

// wrap_with_set_grad_enabled(enabled, graph, operands...)
Values run_with_grad_mode(const Step& step, const Values& values) {
  const IValue enabled = value_of(step.operands[0], values, step);
  if (!enabled.isBool())
    throw ArgumentError("exported model: step " + step.name + " sets a grad mode that is no bool.");
  const at::AutoGradMode mode(enabled.toBool());
  return run_body(*step.operands[1].program, values_from(step, values, 2), step);
}

// wrap_with_autocast(device, dtype, enabled, cache, graph, operands...)
Values run_with_autocast(const Step& step, const Values& values) {
  const auto given = [&](size_t i) { return value_of(step.operands[i], values, step); };
  const IValue device = given(0), dtype = given(1), enabled = given(2), cache = given(3);
  if (!device.isString() || !(dtype.isInt() || dtype.isNone()) || !enabled.isBool() ||
      !(cache.isBool() || cache.isNone()))
    throw ArgumentError("exported model: step " + step.name + " sets an autocast that is none.");
  const at::DeviceType type = at::Device(device.toStringRef()).type();
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(type);
  frontend::Autocast wanted = frontend::autocast_here();
  wanted.active = enabled.toBool() ? wanted.active.add(key) : wanted.active.remove(key);
  for (auto& [other, its] : wanted.dtypes)
    if (other == type && dtype.isInt()) its = dtype.toScalarType();
  // Whether casts are kept (`cache`) changes no values.
  const frontend::AutocastAs mode(wanted);
  return run_body(*step.operands[4].program, values_from(step, values, 5), step);
}

struct Known {
  HigherOrder run;
  const char* operands;              // g: a graph, l: a list, e: an empty list, v: a value, +: any number more
  bool options_say_nothing = false;  // options are of how Python does it, or for other compilers
};

const Known* find_known(const std::string& target) {
  static const std::map<std::string, Known> known = {
      {"cond", {run_cond, "vggl"}},
      {"while_loop", {run_while_loop, "ggll"}},
      {"scan", {run_scan, "glll"}},
      {"map_impl", {run_map, "gll"}},
      {"associative_scan", {run_associative_scan, "gll"}},
      {"tag_activation_checkpoint", {run_checkpoint, "g+", /*options_say_nothing=*/true}},
      {"invoke_subgraph", {run_invoke_subgraph, "gv+"}},
      {"hints_wrapper", {run_hints_wrapper, "gle", /*options_say_nothing=*/true}},
      {"wrap_with_set_grad_enabled", {run_with_grad_mode, "vg+"}},
      {"wrap_with_autocast", {run_with_autocast, "vvvvg+"}},
  };
  constexpr std::string_view begin = "torch.ops.higher_order.";
  if (target.compare(0, begin.size(), begin) != 0) return nullptr;
  const auto found = known.find(target.substr(begin.size()));
  return found == known.end() ? nullptr : &found->second;
}

}  // namespace

HigherOrder find_higher_order(const std::string& target) {
  const Known* known = find_known(target);
  return known ? known->run : nullptr;
}

std::string_view why_missing(const std::string& target) {
  constexpr std::string_view functorch = "torch._functorch.", higher_order = "torch.ops.higher_order.";
  if (target.compare(0, functorch.size(), functorch) == 0)
    return " (a transform of torch.func that was left open: program.run_decompositions() writes it as operators)";
  if (target.compare(0, higher_order.size(), higher_order) != 0)
    return " (load the library that registers it before the model, or export without it: run_decompositions)";
  static const std::map<std::string, std::string_view> known = {
      {"print", " (it formats as Python does: export the model without it)"},
      {"call_torchbind", " (methods of custom classes: export the model with operators in their place)"},
      {"flex_attention", " (its score is Python's: scaled_dot_product_attention is exported as operators)"},
      {"triton_kernel_wrapper_functional", " (Triton's kernels are not in the file: make a custom operator of it)"},
      {"triton_kernel_wrapper_mutation", " (Triton's kernels are not in the file: make a custom operator of it)"},
      {"aoti_call_delegate", " (compiled code of others: export the model before it is compiled)"},
      {"executorch_call_delegate", " (compiled code of others: export the model before it is lowered)"},
  };
  const auto found = known.find(target.substr(higher_order.size()));
  if (found != known.end()) return found->second;
  return " (Tower has none of that: program.run_decompositions() may write it as operators)";
}

void check_higher_order(const Node& node, Step& step) {
  using Kind = Operand::Kind;
  const Known* known = find_known(step.target);
  std::string_view expected = known->operands;
  const auto fail = [&] {
    throw FileError("step " + step.name + " (" + step.target + ") has other operands than that operator: " +
                    known->operands + " (g: a graph, l: a list, e: an empty list, v: a value, +: more values)");
  };
  size_t positional = 0;
  while (positional < node.inputs.size() && node.inputs[positional].name.empty()) ++positional;
  // An option that is passed over could mean something.
  if (positional < node.inputs.size() && !known->options_say_nothing)
    throw NotSupported("step " + step.name + ": the option " + node.inputs[positional].name + " of " + step.target);
  step.operands.resize(positional);
  for (const Operand& operand : step.operands) {
    if (expected.empty()) fail();
    const char kind = expected.front();
    const bool graph = operand.kind == Kind::program;
    const bool list = operand.kind == Kind::list;
    if (kind == 'g' ? !graph : kind == 'l' ? !list : kind == 'e' ? !list || !operand.list.empty() : graph) fail();
    if (kind != '+') expected.remove_prefix(1);
  }
  if (!expected.empty() && expected != "+") fail();
}

}  // namespace tower::exported
