// A function of float64 with 8 lanes:
//
//   define internal <8 x double> @tower_exp.v8f64(<8 x double> %x0) #0 {
//   start:
//     %v2 = fmul <8 x double> %x0, …                      ; the formula's nodes, one after the other
//     …
//     ret <8 x double> %v41
//   }
//
// sin, cos and tan of large arguments need hundreds of digits of π. Where a lane has such an argument, all that have
// are reduced one by one (Payne and Hanek's algorithm). fmod is a loop. No other function has a branch.
#include "kernels/print_functions.h"

#include "kernels/lines.h"
#include "numbers/functions.h"

namespace tower::compiler {
namespace {

// 2/π · 2¹¹⁶⁸, from its last 64 bits on. x is M · 2ᵉ with an integer M of 53 bits. Of M · 2ᵉ · 2/π, in units of 2⁻¹⁹⁰,
// what is a multiple of 4 does not count, so 192 bits of 2/π will do. No float64 is closer to a multiple of π/2 than
// 2⁻⁶², so of the 128 bits that are left of the fraction 64 count at least.
constexpr const char* kReductionOfOne = R"(
@tower_two_over_pi = internal unnamed_addr constant [20 x i64] [
  i64 6895327196492617219, i64 4176959266666212347, i64 -4987758689458111225, i64 4568513006801876263,
  i64 9137565921952878406, i64 1264203121234505014, i64 -7494027139313832145, i64 6884805333185404920,
  i64 -3010230482442609532, i64 8081344903596030353, i64 3888065235147614620, i64 -1505133382990894974,
  i64 3380525265999167005, i64 7942733794839103049, i64 7182078928824153892, i64 -7667030629740839343,
  i64 6328108558839765858, i64 -8976150952983004121, i64 41721, i64 0]

define internal { i64, double, double } @tower_reduce(double %x) #0 {
  %all = bitcast double %x to i64
  %biased.s = lshr i64 %all, 52
  %biased = and i64 %biased.s, 2047
  %fraction = and i64 %all, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %shift.any = sub i64 2053, %biased
  %shift.some = call i64 @llvm.smax.i64(i64 %shift.any, i64 0)
  %shift = call i64 @llvm.smin.i64(i64 %shift.some, i64 1000)
  %word = lshr i64 %shift, 6
  %bit = and i64 %shift, 63
  %p0 = getelementptr i64, ptr @tower_two_over_pi, i64 %word
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %t0 = load i64, ptr %p0
  %t1 = load i64, ptr %p1
  %t2 = load i64, ptr %p2
  %t3 = load i64, ptr %p3
  %w0 = call i64 @llvm.fshr.i64(i64 %t1, i64 %t0, i64 %bit)
  %w1 = call i64 @llvm.fshr.i64(i64 %t2, i64 %t1, i64 %bit)
  %w2 = call i64 @llvm.fshr.i64(i64 %t3, i64 %t2, i64 %bit)
  %m.wide = zext i64 %m to i128
  %w0.wide = zext i64 %w0 to i128
  %w1.wide = zext i64 %w1 to i128
  %product0 = mul i128 %m.wide, %w0.wide
  %carry0 = lshr i128 %product0, 64
  %product1.m = mul i128 %m.wide, %w1.wide
  %product1 = add i128 %product1.m, %carry0
  %carry1.wide = lshr i128 %product1, 64
  %carry1 = trunc i128 %carry1.wide to i64
  %last = trunc i128 %product0 to i64
  %middle = trunc i128 %product1 to i64
  %first.m = mul i64 %m, %w2
  %first = add i64 %first.m, %carry1
  %g.high = call i64 @llvm.fshl.i64(i64 %first, i64 %middle, i64 2)
  %g.low = call i64 @llvm.fshl.i64(i64 %middle, i64 %last, i64 2)
  %turns.below = lshr i64 %first, 62
  %up = lshr i64 %g.high, 63
  %turns = add i64 %turns.below, %up
  %high.wide = zext i64 %g.high to i128
  %low.wide = zext i64 %g.low to i128
  %high.there = shl i128 %high.wide, 64
  %g = or i128 %high.there, %low.wide
  %sign = ashr i128 %g, 127
  %g.flipped = xor i128 %g, %sign
  %size = sub i128 %g.flipped, %sign
  %zeros.wide = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %zeros.few = and i128 %zeros.wide, 127
  %normal = shl i128 %size, %zeros.few
  %a.wide = lshr i128 %normal, 64
  %a = trunc i128 %a.wide to i64
  %b = trunc i128 %normal to i64
  %hi.i = and i64 %a, -2048
  %hi.f = uitofp i64 %hi.i to double
  %lo.i = call i64 @llvm.fshl.i64(i64 %a, i64 %b, i64 53)
  %lo.f = uitofp i64 %lo.i to double
  %zeros = trunc i128 %zeros.few to i64
  %power.e = sub i64 959, %zeros
  %power.b = shl i64 %power.e, 52
  %power = bitcast i64 %power.b to double
  %hi = fmul double %hi.f, %power
  %lo.there = fmul double %lo.f, 0x3CA0000000000000
  %lo = fmul double %lo.there, %power
  %angle = fmul double %hi, 0x3FF921FB54442D18
  %angle.n = fneg double %angle
  %rounded = call double @llvm.fma.f64(double %hi, double 0x3FF921FB54442D18, double %angle.n)
  %more = call double @llvm.fma.f64(double %hi, double 0x3C91A62633145C07, double %rounded)
  %rest = call double @llvm.fma.f64(double %lo, double 0x3FF921FB54442D18, double %more)
  %back = icmp slt i128 %g, 0
  %minus = icmp slt i64 %all, 0
  %negates = xor i1 %back, %minus
  %none = fsub double %x, %x
  %angle.minus = fneg double %angle
  %rest.minus = fneg double %rest
  %angle.signed = select i1 %negates, double %angle.minus, double %angle
  %rest.signed = select i1 %negates, double %rest.minus, double %rest
  %angle.there = fadd double %angle.signed, %none
  %turns.minus = sub i64 0, %turns
  %turns.signed = select i1 %minus, i64 %turns.minus, i64 %turns
  %r0 = insertvalue { i64, double, double } poison, i64 %turns.signed, 0
  %r1 = insertvalue { i64, double, double } %r0, double %angle.there, 1
  %r2 = insertvalue { i64, double, double } %r1, double %rest.signed, 2
  ret { i64, double, double } %r2
}
)";

