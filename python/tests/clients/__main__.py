"""Runs the test suites of projects that use torch.func with torch.func and with Tower in its place, test by test."""

import argparse
import pathlib
import sys

from . import report, results, setting
from .projects import PROJECTS
from .results import TORCH, TOWER


def _arguments():
    parser = argparse.ArgumentParser(prog="script/clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PROJECT", help=", ".join(project.name for project in PROJECTS))
    parser.add_argument("--cases", type=int, help="of each parametrized test, in place of the project's number")
    parser.add_argument("--seconds", type=int, default=300, help="for one test")
    parser.add_argument("--reuse", action="store_true", help="keep torch.func's results, if they are of the same tests")
    parser.add_argument("--report-only", action="store_true", help="print the table from the results that are there")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {project.name for project in PROJECTS}
    if unknown:
        parser.error(f"no such project: {', '.join(sorted(unknown))}")
    return arguments


def _compare(project, folder, arguments):
    """Both runs, and what differs twice: the tests that do are run again by themselves."""
    limits = {"cases": arguments.cases or project.cases, "seconds": arguments.seconds}
    setting.run(project, folder, TOWER, **limits)
    theirs, ours = results.both(folder)
    if ours.keys() - theirs.keys():  # there are none of torch.func's, or those of fewer tests
        setting.forget(folder, (TORCH,))
        setting.run(project, folder, TORCH, **limits)
    again = results.differences(*results.both(folder))
    if again:
        for library in (TORCH, TOWER):
            setting.run(project, folder, library, only=again, **limits)


def main():
    arguments = _arguments()
    root = pathlib.Path("build/clients").resolve()
    chosen = [project for project in PROJECTS if not arguments.names or project.name in arguments.names]
    for project in chosen if not arguments.report_only else ():
        folder = root / project.name
        print(f"--- {project.name}", flush=True)
        setting.forget(folder, (TOWER,) if arguments.reuse else (TORCH, TOWER))
        if setting.prepare(project, root):
            _compare(project, folder, arguments)
    return report.print_table([(project, *results.both(root / project.name)) for project in chosen])


sys.exit(main())
