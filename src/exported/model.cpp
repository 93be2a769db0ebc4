#include "exported/model.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

#include "exported/archive.h"
#include "exported/pickle.h"
#include "tower/errors.h"
#include "tower/inspect.h"

namespace tower::exported {

/// Which records of an archive have what.
struct Layout {
  std::string program, folder_of_weights, weights, folder_of_constants, constants;
  bool pickled = false;  // weights and constants are archives of torch.save, each of all of them
};

namespace {

ExportedTree::Leaf kind_of(const IValue& v) {
  using Leaf = ExportedTree::Leaf;
  if (v.isBool()) return Leaf::boolean;
  if (v.isInt()) return Leaf::integer;
  if (v.isDouble()) return Leaf::number;
  if (v.isString()) return Leaf::string;
  return Leaf::none;
}

IValue as_value(const ExportedLeaf& leaf) {
  return std::visit(
      [](const auto& value) -> IValue {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) return IValue();
        else return value;
      },
      leaf);
}

ExportedLeaf as_leaf(const IValue& v) {
  if (v.isTensor()) return v.toTensor();
  if (v.isBool()) return v.toBool();
  if (v.isInt()) return v.toInt();
  if (v.isDouble()) return v.toDouble();
  if (v.isString()) return v.toStringRef();
  if (v.isNone()) return std::monostate();
  throw UnsupportedError("exported model: a result is of the type " + v.tagKind() + ".");
}

bool same(const IValue& a, const IValue& b) {
  if (a.isDouble() && b.isDouble())
    return a.toDouble() == b.toDouble() || (std::isnan(a.toDouble()) && std::isnan(b.toDouble()));
  return kind_of(a) == kind_of(b) && a.isTensor() == b.isTensor() && (a.isNone() || a == b);
}

std::string print_tree(const ExportedTree& tree) {
  if (tree.kind == ExportedTree::Kind::leaf) return tree.text;
  std::string all;
  for (size_t i = 0; i < tree.children.size(); ++i) {
    if (i > 0) all += ", ";
    if (i < tree.keys.size()) all += tree.keys[i] + ": ";
    all += print_tree(tree.children[i]);
  }
  if (tree.kind == ExportedTree::Kind::mapping) return "{" + all + "}";
  return tree.text == "list" ? "[" + all + "]" : tree.text == "tuple" ? "(" + all + ")" : tree.text + "(" + all + ")";
}

/// What a leaf is, and its text.
using Describe = std::function<std::pair<ExportedTree::Leaf, std::string>(size_t)>;

/// Describes the leaves of a tree, of which there are as many as `count`, and gives their names.
void describe_leaves(ExportedTree& tree, size_t count, const Describe& describe, const std::string& what,
                     std::vector<std::string>* names) {
  size_t next = 0;
  const std::function<void(ExportedTree&, const std::string&)> visit = [&](ExportedTree& part,
                                                                           const std::string& name) {
    if (part.kind == ExportedTree::Kind::leaf) {
      if (next == count) throw FileError("the tree of the " + what + " has more leaves than the graph");
      std::tie(part.leaf, part.text) = describe(next++);
      if (names) names->push_back(name);
      return;
    }
    for (size_t i = 0; i < part.children.size(); ++i) {
      const std::string own = i < part.keys.size() ? part.keys[i] : "[" + std::to_string(i) + "]";
      visit(part.children[i], name.empty() || own.front() == '[' ? name + own : name + "." + own);
    }
  };
  visit(tree, "");
  if (next != count) throw FileError("the tree of the " + what + " has fewer leaves than the graph");
}

/// Where a tensor lies in its record: checked so that nothing of it is outside.
at::Tensor tensor_in(const c10::Storage& storage, const Payload& payload, const std::string& name) {
  const auto fail = [&](const std::string& why) { throw FileError("weight \"" + name + "\" " + why); };
  const auto fixed = [&](const SizeExpression& size) {
    if (!size.is_constant() || size.value() < 0) fail("has a size or stride that is no number from 0 on");
    return size.value();
  };
  std::vector<int64_t> sizes, strides;
  int64_t count = 1, last = fixed(payload.meta.offset);
  bool empty = false, overflow = false;
  for (size_t d = 0; d < payload.meta.sizes.size(); ++d) {
    sizes.push_back(fixed(payload.meta.sizes[d]));
    strides.push_back(fixed(payload.meta.strides[d]));
    empty = empty || sizes.back() == 0;
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(count, std::max<int64_t>(sizes.back(), 1), &count);
    overflow |= __builtin_mul_overflow(std::max<int64_t>(sizes.back() - 1, 0), strides.back(), &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  const auto item = static_cast<int64_t>(c10::elementSize(payload.meta.dtype));
  const auto there = static_cast<int64_t>(storage.nbytes()) / item;
  if (overflow) fail("has sizes whose product has more than 64 bits");
  if (!empty && there == 0) fail("was not stored: the model was exported without values");
  if (!empty && last >= there) fail("lies outside of its record \"" + payload.record + "\"");
  if (empty && fixed(payload.meta.offset) > there) fail("begins outside of its record \"" + payload.record + "\"");
  if (!payload.meta.device.is_cpu())
    throw NotSupported("weight \"" + name + "\" on the device " + payload.meta.device.str() +
                       ". Export the model on the CPU, or move it there with torch.export.passes.move_to_device_pass");
  return at::empty({0}, at::TensorOptions(payload.meta.dtype))
      .set_(storage, payload.meta.offset.value(), sizes, strides);
}

std::string chosen_model(const Archive& archive, const std::string& wanted) {
  const auto names = archive.names_between("models/", ".json");
  if (names.empty())
    throw FileError(archive.names_between("data/aotinductor/", "").empty()
                        ? "it has no model"
                        : "it has machine code of AOTInductor but no graph: save the exported program itself");
  if (wanted.empty() && names.size() == 1) return names.front();
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return wanted;
  const std::string all = c10::Join(", ", names);
  throw FileError(wanted.empty() ? "it has several models, of which the option model names one: " + all
                                 : "it has no model \"" + wanted + "\", but " + all);
}

void check_byte_order(Archive& archive) {
  if (archive.has("byteorder") && archive.text("byteorder") != "little")
    throw NotSupported("weights of another byte order");
}

void check_archive(Archive& archive) {
  if (const std::string format = archive.text("archive_format"); format != "pt2")
    throw FileError("its format is \"" + format.substr(0, 20) + "\", and no exported program's (pt2)");
  if (const std::string version = archive.text("archive_version"); version != "0")
    throw NotSupported("an archive of version " + version.substr(0, 20) + " (0 is known)");
  check_byte_order(archive);
}

Layout layout_of(Archive& archive, const std::string& wanted) {
  // Until torch 2.7: a file for each of these, in no folder.
  constexpr const char* single = "serialized_exported_program.json";
  if (archive.has(single)) {
    if (!wanted.empty()) throw FileError("it has one model without a name, and not \"" + wanted + "\"");
    return {single, "", "serialized_state_dict.pt", "", "serialized_constants.pt", /*pickled=*/true};
  }
  check_archive(archive);
  const std::string model = chosen_model(archive, wanted);
  Layout layout{"models/" + model + ".json", "data/weights/", model + "_weights_config.json", "data/constants/",
                model + "_constants_config.json"};
  if (archive.has("data/weights/" + model + ".pt")) {  // torch 2.8
    layout.weights = layout.constants = model + ".pt";
    layout.pickled = true;
  }
  return layout;
}

/// The weights of a file, or its constants: a list says in which records they are.
class StoredTensors {
 public:
  StoredTensors(Archive& archive, const Layout& layout, const std::string& folder, const std::string& list)
      : archive_(&archive), folder_(folder) {
    if (!layout.pickled) {
      payloads_ = read_payloads(archive.text(folder + list));
    } else if ((own_ = archive.archive(folder + list))) {
      check_byte_order(*own_);
      archive_ = &*own_;
      folder_.clear();
      payloads_ = read_pickled_payloads(own_->text("data.pkl"));
    }
  }
  StoredTensors(const StoredTensors&) = delete;
  StoredTensors& operator=(const StoredTensors&) = delete;

  at::Tensor read(const std::string& name) {
    const auto found = payloads_.find(name);
    if (found == payloads_.end()) throw FileError("weight \"" + name + "\" is missing");
    const std::string record = folder_ + found->second.record;
    auto storage = storages_.find(record);
    if (storage == storages_.end()) storage = storages_.emplace(record, archive_->storage(record)).first;
    return tensor_in(storage->second, found->second, name);
  }

 private:
  Archive* archive_;
  std::optional<Archive> own_;
  std::string folder_;
  std::map<std::string, Payload> payloads_;
  std::map<std::string, c10::Storage> storages_;
};

}  // namespace

Model::Model(const std::string& path, const ExportedOptions& options) {
  Archive archive(path);
  const Layout layout = layout_of(archive, options.model);
  ExportedProgram program = read_program(archive.text(layout.program), options.any_version);
  Missing missing;
  program_ = std::make_shared<const Program>(program.graph, missing);
  if (!missing.empty()) throw NotSupported("operators that are not there: " + c10::Join(", ", missing));
  ranges_ = std::move(program.ranges);
  read_inputs(program);
  read_outputs(program);
  shape_arguments(program);
  for (const std::string& guard : program.guards) guards_.emplace_back(guard, user_names_);
  read_weights(archive, layout);
}

void Model::read_inputs(const ExportedProgram& program) {
  if (program.inputs.size() != program.graph.inputs.size())
    throw FileError("the signature has " + std::to_string(program.inputs.size()) + " inputs, and the graph " +
                    std::to_string(program.graph.inputs.size()));
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    Input input{program.inputs[i], {}, {}, {}, {}};
    const Argument& argument = program.graph.inputs[i];
    if (const auto* name = std::get_if<Name>(&argument.value)) input.name = name->text;
    using Kind = InputSpec::Kind;
    if (input.spec.kind == Kind::user) {
      const auto meta = program.graph.tensors.find(input.name);
      const auto number = program.graph.integers.find(input.name);
      if (meta != program.graph.tensors.end()) input.meta = meta->second;
      else if (number != program.graph.integers.end()) input.number = number->second;
      else throw FileError("input \"" + input.name + "\" is neither a tensor nor an integer");
    } else if (input.spec.kind != Kind::fixed) {
      if (input.name.empty()) throw FileError("weight \"" + input.spec.target + "\" is no value of the graph");
      if (!weights_.emplace(input.spec.target, i).second)
        throw FileError("weight \"" + input.spec.target + "\" is there twice");
    }
    if (input.spec.kind == Kind::user || input.spec.kind == Kind::fixed) user_inputs_.push_back(i);
    inputs_.push_back(std::move(input));
  }
}

void Model::read_outputs(const ExportedProgram& program) {
  outputs_ = program.outputs;
  if (outputs_.size() != program_->outputs())
    throw FileError("the signature has " + std::to_string(outputs_.size()) + " results, and the graph " +
                    std::to_string(program_->outputs()));
  for (const OutputSpec& output : outputs_) {
    using Kind = OutputSpec::Kind;
    const bool user = output.kind == Kind::writes_input;
    size_t place = 0;
    if (output.kind != Kind::user) {
      while (place < inputs_.size() && (user ? inputs_[place].name : inputs_[place].spec.target) != output.target)
        ++place;
      if (place == inputs_.size())
        throw FileError("a result is written to \"" + output.target + "\", which is no input");
    }
    written_.push_back(place);
  }
}

void Model::shape_arguments(const ExportedProgram& program) {
  const ExportedTree& spec = program.arguments;
  using Kind = ExportedTree::Kind;
  if (spec.kind != Kind::sequence || spec.children.size() != 2 || spec.children[0].kind != Kind::sequence ||
      spec.children[1].kind != Kind::mapping)
    throw FileError("the tree of the arguments is no pair of positional and keyword arguments");
  arguments_.kind = Kind::sequence;
  arguments_.text = "tuple";
  for (const ExportedTree& child : spec.children[0].children) {
    const size_t i = arguments_.children.size();
    arguments_.keys.push_back(i < program.argument_names.size() ? program.argument_names[i]
                                                                : "argument " + std::to_string(i));
    arguments_.children.push_back(child);
  }
  for (size_t i = 0; i < spec.children[1].children.size(); ++i) {
    arguments_.keys.push_back(spec.children[1].keys[i]);
    arguments_.children.push_back(spec.children[1].children[i]);
  }
  using Leaf = ExportedTree::Leaf;
  const auto input = [&](size_t leaf) -> std::pair<Leaf, std::string> {
    const Input& in = inputs_[user_inputs_[leaf]];
    if (in.meta) return {Leaf::tensor, in.meta->text()};
    if (in.number) return {Leaf::integer, "int " + in.number->text()};
    return {kind_of(in.spec.value), text_of(in.spec.value)};
  };
  describe_leaves(arguments_, user_inputs_.size(), input, "arguments", &user_names_);

  results_ = program.results;
  std::vector<const Argument*> user_results;
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].kind == OutputSpec::Kind::user) user_results.push_back(&program.graph.outputs[i]);
  const auto result = [&](size_t leaf) -> std::pair<Leaf, std::string> {
    const Argument& argument = *user_results[leaf];
    if (const auto* constant = std::get_if<IValue>(&argument.value)) return {kind_of(*constant), text_of(*constant)};
    const auto* name = std::get_if<Name>(&argument.value);
    if (!name) return {Leaf::none, "None"};
    const auto meta = program.graph.tensors.find(name->text);
    if (meta != program.graph.tensors.end()) return {Leaf::tensor, meta->second.text()};
    const auto number = program.graph.integers.find(name->text);
    if (number != program.graph.integers.end()) return {Leaf::integer, "int " + number->second.text()};
    return {Leaf::number, "float"};
  };
  describe_leaves(results_, user_results.size(), result, "results", nullptr);
}

