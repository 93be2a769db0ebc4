"""The memory of temporaries: what transforms allocate in passing comes from a cache, for which there is nothing to do.

    from torch_tower import memory

    memory.release_memory()

Blocks of 64 KiB and more that a transform frees are used again by the next that asks, and not returned to the system at
once. Each thread's cache is bounded by what its recent calls had in use, and by a limit.
"""

from ._C import memory_cached, memory_limit, release_memory, set_memory_limit

__all__ = ["memory_cached", "memory_limit", "release_memory", "set_memory_limit"]
