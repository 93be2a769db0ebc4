// Connectionist temporal classification (Graves et al. 2006): the probability of a labelling, summed over its
// alignments by the forward recursion. Derivatives are those of the recursion. LibTorch's backward operator gives the
// gradient of log_softmax and loss together, which is another one unless log_softmax comes first; it is batched for
// graphs of LibTorch's own.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <limits>

#include "interpreters/vmap.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/masks.h"
#include "records/op.h"
#include "rules/losses.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
using Pair = std::tuple<Tensor, Tensor>;

// log Σ exp over the first dimension, where none of what may be added can have a chance.
Tensor log_sum_exp(const Tensor& x) {
  const Tensor greatest = x.detach().amax(0), none = greatest == -inf, shift = greatest.masked_fill(none, 0);
  const Tensor sum = (x - shift).exp().sum(0);
  return (sum.masked_fill(none, 1).log() + shift).masked_fill(none, -inf);
}

// The labels of every item as a row [N, S]; what is beyond an item's length is any class.
Tensor label_rows(const Tensor& targets, const Tensor& lengths, int64_t longest, int64_t classes) {
  if (targets.dim() == 2) return targets.narrow(1, 0, longest).to(at::kLong).clamp(0, classes - 1);
  // One after the other.
  const Tensor starts = lengths.cumsum(0) - lengths;
  const Tensor places = starts.unsqueeze(1) + at::arange(longest, starts.options());
  return at::take(targets, places.clamp(0, std::max<int64_t>(targets.numel() - 1, 0))).to(at::kLong);
}

// `lengths` as tensors; `longest` label.
Pair recursion(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
               const Tensor& target_lengths, int64_t longest, int64_t blank) {
  const int64_t steps = log_probs.size(0), items = log_probs.size(1), classes = log_probs.size(2);
  const int64_t states = 2 * longest + 1;  // blanks around and between the labels
  const Tensor labels = longest == 0 ? at::zeros({items, 0}, target_lengths.options())
                                     : label_rows(targets, target_lengths, longest, classes);
  const Tensor padded = at::constant_pad_nd(labels, {0, 1}, blank);
  const Tensor symbols = at::stack({at::full_like(padded, blank), padded}, -1).flatten(1).narrow(1, 0, states);
  const Tensor scores = log_probs.gather(2, symbols.unsqueeze(0).expand({steps, items, states}));
  // A label may follow another one without a blank between them, unless it is the same.
  Tensor skips = at::zeros({items, states}, symbols.options().dtype(at::kBool));
  if (states > 2) {
    const Tensor differs = symbols.narrow(1, 2, states - 2).ne(symbols.narrow(1, 0, states - 2));
    const Tensor is_label = at::arange(2, states, symbols.options()).remainder(2).eq(1);
    skips = at::constant_pad_nd(differs.logical_and(is_label), {2, 0});
  }
  const Tensor first = at::arange(states, symbols.options()).le(target_lengths.gt(0).to(at::kLong).unsqueeze(1));
  std::vector<Tensor> alphas{scores.select(0, 0).masked_fill(first.logical_not(), -inf)};
  for (int64_t t = 1; t < steps; ++t) {
    const Tensor& before = alphas.back();
    const auto moved = [&](int64_t by) { return at::constant_pad_nd(before, {by, 0}, -inf).narrow(1, 0, states); };
    const Tensor ways = at::stack({before, moved(1), moved(2).masked_fill(skips.logical_not(), -inf)});
    alphas.push_back(log_sum_exp(ways) + scores.select(0, t));
  }
  const Tensor all = at::stack(alphas, 1);  // [N, T, states]
  const Tensor last_step = (input_lengths - 1).clamp_min(0).view({-1, 1, 1}).expand({items, 1, states});
  const Tensor last = all.gather(1, last_step).squeeze(1);
  const Tensor end = (target_lengths * 2).unsqueeze(1), label = (end - 1).clamp_min(0);
  const Tensor by_label = last.gather(1, label).masked_fill(target_lengths.unsqueeze(1) == 0, -inf);
  const Tensor loss = -log_sum_exp(at::stack({last.gather(1, end), by_label})).squeeze(1);
  const Tensor nothing_heard = at::where(target_lengths == 0, Scalar(0.0), Scalar(inf)).to(loss.scalar_type());
  return {at::where(input_lengths == 0, nothing_heard, loss), all};
}