void Model::read_weights(Archive& archive, const Layout& layout) {
  StoredTensors weights(archive, layout, layout.folder_of_weights, layout.weights),
      constants(archive, layout, layout.folder_of_constants, layout.constants);
  for (Input& input : inputs_) {
    using Kind = InputSpec::Kind;
    const Kind kind = input.spec.kind;
    if (kind == Kind::user || kind == Kind::fixed) continue;
    const bool in_weights = kind == Kind::parameter || (kind == Kind::buffer && input.spec.persistent);
    input.weight = (in_weights ? weights : constants).read(input.spec.target);
    (kind == Kind::parameter ? parameters_
     : kind == Kind::buffer  ? buffers_
                             : constants_)
        .emplace(input.spec.target, input.weight);
  }
}

IValue Model::checked_input(const Input& input, const ExportedLeaf& leaf, const std::string& what, Symbols& symbols,
                            bool last_look) const {
  const auto fail = [&](const std::string& found, const std::string& expected) {
    throw ArgumentError("exported model: " + what + " is " + found + ", and the model was exported for " + expected +
                        ".");
  };
  IValue value = as_value(leaf);
  const auto found = [&]() -> std::string {
    if (!value.isTensor()) return text_of(value);
    const at::Tensor& t = value.toTensor();
    TensorMeta meta{t.scalar_type(), {}, {}, 0, t.device()};
    for (const int64_t size : t.sizes()) meta.sizes.emplace_back(size);
    return meta.text();
  };
  // A size that is an expression of others may come before those: it is looked at a second time.
  const auto holds = [&](const SizeExpression& expected, int64_t size) {
    if (const auto known = expected.evaluate(symbols)) return *known == size;
    return expected.solve(size, symbols) || !last_look;
  };
  if (input.meta) {
    if (!value.isTensor() || !value.toTensor().defined()) fail(found(), input.meta->text());
    const at::Tensor& t = value.toTensor();
    bool fits = t.scalar_type() == input.meta->dtype && t.dim() == static_cast<int64_t>(input.meta->sizes.size());
    for (int64_t d = 0; fits && d < t.dim(); ++d) fits = holds(input.meta->sizes[static_cast<size_t>(d)], t.size(d));
    if (!fits) {
      std::string where;
      for (const auto& [symbol, size] : symbols)
        where += (where.empty() ? ", where " : ", ") + symbol + " is " + std::to_string(size);
      fail(found(), input.meta->text() + where);
    }
  } else if (input.number) {
    if (!value.isInt() || !holds(*input.number, value.toInt())) fail(found(), input.number->text());
  } else if (!same(value, input.spec.value)) {
    fail(found(), text_of(input.spec.value));
  }
  return value;
}