constexpr const char* kReduction = R"(
define internal { {I}, {V}, {V} } @tower_reduce.{M}({V} %x, {I} %turns, {V} %angle, {V} %rest) #0 {
start:
  %p.x = alloca {V}
  %p.turns = alloca {I}
  %p.angle = alloca {V}
  %p.rest = alloca {V}
  store {V} %x, ptr %p.x
  store {I} %turns, ptr %p.turns
  store {V} %angle, ptr %p.angle
  store {V} %rest, ptr %p.rest
  br label %lane
lane:
  %l = phi i64 [ 0, %start ], [ %next, %done ]
  %p.x.l = getelementptr {T}, ptr %p.x, i64 %l
  %x.l = load {T}, ptr %p.x.l
  %size = call {T} @llvm.fabs.f64({T} %x.l)
  %far = fcmp ogt {T} %size, 0x41D0000000000000
  br i1 %far, label %reduce, label %done
reduce:
  %reduced = call { i64, double, double } @tower_reduce({T} %x.l)
  %turns.l = extractvalue { i64, double, double } %reduced, 0
  %angle.l = extractvalue { i64, double, double } %reduced, 1
  %rest.l = extractvalue { i64, double, double } %reduced, 2
  %p.turns.l = getelementptr i64, ptr %p.turns, i64 %l
  %p.angle.l = getelementptr {T}, ptr %p.angle, i64 %l
  %p.rest.l = getelementptr {T}, ptr %p.rest, i64 %l
  store i64 %turns.l, ptr %p.turns.l
  store {T} %angle.l, ptr %p.angle.l
  store {T} %rest.l, ptr %p.rest.l
  br label %done
done:
  %next = add i64 %l, 1
  %more = icmp slt i64 %next, {L}
  br i1 %more, label %lane, label %end
