// A census of memory: every operator of the database is mapped over one operand that differs between examples while the
// others are the same for all, and over all but one. What is the same must not be copied for the examples: at its peak
// a call holds no more than 1.3 times the bytes of the operands and results that the examples have, and of what is held
// meanwhile where nothing is shared: by LibTorch's kernel for each example on its own, or by the call of all of them.
// The same is asked of the gradient with respect to what is shared.
//
// The database's samples are so small that a shared operand weighs no more than a mapped one. So each is tried as it
// is, and stretched: for every size that occurs in it, with eight times that size, if the operator takes it. Where
// rows come to be longer than columns, or matrices than vectors, one of the operands outweighs the others. Not so where
// kernels trust their callers that sizes fit each other: those with indices, and those of ways back.
//
// Where there is TOWER_CENSUS, all samples are tried, in all stretched forms, and the exceptions that nothing needs are
// failures; else each operator's first one.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/errors.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../bench/support/peak_memory.h"
#include "op_db/op_db.h"
#include "op_db/tensor_spec.h"
#include "support/allocated.h"
#include "support/compare.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using op_db::Entry;
using op_db::Sample;
using td::Tensors;

constexpr int64_t kExamples = 24;
constexpr int64_t kStretch = 8;
constexpr double kBudget = 1.3;
// What a rule makes for itself, such as positions.
constexpr int64_t kBytesPerExample = 64;

// Operators that hold more, how many times what they may, and why.
struct Exception {
  const char* why;
  double at_most;
  std::vector<const char*> of;
};

// An example's result lies as it would on its own: of a product of all, where it does not, it is copied.
const char* const kCopied = "the result of all examples is copied, to lie as results lie";
const char* const kOwnRows =
    "the kernel takes sequences, bins and random places with the values of each row of its own";
const char* const kEveryOperandBatched =
    "an operator of backward passes, most of whose operands are an example's own: all get the batch";
const char* const kSteps = "the operators that its derivative is made of hold values between them, or before a sum";

const std::vector<Exception> kHoldMore = {
    {kCopied,
     2,
     {"bmm", "matmul", "einsum", "inner", "baddbmm", "_cdist_forward", "cdist", "linalg_solve", "linalg_lstsq",
      "linalg_solve_triangular", "ormqr", "grid_sampler_3d", "convolution"}},
    {kOwnRows, 2, {"searchsorted.Tensor", "bucketize.Tensor"}},
    {kOwnRows, 3000, {"fractional_max_pool2d", "fractional_max_pool3d"}},
    {kEveryOperandBatched,
     2.1,
     {"_ctc_loss_backward", "_ctc_loss_backward.Tensor", "_scaled_dot_product_flash_attention_for_cpu_backward",
      "nll_loss2d_backward", "reflection_pad2d_backward", "replication_pad2d_backward", "reflection_pad3d_backward",
      "replication_pad3d_backward", "grid_sampler_2d_backward"}},
};
const std::vector<Exception> kGradientsHoldMore = {
    {kSteps,
     2.1,
     {"scaled_dot_product_attention", "lstm.input", "addmm", "baddbmm", "convolution", "mse_loss", "dist", "layer_norm",
      "gather"}},
    {kSteps, 5.5, {"ormqr"}},
    {kOwnRows, 5.5, {"histogram.bins_tensor", "_histogramdd_from_bin_tensors"}},
    {kOwnRows, 3000, {"fractional_max_pool2d", "fractional_max_pool3d"}},
    {kEveryOperandBatched, 2.1, {"reflection_pad3d_backward", "replication_pad3d_backward"}},
};

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors)
    if (t.defined()) bytes += t.numel() * static_cast<int64_t>(t.element_size());
  return bytes;
}

// The most that a call holds, and its results.
struct Held {
  int64_t most, results;
};
Held held_by(const std::function<Tensors()>& call) {
  Tensors results;
  const int64_t most = peak_memory([&] { results = call(); });
  return {most, bytes_of(results)};
}

// A sample with every size `from` as `to`.
Sample stretched(Sample sample, int64_t from, int64_t to) {
  for (op_db::Leaf& leaf : sample.leaves)
    for (int64_t& size : leaf.spec.sizes)
      if (size == from) size = to;
  sample.text += " with " + std::to_string(to) + " for " + std::to_string(from);
  return sample;
}

