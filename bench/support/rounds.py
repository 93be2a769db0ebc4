"""What benchmarks that put libraries beside each other from Python have in common."""

import time

import numpy as np


def arrays(result):
    return [np.asarray(part) for part in (result if isinstance(result, (tuple, list)) else [result])]


def apart(result, expected):
    """How far two results are from each other, relative to their norm."""
    a, b = (np.concatenate([part.reshape(-1) for part in parts]) for parts in (result, expected))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def least_times(calls, rounds, seconds):
    """Processor time of each of the functions, the least of `rounds` in which they take turns, of so many seconds."""
    counts = []
    for call in calls:
        start = time.process_time()
        call()
        counts.append(max(1, int(seconds / max(time.process_time() - start, 1e-7))))
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, (call, count) in enumerate(zip(calls, counts)):
            start = time.process_time()
            for _ in range(count):
                call()
            least[i] = min(least[i], (time.process_time() - start) / count)
    return least


def in_unit(seconds):
    for unit, size in ("s", 1), ("ms", 1e-3), ("µs", 1e-6):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def print_table(title, columns, lines):
    print(f"\n| {title} | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for name, cells in lines.items():
        print(f"| {name} | {' | '.join(cells.get(column, '') for column in columns)} |")
