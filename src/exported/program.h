// A graph that can be run: each name is a place among the values of a run, each target an operator of LibTorch's
// dispatcher, arithmetic of sizes, or a higher-order operator. All that can be known is checked when it is made; a run
// calls one step after the other, and lets go of a value after the last step that reads it.
//
// Steps call the dispatcher as user code does, and branches and loops are Tower's (tower/cond.h, tower/loops.h), so
// that transforms, traces and compiled functions see the model as if it had been written in C++.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exported/schema.h"

namespace tower::exported {

using c10::IValue;
using Values = std::vector<IValue>;

class Program;
struct Step;

/// What a step is given.
struct Operand {
  enum class Kind : uint8_t { constant, value, list, program };
  /// As what an operator takes it.
  enum class As : uint8_t {
    anything,
    tensor,
    number,
    real,
    integer,
    boolean,
    string,
    device,
    tensors,
    optional_tensors,
    integers,
    reals,
    numbers,
    booleans,
    strings
  };

  Kind kind = Kind::constant;
  As as = As::anything;
  bool optional = false;  // it may be None
  IValue constant;
  size_t place = 0;                        // of a value
  std::vector<Operand> list;               // its elements
  std::shared_ptr<const Program> program;  // of a branch or loop
};

/// Reads an operand at a run; a list of no operator's is a list of IValues. Throws ArgumentError where it is of another
/// type than the operator takes.
IValue value_of(const Operand& operand, const Values& values, const Step& step);

/// Where results of a step go; not kept where it is nothing.
using Target = std::optional<size_t>;
struct Targets {
  bool list = false;
  std::vector<Target> places;  // one, or those of a list
};

/// Arithmetic of sizes: operands to one result.
using SizeFunction = IValue (*)(const Values& operands);
/// The results of a higher-order operator, one after the other.
using HigherOrder = Values (*)(const Step& step, const Values& values);

/// One call.
struct Step {
  std::string name, target;
  std::optional<c10::OperatorHandle> op;
  SizeFunction size_function = nullptr;
  HigherOrder higher_order = nullptr;
  std::vector<Operand> operands;
  std::vector<Targets> results;
  std::vector<size_t> last_read;  // values that no later step reads
};

/// Targets of a file that are not to be had, each with the reason.
using Missing = std::set<std::string>;

/// What Python prints of a constant.
std::string text_of(const IValue& v);

class Program {
 public:
  /// Adds to `missing` what it has no operator for: then it cannot be run. Throws FileError.
  Program(const Graph& graph, Missing& missing);

  size_t inputs() const { return inputs_.size(); }
  size_t outputs() const { return outputs_.size(); }
  const std::vector<Step>& steps() const { return steps_; }
  /// What the graph gives for its inputs, of which there are as many as it has.
  Values run(Values inputs) const;

 private:
  std::vector<Target> inputs_;  // nothing: a constant
  std::vector<Step> steps_;
  std::vector<Operand> outputs_;
  size_t places_ = 0;
};

/// The operator that a target names; none where nobody registered it.
std::optional<c10::OperatorHandle> find_operator(const std::string& target);
/// By their names in a file; null where there is none.
SizeFunction find_size_function(const std::string& target);
HigherOrder find_higher_order(const std::string& target);
/// Why a target that is none of these cannot be called, and what to do.
std::string_view why_missing(const std::string& target);
/// Checks number and kinds of the operands of a higher-order operator, and lets go of those that say nothing to it.
/// Throws FileError, and NotSupported where it is given what it does not know.
void check_higher_order(const Node& node, Step& step);

}  // namespace tower::exported
