#include "numbers/expression.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/bytes.h"

namespace tower::compiler {
namespace {

constexpr int kDeep = 4;  // what is looked at of what a number is made of

constexpr const char* kTypes[] = {"f64", "f32", "f16", "bf16", "i64", "i32", "b1"};

bool gives_boolean(Op op) { return op >= Op::eq && op <= Op::le; }
Type type_of_bits(Type operand) {
  if (is_float(operand)) return operand == Type::f64 ? Type::i64 : Type::i32;
  return operand == Type::i64 ? Type::f64 : Type::f32;
}
bool commutes(Op op) {
  return op == Op::add || op == Op::mul || op == Op::bit_and || op == Op::bit_or || op == Op::bit_xor || op == Op::eq ||
         op == Op::ne;
}

// The bits that hold a value, and back.
template <class T>
uint64_t pack(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T unpack(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Calls `f` with a zero of the C++ type that holds values of `type`.
template <class F>
auto with_type(Type type, F f) {
  switch (type) {
    case Type::f64:
      return f(double{});
    case Type::f32:
      return f(float{});
    case Type::f16:
      return f(at::Half{});
    case Type::bf16:
      return f(at::BFloat16{});
    case Type::i64:
      return f(int64_t{});
    case Type::i32:
      return f(int32_t{});
    case Type::b1:
      break;
  }
  return f(bool{});
}

// As LibTorch converts them, half types by way of float.
template <class To, class From>
To converted(From value) {
  constexpr bool is_plain = std::is_arithmetic_v<To> && std::is_arithmetic_v<From>;
  if constexpr (is_plain) return static_cast<To>(value);
  else return static_cast<To>(static_cast<float>(value));
}

template <class T>
std::optional<uint64_t> compute_float(Op op, T a, T b, T c) {
  switch (op) {
    case Op::add:
      return pack(a + b);
    case Op::sub:
      return pack(a - b);
    case Op::mul:
      return pack(a * b);
    case Op::div:
      return pack(a / b);
    case Op::neg:
      return pack(-a);
    case Op::abs:
      return pack(std::fabs(a));
    case Op::sqrt:
      return pack(std::sqrt(a));
    case Op::floor:
      return pack(std::floor(a));
    case Op::ceil:
      return pack(std::ceil(a));
    case Op::trunc:
      return pack(std::trunc(a));
    case Op::round:
      return pack(std::nearbyint(a));
    case Op::copysign:
      return pack(std::copysign(a, b));
    case Op::fma:
      return pack(std::fma(a, b, c));
    case Op::bits:
      return pack(a);
    default:
      return std::nullopt;
  }
}

// Integers wrap around, as LibTorch's do.
template <class T>
std::optional<uint64_t> compute_integer(Op op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  const U ua = static_cast<U>(a), ub = static_cast<U>(b);
  switch (op) {
    case Op::add:
      return pack(static_cast<T>(ua + ub));
    case Op::sub:
      return pack(static_cast<T>(ua - ub));
    case Op::mul:
      return pack(static_cast<T>(ua * ub));
    case Op::neg:
      return pack(static_cast<T>(U{0} - ua));
    case Op::abs:
      return pack(a < 0 ? static_cast<T>(U{0} - ua) : a);
    case Op::bit_and:
      return pack(static_cast<T>(a & b));
    case Op::bit_or:
      return pack(static_cast<T>(a | b));
    case Op::bit_xor:
      return pack(static_cast<T>(a ^ b));
    case Op::bits:
      return pack(a);
    default:
      return std::nullopt;
  }
}

std::optional<uint64_t> compute_boolean(Op op, bool a, bool b) {
  switch (op) {
    case Op::bit_and:
      return pack(a && b);
    case Op::bit_or:
      return pack(a || b);
    case Op::bit_xor:
      return pack(a != b);
    default:
      return std::nullopt;
  }
}

template <class T>
std::optional<uint64_t> compare(Op op, T a, T b) {
  switch (op) {
    case Op::eq:
      return pack(a == b);
    case Op::ne:
      return pack(a != b);
    case Op::lt:
      return pack(a < b);
    case Op::le:
      return pack(a <= b);
    default:
      return std::nullopt;
  }
}

// Of constants of one type; nothing where the kernel is to compute it.
std::optional<uint64_t> compute(Op op, Type type, uint64_t a, uint64_t b, uint64_t c) {
  return with_type(type, [&](auto zero) -> std::optional<uint64_t> {
    using T = decltype(zero);
    const T x = unpack<T>(a), y = unpack<T>(b);
    if (gives_boolean(op)) return compare(op, x, y);
    if constexpr (std::is_same_v<T, bool>) return compute_boolean(op, x, y);
    else if constexpr (std::is_integral_v<T>) return compute_integer(op, x, y);
    else if constexpr (std::is_floating_point_v<T>) return compute_float(op, x, y, unpack<T>(c));
    else return std::nullopt;
  });
}

// Whether a float fits an integer type: otherwise what the conversion gives is the machine's affair.
template <class To, class From>
bool fits(From value) {
  return value >= static_cast<From>(std::numeric_limits<To>::min()) &&
         value < -static_cast<From>(std::numeric_limits<To>::min());
}

std::optional<uint64_t> convert(Type from, Type to, uint64_t bits) {
  return with_type(from, [&](auto f) {
    using From = decltype(f);
    const From value = unpack<From>(bits);
    return with_type(to, [&](auto t) -> std::optional<uint64_t> {
      using To = decltype(t);
      if constexpr (std::is_same_v<To, bool>) return pack(value != From{});
      else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
        if (!fits<To>(value)) return std::nullopt;
        return pack(static_cast<To>(value));
      } else return pack(converted<To>(value));
    });
  });
}

}  // namespace

std::optional<Type> type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return Type::f64;
    case at::kFloat:
      return Type::f32;
    case at::kHalf:
      return Type::f16;
    case at::kBFloat16:
      return Type::bf16;
    case at::kLong:
      return Type::i64;
    case at::kInt:
      return Type::i32;
    case at::kBool:
      return Type::b1;
    default:
      return std::nullopt;
  }
}