void check_ctc(const Tensor& log_probs, int64_t inputs, int64_t targets, int64_t blank) {
  TORCH_CHECK(log_probs.dim() == 3 && log_probs.numel() > 0, "log_probs tensor must not be empty");
  TORCH_CHECK(blank >= 0 && blank < log_probs.size(2), "blank must be in label range");
  TORCH_CHECK(inputs == log_probs.size(1), "input_lengths must be of size batch_size");
  TORCH_CHECK(targets == log_probs.size(1), "target_lengths must be of size batch_size");
}

Tensor numbers(const Ints& values, const Tensor& like) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(like.device());
}

// _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) → (losses, log_alpha)
Pair losses_of_numbers(const Tensor& log_probs, const Tensor& targets, const Ints& inputs, const Ints& lengths,
                       int64_t blank) {
  check_ctc(log_probs, static_cast<int64_t>(inputs.size()), static_cast<int64_t>(lengths.size()), blank);
  int64_t longest = 0, total = 0;
  for (int64_t n : lengths) {
    TORCH_CHECK(n >= 0, "Expected target_lengths to have value at least 0, but got value ", n);
    longest = std::max(longest, n);
    total += n;
  }
  for (int64_t n : inputs)
    TORCH_CHECK(n >= 0 && n <= log_probs.size(0), "Expected input_lengths to have value at most ", log_probs.size(0),
                ", but got value ", n);
  TORCH_CHECK(targets.dim() == 2 ? targets.size(0) == log_probs.size(1) && targets.size(1) >= longest
                                 : targets.dim() == 1 && targets.numel() == total,
              "Expected targets to have ", total, " labels, or a row of them for each item, got ", targets.sizes());
  return recursion(log_probs, targets, numbers(inputs, log_probs), numbers(lengths, log_probs), longest, blank);
}

// With lengths as tensors nobody knows the longest label but by its room.
Pair losses_of_tensors(const Tensor& log_probs, const Tensor& targets, const Tensor& inputs, const Tensor& lengths,
                       int64_t blank) {
  check_ctc(log_probs, inputs.numel(), lengths.numel(), blank);
  TORCH_CHECK(targets.dim() == 1 || (targets.dim() == 2 && targets.size(0) == log_probs.size(1)),
              "Expected targets to be a vector, or a row of labels for each item, got ", targets.sizes());
  return recursion(log_probs, targets, inputs.reshape(-1).to(at::kLong), lengths.reshape(-1).to(at::kLong),
                   targets.size(-1), blank);
}

// All examples' items one after the other, where log_probs is argument `at`, followed by the targets and two lengths.
// Every other tensor has a row for each item. Returns how many items an example has.
int64_t join_items(VmapFrame& f, size_t at) {
  for (uint8_t i : f.op.tensor_args()) f.to_front(i, true);
  TORCH_CHECK(f.tensor(at).dim() == 4, "log_probs tensor must have dimensions for steps, items and classes");
  const int64_t items = f.tensor(at).size(2);
  for (uint8_t i : f.op.tensor_args())
    f.stack[i] = i == at ? f.tensor(i).movedim(0, 1).flatten(1, 2) : f.tensor(i).flatten(0, 1).contiguous();
  for (size_t i : {at + 2, at + 3}) {
    if (f.stack[i].isTensor()) continue;
    const Ints one = f.stack[i].toIntVector();
    Ints all;
    for (int64_t b = 0; b < f.batch_size; ++b) all.insert(all.end(), one.begin(), one.end());
    f.stack[i] = all;
  }
  return items;
}

