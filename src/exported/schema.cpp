// The schema's JSON, read into types. A union there is an object with one field, whose name says which of its types it
// is ({"as_tensor": {"name": "x"}}); a tree spec is a string that is JSON again.
#include "exported/schema.h"

#if __has_include(<nlohmann/json.hpp>)
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <functional>

#include "exported/json.h"
#include "exported/unwrapped.h"

namespace tower::exported {
namespace {

using c10::IValue;

constexpr int64_t kMajor = 8;     // of the schema
constexpr int kDeepest = 64;      // graphs in graphs, trees in trees
constexpr int64_t kTreeSpec = 1;  // version of the string of a tree spec

/// Calls visit(name of the type, its value) for a union.
template <class Visit>
void read_union(const Json& json, Visit&& visit) {
  int there = 0;
  json.each_field([&](const std::string& type, const Json& value) {
    if (!value.is_null() && there++ == 0) visit(type, value);
  });
  if (there != 1) json.fail("is none of its types, or several");
}

at::ScalarType read_dtype(const Json& json) {
  static const std::map<int64_t, at::ScalarType> known = {
      {1, at::kByte},
      {2, at::kChar},
      {3, at::kShort},
      {4, at::kInt},
      {5, at::kLong},
      {6, at::kHalf},
      {7, at::kFloat},
      {8, at::kDouble},
      {9, at::kComplexHalf},
      {10, at::kComplexFloat},
      {11, at::kComplexDouble},
      {12, at::kBool},
      {13, at::kBFloat16},
      {28, at::kUInt16},
      {29, at::kFloat8_e4m3fn},
      {30, at::kFloat8_e5m2},
      {31, at::kFloat8_e4m3fnuz},
      {32, at::kFloat8_e5m2fnuz},
      {33, at::kFloat8_e8m0fnu},
      {34, at::kUInt32},
      {35, at::kUInt64},
  };
  const auto found = known.find(json.integer());
  if (found == known.end()) json.fail("is no dtype: " + std::to_string(json.integer()));
  return found->second;
}

IValue read_layout(const Json& json) {
  if (json.integer() != 7)
    throw NotSupported(json.place() + ": a layout other than strided (" + std::to_string(json.integer()) + ")");
  return static_cast<int64_t>(at::kStrided);
}

IValue read_memory_format(const Json& json) {
  switch (json.integer()) {
    case 1:
      return static_cast<int64_t>(at::MemoryFormat::Contiguous);
    case 2:
      return static_cast<int64_t>(at::MemoryFormat::ChannelsLast);
    case 3:
      return static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d);
    case 4:
      return static_cast<int64_t>(at::MemoryFormat::Preserve);
    default:
      json.fail("is no memory format: " + std::to_string(json.integer()));
  }
}

at::Device read_device(const Json& json) {
  const std::string type = json["type"].text();
  const std::string index = json.has("index") ? ":" + std::to_string(json["index"].integer()) : "";
  try {
    return at::Device(type + index);
  } catch (const c10::Error&) {
    json.fail("is no device: " + type + index);
  }
}

SizeExpression read_size(const Json& json) {
  SizeExpression size;
  read_union(json, [&](const std::string& type, const Json& value) {
    if (type == "as_int") size = value.integer();
    else if (type == "as_expr") size = SizeExpression::parse(value["expr_str"].text());
    else value.fail("is of a type that is not known");
  });
  return size;
}

TensorMeta read_meta(const Json& json) {
  TensorMeta meta{read_dtype(json["dtype"]), {}, {}, read_size(json["storage_offset"]), read_device(json["device"])};
  json["sizes"].each([&](const Json& size) { meta.sizes.push_back(read_size(size)); });
  json["strides"].each([&](const Json& stride) { meta.strides.push_back(read_size(stride)); });
  if (meta.sizes.size() != meta.strides.size()) json.fail("has sizes and strides of different numbers");
  read_layout(json["layout"]);
  return meta;
}

Graph read_graph(const Json& json, int depth);

Argument read_name(const Json& json) { return {Name{json["name"].text()}}; }

template <class Read>
Argument read_list(const Json& json, Read&& read) {
  std::vector<Argument> list;
  list.reserve(json.size());
  json.each([&](const Json& element) { list.push_back(read(element)); });
  return {std::move(list)};
}

Argument read_integer(const Json& json) { return {IValue(json.integer())}; }
Argument read_number(const Json& json) { return {IValue(json.number())}; }
Argument read_boolean(const Json& json) { return {IValue(json.boolean())}; }
Argument read_text(const Json& json) { return {IValue(json.text())}; }

/// A value by its name, or a constant; a tensor by its name, or nothing.
Argument read_name_or(const Json& json) {
  Argument result;
  read_union(json, [&](const std::string& type, const Json& value) {
    if (type == "as_name") result = {Name{value.text()}};
    else if (type == "as_tensor") result = read_name(value);
    else if (type == "as_int") result = read_integer(value);
    else if (type == "as_float") result = read_number(value);
    else if (type == "as_bool") result = read_boolean(value);
    else if (type != "as_none") value.fail("is of a type that is not known");
  });
  return result;
}

Argument read_argument(const Json& json, int depth) {
  using Read = std::function<Argument(const Json&)>;
  const auto list_of = [](Read read) -> Read { return [read](const Json& value) { return read_list(value, read); }; };
  static const std::map<std::string, Read> types = {
      {"as_none", [](const Json&) { return Argument(); }},
      {"as_tensor", read_name},
      {"as_tensors", list_of(read_name)},
      {"as_optional_tensor", read_name_or},
      {"as_optional_tensors", list_of(read_name_or)},
      {"as_nested_tensors", list_of(list_of(read_name))},
      {"as_int", read_integer},
      {"as_ints", list_of(read_integer)},
      {"as_int_lists", list_of(list_of(read_integer))},
      {"as_float", read_number},
      {"as_floats", list_of(read_number)},
      {"as_float_lists", list_of(list_of(read_number))},
      {"as_bool", read_boolean},
      {"as_bools", list_of(read_boolean)},
      {"as_string", read_text},
      {"as_strings", list_of(read_text)},
      {"as_sym_int", read_name_or},
      {"as_sym_ints", list_of(read_name_or)},
      {"as_sym_float", read_name_or},
      {"as_sym_floats", list_of(read_name_or)},
      {"as_sym_bool", read_name_or},
      {"as_sym_bools", list_of(read_name_or)},
      {"as_scalar_type", [](const Json& v) { return Argument{IValue(static_cast<int64_t>(read_dtype(v)))}; }},
      {"as_layout", [](const Json& v) { return Argument{read_layout(v)}; }},
      {"as_memory_format", [](const Json& v) { return Argument{read_memory_format(v)}; }},
      {"as_device", [](const Json& v) { return Argument{IValue(read_device(v))}; }},
      {"as_complex",
       [](const Json& v) { return Argument{IValue(c10::complex<double>(v["real"].number(), v["imag"].number()))}; }},
      {"as_operator", read_text},
      // Of this only the name is kept, for the message that refuses the call.
      {"as_custom_obj", [](const Json& v) { return Argument{IValue(v["class_fqn"].text())}; }},
  };
  Argument result;
  read_union(json, [&](const std::string& type, const Json& value) {
    if (type == "as_graph") {
      result = {std::make_shared<const Graph>(read_graph(value["graph"], depth + 1))};
    } else if (type == "as_string_to_argument") {
      // A dict: its values, in the order of its keys.
      std::vector<Argument> values;
      value.each_field([&](const std::string&, const Json& v) { values.push_back(read_argument(v, depth)); });
      result = {std::move(values)};
    } else if (const auto found = types.find(type); found != types.end()) {
      result = found->second(value);
    } else {
      throw NotSupported(value.place() + ": an argument of the type " + type);
    }
  });
  return result;
}

Node read_node(const Json& json, int depth) {
  Node node;
  node.target = json["target"].text();
  if (json.has("name")) node.name = json["name"].text();
  json["inputs"].each([&](const Json& input) {
    // A kind that is not there: by its place, and the name is that of the operator's signature.
    node.inputs.push_back({input["name"].text(), read_argument(input["arg"], depth)});
  });
  json["outputs"].each([&](const Json& output) { node.outputs.push_back(read_argument(output, depth)); });
  return node;
}

void keep_metas(const Json& tensors, const Json& integers, const std::vector<Argument>& arguments, Graph& graph) {
  for (const Argument& argument : arguments) {
    const Name* name = std::get_if<Name>(&argument.value);
    if (!name) continue;
    if (tensors.has(name->text.c_str())) graph.tensors.emplace(name->text, read_meta(tensors[name->text.c_str()]));
    if (integers.has(name->text.c_str())) graph.integers.emplace(name->text, read_size(integers[name->text.c_str()]));
  }
}

Graph read_graph(const Json& json, int depth) {
  if (depth > kDeepest) json.fail("is nested too deep");
  Graph graph;
  json["inputs"].each([&](const Json& input) { graph.inputs.push_back(read_argument(input, depth)); });
  json["nodes"].each([&](const Json& node) { graph.nodes.push_back(read_node(node, depth)); });
  json["outputs"].each([&](const Json& output) { graph.outputs.push_back(read_argument(output, depth)); });
  const Json tensors = json["tensor_values"];
  unwrap_calls(graph, [&](const std::string& name) { return read_meta(tensors[name.c_str()]); });
  if (depth == 0) {
    const Json integers = json["sym_int_values"];
    keep_metas(tensors, integers, graph.inputs, graph);
    keep_metas(tensors, integers, graph.outputs, graph);
  }
  return graph;
}

IValue read_fixed(const Json& json) {
  IValue value;
  read_union(json, [&](const std::string& type, const Json& v) {
    if (type == "as_int") value = v.integer();
    else if (type == "as_float") value = v.number();
    else if (type == "as_string") value = v.text();
    else if (type == "as_bool") value = v.boolean();
    else if (type != "as_none") v.fail("is of a type that is not known");
  });
  return value;
}

InputSpec read_input_spec(const Json& json) {
  using Kind = InputSpec::Kind;
  InputSpec spec{Kind::user, {}, false, {}};
  read_union(json, [&](const std::string& type, const Json& value) {
    if (type == "parameter") {
      spec = {Kind::parameter, value["parameter_name"].text(), true, {}};
    } else if (type == "buffer") {
      spec = {Kind::buffer, value["buffer_name"].text(), value["persistent"].boolean(), {}};
    } else if (type == "tensor_constant") {
      spec = {Kind::constant, value["tensor_constant_name"].text(), false, {}};
    } else if (type == "constant_input") {
      spec = {Kind::fixed, value["name"].text(), false, read_fixed(value["value"])};
    } else if (type == "token") {
      spec.kind = Kind::token;
    } else if (type == "custom_obj") {
      throw NotSupported(value.place() + ": an object of a custom class (" + value["custom_obj_name"].text() +
                         "). Export the model with operators in the place of the object's methods");
    } else if (type != "user_input") {
      throw NotSupported(value.place() + ": an input of the type " + type);
    }
  });
  return spec;
}

OutputSpec read_output_spec(const Json& json) {
  using Kind = OutputSpec::Kind;
  OutputSpec spec{Kind::user, {}};
  read_union(json, [&](const std::string& type, const Json& value) {
    if (type == "buffer_mutation") spec = {Kind::writes_weight, value["buffer_name"].text()};
    else if (type == "parameter_mutation") spec = {Kind::writes_weight, value["parameter_name"].text()};
    else if (type == "user_input_mutation") spec = {Kind::writes_input, value["user_input_name"].text()};
    else if (type == "token") spec.kind = Kind::token;
    else if (type != "user_output" && type != "loss_output")
      throw NotSupported(value.place() + ": an output of the type " + type);
  });
  return spec;
}

/// Takes the elements out of `list` whose specs are tokens. (Where numbers differ, the model is refused later.)
template <class Spec>
void drop_tokens(std::vector<Argument>& list, std::vector<Spec>& specs) {
  if (list.size() != specs.size()) return;
  size_t kept = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind == Spec::Kind::token) continue;
    if (kept != i) {
      list[kept] = std::move(list[i]);
      specs[kept] = std::move(specs[i]);
    }
    ++kept;
  }
  list.resize(kept);
  specs.resize(kept);
}
/// Tokens keep calls in their order, which is that of the file (unwrapped.h).
void drop_tokens(ExportedProgram& program) {
  drop_tokens(program.graph.inputs, program.inputs);
  drop_tokens(program.graph.outputs, program.outputs);
}

