"""Reasons for what cdk-nag finds in these constructs, attached where it finds it.

    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app), HIPAASecurityChecks(app))
    acknowledge_findings(app)

Call it last, when the app is whole. It touches nothing but the constructs of this library, and the
functions that the CDK adds for them; what it finds of yours stays found. cdk-nag itself is not
needed: an acknowledgement is the CDK's own.

Rules: https://github.com/cdklabs/cdk-nag/blob/main/RULES.md (cdk-nag 3.0.2, read 2026-11-28).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aws_cdk as cdk
from constructs import IConstruct

from constructs_lib.kinds import Kind, kind_faults
from constructs_lib.rules import refuse
from constructs_lib.statements import plain_sid

AWS_SOLUTIONS: Final = "AwsSolutions"
HIPAA: Final = "HIPAA.Security"
NIST: Final = "NIST.800.53.R5"
_STRICT: Final = (HIPAA, NIST)

POLICY: Final = "AWS::IAM::Policy"
FUNCTION: Final = "AWS::Lambda::Function"
ROLE: Final = "AWS::IAM::Role"
BUCKET: Final = "AWS::S3::Bucket"
LOG_GROUP: Final = "AWS::Logs::LogGroup"
CONFIG: Final = "AWS::SageMaker::EndpointConfig"
ALARM: Final = "AWS::CloudWatch::Alarm"

# What executions of a training keep.
_RUNS: Final = "/Runs/Bucket/"

# Functions that the CDK itself adds to a stack for this library's buckets.
_OF_THE_CDK: Final = ("Custom::CDKBucketDeployment", "Custom::S3AutoDeleteObjects")


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """A finding that stands, and why.

    Attributes:
        rule: name of the rule without its pack, `IAM5` for example.
        packs: packs that have it under this name.
        resource: type of the resources that it is acknowledged on.
        reason: why it stands.
        under: only on resources whose path holds this text.
        but: not on resources whose path holds this text.
        choice: the deployment decides it and not the construct; acknowledged for this project's
            own stacks, which hold no patient's data, and reported in everybody else's.
    """

    rule: str
    packs: tuple[str, ...]
    resource: str
    reason: str
    under: str = ""
    but: str = ""
    choice: bool = False

    def stands_at(self, path: str) -> bool:
        """Whether it is acknowledged on the resource of this path, if it is one of its type."""
        return self.under in path and not (self.but and self.but in path)


ACKNOWLEDGED: Final = (
    Acknowledged(
        rule="IAMNoInlinePolicy",
        packs=_STRICT,
        resource=POLICY,
        reason=(
            "One role, one purpose: the policy lives and dies with its role and can be attached to "
            "no other, which a managed policy could."
        ),
    ),
    Acknowledged(
        rule="LambdaDLQ",
        packs=_STRICT,
        resource=FUNCTION,
        reason=(
            "Called synchronously (endpoint, custom resource), or by a schedule that calls again: "
            "no event is lost that a queue could keep."
        ),
    ),
    Acknowledged(
        rule="LambdaConcurrency",
        packs=_STRICT,
        resource=FUNCTION,
        reason=(
            "Reserved concurrency takes from the account's other functions, and new accounts have "
            "10 in all, of which none can be reserved. max_concurrency= sets it on an endpoint."
        ),
    ),
    Acknowledged(
        rule="LambdaInsideVPC",
        packs=_STRICT,
        resource=FUNCTION,
        reason=(
            "It reaches nothing but AWS's own APIs, by TLS and with its role. vpc= puts an "
            "endpoint into a network."
        ),
    ),
    Acknowledged(
        rule="IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole]",
        packs=(AWS_SOLUTIONS,),
        resource=ROLE,
        under="Custom::CDKBucketDeployment",
        reason="The CDK's own function; its role is not ours to write.",
    ),
    Acknowledged(
        rule="L1",
        packs=(AWS_SOLUTIONS,),
        resource=FUNCTION,
        under="Custom::CDKBucketDeployment",
        reason="The CDK's own function; it moves to newer run times with aws-cdk-lib.",
    ),
    Acknowledged(
        rule="S3DefaultEncryptionKMS",
        packs=_STRICT,
        resource=BUCKET,
        under="/AccessLogs/",
        reason="S3 delivers access logs to no bucket with a KMS key.",
    ),
    Acknowledged(
        rule="S3BucketVersioningEnabled",
        packs=_STRICT,
        resource=BUCKET,
        under="/AccessLogs/",
        reason="S3 writes each log object once under a name of its own; nothing is overwritten.",
    ),
    Acknowledged(
        rule="S3BucketReplicationEnabled",
        packs=_STRICT,
        resource=BUCKET,
        but=_RUNS,
        reason=(
            "A package can be packed again from its folder, byte for byte, and pushed anywhere; "
            "access logs are kept for 90 days in one region."
        ),
    ),
    Acknowledged(
        rule="S3BucketReplicationEnabled",
        packs=_STRICT,
        resource=BUCKET,
        under=_RUNS,
        reason=(
            "What a training keeps can be made again from the photographs; a copy of patients' "
            "records in another place would be one more to delete."
        ),
    ),
    Acknowledged(
        rule="S3DefaultEncryptionKMS",
        packs=_STRICT,
        resource=BUCKET,
        under="/Bucket/",
        but=_RUNS,
        choice=True,
        reason=(
            "Encrypted with keys that S3 manages; a model trained on drawn photographs is no "
            "secret. encryption_key= on ModelArtifactBucket takes a key of your own."
        ),
    ),
    Acknowledged(
        rule="S3DefaultEncryptionKMS",
        packs=_STRICT,
        resource=BUCKET,
        under=_RUNS,
        choice=True,
        reason=(
            "Encrypted with keys that S3 manages; it holds records of the photographs that a "
            "training was given. encryption_key= on DRTrainingPipeline takes a key of your own."
        ),
    ),
    Acknowledged(
        rule="CloudWatchLogGroupEncrypted",
        packs=_STRICT,
        resource=LOG_GROUP,
        choice=True,
        reason=(
            "Encrypted by CloudWatch Logs; the service writes no patient data, file name or image "
            "to its log. log_encryption_key= takes a key of your own."
        ),
    ),
    Acknowledged(
        rule="SageMakerEndpointConfigurationKMSKeyConfigured",
        packs=_STRICT,
        resource=CONFIG,
        choice=True,
        reason=(
            "The volumes hold the model and no photograph, which is never written to disk. "
            "encryption_key= on a real-time endpoint takes a key of your own; serverless has none."
        ),
    ),
    Acknowledged(
        rule="CloudWatchAlarmAction",
        packs=_STRICT,
        resource=ALARM,
        choice=True,
        reason=(
            "Whom to tell is the deployment's choice: alarm_actions= on a training, alarms= on an "
            "endpoint, whose rollback alarms the deployment that they take back reads itself."
        ),
    ),
)

# Why a statement needs a wildcard, by its Sid; rule AwsSolutions-IAM5.
WILDCARDS: Final[Mapping[str, str]] = {
    "LogInToRegistry": "ecr:GetAuthorizationToken knows no resources: the token is the account's.",
    "PublishMetrics": (
        "cloudwatch:PutMetricData knows no resources; a condition narrows it to the namespaces."
    ),
    "WriteLogs": "Streams of the one log group, which the platform names after its instances.",
    "ReadRollbackAlarms": "Alarms of this endpoint, whose names begin with the endpoint's.",
    "FindStacks": "cloudformation:DescribeStacks without a name is a permission on all stacks.",
    "DeleteExpiredStacks": (
        "Stacks of the janitor's prefix, and only those that carry the tag of a time to live."
    ),
    "WriteCapturedData": "Objects below the one prefix that captured data go to.",
    "MakeNetworkInterfaces": "Interfaces have no name before they are made.",
    "DescribeNetwork": "ec2:Describe… knows no resources.",
    "ReadPhotographs": (
        "Photographs below the prefix that a training is given; without one, the whole bucket is "
        "photographs."
    ),
    "ReadRuns": "Folders of executions, which name them; of these what this role reads.",
    "WriteRuns": "Folders of executions, which name them; of these what this role writes.",
    "DeleteCheckpoints": "Folders of executions, which name them; of these the checkpoints.",
    "BringCode": "Folders of executions, which name them; of these the code.",
    "ReadReports": "Folders of executions, which name them; of these the two reports.",
    "PublishPackages": "Packages of one id, which are named by their digests.",
    "ReadPackages": "Packages of one id, which are named by their digests.",
    "MakeJobLogGroup": "The one group of all jobs of an account, which its ARN names with a star.",
    "WriteJobLogs": "Streams of this pipeline's jobs, in the group of all jobs of an account.",
    "RegisterPackages": "Versions of the one group of models, which are numbered.",
    "DeliverLogs": "Log deliveries know no resources.",
    "TraceExecutions": "X-Ray knows no resources for what is sent to it.",
}
_OF_THE_CDK_WILDCARDS: Final = (
    "The CDK's own function; it copies from the bootstrap's bucket into the bucket of models."
)


_SCOPE: Final = Kind(words="an app or a stack", attribute="node", optional=False)


def acknowledge_findings(scope: IConstruct, *, choices: bool = False) -> None:
    """Attach the reasons to the constructs of this library below `scope`.

    Args:
        scope: an app or a stack, complete.
        choices: also acknowledge what the deployment decides (keys of one's own, actions of
            alarms), as for this project's stacks, which hold no patient's data.

    Raises:
        ValidationError: `scope` is no construct.
    """
    refuse("acknowledge_findings", kind_faults({"scope": scope}, {"scope": _SCOPE}))
    for resource in _own_resources(scope):
        path = resource.node.path
        kind = resource.cfn_resource_type
        found = [
            cdk.Acknowledgment(id=f"{pack}::{pack}-{row.rule}", reason=row.reason)
            for row in ACKNOWLEDGED
            if row.resource == kind and row.stands_at(path) and (choices or not row.choice)
            for pack in row.packs
        ]
        if kind == POLICY:
            found += _wildcards(resource)
        if found:
            cdk.Validations.of(resource).acknowledge(*found)


def _own_resources(scope: IConstruct) -> Iterator[cdk.CfnResource]:
    """Resources below constructs of this library, and of the CDK's functions beside them."""
    own = _is_own(scope)
    pending = [(scope, own)]
    while pending:
        construct, own = pending.pop()
        if own and isinstance(construct, cdk.CfnResource):
            yield construct
        pending += [(child, own or _is_own(child)) for child in construct.node.children]


