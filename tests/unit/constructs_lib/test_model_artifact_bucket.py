"""The bucket, its packages, and who may read them."""

import json
import tarfile
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import ModelArtifact, ModelArtifactBucket, ValidationError
from inference_image.model_spec import ModelPackageError, load_model_spec
from tests.constructs_fixtures import (
    SHA256,
    Template,
    make_package,
    manifest_of,
    new_app,
    new_stack,
    only,
    resources,
    statements,
    template_of,
)

BUCKET = "AWS::S3::Bucket"
COPY = "Custom::CDKBucketDeployment"
MIB = 1024 * 1024


def a_role(stack: cdk.Stack) -> iam.Role:
    return iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"))


def model_bucket(template: Template) -> dict[str, Any]:
    """The bucket of packages, which is versioned; the one of access logs is not."""
    (bucket,) = (
        it
        for it in resources(template, BUCKET).values()
        if "VersioningConfiguration" in it["Properties"]
    )
    return bucket  # type: ignore[no-any-return]


def log_bucket(template: Template) -> dict[str, Any]:
    (bucket,) = (
        it
        for it in resources(template, BUCKET).values()
        if "VersioningConfiguration" not in it["Properties"]
    )
    return bucket  # type: ignore[no-any-return]


def assert_refused(words: list[str], stack: cdk.Stack, **props: object) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelArtifactBucket(stack, "Models", **props)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


def test_contradictions_are_refused_together() -> None:
    assert_refused(
        ["Stack/Models", "removal_policy DESTROY", "noncurrent_days", "got 0"],
        new_stack(),
        auto_delete_objects=True,
        noncurrent_days=0,
    )


def test_an_unknown_way_to_publish_is_refused(tmp_path: Path) -> None:
    package = make_package(tmp_path, "demo")
    bucket = ModelArtifactBucket(new_stack(), "Models")
    with pytest.raises(ValidationError, match="deployment, external; got 'ftp'"):
        bucket.add_model(package, publish="ftp")  # type: ignore[arg-type]


def test_a_damaged_package_is_refused(tmp_path: Path) -> None:
    package = make_package(tmp_path, "demo")
    (package / "model.tflite").write_bytes(b"A model")
    with pytest.raises(ModelPackageError, match=r"model\.tflite does not have the SHA-256"):
        ModelArtifactBucket(new_stack(), "Models").add_model(package)


def test_a_package_without_its_files_is_refused_unless_it_is_pushed_from_outside(
    tmp_path: Path,
) -> None:
    package = make_package(tmp_path, "demo", present=False)
    bucket = ModelArtifactBucket(new_stack(), "Models")
    with pytest.raises(ModelPackageError, match=r"model\.tflite is missing"):
        bucket.add_model(package)
    assert bucket.add_model(package, publish="external").key.startswith("models/demo/")


def test_a_package_larger_than_the_copying_function_is_refused(tmp_path: Path) -> None:
    file = {"sha256": "0" * 64, "size_bytes": 5 * 1024 * MIB}
    package = make_package(tmp_path, "demo", files={"model.tflite": file})
    with pytest.raises(ValidationError, match="publish must be 'external' for a package of 5120"):
        ModelArtifactBucket(new_stack(), "Models").add_model(package)


def test_the_bucket_is_private_versioned_encrypted_and_unnamed() -> None:
    stack = new_stack()
    ModelArtifactBucket(stack, "Models")
    template = template_of(stack)
    props = model_bucket(template)["Properties"]
    assert "BucketName" not in props
    assert props["PublicAccessBlockConfiguration"] == {
        "BlockPublicAcls": True,
        "BlockPublicPolicy": True,
        "IgnorePublicAcls": True,
        "RestrictPublicBuckets": True,
    }
    assert props["VersioningConfiguration"] == {"Status": "Enabled"}
    rules = props["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rules == [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
    rule, markers = props["LifecycleConfiguration"]["Rules"]
    assert markers["ExpiredObjectDeleteMarker"] is True
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}


def test_plain_http_is_denied() -> None:
    stack = new_stack()
    ModelArtifactBucket(stack, "Models")
    policies = resources(template_of(stack), "AWS::S3::BucketPolicy").values()
    assert len(policies) == 2
    for policy in policies:
        statement = policy["Properties"]["PolicyDocument"]["Statement"][0]
        assert statement["Effect"] == "Deny"
        assert statement["Action"] == "s3:*"
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


