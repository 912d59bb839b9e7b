"""The life of the stacks: costs told apart, an end that comes by itself, nothing left behind."""

import json
from pathlib import Path

import aws_cdk as cdk
import pytest

from stacks.matrix import MATRIX
from stacks.settings import Settings
from tests.constructs_fixtures import built_app, matrix_templates, new_app, resources, synthesize


def stack_tags(app: cdk.App) -> dict[str, dict[str, str]]:
    """Tags by stack, as the command line hands them to CloudFormation."""
    manifest = json.loads(Path(app.synth().directory, "manifest.json").read_text())
    return {
        name: artifact["properties"].get("tags", {})
        for name, artifact in manifest["artifacts"].items()
        if artifact["type"] == "aws:cloudformation:stack"
    }


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"ttl-hours": "0"}, "ttl-hours must be a whole number from 1 to 8760; got '0'"),
        ({"ttl-hours": "8h"}, "ttl-hours must be a whole number"),
        ({"budget-usd": "50"}, "budget-usd and budget-email are given together"),
        ({"budget-email": "a@b"}, "budget-usd and budget-email are given together"),
        ({"budget-usd": "much", "budget-email": "a@b"}, "budget-usd must be US dollars above 0"),
        ({"budget-usd": "inf", "budget-email": "a@b"}, "budget-usd must be US dollars above 0"),
        ({"own-repository": "yes"}, "own-repository must be one of true, false"),
    ],
)
def test_context_that_cannot_be_is_refused(context: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings.of(new_app(context=context), environ={})


def test_every_stack_carries_the_cost_tags_and_the_time_to_live() -> None:
    app = built_app(
        image="source-digest",
        models="mobilenet",
        modes="serverless",
        stage="ana",
        **{"ttl-hours": "8", "budget-usd": "25.5", "budget-email": "ana@example.org"},
    )
    tags = stack_tags(app)
    janitor = tags.pop("dr-ana-janitor")
    assert janitor == {"dr-endpoints": "true", "dr-endpoints:stage": "ana"}
    assert set(tags) == {"dr-ana-shared"} | {
        row.stack_id_in("ana")
        for row in MATRIX
        if row.model == "mobilenet" and row.mode == "serverless"
    }
    for it in tags.values():
        assert it == {**janitor, "dr-endpoints:time-to-live-hours": "8"}
    templates = synthesize(app)
    (budget,) = resources(templates["dr-ana-shared"], "AWS::Budgets::Budget").values()
    assert budget["Properties"]["Budget"]["BudgetLimit"]["Amount"] == 25.5
    assert "stack/dr-ana-*/*" in json.dumps(templates["dr-ana-janitor"])


def test_without_a_time_to_live_there_is_no_janitor() -> None:
    assert "dr-janitor" not in matrix_templates()


def test_the_janitor_is_deployed_with_what_it_is_to_end() -> None:
    app = built_app(image="source-digest", models="mobilenet", **{"ttl-hours": "8"})
    shared = app.node.find_child("dr-shared")
    assert isinstance(shared, cdk.Stack)
    assert [stack.stack_name for stack in shared.dependencies] == ["dr-janitor"]


def test_images_in_an_own_repository_go_with_the_shared_stack() -> None:
    app = built_app(image="build", models="mobilenet", modes="serverless", **{"own-repository": "true"})  # fmt: skip  # noqa: E501
    (repository,) = resources(synthesize(app)["dr-shared"], "AWS::ECR::Repository").values()
    assert repository["DeletionPolicy"] == "Delete"
    assert repository["Properties"]["EmptyOnDelete"] is True


def test_destroying_leaves_nothing_behind() -> None:
    """No resource is kept, and no function writes to a log group that nobody owns."""
    templates = synthesize(built_app(image="source-digest", **{"ttl-hours": "8"}))
    for name, template in templates.items():
        kept = [
            logical_id
            for logical_id, resource in template["Resources"].items()
            if "Retain" in (resource.get("DeletionPolicy", ""), resource.get("UpdateReplacePolicy"))
        ]
        assert kept == [], name
        for logical_id, function in resources(template, "AWS::Lambda::Function").items():
            owner = function["Properties"].get("LoggingConfig", {}).get("LogGroup")
            assert owner is not None, f"{name} {logical_id} leaves its log group behind"
            assert owner["Ref"] in resources(template, "AWS::Logs::LogGroup")
        for logical_id, group in resources(template, "AWS::Logs::LogGroup").items():
            assert group["Properties"].get("RetentionInDays"), f"{name} {logical_id}"


def test_what_is_retained_is_the_bucket_and_its_log_and_nothing_else() -> None:
    templates = synthesize(built_app(image="source-digest", models="mobilenet", retain="true"))
    kept = {
        (name, resource["Type"])
        for name, template in templates.items()
        for resource in template["Resources"].values()
        if resource.get("DeletionPolicy") == "Retain"
    }
    assert kept == {("dr-shared", "AWS::S3::Bucket")}
