// Compiled functions in files: what another process makes of them, and which files are refused. Oracle: the function.
#include <tower/compile.h>
#include <tower/cond.h>
#include <tower/transforms.h>
#include <tower/version.h>

#include <map>

#include "compile/files.h"
#include "compile/kernels.h"
#include "kernels/checked_file.h"
#include "kernels/cpu.h"
#include "support/prelude.h"

namespace {

using support::Folder;

Tensor residual(const Tensor& x, const Tensor& load) {
  const Tensor s = x * x + 0.5;
  return at::cat({s.slice(0, 0, 2) * x.select(0, 2) - load, (s.sum() - load.sum()).unsqueeze(0)});
}
Tensor newton(const Tensor& x, const Tensor& load) {
  return x - at::linalg_solve(tower::jacfwd(residual)(x, load), residual(x, load));
}
const auto step = tower::vmap(newton);
Tensor points(int64_t n) { return waves({n, 3}) + 2; }
Tensor loads(int64_t n) { return waves({n, 2}, 0.7); }

using Step = Tensor(Tensor, Tensor);

// Graphs for any number of points.
void save_step(const std::string& path) {
  const auto compiled = tower::compile(step);
  for (const int64_t n : {16, 24, 1000}) compiled(points(n), loads(n));
  compiled.save(path);
}

TEST(SavedFunctions, RunWithTheirMachineCodeWhereThereIsNoLlvm) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  save_step(folder / "step");
  EXPECT_EQ(support::run_in_new_process("SavedFunctions.InAProcessWithoutLlvm", folder / "step",
                                        {{"TOWER_LLVM", "/nowhere/libLLVM.so"}}),
            0);
}

TEST(SavedFunctions, InAProcessWithoutLlvm) {
  if (support::left_by_another_process().empty()) GTEST_SKIP() << "another test runs it";
  const auto loaded = tower::load<Step>(support::left_by_another_process());
  for (int run = 0; run < 3; ++run)
    for (const int64_t n : {16, 17, 100, 1, 0}) {
      const Tensor x = points(n) + run;
      EXPECT_TRUE(same(loaded(x, loads(n)), step(x, loads(n)))) << n;
    }
  EXPECT_TRUE(contains(loaded.report(), "kernel 0") && contains(loaded.report(), "from a file")) << loaded.report();
  EXPECT_FALSE(tower::compiler::Llvm::get().works());
}

TEST(SavedFunctions, RunUnderTransforms) {
  const Folder folder;
  const auto f = [](const Tensor& x) { return ((x * x + 0.3).log().sin() * x + x.exp()).square(); };
  const auto compiled = tower::compile(f);
  compiled(waves({5}));
  compiled.save(folder / "f");
  const auto loaded = tower::load<Tensor(Tensor)>(folder / "f");
  const auto sum = [](const auto& of) { return [of](const Tensor& x) { return of(x).sum(); }; };
  const Tensor x = waves({5}), many = waves({7, 5});
  for (int run = 0; run < 2; ++run) {
    EXPECT_TRUE(same(tower::grad(sum(loaded))(x), tower::grad(sum(f))(x)));
    EXPECT_TRUE(same(tower::vmap(loaded)(many), tower::vmap(f)(many)));
    EXPECT_TRUE(same(tower::hessian(sum(loaded))(x), tower::hessian(sum(f))(x)));
    EXPECT_TRUE(same(tower::vmap(tower::grad(sum(loaded)))(many), tower::vmap(tower::grad(sum(f)))(many)));
  }
}

TEST(SavedFunctions, HaveTheImagesAxesOfTheirOwn) {
  // Axes of the file's vmaps are not those of this process, whose numbers may be the same.
  const Folder folder;
  const auto f = tower::vmap(tower::vmap([](const Tensor& x, const Tensor& y) { return (x * y).sin().sum(); }));
  const auto compiled = tower::compile(f);
  compiled(waves({3, 3, 3}), waves({3, 3, 3}, 0.4));
  compiled.save(folder / "f");
  const auto loaded = tower::load<Tensor(Tensor, Tensor)>(folder / "f");
  const auto inside = tower::compile(tower::vmap(tower::vmap([&](const Tensor& x, const Tensor& y) {
    const Tensor wide = x.expand({3, 3, 3}) * 1.5, other = y.expand({3, 3, 3}).transpose(0, 2).contiguous();
    return loaded(wide, other).sum() + x.sum();
  })));
  const auto expected = tower::vmap(tower::vmap([&](const Tensor& x, const Tensor& y) {
    const Tensor wide = x.expand({3, 3, 3}) * 1.5, other = y.expand({3, 3, 3}).transpose(0, 2).contiguous();
    return f(wide, other).sum() + x.sum();
  }));
  const Tensor x = waves({3, 3, 3}), y = waves({3, 3, 3}, 0.4);
  for (int run = 0; run < 2; ++run) EXPECT_TRUE(same(inside(x, y), expected(x, y)));
}