bool trusts_sizes(const Entry& entry, const Sample& sample) {
  return entry.name.find("backward") != std::string::npos ||
         std::any_of(sample.leaves.begin(), sample.leaves.end(),
                     [](const auto& leaf) { return leaf.spec.kind == 'I'; });
}

class Census {
 public:
  Census(const Entry& entry, bool gradients) : entry_(entry), gradients_(gradients) {}

  // The largest factor over what is held at best, over all samples and choices, and where.
  double worst = 0;
  std::string where;
  int calls = 0;

  void take(const Sample& sample) {
    const auto op = *entry_.op;
    const auto shared_sample = std::make_shared<const Sample>(sample);
    const td::Function f = [op, shared_sample](const Tensors& leaves) {
      Tensors projected;
      for (size_t i = 0; i < leaves.size(); ++i)
        projected.push_back(op_db::projected(shared_sample->leaves[i].spec, leaves[i]));
      return op_db::call(op, *shared_sample, projected);
    };
    const Tensors one = op_db::make_leaves(entry_, sample, at::kDouble, 0);
    std::set<std::vector<bool>> choices;
    for (size_t i = 0; i < one.size(); ++i) {
      std::vector<bool> alone(one.size()), others(one.size(), true);
      alone[i] = true;
      others[i] = false;
      choices.insert({alone, others});
    }
    for (const auto& mapped : choices) {
      const auto mapped_number = std::count(mapped.begin(), mapped.end(), true);
      if (mapped_number == 0 || mapped_number == static_cast<int64_t>(one.size())) continue;
      try {
        if (gradients_) gradients(sample, f, one, mapped);
        else values(sample, f, one, mapped);
      } catch (const std::exception&) {
        // What is refused, or has no derivative, is other tests' matter.
      }
    }
  }

 private:
  struct Arguments {
    Tensors all, of_examples;
    td::Dims dims;
  };
  Arguments arguments(const Tensors& one, const std::vector<bool>& mapped) {
    Arguments result;
    for (size_t i = 0; i < one.size(); ++i) {
      const bool here = mapped[i];
      result.all.push_back(here ? op_db::batch_of(Tensors(kExamples, one[i]), 0) : one[i]);
      result.dims.push_back(here ? std::optional<int64_t>(0) : std::nullopt);
      if (here) result.of_examples.push_back(result.all.back());
    }
    return result;
  }

  void values(const Sample& sample, const td::Function& f, const Tensors& one, const std::vector<bool>& mapped) {
    const Held plain = held_by([&] { return f(one); });
    const Arguments in = arguments(one, mapped);
    const td::Function all = td::vmap(f, in.dims, {0});
    all(in.all);  // what a first call makes for all others
    const Held held = held_by([&] { return all(in.all); });
    const auto of_call = [&] {
      const Arguments every = arguments(one, std::vector<bool>(one.size(), true));
      const Held nothing_shared = held_by([&] { return td::vmap(f, every.dims, {0})(every.all); });
      return nothing_shared.most - nothing_shared.results;
    };
    note(sample, mapped, held.most, bytes_of(in.of_examples) + held.results, kExamples * (plain.most - plain.results),
         of_call);
  }

