#include "kernels/lines.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/print_functions.h"

namespace tower::compiler {

std::string splat(const std::string& element, int64_t lanes) {
  std::string text = "<";
  for (int64_t i = 0; i < lanes; ++i) text += (i ? ", " : "") + element;
  return text + ">";
}

std::string literal(const Node& n) {
  char text[32];
  if (n.type == Type::b1) return n.bits ? "i1 true" : "i1 false";
  if (is_half(n.type)) {
    std::snprintf(text, sizeof text, " %d", static_cast<int>(n.bits));
  } else if (is_float(n.type)) {
    uint64_t bits = n.bits;
    if (n.type == Type::f32) {
      float narrow;
      std::memcpy(&narrow, &n.bits, sizeof narrow);
      const double wide = narrow;
      std::memcpy(&bits, &wide, sizeof bits);
    }
    std::snprintf(text, sizeof text, " 0x%016llX", static_cast<unsigned long long>(bits));
  } else if (n.type == Type::i64) {
    std::snprintf(text, sizeof text, " %lld", static_cast<long long>(n.bits));
  } else {
    std::snprintf(text, sizeof text, " %d", static_cast<int32_t>(static_cast<uint32_t>(n.bits)));
  }
  return scalar(n.type) + std::string(text);
}

namespace {

// An integer in every lane of a vector.
std::string integers(Type type, const char* value, int64_t lanes) {
  return splat(std::string(scalar(type)) + " " + value, lanes);
}

}  // namespace

Lines::Lines(const Expressions& graph, int64_t lanes, Math math, std::string prefix)
    : graph_(graph), lanes_(lanes), prefix_(std::move(prefix)), permits_(math == Math::fast ? " contract arcp" : "") {}

std::string Lines::line(const std::string& what, std::string result) {
  if (result.empty()) result = fresh();
  body_ += "  " + result + " = " + what + "\n";
  return result;
}

void Lines::print(Type of, std::string_view text, const Holes& holes) {
  body_ += filled(text, holes, holes_of(of, lanes_), "." + prefix_ + std::to_string(temporaries_++));
}

std::string Lines::print_value(Type of, std::string_view text, Holes holes, std::string result) {
  if (result.empty()) result = fresh();
  holes.emplace_back("result", result);
  print(of, text, holes);
  return result;
}

std::string Lines::in_all_lanes(Type of, const std::string& one, const std::string& result) {
  return print_value(of, R"(
  %first~ = insertelement {V} poison, {T} {one}, i32 0
  {result} = shufflevector {V} %first~, {V} poison, {S} zeroinitializer
)",
                     {{"one", one}}, result);
}

void Lines::declare(const std::string& result, const std::string& name, const std::string& parameters) {
  declared_.insert(result + " @" + name + "(" + parameters + ")");
}

std::string Lines::any(const std::string& mask) {
  return print_value(Type::b1, R"(
  %bits~ = bitcast {B} {mask} to i{L}
  {result} = icmp ne i{L} %bits~, 0
)",
                     {{"mask", mask}});
}

void Lines::report(const std::string& any, Fault fault) {
  print(Type::b1, R"(
  %before~ = load i8, ptr %fault
  %now~ = select i1 {any}, i8 {bit}, i8 0
  %both~ = or i8 %before~, %now~
  store i8 %both~, ptr %fault
)",
        {{"any", any}, {"bit", std::to_string(fault)}});
}

