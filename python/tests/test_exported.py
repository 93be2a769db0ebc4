"""Exported models, without the code that they were made of."""

import collections
import dataclasses
import subprocess
import sys

import pytest
import torch
import torch_tower
from torch.utils import _pytree as pytree
from torch_tower import grad, hessian, jacrev, vmap

pytestmark = pytest.mark.cpu("weights are loaded to the CPU")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def forward(self, x, options, *, pair, scale=2.0):
        y = self.net(x) * scale + options["shift"]
        return {"sum": y + pair[0] * pair[1], "rest": [x.shape[-1], None, (y,)]}


@pytest.fixture
def exported(tmp_path):
    torch.manual_seed(0)
    module = Model().double()
    args = (torch.randn(3).double(), {"shift": torch.randn(2).double()})
    kwargs = {"pair": (torch.randn(2).double(), torch.randn(2).double()), "scale": 2.0}
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, args, kwargs), path)
    return module, torch_tower.load_exported(path), args, kwargs


def test_it_is_called_as_the_function_that_was_exported(exported):
    module, model, args, kwargs = exported
    expected, got = module(*args, **kwargs), model(*args, **kwargs)
    assert list(got) == ["sum", "rest"]
    assert got["rest"][:2] == [3, None]
    torch.testing.assert_close(got["sum"], expected["sum"])
    torch.testing.assert_close(got["rest"][2][0], expected["rest"][2][0])


def test_it_is_transformed(exported):
    module, model, args, kwargs = exported

    def loss(f):
        return lambda x: f(x, *args[1:], **kwargs)["sum"].square().sum()

    xs = torch.randn(5, 3).double()
    torch.testing.assert_close(vmap(grad(loss(model)))(xs), vmap(grad(loss(module)))(xs))
    torch.testing.assert_close(hessian(loss(model))(xs[0]), hessian(loss(module))(xs[0]))


def test_its_weights_are_given(exported):
    module, model, args, kwargs = exported
    weights = dict(module.named_parameters())
    assert model.parameters().keys() == weights.keys()
    twice = {name: 2 * w.detach() for name, w in weights.items()}
    got = jacrev(lambda w: model.call(w, *args, **kwargs)["sum"])(twice)
    expected = jacrev(lambda w: torch.func.functional_call(module, w, args, kwargs)["sum"])(twice)
    for name in weights:
        torch.testing.assert_close(got[name], expected[name])


def test_other_arguments_are_refused(exported):
    _, model, args, kwargs = exported
    with pytest.raises(TypeError, match=r"it is \(x: Double \[3\]"):
        model(*args)
    with pytest.raises(TypeError, match="pair is no tuple of 2"):
        model(*args, pair=(args[0],), scale=2.0)
    with pytest.raises(Exception, match="scale is 3.0, and the model was exported for 2.0"):
        model(*args, pair=kwargs["pair"], scale=3.0)


@dataclasses.dataclass
class Molecule:
    places: torch.Tensor
    charges: torch.Tensor | None
    masses: torch.Tensor


Energies = collections.namedtuple("Energies", "kinetic potential")


class OfFields(torch.nn.Module):
    def forward(self, molecule, before):
        shift = before.kinetic if molecule.charges is None else molecule.charges.sum()
        return Energies(molecule.masses.sum() * shift, molecule.places.square().sum() * before.potential), molecule


def test_fields_have_their_names(tmp_path):
    if Molecule not in pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(Molecule, serialized_type_name="tests.Molecule")
        pytree._register_namedtuple(Energies, serialized_type_name="tests.Energies")

    def draw():
        x = torch.randn(4, 3).double()
        return Molecule(x[0], None, x[1].exp()), Energies(x[2, 0], x[2, 1])

    module = OfFields()
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, draw()), path)
    model = torch_tower.load_exported(path)
    of_energies = "Energies(kinetic: Double [], potential: Double [])"
    of_molecule = "Molecule(places: Double [3], masses: Double [3])"
    assert model.signature() == f"(molecule: {of_molecule}, before: {of_energies}) -> ({of_energies}, {of_molecule})"

    molecule, before = draw()
    expected, (energies, same) = module(molecule, before)[0], model(molecule, before)
    torch.testing.assert_close(tuple(energies), tuple(expected))
    torch.testing.assert_close(energies.kinetic, expected.kinetic)
    torch.testing.assert_close(same.masses, molecule.masses)
    places, masses = molecule.places, molecule.masses
    for others in ((places, masses), [places, masses], {"masses": masses, "places": places}):
        torch.testing.assert_close(model(others, tuple(before))[0], energies)

    def potential(f):
        return lambda x: f(Molecule(x, None, masses), before)[0].potential

    xs = torch.randn(5, 3).double()
    torch.testing.assert_close(vmap(grad(potential(model)))(xs), vmap(grad(potential(module)))(xs))
    # Which field is None is part of the model.
    for other in (Molecule(places, masses, masses), Molecule(places, masses, None), {"places": places}):
        with pytest.raises(TypeError, match="molecule is no Molecule of 2"):
            model(other, before)


def test_it_is_described(exported):
    _, model, _, _ = exported
    assert "aten::linear" in model.report()
    assert model.buffers() == model.constants() == {}


def test_the_command_describes_it(exported, tmp_path):
    _, model, _, _ = exported
    command = [sys.executable, "-m", "torch_tower", "--inspect", tmp_path / "model.pt2"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == model.report()
    assert subprocess.run([*command, "--cmake-prefix-path"], capture_output=True).returncode == 2


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "none.pt2"
    path.write_bytes(b"no zip file, but long enough to be one")
    with pytest.raises(Exception, match="no archive of torch.export.save"):
        torch_tower.load_exported(path)
