// Element rules against the operators that they are of: on the operator database's samples, alone and mapped, and, for
// arithmetic, bit by bit on the numbers where it goes wrong if anywhere.
#include "numbers/element.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/dynamic.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string_view>

#include "compile/beside.h"
#include "compile/kernels.h"
#include "op_db/op_db.h"
#include "support/compare.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Tensors;

// ---- on special numbers ----

// LibTorch's kernels take vectors and, at the end, single numbers by other code, which may treat zeros differently;
// each number is therefore where a whole vector is, for both.
Tensor in_vectors(const Tensor& t) { return t.repeat_interleave(64); }

void expect_same_bits(const char* what, const std::function<Tensor(const Tensors&)>& f, const Tensors& args) {
  Tensors wide;
  for (const Tensor& t : args) wide.push_back(in_vectors(t));
  const auto results = kernels::computed([&](const Tensors& in) { return Tensors{f(in)}; }, wide);
  SCOPED_TRACE(std::string(what) + " of " + toString(args[0].scalar_type()));
  // What rounds half types otherwise is LibTorch's.
  if (args[0].element_size() == 2 && !results) return;
  ASSERT_TRUE(results) << "there is no kernel";
  EXPECT_EQ(kernels::bit_difference(results->at(0), f(wide), wide), "");
}

// Of a quotient that overflows LibTorch's vectors give NaN, and kernels the exact rest (element_range_test.cpp).
std::pair<Tensor, Tensor> without_overflowing_quotients(const Tensor& a, const Tensor& b) {
  const Tensor kept = (at::div(a, b).isinf() & a.isfinite() & b.ne(0)).logical_not();
  return {a.masked_select(kept), b.masked_select(kept)};
}

