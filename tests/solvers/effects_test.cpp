// Functions that are given to solvers write to nothing but what they make: they are evaluated as often as the solver
// and its derivatives need, which must not be seen.
#include <torch/csrc/autograd/autograd.h>

#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using tower::MutationError;

enum class Place { argument, parameter, captured, view_of_captured };

// A function that gives `value`, and writes to `given` or to `captured`.
Tensor writing(Place place, const Tensor& given, const Tensor& captured, const Tensor& value) {
  switch (place) {
    case Place::argument:
    case Place::parameter:
      given.mul_(1);
      break;
    case Place::captured:
      captured.add_(1);
      break;
    case Place::view_of_captured:
      captured.select(0, 0).add_(1);
      break;
  }
  return value;
}

// One function of a solver that writes, and who it is in the message.
struct Case {
  const char* solver;
  const char* whose;
  std::vector<Place> places;
  std::function<Tensor(Place place, const Tensor& a, const Tensor& captured)> call;
};

const Tensor diagonal() { return vec({2, 3}); }

const std::vector<Case>& cases() {
  using Places = std::vector<Place>;
  const Places of_one{Place::argument, Place::captured, Place::view_of_captured};
  const Places of_two{Place::argument, Place::parameter, Place::captured, Place::view_of_captured};
  const auto root = [](const Tensor& a) { return a.sqrt(); };
  // Solves by `options` or by one of the iterative functions, with an operator that is `apply`.
  static const std::vector<Case> all{
      {"implicit_root", "the residual", of_two,
       [=](Place p, const Tensor& a, const Tensor& c) {
         return tower::implicit_root(
             [=](const Tensor& x, const Tensor& b) {
               return writing(p, p == Place::argument ? x : b, c, x.square() - b);
             },
             root)(a * 1);
       }},
      {"implicit_root", "the solver", of_one,
       [=](Place p, const Tensor& a, const Tensor& c) {
         return tower::implicit_root([](const Tensor& x, const Tensor& b) { return x.square() - b; },
                                     [=](const Tensor& b) { return writing(p, b, c, b.sqrt()); })(a * 1);
       }},
      {"fixed_point", "the map", of_two,
       [=](Place p, const Tensor& a, const Tensor& c) {
         return tower::fixed_point(
             [=](const Tensor& x, const Tensor& b) {
               return writing(p, p == Place::argument ? x : b, c, (x + b / x) / 2);
             },
             root)(a * 1);
       }},
      {"fixed_point", "the solver", of_one,
       [=](Place p, const Tensor& a, const Tensor& c) {
         return tower::fixed_point([](const Tensor& x, const Tensor& b) { return (x + b / x) / 2; },
                                   [=](const Tensor& b) { return writing(p, b, c, b.sqrt()); })(a * 1);
       }},
      {"linear_solve", "the function", of_one,
       [](Place p, const Tensor& a, const Tensor& c) {
         return tower::linear_solve([=](const Tensor& x) { return writing(p, x, c, diagonal() * x); }, a * 1);
       }},
      {"linear_solve", "the solver", of_one,
       [](Place p, const Tensor& a, const Tensor& c) {
         const auto solve = [=](const std::function<Tensor(const Tensor&)>&, const Tensor& b) {
           return writing(p, b, c, b / diagonal());
         };
         return tower::linear_solve([](const Tensor& x) { return diagonal() * x; }, a * 1,
                                    tower::LinearSolveOptions<>{.symmetric = true, .solve = solve});
       }},
      {"cg", "the function", of_one,
       [](Place p, const Tensor& a, const Tensor& c) {
         return tower::cg([=](const Tensor& x) { return writing(p, x, c, diagonal() * x); }, a * 1).x;
       }},
      {"cg", "the preconditioner", of_one,
       [](Place p, const Tensor& a, const Tensor& c) {
         return tower::cg([](const Tensor& x) { return diagonal() * x; }, a * 1,
                          {.preconditioner = [=](const Tensor& x) { return writing(p, x, c, x / diagonal()); }})
             .x;
       }},
      {"gmres", "the preconditioner", of_one,
       [](Place p, const Tensor& a, const Tensor& c) {
         return tower::gmres([](const Tensor& x) { return diagonal() * x; }, a * 1,
                             {.preconditioner = [=](const Tensor& x) { return writing(p, x, c, x / diagonal()); }})
             .x;
       }},
      {"bicgstab", "the function", of_one,
       [](Place p, const Tensor& a, const Tensor& c) {
         return tower::bicgstab([=](const Tensor& x) { return writing(p, x, c, diagonal() * x); }, a * 1).x;
       }},
  };
  return all;
}