struct State {
  Tensor position, velocity;
  int steps;
  bool operator==(const State&) const = default;
};
constexpr auto tower_fields(const State&) { return std::tuple(&State::position, &State::velocity, &State::steps); }

using Named = std::map<std::string, Tensor>;
std::pair<State, Named> advance(const State& s, double dt, const std::string& how, const std::vector<Tensor>& forces) {
  const Tensor v = s.velocity + dt * forces.at(0) * (how == "half" ? 0.5 : 1.0);
  return {State{s.position + dt * v, v, s.steps + 1}, Named{{how, v.sum()}, {"count", forces.back().sum()}}};
}

TEST(SavedFunctions, KeepStaticPartsOfArgumentsAndResults) {
  const Folder folder;
  const auto compiled = tower::compile(advance);
  const State s{waves({4}), waves({4}, 0.9), 7};
  const std::vector<Tensor> one{waves({4}, 0.1)}, two{waves({4}, 0.1), waves({2}, 0.1)};
  compiled(s, 0.5, std::string("half"), one);
  compiled(s, 0.5, std::string("whole"), one);
  compiled(s, 0.25, std::string("half"), two);
  compiled.save(folder / "f");
  const auto loaded =
      tower::load<std::pair<State, Named>(State, double, std::string, std::vector<Tensor>)>(folder / "f");
  EXPECT_EQ(loaded.graphs(), 3u);
  const auto check = [&](double dt, const std::string& how, const std::vector<Tensor>& forces) {
    const auto [found, names] = loaded(s, dt, how, forces);
    const auto [expected, expected_names] = advance(s, dt, how, forces);
    EXPECT_TRUE(same(found.position, expected.position));
    EXPECT_TRUE(same(found.velocity, expected.velocity));
    EXPECT_EQ(found.steps, 8);
    ASSERT_EQ(names.size(), expected_names.size());
    for (const auto& [name, t] : expected_names) EXPECT_TRUE(same(names.at(name), t));
  };
  check(0.5, "half", one);
  check(0.5, "whole", one);
  check(0.25, "half", two);
  // What was not traced cannot be.
  const auto refused = [&](double dt, const std::string& how, const std::vector<Tensor>& forces) {
    return message_of<tower::UnsupportedError>([&] { loaded(s, dt, how, forces); });
  };
  for (const std::string& text : {refused(0.75, "half", one), refused(0.5, "none", one), refused(0.5, "whole", two)}) {
    EXPECT_TRUE(contains(text, "no graph for arguments")) << text;
    EXPECT_TRUE(contains(text, "Double [4] Double [4] Double [4]")) << text;
  }
}

TEST(SavedFunctions, ArgumentsThatCannotBeWrittenAreRefusedByType) {
  const Folder folder;
  const auto f = tower::compile([](const Tensor& x, const char*) { return x + 1; });
  f(waves({2}), "text");
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] { f.save(folder / "f"); }), "char const*"));
  EXPECT_TRUE(folder.files("").empty());
}

TEST(SavedFunctions, HoldTheValuesOfWhatWasCaptured) {
  const Folder folder;
  Tensor weight = waves({4}).requires_grad_(), count = at::zeros({2}, at::kDouble), part = count.select(0, 1);
  const auto f = [=](const Tensor& x) {
    count.add_(1);
    return (x * weight).sum() + part;
  };
  const auto compiled = tower::compile(f);
  {
    const at::NoGradGuard none;
    compiled(waves({4}));
    compiled(waves({4}));
  }
  compiled.save(folder / "f");
  const auto loaded = tower::load<Tensor(Tensor)>(folder / "f");
  const Tensor before = weight.detach().clone();
  {
    const at::NoGradGuard none;
    weight.add_(1);              // not seen by what was saved
    for (int i = 3; i < 6; ++i)  // writes are, through views, too
      EXPECT_TRUE(same(loaded(waves({4})), (waves({4}) * before).sum() + i));
  }
  EXPECT_TRUE(same(count, vec({2, 2})));
}

