// A parser by descent: or, and, not, comparisons, sums, products, signs, and what is in brackets; then the same tree is
// evaluated. Truth is the numbers 0 and 1, as in Python.
#include "exported/guards.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

#include "exported/archive.h"
#include "exported/wide.h"

namespace tower::exported {

struct Guard::Term {
  enum class Kind : uint8_t {
    constant,
    source,
    both,
    either,
    negation,
    equal,
    unequal,
    less,
    no_more,
    more,
    no_less,
    sum,
    difference,
    product,
    quotient,
    remainder,
    largest,
    smallest,
    magnitude,
  };
  Kind kind = Kind::constant;
  int64_t value = 0;           // of a constant
  size_t leaf = 0;             // of a source
  std::optional<int64_t> dim;  // the same
  std::vector<Term> operands;
};

namespace {

using Term = Guard::Term;
using TermKind = Term::Kind;

constexpr int kDeepestBrackets = 64, kMostOperations = 1000;

class GuardParser {
 public:
  GuardParser(std::string_view text, const std::vector<std::string>& leaves) : text_(text), leaves_(leaves) {}

  Term all() {
    Term term = either();
    skip_blanks();
    if (at_ != text_.size()) fail();
    shown_ += text_.substr(shown_to_);
    return term;
  }
  /// The text, with the arguments' names.
  std::string shown() { return std::move(shown_); }
  bool of_strides() const { return of_strides_; }

 private:
  [[noreturn]] void fail() const {
    throw NotSupported("the guard \"" + std::string(text_) + "\", which is no arithmetic of integers that is known");
  }

  Term of(TermKind kind, std::vector<Term> operands) {
    if (++count_ > kMostOperations) fail();
    return {kind, 0, 0, std::nullopt, std::move(operands)};
  }
  Term of_two(TermKind kind, Term a, Term b) {
    std::vector<Term> operands;
    operands.push_back(std::move(a));
    operands.push_back(std::move(b));
    return of(kind, std::move(operands));
  }

  Term either() {
    Term term = both();
    while (next_word_is("or")) term = of_two(TermKind::either, std::move(term), both());
    return term;
  }
  Term both() {
    Term term = negation();
    while (next_word_is("and")) term = of_two(TermKind::both, std::move(term), negation());
    return term;
  }
  Term negation() {
    const Deeper deeper(*this);
    if (next_word_is("not")) return of(TermKind::negation, {negation()});
    return comparison();
  }
  Term comparison() {
    Term term = sum();
    if (next_is("==")) return of_two(TermKind::equal, std::move(term), sum());
    if (next_is("!=")) return of_two(TermKind::unequal, std::move(term), sum());
    if (next_is("<=")) return of_two(TermKind::no_more, std::move(term), sum());
    if (next_is(">=")) return of_two(TermKind::no_less, std::move(term), sum());
    if (next_is("<")) return of_two(TermKind::less, std::move(term), sum());
    if (next_is(">")) return of_two(TermKind::more, std::move(term), sum());
    return term;
  }
  Term sum() {
    Term term = product();
    while (true) {
      if (next_is("+")) term = of_two(TermKind::sum, std::move(term), product());
      else if (next_is("-")) term = of_two(TermKind::difference, std::move(term), product());
      else return term;
    }
  }
  Term product() {
    Term term = factor();
    while (true) {
      if (peek("**")) fail();
      if (next_is("//")) term = of_two(TermKind::quotient, std::move(term), factor());
      else if (next_is("*")) term = of_two(TermKind::product, std::move(term), factor());
      else if (next_is("%")) term = of_two(TermKind::remainder, std::move(term), factor());
      else return term;
    }
  }
  Term factor() {
    const Deeper deeper(*this);
    if (next_is("-")) return of_two(TermKind::difference, Term(), factor());
    if (next_is("(")) {
      Term term = either();
      expect(")");
      return term;
    }
    skip_blanks();
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      Term term;
      term.value = number();
      return term;
    }
    if (peek("L[")) return source();
    for (const auto& [name, kind] : {std::pair("max", TermKind::largest), std::pair("min", TermKind::smallest),
                                     std::pair("abs", TermKind::magnitude)}) {
      if (!next_word_is(name)) continue;
      expect("(");
      std::vector<Term> operands;
      do operands.push_back(either());
      while (next_is(","));
      expect(")");
      if (kind == TermKind::magnitude && operands.size() != 1) fail();
      return of(kind, std::move(operands));
    }
    fail();
  }

