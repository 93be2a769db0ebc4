"""script/new_operator, on the schemas of all operators of this LibTorch."""

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.cpu("programs of its own")
ROOT = Path(__file__).parents[2]
LOADER = SourceFileLoader("new_operator", str(ROOT / "script/new_operator"))


def in_dispatcher(schema):
    return torch._C._dispatch_has_kernel(str(schema).split("(")[0])


FUNCTIONAL = [
    s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::") and not s.is_mutable and in_dispatcher(s)
]


@pytest.fixture(scope="module")
def script():
    module = module_from_spec(spec_from_loader(LOADER.name, LOADER))
    LOADER.exec_module(module)
    return module


@pytest.fixture(scope="module")
def records(script):
    """{schema: the record that is printed for it}"""
    result = {}
    for schema in FUNCTIONAL:
        text = str(schema).removeprefix("aten::")
        name = text[: text.index("(")]
        shape = script.Shape(name.split(".")[0], script.arguments_of(text))
        result[text], _ = script.record(name.replace(".", "_"), shape)
    return result


def verbs_of(text):
    return set(re.findall(r"^ +\.(\w+)", text, re.M))


def test_arguments_are_those_of_the_schema(script):
    assert len(FUNCTIONAL) > 1000
    for schema in FUNCTIONAL:
        names = [a.name for a in script.arguments_of(str(schema).removeprefix("aten::"))]
        assert names == [a.name for a in schema.arguments], schema


def test_what_is_printed_are_verbs_and_facts_of_records(records):
    there = set(re.findall(r"^  Rule& (\w+)\(", (ROOT / "src/records/op.h").read_text(), re.M))
    facts = (ROOT / "src/core/facts.h").read_text()
    for schema, text in records.items():
        assert verbs_of(text) <= there, schema
        for fact in re.findall(r"(?:Moves|Depends)::(\w+)", text):
            assert re.search(rf"^  {fact}\b", facts, re.M), schema


def test_all_verbs_of_kernels_and_patterns_are_printed_for_some_operator(records):
    printed = set().union(*map(verbs_of, records.values()))
    assert printed >= {"element", "fold", "maps_rows", "moves", "contracts", "adds_contraction", "small", "depends"}


@pytest.mark.parametrize(
    "schema, lines",
    [
        ("sum.dim_IntList", [".along({1})", ".fold(over(1), ", ".depends(Depends::on_reduced)"]),
        ("_softmax", [".along({1})", ".maps_rows(over(1), ", ".depends(Depends::on_dim)"]),
        ("native_layer_norm", [".maps_rows(over_last(1), ", ".depends(Depends::on_last_dims)"]),
        ("addmm", ['.adds_contraction("mk,kn->mn")', ".linear<2>([](Ct<0> ct, const Tensor& self, const Tensor& mat1"]),
        ("mm", ['.contracts("mk,kn->mn")']),
        ("cat", [".moves(Moves::elements)", ".vjp<0>([](Ct<0> ct, const std::vector<Tensor>& tensors, int64_t dim) "]),
        ("view", [".moves(Moves::in_order)", ".inverse(", ".keeps_dims("]),
        ("threshold", [".pointwise()", ".element([](E self, E threshold, E value) ", ".derivative<0>("]),
        ("gather", [".linear<0>(", ".depends(Depends::on_moved)"]),
        ("linalg_inv_ex", [".batches_natively()", ".small(", ".depends(Depends::on_matrices)"]),
    ],
)
def test_the_verbs_fit_the_schema(records, schema, lines):
    [text] = [text for full, text in records.items() if full.startswith(schema + "(")]
    for line in lines:
        assert f"      {line}" in text