def _is_own(construct: IConstruct) -> bool:
    library = __name__.partition(".")[0]
    return type(construct).__module__.startswith(f"{library}.") or construct.node.id.startswith(
        (*_OF_THE_CDK, "EmptyBucketsLogs")
    )


def _wildcards(policy: cdk.CfnResource) -> Iterator[cdk.Acknowledgment]:
    stack = cdk.Stack.of(policy)
    of_the_cdk = any(name in policy.node.path for name in _OF_THE_CDK)
    document = stack.resolve(policy.policy_document)  # type: ignore[attr-defined]
    seen = set()
    for statement in document["Statement"]:
        reason = (
            _OF_THE_CDK_WILDCARDS
            if of_the_cdk
            else WILDCARDS.get(plain_sid(statement.get("Sid", "")))
        )
        if reason is None:
            continue
        for kind, key in (("Action", "Action"), ("Resource", "Resource")):
            values = statement.get(key, [])
            for value in values if isinstance(values, list) else [values]:
                text = _flat(value)
                name = f"{AWS_SOLUTIONS}::{AWS_SOLUTIONS}-IAM5[{kind}::{text}]"
                if "*" in text and name not in seen:
                    seen.add(name)
                    yield cdk.Acknowledgment(id=name, reason=reason)


def _flat(value: Any) -> str:
    """A value of a template as cdk-nag writes it in the name of a finding."""
    if isinstance(value, dict):
        ((name, inside),) = value.items()
        if name == "Ref":
            return f"<{inside}>"
        if name == "Fn::GetAtt":
            return f"<{'.'.join(inside)}>"
        if name == "Fn::Join":
            return str(inside[0]).join(_flat(part) for part in inside[1])
        if name == "Fn::ImportValue":
            return _flat(inside)
        if name == "Fn::Sub":
            text = inside if isinstance(inside, str) else inside[0]
            return str(text).replace("${", "<").replace("}", ">")
        return str(value)
    return str(value)
