"""The tests' own device (tests/apart/apart.h) for Python: `torch.device("apart:1")` after `install()`."""

import ctypes
import types
from pathlib import Path

import torch
import torch_tower


def install():
    library = ctypes.CDLL(str(Path(torch_tower.__file__).parents[2] / "apart.so"))
    library.apart_manual_seed.argtypes = [ctypes.c_uint64]
    library.apart_install()
    # What torch.manual_seed, torch.load and torch.autocast ask a backend's module for.
    module = types.ModuleType("torch.apart")
    module.is_available = lambda: True
    module.device_count = lambda: 2
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = library.apart_manual_seed
    module.device = lambda device: torch.accelerator.device_index(torch.device(device).index)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch._register_device_module("apart", module)