TEST(ElementRules, OfArithmeticAreBitEqualToLibTorchOnSpecialNumbers) {
  TOWER_NEEDS_LLVM();
  using Pair = Tensor (*)(const Tensor&, const Tensor&);
  const std::map<const char*, Pair> of_floats = {
      {"add", [](const Tensor& a, const Tensor& b) { return at::add(a, b); }},
      {"add with alpha", [](const Tensor& a, const Tensor& b) { return at::add(a, b, 0.3); }},
      {"sub with alpha", [](const Tensor& a, const Tensor& b) { return at::sub(a, b, 0.3); }},
      {"rsub", [](const Tensor& a, const Tensor& b) { return at::rsub(a, b, 1.7); }},
      {"div", [](const Tensor& a, const Tensor& b) { return at::div(a, b); }},
      {"div trunc", [](const Tensor& a, const Tensor& b) { return at::div(a, b, "trunc"); }},
      {"maximum", [](const Tensor& a, const Tensor& b) { return at::maximum(a, b); }},
      {"minimum", [](const Tensor& a, const Tensor& b) { return at::minimum(a, b); }},
      {"fmax", [](const Tensor& a, const Tensor& b) { return at::fmax(a, b); }},
      {"fmin", [](const Tensor& a, const Tensor& b) { return at::fmin(a, b); }},
      {"remainder", [](const Tensor& a, const Tensor& b) { return at::remainder(a, b); }},
      {"fmod", [](const Tensor& a, const Tensor& b) { return at::fmod(a, b); }},
      {"div floor", [](const Tensor& a, const Tensor& b) { return at::div(a, b, "floor"); }},
      {"lerp", [](const Tensor& a, const Tensor& b) { return at::lerp(a, b, 0.3); }},
      {"addcmul", [](const Tensor& a, const Tensor& b) { return at::addcmul(b, a, b, 0.7); }},
      {"addcdiv", [](const Tensor& a, const Tensor& b) { return at::addcdiv(b, a, b, 0.7); }},
      {"clamp_min", [](const Tensor& a, const Tensor& b) { return at::clamp_min(a, b); }},
      {"clamp_max", [](const Tensor& a, const Tensor& b) { return at::clamp_max(a, b); }},
      {"clamp", [](const Tensor& a, const Tensor& b) { return at::clamp(a, b, at::add(b, 1)); }},
      {"heaviside", [](const Tensor& a, const Tensor& b) { return at::heaviside(a, b); }},
      {"gt", [](const Tensor& a, const Tensor& b) { return at::gt(a, b); }},
      {"logical_xor", [](const Tensor& a, const Tensor& b) { return at::logical_xor(a, b); }},
      {"where", [](const Tensor& a, const Tensor& b) { return at::where(at::lt(a, 1), a, b); }},
      {"masked_fill", [](const Tensor& a, const Tensor& b) { return at::masked_fill(a, at::lt(b, 1), 2.5); }},
      {"threshold_backward", [](const Tensor& a, const Tensor& b) { return at::threshold_backward(a, b, 0.5); }},
      {"leaky_relu_backward",
       [](const Tensor& a, const Tensor& b) { return at::leaky_relu_backward(a, b, 0.1, false); }},
      {"hardtanh_backward", [](const Tensor& a, const Tensor& b) { return at::hardtanh_backward(a, b, -1, 2); }},
      {"sigmoid_backward", [](const Tensor& a, const Tensor& b) { return at::sigmoid_backward(a, b); }},
      {"tanh_backward", [](const Tensor& a, const Tensor& b) { return at::tanh_backward(a, b); }},
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto [a, b] = kernels::special_pairs(dtype);
    const auto [c, d] = without_overflowing_quotients(a, b);
    for (const auto& [name, f] : of_floats) {
      const bool of_quotient = std::string_view(name) == "fmod" || std::string_view(name) == "remainder";
      expect_same_bits(
          name, [f = f](const Tensors& in) { return f(in[0], in[1]); }, of_quotient ? Tensors{c, d} : Tensors{a, b});
    }
  }
  using Single = Tensor (*)(const Tensor&);
  const std::map<const char*, Single> of_one = {
      {"neg", [](const Tensor& x) { return at::neg(x); }},
      {"abs", [](const Tensor& x) { return at::abs(x); }},
      {"sign", [](const Tensor& x) { return at::sign(x); }},
      {"reciprocal", [](const Tensor& x) { return at::reciprocal(x); }},
      {"round", [](const Tensor& x) { return at::round(x); }},
      {"frac", [](const Tensor& x) { return at::frac(x); }},
      {"square", [](const Tensor& x) { return at::square(x); }},
      {"pow 3", [](const Tensor& x) { return at::pow(x, 3); }},
      {"pow -1", [](const Tensor& x) { return at::pow(x, -1.0); }},
      {"pow -2", [](const Tensor& x) { return at::pow(x, -2.0); }},
      {"times a number", [](const Tensor& x) { return at::mul(x, 0.1); }},
      {"by a number", [](const Tensor& x) { return at::div(x, 3); }},
      {"relu", [](const Tensor& x) { return at::relu(x); }},
      {"clamp to numbers", [](const Tensor& x) { return at::clamp(x, -1.5, 2); }},
      {"clamp_min to a number", [](const Tensor& x) { return at::clamp_min(x, 0.5); }},
      {"clamp to NaN", [](const Tensor& x) { return at::clamp_max(x, NAN); }},
      {"leaky_relu", [](const Tensor& x) { return at::leaky_relu(x, 0.1); }},
      {"hardtanh", [](const Tensor& x) { return at::hardtanh(x, -1, 2); }},
      {"hardsigmoid", [](const Tensor& x) { return at::hardsigmoid(x); }},
      {"hardswish", [](const Tensor& x) { return at::hardswish(x); }},
      {"softshrink", [](const Tensor& x) { return at::softshrink(x, 0.5); }},
      {"hardshrink", [](const Tensor& x) { return at::hardshrink(x, 0.5); }},
      {"threshold", [](const Tensor& x) { return at::threshold(x, 0.5, 7); }},
      {"nan_to_num", [](const Tensor& x) { return at::nan_to_num(x); }},
      {"nan_to_num with numbers", [](const Tensor& x) { return at::nan_to_num(x, 1.5, 2.5, -3.5); }},
      {"isnan", [](const Tensor& x) { return at::isnan(x); }},
      {"isinf", [](const Tensor& x) { return at::isinf(x); }},
      {"isposinf", [](const Tensor& x) { return at::isposinf(x); }},
      {"isneginf", [](const Tensor& x) { return at::isneginf(x); }},
      {"signbit", [](const Tensor& x) { return at::signbit(x); }},
      {"logical_not", [](const Tensor& x) { return at::logical_not(x); }},
      {"eq to a number", [](const Tensor& x) { return at::eq(x, 0.1); }},
      {"plus a number", [](const Tensor& x) { return at::add(x, 0.1, 0.3); }},
      {"minus a number", [](const Tensor& x) { return at::sub(x, 0.1, 0.3); }},
      {"less than a number", [](const Tensor& x) { return at::lt(x, 0.3); }},
      {"threshold at a fraction", [](const Tensor& x) { return at::threshold(x, 0.3, 0.7); }},
      {"threshold_backward at a fraction", [](const Tensor& x) { return at::threshold_backward(x, x, 0.1); }},
      {"remainder by a number", [](const Tensor& x) { return at::remainder(x.clamp(-1e3, 1e3), 0.3); }},
      {"to float64", [](const Tensor& x) { return at::_to_copy(x, at::kDouble); }},
      {"to float32", [](const Tensor& x) { return at::_to_copy(x, at::kFloat); }},
      {"to float16", [](const Tensor& x) { return at::_to_copy(x, at::kHalf); }},
      {"to bfloat16", [](const Tensor& x) { return at::_to_copy(x, at::kBFloat16); }},
      {"to bool", [](const Tensor& x) { return at::_to_copy(x, at::kBool); }},
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    for (const auto& [name, f] : of_one)
      expect_same_bits(name, [f = f](const Tensors& in) { return f(in[0]); },
                       {at::isReducedFloatingType(dtype) ? kernels::all_of(dtype) : kernels::special(dtype)});
}

TEST(ElementRules, OfIntegersAreBitEqualToLibTorchOnSpecialNumbers) {
  TOWER_NEEDS_LLVM();
  using Pair = Tensor (*)(const Tensor&, const Tensor&);
  const std::map<const char*, Pair> of_two = {
      {"add with alpha", [](const Tensor& a, const Tensor& b) { return at::add(a, b, 3); }},
      {"sub with alpha", [](const Tensor& a, const Tensor& b) { return at::sub(a, b, 3); }},
      {"mul", [](const Tensor& a, const Tensor& b) { return at::mul(a, b); }},
      {"true division", [](const Tensor& a, const Tensor& b) { return at::div(a, b); }},
      {"maximum", [](const Tensor& a, const Tensor& b) { return at::maximum(a, b); }},
      {"clamp_max", [](const Tensor& a, const Tensor& b) { return at::clamp_max(a, b); }},
      {"bitwise_xor", [](const Tensor& a, const Tensor& b) { return at::bitwise_xor(a, b); }},
      {"le", [](const Tensor& a, const Tensor& b) { return at::le(a, b); }},
      {"logical_and", [](const Tensor& a, const Tensor& b) { return at::logical_and(a, b); }},
  };
  const std::map<const char*, Pair> divisions = {
      {"div floor", [](const Tensor& a, const Tensor& b) { return at::div(a, b, "floor"); }},
      {"div trunc", [](const Tensor& a, const Tensor& b) { return at::div(a, b, "trunc"); }},
      {"remainder", [](const Tensor& a, const Tensor& b) { return at::remainder(a, b); }},
      {"fmod", [](const Tensor& a, const Tensor& b) { return at::fmod(a, b); }},
  };
  using Single = Tensor (*)(const Tensor&);
  const std::map<const char*, Single> of_one = {
      {"abs", [](const Tensor& x) { return at::abs(x); }},
      {"sign", [](const Tensor& x) { return at::sign(x); }},
      {"square", [](const Tensor& x) { return at::square(x); }},
      {"bitwise_not", [](const Tensor& x) { return at::bitwise_not(x); }},
      {"times a fraction", [](const Tensor& x) { return at::mul(x, 0.1); }},
      {"greater than a fraction", [](const Tensor& x) { return at::gt(x, 2.5); }},
      {"clamp", [](const Tensor& x) { return at::clamp(x, -3, 5); }},
      {"floor", [](const Tensor& x) { return at::floor(x); }},
      {"to float32", [](const Tensor& x) { return at::_to_copy(x, at::kFloat); }},
      {"to int32", [](const Tensor& x) { return at::_to_copy(x, at::kInt); }},
      {"to float16", [](const Tensor& x) { return at::_to_copy(x, at::kHalf); }},
      {"to bfloat16", [](const Tensor& x) { return at::_to_copy(x, at::kBFloat16); }},
      {"to bool", [](const Tensor& x) { return at::_to_copy(x, at::kBool); }},
  };
  for (const auto dtype : {at::kInt, at::kLong}) {
    auto [a, b] = kernels::special_pairs(dtype);
    for (const auto& [name, f] : of_two)
      expect_same_bits(name, [f = f](const Tensors& in) { return f(in[0], in[1]); }, {a, b});
    for (const auto& [name, f] : of_one)
      expect_same_bits(name, [f = f](const Tensors& in) { return f(in[0]); }, {kernels::special(dtype)});
    const Tensor defined = (b != 0).logical_and(b != -1);  // by −1 the smallest number stops LibTorch's process
    a = a.masked_select(defined);
    b = b.masked_select(defined);
    for (const auto& [name, f] : divisions)
      expect_same_bits(name, [f = f](const Tensors& in) { return f(in[0], in[1]); }, {a, b});
  }
}

// ---- on the operator database ----

// Where an operator computes functions of a vector library, LibTorch's and ours differ in the last places.
support::Tolerance tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? support::Tolerance{1e-14, 1e-300} : support::Tolerance{2e-6, 1e-37};
}