at::ScalarType dtype_of(Type type) {
  constexpr at::ScalarType dtypes[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16,
                                       at::kLong,   at::kInt,   at::kBool};
  return dtypes[plain(type)];
}

int64_t size_of(Type type) {
  constexpr int64_t sizes[] = {8, 4, 2, 2, 8, 4, 1};
  return sizes[plain(type)];
}

const char* name(Op op) {
  constexpr const char* names[] = {
      "input",   "constant", "add",    "sub",     "mul",        "div",         "quotient", "rest",
      "neg",     "abs",      "sqrt",   "floor",   "ceil",       "trunc",       "round",    "copysign",
      "fma",     "bit_and",  "bit_or", "bit_xor", "shift_left", "shift_right", "eq",       "ne",
      "lt",      "le",       "select", "cast",    "bits",       "carry",       "leave",    "kept",
      "element", "in_step",  "solve",  "part",    "check",      "after",       "exp",      "exp2",
      "expm1",   "log",      "log2",   "log10",   "log1p",      "sin",         "cos",      "tan",
      "asin",    "acos",     "atan",   "sinh",    "cosh",       "tanh",        "asinh",    "acosh",
      "atanh",   "erf",      "erfc",   "lgamma",  "pow",        "atan2",       "hypot",    "fmod"};
  static_assert(std::size(names) == plain(Op::fmod) + 1);
  return names[plain(op)];
}

size_t Expressions::Hash::operator()(const Node& n) const {
  size_t h = static_cast<size_t>(n.op) * 31 + static_cast<size_t>(n.type);
  for (const Id a : n.args) h = h * 0x9E3779B97F4A7C15u + static_cast<size_t>(a);
  return (h ^ n.bits) * 0x9E3779B97F4A7C15u;
}

Id Expressions::shared(const Node& node) {
  const auto [it, is_new] = known_.try_emplace(node, next_id());
  if (is_new) nodes_.add(node);
  return it->second;
}

Id Expressions::input(Type type, uint64_t number) { return shared({Op::input, type, {kNone, kNone, kNone}, number}); }

Id Expressions::looked_up(Type type, uint64_t number, Id place, Id holds) {
  return shared({Op::input, type, {place, holds, kNone}, number});
}

Id Expressions::constant_of_bits(Type type, uint64_t bits) {
  return shared({Op::constant, type, {kNone, kNone, kNone}, bits});
}

Id Expressions::constant(Type type, double value) {
  const auto bits = convert(Type::f64, type, pack(value));
  TORCH_INTERNAL_ASSERT(bits, value, " is no value of type ", kTypes[plain(type)]);
  return constant_of_bits(type, *bits);
}
Id Expressions::constant(Type type, int64_t value) {
  return constant_of_bits(type, *convert(Type::i64, type, pack(value)));
}

std::optional<double> Expressions::value(Id id) const {
  const Node& n = (*this)[id];
  if (n.op != Op::constant) return std::nullopt;
  return unpack<double>(*convert(n.type, Type::f64, n.bits));
}

