// Every operator that has an element rule beside LibTorch's own, over the whole range of each type that kernels compute
// in: zeros, denormals, halves and what lies next to them, extremes, infinities, NaN, and random bits, pairwise where
// there are two operands; and with every number for an attribute. The operators come from the dispatcher: a new rule is
// tested by being there.
//
// What is computed by arithmetic has LibTorch's bits. Functions of the vector library are within two units in the last
// place of LibTorch's in the same type or, of float32, in float64. Special functions, which are many operations, are
// held to what their operands' last places make of them, too (compile/beside.h).
//
// TOWER_RANGE=all goes through all attributes of all types; otherwise a few of each are drawn.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <set>
#include <sstream>

#include "compile/beside.h"
#include "compile/kernels.h"
#include "fuse/fuse.h"
#include "graph/plan.h"
#include "graph/trace.h"
#include "numbers/element.h"

namespace {

namespace compiler = tower::compiler;
using at::Tensor;
using tower::Operator;
using tower::Stack;
using Tensors = std::vector<Tensor>;

std::mt19937_64& draws() {
  static std::mt19937_64 draws;
  return draws;
}
bool all_of_them() {
  const char* wanted = std::getenv("TOWER_RANGE");
  return wanted && std::string(wanted) == "all";
}

// ---- numbers ----

template <class T>
std::vector<T> special_numbers() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values;
  if constexpr (std::is_floating_point_v<T>) {
    const auto beside = [&](double x) {
      for (const T toward : {T(0), T(x), Limits::infinity()}) values.push_back(std::nextafter(T(x), toward));
    };
    for (const double x : {0.5, 1.0, double(Limits::min()), double(Limits::max())}) beside(x);
    values.insert(values.end(), {T(0),
                                 Limits::denorm_min(),
                                 7 * Limits::denorm_min(),
                                 Limits::min() / 3,
                                 T(1e-20),
                                 Limits::epsilon() / 2,
                                 Limits::epsilon(),
                                 T(4e-7),
                                 T(1e-3),
                                 T(0.1),
                                 T(0.25),
                                 T(0.3),
                                 T(0.75),
                                 T(1.5),
                                 T(2),
                                 T(2.5),
                                 T(3),
                                 T(M_PI),
                                 T(6),
                                 T(10.25),
                                 T(20),
                                 T(35),
                                 T(88.5),
                                 T(103.9),
                                 T(127),
                                 T(500),
                                 T(709.5),
                                 T(745),
                                 T(1000.5),
                                 T(123456.789),
                                 T(8388607.5),
                                 T(16777217),
                                 T(2147483648.0),
                                 T(9223372036854775808.0),
                                 T(1e15),
                                 T(1e20),
                                 Limits::max() / 4});
    const size_t positive = values.size();
    for (size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
    values.push_back(Limits::quiet_NaN());
  } else {
    for (const int64_t x : {0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, 65, 1000, 1001, 46341, 16777217, 16777219})
      for (const int64_t sign : {1, -1}) values.push_back(static_cast<T>(sign * x));
    for (const int64_t x : {9007199254740993, 9007199254740995, -9007199254740993}) values.push_back(static_cast<T>(x));
    values.insert(values.end(),
                  {Limits::max(), Limits::max() - 1, Limits::max() / 2, Limits::min(), Limits::min() + 1});
  }
  return values;
}

template <class T>
T random_number() {
  const uint64_t bits = draws()();
  if constexpr (std::is_floating_point_v<T>) {
    if (draws()() % 2) return T(std::normal_distribution<double>(0, draws()() % 2 ? 1 : 30)(draws()));
    T x;
    std::memcpy(&x, &bits, sizeof x);
    return std::isnan(x) ? std::numeric_limits<T>::quiet_NaN() : x;  // what signals is no number's affair
  } else return draws()() % 2 ? static_cast<T>(bits) : static_cast<T>(static_cast<int64_t>(bits % 2001) - 1000);
}

// Operand `which` of `count`: all pairs of special numbers, then others. A whole number of vectors: single numbers at
// the end are computed by other code of LibTorch's, which treats some otherwise.
template <class T>
Tensor operand(size_t which, size_t count, int64_t n, at::ScalarType dtype) {
  static const std::vector<T> special = special_numbers<T>();
  const size_t m = special.size();
  std::vector<T> values;
  for (size_t i = 0; values.size() < static_cast<size_t>(n); ++i) {
    const size_t place = count == 1 ? i : which == 0 ? i / m : which == 1 ? i % m : i * 7 + i / m;
    const bool in_grid = i < (count == 1 ? m : m * m);
    values.push_back(in_grid ? special[place % m] : draws()() % 3 ? random_number<T>() : special[draws()() % m]);
  }
  Tensor t = at::empty({n}, dtype);
  std::memcpy(t.mutable_data_ptr(), values.data(), t.nbytes());
  return t;
}
Tensor operand(at::ScalarType dtype, size_t which, size_t count, int64_t n) {
  switch (dtype) {
    case at::kDouble:
      return operand<double>(which, count, n, dtype);
    case at::kFloat:
      return operand<float>(which, count, n, dtype);
    case at::kLong:
      return operand<int64_t>(which, count, n, dtype);
    case at::kInt:
      return operand<int32_t>(which, count, n, dtype);
    default:
      return at::arange(n).div(int64_t{1} << which, "floor").remainder(2) == 1;
  }
}

// ---- calls ----

std::vector<c10::IValue> choices(const c10::Argument& argument) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  c10::TypePtr type = argument.real_type();
  std::vector<c10::IValue> values;
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    values.emplace_back();
    type = optional->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::NumberType:
      for (const double x : {1.0, 0.0, -0.0, -1.0, 0.5, -0.5, 0.3, 2.0, 3.0, -2.0, 2.5, 1e-310, 1e-40, 1e30, 1e300, inf,
                             -inf, std::nan("")})
        values.emplace_back(at::Scalar(x));
      // The smallest is not among them: LibTorch's subtractions negate alpha.
      for (const int64_t x : {int64_t{1}, int64_t{0}, int64_t{-1}, int64_t{2}, int64_t{3}, int64_t{-2},
                              int64_t{16777217}, int64_t{9007199254740993}, std::numeric_limits<int64_t>::max()})
        values.emplace_back(at::Scalar(x));
      for (const bool x : {true, false}) values.emplace_back(at::Scalar(x));
      break;
    case c10::TypeKind::FloatType:
      for (const double x : {0.0, 1.0, 0.3, 1e-310, 1e300, inf, std::nan("")}) values.emplace_back(x);
      break;
    case c10::TypeKind::BoolType:
      for (const bool x : {false, true}) values.emplace_back(x);
      break;
    case c10::TypeKind::IntType:
      for (const int64_t x : {0, 1, 2, -1}) values.emplace_back(x);
      break;
    case c10::TypeKind::ScalarTypeType:
      for (const auto dtype : {at::kDouble, at::kFloat, at::kLong, at::kInt, at::kBool}) values.emplace_back(dtype);
      break;
    case c10::TypeKind::StringType:
      for (const char* x : {"none", "tanh", "trunc", "floor"}) values.emplace_back(std::string(x));
      break;
    default:
      break;
  }
  if (values.empty()) values.emplace_back();
  return values;
}