void Model::check_symbols(const Symbols& symbols) const {
  for (const auto& [symbol, size] : symbols) {
    const auto range = ranges_.find(symbol);
    if (range == ranges_.end()) continue;
    // The exporter assumes of a size that it is 2 or more where nobody says anything, and does not mean it: what it
    // checks itself are bounds above that.
    const auto& [least, most] = range->second;
    if ((least && *least > 2 && size < *least) || (most && size > *most))
      throw ArgumentError("exported model: the size " + symbol + " is " + std::to_string(size) +
                          ", and the model was exported for " + std::to_string(least.value_or(0)) + " to " +
                          (most ? std::to_string(*most) : "any") + ".");
  }
}

void Model::check_guards(const std::vector<ExportedLeaf>& leaves) const {
  const Guard::Find find = [&](size_t leaf, std::optional<int64_t> dim) -> std::optional<int64_t> {
    if (!dim) {
      const auto* number = std::get_if<int64_t>(&leaves[leaf]);
      return number ? std::optional(*number) : std::nullopt;
    }
    const auto* tensor = std::get_if<at::Tensor>(&leaves[leaf]);
    if (!tensor || *dim < 0 || *dim >= tensor->dim()) return std::nullopt;
    return tensor->size(*dim);
  };
  for (const Guard& guard : guards_)
    if (!guard.holds(find).value_or(false))
      throw ArgumentError("exported model: it was exported for arguments where " + guard.text() +
                          ", which these are not.");
}

