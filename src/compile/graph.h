// A function as data: the operator calls that it made, once, in order, with what each read and what it gave. This is
// what a trace leaves (compile/trace.h), what passes simplify, and what a plan runs (compile/plan.h).
//
//   argument %0 : float64 [8, 7]
//   captured %3 : float64 [6]
//   %4 = aten::select.int<0|a8>(%0; dim=0, index=6) : float64 [8]
//   %5 = aten::mul.Tensor<-,0|a8>(%3, %4) : float64 [8, 6]
//   return %5
//
// A call is the operator as the function called it, for one example, and for each vmap around it which dimension of each
// operand holds the examples: no batching rule has run. All calls are functional, but those that are marked to have an
// effect. Nothing here refers to the level that traced, so a graph can be kept, copied and run on any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/operator.h"

namespace tower::compile {

/// A value's number: its place in Graph::values.
using ValueId = int64_t;
constexpr ValueId kNoValue = -1;

enum class Origin : uint8_t {
  argument,  // given at each call
  captured,  // a tensor from outside that the function read; read again at each call
  constant,  // the same at each call: what is made from nothing, and what is made of that
  result,    // of a call
};

/// One tensor. Sizes are physical: with the dimensions of all vmaps in whose examples it differs.
struct Value {
  Origin origin;
  Sizes sizes;
  Sizes strides;  // as traced; a result may come with others when the arguments do
  at::ScalarType dtype;
  at::Device device;
  bool number = false;  // a tensor that LibTorch made of a number: it yields in type promotion
  Tensor tensor;        // captured: the tensor itself; constant: its value; else undefined

  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
  /// "float64 [8, 7]".
  std::string describe() const;
};

/// One vmap around a call.
struct Mapped {
  static constexpr int64_t kUnmapped = -1;

  uint64_t axis;  // which vmap of the user's: equal numbers are the same examples, also where sizes are equal by chance
  int64_t batch_size;
  std::vector<int64_t> dims;      // of each operand, in what the vmaps before this one left of it; kUnmapped
  std::vector<int64_t> out_dims;  // of each result: 0, or kUnmapped where no example differs
};

/// One operator call.
struct Call {
  const Operator* op;               // as the function called it, for one example
  Stack args;                       // its arguments, with an empty tensor in the place of each operand
  std::vector<LeafRef> places;      // where each operand goes among them
  std::vector<ValueId> operands;    // in the order of the arguments
  std::vector<ValueId> results;     // flattened; kNoValue: undefined
  std::vector<Mapped> vmaps;        // outermost first; empty: the call is outside of every vmap. A result's dimensions
                                    // begin with those of the vmaps that it is mapped by, outermost first
  const Operator* image;            // what is bound to run it: `op`, or its image under `vmaps`, whose only argument is
                                    // the list of the operands and whose results are one list
  c10::intrusive_ptr<const Operator> owner = {};  // keeps `op` and `image`, where the dispatcher does not
  bool records = true;              // called in grad mode
  bool effect = false;              // writes to a captured tensor or does more than give results: kept, and in order

  /// Draws random numbers: anew at each run, and never shared with an equal call.
  bool random() const;
};

/// What the function wrote to an argument: `value` goes into it after the last call.
struct Write {
  ValueId argument;
  ValueId value;
};

struct Graph {
  std::vector<Value> values;
  std::vector<ValueId> arguments;  // kNoValue: an undefined tensor
  std::vector<Call> calls;
  std::vector<Write> writes;
  std::vector<ValueId> results;  // the number of an argument: the caller's own tensor, after the writes

  /// One line for each argument, captured tensor, constant and call.
  std::string print() const;

  /// Computes ahead what depends on constants alone, unless it leaves the function, which gets new memory each time.
  void fold_constants();
  /// One call for several that are equal.
  void share_equal_calls();
  /// Without calls that nobody needs.
  void remove_dead_calls();
  /// All of these.
  void simplify();
};

/// The arguments of a call that are not tensors, as "dim=0, index=6".
std::string attributes_of(const Call& call);

}  // namespace tower::compile
