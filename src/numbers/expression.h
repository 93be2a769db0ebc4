// What one lane of a kernel computes: a graph of numbers, each made from others by one operation. Equal nodes are one
// node; constants are computed here, and what changes no bit of any result is simplified (x · 1, x − 0, but not x + 0,
// which makes +0 of −0). NaNs are equal to each other, whatever their payload.
//
//   Expressions g;
//   const Id x = g.input(Type::f32, 0);
//   const Id y = g.make(Op::add, g.make(Op::mul, x, x), g.constant(Type::f32, 1.0));
//
// Rules of operators write the same with operators (numbers/element.h); kernels/emit.h prints it as LLVM's IR.
//
// What comes into this room is operators, by rules of three kinds: what an element of a result is (numbers/element.h,
// in the operators' records), what small tensors of an example come to (small.h), what a row of elements comes to
// (fold.h). What goes out is Expressions and the numbers of those nodes that are outputs, which is most of a
// Region (kernels/emit.h). Where inputs lie in memory, how many lanes there are, and what LLVM makes of it is unknown
// here.
//
// What always holds:
//
// - A node does not change once it is made, and has a greater number than its operands. Only what a loop goes on with
//   (LoopOfNumbers::next, condition) has greater numbers than the carries that stand for it.
// - Equal nodes are one node; what may fault, only with its like in the same loop (NOTE [What may fault]).
// - An operation's operands have the types that it takes; nothing is converted but by a cast.
// - Nothing is simplified that could change a bit of a result (NOTE [Strict]). What Math::fast permits beyond that,
//   LLVM is told where the kernel is printed.
// - A constant is its bits, and `write`, by which kernels are told apart, writes those. `print` is for people.
// - kNone is an operand that is not there. A rule that gives no ids says that no kernel is to compute the call, which
//   then remains LibTorch's: that is no error.
// - Expressions refer to no tensor, own what they are made of, and are built by one thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/by_id.h"

namespace tower::compiler {

class ByteWriter;

/// Of one lane's value. Of the half types, float16 and bfloat16, is what memory has: NOTE [Half types].
enum class Type : uint8_t { f64, f32, f16, bf16, i64, i32, b1 };

/// None for dtypes that kernels do not compute in.
std::optional<Type> type_of(at::ScalarType dtype);
at::ScalarType dtype_of(Type type);
/// Bytes in memory.
int64_t size_of(Type type);
inline bool is_float(Type type) { return type <= Type::bf16; }
inline bool is_half(Type type) { return type == Type::f16 || type == Type::bf16; }
/// The type in which operations on numbers of `type` are computed.
inline Type computing_type(Type type) { return is_half(type) ? Type::f32 : type; }

enum class Op : uint8_t {
  input,  // with operands: what is looked up in it
  constant,
  // Operands of the result's type. Of booleans, `add` is or, and `mul` is and.
  add,
  sub,
  mul,
  div,       // of floats
  quotient,  // of integers, toward zero; a divisor of zero is reported by the kernel
  rest,      // what that leaves
  neg,
  abs,
  sqrt,
  floor,
  ceil,
  trunc,
  round,  // ties to even
  copysign,
  fma,  // a · b + c, rounded once
  bit_and,
  bit_or,
  bit_xor,
  shift_left,
  shift_right,  // with the sign
  // A boolean from two operands of one type. Only `ne` holds for NaN.
  eq,
  ne,
  lt,
  le,
  select,  // by a boolean
  cast,    // as C++ converts; to a boolean: whether it is not zero
  bits,    // of a float as an integer of its size, and back
  // NOTE [Loops of numbers]: where they are, beside the operand, stands in `bits`.
  carry,  // a number as it is before a step; its operand: before the first
  leave,  // a carry after the last step
  kept,   // NOTE [Loops backwards]: what a carry of the other loop was; its operand: what that left
  // NOTE [Stacked numbers]
  element,  // of those that each step has its own of, the present step's; `bits`: the loop, and which stack
  in_step,  // the second operand, which is inside, as it was in the step in `bits`; the first: what the loop left
  // NOTE [Systems of numbers]
  solve,  // all of a solution; `bits`: the number of the system
  part,   // a number of what a `solve` gives: the one at `bits`
  // NOTE [Failures]
  check,  // of a boolean: where it holds, the kernel reports a failure, the one in `bits`
  after,  // the first operand, which is there only with the second, a `check`
  // Functions within one unit in the last place: numbers/functions.h.
  exp,
  exp2,
  expm1,
  log,
  log2,
  log10,
  log1p,
  sin,
  cos,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  tanh,
  asinh,
  acosh,
  atanh,
  erf,
  erfc,
  lgamma,
  pow,
  atan2,
  hypot,
  fmod,
};
const char* name(Op op);
inline bool is_function(Op op) { return op >= Op::exp; }

/// What a kernel reports besides divisions by zero and loops that do not end.
enum class Failure : uint8_t {
  singular,      // a matrix
  out_of_range,  // an index
};

/// A node's number.
enum class Id : int32_t {};
constexpr Id kNone{-1};
inline std::string to_string(Id id) { return std::to_string(plain(id)); }

struct Node {
  Op op;
  Type type;
  std::array<Id, 3> args{kNone, kNone, kNone};
  uint64_t bits = 0;  // a constant's, in its type; an input's number; a carry's place; the loop of what may fault