void ctc_vmap(VmapFrame& f) {
  if (f.batch_size == 0) return run_loop(f.level, f, false);  // the kernel wants an item
  const int64_t items = join_items(f, 0);
  f.call();
  for (auto& out : f.stack) out = out.toTensor().unflatten(0, {f.batch_size, items});
  f.out_dims.assign(2, 0);
}

void ctc_backward_vmap(VmapFrame& f) {
  if (f.batch_size == 0) return run_loop(f.level, f, false);
  const int64_t items = join_items(f, 1);
  f.call();
  f.result(f.tensor(0).unflatten(1, {f.batch_size, items}), 1);
}

// _ctc_loss_backward(grad, log_probs, …) has a factor for each item.
template <class Op, class Lengths>
void loss_backward() {
  op<Op>()
      .vmap(ctc_backward_vmap)
      .template linear<0>([](Ct<0> ct, const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                             const Lengths& inputs, const Lengths& lengths, const Tensor& losses, const Tensor& alpha,
                             int64_t blank, bool zero_infinity) {
        const Tensor of_one = at::_ctc_loss_backward(at::ones_like(grad), log_probs, targets, inputs, lengths, losses,
                                                     alpha, blank, zero_infinity);
        return (*ct * of_one).sum(Ints{0, 2});
      });
}

Tensor reduced(const Tensor& losses, const Tensor& lengths, int64_t reduction, bool zero_infinity, bool single) {
  Tensor each = losses;
  if (zero_infinity) each = zero_where(each == inf, each);
  if (reduction == at::Reduction::Mean) return (each / lengths.clamp_min(1).to(each.scalar_type())).mean();
  if (reduction == at::Reduction::Sum) return each.sum();
  return single ? each.squeeze(0) : each;
}

}  // namespace

void ctc_losses() {
  // The second result is as large as the longest target, and is read by the derivative alone.
  const auto fixed = [](c10::ArrayRef<IValue>) { return false; };
  op<at::_ops::_ctc_loss>().shape_by_values(fixed);
  op<at::_ops::_ctc_loss_Tensor>().shape_by_values(fixed);
  op<at::_ops::_ctc_loss>().vmap(ctc_vmap).nondifferentiable_outputs<1>().decomposes(losses_of_numbers);
  op<at::_ops::_ctc_loss_Tensor>().nondifferentiable_outputs<1>().decomposes(losses_of_tensors);
  loss_backward<at::_ops::_ctc_loss_backward, Ints>();
  loss_backward<at::_ops::_ctc_loss_backward_Tensor, Tensor>();
  // LibTorch's composites ask for data and for cuDNN.
  op<at::_ops::ctc_loss_IntList>().decomposes([](const Tensor& log_probs, const Tensor& targets, const Ints& inputs,
                                                 const Ints& lengths, int64_t blank, int64_t reduction,
                                                 bool zero_infinity) {
    const bool single = log_probs.dim() != 3;
    const Tensor items = single ? log_probs.unsqueeze(1) : log_probs;
    const Tensor losses = std::get<0>(at::_ctc_loss(items, targets, inputs, lengths, blank, zero_infinity));
    return reduced(losses, numbers(lengths, losses), reduction, zero_infinity, single);
  });
  op<at::_ops::ctc_loss_Tensor>().decomposes([](const Tensor& log_probs, const Tensor& targets, const Tensor& inputs,
                                                const Tensor& lengths, int64_t blank, int64_t reduction,
                                                bool zero_infinity) {
    const bool single = log_probs.dim() != 3;
    const auto [losses, alpha] =
        losses_of_tensors(single ? log_probs.unsqueeze(1) : log_probs, targets, inputs, lengths, blank);
    return reduced(losses, lengths.reshape(-1), reduction, zero_infinity, single);
  });
  for (const char* name : {"aten::_ctc_loss", "aten::ctc_loss"})
    guard(record_of(name, "Tensor"), [](const Example& e) {
      TORCH_CHECK(at::isIntegralType(e.dtype(2), /*includeBool=*/false), "input_lengths must be integral");
      TORCH_CHECK(at::isIntegralType(e.dtype(3), /*includeBool=*/false), "target_lengths must be integral");
    });
}

}  // namespace tower::rules
