// What programs compute of sizes: Python's operators on numbers, as Python defines them, and questions for a tensor's
// shape. Integers that overflow are errors.
#include <ATen/core/Tensor.h>
#include <c10/util/generic_math.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "exported/program.h"
#include "tower/errors.h"

namespace tower::exported {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw ArgumentError("exported model: arithmetic of sizes " + why + ".");
}

const IValue& operand(const Values& operands, size_t i) {
  if (i >= operands.size()) refuse("lacks an operand");
  return operands[i];
}

bool is_real(const IValue& v) { return v.isDouble(); }

int64_t integer(const Values& operands, size_t i) {
  const IValue& v = operand(operands, i);
  if (v.isBool()) return v.toBool();
  if (!v.isInt()) refuse("is of something that is no integer");
  return v.toInt();
}

double real(const Values& operands, size_t i) {
  const IValue& v = operand(operands, i);
  return is_real(v) ? v.toDouble() : static_cast<double>(integer(operands, i));
}

bool truth(const Values& operands, size_t i) {
  const IValue& v = operand(operands, i);
  if (v.isTensor()) return v.toTensor().item().toBool();
  return is_real(v) ? v.toDouble() != 0 : integer(operands, i) != 0;
}

const at::Tensor& tensor(const Values& operands, size_t i) {
  const IValue& v = operand(operands, i);
  if (!v.isTensor() || !v.toTensor().defined()) refuse("asks something that is no tensor for its shape");
  return v.toTensor();
}

/// Of two integers or two reals.
template <class Integers, class Reals>
IValue of_two(const Values& o, Integers&& integers, Reals&& reals) {
  if (is_real(operand(o, 0)) || is_real(operand(o, 1))) return reals(real(o, 0), real(o, 1));
  return integers(integer(o, 0), integer(o, 1));
}

int64_t checked(bool overflow, int64_t value) {
  if (overflow) refuse("overflows 64 bits");
  return value;
}

IValue add(const Values& o) {
  return of_two(
      o,
      [](int64_t a, int64_t b) {
        int64_t c;
        const bool over = __builtin_add_overflow(a, b, &c);
        return IValue(checked(over, c));
      },
      [](double a, double b) { return IValue(a + b); });
}
IValue subtract(const Values& o) {
  return of_two(
      o,
      [](int64_t a, int64_t b) {
        int64_t c;
        const bool over = __builtin_sub_overflow(a, b, &c);
        return IValue(checked(over, c));
      },
      [](double a, double b) { return IValue(a - b); });
}
int64_t product(int64_t a, int64_t b) {
  int64_t c;
  const bool over = __builtin_mul_overflow(a, b, &c);
  return checked(over, c);
}
IValue multiply(const Values& o) {
  return of_two(
      o, [](int64_t a, int64_t b) { return IValue(product(a, b)); }, [](double a, double b) { return IValue(a * b); });
}

