// Sizes that a file writes as expressions of symbols: what sympy's srepr prints, such as
// Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), Integer(1)). A small grammar is parsed; nothing is
// evaluated as Python.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tower::exported {

/// The sizes that symbols stand for.
using Symbols = std::map<std::string, int64_t>;

class SizeExpression {
 public:
  SizeExpression() = default;
  SizeExpression(int64_t value) : value_(value) {}  // NOLINT: a size that is known
  /// Throws FileError where it is not of the grammar, NotSupported where it has a function that is not known.
  static SizeExpression parse(std::string_view text);

  bool is_constant() const { return kind_ == Kind::constant; }
  /// Of a constant.
  int64_t value() const { return value_; }
  /// Its value; none where a symbol is not known, it is no integer of 64 bits, or it is rounded on the way: sizes of
  /// results may be (what `interpolate` makes of a scale), and come from the operators themselves.
  std::optional<int64_t> evaluate(const Symbols& symbols) const;
  /// Makes the expression equal to `size` where all its symbols but one are known, and it is linear in that. False
  /// where it is not so, with nothing changed.
  bool solve(int64_t size, Symbols& symbols) const;
  /// "2*s0 + 1".
  std::string text() const;

 private:
  friend class SizeParser;
  enum class Kind : uint8_t {
    constant,
    symbol,
    sum,
    product,
    power,
    floor_divide,
    modulo,
    ceil_divide,
    maximum,
    minimum,
    real,      // a number that is no integer, as it is written
    of_reals,  // a function of such numbers, or that has one: its name
  };
  // A fraction in lowest terms, as sympy writes s0/2: the product of 1/2 and s0.
  struct Fraction {
    int64_t above, below;
  };
  std::optional<Fraction> fraction(const Symbols& symbols) const;
  void collect_unknown(const Symbols& symbols, std::vector<std::string>& names) const;

  Kind kind_ = Kind::constant;
  int64_t value_ = 0, below_ = 1;
  std::string symbol_;
  std::vector<SizeExpression> operands_;
};

}  // namespace tower::exported
