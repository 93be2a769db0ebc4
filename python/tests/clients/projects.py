"""The projects: what is installed of each, where its tests are, and what of them is left out or may differ."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Project:
    name: str
    # The project itself, then what it and its tests need besides torch, numpy and pytest.
    packages: str
    # The folder of the tests, and where that is: PyPI's source distribution, a repository under a tag, or the package.
    tests: str
    sdist: str = ""
    repository: str = ""
    tag: str = ""
    # Of each parametrized test.
    cases: int = 8
    options: tuple[str, ...] = ()
    # Folders, files, classes or functions of tests, each with the reason.
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    accepted: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def tests_in_package(self):
        return not self.sdist and not self.repository

    @property
    def title(self):
        return self.packages.split()[0].replace("==", " ")

    @property
    def no_tests(self):
        return f"PyPI has none; git clone --branch {self.tag} {self.repository} build/clients/checkouts/{self.name}"


_VISION = "torchvision==0.28.0 pillow==13.0.0"
_CURVLINOPS = """curvlinops-for-pytorch==3.0.1 backpack-for-pytorch==1.7.1 einconv==0.1.0 einops==0.8.2
    jaxtyping==0.3.11 linear_operator==0.6.1 opt-einsum==3.4.0 scipy==1.17.1 tqdm==4.70.1 unfoldNd==0.2.3
    wadler-lindig==0.1.8"""
_INTERNALS = "asks functorch's internals what a tensor is; Tower is asked by is_batched and is_tracked"
_ESCAPED = "keeps tensors of a grad in a dict and uses them after it; see docs/pitfalls.md, Tensors that escape"
_LAZY_MODULES = "the hook that tensordict gives lazy modules calls functorch's _add_batch_dim"
_INFLUENCE = "test/dattri/algorithm/test_influence_function.py::TestInfluenceFunction"

_JACOBIANS = "tests/optim/test_jacobian.py::TestJacobian"

PROJECTS = (
    Project(
        "curvlinops",
        f"{_CURVLINOPS} pytest-optional-tests==0.1.1",
        "test",
        sdist="curvlinops-for-pytorch==3.0.1",
        cases=2,
    ),
    Project(
        "laplace",
        f"""laplace-torch==0.2.3 {_CURVLINOPS} asdfghjkl==0.1a4 lightning-utilities==0.15.3 pytest-mock==3.17.0
        torchmetrics==1.9.0 {_VISION}""",
        "tests",
        sdist="laplace-torch==0.2.3",  # the last with tests
        cases=4,
    ),
    Project(
        "torchjd",
        f"""torchjd==0.8.1 clarabel==0.11.1 cvxpy==1.9.3 ecos==2.0.14 jinja2==3.1.6 osqp==1.1.3 qdldl==0.1.9.post1
        qpsolvers==4.13.0 quadprog==0.1.14 scipy==1.17.1 scs==3.3.1 {_VISION}""",
        "tests/unit",
        repository="https://github.com/TorchJD/torchjd",
        tag="v0.8.1",
    ),
    Project(
        "posteriors",
        """posteriors==0.1.2 cloudpickle==3.1.2 graphviz==0.21 optree==0.20.0 orjson==3.13.0 pyvers==0.2.3
        tensordict==0.15.3 torchopt==0.7.3""",
        "tests",
        repository="https://github.com/normal-computing/posteriors",
        tag="v0.1.2",
        left_out={
            f"tests/sgmcmc/test_{sampler}.py::test_{sampler}": "100,000 steps of a sampler, minutes long"
            for sampler in ("baoa", "sghmc", "sgld", "sgnht")
        },
        accepted={
            "tests/test_utils.py::test_CatchAuxError": "it wants an aux of None to fail; here aux is whatever it is"
        },
    ),
    Project(
        "opacus",
        f"""opacus==1.6.0 attrs==26.1.0 hypothesis==6.170.15 opt-einsum==3.4.0 requests==2.34.2 scipy==1.17.1
        sortedcontainers==2.4.0 tqdm==4.70.1 {_VISION}""",
        "opacus/tests",
        cases=2,
        options=("--hypothesis-seed=0",),
        left_out={
            f"opacus/tests/privacy_engine_test.py::PrivacyEngine{name}": "no transforms, and minutes long"
            for name in (
                *("ConvNetTest", "ConvNetEmptyBatchTest", "ConvNetFrozenTest", "TextTest", "TiedWeightsTest"),
                *("ConvNetHooksTest", "ConvNetFrozenHooksTest", "TextHooksTest", "TiedWeightsHooksTest"),
                *("CustomLayerHooksTest", "ConvNetTestExpandedWeights"),
            )
        },
    ),
    Project(
        "dattri",
        f"""dattri==0.3.0 certifi==2026.10.18 charset-normalizer==3.5.2 cloudpickle==3.1.2 idna==3.20 joblib==1.6.0
        mido==1.3.3 narwhals==2.29.0 pretty_midi==0.2.11.post0 pyparsing==3.3.3 pyyaml==6.0.3 requests==2.34.2
        scikit-learn==1.9.1 scipy==1.17.1 six==1.17.0 threadpoolctl==3.8.0 tqdm==4.70.1 urllib3==2.8.0 {_VISION}
       """,
        "test",
        sdist="dattri==0.3.0",
        left_out={
            f"{_INFLUENCE}::test_influence_function": "minutes long",
            f"{_INFLUENCE}::test_influence_function_ensemble": "minutes long",
            f"{_INFLUENCE}::test_influence_function_partial_param": "minutes long",
        },
        accepted={
            f"{_INFLUENCE}::test_influence_function_self_attribute": _ESCAPED,
            "test/dattri/test_task.py::TestTask::test_task_partial": _ESCAPED,
        },
    ),
    Project(
        "tad-mctc",
        "tad-mctc==0.7.0 opt-einsum==3.4.0 psutil==7.2.2 scipy==1.17.1",
        "test",
        repository="https://github.com/tad-mctc/tad-mctc",
        tag="v0.7.0",
        cases=32,
        accepted={"test/test_autograd/test_checks.py": _INTERNALS, "test/test_io/test_checks.py": _INTERNALS},
    ),
    Project(
        "tad-dftd3",
        """tad-dftd3==0.5.0 tad-mctc==0.5.3 annotated-types==0.8.0 flexcache==0.3 flexparser==0.4 opt-einsum==3.4.0
        pint==0.25.3 platformdirs==4.14.7 psutil==7.2.2 pydantic==2.14.3 pydantic-core==2.50.4 qcelemental==0.29.0
        typing-inspection==0.4.5""",
        "test",
        repository="https://github.com/dftd3/tad-dftd3",
        tag="v0.5.0",
        cases=32,
    ),
    Project(
        "tensordict",
        "tensordict==0.14.0 cloudpickle==3.1.2 pyvers==0.2.3",
        "test",
        repository="https://github.com/pytorch/tensordict",
        tag="v0.14.0",
        left_out={
            "test/compile": "torch.compile, which traces torch.func's own functions; takes hours",
            "test/distributed": "needs several processes that talk to each other",
            "test/memmap/test_memmap.py": "starts many processes, minutes long",
            "test/tensordict/test_mp.py": "starts many processes, minutes long",
        },
        accepted={
            "test/tensordict/test_generic.py::TestGeneric::test_from_modules_lazy": _LAZY_MODULES,
        },
    ),
    Project(
        "pypose",
        f"pypose==0.9.5 {_VISION}",
        "tests",
        repository="https://github.com/pypose/pypose",
        tag="v0.9.5",
        cases=32,
        accepted={
            f"{_JACOBIANS}::test_lietensor_vmap": "it wants vmap to fail without pypose's context; here it works",
            f"{_JACOBIANS}::test_lietensor_jacfwd": "it wants the text of one of torch.func's failures",
        },
    ),
    Project(
        "torchopt",
        """torchopt==0.7.3 absl-py==2.5.1 chex==0.1.92 graphviz==0.21 jax==0.10.2 jaxlib==0.10.2 jaxopt==0.8.5
        ml_dtypes==0.6.0 opt-einsum==3.4.0 optax==0.2.8 optree==0.20.0 scipy==1.17.1 toolz==1.2.0""",
        "tests",
        repository="https://github.com/metaopt/torchopt",
        tag="v0.7.3",
        cases=4,
    ),
    Project(
        "flow_matching",
        "flow_matching==1.0.10 torchdiffeq==0.2.5 scipy==1.17.1 tqdm==4.70.1",
        "tests",
        sdist="flow_matching==1.0.10",
    ),
    Project(
        "cola",
        "cola-ml==0.0.7 cola-plum-dispatch==0.1.4 beartype==0.23.1 optree==0.20.0 scipy==1.17.1 tqdm==4.70.1",
        "tests",
        sdist="cola-ml==0.0.7",
        options=("-k", "not jax"),
    ),
)