struct Subject {
  const Operator& op;
  std::string name;
  std::vector<size_t> tensors, attributes;

  explicit Subject(const Operator& which)
      : op(which), name(which.schema().name() + "." + which.schema().overload_name()) {
    for (size_t i = 0; i < op.num_args(); ++i) (op.tensor_mask() >> i & 1 ? tensors : attributes).push_back(i);
  }

  // By zero LibTorch raises, and of the smallest number by -1 its process dies.
  bool divides_integers() const {
    for (const char* what : {"div", "remainder", "fmod"})
      if (name.find(what) != std::string::npos) return true;
    return false;
  }
  std::vector<Stack> calls() const {
    Stack base(op.num_args());
    std::vector<std::vector<c10::IValue>> values(op.num_args());
    for (const size_t i : attributes) {
      const c10::Argument& argument = op.schema().arguments()[i];
      values[i] = choices(argument);
      base[i] = argument.default_value() ? *argument.default_value() : values[i][0];
    }
    std::vector<Stack> calls;
    for (const size_t i : attributes)
      for (const c10::IValue& value : values[i]) {
        calls.push_back(base);
        calls.back()[i] = value;
      }
    for (int k = 0; k < 12 && attributes.size() > 1; ++k) {
      calls.push_back(base);
      for (const size_t i : attributes) calls.back()[i] = values[i][draws()() % values[i].size()];
    }
    if (!all_of_them()) {
      std::shuffle(calls.begin(), calls.end(), draws());
      calls.resize(std::min<size_t>(calls.size(), 2));
    }
    calls.insert(calls.begin(), base);
    return calls;
  }
  Tensors run(const Stack& call, const Tensors& operands) const {
    Stack stack = call;
    for (size_t k = 0; k < tensors.size(); ++k) stack[tensors[k]] = operands[k];
    op.handle()->callBoxed(stack);
    Tensors results;
    for (const c10::IValue& v : stack) results.push_back(v.toTensor());
    return results;
  }
  std::string describe(const Stack& call) const {
    std::ostringstream text;
    text.precision(17);
    text << name;
    for (const size_t i : attributes) text << ' ' << op.argument_name(i) << '=' << call[i];
    return text.str();
  }
  // Of many operations: compile/special_elements_test.cpp has more numbers for these.
  bool is_special() const {
    static const std::set<std::string> of_one = {"digamma", "polygamma", "mvlgamma", "lgamma", "i0"};
    static const std::set<std::string> of_one_special = {"ndtri", "i0e", "i1", "i1e", "airy_ai"};
    const std::string_view plain = op.schema().name();
    const std::string base(plain.substr(plain.find("::") + 2));
    if (of_one.count(base)) return true;
    if (!base.starts_with("special_")) return false;
    return of_one_special.count(base.substr(8)) || base.find("bessel") != std::string::npos ||
           base.find("polynomial") != std::string::npos;
  }
  beside::Tolerance tolerance() const {
    const auto is = [&](const char* what) { return name.find(what) != std::string::npos; };
    const double terms = is("hermite")                  ? 32
                         : is("laguerre")               ? 8
                         : is("shifted")                ? 4
                         : is("polynomial")             ? 2
                         : is("bessel_y") || is("airy") ? 0.25
                                                        : 0;
    return {is("bessel_k") ? 16.0 : 8.0, 4, terms};
  }
  bool is_recurrence() const { return name.find("polynomial") != std::string::npos; }
  // Where LibTorch subtracts what is nearly equal, so that an error of a function's last bit is one of the operand's.
  bool cancels() const {
    for (const char* what : {"gelu", "silu_backward", "mish_backward"})
      if (name.find(what) != std::string::npos) return true;
    return false;
  }
};