@pytest.mark.parametrize("flag", [True, False])
def test_every_request_for_a_package_is_recorded(flag: bool) -> None:
    """With the feature flag of new CDK apps and without it."""
    app = new_app(context={"@aws-cdk/aws-s3:serverAccessLogsUseBucketPolicy": flag})
    stack = cdk.Stack(app, "Stack")
    ModelArtifactBucket(stack, "Models", access_log_days=30)
    template = template_of(stack)
    logging = model_bucket(template)["Properties"]["LoggingConfiguration"]
    assert logging["LogFilePrefix"] == "model-bucket/"
    (log_id,) = (
        name for name, it in resources(template, BUCKET).items() if it is log_bucket(template)
    )
    assert logging["DestinationBucketName"] == {"Ref": log_id}
    (rule,) = log_bucket(template)["Properties"]["LifecycleConfiguration"]["Rules"]
    assert rule["ExpirationInDays"] == 30
    (delivery,) = (
        statement
        for policy in resources(template, "AWS::S3::BucketPolicy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement.get("Sid") == "DeliverAccessLogs"
    )
    assert delivery["Principal"] == {"Service": "logging.s3.amazonaws.com"}
    assert delivery["Action"] == "s3:PutObject"
    assert set(delivery["Condition"]) == {"ArnLike", "StringEquals"}


def test_access_logs_go_to_a_bucket_of_yours_or_nowhere() -> None:
    stack = new_stack()
    theirs = s3.Bucket.from_bucket_name(stack, "Theirs", "clinic-logs")
    ModelArtifactBucket(stack, "Models", access_logs_bucket=theirs)
    ModelArtifactBucket(stack, "Quiet", access_logs=False)
    logging = [
        it["Properties"].get("LoggingConfiguration", {}).get("DestinationBucketName")
        for it in resources(template_of(stack), BUCKET).values()
    ]
    assert logging == ["clinic-logs", None]


def test_your_own_bucket_is_used_as_it_is(tmp_path: Path) -> None:
    stack = new_stack()
    theirs = s3.Bucket(stack, "Theirs")
    models = ModelArtifactBucket(stack, "Models", bucket=theirs)
    artifact = models.add_model(make_package(tmp_path, "demo"))
    assert artifact.bucket is theirs
    template = template_of(stack)
    name, _ = only(template, BUCKET)
    assert only(template, COPY)[1]["Properties"]["DestinationBucketName"] == {"Ref": name}


def test_your_own_bucket_keeps_its_settings() -> None:
    stack = new_stack()
    assert_refused(
        ["bucket is your own", "access_log_days, noncurrent_days must be set on it"],
        stack,
        bucket=s3.Bucket(stack, "Theirs"),
        noncurrent_days=3,
        access_log_days=3,
    )
    other = new_stack()
    assert_refused(
        ["access_logs_bucket is given although access_logs is false"],
        other,
        access_logs=False,
        access_logs_bucket=s3.Bucket(other, "Logs"),
    )


def test_destroying_a_stack_keeps_the_models_by_default() -> None:
    stack = new_stack()
    ModelArtifactBucket(stack, "Models")
    for bucket in resources(template_of(stack), BUCKET).values():
        assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"


def test_an_experiment_leaves_nothing_behind(tmp_path: Path) -> None:
    stack = new_stack()
    ModelArtifactBucket(
        stack, "Models", removal_policy=cdk.RemovalPolicy.DESTROY, auto_delete_objects=True
    ).add_model(make_package(tmp_path, "demo"))
    template = template_of(stack)
    for bucket in resources(template, BUCKET).values():
        assert bucket["DeletionPolicy"] == "Delete"
    assert len(resources(template, "Custom::S3AutoDeleteObjects")) == 2
    logs = resources(template, "AWS::Logs::LogGroup")
    assert [group["DeletionPolicy"] for group in logs.values()] == ["Delete", "Delete"]


def test_a_package_that_is_added_twice_is_copied_once(tmp_path: Path) -> None:
    stack = new_stack()
    bucket = ModelArtifactBucket(stack, "Models")
    package = make_package(tmp_path, "demo")
    pushed = bucket.add_model(package, publish="external")
    first, second = bucket.add_model(package), bucket.add_model(package)
    assert first.key == second.key == pushed.key
    assert pushed.dependencies == ()
    assert list(first.dependencies) == list(second.dependencies) != []
    only(template_of(stack), COPY)


def test_two_versions_of_a_package_lie_side_by_side(tmp_path: Path) -> None:
    alone, both = new_stack(), new_stack()
    old = make_package(tmp_path / "old", "demo")
    new = make_package(tmp_path / "new", "demo", content=b"another")
    ModelArtifactBucket(alone, "Models").add_model(old)
    bucket = ModelArtifactBucket(both, "Models")
    artifacts = [bucket.add_model(package) for package in (old, new)]
    copies = resources(template_of(both), COPY)
    assert len(copies) == len({artifact.key for artifact in artifacts}) == 2
    # The first keeps the id that it has by itself; the second's tells its digest.
    assert only(template_of(alone), COPY)[0] in copies
    assert any(artifacts[1].sha256[:8] in name for name in copies)


def test_a_folder_may_be_given_as_text(tmp_path: Path) -> None:
    package = make_package(tmp_path, "demo")
    bucket = ModelArtifactBucket(new_stack(), "Models")
    assert bucket.add_model(str(package)).key == bucket.add_model(package).key
    with pytest.raises(ValidationError, match="model package demo"):
        bucket.add_model(str(package), publish="ftp")  # type: ignore[arg-type]


IDS = [
    "demo",
    "Demo_2.1-b",
    "a",
    "",
    ".hidden",
    "a/b",
    "a b",
    "../demo",
    "démo",
    "demo\n",
    "x" * 128,
    "x" * 129,
]


@pytest.mark.parametrize("model_id", IDS)
def test_a_pushed_package_may_be_named_as_a_package_may(tmp_path: Path, model_id: str) -> None:
    stack = new_stack()
    bucket = s3.Bucket.from_bucket_name(stack, "Theirs", "somebodys-models")
    package = make_package(tmp_path, "package", id=model_id)
    try:
        spec = load_model_spec(package)
    except ModelPackageError:
        with pytest.raises(ValidationError, match="model_id may hold up to 128 letters"):
            ModelArtifact.in_bucket(bucket, model_id=model_id, sha256=SHA256)
    else:
        artifact = ModelArtifact.in_bucket(bucket, model_id=model_id, sha256=spec.sha256)
        assert artifact.key == spec.object_key
        assert ModelArtifact.in_bucket(bucket, package_dir=package) == artifact
        assert ModelArtifact.in_bucket(bucket, package_dir=str(package)) == artifact


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"model_id": "demo", "sha256": "abc"}, "sha256 must be 64 hexadecimal digits"),
        ({"model_id": "demo", "sha256": SHA256.upper()}, "in lower case"),
        ({"model_id": "demo", "sha256": f"sha256:{SHA256}"}, "got 'sha256:abab"),
        ({"model_id": "demo"}, "give model_id and sha256, or package_dir"),
        ({"sha256": SHA256}, "give model_id and sha256, or package_dir"),
        ({}, "give model_id and sha256, or package_dir"),
        ({"model_id": "demo", "package_dir": "demo"}, "give model_id and sha256, or package_dir"),
    ],
)
def test_a_pushed_package_must_be_named_fully(props: dict[str, str], words: str) -> None:
    bucket = s3.Bucket.from_bucket_name(new_stack(), "Theirs", "somebodys-models")
    with pytest.raises(ValidationError, match=words):
        ModelArtifact.in_bucket(bucket, **props)


