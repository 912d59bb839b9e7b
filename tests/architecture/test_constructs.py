"""What the constructs promise to apps that import them."""

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Unpack

import pytest

import constructs_lib
from constructs_lib.endpoint_options import Options

CONSTRUCTS = (
    "DREndpointDashboard",
    "DRTrainingPipeline",
    "EndpointAlarms",
    "GoldenImageProbe",
    "LambdaDREndpoint",
    "CostBudget",
    "InferenceImageRepo",
    "ModelArtifactBucket",
    "PipelineAlarms",
    "RealtimeDREndpoint",
    "ServerlessDREndpoint",
    "StackJanitor",
)


def test_public_names_are_listed_and_load() -> None:
    assert constructs_lib.__all__ == sorted(constructs_lib.__all__)
    for name in constructs_lib.__all__:
        assert callable(getattr(constructs_lib, name))
        assert name in dir(constructs_lib)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="LambdaEndpoint"):
        _ = constructs_lib.LambdaEndpoint


@pytest.mark.parametrize(
    "module",
    [
        "constructs_lib.limits",
        "constructs_lib.regions",
        "constructs_lib.rules",
        "constructs_lib.scaling",
        "constructs_lib.traffic",
        "constructs_lib.training_code",
        "constructs_lib.training_rules",
        "constructs_lib.training_states",
        "stacks.matrix",
    ],
)
def test_data_is_read_without_the_cdk(module: str, repository: Path) -> None:
    code = (
        f"import sys, {module}\n"
        "sys.exit(bool({'aws_cdk', 'jsii'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("package", ["constructs_lib", "inference_image", "stacks"])
def test_types_are_published(package: str, repository: Path) -> None:
    assert (repository / package / "py.typed").is_file()


def test_what_the_constructs_raise_is_among_the_public_names() -> None:
    assert issubclass(constructs_lib.ModelPackageError, ValueError)
    assert issubclass(constructs_lib.ValidationError, ValueError)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_properties_are_keywords_with_documentation(name: str) -> None:
    construct = getattr(constructs_lib, name)
    parameters = list(inspect.signature(construct.__init__).parameters.values())
    assert [parameter.name for parameter in parameters[:3]] == ["self", "scope", "construct_id"]
    documentation = inspect.getdoc(construct)
    assert documentation is not None
    for section in ("Args:", "Defaults:", "Defines:"):
        assert section in documentation
    for parameter in parameters[3:]:
        assert parameter.kind in {
            inspect.Parameter.KEYWORD_ONLY,
            # `**options: Unpack[EndpointOptions]`: keywords that are typed and documented there.
            inspect.Parameter.VAR_KEYWORD,
        }
        assert f"{parameter.name}:" in documentation


def test_what_all_endpoints_take_is_documented_once_and_has_a_default() -> None:
    declared = constructs_lib.EndpointOptions
    documentation = inspect.getdoc(declared)
    assert documentation is not None
    assert declared.__required_keys__ == frozenset()
    assert {field.name for field in fields(Options)} == set(declared.__annotations__)
    for name in declared.__annotations__:
        assert f"`{name}`" in documentation
    for name in ("LambdaDREndpoint", "RealtimeDREndpoint", "ServerlessDREndpoint"):
        construct = getattr(constructs_lib, name)
        (options,) = (
            parameter
            for parameter in inspect.signature(construct.__init__).parameters.values()
            if parameter.kind is inspect.Parameter.VAR_KEYWORD
        )
        assert options.annotation == Unpack[declared]
