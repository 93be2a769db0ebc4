"""Operators that torch itself defines in Python, whose derivatives are not those of the values they are called with.

The chunked linear_cross_entropy computes its gradients with the loss, for those arguments that require grad when it is
called, and differentiates to first order only. Inside a transform it is the formula that it stands for.
"""

from torch import Tensor
from torch.nn import functional


def _loss(input, linear_weight, target, linear_bias, weight, **options) -> Tensor:
    logits = functional.linear(input.to(linear_weight.dtype), linear_weight, linear_bias)
    return functional.cross_entropy(logits, target, weight, **options).to(input.dtype)


def _chunked(
    input, linear_weight, target, linear_bias, weight, reduction, ignore_index, label_smoothing, *_
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = dict(reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
    loss = _loss(input, linear_weight, target, linear_bias, weight, **options)
    # The gradients are for the operator's own backward.
    return loss, input.new_empty((0, 0)), input.new_empty((0, 0)), input.new_empty((0,))


def _chunked_no_reduction(input, linear_weight, target, linear_bias, weight, ignore_index, *_) -> Tensor:
    return _loss(input, linear_weight, target, linear_bias, weight, reduction="none", ignore_index=ignore_index)


FORMULAS = {
    "torch_nn::_linear_cross_entropy_batch_chunked": _chunked,
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction": _chunked_no_reduction,
}
