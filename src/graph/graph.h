// A function as data: the operator calls that it made, in order, with what each read and what it gave. This is what a
// trace leaves (graph/trace.h), what passes simplify, and what a plan runs (graph/plan.h). Users see a copy of it
// (tower/graph.h), which is explained there.
//
//
// What comes into this room is a function and arguments to run it on; what goes out is a Graph, and a Plan to run it.
//
//   trace.h             runs the function once and records       → Graph, results, what the graph takes for granted
//   call_kind.h         what a call has to be like, for a graph to be right for it
//   lanes.h             graphs for two numbers of examples       → the graph for any number
//   split.h             a graph in parts, for transforms and derivatives
//   operand_dims.h      which dimension of an operand is which one of the result, under vmaps
//   kernel_operator.h   what fuse/ puts in the place of calls
//   stored_graph.h      graphs as bytes, and back
//   plan.h              runs a graph, here and now
//   lifetimes.h         where in memory is what it makes on its way
//
// What holds for every graph:
//
// - Calls are functional, but for those that are marked to have an effect: these write to arguments, captured tensors
//   or views of them, and stay in their order. No pass moves a call that reads across one that writes.
// - A value is an argument, captured, a constant, or the result of one call, which stands before all that read it.
// - A value's number is its place in Graph::values. kNoValue stands for an undefined tensor, which an argument of the
//   graph or a result of a call may be; an operand or a result of the graph is never one. Numbers below kNoValue are
//   those of constants on the way (Graph::constants), which only makers and Value::made_as speak of.
// - Value::tensor is defined for captured tensors and constants that are read, and for no other value.
// - Sizes, strides and dtypes are those of the trace: a graph for other sizes is another graph.
// - The dispatcher's operators are there for ever; Call::owner keeps any other one (an image under vmap, a kernel, a
//   function of the user's). Nothing refers to the level that traced. So a graph can be kept, copied, and run on any
//   thread, and on several at once: a run changes nothing in it.
// - Attributes and constants are equal where their bits are (exact_text, same_bits), not where they print alike.
//
// What is checked when: the trace refuses what no graph can say, such as a number that is read. Whether the arguments
// of a call are of the graph's kind is for the caller to see (compile/specialisations.h), and so is Plan::fits, of
// captured tensors. At each run, a plan checks what arguments that are written to share memory with, and the shapes of
// what unknown code gives; a kernel's operands that are tensors are compared with the sizes and dtypes that it was made
// for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/by_id.h"
#include "core/operator.h"
#include "tower/graph.h"

namespace tower::compiler {

/// A value's number: its place in Graph::values.
enum class ValueId : int64_t {};
constexpr ValueId kNoValue{-1};

using Origin = ValueOrigin;
using Mapped = MappedOver;

/// One tensor. Sizes are physical: with the dimensions of all vmaps in whose examples it differs.
struct Value {
  Origin origin;
  Sizes sizes, strides;
  at::ScalarType dtype;
  at::Device device;
  bool number;                 // a tensor that LibTorch made of a number: it yields in type promotion
  Tensor tensor;               // captured: the tensor itself; constant: its value; else undefined
  ValueId made_as = kNoValue;  // constant: its number among Graph::constants; kNoValue: not made by calls
  Tensor known = {};           // result: what it is whatever the operands are, where that was found out; else undefined

  /// `kept`: whether the value holds the tensor.
  Value(Origin origin, const Tensor& t, bool kept);
  /// What is filled in afterwards.
  Value() : origin(Origin::result), dtype(at::kFloat), device(at::kCPU), number(false) {}
  /// What it is in any case; undefined if that is not known.
  const Tensor& constant() const { return origin == Origin::constant ? tensor : known; }
  /// "Double [8, 7]".
  std::string describe() const;
};

/// One operator call.
struct Call {
  const Operator* op = nullptr;   // as the function called it, for one example
  Stack args;                     // its arguments, with an empty tensor in the place of each operand
  std::vector<LeafRef> places;    // where each operand goes among the arguments
  std::vector<ValueId> operands;  // in the order of the arguments
  std::vector<ValueId> results;   // flattened; kNoValue: undefined
  std::vector<Mapped> vmaps;      // outermost first; empty: the call is outside of every vmap. Each has a dimension in
                                  // front of every result, in this order
  const Operator* bound = nullptr;  // what is called to run it: `op`, or its image under `vmaps`, whose only argument
                                    // is the list of the operands and whose results are one list
  c10::intrusive_ptr<const Operator> owner = {};  // keeps `op` and `bound`, where the dispatcher does not
  bool records = true;                            // called in grad mode
  bool tried = false;   // made where a function was only traced (Trying): no error of it is the function's
  bool effect = false;  // writes to operands: arguments, captured tensors, or views of these; kept, and in order

  /// Whether it may do more than give results: its code is not LibTorch's (a library's operator, a user's function), or
  /// it writes to its arguments without saying so.
  bool opaque() const { return op->foreign() || writes_unsaid(); }
  /// Whether it says that it writes to this operand.
  bool writes(size_t operand) const;
  /// The argument that tells the operator whether to raise for what it finds in its operands (a singular matrix); none
  /// where it has no such argument.
  std::optional<size_t> check_argument() const;
  void set_check(bool checks);
  /// Whether the call is needed for the error that it may raise, even if nobody reads its results.
  bool checks() const;
  /// Draws random numbers, at each run.
  bool random() const { return bound->random(); }

 private:
  bool writes_unsaid() const;
};

/// A constant that calls read, or that such a one was made of.
struct Constant {
  Sizes sizes;
  Tensor tensor;  // where no call made it: it came from C++ numbers
};
/// Constants are numbered downwards.
constexpr ValueId number_of_constant(size_t k) { return ValueId{plain(kNoValue) - 1 - static_cast<int64_t>(k)}; }
constexpr size_t place_of_constant(ValueId number) { return static_cast<size_t>(plain(kNoValue) - 1 - plain(number)); }
constexpr bool is_constant(ValueId id) { return id < kNoValue; }

struct Graph {
  ById<ValueId, Value> values;
  std::vector<ValueId> arguments;  // kNoValue: an undefined tensor
  std::vector<Call> calls;
  // How constants were made: calls that read constants, or no more than the shapes of values. Nothing runs these calls:
  // they tell whether the constants of a graph for other sizes follow (graph/lanes.h).
  std::vector<Constant> constants;
  std::vector<Call> makers;
  std::vector<ValueId> results;  // the number of an argument or captured tensor: the very tensor, after all calls

  std::string print() const;

  /// Without what is not needed: calls whose results nobody reads, and all but one of several equal calls. Those that
  /// may raise are needed.
  void simplify();
  /// The same, where it does not matter any more which vmap a call is under, but only of how many examples: constants
  /// with equal bits are one, and calls under different vmaps may be. (Derivatives of derivatives have the same
  /// tangents along the directions of each.)
  void simplify_across_vmaps();
};

/// Whether the results share the operands' memory.
bool gives_view(const Call& call);

/// Of each value, whether it may leave the function as a result, or share memory with one that does.
ById<ValueId, bool> values_that_leave(const Graph& graph);

/// The arguments of a call that are not tensors, as "dim=0, index=6".
std::string attributes_of(const Call& call);

/// So that values that print alike (0 and -0, 1 and 1.0) differ: numbers by their bits.
std::string exact_text(const IValue& v);
/// Whether two tensors on one device hold the same, bit by bit, and are of one dtype and size.
bool same_bits(const Tensor& a, const Tensor& b);

/// As users see it.
tower::Graph published(const Graph& graph);

}  // namespace tower::compiler