/// The keys of a dict, from the context of its tree spec.
std::vector<std::string> read_keys(const std::string& context) {
  const nlohmann::json document = Json::parse(context, "the keys of a tree spec");
  std::vector<std::string> keys;
  const Json root(document, "the keys of a tree spec");
  const auto read = [&](const Json& key) {
    if (!key.is_text()) throw NotSupported(key.place() + ": a dict whose keys are no strings");
    keys.push_back(key.text());
  };
  if (document.is_array()) root.each(read);
  else root["dict_context"].each(read);  // of a defaultdict
  return keys;
}

/// Names of fields, by the names of namedtuples.
using NamedTuples = std::map<std::string, std::vector<std::string>>;

NamedTuples read_named_tuples(const Json& module) {
  NamedTuples all;
  if (module.has("treespec_namedtuple_fields"))
    module["treespec_namedtuple_fields"].each_field([&](const std::string& name, const Json& tuple) {
      tuple["field_names"].each([&](const Json& field) { all[name].push_back(field.text()); });
    });
  return all;
}

/// The names of the fields that a dataclass has, from the context of its tree spec, which is of two lists: of these,
/// and of those that were None. None where the class is another, which says something else there.
std::vector<std::string> read_fields(const std::string& context) {
  const nlohmann::json document = nlohmann::json::parse(context, nullptr, /*allow_exceptions=*/false);
  const auto is_list = [](const nlohmann::json& list) { return list.is_array(); };
  const auto is_name = [](const nlohmann::json& name) { return name.is_string(); };
  if (!document.is_array() || document.size() != 2 || !std::all_of(document.begin(), document.end(), is_list) ||
      !std::all_of(document[0].begin(), document[0].end(), is_name))
    return {};
  return document[0].get<std::vector<std::string>>();
}

