"""The matrix: which rows there are, and which there cannot be."""

from typing import Any

import pytest

from constructs_lib import ValidationError, limits
from stacks.matrix import MATRIX, MODEL_PACKAGES, Arch, Deployment, Mode, select, staged


def a_row(**props: Any) -> Deployment:
    props = {
        "mode": Mode.SERVERLESS,
        "model": "mobilenet",
        "architecture": Arch.AMD64,
        "memory_mib": 2048,
        **props,
    }
    return Deployment(**props)


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"model": "resnet"}, "model must be one of mobilenet, vgg19; got 'resnet'"),
        ({"runtime": "torch"}, "runtime must be one of litert, tensorflow; got 'torch'"),
        ({"memory_mib": 1500}, "memory_mib must be one of 1024"),
        ({"memory_mib": None}, "a serverless row has memory_mib"),
        ({"instance_type": "ml.m5.xlarge"}, "no instance_type"),
        ({"architecture": Arch.ARM64}, "architecture must be amd64"),
        ({"max_concurrency": 201}, "max_concurrency must be"),
        ({"mode": "batch"}, "mode must be one of serverless, realtime, lambda; got 'batch'"),
        ({"mode": Mode.LAMBDA, "memory_mib": None}, "a row on Lambda has memory_mib"),
        ({"mode": Mode.LAMBDA, "memory_mib": 10_241}, "memory_mib must be a whole number"),
        ({"mode": Mode.REALTIME}, "a real-time row has instance_type"),
        (
            {"mode": Mode.REALTIME, "memory_mib": None, "instance_type": "ml.m6g.xlarge"},
            "architecture must be arm64",
        ),
        (
            {"mode": Mode.REALTIME, "memory_mib": None, "instance_type": "ml.m6.xlarge"},
            "instance_type must be a CPU instance type",
        ),
    ],
)
def test_a_row_that_cannot_exist_cannot_be_constructed(props: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        a_row(**props)
    assert "stacks/matrix.py row " in str(caught.value)


def test_serverless_rows_are_every_size_of_every_model() -> None:
    rows = [(row.model, row.memory_mib) for row in MATRIX if row.mode is Mode.SERVERLESS]
    assert rows == [
        (model, size)
        for model in ("mobilenet", "vgg19")
        for size in (1024, 2048, 3072, 4096, 5120, 6144)
    ]


def test_real_time_rows_are_the_studied_instances_and_their_successors() -> None:
    rows = [
        (row.instance_type, row.architecture)
        for row in MATRIX
        if row.mode is Mode.REALTIME and row.model == "vgg19"
    ]
    assert rows == [
        ("ml.m4.xlarge", "amd64"),
        ("ml.m5.xlarge", "amd64"),
        ("ml.m6g.xlarge", "arm64"),
        ("ml.c7g.xlarge", "arm64"),
        ("ml.m7i.xlarge", "amd64"),
        ("ml.m8g.xlarge", "arm64"),
        ("ml.c8g.xlarge", "arm64"),
    ]


def test_lambda_rows_are_both_architectures_in_three_sizes() -> None:
    rows = [
        (row.model, row.architecture, row.memory_mib) for row in MATRIX if row.mode is Mode.LAMBDA
    ]
    assert rows == [
        (model, architecture, size)
        for model in ("mobilenet", "vgg19")
        for architecture in ("amd64", "arm64")
        for size in (1024, 1769, 3008)
    ]


def test_the_successors_are_the_newest_of_their_families() -> None:
    """A newer m or c family in the limits' table is a row that the matrix lacks."""

    def newest(letter: str, suffix: str) -> str:
        generations = [
            int(name.split(".")[1][1])
            for name in limits.INSTANCE_TYPES
            if name.split(".")[1][0] == letter
            and name.split(".")[1][2:] == suffix
            and name.endswith(".xlarge")
        ]
        return f"ml.{letter}{max(generations)}{suffix}.xlarge"

    offered = {row.instance_type for row in MATRIX}
    assert {newest("m", "i"), newest("m", "g"), newest("c", "g")} <= offered


def test_ids_are_unique_and_say_what_the_row_is() -> None:
    ids = [row.stack_id for row in MATRIX]
    assert len(set(ids)) == len(ids) == 38
    assert "dr-serverless-mobilenet-2048" in ids
    assert "dr-realtime-mobilenet-m5-xlarge" in ids
    assert "dr-lambda-mobilenet-arm64-1769" in ids


def test_rows_name_their_packages() -> None:
    assert {row.package for row in MATRIX} == set(MODEL_PACKAGES.values())


def test_rows_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        MATRIX[0].memory_mib = 2048  # type: ignore[misc]


def test_selecting_nothing_in_particular_selects_all() -> None:
    assert select() == MATRIX


def test_selection_narrows_by_model_and_mode() -> None:
    rows = select(models=["mobilenet"], modes=["serverless"])
    assert {(row.model, row.mode) for row in rows} == {("mobilenet", Mode.SERVERLESS)}
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"models": ["inception"]}, "models must be of mobilenet, vgg19; got 'inception'"),
        ({"modes": ["batch"]}, "modes must be of serverless, realtime, lambda; got 'batch'"),
        ({"modes": []}, "modes must be of serverless, realtime, lambda; got nothing"),
    ],
)
def test_selecting_what_is_not_there_is_refused(wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        select(**wanted)


def test_a_stage_keeps_two_people_apart() -> None:
    assert a_row().stack_id_in(None) == "dr-serverless-mobilenet-2048"
    assert a_row().stack_id_in("ana") == "dr-ana-serverless-mobilenet-2048"


@pytest.mark.parametrize(
    "stage", ["", "Ana", "ana-2", "2ana", "a" * 17, "shared", "serverless", "realtime"]
)
def test_a_stage_that_would_be_confused_with_something_else_is_refused(stage: str) -> None:
    with pytest.raises(ValueError, match="stage must be 1 to 16 lower-case letters"):
        staged("shared", stage)


def test_the_longest_staged_name_is_an_endpoint_name() -> None:
    longest = max(len(row.stack_id_in("a" * 16)) for row in MATRIX)
    assert longest <= limits.ENDPOINT_NAME_CHARACTERS