  // L['x'].size()[0], L['pair'][0].size()[1], L['n']
  Term source() {
    const size_t begin = at_;
    ++at_;
    std::string name;
    while (next_is("[")) {
      if (next_is("'")) {
        const size_t end = text_.find('\'', at_);
        if (end == text_.npos) fail();
        name += (name.empty() ? "" : ".") + std::string(text_.substr(at_, end - at_));
        at_ = end + 1;
      } else {
        name += "[" + std::to_string(number()) + "]";
      }
      expect("]");
    }
    Term term;
    term.kind = TermKind::source;
    shown_ += std::string(text_.substr(shown_to_, begin - shown_to_)) + name;
    shown_to_ = at_;
    if (next_is(".size()")) {
      expect("[");
      term.dim = number();
      expect("]");
    } else if (next_is(".stride()")) {
      expect("[");
      number();
      expect("]");
      of_strides_ = true;
    } else if (next_is(".storage_offset()")) {
      of_strides_ = true;
    }
    term.leaf = leaf(name);
    return term;
  }
  size_t leaf(std::string name) const {
    auto found = std::find(leaves_.begin(), leaves_.end(), name);
    if (const size_t bracket = name.rfind('['); found == leaves_.end() && bracket != name.npos) {
      // An argument of "*args" has a name of its own: args_0.
      name = name.substr(0, bracket) + "_" + name.substr(bracket + 1, name.size() - bracket - 2);
      found = std::find(leaves_.begin(), leaves_.end(), name);
    }
    if (found == leaves_.end())
      throw FileError("the guard \"" + std::string(text_) + "\" reads an argument that is not there");
    return static_cast<size_t>(found - leaves_.begin());
  }

  int64_t number() {
    skip_blanks();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail();
    at_ = static_cast<size_t>(end - text_.data());
    if (at_ < text_.size() && text_[at_] == '.') fail();
    return value;
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool peek(std::string_view what) {
    skip_blanks();
    return text_.substr(at_, what.size()) == what;
  }
  bool next_is(std::string_view what) {
    if (!peek(what)) return false;
    at_ += what.size();
    return true;
  }
  bool next_word_is(std::string_view what) {
    if (!peek(what)) return false;
    const size_t end = at_ + what.size();
    if (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '_')) return false;
    at_ = end;
    return true;
  }
  void expect(std::string_view what) {
    if (!next_is(what)) fail();
  }

  /// Brackets, signs and negations are as deep as the calls that read them.
  struct Deeper {
    explicit Deeper(GuardParser& parser) : parser(parser) {
      if (++parser.depth_ > kDeepestBrackets) parser.fail();
    }
    ~Deeper() { --parser.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    GuardParser& parser;
  };

  std::string_view text_;
  const std::vector<std::string>& leaves_;
  std::string shown_;
  size_t at_ = 0, shown_to_ = 0;
  int depth_ = 0, count_ = 0;
  bool of_strides_ = false;
};

/// Python's division rounds down.
Wide divided(Wide a, Wide b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

std::optional<int64_t> value_of(const Term& term, const Guard::Find& find) {
  if (term.kind == TermKind::constant) return term.value;
  if (term.kind == TermKind::source) return find(term.leaf, term.dim);
  std::vector<Wide> of;
  for (const Term& operand : term.operands) {
    const auto value = value_of(operand, find);
    if (!value) return std::nullopt;
    // Python goes no further: what comes then may divide by zero.
    if (term.kind == TermKind::both && *value == 0) return 0;
    if (term.kind == TermKind::either && *value != 0) return 1;
    of.push_back(*value);
  }
  switch (term.kind) {
    case TermKind::both:
    case TermKind::either:
      return of.back() != 0;
    case TermKind::negation:
      return of[0] == 0;
    case TermKind::equal:
      return of[0] == of[1];
    case TermKind::unequal:
      return of[0] != of[1];
    case TermKind::less:
      return of[0] < of[1];
    case TermKind::no_more:
      return of[0] <= of[1];
    case TermKind::more:
      return of[0] > of[1];
    case TermKind::no_less:
      return of[0] >= of[1];
    case TermKind::sum:
      return narrow(of[0] + of[1]);
    case TermKind::difference:
      return narrow(of[0] - of[1]);
    case TermKind::product:
      return narrow(of[0] * of[1]);
    case TermKind::quotient:
      return of[1] == 0 ? std::nullopt : narrow(divided(of[0], of[1]));
    case TermKind::remainder:
      return of[1] == 0 ? std::nullopt : narrow(of[0] - of[1] * divided(of[0], of[1]));
    case TermKind::largest:
      return narrow(*std::max_element(of.begin(), of.end()));
    case TermKind::smallest:
      return narrow(*std::min_element(of.begin(), of.end()));
    default:
      return narrow(of[0] < 0 ? -of[0] : of[0]);
  }
}

}  // namespace

Guard::Guard(const std::string& text, const std::vector<std::string>& leaves) {
  GuardParser parser(text, leaves);
  Term term = parser.all();
  text_ = parser.shown();
  if (!parser.of_strides()) term_ = std::make_shared<const Term>(std::move(term));
}

std::optional<bool> Guard::holds(const Find& find) const {
  if (!term_) return true;
  const auto value = value_of(*term_, find);
  return value ? std::optional(*value != 0) : std::nullopt;
}

}  // namespace tower::exported