ExportedTree read_tree(const Json& json, const NamedTuples& named, int depth) {
  if (depth > kDeepest) json.fail("is nested too deep");
  ExportedTree tree;
  const Json children = json["children_spec"];
  if (!json.has("type")) {
    if (children.size() != 0) json.fail("is a leaf with children");
    return tree;
  }
  const auto last_part = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };  // npos + 1: all
  const std::string type = json["type"].text();
  const Json context = json["context"];
  tree.text = last_part(type);
  const bool mapping =
      type == "builtins.dict" || type == "collections.OrderedDict" || type == "collections.defaultdict";
  tree.kind = mapping ? ExportedTree::Kind::mapping : ExportedTree::Kind::sequence;
  children.each([&](const Json& child) { tree.children.push_back(read_tree(child, named, depth + 1)); });
  if (mapping) {
    tree.keys = read_keys(context.text());
    if (tree.keys.size() != tree.children.size()) json.fail("has keys and children of different numbers");
    return tree;
  }
  if (!context.is_text()) return tree;
  if (const auto fields = named.find(context.text()); type == "collections.namedtuple" && fields != named.end()) {
    tree.text = last_part(context.text());
    tree.keys = fields->second;
  } else {
    tree.keys = read_fields(context.text());
  }
  if (tree.keys.size() != tree.children.size()) tree.keys.clear();
  return tree;
}

