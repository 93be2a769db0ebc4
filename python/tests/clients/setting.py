"""Where a project's tests run: its packages, its tests, and the process of pytest."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

from . import results

HERE = pathlib.Path(__file__).parent
PLUGIN = HERE / "plugin"
# How to call the pip that installs for this Python; script/common finds it.
PIP = shlex.split(os.environ.get("TOWER_PIP", f"{sys.executable} -m pip"))
# Besides the tests themselves: what pytest reads its settings from.
SETTINGS = ("pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini", "conftest.py")


def forget(folder, libraries):
    for library in libraries:
        results.path(folder, library).unlink(missing_ok=True)


def prepare(project, root):
    """Installs the project and lays out its tests. False if there are no tests."""
    folder = root / project.name
    wanted = " ".join(project.packages.split())
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"pip install --no-deps {wanted}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        # Without dependencies: they ask for a torch, and the one that Tower was built with is there.
        _pip("install", "--no-deps", "--target", folder / "packages", *wanted.split())
        stamp.write_text(wanted)
    tests = folder / "tests"
    if not project.tests_in_package and not tests.exists():
        source = _distribution(project.sdist, folder) if project.sdist else root / "checkouts" / project.name
        if not source.exists():
            print(f"{project.name}: {project.no_tests}")
            return False
        # Without the project itself: the one that is installed is tested.
        tests.mkdir()
        for name in (project.tests.split("/")[0], *SETTINGS):
            if (source / name).is_dir():
                shutil.copytree(source / name, tests / name)
            elif (source / name).exists():
                shutil.copy(source / name, tests / name)
    return True


def _distribution(requirement, folder):
    """The unpacked source distribution."""
    place = folder / "sdist"
    _pip("download", "--no-deps", "--no-binary", ":all:", "--dest", place, requirement)
    (archive,) = place.glob("*.tar.gz")
    shutil.unpack_archive(archive, place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def _pip(*arguments):
    done = subprocess.run([*PIP, *map(str, arguments), "--quiet"], text=True, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"pip {arguments[0]} failed:\n{done.stderr}")


def run(project, folder, library, cases, seconds, only=None):
    """Runs the tests, or `only` these, with one library. Results are appended."""
    # Without the folder of Tower's own tests, whose names a project could have, too.
    inherited = [entry for entry in os.environ["PYTHONPATH"].split(os.pathsep) if pathlib.Path(entry) != HERE.parent]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(folder / "packages"), *inherited]),
        "PYTHONHASHSEED": "0",  # cases are named after sets
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CLIENT_LIBRARY": library,
        "CLIENT_CASES": str(cases),
        "CLIENT_LEFT_OUT": results.pattern(project.left_out),
        "CLIENT_SECONDS": str(seconds),
        "CLIENT_RESULTS": str(results.path(folder, library)),
    }
    if only is not None:
        chosen = folder / "only.json"
        chosen.write_text(json.dumps(sorted(only)))
        environment["CLIENT_ONLY"] = str(chosen)
    command = [
        *("nice", sys.executable, "-m", "pytest", "-p", "tower_client", "-p", "no:cacheprovider", "-q", "--tb=short"),
        # Its own options ask for plugins that are not here; its warnings as errors would test other packages' versions.
        *("-o", "addopts=", "-o", "filterwarnings=", "-W", "ignore"),
        "--continue-on-collection-errors",
        *project.options,
        *("--rootdir=.", project.tests),
    ]
    log = folder / f"{library}{'' if only is None else '.again'}.log"
    place = folder / ("packages" if project.tests_in_package else "tests")
    with log.open("w") as file:
        subprocess.run(command, cwd=place, env=environment, stdout=file, stderr=subprocess.STDOUT)
    print(f"{library}: {_last_line(log)}", flush=True)


def _last_line(log):
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip("= ") for line in reversed(lines) if line.strip()), "")