def test_every_fault_of_a_pushed_package_is_told() -> None:
    bucket = s3.Bucket.from_bucket_name(new_stack(), "Theirs", "somebodys-models")
    with pytest.raises(ValidationError) as caught:
        ModelArtifact.in_bucket(bucket, model_id="a/b", sha256="latest")
    assert len(caught.value.faults) == 2


def test_a_digest_that_the_deployment_is_given_is_not_judged() -> None:
    stack = new_stack()
    bucket = s3.Bucket.from_bucket_name(stack, "Theirs", "somebodys-models")
    digest = cdk.CfnParameter(stack, "Digest").value_as_string
    artifact = ModelArtifact.in_bucket(bucket, model_id="demo", sha256=digest)
    assert {"Ref": "Digest"} in stack.resolve(artifact.url)["Fn::Join"][1]


def test_the_key_follows_from_model_json_alone(tmp_path: Path) -> None:
    with_files = make_package(tmp_path / "a", "demo")
    without = make_package(tmp_path / "b", "demo", present=False)
    bucket = ModelArtifactBucket(new_stack(), "Models")
    deployed = bucket.add_model(with_files)
    pushed = bucket.add_model(without, publish="external")
    assert deployed.key == pushed.key == f"models/demo/{deployed.sha256}.tar.gz"


def test_a_new_model_has_a_new_key(tmp_path: Path) -> None:
    bucket = ModelArtifactBucket(new_stack(), "Models")
    one = bucket.add_model(make_package(tmp_path / "a", "demo"), publish="external")
    two = bucket.add_model(
        make_package(tmp_path / "b", "demo", content=b"another"), publish="external"
    )
    assert one.key != two.key
    assert one.url.endswith(f"{one.sha256}.tar.gz")


