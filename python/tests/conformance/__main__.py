"""Holds Tower and torch.func against PyTorch's operator database, and writes docs/conformance.md."""

import argparse
import os
import pathlib
import re
import shutil
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[3]


def _arguments():
    parser = argparse.ArgumentParser(prog="script/conformance", description=__doc__)
    parser.add_argument(
        "--fast", action="store_true", help="Tower only, two samples, the first rows; holds docs/conformance.md"
    )
    parser.add_argument(
        "--compile", action="store_true", help="Tower only, all transforms compiled; holds docs/conformance.md"
    )
    parser.add_argument("--only", metavar="REGEX", default="", help="entries to run; the others' results are kept")
    parser.add_argument("--rows", metavar="REGEX", default="", help="rows to run")
    # Some errors leave torch.func's thread without dispatch keys, which what runs after it would miss.
    parser.add_argument("--backends", default="torch_tower,torch.func", help="libraries, with commas between them")
    parser.add_argument("--samples", type=int, default=0, help="of each entry")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--limit", type=int, default=0, help="seconds for one entry")
    parser.add_argument("--resume", action="store_true", help="keep results that are there, run the others")
    parser.add_argument("--report-only", action="store_true", help="write the report from the results that are there")
    return parser.parse_args()


def main():
    arguments = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    from . import report, samples, supervise
    from .backends import PEER, TOWER, Backend, Compiled
    from .rows import ROWS

    began = time.monotonic()
    kind = "-".join(["compiled"] * arguments.compile + ["fast" if arguments.fast else "full"])
    folder = ROOT / "build" / "conformance" / kind
    count = arguments.samples or (2 if arguments.fast else 6)
    if arguments.compile:
        backends = [Compiled()]
    else:
        backends = [Backend(name) for name in ([TOWER] if arguments.fast else arguments.backends.split(","))]
    if not arguments.report_only:
        names = [name for name in samples.entries() if re.search(arguments.only, name)]
        rows = [row for row in ROWS if (row.fast or not arguments.fast) and re.search(arguments.rows, row.name)]
        if arguments.compile:
            rows = [row for row in rows if row.transform not in ("graph", "mistakes")]
        if not arguments.resume and folder.exists():
            if arguments.only or arguments.rows or len(backends) == 1:
                report.forget(folder, names, rows, backends)
            else:
                shutil.rmtree(folder)
        limit = arguments.limit or (120 if arguments.fast else 400)
        # A process costs more than an entry; Tower leaves nothing behind in one.
        together = 16 if arguments.fast else 1
        supervise.run(names, rows, backends, count, arguments.jobs, limit, folder, together)
        print(f"{len(names)} entries, {time.monotonic() - began:.0f} s", flush=True)
    versions = {backend.name: backend.version for backend in backends}
    versions = {name: versions[name] if name in versions else Backend(name).version for name in (TOWER, PEER)}
    return report.conclude(folder, ROOT / "docs" / "conformance.md", arguments.fast, versions, count)


sys.exit(main())
