"""The app's context: read once, checked, and refused in a sentence."""

from typing import Any

import pytest

from stacks.settings import Settings
from tests.constructs_fixtures import new_app


def settings_of(environ: dict[str, str] | None = None, **context: object) -> Settings:
    return Settings.of(new_app(context=context), environ=environ or {})


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"stage": "Ana"}, "stage must be 1 to 16 lower-case letters and digits"),
        ({"image": "pull"}, "context image must be one of build, source-digest; got 'pull'"),
        ({"publish": "ftp"}, "context publish must be one of deployment, external; got 'ftp'"),
        ({"local": "yes"}, "context local must be one of true, false; got 'yes'"),
        ({"retain": "1"}, "context retain must be one of true, false; got '1'"),
        ({"docker-outputs": "docker"}, "context docker-outputs must name an exporter, .*'docker'"),
        ({"model": "mobilenet"}, r"context model is not known \(near it: models\)"),
        ({"docker_outputs": "type=docker"}, "near it: docker-outputs"),
        ({"region": "eu-west-1"}, "context region is not read: account and region are those of"),
        ({"runtime": "onnx"}, "context runtime must be one of litert, tensorflow; got 'onnx'"),
        ({"model-root": "nowhere"}, "context model-root must be a folder of packages"),
        ({"docker-outputs": ["type=docker", "out"]}, "must name an exporter, .*; got 'out'"),
    ],
)
def test_an_unknown_value_is_refused(context: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings_of(**context)


def test_defaults_deploy_everything_to_aws() -> None:
    assert settings_of() == Settings(
        stage=None,
        models=None,
        modes=None,
        image="build",
        docker_outputs=(),
        publish="deployment",
        local=False,
        retain=False,
        account=None,
        region=None,
    )


def test_values_come_as_text_from_the_command_line() -> None:
    settings = settings_of(
        stage="ana",
        models="mobilenet, vgg19",
        modes="serverless",
        image="source-digest",
        publish="external",
        local="true",
        retain="false",
    )
    assert settings.models == ("mobilenet", "vgg19")
    assert settings.modes == ("serverless",)
    assert (settings.stage, settings.image, settings.publish) == (
        "ana",
        "source-digest",
        "external",
    )
    assert (settings.local, settings.retain) == (True, False)


@pytest.mark.parametrize(
    ("value", "outputs"),
    [
        ("type=docker", ("type=docker",)),
        # One argument of the build: its commas are its own.
        ("type=docker,oci-mediatypes=false", ("type=docker,oci-mediatypes=false",)),
        (["type=docker", "type=registry"], ("type=docker", "type=registry")),
    ],
)
def test_outputs_of_the_build_are_passed_as_they_are(
    value: str | list[str], outputs: tuple[str, ...]
) -> None:
    assert settings_of(**{"docker-outputs": value}).docker_outputs == outputs


def test_an_empty_value_is_the_default() -> None:
    assert settings_of(**{"stage": "", "models": "", "image": "", "docker-outputs": ""}) == (
        settings_of()
    )


def test_account_and_region_are_those_of_the_command_line() -> None:
    settings = settings_of(
        {"CDK_DEFAULT_ACCOUNT": "123456789012", "CDK_DEFAULT_REGION": "sa-east-1"}
    )
    assert settings.environment.account == "123456789012"
    assert settings.environment.region == "sa-east-1"


@pytest.mark.parametrize(
    "name",
    ["@aws-cdk/core:anything", "aws:cdk:enable-path-metadata", "vpc-provider:account=1", "owner"],
)
def test_what_is_not_ours_in_the_context_is_left_alone(name: str) -> None:
    assert settings_of(**{name: True}) == settings_of()