end:
  %turns.all = load {I}, ptr %p.turns
  %angle.all = load {V}, ptr %p.angle
  %rest.all = load {V}, ptr %p.rest
  %r0 = insertvalue { {I}, {V}, {V} } poison, {I} %turns.all, 0
  %r1 = insertvalue { {I}, {V}, {V} } %r0, {V} %angle.all, 1
  %r2 = insertvalue { {I}, {V}, {V} } %r1, {V} %rest.all, 2
  ret { {I}, {V}, {V} } %r2
}
)";

// The function's arguments are the inputs of the formula's graph.
class FunctionPrinter : private Lines {
 public:
  FunctionPrinter(Expressions& formula, int64_t lanes, const std::string& prefix = {})
      : Lines(formula, lanes, Math::strict, prefix), formula_(formula) {}

  void define(Op op, Type type, int arity, Definitions& definitions, std::set<std::string>& declared) {
    const std::string name = name_of_function(op, type, lanes_);
    print(type,
          arity == 1 ? R"(
define internal {V} @{name}({V} %x0) #0 {
start:
)"
                     : R"(
define internal {V} @{name}({V} %x0, {V} %x1) #0 {
start:
)",
          {{"name", name}});
    const E x = argument(type, 0);
    const E found = is_circular(op)  ? reduced(op, x, definitions).to(type)
                    : op == Op::fmod ? in_steps(x, argument(type, 1))
                                     : formula(op, x, argument(type, 1));
    const Id given = found.id();
    print_for({given});
    print(type, "  ret {V} {given}\n}\n", {{"given", value(given)}});
    declared.insert(declared_.begin(), declared_.end());
    definitions.emplace(name, std::move(body_));
  }

  // Of values that have the names `v`.
  std::string write_out(Op op, Type type, const std::string* v, const std::string& result,
                        std::set<std::string>& declared) {
    arguments_ = v;
    const Id given = formula(op, argument(type, 0), argument(type, 1)).id();
    result_ = {given, result};
    print_for({given});
    declared.insert(declared_.begin(), declared_.end());
    return std::move(body_);
  }

  int64_t operations(Op op, Type type) {
    const ById<Id, bool> needed = formula_.needed({formula(op, argument(type, 0), argument(type, 1)).id()});
    int64_t operations = 0;
    for (const Id id : formula_.ids()) operations += needed[id] && is_computed(formula_[id]);
    return operations;
  }

 private:
  static bool is_computed(const Node& n) { return n.op != Op::constant && n.op != Op::input; }
  E argument(Type type, uint64_t number) { return {formula_, formula_.input(type, number)}; }

  // Where a lane is far from zero, %x2 … %x4 are what the reduction gives instead of the formula.
  E reduced(Op op, E argument_in_type, Definitions& definitions) {
    const bool narrow = argument_in_type.type() == Type::f32;
    const E x = argument_in_type.to(Type::f64);
    // Inputs from `first` on.
    const auto turns_at = [&](uint64_t first) {
      return Turns{argument(Type::i64, first), argument(Type::f64, first + 1), argument(Type::f64, first + 2)};
    };
    const auto ids = [](const Turns& t) { return std::vector{t.turns.id(), t.angle.id(), t.remainder.id()}; };
    const Turns near = turns_of(op, x, narrow), far = turns_of(op, turns_at(5), narrow);
    const E is_far = abs(x) > kMostTurned;
    const std::vector<Id> before = ids(near);
    const std::vector<Id> after = ids({where(is_far, far.turns, near.turns), where(is_far, far.angle, near.angle),
                                       where(is_far, far.remainder, near.remainder)});
    print_for({before[0], before[1], before[2], is_far.id()});
    Holes holes{{"any", any(value(is_far.id()))}, {"x", value(x.id())}};
    for (const auto& [name, id] : {std::pair{"turns", before[0]}, {"angle", before[1]}, {"rest", before[2]}})
      holes.emplace_back(name, value(id));
    print(Type::f64, R"(
  br i1 {any}, label %far, label %reduced
far:
  %all = call { {I}, {V}, {V} } @tower_reduce.{M}({V} {x}, {I} {turns}, {V} {angle}, {V} {rest})
  %x5 = extractvalue { {I}, {V}, {V} } %all, 0
  %x6 = extractvalue { {I}, {V}, {V} } %all, 1
  %x7 = extractvalue { {I}, {V}, {V} } %all, 2
)",
          holes);
    print_for(after);
    for (const auto& [name, id] : {std::pair{"turns_far", after[0]}, {"angle_far", after[1]}, {"rest_far", after[2]}})
      holes.emplace_back(name, value(id));
    print(Type::f64, R"(
  br label %reduced
reduced:
  %x2 = phi {I} [ {turns}, %start ], [ {turns_far}, %far ]
  %x3 = phi {V} [ {angle}, %start ], [ {angle_far}, %far ]
  %x4 = phi {V} [ {rest}, %start ], [ {rest_far}, %far ]
)",
          holes);
    define_reduction(definitions);
    return circular(op, x, turns_at(2), narrow);
  }

  E in_steps(E x, E y) {
    const E begin = abs(x), divisor = abs(y), left = argument(x.type(), 2), next = fmod_step(left, divisor),
            goes_on = fmod_goes_on(next, divisor);
    print_for({begin.id(), divisor.id()});
    print(x.type(), R"(
  br label %step
step:
  %x2 = phi {V} [ {begin}, %start ], [ {next}, %step ]
)",
          {{"begin", value(begin.id())}, {"next", value(next.id())}});
    print_for({next.id(), goes_on.id()});
    print(x.type(), R"(
  br i1 {any}, label %step, label %done
done:
)",
          {{"any", any(value(goes_on.id()))}});
    return fmod_result(x, y, next);
  }

  void define_reduction(Definitions& definitions) {
    for (const char* name : {"smax", "smin"}) declare("i64", std::string("llvm.") + name + ".i64", "i64, i64");
    for (const char* name : {"fshl", "fshr"}) declare("i64", std::string("llvm.") + name + ".i64", "i64, i64, i64");
    declare("i128", "llvm.ctlz.i128", "i128, i1");
    declare("double", "llvm.fma.f64", "double, double, double");
    declare("double", "llvm.fabs.f64", "double");
    const Holes holes = holes_of(Type::f64, lanes_);
    definitions.emplace("tower_reduce", filled(kReductionOfOne, {}));
    definitions.emplace(filled("tower_reduce.{M}", holes), filled(kReduction, holes));
  }

  std::string value(Id id) const {
    const Node& n = formula_[id];
    if (n.op == Op::constant) return splat(literal(n), lanes_);
    if (n.op == Op::input) return arguments_ ? arguments_[n.bits] : "%x" + std::to_string(n.bits);
    if (id == result_.first) return result_.second;
    return "%" + prefix_ + "v" + to_string(id);
  }

  // What these need and is not there yet.
  void print_for(const std::vector<Id>& wanted) {
    const ById<Id, bool> needed = formula_.needed(wanted);
    for (const Id id : formula_.ids()) {
      const Node& n = formula_[id];
      if (!needed[id] || !is_computed(n) || !printed_.insert(id).second) continue;
      std::string v[3];
      for (size_t k = 0; k < 3; ++k)
        if (n.args[k] != kNone) v[k] = value(n.args[k]);
      print_operation(n, v, value(id));
    }
  }

  Expressions& formula_;
  std::set<Id> printed_;
  const std::string* arguments_ = nullptr;        // their names, where it is written out, and …
  std::pair<Id, std::string> result_{kNone, {}};  // … its result's
};

}  // namespace

std::string name_of_function(Op op, Type type, int64_t lanes) {
  return std::string("tower_") + name(op) + ".v" + std::to_string(lanes) + mangled(type);
}

void define_function(Op op, Type type, int arity, int64_t lanes, Definitions& definitions,
                     std::set<std::string>& declared) {
  Expressions formula;
  FunctionPrinter(formula, lanes).define(op, type, arity, definitions, declared);
}

std::optional<int64_t> operations_of_function(Op op, Type type) {
  if (is_circular(op) || op == Op::fmod) return std::nullopt;
  Expressions formula;
  return FunctionPrinter(formula, 1).operations(op, type);
}

std::string write_function_out(Op op, Type type, int64_t lanes, const std::string* v, const std::string& result,
                               const std::string& prefix, std::set<std::string>& declared) {
  Expressions formula;
  return FunctionPrinter(formula, lanes, prefix).write_out(op, type, v, result, declared);
}

}  // namespace tower::compiler