// In 32 bits, too.
bool may_divide_by(const Stack& call, const Subject& s) {
  for (const size_t i : s.attributes) {
    if (!call[i].isScalar()) continue;
    const at::Scalar number = call[i].toScalar();
    const double value = number.isFloatingPoint() ? number.toDouble() : static_cast<int32_t>(number.toLong());
    if (value == 0 || value == -1) return false;
  }
  return true;
}

// LibTorch makes as many steps of a recurrence as the degree says, and goes on for years.
bool ends(const Stack& call, const Subject& s) {
  if (!s.is_recurrence()) return true;
  for (const size_t i : s.attributes)
    if (call[i].isScalar() && !(std::fabs(call[i].toScalar().toDouble()) < 1000)) return false;
  return true;
}

// Whether the rule calls a function of the vector library, or takes a root: LibTorch's, of float32, is off by one unit.
bool has_functions(const Subject& s, const Stack& call, const Tensors& operands, const Tensors& results) {
  compiler::Expressions g;
  std::vector<compiler::ElementArgument> arguments(s.op.num_args());
  for (size_t k = 0; k < s.tensors.size(); ++k) {
    const at::ScalarType dtype = operands[k].scalar_type();
    arguments[s.tensors[k]] = {g.input(*compiler::type_of(dtype), k), dtype, operands[k].dim() == 0, false};
  }
  std::vector<at::ScalarType> dtypes;
  for (const Tensor& t : results) dtypes.push_back(t.scalar_type());
  compiler::elements(g, s.op, call, arguments, dtypes);
  for (const compiler::Id id : g.ids())
    if (g[id].op == compiler::Op::sqrt || compiler::is_function(g[id].op)) return true;
  return false;
}

// ---- comparison ----

// As integers: a float64 has fewer digits than the place of one has.
template <class T>
double units_apart(double x, double y) {
  using Bits = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  const auto place = [](double v) -> int64_t {
    const auto bits = std::bit_cast<Bits>(static_cast<T>(v));
    return bits < 0 ? -(bits & std::numeric_limits<Bits>::max()) : bits;
  };
  const int64_t a = place(x), b = place(y);
  return static_cast<double>(static_cast<uint64_t>(std::max(a, b)) - static_cast<uint64_t>(std::min(a, b)));
}

