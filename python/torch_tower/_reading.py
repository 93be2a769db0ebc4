"""What reads a tensor's values from Python, inside a transform: print shows what it is and holds, tolist gives the
numbers where there are any, numpy refuses."""

import torch

from . import _C


def show(tensor: torch.Tensor) -> str:
    return _C.text_of(tensor, torch.Tensor.__repr__)


def check_readable(self, *, force=False):
    if not force and (_C.is_batched(self) or _C.is_tracked(self)):
        self.data_ptr()  # raises: an array would lose what the transform tracks


def to_list(tensor):
    values = tensor.detach()
    if not _C.is_wrapper(values):
        return values.tolist()
    # One by one, as item() reads them: it says why there is no number, which differs between examples or is traced.
    return [to_list(part) for part in values.unbind()] if values.dim() else values.item()


def new_tensor(self, data, *, dtype=None, device=None, **options):
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)


def numbers(data):
    """A list for torch.tensor, which reads numbers: tensors of transforms in it are read here, or say why not."""
    if isinstance(data, (list, tuple)):
        return [numbers(element) for element in data]
    if isinstance(data, torch.Tensor) and _C.is_wrapper(data):
        value, dtype = data.item(), data.dtype
        return _C.suspended(lambda: torch.tensor(value, dtype=dtype))
    return data


def _level(seen: tuple) -> str:
    return f"{seen[1]} (level {seen[2]})"


def no_grad(tensor):
    """A tensor of a transform was to require grad, and cannot."""
    raise RuntimeError(
        f"{_level(_C.inspect(tensor))}: a tensor of the transform was asked to require grad (requires_grad_(), "
        "nn.Parameter, torch.autograd.functional), but torch's autograd does not see inside of transforms. Make what "
        "is to be differentiated an argument of torch_tower.grad, vjp, jvp, jacrev, jacfwd or hessian; they nest."
    )


def _without_constants(t: torch.Tensor) -> torch.Tensor:
    while isinstance(t, torch.Tensor) and (seen := _C.inspect(t)) and seen[4]:
        t = seen[5]
    return t


def differentiable_by_torch(outputs: tuple) -> tuple:
    """What backward() and torch.autograd.grad differentiate inside a transform: values that depend on none. Of what a
    transform tracks they find no way back, and say what to use."""
    outputs = tuple(_without_constants(t) for t in outputs)
    for t in outputs:
        if isinstance(t, torch.Tensor) and not t.requires_grad and (seen := _C.inspect(t)):
            raise RuntimeError(
                f"{_level(seen)}: backward() or torch.autograd.grad was called on a tensor inside of the transform, "
                "from which torch's autograd finds no way back. Call torch_tower.grad or torch_tower.vjp; they nest."
            )
    return outputs