std::vector<ExportedLeaf> Model::leaves_of(const dynamic::Tensors& tensors) const {
  std::vector<ExportedLeaf> leaves;
  size_t next = 0;
  for (const size_t i : user_inputs_) {
    if (inputs_[i].number)
      throw ArgumentError("exported model: the argument " + user_names_[leaves.size()] +
                          " is an integer that varies: call it with all leaves.");
    if (!inputs_[i].meta) leaves.push_back(as_leaf(inputs_[i].spec.value));
    else if (next < tensors.size()) leaves.emplace_back(tensors[next++]);
    else next = tensors.size() + 1;
  }
  if (next != tensors.size())
    throw ArgumentError("exported model: it was called with " + std::to_string(tensors.size()) + " tensors, and is " +
                        signature() + ".");
  return leaves;
}

std::vector<ExportedLeaf> Model::call(const NamedTensors& weights, const std::vector<ExportedLeaf>& leaves) const {
  if (leaves.size() != user_inputs_.size())
    throw ArgumentError("exported model: it was called with " + std::to_string(leaves.size()) + " leaves, and is " +
                        signature() + ".");
  Values inputs(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].weight.defined()) inputs[i] = inputs_[i].weight;
  for (const auto& [name, tensor] : weights) {
    const auto found = weights_.find(name);
    if (found == weights_.end()) throw ArgumentError("exported model: it has no weight \"" + name + "\".");
    const at::Tensor& own = inputs_[found->second].weight;
    if (!tensor.defined() || !tensor.sizes().equals(own.sizes()))
      throw ArgumentError("exported model: the weight \"" + name + "\" has the sizes " + c10::str(own.sizes()) +
                          ", and is given " + (tensor.defined() ? c10::str(tensor.sizes()) : "no tensor") + ".");
    inputs[found->second] = tensor;
  }
  Symbols symbols;
  for (const bool last_look : {false, true})
    for (size_t leaf = 0; leaf < leaves.size(); ++leaf)
      inputs[user_inputs_[leaf]] =
          checked_input(inputs_[user_inputs_[leaf]], leaves[leaf], user_names_[leaf], symbols, last_look);
  check_symbols(symbols);
  check_guards(leaves);

  const bool writes = std::any_of(outputs_.begin(), outputs_.end(),
                                  [](const OutputSpec& o) { return o.kind != OutputSpec::Kind::user; });
  Values kept;
  if (writes) kept = inputs;
  Values results = program_->run(std::move(inputs));
  std::vector<ExportedLeaf> given;
  for (size_t i = 0; i < results.size(); ++i) {
    if (outputs_[i].kind == OutputSpec::Kind::user) {
      given.push_back(as_leaf(results[i]));
      continue;
    }
    if (!results[i].isTensor() || !kept[written_[i]].isTensor())
      throw ArgumentError("exported model: what it writes to \"" + outputs_[i].target + "\" is no tensor.");
    kept[written_[i]].toTensor().copy_(results[i].toTensor());
  }
  return given;
}