ExportedTree read_tree_spec(const Json& json, const NamedTuples& named) {
  const nlohmann::json document = Json::parse(json.text(), json.place());
  const Json root(document, "the tree spec");
  if (root.size() != 2) json.fail("is no tree spec");
  ExportedTree tree;
  size_t place = 0;
  root.each([&](const Json& part) {
    if (place++ == 0) {
      if (part.integer() != kTreeSpec)
        throw NotSupported("tree specs of version " + std::to_string(part.integer()) + " (1 is known)");
    } else {
      tree = read_tree(part, named, 0);
    }
  });
  return tree;
}

void check_version(const Json& json, bool any_version) {
  const int64_t major = json["major"].integer(), minor = json["minor"].integer();
  if (major != kMajor && !any_version)
    throw NotSupported("a file of version " + std::to_string(major) + "." + std::to_string(minor) +
                       " of torch.export's schema: 8 is known. The option any_version reads it all the same");
}

}  // namespace

ExportedProgram read_program(const std::string& text, bool any_version) {
  const nlohmann::json document = Json::parse(text, "the model");
  const Json root(document, "model");
  check_version(root["schema_version"], any_version);
  ExportedProgram program;
  const Json module = root["graph_module"];
  program.graph = read_graph(module["graph"], 0);
  const Json signature = module["signature"];
  signature["input_specs"].each([&](const Json& spec) { program.inputs.push_back(read_input_spec(spec)); });
  signature["output_specs"].each([&](const Json& spec) { program.outputs.push_back(read_output_spec(spec)); });
  drop_tokens(program);
  const NamedTuples named = read_named_tuples(module);
  bool found = false;
  module["module_call_graph"].each([&](const Json& entry) {
    // The model itself is the module without a name.
    if (found || !entry["fqn"].text().empty() || !entry.has("signature")) return;
    found = true;
    const Json call = entry["signature"];
    program.arguments = read_tree_spec(call["in_spec"], named);
    program.results = read_tree_spec(call["out_spec"], named);
    if (call.has("forward_arg_names"))
      call["forward_arg_names"].each([&](const Json& name) { program.argument_names.push_back(name.text()); });
  });
  if (!found) module.fail("does not say how the model is called");
  root["range_constraints"].each_field([&](const std::string& symbol, const Json& range) {
    Range& bounds = program.ranges[symbol];
    if (range.has("min_val")) bounds.least = range["min_val"].integer();
    if (range.has("max_val")) bounds.most = range["max_val"].integer();
  });
  if (root.has("guards_code"))
    root["guards_code"].each([&](const Json& guard) { program.guards.push_back(guard.text()); });
  if (root.has("torch_version")) program.torch_version = root["torch_version"].text();
  return program;
}

