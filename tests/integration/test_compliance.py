"""cdk-nag over everything: no finding without a reason, and no reason without a finding."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from cdk_nag import AwsSolutionsChecks, HIPAASecurityChecks, NIST80053R5Checks

from constructs_lib import (
    AlarmOptions,
    DataCapture,
    DREndpointDashboard,
    DRTrainingPipeline,
    GateThresholds,
    InferenceImageRepo,
    LambdaDREndpoint,
    ModelArtifactBucket,
    ProbeOptions,
    RealtimeDREndpoint,
    Scaling,
    ServerlessDREndpoint,
    StackJanitor,
    TrafficShift,
    acknowledge_findings,
)
from constructs_lib.compliance import ACKNOWLEDGED, WILDCARDS
from tests.constructs_fixtures import (
    HOME,
    built_app,
    make_context,
    make_package,
    new_app,
    resources,
    synthesize,
)
from tools import compliance_table


def faults(app: cdk.App) -> dict[str, set[str]]:
    """Paths of constructs by the rule that they break, without what is acknowledged."""
    packs = (AwsSolutionsChecks(app), HIPAASecurityChecks(app), NIST80053R5Checks(app))
    cdk.Validations.of(app).add_plugins(*packs)
    # A failed validation is an error with no details; the report says more.
    with contextlib.suppress(RuntimeError):
        app.synth()
    report = json.loads(Path(app.outdir, "validation-report.json").read_text())
    found: dict[str, set[str]] = {}
    for plugin in report["pluginReports"]:
        for violation in plugin["violations"]:
            if violation["severity"] == "error":
                found.setdefault(violation["ruleName"], set()).update(
                    it["constructPath"] for it in violation["violatingConstructs"]
                )
    assert {"AwsSolutions", "HIPAA.Security", "NIST.800.53.R5"} <= {
        plugin["pluginName"] for plugin in report["pluginReports"]
    }
    return found


def every_option(tmp_path: Path, *, keys: bool) -> cdk.App:
    """One app with every construct and option of the library."""
    context: Mapping[str, Any] = json.loads(
        (Path(__file__).resolve().parent.parent.parent / "cdk.json").read_text()
    )["context"]
    app = new_app(context=context)
    stack = cdk.Stack(app, "Clinic", env=HOME)
    key = kms.Key(stack, "Key", enable_key_rotation=True) if keys else None
    vpc = ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-0123456789abcdef0",
        availability_zones=["eu-west-1a", "eu-west-1b"],
        private_subnet_ids=["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
    )
    topic = sns.Topic.from_topic_arn(stack, "Topic", "arn:aws:sns:eu-west-1:123456789012:told")
    alarms = AlarmOptions(actions=[actions.SnsAction(topic)]) if keys else AlarmOptions()
    models = ModelArtifactBucket(
        stack,
        "Models",
        encryption_key=key,
        removal_policy=cdk.RemovalPolicy.DESTROY,
        auto_delete_objects=True,
        log_encryption_key=key,
    )
    model = models.add_model(make_package(tmp_path, "demo"))
    images = InferenceImageRepo(
        stack,
        "Images",
        directory=make_context(tmp_path / "service"),
        own_repository=True,
        log_encryption_key=key,
    )
    amd64, arm64 = (images.image(architecture=it) for it in ("amd64", "arm64"))
    common: dict[str, Any] = {
        "model": model,
        "alarms": alarms,
        "probe": ProbeOptions(),
        "log_encryption_key": key,
    }
    DREndpointDashboard(
        stack,
        "Dashboard",
        endpoints=[
            RealtimeDREndpoint(
                stack,
                "Realtime",
                image=arm64,
                instance_type="ml.c7g.xlarge",
                initial_instance_count=2,
                vpc=vpc,
                encryption_key=key,
                data_capture=DataCapture(bucket=models.bucket),
                traffic_shift=TrafficShift.canary(percent=50),
                scaling=Scaling(min_capacity=2, max_capacity=4, invocations_per_instance=100),
                **common,
            ),
            ServerlessDREndpoint(
                stack,
                "Serverless",
                image=amd64,
                memory_mib=2048,
                provisioned_concurrency=1,
                **common,
            ),
            LambdaDREndpoint(
                stack, "Lambda", image=arm64, memory_mib=2048, vpc=vpc, encryption_key=key, **common
            ),
        ],
    )
    StackJanitor(stack, "Janitor", stack_name_prefix="dr-", log_encryption_key=key)
    DRTrainingPipeline(
        stack,
        "Training",
        models=models,
        image=images.image(architecture="amd64", runtime="tensorflow"),
        photographs=s3.Bucket.from_bucket_name(stack, "Photographs", "photographs"),
        photographs_prefix="clinic",
        package_id="clinic",
        hyperparameters={"network": "mobilenet"},
        gate=GateThresholds(min_sensitivity=0.85, min_specificity=0.7, min_kappa=0.6),
        training_instance_type="ml.c5.xlarge",
        training_instance_count=2,
        encryption_key=key,
        log_encryption_key=key,
        removal_policy=cdk.RemovalPolicy.DESTROY,
        auto_delete_objects=True,
        alarm_actions=alarms.actions,
        vpc=vpc,
    )
    return app


def test_the_whole_matrix_has_no_finding_without_a_reason() -> None:
    app = built_app(
        image="source-digest",
        **{"ttl-hours": "8", "budget-usd": "5", "budget-email": "a@example.org"},
    )
    acknowledge_findings(app, choices=True)
    assert faults(app) == {}


def test_every_option_has_no_finding_without_a_reason(
    tmp_path: Path,
) -> None:
    app = every_option(tmp_path, keys=False)
    acknowledge_findings(app, choices=True)
    assert faults(app) == {}


def sids_of(app: cdk.App) -> set[str]:
    """Of every statement with a wildcard."""
    return {
        statement["Sid"]
        for template in synthesize(app).values()
        for policy in resources(template, "AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if "*" in json.dumps([statement["Resource"], statement["Action"]]) and "Sid" in statement
    }


def test_each_reason_answers_a_finding(tmp_path: Path) -> None:
    """A reason for what is not found any more would hide the day when it is found again."""
    found = faults(every_option(tmp_path, keys=False))
    for row in ACKNOWLEDGED:
        for pack in row.packs:
            assert any(row.stands_at(path) for path in found[f"{pack}-{row.rule}"]), row.rule
    roles = {path for name, paths in found.items() if "IAM5" in name for path in paths}
    assert len(roles) >= 4
    # A reason for a statement that is not made any more answers nothing.
    assert set(WILDCARDS) <= sids_of(every_option(tmp_path / "again", keys=True))


@pytest.mark.parametrize("rule", ["S3BucketReplicationEnabled", "S3DefaultEncryptionKMS"])
def test_what_a_training_keeps_has_reasons_of_its_own(rule: str) -> None:
    """The reasons of models and of access logs would be wrong for records of photographs."""
    reasons = {
        place: [
            row.reason
            for row in ACKNOWLEDGED
            if row.rule == rule and row.stands_at(f"Clinic/Training/{place}/Resource")
        ]
        for place in ("Runs/Bucket", "Runs/AccessLogs", "Models/Bucket")
    }
    (runs,) = reasons["Runs/Bucket"]
    assert "photographs" in runs
    assert runs not in reasons["Runs/AccessLogs"] + reasons["Models/Bucket"]
    assert len(reasons["Runs/AccessLogs"]) == len(reasons["Models/Bucket"]) == 1


def test_what_is_of_the_user_stays_found(tmp_path: Path) -> None:
    app = every_option(tmp_path, keys=False)
    s3.Bucket(app.node.find_child("Clinic"), "Theirs")  # type: ignore[arg-type]
    acknowledge_findings(app)
    found = faults(app)
    assert found["AwsSolutions-S1"] == {"Clinic/Theirs/Resource"}
    # And what a deployment decides is for the user to decide.
    assert "Clinic/Models/Bucket/Resource" in found["HIPAA.Security-S3DefaultEncryptionKMS"]


def test_with_keys_of_ones_own_nothing_is_left_to_choose(
    tmp_path: Path,
) -> None:
    app = every_option(tmp_path, keys=True)
    acknowledge_findings(app)
    found = {
        name: paths
        for name, paths in faults(app).items()
        # Serverless has no volumes, and here no key.
        if not re.search(r"SageMakerEndpointConfigurationKMSKey", name)
    }
    assert found == {}


def test_the_page_lists_every_reason(repository: Path) -> None:
    page = (repository / "docs" / "compliance.md").read_text()
    assert compliance_table.page(page) == page, "run: python tools/compliance_table.py --write"
    for row in ACKNOWLEDGED:
        assert row.reason in page


def test_the_table_is_printed_by_its_command(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tools/compliance_table.py"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == compliance_table.table()
