"""Tower's function transforms: torch.func's calls on Tower's engine.

    from torch_tower import vmap, grad

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

Every name of torch.func that transforms functions is here with the same signature and meaning; beyond them there are
`compile`, `load`, `export_c`, `graph`, `hvp`, solvers (`linear_solve`, `cg`, `bicgstab`, `gmres`, `implicit_root`,
`fixed_point`), differential equations (`odeint`, `odeint_until`), fits and minima (`least_squares`,
`BlockLeastSquares`, `minimize`), `load_exported` for models that torch.export.save wrote, sparse derivatives
(`jacobian_sparsity`, `hessian_sparsity`, `sparse_jacobian`, `sparse_hessian`), Taylor mode (`jet`,
`derivatives_along`, `laplacian`, `biharmonic`, `differential_operator`, `stochastic_laplacian`,
`stochastic_biharmonic`), control flow (`cond`, `while_loop`, `try_while_loop`, `fori_loop`, `scan`,
`associative_scan`, `checkpoint`), `check_grads`, `coverage`, `explain`, `set_fallback_is_error`, `linear_backward`,
`register_sparsity`, `register_higher_order`, `is_batched`, `is_tracked`, `register_container` and
`register_tensor_subclass`, named axes and processes (`Mesh`, `psum`, …), and `memory`, which
bounds and empties the cache of temporaries.
"""

from . import _fits

_fits.check()

from torch.func import functional_call, stack_module_state  # noqa: E402

from . import (  # noqa: E402
    _C,
    _checkpoints,
    _compile,
    _custom_ops,
    _higher_order,
    _indexing,
    _reading,
    _torch_higher_order,
    memory,
)
from ._block_fits import BlockFit, BlockLeastSquares, FitTerm, FitUnknowns  # noqa: E402
from ._compiled import compile, export_c, graph, load  # noqa: E402
from ._containers import register_container, register_tensor_subclass  # noqa: E402
from ._control_flow import (  # noqa: E402
    LoopResult,
    MaxStepsError,
    associative_scan,
    checkpoint,
    checkpoint_name,
    cond,
    fori_loop,
    scan,
    try_while_loop,
    while_loop,
)
from ._derivatives import grad, grad_and_value, hvp, jvp, linearize, vjp  # noqa: E402
from ._exported import ExportedModel, load_exported  # noqa: E402
from ._functions import linear_backward, register_sparsity  # noqa: E402
from ._higher_order import register_higher_order  # noqa: E402
from ._jacobians import hessian, jacfwd, jacrev, value_and_jacobian  # noqa: E402
from ._minima import (  # noqa: E402
    FitStatus,
    LeastSquaresFit,
    Minimum,
    MinimumStatus,
    least_squares,
    minimize,
)
from ._odes import OdeEventSolution, OdeSolution, OdeStatus, odeint, odeint_until  # noqa: E402
from ._processes import (  # noqa: E402
    Mesh,
    MeshError,
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    gather_across,
    part_of,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_scatter,
    sum_across,
)
from ._questions import is_batched, is_tracked  # noqa: E402
from ._solvers import (  # noqa: E402
    IterativeSolution,
    NoConvergenceError,
    bicgstab,
    cg,
    fixed_point,
    gmres,
    implicit_root,
    linear_solve,
)
from ._sparse import (  # noqa: E402
    SparseDerivative,
    Sparsity,
    hessian_sparsity,
    jacobian_sparsity,
    sparse_hessian,
    sparse_jacobian,
)
from ._taylor import (  # noqa: E402
    biharmonic,
    derivatives_along,
    differential_operator,
    jet,
    laplacian,
    stochastic_biharmonic,
    stochastic_laplacian,
)
from ._tools import CoverageRow, check_grads, coverage, explain, set_fallback_is_error  # noqa: E402
from ._vmap import vmap  # noqa: E402

__version__ = _C.version

__all__ = [
    "BlockFit",
    "BlockLeastSquares",
    "CoverageRow",
    "ExportedModel",
    "FitStatus",
    "FitTerm",
    "FitUnknowns",
    "IterativeSolution",
    "LeastSquaresFit",
    "LoopResult",
    "MaxStepsError",
    "Mesh",
    "MeshError",
    "Minimum",
    "MinimumStatus",
    "NoConvergenceError",
    "OdeEventSolution",
    "OdeSolution",
    "OdeStatus",
    "SparseDerivative",
    "Sparsity",
    "all_gather",
    "all_to_all",
    "associative_scan",
    "axis_index",
    "axis_size",
    "bicgstab",
    "biharmonic",
    "cg",
    "check_grads",
    "checkpoint",
    "checkpoint_name",
    "compile",
    "cond",
    "coverage",
    "derivatives_along",
    "differential_operator",
    "explain",
    "export_c",
    "fixed_point",
    "fori_loop",
    "functional_call",
    "gather_across",
    "gmres",
    "grad",
    "grad_and_value",
    "graph",
    "hessian",
    "hessian_sparsity",
    "hvp",
    "implicit_root",
    "is_batched",
    "is_tracked",
    "jacfwd",
    "jacobian_sparsity",
    "jacrev",
    "jet",
    "jvp",
    "laplacian",
    "least_squares",
    "linear_backward",
    "linear_solve",
    "linearize",
    "load",
    "load_exported",
    "memory",
    "minimize",
    "odeint",
    "odeint_until",
    "part_of",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "register_container",
    "register_higher_order",
    "register_sparsity",
    "register_tensor_subclass",
    "scan",
    "set_fallback_is_error",
    "sparse_hessian",
    "sparse_jacobian",
    "stack_module_state",
    "stochastic_biharmonic",
    "stochastic_laplacian",
    "sum_across",
    "try_while_loop",
    "value_and_jacobian",
    "vjp",
    "vmap",
    "while_loop",
]

# Nothing of torch is replaced: see python/src/hooks.cpp.
_C.on_new_operators(_custom_ops.register_new)
_C.install_hooks(
    select=_indexing.select,
    put=_indexing.put,
    show=_reading.show,
    check_readable=_reading.check_readable,
    to_list=_reading.to_list,
    new_tensor=_reading.new_tensor,
    numbers=_reading.numbers,
    no_grad=_reading.no_grad,
    apply=_checkpoints.apply,
    begin_backward=_reading.differentiable_by_torch,
    begin_compiled=_compile.begin_inside,
    find_kernel=_higher_order.find_kernel,
    call_at_once=_higher_order.call_at_once,
    called_at_once=_torch_higher_order.AT_ONCE,
    save_argument=_checkpoints.save_argument,
    begin_hooks=_checkpoints.begin_hooks,
)
