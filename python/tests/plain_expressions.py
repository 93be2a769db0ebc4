"""Expressions of plain torch, and what they give: test_import.py runs this with `import torch_tower` and without.

Prints a dictionary from expressions to texts.
"""

import contextlib
import copy
import io
import json
import pickle
import re
import sys
import warnings

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn

warnings.simplefilter("ignore")


class Logged(torch.Tensor):
    """Tells its __torch_function__ by the name of each call."""

    calls: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(torch.overrides.resolve_name(func) or func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


METHODS = ["__getitem__", "__setitem__", "__repr__", "__len__", "numpy", "new_tensor", "tolist", "sum", "add"]


def table():
    """What a library of subclasses fills with the functions that it overrides."""
    return {getattr(torch.Tensor, name): name for name in METHODS}


BEFORE = table()

if "--import" in sys.argv:
    import torch_tower

    torch_tower.vmap(torch_tower.grad(torch.sin))(torch.ones(2))

AFTER = table()


def subclass(handled):
    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                result = func(*args, **(kwargs or {}))
            return (handled.get(func, "not handled"), str(result))

    return Subclass


class Late(torch.Tensor):
    pass


class Indexed(torch.Tensor):
    def __getitem__(self, index):
        return "mine", super().__getitem__(index)

    def __setitem__(self, index, value):
        super().__setitem__(index, value * 2)

    def __repr__(self):
        return "Indexed of " + super().__repr__()


class Plain:
    """Has a tensor inside, and what torch's protocols ask for."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func.__name__


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        names.append(torch.overrides.resolve_name(func) or func.__name__)
        return func(*args, **(kwargs or {}))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor=2):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, power=3):
        return x**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.power = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x ** (ctx.power - 1), None

    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent


@torch.library.custom_op("plain_expressions::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


def assigned(tensor, index, value):
    tensor[index] = value
    return tensor


def raised(function, *args):
    function(*args)


def gradient(function, *args):
    args = [a.detach().clone().requires_grad_() for a in args]
    function(*args).sum().backward()
    return [a.grad for a in args]


def seen_by_mode(function):
    names.clear()
    with Mode():
        function()
    return list(names)


def calls_of(function):
    Logged.calls.clear()
    function()
    return list(Logged.calls)


def printed(*values):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print(*values)
    return out.getvalue()


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def replaced(name, method, function):
    """What `function` gives while a library has put its own method into torch.Tensor."""
    original = torch.Tensor.__dict__.get(name)
    setattr(torch.Tensor, name, method)
    try:
        return function()
    finally:
        if original is None:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, original)


def traced(function):
    graph = torch.fx.symbolic_trace(function)
    return graph.code


def compiled(function, *args, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", **options)(*args)


def nested():
    return torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)])


def jagged():
    return torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)], layout=torch.jagged)


def masked():
    return torch.masked.masked_tensor(torch.arange(4.0), torch.tensor([True, False, True, False]))


names: list = []
TENSORS = {
    "z": "torch.tensor(2)",
    "v": "torch.arange(5.0)",
    "m": "torch.arange(12).reshape(3, 4)",
    "c": "torch.arange(24.0).reshape(2, 3, 4)",
    "e": "torch.empty(0, 3)",
}
INDICES = [
    "0", "-1", "True", "None", "...", "()", "slice(None)", "slice(1, None, 2)", "slice(None, None, -1)", "[0, 1]", "[True, False]",
    "(0, 1)", "(0, ...)", "(..., 0)", "(None, 0)", "(slice(0, 2), 0)", "(0, slice(0, 2))", "([0, 1], [1, 0])", "([0], slice(None))",
    "torch.tensor(1)", "torch.tensor([0, 1])", "torch.tensor([[0], [1]])", "torch.tensor(True)", "torch.tensor([], dtype=torch.long)",
    "torch.tensor(1, dtype=torch.uint8)", "np.int64(1)", "np.array([0, 1])", "(torch.tensor(0), torch.tensor(1))", "[torch.tensor(0), torch.tensor(1)]",
    "[[torch.tensor(0), torch.tensor(1)], [torch.tensor(1), torch.tensor(0)]]", "1.0", "'a'", "range(2)", "10", "(0, 0, 0, 0)", "{}",
]  # fmt: skip
ELEMENTS = [
    "2.0", "torch.tensor(2.0)", "torch.tensor([2.0])", "torch.tensor([1.0, 2.0])", "[torch.tensor(2.0)]", "[torch.tensor([2.0])]", "np.float32(2)",
    "np.ones(2)", "[np.ones(2)]", "(torch.tensor(1), torch.tensor(2.5))", "[[torch.tensor(1)], [torch.tensor(2)]]", "[[1, torch.tensor(2)]]",
    "[torch.tensor(1.0, requires_grad=True)]", "nn.Parameter(torch.ones(2))", "[nn.Parameter(torch.tensor(1.0))]", "range(3)", "[]", "[[]]", "True",
    "[True, torch.tensor(False)]", "[1j, torch.tensor(2)]", "torch.ones(1).as_subclass(Late)", "[torch.tensor(3.0).as_subclass(Late)]",
    "[torch.ones(2), torch.ones(2)]", "[torch.ones(2), 1.0]", "'text'", "None", "[None]", "{}",
]  # fmt: skip
CONSTRUCTORS = [
    "torch.tensor({})", "torch.as_tensor({})", "torch.asarray({})", "torch.Tensor([{}])", "torch.ones(2).new_tensor({})", "torch.ones(2).new({})",
    "torch.tensor([{0}, {0}])", "torch.LongTensor([{}])", "torch.ones(2, dtype=torch.long).new_tensor({})", "np.asarray({})", "torch.tensor({}, dtype=torch.int32)",
]  # fmt: skip
OTHERS = """
v.numpy() | m.numpy() | m.T.numpy() | v.clone().requires_grad_().numpy() | v.clone().requires_grad_().numpy(force=True)
torch.ones(2, dtype=torch.cfloat).conj().numpy() | torch.ones(2, dtype=torch.cfloat).conj().numpy(force=True) | torch.ones(2, device="meta").numpy()
np.asarray(v) | np.array(m) | np.add(v, 1) | np.sin(v) | v.__array__() | v.__array__(np.float64) | torch.from_numpy(np.ones(2)) | v.numpy(1) | v.numpy(forced=True)
v.tolist() | m.tolist() | z.tolist() | z.item() | float(z) | int(z) | bool(z) | complex(z) | list(v) | len(v) | len(z) | tuple(m) | [*m[0]] | iter(v).__class__.__name__
z.__index__() | [1, 2, 3][z] | range(z) | "ab" * z | list(reversed(v)) | 2.0 in v | z in m | max(v) | sum(v) | sorted(v) | dict(enumerate(v)) | list(zip(v, m)) | any(v) | map(float, v).__next__()
repr(v) | str(v) | format(v) | f"{v}" | f"{z}" | f"{z:.2f}" | f"{v!r:>40}" | "%s" % v | printed(v) | printed([v, {"a": m}], (z,)) | repr(nn.Parameter(v)) | str([nn.Parameter(v)]) | v.__repr__() | v.__str__()
repr(torch.ones(2, device="meta")) | repr(v.to_sparse()) | repr(torch.eye(2).to_sparse_csr()) | repr(torch.ones(1000)) | repr(v.requires_grad_()) | repr((v.requires_grad_() * 2)) | repr(v.as_subclass(Late)) | repr(v.as_subclass(Indexed))
repr(torch.ones(2, dtype=torch.cfloat)) | repr(torch.quantize_per_tensor(v, 0.1, 0, torch.quint8)) | repr(nn.Linear(2, 2).state_dict().keys()) | torch.Tensor.__repr__(v) | torch.Tensor.__repr__(v, tensor_contents="[...]")
torch.set_printoptions(precision=2), repr(v / 3), torch.set_printoptions(profile="default") | repr(torch.tensor([])) | repr(torch.randn(0, 2)) | repr(torch.tensor(float("nan"))) | repr(nn.Buffer(v)) | repr(nn.UninitializedParameter())
m[[z - 1, z - 2], [z, z]] | v[z] | v[z, None] | m[z, z] | m[z - 2 : z] | v[[z, z]] | assigned(v, z, 7.0) | assigned(m, ([z - 1, z - 2], [z, z]), 7) | assigned(v, [z], [9.0]) | assigned(v, v > 2, -1.0) | assigned(m, (..., z), m[0, :3])
torch.Tensor.__getitem__(v, 1) | torch.Tensor.__setitem__(v, 1, 2.0) | v.__getitem__(slice(2)) | v.__setitem__(0, 9.0) | v.__delitem__(0) | raised(lambda: v.__getitem__()) | raised(lambda: v.__setitem__(1)) | torch.Tensor.__getitem__(1, 2) | torch._C.TensorBase.__getitem__(v, 1)
v.as_subclass(Indexed)[1] | v.as_subclass(Indexed)[[z, z]] | assigned(v.as_subclass(Indexed), 1, 3.0).tolist() | v.as_subclass(Late)[1:] | assigned(v.as_subclass(Late), 0, 5.0) | nn.Parameter(v)[0] | type(nn.Parameter(v)[0:1]).__name__
assigned(nn.Parameter(v), 0, 1.0) | assigned(nn.Parameter(v).detach(), 0, 1.0) | exec("del v[0]") | exec("v[0] += 3", dict(v=v)) or v | v[0].data_ptr() == v.data_ptr() | v[1:]._base is v | v.unbind()[1]._base is v
torch.ops.aten.select.int(v, 0, 1) | torch.jit.script(lambda_free)(v) | hasattr(torch.Tensor, "__index__") | isinstance(v, __import__("collections").abc.Sequence) | __import__("operator").index(z) | __import__("operator").getitem(v, 1) | __import__("operator").length_hint(v)
__import__("bisect").bisect(v, 2) | __import__("struct").pack("f", z) | memoryview(v.numpy()).shape | bytes(torch.tensor([1, 2], dtype=torch.uint8)) | bytearray(torch.tensor([1, 2], dtype=torch.uint8)) | __import__("array").array("f", v) | __import__("statistics").mean(v)
__import__("random").Random(0).choice(v) | __import__("random").Random(0).sample(v, 1) | __import__("random").Random(0).shuffle(v) or v | __import__("itertools").chain(v, v).__next__() | __import__("math").sqrt(z) | __import__("math").fsum(v) | __import__("json").dumps(v.tolist()) | __import__("heapq").nlargest(1, v)
v.new_tensor([z, z]) | v.new_tensor(v) | v.new_tensor(3, dtype=torch.int8, requires_grad=False) | v.new_tensor() | v.new_tensor([1.0], requires_grad=True) | v.new_tensor(data=[1, 2]) | v.new_tensor([1], device="meta").shape | v.new_tensor([[z], [z, z]])
copy.copy(v) | copy.deepcopy(v) | copy.deepcopy([v, v])[0].data_ptr() == v.data_ptr() | copy.deepcopy(nn.Parameter(v)) | copy.deepcopy(nn.Linear(2, 2)).weight.shape | copy.copy(v).data_ptr() == v.data_ptr() | copy.deepcopy(v.as_subclass(Late)) | copy.copy(v.as_subclass(Late))
pickle.loads(pickle.dumps(v)) | pickle.loads(pickle.dumps(nn.Parameter(v))) | pickle.loads(pickle.dumps(v.as_subclass(Late))) | pickle.loads(pickle.dumps([v, v])) | saved_and_loaded(v) | saved_and_loaded({"a": m[1:], "b": m}) | saved_and_loaded(v.as_subclass(Late)) | saved_and_loaded(nn.Linear(1, 1).state_dict()).keys()
pickle.dumps(torch.Tensor.__getitem__) | pickle.loads(pickle.dumps(torch.Tensor.numpy)) is torch.Tensor.numpy | pickle.dumps(torch.Tensor.new_tensor) | v.__reduce_ex__(2)[0].__name__ | v.__class__.__mro__ | v.__dir__().__len__() > 500
[table.get(getattr(torch.Tensor, name)) for table in (BEFORE, AFTER) for name in METHODS] | [v.as_subclass(subclass(t)).sum() for t in (BEFORE, AFTER)] | [v.as_subclass(subclass(t))[1] for t in (BEFORE, AFTER)] | [v.as_subclass(subclass(t)).numpy() for t in (BEFORE, AFTER)] | [v.as_subclass(subclass(t)).new_tensor([1.0]) for t in (BEFORE, AFTER)]
[v.as_subclass(subclass(t)).__setitem__(0, 1.0) for t in (BEFORE, AFTER)] | [v.as_subclass(subclass(t)).__repr__() for t in (BEFORE, AFTER)] | [v.as_subclass(subclass(t)).tolist() for t in (BEFORE, AFTER)] | calls_of(lambda: repr(v.as_subclass(Logged))) | calls_of(lambda: v.as_subclass(Logged)[0]) | calls_of(lambda: v.as_subclass(Logged).numpy())
calls_of(lambda: assigned(v.as_subclass(Logged), 0, 1.0)) | calls_of(lambda: v[v.as_subclass(Logged).long()]) | calls_of(lambda: v.as_subclass(Logged).new_tensor([1])) | calls_of(lambda: Double.apply(v.as_subclass(Logged))) | calls_of(lambda: len(v.as_subclass(Logged))) | calls_of(lambda: np.asarray(v.as_subclass(Logged)))
seen_by_mode(lambda: v[0]) | seen_by_mode(lambda: assigned(v, 0, 1.0)) | seen_by_mode(lambda: repr(v)) | seen_by_mode(lambda: v.numpy()) | seen_by_mode(lambda: v.new_tensor([1])) | seen_by_mode(lambda: torch.tensor([z])) | seen_by_mode(lambda: list(v)) | seen_by_mode(lambda: Double.apply(v)) | seen_by_mode(lambda: copy.deepcopy(v))
torch.add(v, Plain(1)) | v + Plain(1) | torch.Tensor.__getitem__(Plain(1), 0) | torch.sum(Plain(v)) | torch.overrides.has_torch_function((v,)) | torch.overrides.has_torch_function((v.as_subclass(Logged),)) | torch.overrides.is_tensor_like(Plain(1)) | torch.overrides.is_tensor_method_or_property(torch.Tensor.__getitem__)
[torch.overrides.resolve_name(getattr(torch.Tensor, name)) for name in METHODS] | sorted(torch.overrides.resolve_name(f) or f.__name__ for f in torch.overrides.get_testing_overrides()) | sorted(str(torch.overrides.resolve_name(f)) for f in torch.overrides.get_ignored_functions()) | {k: len(f) for k, f in torch.overrides.get_overridable_functions().items() if "torch" not in str(k)}
torch.Tensor.__getitem__ in torch.overrides.get_testing_overrides() | torch.Tensor.numpy in torch.overrides.get_testing_overrides() | [type(getattr(torch.Tensor, n)).__name__ for n in METHODS] | [getattr(torch.Tensor, n).__qualname__ for n in METHODS] | [getattr(torch.Tensor, n).__doc__ for n in METHODS] | type(torch.autograd.Function.apply).__name__
[getattr(getattr(torch.Tensor, n), "__objclass__", None) for n in METHODS] | [getattr(torch.Tensor, n) is getattr(nn.Parameter, n) for n in METHODS] | [n in torch.Tensor.__dict__ for n in METHODS] | [n in torch._C.TensorBase.__dict__ for n in METHODS] | __import__("inspect").signature(torch.autograd.Function.apply) | torch.autograd.Function.apply.__func__.__qualname__
Double.apply(v) | Double.apply(v, 3) | gradient(Double.apply, v) | gradient(lambda x: Double.apply(x, 5), v) | Cube.apply(v) | Cube.apply(v, 2) | gradient(Cube.apply, v) | gradient(lambda x: Cube.apply(x, power=2), v) | Double.apply(v, factor=2) | Double.apply() | Cube.apply() | Double(v) | Double.apply([v]) | type(Double.apply(v.clone().requires_grad_()).grad_fn).__name__
torch.func.vmap(Cube.apply, (0, None))(v, 3) | torch.func.grad(lambda x: Cube.apply(x, 3).sum())(v) | torch.func.jvp(lambda x: Cube.apply(x, 3), (v,), (v,)) | torch.func.grad(lambda x: Double.apply(x).sum())(v) | torch.autograd.gradcheck(lambda x: Double.apply(x), v.double().requires_grad_()) | torch.autograd.functional.jacobian(lambda x: x**2, v) | torch.autograd.functional.jacobian(torch.sin, v, strategy="forward-mode", vectorize=True)
torch.func.vmap(lambda x: x[0])(m) | torch.func.vmap(lambda x, i: x[i], (0, None))(m, torch.tensor(1)) | torch.func.vmap(lambda x, i: x[i])(m, torch.tensor([0, 1, 2])) | torch.func.grad(lambda x: x[1] * x[2])(v) | torch.func.vmap(lambda x: (repr(x), x * 2)[1])(v) | torch.func.hessian(lambda x: (x**3).sum())(v) | torch.func.jacfwd(torch.sin)(v) | torch.func.vmap(torch.func.grad(torch.sin))(v) | torch.func.linearize(torch.sin, v)[1](v)
torch.utils.checkpoint.checkpoint(torch.sin, v.clone().requires_grad_(), use_reentrant=True) | gradient(lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True), v) | gradient(lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False), v) | gradient(lambda x: x[1:] * x[:-1], v) | gradient(lambda x: x[[0, 0, 1]], v) | gradient(lambda x: assigned(x * 1, 0, 2.0), v) | torch.autograd.grad([(v.requires_grad_() * 2).sum()], [v])
scaled(v, 2.0) | gradient(lambda x: scaled(x, 3.0), v) | torch.library.opcheck(scaled, (v, 2.0)) | torch.ops.plain_expressions.scaled(v, 2.0) | torch.func.grad(lambda x: scaled(x, 3.0).sum())(v) | torch.func.vmap(lambda x: scaled(x, 3.0))(v) | scaled._lib.ns | sorted(op for op in torch._library.custom_ops.OPDEFS if "plain" in op)
traced(lambda x: x[0] + x[1:3].sum()) | traced(lambda x: x.numpy()) | traced(lambda x: torch.tensor([1, 2]) + x.new_tensor([1])) | traced(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) | traced(lambda x, i: x[i, None, ..., 0]) | traced(lambda x: repr(x)) | traced(lambda x: len(x)) | torch.fx.symbolic_trace(lambda x: x[0] * 2)(v) | torch.fx.experimental.proxy_tensor.make_fx(lambda x: x[0] * x.sum())(v).code
compiled(lambda x: x[0] + x[1:].sum(), v) | compiled(lambda x: x[x > 1] * 2, v) | compiled(lambda x, i: x[i], v, z) | compiled(lambda x: assigned(x.clone(), 0, 3.0), v) | compiled(lambda x: torch.tensor([x.sum(), x.sum()]), v) | compiled(lambda x: x.new_tensor([1.0, 2.0]) + x[:2], v) | compiled(lambda x: (str(x), x * 2), v) | compiled(lambda x: torch.from_numpy(np.sin(x.numpy())) + 1, v)
gradient(lambda x: compiled(Double.apply, x), v) | gradient(lambda x: compiled(Cube.apply, x), v) | compiled(nn.Linear(5, 1), v).shape | compiled(lambda x: x.sin().cos(), v, fullgraph=True) | compiled(lambda x: scaled(x, 2.0), v, fullgraph=True) | compiled(lambda x: (print(), x + 1)[1], v) | compiled(lambda x: (torch._dynamo.graph_break(), x + 1)[1], v) | compiled(lambda x: (torch._dynamo.graph_break(), x + 1)[1], v, fullgraph=True) | compiled(torch.func.vmap(torch.sin), v) | compiled(lambda x: x.as_subclass(Late)[0], v)
nested() | nested()[0] | nested()[1, 1:] | nested().unbind()[1] | repr(nested()) | len(nested()) | nested() * 2 | copy.deepcopy(nested()) | nested().to_padded_tensor(0.0) | list(nested()) | jagged() | jagged()[1] | repr(jagged()) | (jagged() * 2).values() | copy.deepcopy(jagged()).values() | jagged()[0:1] | str(nested().numpy) != "" | nested().numpy() | torch.nested.as_nested_tensor([v, v[:2]])[0]
masked() | masked()[0] | masked()[1:] | repr(masked()) | masked().sum() | masked() + masked() | copy.deepcopy(masked()) | str(masked()[1]) | torch.masked.as_masked_tensor(v, v > 1)[1:3] | len(masked()) | masked().tolist() | masked().numpy() | torch.masked.masked_tensor(v, v > 1, requires_grad=True)[0]
replaced("__repr__", lambda self: "theirs", lambda: (repr(v), str([v]), repr(nn.Parameter(v)), repr(v.as_subclass(Late)), f"{v}")) | replaced("__getitem__", lambda self, i: ("theirs", i), lambda: (v[0], nn.Parameter(v)[z], v.as_subclass(Late)[1:], v.as_subclass(Indexed)[0])) | replaced("__setitem__", lambda self, i, x: names.append("theirs"), lambda: (assigned(v, 0, 5.0), list(names)))
replaced("numpy", lambda self: "theirs", lambda: (v.numpy(), np.asarray(v).shape)) | replaced("new_tensor", lambda self, data: "theirs", lambda: v.new_tensor([1])) | replaced("__repr__", lambda self: "theirs", lambda: 1) or repr(v) | (replaced("__getitem__", lambda self, i: "theirs", lambda: 1), v[1]) | (replaced("__setitem__", lambda self, i, x: None, lambda: 1), assigned(v, 0, 8.0)) | replaced("__iter__", lambda self: iter([1]), lambda: list(v)) | replaced("__len__", lambda self: 3, lambda: len(v))
type("Fresh", (torch.Tensor,), {"__getitem__": lambda self, i: "fresh"})(v)[0] | type("Fresh", (Indexed,), {})(v)[0] | type("Fresh", (torch.Tensor,), {"__repr__": lambda self: "fresh"})(v) | str(type("Fresh", (torch.Tensor,), {"__str__": lambda self: "fresh"})(v)) | type("Fresh", (torch.Tensor, list), {}) | type("Fresh", (torch.Tensor,), {"__iter__": lambda self: iter([1])})(v).__iter__().__next__() | torch.tensor([type("Fresh", (torch.Tensor,), {})(z)])
nn.utils.parameters_to_vector([v, m.float()]) | torch.stack([v, v])[1] | torch.cat([m, m])[z] | torch.cartesian_prod(v[:2], v[:2]) | torch.vmap(lambda x: x + 1)(v) | torch.where(v > 2)[0] | torch.utils.data.default_collate([{"a": z}, {"a": z}]) | next(iter(torch.utils.data.DataLoader(v, batch_size=2))) | nn.functional.one_hot(z, 4)[z] | torch.utils._pytree.tree_map(lambda t: t[0], [v, m]) | torch.utils.dlpack.from_dlpack(v)[1] | torch.testing.assert_close(v, v.clone())
torch.testing.assert_close(v, v + 1) | (v == v).all() | v.equal(v) | torch.allclose(v, v) | torch.is_tensor(v) | v.storage().__getitem__(1) | list(v.untyped_storage())[:4] | v.storage().tolist() | nn.Embedding(3, 2)(torch.tensor([z])).shape | nn.ParameterList([v, v])[1] | nn.ModuleList([nn.ReLU()])[0] | torch.Size([z, z]) | torch.ones(z, z) | torch.ones([z, z]) | torch.zeros(2)[torch.zeros(2).long()] | v.expand(z, 5)[z - 1] | torch.arange(z) | torch.full((z,), z)
torch.linspace(0, 1, z) | v.view(z - 1, 5) | v.split([z, 3]) | v.narrow(0, z, 1) | v.repeat(z) | v.sum(dim=z - 2) | torch.nn.init.constant_(v, z) | v.fill_(z) | v.index_select(0, torch.tensor([z])) | torch.tensor(z) is z | torch.tensor(np.array([z, z])) | np.array([z, z]) | np.array([v, v]).shape | np.array(z) | np.stack([v, v]).shape | np.concatenate([v, v]).shape | np.mean(v) | np.ones(3)[z] | np.arange(4)[torch.tensor([0, 1])] | np.float32(1) * v | np.ones(5) * v | v * np.ones(5)
"""


def lambda_free(x: torch.Tensor):
    return x[0] + x[1:].sum()


def expressions():
    """Each with what it is about."""
    for name in TENSORS:
        for index in INDICES:
            yield f"{name}[{index}]"
            yield f"assigned({name}, {index}, 7)"
    for constructor in CONSTRUCTORS:
        for element in ELEMENTS:
            yield constructor.format(element)
    for line in OTHERS.strip().splitlines():
        yield from (expression.strip() for expression in line.split(" | "))


def text(value) -> str:
    if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, nn.Parameter) and not value.is_nested:
        about = f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.layout} {value.requires_grad}"
        plain = value.detach()
        return about if plain.is_meta else f"{about} {plain.cpu().to_dense().tolist()} {type(value.grad_fn).__name__}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(text, value))})"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {value.tolist()}"
    return f"{type(value).__name__} {value!r}"


def evaluated(expression: str) -> str:
    torch.manual_seed(0)
    names.clear()
    try:
        with torch.random.fork_rng():
            found = text(eval(expression, globals() | {name: eval(made) for name, made in TENSORS.items()}))
    except Exception as error:
        # LibTorch lists the kernels that there are: a fallback of Tower's is one of them.
        found = f"{type(error).__name__}: {error}".split(" is only available for these backends")[0]
    return re.sub(r"0x[0-9a-f]+|\bid=\d+|tmp\w+", "…", found)


if __name__ == "__main__":
    json.dump({expression: evaluated(expression) for expression in expressions()}, sys.stdout)