std::map<std::string, Payload> read_payloads(const std::string& text) {
  const nlohmann::json document = Json::parse(text, "the list of weights");
  const Json root(document, "weights");
  std::map<std::string, Payload> payloads;
  root["config"].each_field([&](const std::string& name, const Json& payload) {
    if (payload["use_pickle"].boolean())
      throw NotSupported(payload.place() + ": a tensor subclass or object that is pickled, which would be run as code");
    payloads.emplace(name, Payload{payload["path_name"].text(), read_meta(payload["tensor_meta"])});
  });
  return payloads;
}

std::string TensorMeta::text() const {
  std::string text = std::string(c10::toString(dtype)) + " [";
  for (size_t d = 0; d < sizes.size(); ++d) text += (d > 0 ? ", " : "") + sizes[d].text();
  return text + "]";
}

}  // namespace tower::exported

#else

namespace tower::exported {
namespace {
[[noreturn]] void refuse_without_json() {
  throw NotSupported("reading it, as this Tower was built without nlohmann/json.hpp (Debian: nlohmann-json3-dev)");
}
}  // namespace
ExportedProgram read_program(const std::string&, bool) { refuse_without_json(); }
std::map<std::string, Payload> read_payloads(const std::string&) { refuse_without_json(); }
std::string TensorMeta::text() const { return {}; }
}  // namespace tower::exported

#endif
