#include "exported/sizes.h"

#include <c10/util/generic_math.h>

#include <cctype>
#include <charconv>
#include <limits>
#include <utility>

#include "exported/archive.h"
#include "exported/wide.h"

namespace tower::exported {
namespace {

Wide magnitude(Wide n) { return n < 0 ? -n : n; }

Wide common_divisor(Wide a, Wide b) {
  while (b != 0) a = std::exchange(b, a % b);
  return magnitude(a);
}

}  // namespace

/// name(argument, …, key=value), numbers and quoted names.
class SizeParser {
 public:
  explicit SizeParser(std::string_view text) : text_(text) {}

  SizeExpression all() {
    SizeExpression e = expression(0);
    skip_spaces();
    if (at_ != text_.size()) fail("ends where more follows");
    return e;
  }

 private:
  using Kind = SizeExpression::Kind;
  static constexpr int kDeepest = 64;

  SizeExpression expression(int depth) {
    if (depth > kDeepest) fail("is nested too deep");
    const std::string name = word();
    if (name == "Integer" || name == "Rational") {
      SizeExpression e;
      expect('(');
      e.value_ = number();
      if (name == "Rational") {
        expect(',');
        e.below_ = number();
        if (e.below_ <= 0) fail("divides by a number that is not positive");
      }
      expect(')');
      return e;
    }
    SizeExpression e;
    if (name == "Symbol") {
      expect('(');
      e.kind_ = Kind::symbol;
      e.symbol_ = quoted();
      while (next_is(',')) {  // integer=True
        word();
        expect('=');
        word();
      }
      expect(')');
      return e;
    }
    if (name == "Float") {
      expect('(');
      e.kind_ = Kind::real;
      e.symbol_ = quoted();
      while (next_is(',')) {  // precision=53
        word();
        expect('=');
        word();
      }
      expect(')');
      return e;
    }
    const std::optional<Kind> kind = function(name);
    if (!kind) throw NotSupported("the size " + std::string(text_) + " has the function " + name);
    e.kind_ = *kind;
    if (*kind == Kind::of_reals) e.symbol_ = name;
    expect('(');
    do e.operands_.push_back(expression(depth + 1));
    while (next_is(','));
    expect(')');
    const bool of_two =
        *kind == Kind::power || *kind == Kind::floor_divide || *kind == Kind::modulo || *kind == Kind::ceil_divide;
    if (of_two && e.operands_.size() != 2) fail("has a " + name + " that is not of two operands");
    return e;
  }

