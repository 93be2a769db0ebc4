#include "support/compositions.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <sstream>

#include "support/oracles.h"
#include "support/stacked.h"

namespace support {
namespace {

namespace td = tower::dynamic;
using at::Tensor;

Tensors cloned(const Tensors& tensors) {
  Tensors result;
  for (const Tensor& t : tensors) result.push_back(t.clone());
  return result;
}

Tensors example_of(const Tensors& batch, int64_t i) {
  Tensors result;
  for (const Tensor& t : batch) result.push_back(t[i].clone());
  return result;
}

// A difference quotient is right to about 1e-9 of what it is a difference of.
bool close(double actual, double expected, double scale) {
  return std::abs(actual - expected) <= 1e-6 * (1 + std::abs(expected)) + 1e-8 * scale;
}

class Checks {
 public:
  Checks(td::Function f, const Tensors& batch, Compositions which)
      : f_([f = std::move(f)](const Tensors& in) { return f(in); }),
        pure_([f = f_](const Tensors& in) { return f(cloned(in)); }),
        batch_(batch),
        which_(which) {}

  std::string run() {
    first_order(pure_, f_, "");
    if (which_.pairs && text_.empty()) pairs();
    return text_;
  }

 private:
  using Dims = td::Dims;

  void differs(const std::string& what, const std::string& how) {
    if (text_.empty() && !how.empty()) text_ = what + ": " + how;
  }
  template <class F>
  void step(const std::string& what, F&& body) {
    if (!text_.empty()) return;
    try {
      body();
    } catch (const std::exception& e) {
      std::string message = e.what();
      text_ = what + " throws: " + message.substr(0, message.find("\nException raised"));
    }
  }

  void expect_same(const std::string& what, const Tensors& actual, const Tensors& expected) {
    differs(what, difference(actual, expected, {1e-9, 1e-10}));
  }
  void expect_number(const std::string& what, double actual, double expected, double scale) {
    if (close(actual, expected, scale)) return;
    std::ostringstream text;
    text.precision(12);
    text << actual << ", expected " << expected;
    differs(what, text.str());
  }

  // f under vmap, vjp, jvp and linearize, against the loop and difference quotients of `pure`.
  void first_order(const td::Function& pure, const td::Function& f, const std::string& of) {
    const Tensors x = example_of(batch_, 0);
    const Dims dims(batch_.size(), 0);
    Tensors expected;
    step("f" + of, [&] { expected = pure(x); });
    step("vmap" + of + " against the loop",
         [&] { expect_same("vmap" + of + " against the loop", td::vmap(f, dims, {0})(cloned(batch_)), looped(pure)); });
    if (!text_.empty()) return;
    const Tensors direction = random_like(x, 1), weights = random_like(expected, 2);
    double quotient = 0;
    step("difference quotient" + of, [&] { quotient = inner(weights, directional_derivative(pure, x, direction)); });
    const double scale = magnitude(expected);
    step("vjp" + of, [&] {
      const auto [y, pullback] = td::vjp(f, cloned(x));
      expect_same("the value under vjp" + of, y, expected);
      const Tensors gradients = pullback(weights);
      expect_number("vjp" + of + " against the difference quotient", inner(gradients, direction), quotient, scale);
      if (which_.libtorch && of.empty())
        expect_same("vjp against LibTorch's autograd", gradients, autograd_vjp(pure, x, weights));
    });
    step("jvp" + of, [&] {
      const auto [y, tangents] = td::jvp(f, cloned(x), direction);
      expect_same("the value under jvp" + of, y, expected);
      expect_number("jvp" + of + " against the difference quotient", inner(weights, tangents), quotient, scale);
    });
    step("linearize" + of, [&] {
      const auto [y, pushforward] = td::linearize(f, cloned(x));
      expect_number("linearize" + of + " against the difference quotient", inner(weights, pushforward(direction)),
                    quotient, scale);
    });
  }

  void pairs() {
    const Tensors x = example_of(batch_, 0);
    const Tensors weights = random_like(pure_(x), 3), direction = random_like(x, 4);
    const td::Function vjp = [f = f_, weights](const Tensors& in) { return td::vjp(f, in).second(weights); };
    const td::Function jvp = [f = f_, direction](const Tensors& in) { return td::jvp(f, in, direction).second; };
    first_order([&](const Tensors& in) { return vjp(cloned(in)); }, vjp, "(vjp)");
    first_order([&](const Tensors& in) { return jvp(cloned(in)); }, jvp, "(jvp)");
    of_mapped();
    nested_maps();
  }

  // Derivatives of the mapped function are those of the loop.
  void of_mapped() {
    if (!text_.empty()) return;
    const Dims dims(batch_.size(), 0);
    const auto mapped = td::vmap(f_, dims, {0});
    const Tensors weights = random_like(looped(pure_), 5), direction = random_like(batch_, 6);
    const int64_t n = batch_[0].size(0);
    step("vjp(vmap)", [&] {
      std::vector<Tensors> rows;
      for (int64_t i = 0; i < n; ++i) rows.push_back(td::vjp(f_, example_of(batch_, i)).second(example_of(weights, i)));
      expect_same("vjp(vmap) against the loop of vjp", td::vjp(mapped, cloned(batch_)).second(weights), stacked(rows));
    });
    step("jvp(vmap)", [&] {
      std::vector<Tensors> rows;
      for (int64_t i = 0; i < n; ++i)
        rows.push_back(td::jvp(f_, example_of(batch_, i), example_of(direction, i)).second);
      expect_same("jvp(vmap) against the loop of jvp", td::jvp(mapped, cloned(batch_), direction).second,
                  stacked(rows));
    });
  }

  // The outer map over another dimension than the first, so that the batch lies in the middle.
  void nested_maps() {
    const Dims first(batch_.size(), 0), last(batch_.size(), -1);
    step("vmap(vmap)", [&] {
      Tensors twice, expected;
      for (const Tensor& t : batch_) twice.push_back(at::stack({t, t.flip(0) * 0.9 + 0.05}, -1));
      const auto inner_map = td::vmap(f_, first, {0});
      const Tensors actual = td::vmap(inner_map, last, {0})(cloned(twice));
      std::vector<Tensors> rows;
      for (int64_t i = 0; i < 2; ++i) {
        std::vector<Tensors> row;
        Tensors batch;
        for (const Tensor& t : twice) batch.push_back(t.select(-1, i));
        for (int64_t k = 0; k < batch[0].size(0); ++k) row.push_back(pure_(example_of(batch, k)));
        rows.push_back(stacked(row));
      }
      expect_same("vmap(vmap) against two loops", actual, stacked(rows));
    });
  }

  Tensors looped(const td::Function& pure) {
    std::vector<Tensors> rows;
    for (int64_t i = 0; i < batch_[0].size(0); ++i) rows.push_back(pure(example_of(batch_, i)));
    return stacked(rows);
  }

  td::Function f_, pure_;
  Tensors batch_;
  Compositions which_;
  std::string text_;
};

}  // namespace

std::string disagreement(const td::Function& f, const Tensors& examples, Compositions which) {
  return Checks(f, examples, which).run();
}

}  // namespace support
