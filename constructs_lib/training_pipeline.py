"""Training on SageMaker, from photographs to a registered model, as a state machine."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_stepfunctions as stepfunctions
from constructs import Construct

from constructs_lib import limits
from constructs_lib.claimed_names import STATE_MACHINE, claim_name, name_faults
from constructs_lib.encryption_keys import key_arn_of, key_itself
from constructs_lib.endpoint_options import OPTION_KINDS
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.kinds import (
    BUCKET,
    FLAG,
    KEY,
    REMOVAL_POLICY,
    TEXT,
    Kind,
    absent_faults,
    kind_faults,
    required,
)
from constructs_lib.log_keys import let_logs_use
from constructs_lib.model_artifact_bucket import ModelArtifactBucket
from constructs_lib.network import grant_sagemaker_network, select_subnets, subnet_faults
from constructs_lib.rules import bounded_fault, is_integer, refuse, shown, tag_faults
from constructs_lib.sagemaker_endpoint import IN_PUBLIC_SUBNETS, image_faults
from constructs_lib.surroundings import refuse_place
from constructs_lib.tokens import is_token, known_number, known_text
from constructs_lib.training_alarms import PipelineAlarms, execution_metric
from constructs_lib.training_code import CODE_FILE, training_code
from constructs_lib.training_roles import (
    PipelinePlaces,
    grant_orchestration,
    grant_processing,
    grant_training,
)
from constructs_lib.training_rules import (
    DAY_S,
    PIPELINE_NAME_CHARACTERS,
    GateThresholds,
    hyperparameter_faults,
    image_runtime_faults,
    job_faults,
    keeping_faults,
    option_arguments,
    option_texts,
    pipeline_faults,
    preparation_faults,
    task_faults,
)
from constructs_lib.training_states import (
    PROCESSING_STEPS,
    QUOTA_WAIT_S,
    Machines,
    PipelinePlan,
    definition,
    runs_folder,
)

RANDOM_WEIGHTS: Final = "dr-endpoints:trainsFromRandomWeights"
_LOG_PREFIX: Final = "/aws/vendedlogs/states/"
# As `ec2.Port.esp()`, without ports, which this protocol has none of.
_ESP: Final = ec2.Port(protocol=ec2.Protocol.ESP, string_representation="ESP")
# TensorFlow's, and what encryption between hosts takes.
# Source: https://docs.aws.amazon.com/sagemaker/latest/dg/train-encrypt.html (as known)
TRAINING_PORT: Final = 2222
_BETWEEN_HOSTS: Final = (ec2.Port.tcp(TRAINING_PORT), ec2.Port.udp(500), _ESP)
# Of every job: finding an instance, fetching what it reads, writing what it made.
_AROUND_A_JOB_S: Final = 3600
_JOBS: Final = len(PROCESSING_STEPS) + 1
# Step Functions marks a job that it waits for as its own (as known).
_TAGS_OF_A_JOB: Final = 1
# A version that another has taken the place of is of no use: each run has a folder of its own.
_NONCURRENT_DAYS: Final = 1
_OPTIONS: Final = Kind(words="a mapping of options to values, {'epochs': 20}", types=(Mapping,))
_KINDS: Final[Mapping[str, Kind]] = {
    "models": Kind(words="a ModelArtifactBucket", types=(ModelArtifactBucket,), optional=False),
    "image": Kind(
        words="an InferenceImage, which InferenceImageRepo.image and InferenceImage.from_uri make",
        types=(InferenceImage,),
        optional=False,
    ),
    "photographs": required(BUCKET),
    "photographs_prefix": required(TEXT),
    "package_id": required(TEXT),
    "gate": Kind(words="GateThresholds(…)", types=(GateThresholds,), optional=False),
    "hyperparameters": required(_OPTIONS),
    "preparation": _OPTIONS,
    "training_instance_type": required(TEXT),
    "processing_instance_type": required(TEXT),
    "spot": FLAG,
    "runs_bucket": BUCKET,
    "encryption_key": KEY,
    "pipeline_name": TEXT,
    "model_package_group_name": TEXT,
    "alarm_actions": Kind(
        words="a list of alarm actions, aws_cloudwatch_actions.SnsAction(topic) for example",
        attribute="bind",
        many=True,
        optional=False,
    ),
    "removal_policy": REMOVAL_POLICY,
    "auto_delete_objects": FLAG,
    **{
        name: OPTION_KINDS[name]
        for name in (
            "log_retention",
            "log_encryption_key",
            "vpc",
            "vpc_subnets",
            "security_groups",
            "network_isolation",
            "tags",
        )
    },
}


class DRTrainingPipeline(Construct):
    """Trains a classifier on SageMaker, judges it, and registers it for a person to approve.

        DRTrainingPipeline(
            self,
            "Training",
            models=models,
            image=images.image(architecture="amd64", runtime="tensorflow"),
            photographs=photographs,
            package_id="clinic",
            hyperparameters={"network": "mobilenet", "weights": "random", "epochs": 20},
            gate=GateThresholds(min_sensitivity=0.85, min_specificity=0.7, min_kappa=0.6),
            training_instance_type="ml.c5.4xlarge",
        )

    Each execution prepares records from the photographs, trains on Spot instances, judges the model
    on the records' test part, and where the gate is passed, packs it into the bucket of models and
    registers it as `PendingManualApproval`. A gate that is not passed ends it as failed, with the
    error `GateRefused` and the reasons. It keeps everything below
    `runs/<pipeline_name>/<its name>/`.

    Args:
        models: the bucket of packages; the package goes to `models/<package_id>/<digest>.tar.gz`.
        image: an image of runtime `tensorflow` and architecture `amd64`: no instance type of such
            jobs is Graviton. What trains is what serves later.
        photographs: the bucket of a folder as `dr data prepare` reads it; patients' photographs,
            so that only the role of processing jobs may read them.
        photographs_prefix: of the folder in it.
        package_id: id of the package; also which folder of `models` may be written.
        hyperparameters: options of `dr model train`, with underscores; `network` among them.
        gate: what the model must show; of one that only refers (`"task": "referable"`) no kappa.
        preparation: options of `dr data prepare`, with underscores, `{"size_px": 299}` for example.
        training_instance_type: a CPU instance type of training jobs. New accounts are allowed none
            of many types: ask for a quota first, for Spot training apart.
        training_instance_count: hosts that train together, at least 1.
        training_volume_gb: of each host, 1 to 16,384.
        training_max_runtime_s: seconds after which a training is stopped, at most 28 days.
        spot: train on Spot instances, which may be taken away: the training goes on from its
            checkpoint when there are some again.
        training_max_wait_s: seconds of waiting for Spot capacity and training together, at least
            `training_max_runtime_s`.
        processing_instance_type: of the jobs that prepare, judge and pack.
        processing_volume_gb: of these jobs, 1 to 16,384.
        processing_max_runtime_s: of each of these jobs, at most 9 days.
        runs_bucket: your own bucket for what executions keep; several pipelines may share it. Its
            life is yours.
        keep_runs_days: after how many days what an execution keeps is deleted, photographs' records
            among it, from the bucket that is made here; at least as long as an execution may take.
            None keeps it.
        encryption_key: KMS key of the volumes, and of the bucket that is made here.
        pipeline_name: of the state machine; jobs, alarms and the group of models begin with it. At
            most 42 lower-case letters, digits and inner hyphens.
        model_package_group_name: a group of the model registry that is there already, by its name.
        alarm_actions: of the alarms of failed and timed-out executions.
        log_retention: how long the state machine's log is kept. The jobs' logs are in SageMaker's
            own groups, which all jobs of an account share.
        log_encryption_key: KMS key of the log; one that is not made in this app must let
            CloudWatch Logs use it.
        vpc: where jobs have their network; it needs a way to S3, the registry and CloudWatch Logs.
        vpc_subnets: of the VPC.
        security_groups: of the jobs; with several hosts they must let hosts reach each other by TCP
            2222, UDP 500 and ESP.
        network_isolation: no network for the containers, except among the hosts of one training.
        removal_policy: what `cdk destroy` does with the bucket and the group that are made here. A
            group that holds models is not deleted: delete its versions first. One that was kept has
            its name still: give it as model_package_group_name to deploy again.
        auto_delete_objects: empty the bucket before it is deleted; needs DESTROY.
        tags: on all that the construct defines, and on each job; at most 49, since Step Functions
            adds one to a job.

    Defaults: the whole bucket of photographs; `dr data prepare`'s own options; one host, 50 GB, a
        day of training, Spot, twice the time with the wait; `ml.m5.xlarge`, 50 GB and four hours
        for the other jobs; a bucket and a group of its own, kept for ever; no key; a name from the
        construct's path; alarms without actions; one month of logs; no VPC; isolated; no tags.

    Defines: a state machine with its role and log group, two roles of jobs, two alarms, the archive
        of the code, an output with the ARN; and unless given, a bucket with its log bucket and a
        model package group; a security group in a VPC without one.

    Raises:
        ValidationError: listing everything that SageMaker would refuse.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        models: ModelArtifactBucket,
        image: InferenceImage,
        photographs: s3.IBucket,
        photographs_prefix: str = "",
        package_id: str,
        hyperparameters: Mapping[str, object],
        gate: GateThresholds,
        preparation: Mapping[str, object] | None = None,
        training_instance_type: str,
        training_instance_count: int = 1,
        training_volume_gb: int = 50,
        training_max_runtime_s: int = DAY_S,
        spot: bool = True,
        training_max_wait_s: int | None = None,
        processing_instance_type: str = "ml.m5.xlarge",
        processing_volume_gb: int = 50,
        processing_max_runtime_s: int = 4 * 3600,
        runs_bucket: s3.IBucket | None = None,
        keep_runs_days: int | None = None,
        encryption_key: kms.IKey | None = None,
        pipeline_name: str | None = None,
        model_package_group_name: str | None = None,
        alarm_actions: Sequence[cloudwatch.IAlarmAction] = (),
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
        log_encryption_key: kms.IKey | None = None,
        vpc: ec2.IVpc | None = None,
        vpc_subnets: ec2.SubnetSelection | None = None,
        security_groups: Sequence[ec2.ISecurityGroup] | None = None,
        network_isolation: bool = True,
        removal_policy: cdk.RemovalPolicy = cdk.RemovalPolicy.RETAIN,
        auto_delete_objects: bool = False,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        given = locals()
        refuse_place(type(self), scope, construct_id)
        super().__init__(scope, construct_id)
        subject = f"DRTrainingPipeline {self.node.path}"
        refuse(subject, kind_faults({name: given[name] for name in _KINDS}, _KINDS))
        encryption_key, log_encryption_key = map(key_itself, (encryption_key, log_encryption_key))
        stack = cdk.Stack.of(self)
        named = known_text(pipeline_name)
        jobs = job_faults(
            training_instance_type=known_text(training_instance_type),
            training_instance_count=known_number(training_instance_count),
            training_volume_gb=known_number(training_volume_gb),
            training_max_runtime_s=known_number(training_max_runtime_s),
            training_max_wait_s=known_number(training_max_wait_s),
            spot=spot,
            processing_instance_type=known_text(processing_instance_type),
            processing_volume_gb=known_number(processing_volume_gb),
            processing_max_runtime_s=known_number(processing_max_runtime_s),
            volume_key=encryption_key is not None,
        )
        wait_s = training_max_wait_s if spot else None
        # Twice a token is none.
        if spot and wait_s is None and not jobs and not is_token(training_max_runtime_s):
            wait_s = 2 * training_max_runtime_s
        timeout_s = (
            None
            if jobs
            else _timeout_s(
                training_max_runtime_s if wait_s is None else wait_s, processing_max_runtime_s
            )
        )
        faults = [
            *absent_faults(
                training_instance_count=training_instance_count,
                training_volume_gb=training_volume_gb,
                training_max_runtime_s=training_max_runtime_s,
                processing_volume_gb=processing_volume_gb,
                processing_max_runtime_s=processing_max_runtime_s,
            ),
            *image_runtime_faults(runtime=image.runtime, architecture=image.architecture),
            *image_faults(image, stack),
            *pipeline_faults(
                pipeline_name=named,
                package_id=known_text(package_id),
                model_package_group_name=known_text(model_package_group_name),
            ),
            *gate.faults(),
            *hyperparameter_faults(
                hyperparameters,
                network_isolation=network_isolation,
                hosts=training_instance_count,
            ),
            *task_faults(hyperparameters, gate),
            *preparation_faults(preparation or {}),
            *jobs,
            *keeping_faults(keep_runs_days, own_bucket=runs_bucket is None, longest_s=timeout_s),
            *_network_faults(vpc, vpc_subnets, security_groups),
            *tag_faults(tags or {}, added=_TAGS_OF_A_JOB),
            *_region_faults(
                stack,
                photographs=photographs,
                runs_bucket=runs_bucket,
                models=models.bucket,
                encryption_key=encryption_key,
                log_encryption_key=log_encryption_key,
                vpc=vpc,
            ),
        ]
        if photographs_prefix.startswith("s3://"):
            faults.append(
                "photographs_prefix must be the part behind the bucket's name; "
                f"got {shown(photographs_prefix)}"
            )
        if spot and training_max_wait_s is None and is_token(training_max_runtime_s):
            faults.append(
                "training_max_wait_s must be given where only the deployment knows "
                "training_max_runtime_s"
            )
        faults += [
            f"{name} is for what is made here, and nothing is: a bucket and a group are given"
            for name, changed in (
                ("removal_policy", removal_policy != cdk.RemovalPolicy.RETAIN),
                ("auto_delete_objects", auto_delete_objects),
            )
            if changed and runs_bucket is not None and model_package_group_name is not None
        ]
        if auto_delete_objects and removal_policy != cdk.RemovalPolicy.DESTROY:
            faults.append("auto_delete_objects needs removal_policy DESTROY")
        # Alarms begin with the name, too, and none ends as an endpoint's do.
        kinds = (STATE_MACHINE,)
        if named is not None:
            faults += name_faults(self, kinds=kinds, name=named, prop="pipeline_name")
        refuse(subject, faults)
        if network_isolation and hyperparameters.get("weights", "auto") == "auto":
            cdk.Annotations.of(self).add_warning_v2(
                RANDOM_WEIGHTS,
                "with network_isolation the jobs fetch no ImageNet weights, and weights=auto "
                "trains from random ones: say weights='random', or give network_isolation=False",
            )
        self.pipeline_name = (
            pipeline_name
            or cdk.Names.unique_resource_name(
                self, max_length=PIPELINE_NAME_CHARACTERS, separator="-"
            ).lower()
        )
        claim_name(self, kinds=kinds, name=self.pipeline_name)
        for key, value in (tags or {}).items():
            cdk.Tags.of(self).add(key, value)
        self.image = image
        self.runs_bucket = runs_bucket or self._own_bucket(
            encryption_key, log_encryption_key, removal_policy, auto_delete_objects, keep_runs_days
        )
        self.model_package_group_name = (
            self.pipeline_name if model_package_group_name is None else model_package_group_name
        )
        groups: list[ec2.ISecurityGroup] = []
        subnet_ids: list[str] = []
        if vpc is not None:
            groups, subnet_ids = self._network(
                vpc, vpc_subnets, security_groups, hosts=training_instance_count
            )
        places = PipelinePlaces(
            stack=stack,
            pipeline_name=self.pipeline_name,
            package_id=package_id,
            image=image,
            photographs=photographs,
            photographs_prefix=photographs_prefix.strip("/"),
            runs=self.runs_bucket,
            models=models.bucket,
            volume_key=encryption_key,
        )
        self.processing_role = self._job_role("ProcessingRole", "Prepares, judges and packs")
        self.training_role = self._job_role("TrainingRole", "Trains")
        grant_processing(self.processing_role, places)
        grant_training(self.training_role, places)
        if vpc is not None:
            for role in (self.processing_role, self.training_role):
                grant_sagemaker_network(role, stack, subnet_ids, groups)
        code = self._code()
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("states.amazonaws.com"),
            description=f"Runs the trainings of {self.pipeline_name}",
        )
        grant_orchestration(
            self.role,
            places,
            job_roles=(self.processing_role, self.training_role),
            code_arn=code.bucket.arn_for_objects(code.s3_object_key),
            model_package_group=self.model_package_group_name,
        )
        training = Machines(
            instance_type=training_instance_type,
            instance_count=training_instance_count,
            volume_gb=training_volume_gb,
            max_runtime_s=training_max_runtime_s,
            max_wait_s=wait_s,
        )
        processing = Machines(
            instance_type=processing_instance_type,
            instance_count=1,
            volume_gb=processing_volume_gb,
            max_runtime_s=processing_max_runtime_s,
        )
        self._make_log_group(log_retention, log_encryption_key)
        prefix = places.photographs_prefix
        self.cfn_state_machine = self._make_state_machine(
            PipelinePlan(
                partition=stack.partition,
                pipeline_name=self.pipeline_name,
                package_id=package_id,
                image_uri=image.uri,
                code_source=f"{code.s3_bucket_name}/{code.s3_object_key}",
                photographs_url=f"s3://{photographs.bucket_name}/{f'{prefix}/' if prefix else ''}",
                runs_bucket=self.runs_bucket.bucket_name,
                models_bucket=models.bucket.bucket_name,
                model_package_group=self.model_package_group_name,
                training_role_arn=self.training_role.role_arn,
                processing_role_arn=self.processing_role.role_arn,
                training=training,
                processing=processing,
                hyperparameters=option_texts(hyperparameters),
                prepare_arguments=option_arguments(preparation or {}),
                gate_arguments=gate.arguments(),
                network_isolation=network_isolation,
                # Between hosts only; a token may be more than one.
                encrypt_traffic=not is_integer(training_instance_count, 1, 1),
                subnet_ids=subnet_ids,
                security_group_ids=[group.security_group_id for group in groups],
                runs_key=key_arn_of(self.runs_bucket),
                models_key=key_arn_of(models.bucket),
                volume_key=None if encryption_key is None else encryption_key.key_arn,
                tags=tags,
                timeout_s=timeout_s,
            )
        )
        for role in (self.role, self.processing_role, self.training_role):
            self.cfn_state_machine.node.add_dependency(role)
        for dependency in image.dependencies:
            self.cfn_state_machine.node.add_dependency(dependency)
        if model_package_group_name is None:
            group = sagemaker.CfnModelPackageGroup(
                self,
                "Models",
                model_package_group_name=self.model_package_group_name,
                model_package_group_description=f"Models that {self.pipeline_name} trained",
            )
            group.apply_removal_policy(_of_a_named_resource(removal_policy))
            self.cfn_state_machine.node.add_dependency(group)
        self.alarms = PipelineAlarms(
            self,
            "Alarms",
            pipeline_name=self.pipeline_name,
            state_machine_arn=self.state_machine_arn,
            actions=alarm_actions,
        )
        cdk.CfnOutput(
            self,
            "StateMachineArn",
            value=self.state_machine_arn,
            description=f"Starts a training: aws stepfunctions start-execution ({construct_id})",
        )

    @property
    def state_machine_arn(self) -> str:
        """What an execution is started of."""
        return self.cfn_state_machine.ref

    def grant_start(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` start trainings of this pipeline, and of no other."""
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["states:StartExecution"],
            resource_arns=[self.state_machine_arn],
        )

    def metric_failed(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Executions that failed, refused models among them, counted (sum)."""
        return self._metric("ExecutionsFailed", period)

    def metric_succeeded(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Executions that registered a model, counted (sum)."""
        return self._metric("ExecutionsSucceeded", period)

    def _metric(self, name: str, period: cdk.Duration | None) -> cloudwatch.Metric:
        return execution_metric(self.state_machine_arn, name, period=period).attach_to(self)

    def _own_bucket(
        self,
        encryption_key: kms.IKey | None,
        log_encryption_key: kms.IKey | None,
        removal_policy: cdk.RemovalPolicy,
        auto_delete_objects: bool,
        keep_runs_days: int | None,
    ) -> s3.IBucket:
        # Private, encrypted, with TLS and an access log, as the bucket of models is.
        made = ModelArtifactBucket(
            self,
            "Runs",
            encryption_key=encryption_key,
            log_encryption_key=log_encryption_key,
            removal_policy=removal_policy,
            auto_delete_objects=auto_delete_objects,
            noncurrent_days=_NONCURRENT_DAYS,
        ).bucket
        if keep_runs_days is not None:
            cast("s3.Bucket", made).add_lifecycle_rule(
                prefix=f"{runs_folder(self.pipeline_name)}/",
                expiration=cdk.Duration.days(keep_runs_days),
            )
        return made

    def _network(
        self,
        vpc: ec2.IVpc,
        vpc_subnets: ec2.SubnetSelection | None,
        security_groups: Sequence[ec2.ISecurityGroup] | None,
        *,
        hosts: int,
    ) -> tuple[list[ec2.ISecurityGroup], list[str]]:
        selected = select_subnets(vpc, vpc_subnets)
        if selected.has_public:
            cdk.Annotations.of(self).add_warning_v2(
                IN_PUBLIC_SUBNETS,
                "the jobs are in public subnets, where their instances get no public address: "
                "they reach S3 and the registry only by VPC endpoints",
            )
        if security_groups is not None:
            return list(security_groups), list(selected.subnet_ids)
        own = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=vpc,
            description=f"Trainings of {self.pipeline_name}: everything out, each other in",
        )
        if not is_integer(hosts, 1, 1):
            for port in _BETWEEN_HOSTS:
                own.add_ingress_rule(own, port, "Hosts of one training reach each other")
        return [own], list(selected.subnet_ids)

    def _job_role(self, name: str, does: str) -> iam.Role:
        return iam.Role(
            self,
            name,
            assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"),
            description=f"{does}, for {self.pipeline_name}",
        )

    def _code(self) -> s3_assets.Asset:
        with tempfile.TemporaryDirectory(prefix="dr-endpoints-") as folder:
            path = Path(folder, CODE_FILE)
            path.write_bytes(training_code())
            # Copied into the assembly here and now.
            return s3_assets.Asset(self, "Code", path=str(path))

    def _make_log_group(
        self, retention: logs.RetentionDays, encryption_key: kms.IKey | None
    ) -> None:
        let_logs_use(encryption_key)
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"{_LOG_PREFIX}{self.pipeline_name}",
            retention=retention,
            encryption_key=encryption_key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )

    def _make_state_machine(self, plan: PipelinePlan) -> stepfunctions.CfnStateMachine:
        cfn = stepfunctions.CfnStateMachine
        return cfn(
            self,
            "StateMachine",
            state_machine_name=self.pipeline_name,
            state_machine_type="STANDARD",
            role_arn=self.role.role_arn,
            definition_string=cdk.Stack.of(self).to_json_string(definition(plan)),
            logging_configuration=cfn.LoggingConfigurationProperty(
                destinations=[
                    cfn.LogDestinationProperty(
                        cloud_watch_logs_log_group=cfn.CloudWatchLogsLogGroupProperty(
                            log_group_arn=self.log_group.log_group_arn
                        )
                    )
                ],
                # Addresses, figures and reasons; never a photograph or who is on it.
                include_execution_data=True,
                level="ALL",
            ),
            tracing_configuration=cfn.TracingConfigurationProperty(enabled=True),
        )


def _timeout_s(training_s: int, processing_s: int) -> int | None:
    """When an execution cannot be at work any more; None where only the deployment knows.

    `training_s` holds the wait for Spot instances, `processing_s` is of one job.
    """
    if is_token(training_s) or is_token(processing_s):
        return None
    around_s = _JOBS * (_AROUND_A_JOB_S + QUOTA_WAIT_S)
    return training_s + len(PROCESSING_STEPS) * processing_s + around_s


def _of_a_named_resource(policy: cdk.RemovalPolicy) -> cdk.RemovalPolicy:
    """The same for what has a name of ours: a first deployment that fails must free the name."""
    if policy == cdk.RemovalPolicy.RETAIN:
        return cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
    return policy


def _network_faults(
    vpc: ec2.IVpc | None,
    vpc_subnets: ec2.SubnetSelection | None,
    security_groups: Sequence[ec2.ISecurityGroup] | None,
) -> list[str]:
    if vpc is None:
        return [
            f"{name} needs vpc: there is nothing to choose from without"
            for name, value in (("vpc_subnets", vpc_subnets), ("security_groups", security_groups))
            if value
        ]
    faults = subnet_faults(vpc, vpc_subnets, public_allowed=True)
    if security_groups is not None:
        low, high = limits.SECURITY_GROUPS
        count = len(security_groups)
        faults += bounded_fault("security_groups (how many)", count, low, high, "SECURITY_GROUPS")
    return faults


def _region_faults(stack: cdk.Stack, **given: Any) -> list[str]:
    """What is given from another region, where the jobs do not look for it."""
    here = known_text(stack.region)
    places = {
        name: known_text(it.env.region)
        for name, it in given.items()
        if it is not None and here is not None
    }
    return [
        f"{name} must be in the stack's region, {here}, where the jobs look for it; got {there}"
        for name, there in places.items()
        if there not in (None, "", here)
    ]