  static std::optional<Kind> function(const std::string& name) {
    static const std::map<std::string, Kind> known = {
        {"Add", Kind::sum},
        {"Mul", Kind::product},
        {"Pow", Kind::power},
        {"PowByNatural", Kind::power},
        {"FloorDiv", Kind::floor_divide},
        {"CleanDiv", Kind::floor_divide},
        {"Mod", Kind::modulo},
        {"PythonMod", Kind::modulo},
        {"CeilDiv", Kind::ceil_divide},
        {"Max", Kind::maximum},
        {"Min", Kind::minimum},
        {"ToFloat", Kind::of_reals},
        {"TruncToInt", Kind::of_reals},
        {"TruncToFloat", Kind::of_reals},
        {"FloorToInt", Kind::of_reals},
        {"CeilToInt", Kind::of_reals},
        {"RoundToInt", Kind::of_reals},
        {"RoundDecimal", Kind::of_reals},
        {"IntTrueDiv", Kind::of_reals},
        {"FloatTrueDiv", Kind::of_reals},
        {"FloatPow", Kind::of_reals},
    };
    const auto found = known.find(name);
    return found == known.end() ? std::nullopt : std::optional(found->second);
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool next_is(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!next_is(c)) fail(std::string("has no ") + c + " at character " + std::to_string(at_));
  }
  std::string word() {
    skip_spaces();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    if (at_ == begin) fail("has no name at character " + std::to_string(at_));
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::string quoted() {
    expect('\'');
    const size_t end = text_.find('\'', at_);
    if (end == text_.npos || end == at_) fail("has a name without an end");
    std::string name(text_.substr(at_, end - at_));
    at_ = end + 1;
    return name;
  }
  int64_t number() {
    skip_spaces();
    int64_t n = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
    if (error != std::errc()) fail("has no integer of 64 bits at character " + std::to_string(at_));
    at_ = static_cast<size_t>(end - text_.data());
    return n;
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw FileError("the size \"" + std::string(text_.substr(0, 200)) + "\" " + why);
  }

  std::string_view text_;
  size_t at_ = 0;
};

SizeExpression SizeExpression::parse(std::string_view text) {
  SizeExpression e = SizeParser(text).all();
  if (e.kind_ == Kind::constant && e.below_ != 1)
    throw FileError("the size \"" + std::string(text.substr(0, 200)) + "\" is no integer");
  return e;
}

std::optional<SizeExpression::Fraction> SizeExpression::fraction(const Symbols& symbols) const {
  const auto lowest = [](Wide above, Wide below) -> std::optional<Fraction> {
    if (below < 0) above = -above, below = -below;
    const Wide divisor = common_divisor(above, below);
    if (divisor > 1) above /= divisor, below /= divisor;
    const auto narrow_above = narrow(above), narrow_below = narrow(below);
    return narrow_above && narrow_below ? std::optional(Fraction{*narrow_above, *narrow_below}) : std::nullopt;
  };
  if (kind_ == Kind::real || kind_ == Kind::of_reals) return std::nullopt;
  if (kind_ == Kind::constant) return lowest(value_, below_);
  if (kind_ == Kind::symbol) {
    const auto found = symbols.find(symbol_);
    return found == symbols.end() ? std::nullopt : std::optional(Fraction{found->second, 1});
  }
  std::optional<Fraction> result;
  for (const SizeExpression& operand : operands_) {
    const auto next = operand.fraction(symbols);
    if (!next) return std::nullopt;
    if (!result) {
      result = next;
      continue;
    }
    const Fraction a = *result, b = *next;
    switch (kind_) {
      case Kind::sum: {
        // Each product has 126 bits, so their sum has a place in 128.
        result = lowest(Wide{a.above} * b.below + Wide{b.above} * a.below, Wide{a.below} * b.below);
        break;
      }
      case Kind::product:
        result = lowest(Wide{a.above} * b.above, Wide{a.below} * b.below);
        break;
      case Kind::power: {
        if (b.below != 1 || magnitude(b.above) > 64 || (b.above < 0 && a.above == 0)) return std::nullopt;
        Fraction power{1, 1};
        for (int64_t n = 0; n < magnitude(b.above); ++n) {
          const auto more = b.above > 0 ? lowest(Wide{power.above} * a.above, Wide{power.below} * a.below)
                                        : lowest(Wide{power.above} * a.below, Wide{power.below} * a.above);
          if (!more) return std::nullopt;
          power = *more;
        }
        result = power;
        break;
      }
      case Kind::floor_divide:
      case Kind::ceil_divide:
      case Kind::modulo: {
        constexpr int64_t least = std::numeric_limits<int64_t>::min();
        if (a.below != 1 || b.below != 1 || b.above == 0 || a.above == least || b.above == least) return std::nullopt;
        const int64_t quotient = c10::div_floor_integer(a.above, b.above), rest = a.above - quotient * b.above;
        result = kind_ == Kind::modulo ? Fraction{rest, 1}
                                       : Fraction{quotient + (kind_ == Kind::ceil_divide && rest != 0), 1};
        break;
      }
      case Kind::maximum:
      case Kind::minimum: {
        const bool less = Wide{a.above} * b.below < Wide{b.above} * a.below;
        result = less == (kind_ == Kind::maximum) ? b : a;
        break;
      }
      case Kind::constant:
      case Kind::symbol:
      case Kind::real:
      case Kind::of_reals:
        break;
    }
    if (!result) return std::nullopt;
  }
  return result;
}

std::optional<int64_t> SizeExpression::evaluate(const Symbols& symbols) const {
  const auto value = fraction(symbols);
  return value && value->below == 1 ? std::optional(value->above) : std::nullopt;
}

void SizeExpression::collect_unknown(const Symbols& symbols, std::vector<std::string>& names) const {
  if (kind_ == Kind::symbol && symbols.count(symbol_) == 0) names.push_back(symbol_);
  for (const SizeExpression& operand : operands_) operand.collect_unknown(symbols, names);
}

bool SizeExpression::solve(int64_t size, Symbols& symbols) const {
  std::vector<std::string> unknown;
  collect_unknown(symbols, unknown);
  for (const std::string& name : unknown)
    if (name != unknown.front()) return false;
  if (unknown.empty()) return false;
  Symbols tried = symbols;
  const auto value_at = [&](int64_t n) {
    tried[unknown.front()] = n;
    return fraction(tried);
  };
  // Linear: what it is at 0 and at 1 says where it has that size. Whether it is linear, its value there says.
  const auto at_0 = value_at(0), at_1 = value_at(1);
  if (!at_0 || !at_1) return false;
  const Wide slope = Wide{at_1->above} * at_0->below - Wide{at_0->above} * at_1->below;  // of at_1->below * at_0->below
  if (slope == 0 || !narrow(slope)) return false;
  const Wide distance = Wide{size} * at_0->below - at_0->above;  // of at_0->below
  if (!narrow(distance) || distance * at_1->below % slope != 0) return false;
  const auto solution = narrow(distance * at_1->below / slope);
  if (!solution) return false;
  const auto there = value_at(*solution);
  if (!there || there->below != 1 || there->above != size) return false;
  symbols = std::move(tried);
  return true;
}

std::string SizeExpression::text() const {
  const auto joined = [&](const char* between) {
    std::string all;
    for (const SizeExpression& operand : operands_) all += (all.empty() ? "" : between) + operand.text();
    return all;
  };
  switch (kind_) {
    case Kind::constant:
      return std::to_string(value_) + (below_ == 1 ? "" : "/" + std::to_string(below_));
    case Kind::symbol:
      return symbol_;
    case Kind::sum:
      return "(" + joined(" + ") + ")";
    case Kind::product:
      return joined("*");
    case Kind::power:
      return "(" + joined("**") + ")";
    case Kind::floor_divide:
      return "(" + joined("//") + ")";
    case Kind::modulo:
      return "(" + joined(" % ") + ")";
    case Kind::ceil_divide:
      return "ceil(" + joined("/") + ")";
    case Kind::maximum:
      return "max(" + joined(", ") + ")";
    case Kind::minimum:
      return "min(" + joined(", ") + ")";
    case Kind::real:
      return symbol_;
    case Kind::of_reals:
      return symbol_ + "(" + joined(", ") + ")";
  }
  return {};
}

}  // namespace tower::exported
