// Compiled second derivatives of the operator database's operators, by all pairs of modes and mapped, against the same
// uncompiled. Whole columns of them are computed at once: operators with outputs that were not asked for are met so.
// TOWER_SECOND=1 takes every operator, TOWER_SECOND=samples every sample of each; else it is every fiftieth.
#include <tower/compile.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "op_db/op_db.h"
#include "support/prelude.h"

namespace {

using op_db::Entry;
using op_db::Sample;

constexpr int64_t kMostElements = 16;  // of all differentiated tensors: a second derivative has its square

struct Differentiated {
  Function f;  // to one number
  Tensors x;
};

std::optional<Differentiated> problem(const Entry& entry, const Sample& sample) {
  const Tensors leaves = op_db::make_leaves(entry, sample, at::kDouble, 0);
  std::vector<size_t> which;
  int64_t count = 0;
  Tensors x;
  for (size_t k = 0; k < leaves.size(); ++k) {
    if (leaves[k].scalar_type() != at::kDouble) continue;
    which.push_back(k);
    x.push_back(leaves[k]);
    count += leaves[k].numel();
  }
  if (x.empty() || count > kMostElements) return std::nullopt;
  Function f = [&entry, sample, leaves, which](const Tensors& some) {
    Tensors all = leaves;
    for (size_t k = 0; k < which.size(); ++k) all[which[k]] = some[k];
    Tensor sum;
    const Tensors outs = op_db::call(*entry.op, sample, all);
    for (size_t k = 0; k < outs.size(); ++k) {
      const auto& of = entry.differentiable_outputs;
      const bool counts = of.empty() || std::find(of.begin(), of.end(), static_cast<int64_t>(k)) != of.end();
      if (!counts || !outs[k].defined() || !outs[k].is_floating_point() || outs[k].numel() == 0) continue;
      const Tensor part = (outs[k] * outs[k] * (outs[k] + 1)).sum();
      sum = sum.defined() ? sum + part : part;
    }
    return Tensors{sum.defined() ? sum : at::zeros({}, at::kDouble)};
  };
  return Differentiated{std::move(f), std::move(x)};
}

std::vector<std::pair<const char*, Function>> second_derivatives(const Function& f, size_t inputs) {
  std::vector<int64_t> argnums;
  for (size_t k = 0; k < inputs; ++k) argnums.push_back(static_cast<int64_t>(k));
  const Function rev = td::jacrev(f, argnums), rev_rev = td::jacrev(rev, argnums), fwd_rev = td::jacfwd(rev, argnums);
  const Function mapped = [=](const Tensors& x) {
    Tensors two;
    for (const Tensor& t : x) two.push_back(at::stack({t, t}));
    return td::vmap(fwd_rev, Dims(x.size(), 0), {0})(two);
  };
  return {{"jacfwd(jacrev)", fwd_rev}, {"jacrev(jacrev)", rev_rev}, {"vmap(jacfwd(jacrev))", mapped}};
}

TEST(CompileSecondDerivatives, AgreeWithTheUncompiledForEveryOperator) {
  const char* wanted = std::getenv("TOWER_SECOND");
  const bool all = wanted && std::string(wanted) == "samples";
  const char* folder = std::getenv("TOWER_OP_DB");
  size_t operators = 0, compared = 0, number = 0;
  for (const Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (!entry.op || !entry.real || entry.has("no_second") || entry.has("no_samples") || entry.unspecified) continue;
    if (++number % 50 != 0 && !wanted) continue;
    bool any = false;
    for (const std::string& text : entry.sample_texts) {
      if (any && !all) break;
      const Sample sample = op_db::parse_sample(entry, text, at::kDouble);
      if (sample.bad) continue;
      const auto p = problem(entry, sample);
      if (!p) continue;
      const auto ways = second_derivatives(p->f, p->x.size());
      for (const auto& [name, second] : ways) {
        Tensors expected;
        try {
          expected = second(p->x);
        } catch (const std::exception&) {
          continue;  // no second derivative, or a value that vmap may not read
        }
        SCOPED_TRACE(entry.name + " " + text + " under " + name);
        try {
          const Function compiled = td::compile(second);
          for (int call = 0; call < 2; ++call)
            EXPECT_EQ(support::difference(compiled(p->x), expected, {1e-8, 1e-8}), "") << entry.name << ' ' << name;
          ++compared;
          any = true;
        } catch (const tower::UnsupportedError& error) {
          const std::string why = error.what();
          EXPECT_TRUE(contains(why, "reads a value") || contains(why, "depends on values"))
              << entry.name << ": " << why;
        } catch (const std::exception& error) {
          ADD_FAILURE() << entry.name << ' ' << text << " under " << name << ": " << error.what();
        }
      }
    }
    operators += any;
  }
  EXPECT_GT(operators, wanted ? 100 : 3);
  std::cout << operators << " operators, " << compared << " second derivatives\n";
}

// Their backward pass has three results, of which those that nobody asks for are undefined.
TEST(CompileSecondDerivatives, OfConvolutionsAreThoseOfTheUncompiled) {
  const Tensor narrow = waves({1, 2, 4}), kernel = waves({2, 2, 2}, 0.4), image = waves({1, 1, 3, 3}),
               square = waves({2, 1, 2, 2}, 0.7);
  const auto cubed = [](const Tensor& y) { return Tensors{(y * y * y).sum()}; };
  const std::vector<std::pair<Function, Tensors>> all{
      {[&](const Tensors& x) { return cubed(at::conv1d(x[0], kernel)); }, {narrow}},
      {[&](const Tensors& x) { return cubed(at::conv1d(x[0], x[1])); }, {narrow, kernel}},
      {[&](const Tensors& x) { return cubed(at::conv2d(x[0], square)); }, {image}}};
  for (const auto& [f, x] : all)
    for (const auto& [name, second] : second_derivatives(f, x.size())) {
      const Function compiled = td::compile(second);
      const Tensors expected = second(x);
      for (int call = 0; call < 2; ++call)
        EXPECT_EQ(support::difference(compiled(x), expected, {1e-10, 1e-10}), "") << name << ", call " << call;
    }
}

}  // namespace
