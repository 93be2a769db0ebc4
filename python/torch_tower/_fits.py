"""Whether the extension may be loaded: it fits the torch and Python it was built with; with others it would crash."""

from importlib.machinery import EXTENSION_SUFFIXES

import torch

from . import _build


def check() -> None:
    built = f"This torch_tower {_build.VERSION} was built for torch {_build.TORCH_VERSION}"
    version = torch.__version__.split("+")[0]
    wheel = f"{_build.VERSION}+torch{version}"
    remedy = (
        f'Take the wheel torch_tower-{wheel} (pip install "torch_tower=={wheel}"), or build it for this one: '
        "pip install --force-reinstall --no-deps . in Tower's repository."
    )
    if version != _build.TORCH_VERSION or torch.compiled_with_cxx11_abi() != _build.CXX11_ABI:
        raise ImportError(
            f"{built} (C++11 ABI: {_build.CXX11_ABI}), but torch {torch.__version__} (C++11 ABI: "
            f"{torch.compiled_with_cxx11_abi()}) is installed. {remedy}"
        )
    if not any(suffix.startswith(f".{_build.SOABI}.") for suffix in EXTENSION_SUFFIXES):
        raise ImportError(f"{built} and {_build.SOABI}, but this Python loads *{EXTENSION_SUFFIXES[0]}. {remedy}")
