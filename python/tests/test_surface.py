"""The names of torch.func, with its signatures."""

import inspect

import pytest
import torch.func
import torch_tower

TRANSFORMS = ["vmap", "grad", "grad_and_value", "vjp", "jvp", "linearize", "jacrev", "jacfwd", "hessian"]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_parameter_of_torch_func_is_there_in_its_place(name):
    ours = inspect.signature(getattr(torch_tower, name)).parameters
    for parameter in inspect.signature(getattr(torch.func, name)).parameters.values():
        assert ours[parameter.name].default == parameter.default
        assert ours[parameter.name].kind == parameter.kind

    def positional(parameters):
        return [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]

    assert positional(ours) == positional(inspect.signature(getattr(torch.func, name)).parameters)


@pytest.mark.parametrize("name", ["functional_call", "stack_module_state"])
def test_module_utilities_are_torchs_own(name):
    assert getattr(torch_tower, name) is getattr(torch.func, name)


@pytest.mark.parametrize("name", ["vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian"])
def test_a_transformed_function_keeps_its_name_and_documentation(name):
    def velocity(x):
        """How fast."""
        return x

    transformed = getattr(torch_tower, name)(velocity)
    assert transformed.__name__ == "velocity" and transformed.__doc__ == "How fast."


def test_all_public_names_are_documented():
    for name in torch_tower.__all__:
        assert inspect.getdoc(getattr(torch_tower, name))
