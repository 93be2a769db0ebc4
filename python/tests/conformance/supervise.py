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
    """An entry in a forked process. `results` fills as cells finish; `cell` is the one it is at."""

    def __init__(self, entry, rows, backends, count, results):
        self.entry, self.results, self.cell = entry, results, None
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
        done = {tuple(key.split("|")) for key in self.results}
        worker.run(self.entry, rows, backends, count, done, lambda *message: pipe.send(message))
        pipe.send(("end",))

    def read(self):
        """Takes what the process sent. False when it has ended, well or not."""
        try:
            while self.connection.poll():
                kind, *rest = self.connection.recv()
                if kind == "end":
                    self.ended_well = True
                elif kind == "at":
                    self.cell = "|".join(rest) or None
                elif kind == "broken":
                    self.broken = rest[0]
                else:
                    self.results[self.cell] = rest[0]
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
        """Keeps what a process gave. One that did not end well failed in its cell, and goes on behind it."""
        self.running.remove(process)
        if process.broken:
            raise RuntimeError(f"conformance itself failed at {process.entry}, {process.cell}:\n{process.broken}")
        self.ended += process.ended_well
        if not process.ended_well:
            why = f"did not end in {limit} s" if late else f"the process died of signal {process.signal}"
            if process.cell is None:
                raise RuntimeError(f"conformance: {process.entry}: {why} while its samples were made")
            print(f"{process.entry}, {process.cell}: {why}", flush=True)
            process.results[process.cell] = _failure(why)
            self.waiting.insert(0, (process.entry, process.results))
        self._path(process.entry).write_text(json.dumps(process.results, indent=1, sort_keys=True))
        if process.ended_well and self.ended % 50 == 0:
            print(f"{self.ended} of {self.total} entries", flush=True)


def run(entries, rows, backends, count, jobs, limit, folder):
    """Runs the entries, `jobs` at a time, each process `limit` seconds at most.

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
                name, results = state.waiting.pop(0)
                state.running.append(_Process(name, rows, backends, count, results))
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
