#!/usr/bin/env python3
"""Makes a wheel of what a build installs.

    packaging/wheel.py INSTALLED TORCH PYTHON DIST      in the root of the repository

INSTALLED holds the folder torch_tower as it will lie in site-packages; TORCH is the version of LibTorch that it was
built with, PYTHON the Python's tag, cp311. What the wheel says of itself is what pyproject.toml says, but for what only
a binary knows: its version names LibTorch's, 0.1.0+torch2.13.0, and it requires that torch and no other.

The platform's tag is the oldest that auditwheel finds the libraries fit for, torch's own left out: those are torch's
to ship, and are loaded when torch is imported.
"""

import email.parser
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import sbom
from scikit_build_core.build import prepare_metadata_for_build_wheel

TOOLS = Path(sys.executable).parent


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def write_metadata(installed: Path, torch: str, python: str) -> str:
    """Writes the folder of metadata that makes a wheel of `installed`, and returns the version."""
    # Without CMake: it is looked for within seconds, which a busy machine may not have.
    plain = installed / prepare_metadata_for_build_wheel(str(installed), {"wheel.cmake": "false"})
    metadata = email.parser.Parser().parsestr((plain / "METADATA").read_text())
    version = f"{metadata['Version']}+torch{torch}"
    metadata.replace_header("Version", version)
    others = [each for each in metadata.get_all("Requires-Dist", []) if not re.match(r"torch\b(?!-)", each)]
    del metadata["Requires-Dist"]
    for requirement in [f"torch=={torch}", *others]:
        metadata["Requires-Dist"] = requirement
    (plain / "METADATA").write_text(metadata.as_string())
    (plain / "WHEEL").write_text(
        "Wheel-Version: 1.0\n"
        "Generator: script/package\n"
        "Root-Is-Purelib: false\n"
        f"Tag: {python}-{python}-linux_{os.uname().machine}\n"
    )
    (plain / "sboms").mkdir()
    sbom.write(plain / "sboms/torch_tower.cdx.json", metadata["Version"], torch, sbom.libraries_of(installed))
    plain.rename(installed / f"torch_tower-{version}.dist-info")
    return version


def main() -> None:
    installed, torch, python, dist = sys.argv[1:]
    write_metadata(Path(installed), torch, python)
    with tempfile.TemporaryDirectory() as packed:
        run(TOOLS / "wheel", "pack", installed, "--dest-dir", packed)
        (wheel,) = Path(packed).glob("*.whl")
        of_torch = [f"--exclude={name}" for name in ("libtorch*.so", "libc10*.so", "libgomp*.so.1")]
        said = run(TOOLS / "auditwheel", "repair", *of_torch, "--wheel-dir", dist, wheel)
    (name,) = re.findall(r"Fixed-up wheel written to (.*\.whl)", said)
    print(Path(dist, Path(name).name))


if __name__ == "__main__":
    main()