void Lines::print_operation(const Node& n, const std::string* v, const std::string& result) {
  const Type from = graph_[n.op == Op::select ? n.args[1] : n.args[0]].type;
  const std::string t = type(from);
  const bool floating = is_float(from);
  const auto binary = [&](const char* of_floats, const char* of_integers) {
    line((floating ? of_floats + permits_ : of_integers) + (" " + t) + " " + v[0] + ", " + v[1], result);
  };
  const auto compare = [&](const char* of_floats, const char* of_integers, const char* of_booleans) {
    const char* how = floating ? of_floats : from == Type::b1 ? of_booleans : of_integers;
    line((floating ? "fcmp " : "icmp ") + std::string(how) + " " + t + " " + v[0] + ", " + v[1], result);
  };
  switch (n.op) {
    case Op::add:
      return binary("fadd", "add");
    case Op::sub:
      return binary("fsub", "sub");
    case Op::mul:
      return binary("fmul", "mul");
    case Op::div:
      return binary("fdiv", nullptr);
    case Op::quotient:
    case Op::rest:
      return print_division(n, v, result);
    case Op::neg:
      line(floating ? "fneg " + t + " " + v[0] : "sub " + t + " zeroinitializer, " + v[0], result);
      return;
    case Op::abs:
      if (floating) return print_intrinsic("fabs", from, v, 1, result);
      declare(t, intrinsic("abs", from), t + ", i1");
      line("call " + t + " @" + intrinsic("abs", from) + "(" + t + " " + v[0] + ", i1 false)", result);
      return;
    case Op::sqrt:
      return print_intrinsic("sqrt", from, v, 1, result);
    case Op::floor:
      return print_intrinsic("floor", from, v, 1, result);
    case Op::ceil:
      return print_intrinsic("ceil", from, v, 1, result);
    case Op::trunc:
      return print_intrinsic("trunc", from, v, 1, result);
    case Op::round:
      return print_intrinsic("nearbyint", from, v, 1, result);
    case Op::copysign:
      return print_intrinsic("copysign", from, v, 2, result);
    case Op::fma:
      return print_intrinsic("fma", from, v, 3, result);
    case Op::bit_and:
      return binary(nullptr, "and");
    case Op::bit_or:
      return binary(nullptr, "or");
    case Op::bit_xor:
      return binary(nullptr, "xor");
    case Op::shift_left:
      return binary(nullptr, "shl");
    case Op::shift_right:
      return binary(nullptr, "ashr");
    case Op::eq:
      return compare("oeq", "eq", "eq");
    case Op::ne:
      return compare("une", "ne", "ne");
    case Op::lt:
      return compare("olt", "slt", "ult");
    case Op::le:
      return compare("ole", "sle", "ule");
    case Op::select:
      line("select " + type(Type::b1) + " " + v[0] + ", " + t + " " + v[1] + ", " + t + " " + v[2], result);
      return;
    case Op::cast:
      return print_cast(from, n.type, v[0], result);
    case Op::check:
      report(any(mask_.empty() ? v[0] : line("and " + t + " " + v[0] + ", " + mask_)),
             n.bits == static_cast<uint64_t>(Failure::singular) ? kSingular : kOutOfRange);
      return;
    case Op::bits:
      line("bitcast " + t + " " + v[0] + " to " + type(n.type), result);
      return;
    default:
      return print_function(n, v, result);
  }
}

void Lines::print_intrinsic(const std::string& name, Type operand, const std::string* v, int arity,
                            const std::string& result) {
  std::string parameters;
  for (int k = 0; k < arity; ++k) parameters += (k ? ", " : "") + type(operand);
  declare(type(operand), intrinsic(name, operand), parameters);
  print_call(intrinsic(name, operand), type(operand), v, arity, result);
}

void Lines::print_call(const std::string& name, const std::string& t, const std::string* v, int arity,
                       const std::string& result) {
  std::string values;
  for (int k = 0; k < arity; ++k) values += (k ? ", " : "") + t + " " + v[k];
  line("call " + t + " @" + name + "(" + values + ")", result);
}

void Lines::print_cast(Type from, Type to, const std::string& v, const std::string& result) {
  if (is_half(from)) return print_from_half(from, v, result);
  if (is_half(to)) return print_to_half(to, v, result);
  const std::string operand = type(from) + " " + v;
  if (to == Type::b1) {
    line((is_float(from) ? "fcmp une " : "icmp ne ") + operand + ", zeroinitializer", result);
    return;
  }
  const bool widens = size_of(to) > size_of(from);
  const char* how = is_float(from)     ? (is_float(to) ? (widens ? "fpext" : "fptrunc") : "fptosi")
                    : from == Type::b1 ? (is_float(to) ? "uitofp" : "zext")
                    : is_float(to)     ? "sitofp"
                    : widens           ? "sext"
                                       : "trunc";
  line(std::string(how) + " " + operand + " to " + type(to), result);
}

