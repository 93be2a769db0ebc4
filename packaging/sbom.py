#!/usr/bin/env python3
"""Writes what a package is made of and needs, as CycloneDX: the bill of materials in a wheel, and that of a release.

    packaging/sbom.py VERSION DIST      dist/tower-VERSION.cdx.json, which names every package in the folder DIST

Nothing is listed by hand that can be read from the libraries: what they load is what their ELF headers name. What only
their source knows is below in OTHERS. Every file is held against CycloneDX's own schema before it is written.
"""

import hashlib
import re
import sys
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.elffile import ELFFile
from packageurl import PackageURL

# What no header of a library tells: (name, licence, scope, how it is used).
OTHERS = [
    ("pybind11", "BSD-3-Clause", ComponentScope.REQUIRED, "headers, LibTorch's copy, compiled into the extension"),
    ("gloo", "BSD-3-Clause", ComponentScope.REQUIRED, "headers, compiled in where there are meshes of processes"),
    ("LLVM", "Apache-2.0 WITH LLVM-exception", ComponentScope.OPTIONAL, "15 to 22, loaded when a function is compiled"),
]
OF_TORCH = re.compile(r"lib(torch|c10)[_a-z]*\.so")


def libraries_of(folder: Path) -> list[Path]:
    """The ELF files in a folder."""
    return sorted(path for path in folder.rglob("*.so*") if path.read_bytes()[:4] == b"\x7fELF")


def needed(library: Path) -> list[str]:
    with library.open("rb") as file:
        tags = ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        return [tag.needed for tag in tags]


def of_file(path: Path) -> Component:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Component(
        name=path.name,
        bom_ref=path.name,
        type=ComponentType.FILE,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )


def of_torch(version: str) -> Component:
    return Component(
        name="torch",
        bom_ref=f"torch {version}",
        version=version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED,
        purl=PackageURL("pypi", None, "torch", version),
    )


def used(name: str, licence: str | None, scope: ComponentScope, how: str) -> Component:
    return Component(
        name=name,
        bom_ref=name,
        type=ComponentType.LIBRARY,
        scope=scope,
        licenses=[LicenseExpression(licence)] if licence else [],
        properties=[Property(name="tower:use", value=how)],
    )


def begin(name: str, version: str) -> Bom:
    bom = Bom()
    bom.metadata.component = Component(
        name=name,
        bom_ref=f"{name} {version}",
        version=version,
        type=ComponentType.LIBRARY,
        licenses=[LicenseExpression("BSD-3-Clause")],
        purl=PackageURL("pypi", None, name, version) if name == "torch_tower" else None,
    )
    return bom


def finish(bom: Bom, parts: list[Component], path: Path) -> None:
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(bom.metadata.component, [part for part in parts if part.type is not ComponentType.FILE])
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong:
        raise ValueError(f"{path} would be no CycloneDX: {wrong}")
    path.write_text(text + "\n")


def write(path: Path, version: str, torch: str, libraries: list[Path]) -> None:
    """The bill of materials of a binary package."""
    loaded = {name for library in libraries for name in needed(library)} - {library.name for library in libraries}
    system = sorted(name for name in loaded if not OF_TORCH.fullmatch(name))
    finish(
        begin("torch_tower", version),
        [
            *map(of_file, libraries),
            of_torch(torch),
            *(used(name, None, ComponentScope.REQUIRED, "the system's, by this name") for name in system),
            *(used(*other) for other in OTHERS),
        ],
        path,
    )


def main() -> None:
    version, dist = sys.argv[1], Path(sys.argv[2])
    path = dist / f"tower-{version}.cdx.json"
    files = sorted(each for each in dist.iterdir() if each != path and each.name != "SHA256SUMS")
    torches = sorted({found[1] for each in files if (found := re.search(r"\+torch([\d.]+\d)", each.name))})
    finish(begin("tower", version), [*map(of_file, files), *map(of_torch, torches)], path)
    print(path)


if __name__ == "__main__":
    main()
