// What a file says, typed: the schema of torch/_export/serde/schema.py, version 8, as far as a program needs it. Values
// are still names here; program.h finds what they name.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "exported/archive.h"
#include "exported/sizes.h"
#include "tower/exported.h"

namespace tower::exported {

struct Graph;

/// A value of the graph, by its name.
struct Name {
  std::string text;
};

/// What a node is given, or where its results go: nothing, a constant, a value, a list, the graph of a branch or a
/// loop. (dtypes, layouts and memory formats are numbers, as operators take them.)
struct Argument {
  std::variant<std::monostate, c10::IValue, Name, std::vector<Argument>, std::shared_ptr<const Graph>> value;
};

struct NamedArgument {
  std::string name;  // empty: by its place
  Argument value;
};

struct Node {
  std::string name;    // as Python's printed graph has it
  std::string target;  // "torch.ops.aten.add.Tensor"
  std::vector<NamedArgument> inputs;
  std::vector<Argument> outputs;
};

/// What is known of a tensor when the program was exported.
struct TensorMeta {
  at::ScalarType dtype;
  std::vector<SizeExpression> sizes, strides;
  SizeExpression offset;
  at::Device device;
  /// "Float [s0, 3]".
  std::string text() const;
};

struct Graph {
  std::vector<Argument> inputs, outputs;
  std::vector<Node> nodes;
  std::map<std::string, TensorMeta> tensors;       // of its inputs and outputs
  std::map<std::string, SizeExpression> integers;  // the same
};

/// What an input of the graph is.
struct InputSpec {
  enum class Kind : uint8_t { user, fixed, parameter, buffer, constant, token } kind;
  std::string target;  // the name of a parameter, buffer or constant
  bool persistent;     // a buffer that is in the state dict
  c10::IValue value;   // of a user's input that is fixed
};

/// What an output of the graph is.
struct OutputSpec {
  enum class Kind : uint8_t { user, writes_weight, writes_input, token } kind;
  std::string target;  // the parameter, buffer or input that it becomes
};

struct Range {
  std::optional<int64_t> least, most;
};

struct ExportedProgram {
  Graph graph;
  std::vector<InputSpec> inputs;    // one for each input of the graph
  std::vector<OutputSpec> outputs;  // one for each output of the graph
  ExportedTree arguments, results;  // as Python nests them: ((positional, …), {keyword, …})
  std::vector<std::string> argument_names;
  std::map<std::string, Range> ranges;
  std::vector<std::string> guards;
  std::string torch_version;
};

/// Reads a model. Throws FileError with the place of what is wrong, NotSupported for what Tower does not have.
ExportedProgram read_program(const std::string& text, bool any_version);

/// A tensor that the archive has: which record, and how it lies in there.
struct Payload {
  std::string record;
  TensorMeta meta;
};

/// Reads the list of weights or constants, by name.
std::map<std::string, Payload> read_payloads(const std::string& text);

}  // namespace tower::exported
