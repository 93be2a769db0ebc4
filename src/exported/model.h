// A model that was read: its program, its weights, how it is called.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exported/guards.h"
#include "exported/program.h"
#include "exported/schema.h"
#include "tower/exported.h"

namespace tower::exported {

struct Layout;

class Model {
 public:
  /// Reads a file. Throws FileError and NotSupported.
  Model(const std::string& path, const ExportedOptions& options);

  std::vector<ExportedLeaf> call(const NamedTensors& weights, const std::vector<ExportedLeaf>& leaves) const;
  /// The leaves of the arguments of which only the tensors are given.
  std::vector<ExportedLeaf> leaves_of(const dynamic::Tensors& tensors) const;

  const NamedTensors& parameters() const { return parameters_; }
  const NamedTensors& buffers() const { return buffers_; }
  const NamedTensors& constants() const { return constants_; }
  const ExportedTree& arguments() const { return arguments_; }
  const ExportedTree& results() const { return results_; }
  std::string signature() const;
  std::string report() const;

 private:
  /// An input of the graph.
  struct Input {
    InputSpec spec;
    std::string name;
    std::optional<TensorMeta> meta;        // of a user's tensor
    std::optional<SizeExpression> number;  // a user's integer
    at::Tensor weight;                     // of a parameter, buffer or constant
  };

  void read_inputs(const ExportedProgram& program);
  void read_outputs(const ExportedProgram& program);
  void read_weights(Archive& archive, const Layout& layout);
  void shape_arguments(const ExportedProgram& program);
  IValue checked_input(const Input& input, const ExportedLeaf& leaf, const std::string& what, Symbols& symbols,
                       bool last_look) const;
  void check_symbols(const Symbols& symbols) const;
  void check_guards(const std::vector<ExportedLeaf>& leaves) const;

  std::shared_ptr<const Program> program_;
  std::vector<Input> inputs_;
  std::vector<OutputSpec> outputs_;
  std::vector<size_t> written_;          // by output: the input that it is written to
  std::vector<size_t> user_inputs_;      // places in inputs_
  std::vector<std::string> user_names_;  // theirs: "x", "options.scale"
  std::map<std::string, Range> ranges_;
  std::vector<Guard> guards_;
  std::map<std::string, size_t> weights_;  // by name: the input
  NamedTensors parameters_, buffers_, constants_;
  ExportedTree arguments_, results_;
};

}  // namespace tower::exported