TEST(SavedFunctions, MayCaptureWhatTheyDoNotNeed) {
  const Folder folder;
  const auto compiled = tower::compile([w = waves({3})](const Tensor& x) {
    const Tensor unread = w * 2 + at::ones({3}, at::kDouble);
    return x.sin();
  });
  compiled(waves({3}, 0.4));
  compiled.save(folder / "f");
  EXPECT_TRUE(same(tower::load<Tensor(Tensor)>(folder / "f")(waves({3}, 0.4)), waves({3}, 0.4).sin()));
}

TEST(SavedFunctions, WhatWasTracedInGradModeServesWithoutIt) {
  const Folder folder;
  const auto f = [](const Tensor& x) { return x.exp().sin() + 1; };
  const auto compiled = tower::compile(f);
  compiled(waves({4}));
  compiled.save(folder / "f");
  const auto loaded = tower::load<Tensor(Tensor)>(folder / "f");
  const at::NoGradGuard none;
  EXPECT_TRUE(same(loaded(waves({4})), f(waves({4}))));
  const c10::InferenceMode inference;
  EXPECT_TRUE(same(loaded(waves({4})), f(waves({4}))));
  // Not where somebody would look for the derivative that there is none of here.
  const auto sum = [&](const Tensor& x) { return loaded(x).sum(); };
  EXPECT_THROW(tower::grad(sum)(waves({4})), tower::UnsupportedError);
}

TEST(SavedFunctions, AnswerForRandomNumbersAttributesAndListsOfAllKinds) {
  const Folder folder;
  const auto f = [](const Tensor& x, const Tensor& index) {
    const Tensor drawn = tower::vmap([](const Tensor& row) { return row + at::rand_like(row); },
                                     {.randomness = tower::Randomness::different})(x);
    const Tensor parts = at::cat({x.unflatten(1, {2, 3}).transpose(1, 2).flatten(1), x.roll({1}, {0})}, 1);
    return std::tuple(drawn, at::index(parts, {index, std::nullopt}), x.to(at::kFloat).clamp(-0.5, std::nullopt),
                      at::full_like(x, 3.5).sum(at::IntArrayRef({1}), true),
                      x.to(at::kComplexDouble) * c10::complex<double>(0, 1));
  };
  const auto compiled = tower::compile(f);
  const Tensor x = waves({4, 6}), index = at::tensor({2, 0});
  compiled(x, index);
  compiled.save(folder / "f");
  const auto loaded = tower::load<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(Tensor, Tensor)>(folder / "f");
  for (int run = 0; run < 2; ++run) {
    at::manual_seed(5 + run);
    const auto found = loaded(x, index);
    at::manual_seed(5 + run);
    const auto expected = f(x, index);
    EXPECT_TRUE(same(std::get<0>(found), std::get<0>(expected)));
    EXPECT_TRUE(same(std::get<1>(found), std::get<1>(expected)));
    EXPECT_TRUE(same(std::get<2>(found), std::get<2>(expected)));
    EXPECT_TRUE(same(std::get<3>(found), std::get<3>(expected)));
    EXPECT_TRUE(same(at::view_as_real(std::get<4>(found)), at::view_as_real(std::get<4>(expected))));
  }
}

TEST(SavedFunctions, MayLeaveOutOptionalTensorsByUndefinedOnes) {
  const Folder folder;
  const auto f = [](const Tensor& x, const Tensor& weight) {
    return at::batch_norm(at::conv1d(x, weight, Tensor()), Tensor(), Tensor(), Tensor(), Tensor(), true, 0.1, 1e-5,
                          false);
  };
  const auto compiled = tower::compile(f);
  const Tensor x = waves({3, 2, 5}), weight = waves({4, 2, 3}, 0.7);
  compiled(x, weight);
  compiled.save(folder / "f");
  EXPECT_TRUE(same(tower::load<Tensor(Tensor, Tensor)>(folder / "f")(x, weight), f(x, weight)));
}