bool Expressions::is(Id id, double value) const {
  const auto v = this->value(id);
  return v && *v == value && std::signbit(*v) == std::signbit(value);
}

// NOTE [Strict]
// What holds for every operand, infinities, NaN and both zeros included. Not among it: x + 0 (−0), 0 · x (NaN),
// x − x (NaN), division by multiplication, and any change of order.
std::optional<Id> Expressions::simpler(Op op, Id a, Id b, Id c) {
  const auto negated = [&](Id id) { return id != kNone && (*this)[id].op == Op::neg; };
  const auto inner = [&](Id id) { return (*this)[id].args[0]; };
  const Type type = (*this)[a].type;
  switch (op) {
    case Op::add:
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        if (is(y, is_float(type) ? -0.0 : 0.0)) return x;
        if (negated(y)) return make(Op::sub, x, inner(y));
      }
      break;
    case Op::sub:
      if (is(b, 0.0)) return a;
      if (negated(b)) return make(Op::add, a, inner(b));
      break;
    case Op::mul:
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        if (is(y, 1)) return x;
        if (is(y, -1)) return make(Op::neg, x);
        if (!is_float(type) && is(y, 0)) return y;
      }
      break;
    case Op::div:
      if (is(b, 1)) return a;
      if (is(b, -1)) return make(Op::neg, a);
      break;
    case Op::fma:
      if (is(a, 1)) return make(Op::add, b, c);
      if (is(b, 1)) return make(Op::add, a, c);
      if (is(a, -1)) return make(Op::sub, c, b);
      if (is(b, -1)) return make(Op::sub, c, a);
      break;
    case Op::neg:
      if (negated(a)) return inner(a);
      break;
    case Op::abs:
      if ((*this)[a].op == Op::abs) return a;
      if (negated(a) && is_float(type)) return make(Op::abs, inner(a));
      break;
    case Op::bit_and:
    case Op::bit_or:
      if (a == b) return a;
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        if (const auto v = value(y); v && type == Type::b1) return (*v != 0) == (op == Op::bit_and) ? x : y;
      }
      break;
    case Op::bit_xor:
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        if (is(y, 0)) return x;
        // not (not x)
        const Node& n = (*this)[x];
        if (type == Type::b1 && is(y, 1) && n.op == Op::bit_xor)
          for (const int k : {0, 1})
            if (is(n.args[k], 1)) return n.args[1 - k];
      }
      break;
    case Op::select:
      if (b == c) return b;
      if (const auto v = value(a)) return *v != 0 ? b : c;
      break;
    default:
      break;
  }
  return std::nullopt;
}

Id Expressions::make(Op op, Id a, Id b, Id c) {
  const Type operands = (*this)[op == Op::select ? b : a].type;
  TORCH_INTERNAL_ASSERT(op == Op::select ? (*this)[a].type == Type::b1 && (*this)[c].type == operands
                                         : b == kNone || op == Op::after || (*this)[b].type == operands,
                        name(op), " of values of different types");
  if (is_half(operands) && op != Op::select && op != Op::after) return make_of_halves(op, {a, b, c}, operands);
  if (operands == Type::b1 && op == Op::add) op = Op::bit_or;
  if (operands == Type::b1 && op == Op::mul) op = Op::bit_and;
  const Type type = gives_boolean(op) ? Type::b1 : op == Op::bits ? type_of_bits(operands) : operands;
  const auto constant_bits = [&](Id id) -> std::optional<uint64_t> {
    if (id == kNone) return uint64_t{0};
    if ((*this)[id].op != Op::constant) return std::nullopt;
    return (*this)[id].bits;
  };
  if (const auto x = constant_bits(a), y = constant_bits(b), z = constant_bits(c); x && y && z && op != Op::select)
    if (const auto bits = compute(op, operands, *x, *y, *z)) return constant_of_bits(type, *bits);
  if (const auto id = simpler(op, a, b, c)) return *id;
  if (commutes(op) && b < a) std::swap(a, b);
  // NOTE [What may fault] By zero, an integer must not be divided where the program would not: a division that stands
  // in a loop is the loop's, whether it needs what is carried or not, and not one with its like outside.
  const bool may_fault = (op == Op::quotient || op == Op::rest) && value(b).value_or(0) == 0;
  return shared({op, type, {a, b, c}, may_fault ? static_cast<uint64_t>(plain(open_) + 1) : 0});
}