std::optional<std::string> compare(const td::Function& f, const Tensors& args) {
  Tensors expected;
  try {
    expected = f(args);
  } catch (const c10::Error&) {
    return std::nullopt;  // not for this dtype
  }
  const auto actual = kernels::computed(f, args);
  if (!actual) return std::nullopt;
  std::string text;
  for (size_t k = 0; k < expected.size(); ++k)
    text += support::difference(actual->at(k), expected[k], tolerance(expected[k].scalar_type()));
  // Next to a zero of a formula of many operations: LibTorch says by how much it magnifies what operands are rounded
  // by.
  if (!text.empty() && expected.size() == 1 && expected[0].is_floating_point())
    return beside::difference(f, args, actual->at(0), {8});
  return text;
}

TEST(ElementRules, AgreeWithTheirOperatorsOnTheDatabase) {
  TOWER_NEEDS_LLVM();
  const char* folder = std::getenv("TOWER_OP_DB");
  std::set<std::string> checked;
  size_t samples = 0, mapped = 0;
  for (const op_db::Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (!entry.op || entry.unspecified || !compiler::element_rule(tower::Operator::of(*entry.op))) continue;
    for (const auto dtype : {at::kDouble, at::kFloat, at::kLong}) {
      if (dtype != at::kLong && !entry.real) continue;
      for (const std::string& text : entry.sample_texts) {
        const op_db::Sample sample = op_db::parse_sample(entry, text, dtype);
        if (sample.bad) continue;
        SCOPED_TRACE(entry.name + " " + text + " of " + toString(dtype));
        Tensors one, other;
        try {
          one = op_db::make_leaves(entry, sample, dtype, 0);
          other = op_db::make_leaves(entry, sample, dtype, 1);
        } catch (const c10::Error&) {
          continue;  // no such values of this dtype
        }
        const auto f = [&](const Tensors& leaves) { return op_db::call(*entry.op, sample, leaves); };
        const auto plain = compare(f, one);
        if (!plain) continue;
        EXPECT_EQ(*plain, "");
        checked.insert(entry.name);
        ++samples;
        // Three examples of the first argument, in its last dimension, for one of the others.
        Tensors batch = other;
        batch[0] = at::stack({one[0], other[0], one[0]}, -1);
        td::Dims dims(batch.size());
        dims[0] = -1;
        const auto over_examples = compare(td::vmap(f, dims, {0}), batch);
        if (!over_examples) continue;
        EXPECT_EQ(*over_examples, "") << "mapped";
        ++mapped;
      }
    }
  }
  // Named, so that a rule that serves nothing any more shows.
  EXPECT_GT(checked.size(), 90u);
  EXPECT_GT(mapped, samples / 2);
}