// Every place where a tensor can come from, under every transform; captured from outside of them all, or from the
// mapped or differentiated function around the solver.
TEST(FunctionsOfSolvers, ThatWriteToWhatTheyDidNotMakeAreRefused) {
  for (const Case& one : cases())
    for (const Place place : one.places)
      for (const bool outside : {false, true}) {
        if (outside && place < Place::captured) continue;
        const Tensor from_outside = vec({1, 2});
        const auto f = [&](const Tensor& a) {
          return one.call(place, a, outside ? from_outside : at::ones({2}, at::kDouble) * 1).sum();
        };
        const Tensor a = vec({2, 5}), many = at::stack({a, 2 * a});
        const std::pair<const char*, std::function<void()>> runs[] = {
            {"vmap", [&] { tower::vmap(f)(many); }},
            {"grad", [&] { tower::grad(f)(a); }},
            {"jvp", [&] { tower::jvp(f, a, a); }},
            {"vmap(grad)", [&] { tower::vmap(tower::grad(f))(many); }},
            {"grad(vmap)", [&] { tower::grad([&](const Tensor& x) { return tower::vmap(f)(x).sum(); })(many); }},
            {"hessian", [&] { tower::hessian(f)(a); }},
            {"compile", [&] { tower::compile(f)(a); }},
            {"compile(grad)", [&] { tower::compile(tower::grad(f))(a); }}};
        for (const auto& [transform, run] : runs) {
          const bool plain = outside || place == Place::view_of_captured;
          if (plain && std::string_view(transform).find("vmap") == std::string_view::npos) continue;
          SCOPED_TRACE(std::string(one.solver) + ", " + one.whose + ", place " +
                       std::to_string(static_cast<int>(place)) + (outside ? " outside, " : ", ") + transform);
          EXPECT_TRUE(says(refusal<MutationError>(run), {(std::string(one.solver) + ": " + one.whose).c_str(), "writes",
                                                         "evaluated as often as", "Clone"}));
          EXPECT_TRUE(same(from_outside, vec({1, 2})));
        }
      }
}

TEST(FunctionsOfSolvers, MayWriteToWhatTheyMake) {
  const auto root = tower::implicit_root(
      [](const Tensor& x, const Tensor& a) {
        Tensor r = x.clone();
        r.mul_(x).sub_(a);
        return r;
      },
      [](const Tensor& a) {
        Tensor x = at::ones_like(a);
        for (int i = 0; i < 60; ++i) x.add_(a / x).div_(2);
        return x;
      });
  const Tensor a = vec({2, 5});
  EXPECT_TRUE(support::same(tower::vmap(tower::grad(root))(a), 0.5 / a.sqrt()));
  EXPECT_TRUE(
      support::same(tower::grad([&](const Tensor& b) { return tower::vmap(root)(b).sum(); })(a), 0.5 / a.sqrt()));
}

// Outside of all levels no write is seen before it is done; an argument that was written to is told by its count.
TEST(FunctionsOfSolvers, ThatWriteToTheirArgumentsAreRefusedOutsideOfTransforms) {
  for (const Case& one : cases())
    for (const Place place : one.places)
      if (place < Place::captured) {
        SCOPED_TRACE(std::string(one.solver) + ", " + one.whose);
        EXPECT_TRUE(says(refusal<MutationError>([&] {
                           one.call(place, vec({2, 5}), vec({1, 2}));
                         }),
                         {(std::string(one.solver) + ": " + one.whose).c_str(), "writes"}));
      }
}

}  // namespace
