"""`python -m torch_tower --cmake-prefix-path`: where find_package(Tower) looks, of an installed wheel.
`python -m torch_tower --inspect FILE`: what a model of torch.export.save is made of."""

import argparse
from pathlib import Path

import torch

from . import __version__, _build, load_exported

PREFIX = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m torch_tower", description="Where Tower's C++ library is, and what a file has."
    )
    parser.add_argument("--version", action="version", version=f"{__version__}+torch{_build.TORCH_VERSION}")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--cmake-prefix-path",
        action="store_true",
        help="print what CMAKE_PREFIX_PATH takes: the folder of Tower's CMake files, and of LibTorch's",
    )
    what.add_argument(
        "--inspect",
        metavar="FILE",
        help="print what a model that torch.export.save wrote takes, gives and calls, and how its operators are served",
    )
    chosen = parser.parse_args()
    if chosen.inspect is not None:
        print(load_exported(chosen.inspect).report(), end="")
        return
    if not (PREFIX / "include/tower/tower.h").exists():
        parser.exit(1, f"{PREFIX} has no C++ library: this is no wheel's. Name where Tower is installed.\n")
    print(PREFIX, torch.utils.cmake_prefix_path, sep=";")


if __name__ == "__main__":
    main()