struct Counts {
  std::set<std::string> operators;
  size_t calls = 0, numbers = 0;
};

void compare(const Subject& s, const Stack& call, const Tensors& operands, const Tensors& found,
             const Tensors& expected, const Tensors& wide, Counts& counts) {
  const bool functions = has_functions(s, call, operands, expected);
  const bool modulo = s.name.find("fmod") != std::string::npos || s.name.find("remainder") != std::string::npos;
  for (size_t k = 0; k < expected.size(); ++k) {
    ASSERT_EQ(found[k].scalar_type(), expected[k].scalar_type()) << s.describe(call);
    ASSERT_EQ(found[k].sizes(), expected[k].sizes()) << s.describe(call);
    counts.numbers += static_cast<size_t>(found[k].numel());
    if (kernels::bit_difference(found[k], expected[k], {}).empty()) continue;
    if (s.is_special()) {
      const tower::dynamic::Function libtorch = [&](const Tensors& in) { return s.run(call, in); };
      EXPECT_EQ(beside::difference(libtorch, operands, found[k], s.tolerance()), "")
          << s.describe(call) << " of " << operands[0].scalar_type();
      continue;
    }
    const bool narrow = found[k].scalar_type() == at::kFloat;
    const Tensor a = found[k].to(at::kDouble), b = expected[k].to(at::kDouble),
                 c = wide.empty() ? b : wide[k].to(found[k].scalar_type()).to(at::kDouble);
    size_t wrong = 0;
    std::ostringstream first;
    first.precision(17);
    for (int64_t i = 0; i < a.numel(); ++i) {
      const double x = a.const_data_ptr<double>()[i];
      double size = 1;  // of the terms
      for (const Tensor& t : operands)
        size *= std::max(1.0, std::fabs((t.dim() ? t[i] : t).to(at::kDouble).item<double>()));
      const auto agrees = [&](double y) {
        if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
        if (x == y) return functions || std::signbit(x) == std::signbit(y);
        if (!functions || !found[k].is_floating_point()) return false;
        if ((narrow ? units_apart<float>(x, y) : units_apart<double>(x, y)) <= 2) return true;
        // A function's result below the smallest normal number is off by two units of all of these, as LibTorch's is;
        // what multiplies it is an operand.
        const double denormal =
            narrow ? std::numeric_limits<float>::denorm_min() : std::numeric_limits<double>::denorm_min();
        if (std::fabs(x - y) <= 2 * denormal * size) return true;
        const double eps = narrow ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
        return s.cancels() && std::fabs(x - y) <= 8 * eps * size;
      };
      const double y = b.const_data_ptr<double>()[i];
      if (agrees(y) || agrees(c.const_data_ptr<double>()[i])) continue;
      // LibTorch's vectors do not know what is left of a quotient that overflows; its single numbers do.
      if (modulo && std::isnan(y) && std::isfinite(x)) continue;
      if (wrong++ > 0) continue;
      first << x << " instead of " << y << " of";
      for (const Tensor& t : operands) first << ' ' << (t.dim() ? t[i] : t).to(at::kDouble).item<double>();
    }
    EXPECT_EQ(wrong, 0u) << s.describe(call) << " of " << operands[0].scalar_type() << ", output " << k << ": "
                         << first.str();
  }
}

void check(const Subject& s, const Stack& call, const Tensors& operands, Counts& counts) {
  if (!ends(call, s)) return;
  Tensors expected, wide;
  try {
    expected = s.run(call, operands);
    Tensors of_doubles;
    for (const Tensor& t : operands) of_doubles.push_back(t.scalar_type() == at::kFloat ? t.to(at::kDouble) : t);
    if (operands[0].scalar_type() == at::kFloat) wide = s.run(call, of_doubles);
  } catch (const std::exception&) {
    return;  // not of this dtype, or with these attributes
  }
  const tower::dynamic::Function f = [&](const Tensors& in) { return s.run(call, in); };
  compiler::Kernels kernels;
  compiler::FusedGraph fused =
      compiler::fuse(compiler::trace(f, operands, "test").graph, kernels, compiler::Worth::all);
  if (fused.kernels.empty()) return;
  const Tensors found = compiler::Plan(std::move(fused.graph)).run(operands);
  compare(s, call, operands, found, expected, wide, counts);
  counts.operators.insert(s.name);
  ++counts.calls;
}

