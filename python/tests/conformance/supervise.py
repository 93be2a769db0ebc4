"""Runs entries in processes of their own with a time limit, so that a crash or a hang costs one cell of the table."""

from __future__ import annotations

import gc
import json
import multiprocessing.connection
import os
import signal
import time
import traceback
import warnings

from . import worker


class _Process:
    """Entries with their results, one after the other in a forked process. Results fill as cells finish; `at` is the
    entry and `cell` the one of its cells that it is at."""

    def __init__(self, entries, rows, backends, count):
        self.entries, self.at, self.cell = entries, 0, None
        self.began, self.ended_well, self.signal, self.broken = time.monotonic(), False, 0, ""
        self.connection, theirs = multiprocessing.Pipe(duplex=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads; they sleep
            self.pid = os.fork()
        if self.pid == 0:
            try:
                self._work(theirs, rows, backends, count)
            except BaseException:
                theirs.send(("broken", traceback.format_exc()))
            finally:
                os._exit(0)
        theirs.close()

    def _work(self, pipe, rows, backends, count):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        for at, (entry, results) in enumerate(self.entries):
            pipe.send(("entry", at))
            done = {tuple(key.split("|")) for key in results}
            worker.run(entry, rows, backends, count, done, lambda *message: pipe.send(message))
        pipe.send(("end",))

    def read(self):
        """Takes what the process sent. False when it has ended, well or not."""
        try:
            while self.connection.poll():
                kind, *rest = self.connection.recv()
                if kind == "end":
                    self.ended_well = True
                elif kind == "entry":
                    self.at, self.cell, self.began = rest[0], None, time.monotonic()
                elif kind == "at":
                    self.cell = "|".join(rest) or None
                elif kind == "broken":
                    self.broken = rest[0]
                else:
                    self.entries[self.at][1][self.cell] = rest[0]
            if not self.ended_well:
                return True
        except (EOFError, OSError):
            pass
        self.connection.close()
        _, status = os.waitpid(self.pid, 0)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return False

    def stop(self):
        os.kill(self.pid, signal.SIGKILL)
        while self.read():
            time.sleep(0.01)


def _failure(text):
    return {"outcome": "error", "text": text, "looped": [], "calls": 1, "data_dependent": ""}


class _Run:
    def __init__(self, entries, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.running = folder, []
        self.waiting = [(name, self._read(name)) for name in entries]
        self.total, self.ended = len(entries), 0

    def _path(self, name):
        return self.folder / f"{name}.json"

    def _read(self, name):
        return json.loads(self._path(name).read_text()) if self._path(name).exists() else {}

    def conclude(self, process, late, limit):
        """Keeps what a process gave. One that did not end well failed in a cell, and goes on behind it."""
        self.running.remove(process)
        entry, results = process.entries[process.at]
        if process.broken:
            raise RuntimeError(f"conformance itself failed at {entry}, {process.cell}:\n{process.broken}")
        if not process.ended_well:
            why = f"did not end in {limit} s" if late else f"the process died of signal {process.signal}"
            if process.cell is None:
                raise RuntimeError(f"conformance: {entry}: {why} while its samples were made")
            print(f"{entry}, {process.cell}: {why}", flush=True)
            results[process.cell] = _failure(why)
            self.waiting[:0] = process.entries[process.at :]
        for name, found in process.entries[: process.at + 1]:
            self._path(name).write_text(json.dumps(found, indent=1, sort_keys=True))
        before, self.ended = self.ended, self.ended + process.at + process.ended_well
        if self.ended // 50 > before // 50:
            print(f"{self.ended} of {self.total} entries", flush=True)

    def begin(self, most, jobs, *how):
        """A process for the next entries: fewer towards the end, so that all processes end together."""
        count = max(1, min(most, len(self.waiting) // (2 * jobs)))
        self.running.append(_Process(self.waiting[:count], *how))
        del self.waiting[:count]


def run(entries, rows, backends, count, jobs, limit, folder, together=1):
    """Runs the entries, `jobs` processes at a time, `limit` seconds for an entry, `together` entries in a process.

    That may be more than one where no library leaves behind in a process what another entry would meet.

    Results go to folder/ENTRY.json. Cells that are there already are not run again.
    """
    for backend in backends:
        backend.warm_up()
    # What is there already would be copied into each process by its first collection.
    gc.collect()
    gc.freeze()
    state = _Run(entries, folder)
    try:
        while state.waiting or state.running:
            while state.waiting and len(state.running) < jobs:
                state.begin(together, jobs, rows, backends, count)
            multiprocessing.connection.wait([process.connection for process in state.running], timeout=1)
            for process in list(state.running):
                late = time.monotonic() - process.began > limit
                if late:
                    process.stop()
                if late or not process.read():
                    state.conclude(process, late, limit)
    finally:
        for process in state.running:
            process.stop()