// Whether a number of f32 is surely one of a half type. Looks at few nodes.
bool Expressions::is_in_half(Id id, Type half, int depth) const {
  const Node& n = (*this)[id];
  const auto operand = [&](size_t k) { return depth > 0 && is_in_half(n.args[k], half, depth - 1); };
  switch (n.op) {
    case Op::constant:
      return *convert(half, Type::f32, *convert(Type::f32, half, n.bits)) == n.bits;
    case Op::cast:
      return (*this)[n.args[0]].type == half || (*this)[n.args[0]].type == Type::b1;
    case Op::neg:
    case Op::abs:
    case Op::floor:
    case Op::ceil:
    case Op::trunc:
    case Op::round:
    case Op::copysign:
      return operand(0);
    case Op::select:
      return operand(1) && operand(2);
    default:
      return false;
  }
}

// NOTE [Half types].
Id Expressions::make_of_halves(Op op, std::array<Id, 3> args, Type type) {
  for (Id& a : args)
    if (a != kNone) a = cast(a, Type::f32);
  const Id made = make(op, args[0], args[1], args[2]);
  return (*this)[made].type == Type::f32 ? cast(made, type) : made;
}

Id Expressions::cast(Id a, Type type) {
  const Node& n = (*this)[a];
  if (n.type == type) return a;
  // What was rounded, and was of the half type before.
  if (n.op == Op::cast && is_half(n.type) && type == Type::f32 && is_in_half(n.args[0], n.type, kDeep))
    return n.args[0];
  if ((is_half(type) && n.type != Type::f32) || (is_half(n.type) && type != Type::f32))
    return cast(cast(a, Type::f32), type);
  if (n.op == Op::constant)
    if (const auto bits = convert(n.type, type, n.bits)) return constant_of_bits(type, *bits);
  // A boolean comes back from whatever type it was turned into, and so does a number of a half type from f32.
  if ((type == Type::b1 || is_half(type)) && n.op == Op::cast && (*this)[n.args[0]].type == type) return n.args[0];
  return shared({Op::cast, type, {a, kNone, kNone}});
}

Id Expressions::again(const Node& node, const std::array<Id, 3>& args) {
  if (node.op == Op::constant) return constant_of_bits(node.type, node.bits);
  if (node.op == Op::cast) return cast(args[0], node.type);
  return make(node.op, args[0], args[1], args[2]);
}

std::vector<Id> Expressions::solve(int64_t size, int64_t columns, std::vector<Id> operands) {
  const Type type = (*this)[operands[0]].type;
  // The last operand stands for all: none is made later.
  const Id last = *std::max_element(operands.begin(), operands.end());
  systems_.push_back({size, columns, std::move(operands)});
  const Id whole = shared({Op::solve, type, {last, kNone, kNone}, systems_.size() - 1});
  std::vector<Id> parts;
  for (int64_t i = 0; i <= size * columns; ++i)
    parts.push_back(shared({Op::part, type, {whole, kNone, kNone}, static_cast<uint64_t>(i)}));
  return parts;
}

std::vector<Id> Expressions::checked(Id failed, std::vector<Id> values, Failure what) {
  if (is(failed, 0)) return values;
  if (!failed_.empty()) {
    TORCH_INTERNAL_ASSERT(what == Failure::singular);
    failed_.back() = failed_.back() == kNone ? failed : make(Op::bit_or, failed_.back(), failed);
    return values;
  }
  const Id check = shared({Op::check, Type::b1, {failed, kNone, kNone}, static_cast<uint64_t>(what)});
  for (Id& id : values) id = shared({Op::after, (*this)[id].type, {id, check, kNone}});
  return values;
}

ById<Id, bool> Expressions::needed(const std::vector<Id>& outputs) const {
  ById<Id, bool> needed(nodes_.size());
  std::vector<Id> open;
  const auto need = [&](Id id) {
    if (id == kNone || needed[id]) return;
    needed[id] = true;
    open.push_back(id);
  };
  for (const Id id : outputs) need(id);
  while (!open.empty()) {
    const Node& n = (*this)[open.back()];
    open.pop_back();
    for (const Id a : n.args) need(a);
    if (n.op == Op::solve)
      for (const Id a : system(n).operands) need(a);
    if (n.op == Op::element)
      for (const Id a : loop(loop_of(n)).stacks[n.bits & 0xffffffff]) need(a);
    if (n.op != Op::carry) continue;
    const LoopOfNumbers& l = loop(loop_of(n));
    if (l.next.empty()) continue;  // it is open
    need(l.condition);
    need(l.next[n.bits & 0xffffffff]);
  }
  return needed;
}