  friend bool operator==(const Node&, const Node&) = default;
};

// NOTE [Loops of numbers]
// A loop is opened with the numbers that it starts with, whose carries are what a step computes with, and closed with a
// condition and the numbers after the step. All of that are nodes like others. A node is inside the loop if it needs
// one of its carries; what does not is computed once, before it. Outside, carries are known as they were left.
enum class LoopId : int32_t {};
constexpr LoopId kOutsideOfLoops{-1};

struct LoopOfNumbers {
  LoopId parent = kOutsideOfLoops;           // the loop that was open when this one was opened
  std::vector<Id> carries, next;             // as many
  Id condition = kNone;                      // of the carries: whether a step is made
  std::optional<int64_t> max_steps;          // no more, whatever the condition is …
  bool must_end = false;                     // … which is then an error
  LoopId forwards = kOutsideOfLoops;         // whose steps it makes backwards; `condition` is then how many those were
  std::vector<std::vector<Id>> stacks = {};  // inputs, in the order of the steps forwards
};

// NOTE [Stacked numbers]
// A loop that makes the same number of steps in all lanes, and is in no other loop, may have inputs of which each step
// reads its own, and outputs of which each writes its own. The kernel has a pointer to each of them in any case, and so
// a step needs but its place among the pointers. So such inputs have numbers that grow evenly from step to step, and
// such outputs are read by nothing in the kernel.

// NOTE [Loops backwards]
// The way back through a loop makes its steps from the last to the first, and a step's derivative needs the numbers
// that the step began with. A loop backwards is opened for one that is closed and stands in the same loop. It makes as
// many steps as that one, for each lane, and sees that one's carries as they were before each: `kept` numbers, which
// the kernel keeps in memory. How many steps there were is a carry of the loop forwards, as any other.

// NOTE [Half types]
// No operation is computed in a half type, but for casts from and to f32, and choices: `make` casts operands to f32,
// and the result back, which rounds it to the nearest, ties to even. A rule whose operator rounds each of its
// operations, as LibTorch's kernels partly do, writes them in the half type; one that rounds its result alone writes
// them in f32. Other types become half types, and half types others, by way of f32, as in LibTorch.

// NOTE [Systems of numbers]
// A system of linear equations that is too large to be written out: kernels solve it in a loop over memory.
struct SystemOfNumbers {
  int64_t size, columns;     // of the matrix; of the right-hand side
  std::vector<Id> operands;  // both, row by row
};

// NOTE [Failures]
// A factorization that must not fail gives its results after a check. In a loop, an example that fails ends: the loop
// carries whether it did, and what it leaves comes after a check of that. So the steps that are checked are those that
// are made, and no example goes on with numbers that are none.

/// What the lanes of a row come to, as a number that all of them read: an input of the graph whose number is kOfRow or
/// more.
struct OfRow {
  enum How : uint8_t { sum, product, greatest, least, place };
  How how;
  Id folded = kNone;  // a lane's part of it; none: the lane's place in its row, which is its own
  bool operator==(const OfRow&) const = default;
  static constexpr uint64_t kFirst = uint64_t{1} << 32;
};

class Expressions {
 public:
  Id input(Type type, uint64_t number);
  /// An element of an input that is a table, the same for all lanes: that with the number `place`, an integer, in lanes
  /// where `holds`; elsewhere zero.
  Id looked_up(Type type, uint64_t number, Id place, Id holds);
  Id constant(Type type, double value);
  Id constant(Type type, int64_t value);
  /// `op` of operands whose types it takes as they are (see Op).
  Id make(Op op, Id a, Id b = kNone, Id c = kNone);
  Id cast(Id a, Type type);
  /// What a node of another graph, which is no input and in no loop, is of other operands.
  Id again(const Node& node, const std::array<Id, 3>& args);

