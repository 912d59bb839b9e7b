"""The page on stacks and constructs says what the code does."""

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

from constructs_lib import ServerlessDREndpoint, ValidationError, limits
from constructs_lib.probe_function.handler import GOLDEN
from dr_experiments.pricing import PriceTable
from stacks.matrix import MATRIX
from stacks.settings import Settings
from tests.constructs_fixtures import an_artifact, an_image, make_package, new_app
from tests.state_machines import definition_of


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "stacks.md").read_text()


def test_every_row_of_the_matrix_is_in_the_table_and_no_other(page: str) -> None:
    listed = [
        tuple(cell.strip(" `") for cell in line.strip("|").split("|"))
        for line in page.splitlines()
        if line.startswith("| `dr-")
    ]
    assert listed == [
        (
            row.stack_id,
            row.mode.value,
            row.package,
            row.architecture.value,
            row.instance_type or f"{row.memory_mib} MiB",
        )
        for row in MATRIX
    ]


def test_every_context_name_is_documented(page: str) -> None:
    context = page.split("## Context", maxsplit=1)[1].split("## ", maxsplit=1)[0]
    documented = re.findall(r"^\| `([\w-]+)` \|", context, flags=re.MULTILINE)
    from_the_environment = {"account", "region"}
    names = {field.name for field in fields(Settings)} - from_the_environment
    assert set(documented) == {name.replace("_", "-") for name in names}


def test_the_remedy_for_a_refused_manifest_is_one_that_the_app_takes(page: str) -> None:
    commands = re.findall(r"-c docker-outputs=(\S+)`", page)
    assert commands
    for value in commands:
        settings = Settings.of(new_app(context={"docker-outputs": value}), environ={})
        assert settings.docker_outputs == (value,)
    assert "Unsupported manifest media type" in page


def test_the_example_synthesizes(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_package(tmp_path / "models", "mine")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/stacks.md", "exec"), names)  # noqa: S102 (the page's own example)
    output = Path(names["app"].outdir)
    template = (output / "Clinic.template.json").read_text()
    shutil.rmtree(output)
    assert "AWS::SageMaker::Endpoint" in template


def test_the_example_of_an_operated_endpoint_synthesizes(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (repository / "docs" / "endpoints.md").read_text()
    make_package(tmp_path / "models", "mine")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/endpoints.md", "exec"), names)  # noqa: S102 (the page's own example)
    output = Path(names["app"].outdir)
    template = (output / "Clinic.template.json").read_text()
    shutil.rmtree(output)
    for kind in ("SageMaker::Endpoint", "Lambda::Url", "Dashboard", "ScalingPolicy", "Alarm"):
        assert kind in template


def test_the_example_of_a_training_synthesizes(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (repository / "docs" / "training-on-sagemaker.md").read_text()
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/training-on-sagemaker.md", "exec"), names)  # noqa: S102 (the page's own example)
    output = Path(names["app"].outdir)
    template = json.loads((output / "Training.template.json").read_text())
    shutil.rmtree(output)
    states = definition_of(template)["States"]
    listed = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \|", text.split("## The pipeline")[1], re.MULTILINE
    )
    assert {name for cell in listed for name in re.findall(r"\w+", cell)} == set(states) - {
        "Places"
    }


def test_the_cost_of_a_probe_is_what_its_arithmetic_gives(repository: Path) -> None:
    text = (repository / "docs" / "endpoints.md").read_text()
    rows = [
        line.split("|")[1:4] for line in text.splitlines() if re.match(r"\| .* \d\.\d\d \|$", line)
    ]
    assert len(rows) == 4
    prices = PriceTable.load()
    compute = prices.find("serverless-compute", region="us-east-1", sku="2048").usd
    data_in = prices.find("data-in", region="us-east-1").usd
    requests = 730 * 60
    size = GOLDEN.stat().st_size
    expected = [
        requests * float(compute) * 0.1,
        requests * size / 1e9 * float(data_in),
        requests * (0.25 * 0.3 * 0.0000166667 + 0.0000002),
        0.30,
    ]
    assert [f"{usd:.2f}" for usd in expected] == [row[2].strip() for row in rows]
    assert f"{size:,} B" in text
    assert f"{requests:,}" in text


def test_what_each_kind_can_do_is_what_the_limits_say(repository: Path) -> None:
    text = (repository / "docs" / "endpoints.md").read_text()
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:5]]
        for line in text.splitlines()
        if line.startswith("| ") and line.count("|") == 5
    }
    mib = 1024 * 1024
    assert cells["largest photograph"] == [
        f"{limits.SERVERLESS_PAYLOAD_BYTES // mib} MiB",
        f"{limits.REALTIME_PAYLOAD_BYTES // mib} MiB",
        "about 4.47 MiB",
    ]
    fewest = [cell.split()[0] for cell in cells["fewest at any hour"]]
    assert fewest == [
        str(limits.SERVERLESS_MIN_PROVISIONED),
        str(limits.REALTIME_MIN_CAPACITY),
        str(limits.LAMBDA_MIN_PROVISIONED),
    ]


def test_the_refusal_is_the_one_that_is_shown(page: str) -> None:
    stack = cdk.Stack(new_app(), "Clinic")
    with pytest.raises(ValidationError) as caught:
        ServerlessDREndpoint(
            stack,
            "Endpoint",
            model=an_artifact(stack),
            image=an_image(),
            memory_mib=3000,
            provisioned_concurrency=9,
        )
    shown = re.sub(
        r"\(https://docs\.aws\.amazon\.com/[^)]*\)",
        "(https://docs.aws.amazon.com/…)",
        str(caught.value),
    )
    assert f"constructs_lib.rules.ValidationError: {shown}\n" in page
