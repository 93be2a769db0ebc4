"""What is known of other libraries' containers and tensor subclasses (_containers.py), by the names of classes."""

from typing import Any, Callable

from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin

from . import _tensordict

# ---- tensordict ------------------------------------------------------------------------------------------------------

_UNBATCHED = "tensordict._unbatched.UnbatchedTensor"
_TENSORDICTS = {
    "tensordict.base.TensorDictBase",
    "tensordict._tensorcollection.TensorCollection",
    _UNBATCHED,
}


def container_of(cls: type, make: Callable) -> Any:
    # A class that @tensorclass decorates keeps its bases.
    if _name(cls) in _TENSORDICTS or vars(cls).get("_is_tensorclass") is True:
        return make(_tensordict.take_example, _tensordict.make_batch)
    return None


# ---- pypose ----------------------------------------------------------------------------------------------------------


def _lie_tensor(like: Tensor, tensor: Tensor) -> Tensor:
    cls = next(base for base in type(like).__mro__ if _name(base) == _LIE_TENSOR)
    result = tensor.as_subclass(cls)
    if hasattr(like, "ltype"):
        result.ltype = like.ltype
    return result


_LIE_TENSOR = "pypose.lietensor.lietensor.LieTensor"


def subclass_of(cls: type) -> Callable[[Tensor, Tensor], Tensor] | None:
    if cls is UninitializedTensorMixin:
        raise ValueError(
            "A transform was given an uninitialized parameter, which has no value yet. Call the lazy module that it "
            "belongs to once before."
        )
    if _name(cls) == _UNBATCHED:
        return lambda like, tensor: _tensordict.as_unbatched(type(like), tensor, like.batch_size)
    return _lie_tensor if _name(cls) == _LIE_TENSOR else None


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