  /// Opens a loop: its number. Its carries are in `loop(number)`.
  LoopId open_loop(const std::vector<Id>& start);
  /// Closes the loop that was opened last: the numbers that it leaves.
  std::vector<Id> close_loop(Id condition, const std::vector<Id>& next, std::optional<int64_t> max_steps,
                             bool must_end);
  /// Opens a loop backwards. `steps`, of i32: how many steps `forwards` made, as it left them.
  LoopId open_loop_backwards(LoopId forwards, Id steps, const std::vector<Id>& start);
  /// In the loop that is open, what the present step has of inputs, one for each step in the order of the steps
  /// forwards; they may also be a constant.
  Id element(const std::vector<Id>& of_steps);
  /// Of a loop that is closed, what `value`, a number inside, was in each step. `left`: a number that the loop left.
  /// For outputs alone.
  std::vector<Id> in_steps(LoopId loop, Id value, Id left, int64_t steps);
  /// In a loop backwards that is open: carry `k` of the other loop as it was before the step.
  Id kept(size_t k);
  std::vector<Id> close_loop_backwards(const std::vector<Id>& next);
  const LoopOfNumbers& loop(LoopId id) const { return loops_[id]; }
  const ById<LoopId, LoopOfNumbers>& loops() const { return loops_; }
  /// `values`, of what must not be used where `failed` holds. In a loop, only of matrices.
  std::vector<Id> checked(Id failed, std::vector<Id> values, Failure what = Failure::singular);
  bool in_loop() const { return open_ != kOutsideOfLoops; }
  /// Whether what is in the loop that is open has failed so far, in its present step; none: it cannot.
  Id failed_in_step() const { return failed_.empty() ? kNone : failed_.back(); }
  /// A carry's loop, the one that was left, the one that sees a kept number, or an element, or the one of the steps.
  static LoopId loop_of(const Node& node) { return static_cast<LoopId>(node.bits >> 32); }
  /// The loop in which a division that may fault stands.
  static LoopId loop_of_fault(const Node& node) { return LoopId{static_cast<int32_t>(node.bits) - 1}; }

  /// The solution of a system of floats, row by row, and behind it the place of the first pivot that is zero, counted
  /// from one, as a float; zero if there is none.
  std::vector<Id> solve(int64_t size, int64_t columns, std::vector<Id> operands);
  const SystemOfNumbers& system(const Node& node) const { return systems_[node.bits]; }
  const std::vector<SystemOfNumbers>& systems() const { return systems_; }

  /// The nodes that `outputs` need, and no others; `outputs` are then their new numbers. `input`: the new number of
  /// each input.
  Expressions pruned(std::vector<Id>& outputs, const std::vector<uint64_t>& input) const;

  const Node& operator[](Id id) const { return nodes_[id]; }
  size_t size() const { return nodes_.size(); }
  /// Of the node that is made next.
  Id next_id() const { return nodes_.next_id(); }
  /// Operands come before what is made of them.
  Ids<Id> ids(Id first = Id{}) const { return nodes_.ids(first); }
  Ids<Id, -1> ids_backwards() const { return nodes_.ids_backwards(); }
  /// Whether one of `outputs` needs a node.
  ById<Id, bool> needed(const std::vector<Id>& outputs) const;
  /// The value of a constant; none for what else there is.
  std::optional<double> value(Id id) const;

  /// All that decides what `outputs` are, bit by bit: the same bytes, the same code.
  void write(ByteWriter& out, const std::vector<Id>& outputs) const;
  /// For people: one line for each node that `outputs` need, such as "%3: f32 = mul %0 %2".
  std::string print(const std::vector<Id>& outputs) const;

 private:
  Id constant_of_bits(Type type, uint64_t bits);
  bool is_in_half(Id id, Type half, int depth) const;
  Id make_of_halves(Op op, std::array<Id, 3> args, Type type);
  bool carry_failures();
  std::vector<Id> leave_loop(bool fails);
  Id leave(Id carry);
  Id shared(const Node& node);
  std::optional<Id> simpler(Op op, Id a, Id b, Id c);
  bool is(Id id, double value) const;

  struct Hash {
    size_t operator()(const Node& n) const;
  };
  ById<Id, Node> nodes_;
  std::unordered_map<Node, Id, Hash> known_;
  ById<LoopId, LoopOfNumbers> loops_;
  std::vector<SystemOfNumbers> systems_;
  std::vector<Id> failed_;  // of each loop that is open
  LoopId open_ = kOutsideOfLoops;
};

}  // namespace tower::compiler
