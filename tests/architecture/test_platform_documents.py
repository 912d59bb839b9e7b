"""The pages on pipelines and on the constructs' peers hold what they say."""

import json
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import synth_cost


def test_the_role_of_the_pipeline_may_deploy_and_look_and_nothing_else(repository: Path) -> None:
    page = (repository / "docs" / "pipeline.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/pipeline.md", "exec"), names)  # noqa: S102 (the page's own example)
    output = Path(names["app"].outdir)
    template = json.loads((output / "DrPipelineRole.template.json").read_text())
    shutil.rmtree(output)
    (role,) = (it for it in template["Resources"].values() if it["Type"] == "AWS::IAM::Role")
    (trust,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Action"] == "sts:AssumeRoleWithWebIdentity"
    # Only equality: a pattern would let other branches, or other repositories, in.
    assert set(trust["Condition"]) == {"StringEquals"}
    assert len(trust["Condition"]["StringEquals"]) == 2
    (policy,) = (it for it in template["Resources"].values() if it["Type"] == "AWS::IAM::Policy")
    by_sid = {it["Sid"]: it for it in policy["Properties"]["PolicyDocument"]["Statement"]}
    assert by_sid["DeployThroughBootstrapRoles"]["Action"] == "sts:AssumeRole"
    # The environment of production unless told otherwise, never any other branch.
    subject = trust["Condition"]["StringEquals"]["token.actions.githubusercontent.com:sub"]
    assert subject == "repo:clinic/dr:environment:production"
    assert by_sid["AskEndpoints"]["Action"] == "sagemaker:InvokeEndpoint"
    assert ":endpoint/dr-*" in str(by_sid["AskEndpoints"]["Resource"])
    looks = re.compile(r"\w+:(Describe|List|Get|BatchGet)\w+")
    assert all(looks.fullmatch(action) for action in by_sid["Preflight"]["Action"])


def test_commands_of_the_pipeline_have_the_options_that_the_programs_take(
    repository: Path,
) -> None:
    from typer.main import get_command

    from dr_cli.app import app

    page = (repository / "docs" / "pipeline.md").read_text()
    commands = get_command(app).commands  # type: ignore[attr-defined]
    lines = re.findall(r"^dr (\w+) (.*)$", page, flags=re.MULTILINE)
    assert {name for name, _ in lines} == {"preflight", "verify", "predict"}
    for name, rest in lines:
        known = {option for it in commands[name].params for option in it.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= known


# What GitHub takes of a job that calls another workflow:
# https://docs.github.com/actions/reference/workflows-and-actions/reusing-workflow-configurations
CALLING = {
    "name", "uses", "with", "secrets", "strategy", "needs", "if", "concurrency", "permissions",
}  # fmt: skip


def test_the_workflows_of_the_page_are_ones_that_github_takes(repository: Path) -> None:
    import yaml

    page = (repository / "docs" / "pipeline.md").read_text()
    calling, called = (
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    )
    callers = {name: job for name, job in calling["jobs"].items() if "uses" in job}
    assert set(callers) == {"staging", "production"}
    # YAML reads the key `on` as true.
    inputs = called[True]["workflow_call"]["inputs"]
    for job in callers.values():
        assert set(job) <= CALLING
        assert set(job["with"]) == set(inputs)
        assert job["permissions"] == {"id-token": "write", "contents": "read"}
    (job,) = called["jobs"].values()
    assert job["environment"] == "${{ inputs.environment }}"
    used = set(re.findall(r"inputs\.(\w+)", str(called)))
    assert used == set(inputs)


def test_the_peers_are_named_with_versions_and_ours_is_this_one(repository: Path) -> None:
    page = (repository / "docs" / "constructs.md").read_text()
    (header,) = (line for line in page.splitlines() if line.startswith("| feature |"))
    assert f"this library {metadata.version('dr-endpoints')}" in header
    assert len(re.findall(r"\d+\.\d+\.\d+", header)) == 4
    wanted = (
        "serverless",
        "provisioned concurrency",
        "its autoscaling",
        "instance autoscaling",
        "blue/green with rollback",
        "shadow variant",
        "data capture",
        "VPC, KMS, network isolation",
        "architecture check",
        "scoped role",
    )
    for feature in wanted:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {feature} |"))
        assert row.count("|") == header.count("|")


def test_the_table_of_synth_is_that_of_the_measurement(repository: Path) -> None:
    results = json.loads((repository / synth_cost.OUT).read_text())
    page = (repository / synth_cost.PAGE).read_text()
    assert synth_cost.page(page, results) == page
    assert set(results["cases"]) == set(synth_cost.CASES)
    assert all(len(runs) == results["runs"] for runs in results["cases"].values())
