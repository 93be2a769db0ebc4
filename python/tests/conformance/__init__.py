"""Holds function transforms against PyTorch's own operator database.

Every CPU entry of `op_db` goes through every row of `rows.ROWS` (vmap, vjp, jvp and their nestings), for Tower and for
torch.func, and is judged by oracles that neither of them wrote. Read in this order:

  samples.py    what an entry is called with: examples that differ from each other
  rows.py       the table of transforms, and how each is applied and judged
  mistakes.py   calls that are wrong: a transform throws where the plain call does
  oracles.py    the loop, LibTorch's autograd, adjointness, finite differences
  worker.py     one entry through all rows; outcomes
  supervise.py  a process and a time limit for each entry
  report.py     docs/conformance.md, the work list, the gate of `--fast`

`python3 -m conformance --help` (from python/tests) or `script/conformance` runs it.
"""