// ---- of half types ----

// The samples, and behind them the same with numbers that half types do not have.
constexpr const char* kOther = " (other numbers)";
std::vector<std::string> with_other_numbers(std::vector<std::string> texts) {
  for (size_t k = texts.size(); k-- > 0;) texts.push_back(texts[k] + kOther);
  return texts;
}
op_db::Sample parsed(const op_db::Entry& entry, std::string text, at::ScalarType dtype) {
  const bool other = text.ends_with(kOther);
  if (other) text.resize(text.size() - std::string_view(kOther).size());
  op_db::Sample sample = op_db::parse_sample(entry, text, dtype);
  for (size_t i = 0; other && i < sample.arguments.size(); ++i) {
    c10::IValue& v = sample.arguments[i];
    const bool number = entry.op->schema().arguments()[i].type()->str().find("Scalar") != std::string::npos;
    if (v.isDouble() || (number && v.isInt())) v = v.toScalar().toDouble() * 1.0123;
  }
  return sample;
}

// LibTorch's kernels for vectors are meant: at the end of a tensor they take single numbers, by other code, which
// rounds otherwise. So 64 calls are mapped, whose numbers lie next to each other.
TEST(ElementRules, OfHalfTypesAreBitEqualToLibTorchOnTheDatabase) {
  TOWER_NEEDS_LLVM();
  const char* folder = std::getenv("TOWER_OP_DB");
  std::set<std::string> checked;
  for (const op_db::Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (!entry.op || entry.unspecified || !entry.real) continue;
    if (!compiler::element_rule(tower::Operator::of(*entry.op))) continue;
    for (const auto dtype : {at::kHalf, at::kBFloat16})
      for (const std::string& text : with_other_numbers(entry.sample_texts)) {
        const op_db::Sample sample = parsed(entry, text, dtype);
        if (sample.bad) continue;
        const auto f = [&](const Tensors& leaves) { return op_db::call(*entry.op, sample, leaves); };
        Tensors batch;
        try {
          for (uint64_t seed = 0; seed < 64; ++seed) {
            const Tensors one = op_db::make_leaves(entry, sample, dtype, seed);
            for (size_t k = 0; k < one.size(); ++k) {
              if (batch.size() == k) batch.push_back(at::empty({0}));
              batch[k] = seed == 0 ? one[k].unsqueeze(-1) : at::cat({batch[k], one[k].unsqueeze(-1)}, -1);
            }
          }
        } catch (const c10::Error&) {
          continue;  // no such values of this dtype
        }
        td::Dims dims(batch.size(), -1);
        const td::Function mapped = td::vmap(f, dims, {0});
        Tensors expected;
        try {
          expected = mapped(batch);
        } catch (const c10::Error&) {
          continue;  // not for this dtype
        }
        const auto actual = kernels::computed(mapped, batch);
        if (!actual) continue;
        checked.insert(entry.name);
        for (size_t k = 0; k < expected.size(); ++k) {
          const Tensor found = actual->at(k).flatten(), exact = expected[k].flatten();
          if (kernels::bit_difference(found, exact, {}) == "") continue;
          ADD_FAILURE() << entry.name << " " << text << " of " << toString(dtype) << ": "
                        << kernels::bit_difference(found, exact, {});
        }
      }
  }
  EXPECT_GT(checked.size(), 90u);
}

}  // namespace
