#!/usr/bin/env python3
"""Makes a virtual environment with torch in it, what torch requires, and nothing else, not even pip.

    bare_environment.py FOLDER

It is of the Python that runs this, and of its torch. The packages are links, so that it takes a second.
"""

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def with_requirements(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # of another platform, or an extra
        return
    for requirement in found[key].requires or []:
        if "extra ==" not in requirement:
            with_requirements(re.match(r"[\w.-]+", requirement)[0], found)


def main() -> None:
    folder = Path(sys.argv[1])
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin/python3"
    program = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = Path(subprocess.run([python, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    found: dict[str, importlib.metadata.Distribution] = {}
    with_requirements("torch", found)
    scripts = Path(sysconfig.get_path("scripts")).name
    for distribution in found.values():
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__", scripts}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))


if __name__ == "__main__":
    main()