  // The gradient of all results with respect to what is shared.
  void gradients(const Sample& sample, const td::Function& f, const Tensors& one, const std::vector<bool>& mapped) {
    std::vector<bool> wanted;
    for (size_t i = 0; i < one.size(); ++i) wanted.push_back(!mapped[i] && sample.leaves[i].spec.differentiable());
    if (std::count(wanted.begin(), wanted.end(), true) == 0) return;
    // What the way back holds besides the gradients; and the bytes of the cotangents.
    const auto pulled_back = [&](const td::Function& g, const Tensors& given) {
      const td::Function of_wanted = [&](const Tensors& values) {
        Tensors all = given, outs;
        for (size_t i = 0, next = 0; i < all.size(); ++i)
          if (wanted[i]) all[i] = values[next++];
        for (const Tensor& t : g(all))
          if (t.is_floating_point() || t.is_complex()) outs.push_back(t);
        return outs;
      };
      Tensors primals, cotangents;
      for (size_t i = 0; i < given.size(); ++i)
        if (wanted[i]) primals.push_back(given[i]);
      const auto [outs, pullback] = td::vjp(of_wanted, primals);
      for (const Tensor& t : outs) cotangents.push_back(at::ones_like(t));
      pullback(cotangents);
      const Held held = held_by([&, &pullback = pullback] { return pullback(cotangents); });
      return Held{held.most - held.results, bytes_of(cotangents)};
    };
    const Held plain = pulled_back(f, one);
    const Arguments in = arguments(one, mapped), every = arguments(one, std::vector<bool>(one.size(), true));
    const Held held = pulled_back(td::vmap(f, in.dims, {0}), in.all);
    note(sample, mapped, held.most, bytes_of(in.of_examples) + held.results, kExamples * plain.most,
         [&] { return pulled_back(td::vmap(f, every.dims, {0}), every.all).most; });
  }

  // `most` bytes were held; allowed are those of the examples' operands and results, and of what is held besides by the
  // kernel or, which is only looked at where that is not enough, by a call of which nothing is shared.
  void note(const Sample& sample, const std::vector<bool>& mapped, int64_t most, int64_t of_examples, int64_t besides,
            const std::function<int64_t()>& nothing_shared) {
    ++calls;
    const auto factor_if = [&](int64_t held_besides) {
      const int64_t allowed = of_examples + std::max<int64_t>(held_besides, 0) + kExamples * kBytesPerExample;
      return static_cast<double>(most) / static_cast<double>(allowed);
    };
    double factor = factor_if(besides);
    if (factor > kBudget) {
      besides = std::max(besides, nothing_shared());
      factor = factor_if(besides);
    }
    if (factor <= worst) return;
    worst = factor;
    where = sample.text + ", mapped over";
    for (size_t i = 0; i < mapped.size(); ++i)
      if (mapped[i]) where += " " + std::to_string(i);
    where += ": " + std::to_string(most) + " bytes; of examples " + std::to_string(of_examples) + ", besides " +
             std::to_string(besides);
  }

  const Entry& entry_;
  bool gradients_;
};

void take_census(bool gradients, const std::vector<Exception>& exceptions) {
  const bool whole = std::getenv("TOWER_CENSUS") != nullptr;
  const char* folder = std::getenv("TOWER_OP_DB");
  std::map<std::string, double> excepted;
  std::set<std::string> needed;
  for (const Exception& e : exceptions)
    for (const char* name : e.of) excepted[name] = e.at_most;
  int calls = 0;
  for (const Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (entry.has("no_samples") || entry.refuses("vmap") || !entry.op) continue;
    Census census(entry, gradients);
    bool taken = false;
    for (const std::string& text : entry.sample_texts) {
      if (text[0] == '!' || (taken && !whole)) continue;
      const Sample sample = op_db::parse_sample(entry, text, at::kDouble);
      if (sample.leaves.size() < 2) continue;
      taken = true;
      census.take(sample);
      if (trusts_sizes(entry, sample)) continue;
      std::set<int64_t> sizes;
      for (const auto& leaf : sample.leaves) sizes.insert(leaf.spec.sizes.begin(), leaf.spec.sizes.end());
      for (const int64_t size : sizes)
        if (size > 1) census.take(stretched(sample, size, kStretch * size));
    }
    calls += census.calls;
    if (census.worst > kBudget) needed.insert(entry.name);
    const auto exception = excepted.find(entry.name);
    EXPECT_LE(census.worst, exception == excepted.end() ? kBudget : exception->second)
        << entry.name << " holds more than it may: " << census.where;
  }
  EXPECT_GT(calls, 300);
  if (whole)
    for (const auto& [name, at_most] : excepted)
      if (needed.count(name) == 0) ADD_FAILURE() << name << " holds no more: it needs no exception";
}

TEST(SharedOperands, AreNotCopiedForTheExamples) { take_census(/*gradients=*/false, kHoldMore); }

TEST(SharedOperands, HaveGradientsThatAreNotMadeForEachExample) { take_census(/*gradients=*/true, kGradientsHoldMore); }

}  // namespace