Expressions Expressions::pruned(std::vector<Id>& outputs, const std::vector<uint64_t>& input) const {
  const ById<Id, bool> live = needed(outputs);
  Expressions result;
  ById<Id, Id> moved(nodes_.size(), kNone);
  const auto move = [&](Id& id) {
    if (id != kNone) id = moved[id];
  };
  for (const Id id : ids()) {
    if (!live[id]) continue;
    Node n = nodes_[id];
    if (n.op == Op::input) n.bits = input[n.bits];
    for (Id& a : n.args) move(a);
    moved[id] = result.shared(n);
  }
  result.systems_ = systems_;
  for (SystemOfNumbers& system : result.systems_)
    for (Id& id : system.operands) move(id);
  // Carries that nobody needs are none.
  result.loops_ = loops_;
  for (LoopOfNumbers& l : result.loops_) {
    for (Id& id : l.carries) move(id);
    for (Id& id : l.next) move(id);
    for (auto& stack : l.stacks)
      for (Id& id : stack) move(id);
    move(l.condition);
  }
  for (Id& id : outputs) move(id);
  return result;
}

void Expressions::write(ByteWriter& out, const std::vector<Id>& outputs) const {
  const ById<Id, bool> live = needed(outputs);
  const auto is_live = [&](Id id) { return id != kNone && live[id]; };
  for (const Id id : ids()) {
    if (!is_live(id)) continue;
    const Node& n = (*this)[id];
    for (const int64_t part : {int64_t{plain(id)}, int64_t(n.op), int64_t(n.type), static_cast<int64_t>(n.bits)})
      out.number(part);
    out.numbers(n.args);
    if (n.op != Op::solve) continue;
    out.number(system(n).size);
    out.number(system(n).columns);
    out.numbers(system(n).operands);
  }
  out.number(plain(kNone));
  for (const LoopId loop : loops_.ids()) {
    const LoopOfNumbers& l = loops_[loop];
    if (!is_live(l.condition)) continue;
    for (const int64_t part :
         {int64_t{plain(loop)}, int64_t{plain(l.parent)}, int64_t{plain(l.condition)}, int64_t{l.max_steps.has_value()},
          l.max_steps.value_or(0), int64_t{l.must_end}, int64_t{plain(l.forwards)}})
      out.number(part);
    out.list(l.next, [&](Id id) { out.number(plain(is_live(id) ? id : kNone)); });
    out.list(l.stacks, [&](const std::vector<Id>& stack) { out.numbers(stack); });
  }
}

std::string Expressions::print(const std::vector<Id>& outputs) const {
  const ById<Id, bool> live = needed(outputs);
  std::string text;
  for (const Id id : ids()) {
    if (!live[id]) continue;
    const Node& n = (*this)[id];
    text += "%" + to_string(id) + ": " + kTypes[plain(n.type)] + " = " + name(n.op);
    if (n.op == Op::input) text += " " + std::to_string(n.bits);
    if (n.op == Op::constant && is_float(n.type)) {
      char number[32];
      std::snprintf(number, sizeof number, " %.17g", *value(id));
      text += number;
    } else if (n.op == Op::constant) {
      text += " " + std::to_string(unpack<int64_t>(*convert(n.type, Type::i64, n.bits)));
    }
    for (const Id a : n.args)
      if (a != kNone) text += " %" + to_string(a);
    if (n.op == Op::carry || n.op == Op::leave || n.op == Op::kept || n.op == Op::element || n.op == Op::in_step)
      text += " of loop " + std::to_string(n.bits >> 32) + "." + std::to_string(n.bits & 0xffffffff);
    if (n.op == Op::part) text += " " + std::to_string(n.bits);
    if (n.op == Op::solve)
      for (const Id a : system(n).operands) text += " %" + to_string(a);
    text += '\n';
  }
  for (const LoopId loop : loops_.ids()) {
    const LoopOfNumbers& l = loops_[loop];
    if (l.condition == kNone || !live[l.condition]) continue;
    text += "loop " + std::to_string(plain(loop)) + " in " + std::to_string(plain(l.parent)) + ": " +
            (l.forwards == kOutsideOfLoops ? "while" : "back through " + std::to_string(plain(l.forwards)) + " by") +
            " %" + to_string(l.condition) + (l.max_steps ? ", steps " + std::to_string(*l.max_steps) : "") +
            (l.must_end ? " at most" : "");
    for (const Id id : l.next)
      if (id != kNone && live[id]) text += " %" + to_string(id);
    text += '\n';
  }
  return text;
}

}  // namespace tower::compiler