TEST(SavedFunctions, CodeOfTheUsersIsRefusedByName) {
  const Folder folder;
  // A branch that writes is run as it is.
  const auto f = tower::compile([count = at::zeros({3}, at::kDouble)](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, [count](const Tensor& y) { return count.add_(1) * y; }, [](const Tensor& y) { return y.cos(); },
        x);
  });
  f(waves({3}));
  const std::string text = message_of<tower::UnsupportedError>([&] { f.save(folder / "f"); });
  EXPECT_TRUE(contains(text, "cond")) << text;
  EXPECT_TRUE(folder.files("").empty());
  const auto never = tower::compile([](const Tensor& x) { return x; });
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] { never.save(folder / "f"); }), "no graph yet"));
  EXPECT_TRUE(
      contains(message_of<tower::ArgumentError>([&] { f(waves({3})), tower::compile(step).save("/nowhere/f"); }),
               "no graph yet"));
}

TEST(SavedFunctions, OfListsAreSavedAndLoadedAsSuch) {
  const Folder folder;
  const Function f = [](const Tensors& x) { return Tensors{x.at(0).sin() * x.back(), x.at(0)}; };
  const Function compiled = td::compile(f);
  compiled({waves({3}), waves({3}, 0.4)});
  td::save(compiled, folder / "f");
  const Function loaded = td::load(folder / "f");
  const Tensor x = waves({3}), y = waves({3}, 0.8);
  const Tensors found = loaded({x, y});
  EXPECT_TRUE(same(found.at(0), x.sin() * y));
  EXPECT_TRUE(found.at(1).is_same(x));
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] { loaded({waves({2})}); }), "Double [3] Double [3]"));
  td::save(loaded, folder / "again");
  EXPECT_TRUE(same(td::load(folder / "again")({x, y}).at(0), x.sin() * y));
  EXPECT_THROW(td::save(f, folder / "g"), tower::ArgumentError);
}

// ---- files that do not fit -----------------------------------------------------------------------------------------

std::string refusal_of(const std::string& path) {
  return message_of<tower::ArgumentError>([&] { tower::load<Step>(path); });
}

TEST(SavedFunctions, FilesThatAreCutOffOrAlteredAreRefused) {
  const Folder folder;
  save_step(folder / "step");
  const std::string whole = *tower::compiler::read_file(folder / "step");
  const auto refused = [&](const std::string& bytes) {
    tower::compiler::write_file(folder / "other", bytes);
    return contains(refusal_of(folder / "other"), "cannot be loaded");
  };
  const size_t stride = whole.size() / 150 + 1;
  for (size_t length = 0; length < whole.size(); length += length < 100 ? 1 : stride)
    EXPECT_TRUE(refused(whole.substr(0, length))) << length;
  EXPECT_TRUE(refused(whole + '\0'));
  for (size_t i = 0; i < whole.size(); i += i < 100 ? 1 : stride) {
    std::string altered = whole;
    altered[i] = static_cast<char>(altered[i] ^ (1 << i % 8));
    EXPECT_TRUE(refused(altered)) << i;
  }
  EXPECT_FALSE(refused(whole));
}

TEST(SavedFunctions, FilesForOthersAreRefusedByWhatDiffers) {
  const Folder folder;
  save_step(folder / "step");
  const std::string whole(tower::compiler::unsealed(*tower::compiler::read_file(folder / "step")));
  // The same with a digest that is right.
  const auto with = [&](const std::string& text, const std::string& other) {
    std::string bytes = whole;
    bytes.replace(bytes.find(text), text.size(), other);
    tower::compiler::write_file(folder / "other", tower::compiler::sealed(bytes));
    return refusal_of(folder / "other");
  };
  const std::string version = tower::version();
  const std::string later = "9" + version.substr(1);
  EXPECT_TRUE(contains(with(version, later), "saved by Tower " + later)) << with(version, later);
  const std::string& feature = tower::compiler::Cpu::get().features().back();
  const std::string unknown = "q" + feature.substr(1);
  EXPECT_TRUE(contains(with(feature, unknown), "a CPU with " + unknown + ", which this one lacks"));
  tower::compiler::write_file(folder / "text", "something else");
  EXPECT_TRUE(contains(refusal_of(folder / "text"), "not a compiled function"));
  EXPECT_TRUE(contains(refusal_of(folder / "nothing"), "cannot be read"));
  const std::string types = message_of<tower::ArgumentError>([&] { tower::load<Tensor(Tensor)>(folder / "step"); });
  EXPECT_TRUE(contains(types, "no function of the type at::Tensor (at::Tensor), but of at::Tensor (at::Tensor, "))
      << types;
}

}  // namespace
