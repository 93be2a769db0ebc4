"""`python -m torch_tower --cmake-prefix-path`: where find_package(Tower) looks, of an installed wheel."""

import argparse
from pathlib import Path

import torch

from . import __version__, _build

PREFIX = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torch_tower", description="Where Tower's C++ library is.")
    parser.add_argument("--version", action="version", version=f"{__version__}+torch{_build.TORCH_VERSION}")
    parser.add_argument(
        "--cmake-prefix-path",
        action="store_true",
        required=True,
        help="print what CMAKE_PREFIX_PATH takes: the folder of Tower's CMake files, and of LibTorch's",
    )
    parser.parse_args()
    if not (PREFIX / "include/tower/tower.h").exists():
        parser.exit(1, f"{PREFIX} has no C++ library: this is no wheel's. Name where Tower is installed.\n")
    print(PREFIX, torch.utils.cmake_prefix_path, sep=";")


if __name__ == "__main__":
    main()
