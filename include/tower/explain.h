// Which operators ran inside transforms, at which level, by which rule, how often and how long.
//
//   auto grads = tower::explain(tower::vmap(tower::grad(loss)))(x, y);   // prints a table to standard output
#pragma once

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tower {

/// One line of an explanation.
struct ExplainedCall {
  std::string op;                    ///< "aten::mul.Tensor"
  std::string level;                 ///< "grad (level 2)", or "plain" for LibTorch itself
  std::string served;                ///< as in CoverageRow
  int64_t count = 0;                 ///< how many calls there were
  std::chrono::nanoseconds time{0};  ///< with everything that ran below it
};

/// Collects the calls that this thread makes while it is alive. Explainers nest; the innermost collects.
class Explainer {
 public:
  /// Begins.
  Explainer();
  ~Explainer();
  Explainer(const Explainer&) = delete;
  Explainer& operator=(const Explainer&) = delete;

  /// What ran so far: highest level first, then by time.
  std::vector<ExplainedCall> calls() const;
  /// The same as a table.
  std::string table() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `f`, printing to `out`, which must live as long, after each call a table of what it did.
template <class F>
auto explain(F f, std::ostream& out = std::cout) {
  return [f = std::move(f), &out](auto&&... args) {
    Explainer explainer;
    auto result = f(std::forward<decltype(args)>(args)...);
    out << explainer.table();
    return result;
  };
}

}  // namespace tower
