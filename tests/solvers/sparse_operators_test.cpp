// What operators' records say of elements (core/facts.h), held against what the operators do: the pattern of each
// operator in the database has all entries of its Jacobian, and where elements only move, no others. Oracle: finite
// differences of LibTorch's kernels.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>

#include "core/operator.h"
#include "op_db/op_db.h"
#include "tower/sparse.h"

namespace {

using at::Tensor;
using op_db::Entry;
using op_db::Sample;
using op_db::Tensors;

// A sample as a function of one vector, which has the elements of all arguments that are differentiated, to another.
struct Flat {
  std::function<Tensor(const Tensor&)> f;
  std::vector<Tensor> points;
};

bool is_real_variable(const op_db::Leaf& leaf, const Tensor& value) {
  return leaf.spec.differentiable() && value.scalar_type() == at::kDouble;
}

bool has_derivative(const Entry& entry, size_t out) {
  if (tower::Operator::of(*entry.op).nondifferentiable_outs >> out & 1) return false;
  const auto& outs = entry.differentiable_outputs;
  return outs.empty() || std::find(outs.begin(), outs.end(), static_cast<int64_t>(out)) != outs.end();
}

Flat flat(const Entry& entry, const Sample& sample) {
  const Tensors given = op_db::make_leaves(entry, sample, at::kDouble, 0);
  Flat result;
  for (const int example : {0, 1}) {
    std::vector<Tensor> parts;
    const Tensors leaves = op_db::make_leaves(entry, sample, at::kDouble, example);
    for (size_t i = 0; i < leaves.size(); ++i)
      if (is_real_variable(sample.leaves[i], leaves[i])) parts.push_back(leaves[i].reshape({-1}));
    if (!parts.empty()) result.points.push_back(at::cat(parts));
  }
  result.f = [entry, sample, given](const Tensor& x) {
    Tensors leaves = given;
    int64_t start = 0;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (is_real_variable(sample.leaves[i], given[i])) {
        leaves[i] = x.narrow(0, start, given[i].numel()).view(given[i].sizes());
        start += given[i].numel();
      }
      leaves[i] = op_db::projected(sample.leaves[i].spec, leaves[i]);
    }
    std::vector<Tensor> outs{at::zeros({0}, x.options())};
    const Tensors all = op_db::call(*entry.op, sample, leaves);
    for (size_t k = 0; k < all.size(); ++k)
      if (all[k].scalar_type() == at::kDouble && has_derivative(entry, k)) outs.push_back(all[k].reshape({-1}));
    return at::cat(outs);
  };
  return result;
}

// Where f changes when an element of x does; undefined where its size does, too.
Tensor changes(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  constexpr double kStep = 1e-4, kNoise = 1e-7;
  const Tensor here = f(x);
  std::vector<Tensor> columns;
  for (int64_t k = 0; k < x.numel(); ++k) {
    Tensor step = at::zeros_like(x);
    step[k] = kStep;
    const Tensor after = f(x + step), before = f(x - step);
    if (after.numel() != here.numel() || before.numel() != here.numel()) return {};
    columns.push_back((after - before).abs() > kNoise * (1 + here.abs()));
  }
  return at::stack(columns, 1);
}

// Each of a result's elements is one of an operand's, or a number.
bool moves_elements(const tower::Operator& op) {
  using tower::Depends;
  if (op.depends != Depends::unsaid)
    return op.depends == Depends::on_moved || op.depends == Depends::on_its_place || op.depends == Depends::on_second ||
           op.depends == Depends::on_shown;
  return op.moves != tower::Moves::no;
}

bool states_dependence(const tower::Operator& op) {
  return (op.depends != tower::Depends::unsaid && op.depends != tower::Depends::on_all) ||
         op.moves != tower::Moves::no || op.contraction;
}

struct Counts {
  int samples = 0, exact = 0;
};

// Whether the rule of `op` served this sample.
bool check_sample(const Entry& entry, const tower::Operator& op, const Sample& sample, Counts& counts) {
  const Flat one = flat(entry, sample);
  if (one.points.empty() || one.points[0].numel() == 0 || one.f(one.points[0]).numel() == 0) return false;
  const tower::Sparsity pattern = tower::jacobian_sparsity(one.f, one.points[0], {.values_decide = true});
  const Tensor mask = pattern.mask();
  for (const Tensor& x : one.points) {
    const Tensor changed = changes(one.f, x);
    if (!changed.defined() || !changed.sizes().equals(mask.sizes())) continue;
    ++counts.samples;
    EXPECT_FALSE((changed.cpu() & mask.logical_not()).any().item<bool>()) << entry.name << " | " << sample.text << "\n"
                                                                          << mask << "\n"
                                                                          << changed;
    if (!moves_elements(op) || op.decomposes()) continue;  // of its parts the pattern may have more
    ++counts.exact;
    EXPECT_TRUE(at::equal(changed.cpu(), mask)) << entry.name << " | " << sample.text << "\n"
                                                << mask << "\n"
                                                << changed;
  }
  return pattern.taken_for_dense().empty();
}

TEST(SparsityOfOperators, FollowsFromTheirRecordsAndHoldsForTheirKernels) {
  const char* folder = std::getenv("TOWER_OP_DB");
  std::set<std::string> stated, served;
  Counts counts;
  for (const Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    const tower::Operator& op = tower::Operator::of(*entry.op);
    if (!entry.real || entry.unspecified || op.random() || op.composite() || op.no_derivative()) continue;
    if (entry.has("no_fd") || entry.has("no_samples") || entry.refuses("jvp") || entry.refuses("vjp")) continue;
    for (const std::string& text : entry.sample_texts) {
      const Sample sample = op_db::parse_sample(entry, text, at::kDouble);
      if (sample.bad) continue;
      SCOPED_TRACE(entry.name + " | " + text);
      try {
        if (check_sample(entry, op, sample, counts)) served.insert(op.name());
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  for (const tower::Operator* op : tower::Operator::all())
    if (states_dependence(*op)) stated.insert(op->name());
  std::set<std::string> unchecked;
  for (const std::string& name : stated)
    if (!served.count(name)) unchecked.insert(name);
  // Of complex numbers; without a derivative; by points, or tolerances, that vary, too; of samples that do not vary;
  // and where a number is written, which the rule does not know of.
  const std::set<std::string> not_served{"aten::_conj",           "aten::detach",
                                         "aten::geqrf",           "aten::grid_sampler_2d",
                                         "aten::grid_sampler_3d", "aten::linalg_pinv.atol_rtol_tensor",
                                         "aten::scatter.reduce",  "aten::scatter.value_reduce",
                                         "aten::scatter.value"};
  EXPECT_EQ(unchecked, not_served);
  EXPECT_GT(counts.samples, 1000);
  EXPECT_GT(counts.exact, 200);
}

}  // namespace
