#!/usr/bin/env python3
"""Holds the recipes in packaging/ against their tools and against the source: run with script/package's tools.

conda-forge's is read and rendered by rattler-build, for each Python. vcpkg cannot be installed from a registry of
packages, so its port is run by CMake with functions of vcpkg's names that say what they were given. No option that a
recipe sets may be unknown to the build: CMake itself takes any name.
"""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import rattler_build

ROOT = Path(__file__).parents[2]
BUILD = "\n".join(path.read_text() for path in [*ROOT.glob("CMakeLists.txt"), *ROOT.glob("cmake/*")])
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

FUNCTIONS = [
    "vcpkg_check_linkage",
    "vcpkg_cmake_config_fixup",
    "vcpkg_cmake_configure",
    "vcpkg_cmake_install",
    "vcpkg_install_copyright",
]


def version() -> str:
    numbers = re.findall(r"define TOWER_VERSION_[A-Z]+ (\d+)", (ROOT / "include/tower/version.h").read_text())
    return ".".join(numbers)


def options_are_known(text: str) -> None:
    options = set(re.findall(r"-D(TOWER_\w+)", text))
    assert {"TOWER_LIBTORCH", "TOWER_PYTHON", "TOWER_TESTS", "TOWER_BENCH", "TOWER_EXAMPLES"} <= options, options
    unknown = {option for option in options if not re.search(rf"\b{option}\b", BUILD)}
    assert not unknown, f"the build knows nothing of {unknown}"


def conda() -> None:
    path = ROOT / "packaging/conda/recipe.yaml"
    options_are_known(path.read_text())
    linux = rattler_build.PlatformConfig(
        **dict.fromkeys(("target_platform", "build_platform", "host_platform"), "linux-64")
    )
    variants = {"python": PYTHONS, "cxx_compiler": ["gxx"], "c_stdlib": ["sysroot"]}
    rendered = rattler_build.Stage0Recipe.from_file(str(path)).render(
        rattler_build.VariantConfig(variants), rattler_build.RenderConfig(platform=linux)
    )
    made = [each.recipe.to_dict() for each in rendered]
    assert all(each["package"]["version"] == version() for each in made), "the recipe is of another version"
    pythons = {each.variant["python"] for each in rendered if each.recipe.package.name == "torch-tower"}
    assert pythons == set(PYTHONS), pythons
    for each in made:
        of_torch = [need["pin_compatible"] for need in each["requirements"]["run"] if "pin_compatible" in need]
        assert [pin["upper_bound"] for pin in of_torch] == ["x.x.x"], (
            "it lets in another LibTorch than that of the build"
        )


def vcpkg() -> None:
    port = ROOT / "packaging/vcpkg/tower"
    manifest = json.loads((port / "vcpkg.json").read_text())
    formatted = json.dumps(manifest, indent=2) + "\n"
    assert (port / "vcpkg.json").read_text() == formatted, "not as `vcpkg format-manifest` writes it"
    order = ["name", "version", "description", "homepage", "license", "supports", "dependencies"]
    assert list(manifest) == [key for key in order if key in manifest], "keys in another order than vcpkg's"
    assert manifest["version"] == version(), "the port is of another version"
    with tempfile.TemporaryDirectory() as work:
        script = Path(work, "port.cmake")
        known = [f'function({name})\n message(STATUS "{name} ${{ARGV}}")\nendfunction()\n' for name in FUNCTIONS]
        variables = f'set(CURRENT_PACKAGES_DIR "{work}")\nset(PORT tower)\n'
        script.write_text("".join([variables, *known, f'include("{port}/portfile.cmake")\n']))
        command = ["cmake", "-P", str(script)]
        environment = {name: value for name, value in os.environ.items() if name != "TOWER_LIBTORCH"}
        without = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert without.returncode != 0 and "Set TOWER_LIBTORCH" in without.stderr, without.stderr
        environment["TOWER_LIBTORCH"] = "/somewhere"
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
        assert Path(work, "share/tower/usage").exists()
    source = re.search(r"vcpkg_cmake_configure SOURCE_PATH;([^;]+);OPTIONS;(.*)", said)
    assert source and Path(source[1]).samefile(ROOT), said
    assert "-DTOWER_LIBTORCH=/somewhere" in source[2]
    options_are_known(source[2])
    assert "linkage ONLY_DYNAMIC_LIBRARY" in said, "the library is a shared one"


if __name__ == "__main__":
    conda()
    vcpkg()