// All of one dtype; or one of them booleans, or a single number.
std::vector<Tensors> operands_of(const Subject& s, at::ScalarType dtype) {
  const size_t count = s.tensors.size();
  const int64_t n = all_of_them() ? (count == 1 ? 1024 : 12800) : (count == 1 ? 256 : 1024);
  Tensors grid;
  for (size_t k = 0; k < count; ++k) grid.push_back(operand(dtype, k, count, n));
  // Of NaN some of LibTorch's recurrences give a number that was never set.
  if (s.is_recurrence())
    for (Tensor& t : grid) t = t.nan_to_num(0.3, INFINITY, -INFINITY);
  const auto sound = [](const Tensor& t) {
    return at::where(t.eq(0).logical_or(t.eq(-1)), at::scalar_tensor(3, t.options()), t);
  };
  if (s.divides_integers() && !at::isFloatingType(dtype)) grid.back() = sound(grid.back());
  std::vector<Tensors> all{grid};
  for (size_t k = 0; k < count && dtype != at::kBool; ++k) {
    all.push_back(grid);
    all.back()[k] = operand(at::kBool, k, count, n);
    if (s.divides_integers()) all.back()[k] = at::ones({n}, at::kBool);
    if (count == 1) continue;
    all.push_back(grid);
    all.back()[k] = grid[k][5].clone();
  }
  return all;
}

// Where LibTorch's vectors have NaN, the C library knows it.
template <class T>
void expect_exact_rests(at::ScalarType dtype) {
  Tensor x = operand<T>(0, 2, 12800, dtype), y = operand<T>(1, 2, 12800, dtype);
  const tower::dynamic::Function f = [](const Tensors& in) {
    return Tensors{at::fmod(in[0], in[1]), at::remainder(in[0], in[1])};
  };
  compiler::Kernels kernels;
  compiler::FusedGraph fused = compiler::fuse(compiler::trace(f, {x, y}, "test").graph, kernels, compiler::Worth::all);
  const Tensors found = compiler::Plan(std::move(fused.graph)).run({x, y});
  Tensor rests = at::empty_like(x), remainders = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const T a = x.const_data_ptr<T>()[i], b = y.const_data_ptr<T>()[i], rest = std::fmod(a, b);
    rests.mutable_data_ptr<T>()[i] = rest;
    remainders.mutable_data_ptr<T>()[i] = rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
  }
  EXPECT_EQ(kernels::bit_difference(found[0], rests, {x, y}), "");
  EXPECT_EQ(kernels::bit_difference(found[1], remainders, {x, y}), "");
}
TEST(ElementRange, OfRestsIsExactWhateverTheQuotient) {
  TOWER_NEEDS_LLVM();
  draws().seed(2);
  expect_exact_rests<double>(at::kDouble);
  expect_exact_rests<float>(at::kFloat);
}

TEST(ElementRange, EveryRuleIsItsOperatorOverTheWholeRangeOfItsType) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // so that parts are whole vectors
  draws().seed(1);
  Counts counts;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const Operator* op =
        name.name.starts_with("aten::") ? Operator::find(name.name.c_str(), name.overload_name.c_str()) : nullptr;
    if (!op || !compiler::element_rule(*op)) continue;
    const Subject subject(*op);
    for (const auto dtype : {at::kDouble, at::kFloat, at::kLong, at::kInt, at::kBool}) {
      if (!all_of_them() && !at::isFloatingType(dtype) && draws()() % 3) continue;
      const std::vector<Stack> calls = subject.calls();
      std::vector<Tensors> all = operands_of(subject, dtype);
      if (!all_of_them() && all.size() > 2) all.resize(2 + draws()() % 2);
      for (const Tensors& operands : all)
        for (const Stack& call : calls)
          if (!subject.divides_integers() || may_divide_by(call, subject) ||
              (at::isFloatingType(dtype) && &operands == &all[0]))
            check(subject, call, operands, counts);
    }
  }
  at::set_num_threads(threads);
  std::cout << counts.operators.size() << " operators, " << counts.calls << " calls, " << counts.numbers
            << " numbers\n";
  EXPECT_GT(counts.operators.size(), 130u);
}

}  // namespace