std::string Model::signature() const { return print_tree(arguments_) + " -> " + print_tree(results_); }

}  // namespace tower::exported

namespace tower {

namespace dynamic {

Tensors ExportedModel::operator()(const Tensors& tensors) const {
  Tensors results;
  for (const ExportedLeaf& leaf : model_->call({}, model_->leaves_of(tensors)))
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf)) results.push_back(*tensor);
  return results;
}
std::vector<ExportedLeaf> ExportedModel::call(const NamedTensors& weights,
                                              const std::vector<ExportedLeaf>& leaves) const {
  return model_->call(weights, leaves);
}
const NamedTensors& ExportedModel::parameters() const { return model_->parameters(); }
const NamedTensors& ExportedModel::buffers() const { return model_->buffers(); }
const NamedTensors& ExportedModel::constants() const { return model_->constants(); }
const ExportedTree& ExportedModel::arguments() const { return model_->arguments(); }
const ExportedTree& ExportedModel::results() const { return model_->results(); }
std::string ExportedModel::signature() const { return model_->signature(); }
std::string ExportedModel::report() const { return model_->report(); }

ExportedModel load_exported(const std::string& path, const ExportedOptions& options) {
  const Suspended outside;  // weights are tensors of no transform, wherever they are read
  try {
    return ExportedModel(std::make_shared<const exported::Model>(path, options));
  } catch (const exported::FileError& e) {
    throw ArgumentError("load_exported: " + path + " cannot be loaded: " + e.what() + ".");
  } catch (const exported::NotSupported& e) {
    throw UnsupportedError("load_exported: " + path + " needs what Tower does not have: " + e.what() + ".");
  }
}

}  // namespace dynamic

void detail::refuse_exported_type(const std::string& signature, const std::type_info& type) {
  throw ArgumentError("load_exported: the model is " + signature + ", which does not fit the type " +
                      c10::demangle(type.name()) + ".");
}

void detail::refuse_exported_value(const ExportedTree& tree, const std::type_info& type) {
  throw ArgumentError("exported model: an argument of the type " + c10::demangle(type.name()) +
                      " is not nested as the model was exported for: " + exported::print_tree(tree) + ".");
}

const ExportedLeaf& detail::exported_leaf(const std::vector<ExportedLeaf>& leaves, std::size_t at,
                                          ExportedTree::Leaf kind) {
  if (at >= leaves.size() || leaves[at].index() != static_cast<std::size_t>(kind))
    throw ArgumentError("exported model: result " + std::to_string(at) + " is of another type than the file says.");
  return leaves[at];
}

}  // namespace tower