// NOTE [Half types in a kernel]
// In vectors, numbers of half types are their bits, as integers: no type of LLVM's for them is given to anything that
// not every version and CPU has. The CPU converts float16; a bfloat16 is the upper half of a float, which is rounded to
// it here: the CPU's instruction for that would take denormal numbers for zero.
void Lines::print_from_half(Type from, const std::string& v, const std::string& result) {
  print(Type::f32,
        from == Type::f16 ? R"(
  %half~ = bitcast {H} {v} to {halves}
  {result} = fpext {halves} %half~ to {V}
)"
                          : R"(
  %wide~ = zext {H} {v} to {S}
  %bits~ = shl {S} %wide~, {sixteen}
  {result} = bitcast {S} %bits~ to {V}
)",
        {{"v", v},
         {"result", result},
         {"H", type(from)},
         {"halves", vector_of("half", lanes_)},
         {"sixteen", integers(Type::i32, "16", lanes_)}});
}

void Lines::print_to_half(Type to, const std::string& v, const std::string& result) {
  if (to == Type::f16) {
    print(Type::f32, R"(
  %half~ = fptrunc {V} {v} to {halves}
  {result} = bitcast {halves} %half~ to {H}
)",
          {{"v", v}, {"result", result}, {"H", type(to)}, {"halves", vector_of("half", lanes_)}});
    return;
  }
  // To the nearest, ties to even: more than half of the last place carries, and so does half of an odd one. NaN stays.
  print(Type::f32, R"(
  %bits~ = bitcast {V} {v} to {S}
  %high~ = lshr {S} %bits~, {sixteen}
  %odd~ = and {S} %high~, {one}
  %almost~ = add {S} %bits~, {almost_half}
  %rounded~ = add {S} %almost~, %odd~
  %nan~ = fcmp uno {V} {v}, {v}
  %chosen~ = select {B} %nan~, {S} {quiet_nan}, {S} %rounded~
  %kept~ = lshr {S} %chosen~, {sixteen}
  {result} = trunc {S} %kept~ to {H}
)",
        {{"v", v},
         {"result", result},
         {"H", type(to)},
         {"sixteen", integers(Type::i32, "16", lanes_)},
         {"one", integers(Type::i32, "1", lanes_)},
         {"almost_half", integers(Type::i32, "32767", lanes_)},
         {"quiet_nan", integers(Type::i32, "2143289344", lanes_)}});
}

// A division by zero is reported, and divides by one. The smallest number by −1 wraps around, for which the CPU would
// stop: x / −1 is −x, and the rest is 0, as by one.
void Lines::print_division(const Node& n, const std::string* v, const std::string& result) {
  const bool quotient = n.op == Op::quotient;
  const std::string how = quotient ? "sdiv" : "srem";
  if (const auto divisor = graph_.value(n.args[1]); divisor && *divisor != 0 && *divisor != -1) {
    line(how + " " + type(n.type) + " " + v[0] + ", " + v[1], result);
    return;
  }
  const std::string by_zero = fresh(), by_minus = fresh(), divided = quotient ? fresh() : result;
  print(n.type, R"(
  {by_zero} = icmp eq {V} {y}, zeroinitializer
  {by_minus} = icmp eq {V} {y}, {minus_one}
  %special~ = or {B} {by_zero}, {by_minus}
  %safe~ = select {B} %special~, {V} {one}, {V} {y}
  {divided} = {how} {V} {x}, %safe~
)",
        {{"by_zero", by_zero},
         {"by_minus", by_minus},
         {"divided", divided},
         {"how", how},
         {"x", v[0]},
         {"y", v[1]},
         {"one", integers(n.type, "1", lanes_)},
         {"minus_one", integers(n.type, "-1", lanes_)}});
  if (quotient)
    print(n.type, R"(
  %negated~ = sub {V} zeroinitializer, {x}
  {result} = select {B} {by_minus}, {V} %negated~, {V} {divided}
)",
          {{"x", v[0]}, {"by_minus", by_minus}, {"divided", divided}, {"result", result}});
  // Lanes that have ended, while the loop goes on for others, report nothing.
  report(any(mask_.empty() ? by_zero : line("and " + type(Type::b1) + " " + by_zero + ", " + mask_)), kDividedByZero);
}

void Lines::print_function(const Node& n, const std::string* v, const std::string& result) {
  const int arity = n.args[1] == kNone ? 1 : 2;
  if (writes_functions_out_ && operations_of_function(n.op, n.type)) {
    const std::string prefix = "f" + std::to_string(temporaries_++) + ".";
    body_ += write_function_out(n.op, n.type, lanes_, v, result, prefix, declared_);
    return;
  }
  functions_.insert({n.op, n.type, arity});
  print_call(name_of_function(n.op, n.type, lanes_), type(n.type), v, arity, result);
}

}  // namespace tower::compiler
