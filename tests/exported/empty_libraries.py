"""empty_libraries.py LIB FOLDER: makes libraries in FOLDER for those that the libraries in LIB, a torch's torch/lib,
need and that are not there, with the functions that they take from them, which do nothing. A torch from PyPI is linked
to CUDA's libraries, of several GB, and cannot be imported without; to export a model on a CPU it calls none of them."""

import re
import subprocess
import sys
from pathlib import Path


def said_by(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def main():
    libraries, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    missing, owners, functions, without_version = set(), {}, {}, set()
    for library in libraries.glob("*.so"):
        missing |= set(re.findall(r"^\t(\S+) => not found$", said_by("ldd", library), re.M))
        versions = re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", said_by("objdump", "-p", library))
        for owner, lines in versions:
            owners.update({version: owner for version in re.findall(r"\s(\S+)$", lines, re.M)})
        for symbol in re.findall(r"^\s+U (\S+)$", said_by("nm", "-D", "--undefined-only", library), re.M):
            name, _, version = symbol.partition("@")
            if version:
                functions.setdefault(version, set()).add(name)
            elif re.match("cu|nccl|nv", name):
                without_version.add(name)
    for name in missing:
        own = {version: functions.get(version, set()) for version, owner in owners.items() if owner == name}
        own["NO_VERSION"] = without_version
        script = folder / "versions.map"
        script.write_text(
            "".join(f"{v} {{ global: {' '.join(f + ';' for f in fs)} }};\n" for v, fs in own.items() if fs)
        )
        code = "".join(f"void {function}(void) {{}}\n" for fs in own.values() for function in fs)
        command = ["gcc", "-w", "-shared", "-x", "c", "-", "-o", folder / name]
        command += [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}"]
        subprocess.run(command, input=code, text=True, check=True)


if __name__ == "__main__":
    main()
