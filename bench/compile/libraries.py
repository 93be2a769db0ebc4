"""The libraries that `bench/peers` puts beside each other: operators, transforms and compilers under the same names."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import tempfile

import numpy as np
import torch
import torch.func
import torch_tower


class _Called:
    """Functions of arrays, called from Python."""

    def calls(self, row):
        """The function of a row, compiled; it takes the number of calls to make one after the other."""
        f, given = self.compile(row.make(self)), [self.array(values) for values in row.arguments]

        def run(calls):
            state = given[0]
            for _ in range(calls):
                result = f(state, *given[1:])
                state = result[0] if isinstance(result, (tuple, list)) else result
            return self.ready(result)

        return run

    def ready(self, result):
        return result


class _OfTorch(_Called):
    abs, dot, exp, expm1, asinh, log, sin, sqrt, tanh = (
        staticmethod(getattr(torch, name)) for name in "abs dot exp expm1 asinh log sin sqrt tanh".split()
    )
    relu, log_softmax, logsumexp, hstack, ones_like, roll, where = (
        staticmethod(getattr(torch, name)) for name in "relu log_softmax logsumexp hstack ones_like roll where".split()
    )
    linear, solve = staticmethod(torch.nn.functional.linear), staticmethod(torch.linalg.solve)
    take = staticmethod(torch.take_along_dim)

    def __init__(self, transforms):
        for name in "vmap grad jacfwd jacrev jvp".split():
            setattr(self, name, getattr(transforms, name))

    @staticmethod
    def array(values):
        return torch.tensor(values)

    @staticmethod
    def repeat(count, step, state):
        for _ in range(count):
            state = step(state)
        return state


class Tower(_OfTorch):
    name = "Tower"
    version = torch_tower.__version__
    first_calls = 2  # the first call traces, the second compiles

    def __init__(self):
        super().__init__(torch_tower)

    def compile(self, function):
        return torch_tower.compile(function)


class Inductor(_OfTorch):
    name = "torch.compile"
    version = torch.__version__
    first_calls = 1

    def __init__(self):
        super().__init__(torch.func)

    def compile(self, function):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, dynamic=False)


class Jax(_Called):
    name = "JAX"
    first_calls = 1

    def __init__(self):
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        self.version, self.jax = jax.__version__, jax
        for name in "abs dot exp expm1 log sin sqrt tanh hstack ones_like roll where".split():
            setattr(self, name, getattr(jax.numpy, name))
        for name in "vmap grad jacfwd jacrev jvp".split():
            setattr(self, name, getattr(jax, name))
        self.relu, self.log_softmax, self.logsumexp = jax.nn.relu, jax.nn.log_softmax, jax.nn.logsumexp
        self.array, self.asinh = jax.numpy.asarray, jax.numpy.arcsinh
        self.solve, self.take = jax.numpy.linalg.solve, jax.numpy.take_along_axis
        self.ready = jax.block_until_ready

    @staticmethod
    def linear(x, weight, bias):
        return x @ weight.T + bias

    def repeat(self, count, step, state):
        """As it is written there: unrolled, hundreds of steps take minutes to compile."""
        return self.jax.lax.scan(lambda state, _: (step(state), None), state, length=count)[0]

    def compile(self, function):
        return self.jax.jit(function)


class Casadi:
    """C code of one material point, generated and compiled, called by a loop in C."""

    name = "CasADi"
    first_calls = 1

    LOOP = """
    int correct(const double** given, double* x, double* norm, long points, long corrections) {
      static double work[WORK];
      static casadi_int integers[INTEGERS];
      const double* arguments[ARGUMENTS];
      double* results[RESULTS];
      for (long n = 0; n < points; ++n) {
        for (int k = 0; k < 7; ++k) x[7 * n + k] = given[0][7 * n + k];
        for (long i = 0; i < corrections; ++i) {
          const double* inputs[] = {x + 7 * n, given[1] + 6 * n, given[2] + n, given[3] + 6 * n, given[4] + n};
          for (int k = 0; k < 5; ++k) arguments[k] = inputs[k];
          double corrected[7];
          results[0] = corrected;
          results[1] = norm + n;
          if (point(arguments, results, integers, work, 0)) return 1;
          for (int k = 0; k < 7; ++k) x[7 * n + k] = corrected[k];
        }
      }
      return 0;
    }
    """

    def __init__(self):
        import casadi
        from native import casadi_functions

        self.casadi, self.version, self.functions = casadi, casadi.__version__, casadi_functions

    def calls(self, row):
        casadi = self.casadi
        function = self.functions.newton("point", row.material)
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "point.c")
            generator = casadi.CodeGenerator(source.name)
            generator.add(function)
            generator.generate(f"{folder}/")
            source.write_text(source.read_text() + self.LOOP)
            sizes = {"ARGUMENTS": "arg", "RESULTS": "res", "INTEGERS": "iw", "WORK": "w"}
            defined = [f"-D{name}={getattr(function, f'sz_{size}')() + 1}" for name, size in sizes.items()]
            library = source.with_suffix(".so")
            compiler = [os.environ.get("CC", "gcc"), "-O3", "-march=native", "-shared", "-fPIC", *defined]
            subprocess.run([*compiler, str(source), "-o", str(library), "-lm"], check=True)
            correct = ctypes.CDLL(str(library)).correct
        pointer = ctypes.POINTER(ctypes.c_double)

        given = (pointer * 5)(*(array.ctypes.data_as(pointer) for array in row.arguments))
        points = len(row.arguments[0])
        x, norm = np.empty((points, 7)), np.empty(points)
        out = x.ctypes.data_as(pointer), norm.ctypes.data_as(pointer)

        def run(calls):
            if correct(given, *out, ctypes.c_long(points), ctypes.c_long(calls)):
                raise RuntimeError("CasADi's function failed")
            return x, norm

        return run