def test_what_is_copied_is_the_archive_under_its_own_name(tmp_path: Path) -> None:
    stack = new_stack()
    artifact = ModelArtifactBucket(stack, "Models").add_model(make_package(tmp_path, "demo"))
    _, copy = only(template_of(stack), COPY)
    props = copy["Properties"]
    assert props["DestinationBucketKeyPrefix"] == "models/demo"
    # Deleting an older package, or the stack's copy, would take it from a running endpoint.
    assert props["Prune"] is False
    assert props["RetainOnDelete"] is True
    (key,) = props["SourceObjectKeys"]
    files = manifest_of(stack)["files"]
    source = files[key.removesuffix(".zip")]["source"]
    assert source["packaging"] == "zip"
    root = stack.node.root
    assert isinstance(root, cdk.App)
    (archive,) = Path(root.outdir, source["path"]).iterdir()
    assert archive.name == f"{artifact.sha256}.tar.gz"
    with tarfile.open(archive) as tar:
        assert sorted(tar.getnames()) == ["model.json", "model.tflite"]


def test_the_same_package_is_the_same_asset(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        stack = new_stack()
        ModelArtifactBucket(stack, "Models").add_model(make_package(tmp_path, "demo"))
        keys.append(only(template_of(stack), COPY)[1]["Properties"]["SourceObjectKeys"])
    assert keys[0] == keys[1]


def test_packages_are_copied_by_one_function(tmp_path: Path) -> None:
    stack = new_stack()
    bucket = ModelArtifactBucket(stack, "Models")
    for name in ("one", "two"):
        bucket.add_model(make_package(tmp_path, name))
    template = template_of(stack)
    assert len(resources(template, COPY)) == 2
    only(template, "AWS::Lambda::Function")
    only(template, "AWS::Logs::LogGroup")


def test_a_package_pushed_from_outside_adds_nothing(tmp_path: Path) -> None:
    stack = new_stack()
    ModelArtifactBucket(stack, "Models").add_model(
        make_package(tmp_path, "demo"), publish="external"
    )
    template = template_of(stack)
    assert resources(template, COPY) == {}
    assert resources(template, "AWS::Lambda::Function") == {}


@pytest.mark.parametrize(
    ("size_mib", "disk_mib", "memory_mib"),
    [
        (4, 512, 1024),
        (170, 512, 1024),
        (180, 1024, 1024),
        (512, 2048, 1024),
        (513, 2048, 2048),
        (2048, 5120, 2048),
        (4500, 10240, 3008),
    ],
)
def test_the_copying_function_has_room_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_mib: int, disk_mib: int, memory_mib: int
) -> None:
    file = {"sha256": "0" * 64, "size_bytes": size_mib * MIB}
    package = make_package(tmp_path, "demo", files={"model.tflite": file})
    # The arithmetic is under test, not the packing of gigabytes.
    monkeypatch.setattr(
        "constructs_lib.model_artifact_bucket.pack_model",
        lambda _, target: target.write_bytes(b"archive"),
    )
    stack = new_stack()
    ModelArtifactBucket(stack, "Models").add_model(package)
    functions = resources(template_of(stack), "AWS::Lambda::Function").values()
    (function,) = (
        f["Properties"] for f in functions if "aws_cdk" in str(f) or "MemorySize" in f["Properties"]
    )
    assert function["MemorySize"] == memory_mib
    assert function.get("EphemeralStorage", {"Size": 512}) == {"Size": disk_mib}


def test_a_reader_may_get_exactly_one_object() -> None:
    stack = new_stack()
    bucket = ModelArtifactBucket(stack, "Models").bucket
    ModelArtifact.in_bucket(bucket, model_id="demo", sha256=SHA256).grant_read(a_role(stack))
    (statement,) = statements(template_of(stack))
    assert statement["Action"] == "s3:GetObject"
    text = json.dumps(statement["Resource"])
    assert f"/models/demo/{SHA256}.tar.gz" in text
    assert "*" not in text


def test_a_key_is_granted_for_decryption_only() -> None:
    stack = new_stack()
    key = kms.Key(stack, "Key")
    bucket = ModelArtifactBucket(stack, "Models", encryption_key=key).bucket
    ModelArtifact.in_bucket(bucket, model_id="demo", sha256=SHA256).grant_read(a_role(stack))
    template = template_of(stack)
    decrypt = statements(template)[1]
    assert decrypt["Action"] == "kms:Decrypt"
    assert decrypt["Resource"] == {"Fn::GetAtt": [only(template, "AWS::KMS::Key")[0], "Arn"]}
    rules = model_bucket(template)["Properties"]["BucketEncryption"]
    assert rules["ServerSideEncryptionConfiguration"][0]["BucketKeyEnabled"] is True


def test_the_grant_survives_on_an_imported_bucket() -> None:
    stack = new_stack()
    bucket = s3.Bucket.from_bucket_name(stack, "Theirs", "somebodys-models")
    ModelArtifact.in_bucket(bucket, model_id="demo", sha256=SHA256).grant_read(a_role(stack))
    (statement,) = statements(template_of(stack))
    assert statement["Action"] == "s3:GetObject"
    assert f"somebodys-models/models/demo/{SHA256}.tar.gz" in json.dumps(statement["Resource"])