void check_divisor(int64_t a, int64_t b) {
  if (b == 0) refuse("divides by zero");
  if (a == std::numeric_limits<int64_t>::min() && b == -1) refuse("overflows 64 bits");
}
IValue floor_divide(const Values& o) {
  return of_two(
      o,
      [](int64_t a, int64_t b) {
        check_divisor(a, b);
        return IValue(c10::div_floor_integer(a, b));
      },
      [](double a, double b) {
        if (b == 0) refuse("divides by zero");
        return IValue(std::floor(a / b));
      });
}
IValue modulo(const Values& o) {
  return of_two(
      o,
      [](int64_t a, int64_t b) {
        check_divisor(a, b);
        const int64_t rest = a % b;
        return IValue(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
      },
      [](double a, double b) {
        if (b == 0) refuse("divides by zero");
        const double rest = std::fmod(a, b);
        return IValue(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
      });
}
IValue divide(const Values& o) {
  if (real(o, 1) == 0) refuse("divides by zero");
  return real(o, 0) / real(o, 1);
}
IValue power(const Values& o) {
  return of_two(
      o,
      [](int64_t a, int64_t b) {
        if (b < 0) return IValue(std::pow(static_cast<double>(a), static_cast<double>(b)));
        int64_t result = 1;
        // 0, 1 and -1 have powers of any order; of other bases the 63rd is the last that can have a place.
        if (a >= -1 && a <= 1) return IValue(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
        for (int64_t n = 0; n < b; ++n) result = product(result, a);
        return IValue(result);
      },
      [](double a, double b) { return IValue(std::pow(a, b)); });
}
IValue negative(const Values& o) {
  if (is_real(operand(o, 0))) return -real(o, 0);
  return subtract({IValue(int64_t{0}), operand(o, 0)});
}
IValue itself(const Values& o) { return operand(o, 0); }

template <class Compare>
bool compare(const Values& o, Compare&& holds) {
  if (is_real(operand(o, 0)) || is_real(operand(o, 1))) return holds(real(o, 0), real(o, 1));
  return holds(integer(o, 0), integer(o, 1));
}
IValue equal(const Values& o) {
  return compare(o, [](auto a, auto b) { return a == b; });
}
IValue not_equal(const Values& o) {
  return compare(o, [](auto a, auto b) { return a != b; });
}
IValue less(const Values& o) {
  return compare(o, [](auto a, auto b) { return a < b; });
}
IValue less_equal(const Values& o) {
  return compare(o, [](auto a, auto b) { return a <= b; });
}
IValue greater(const Values& o) {
  return compare(o, [](auto a, auto b) { return a > b; });
}
IValue greater_equal(const Values& o) {
  return compare(o, [](auto a, auto b) { return a >= b; });
}
IValue maximum(const Values& o) { return operand(o, greater_equal(o).toBool() ? 0 : 1); }
IValue minimum(const Values& o) { return operand(o, less_equal(o).toBool() ? 0 : 1); }

/// `and`, `or`: of truths a truth, of integers bit by bit.
template <class Join>
IValue joined(const Values& o, Join&& join) {
  if (operand(o, 0).isBool() && operand(o, 1).isBool()) return join(int64_t{truth(o, 0)}, int64_t{truth(o, 1)}) != 0;
  return join(integer(o, 0), integer(o, 1));
}
IValue conjunction(const Values& o) {
  return joined(o, [](int64_t a, int64_t b) { return a & b; });
}
IValue disjunction(const Values& o) {
  return joined(o, [](int64_t a, int64_t b) { return a | b; });
}
IValue negation(const Values& o) { return !truth(o, 0); }
IValue choice(const Values& o) { return operand(o, truth(o, 0) ? 1 : 2); }

int64_t shift_width(const Values& o) {
  const int64_t width = integer(o, 1);
  if (width < 0 || width > 62) refuse("shifts by " + std::to_string(width) + " bits");
  return width;
}
IValue shift_left(const Values& o) { return product(integer(o, 0), int64_t{1} << shift_width(o)); }
IValue shift_right(const Values& o) { return integer(o, 0) >> shift_width(o); }

IValue truncate(const Values& o) {
  if (!is_real(operand(o, 0))) return integer(o, 0);
  const double whole = std::trunc(real(o, 0));
  // The first number above all of 64 bits.
  constexpr double end = 9223372036854775808.0;
  if (!(whole >= -end && whole < end)) refuse("overflows 64 bits");
  return static_cast<int64_t>(whole);
}
IValue to_real(const Values& o) { return real(o, 0); }
IValue square_root(const Values& o) {
  if (!(real(o, 0) >= 0)) refuse("takes the root of a negative number");
  return std::sqrt(real(o, 0));
}

IValue size(const Values& o) { return tensor(o, 0).size(integer(o, 1)); }
IValue stride(const Values& o) { return tensor(o, 0).stride(integer(o, 1)); }
IValue element_count(const Values& o) { return tensor(o, 0).numel(); }
IValue storage_offset(const Values& o) { return tensor(o, 0).storage_offset(); }

/// What held when the model was exported, and it relies on.
IValue assertion(const Values& o) {
  if (!truth(o, 0)) {
    const std::string what = o.size() > 1 && o[1].isString() ? o[1].toStringRef() : "";
    throw ArgumentError("exported model: what it was exported for does not hold: " + what + ".");
  }
  return IValue();
}
IValue range_check(const Values& o) {
  const auto breaks = [&](size_t i, auto&& beyond) {
    return i < o.size() && !o[i].isNone() && beyond(integer(o, 0), integer(o, i));
  };
  if (breaks(1, std::less<>()) || breaks(2, std::greater<>()))
    throw ArgumentError("exported model: a number that it computes, " + std::to_string(integer(o, 0)) +
                        ", is outside of the range that it was exported for.");
  return IValue();
}

// _assert_tensor_metadata(tensor, sizes, strides, dtype, device, layout): of one example. Strides are none's business.
IValue metadata_check(const Values& o) {
  const at::Tensor& t = tensor(o, 0);
  const auto given = [&](size_t i) { return i < o.size() && !o[i].isNone(); };
  const bool fits = (!given(1) || t.sizes().equals(o[1].toIntVector())) &&
                    (!given(3) || t.scalar_type() == o[3].toScalarType()) &&
                    (!given(4) || t.device().type() == o[4].toDevice().type());
  if (!fits)
    throw ArgumentError("exported model: a tensor that it computes is " + std::string(c10::toString(t.scalar_type())) +
                        " on " + t.device().str() + ", and not what it was exported for.");
  return IValue();
}

}  // namespace

SizeFunction find_size_function(const std::string& target) {
  static const std::map<std::string, SizeFunction> known = {
      {"_operator.add", add},
      {"_operator.sub", subtract},
      {"_operator.mul", multiply},
      {"_operator.floordiv", floor_divide},
      {"_operator.mod", modulo},
      {"_operator.truediv", divide},
      {"_operator.pow", power},
      {"_operator.neg", negative},
      {"_operator.pos", itself},
      {"_operator.eq", equal},
      {"_operator.ne", not_equal},
      {"_operator.lt", less},
      {"_operator.le", less_equal},
      {"_operator.gt", greater},
      {"_operator.ge", greater_equal},
      {"_operator.and_", conjunction},
      {"_operator.or_", disjunction},
      {"_operator.lshift", shift_left},
      {"_operator.rshift", shift_right},
      {"math.trunc", truncate},
      {"torch.sym_not", negation},
      {"torch.sym_int", truncate},
      {"torch.sym_float", to_real},
      {"torch.sym_max", maximum},
      {"torch.sym_min", minimum},
      {"torch.sym_ite", choice},
      {"torch.sym_sqrt", square_root},
      {"torch._sym_sqrt", square_root},
      {"torch.ops.aten.sym_size.int", size},
      {"torch.ops.aten.sym_stride.int", stride},
      {"torch.ops.aten.sym_numel.default", element_count},
      {"torch.ops.aten.sym_storage_offset.default", storage_offset},
      {"torch.ops.aten._assert_scalar.default", assertion},
      {"torch.ops.aten._assert_tensor_metadata.default", metadata_check},
      {"torch.ops.aten.sym_constrain_range.default", range_check},
      {"torch.ops.aten.sym_constrain_range_for_size.default", range_check},
  };
  const auto found = known.find(target);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace tower::exported
