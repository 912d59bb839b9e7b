"""The container images of the inference service, one for each architecture and runtime."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct, IDependable

import inference_image
from constructs_lib import limits
from constructs_lib.encryption_keys import key_itself
from constructs_lib.image_repository import ImageCopier, make_repository
from constructs_lib.kinds import (
    FLAG,
    KEY,
    PATH,
    REMOVAL_POLICY,
    REPOSITORY,
    ROLE,
    TEXT,
    TEXTS,
    Kind,
    kind_faults,
    required,
)
from constructs_lib.rules import refuse, shown, whole_number_fault
from constructs_lib.statements import allow
from constructs_lib.surroundings import refuse_place
from constructs_lib.tokens import is_token, known_text
from inference_image.contract import RUNTIME_LITERT, RUNTIMES

ImageSource = Literal["build", "source-digest"]
IMAGE_BUILD: Final = "build"
IMAGE_SOURCE_DIGEST: Final = "source-digest"
IMAGE_SOURCES: Final = (IMAGE_BUILD, IMAGE_SOURCE_DIGEST)

_PLATFORMS: Final = {
    limits.AMD64: ecr_assets.Platform.LINUX_AMD64,
    limits.ARM64: ecr_assets.Platform.LINUX_ARM64,
}
# Build arguments that have a parameter of their own, and what sets them.
_SET_BY_CONSTRUCT: Final = {
    "RUNTIME": "image(runtime=…)",
    "BASE_IMAGE": "base_image",
    "TARGETARCH": "image(architecture=…)",
}
_LEAST_IMAGE_COUNT: Final = 2
_REPO_KINDS: Final = {
    "source": Kind(words=f"one of {', '.join(IMAGE_SOURCES)}", types=(str,), optional=False),
    "directory": PATH,
    "docker_outputs": Kind(
        words="a list of texts, one for each --output", types=(str,), many=True, optional=False
    ),
    "base_image": TEXT,
    "build_args": TEXTS,
    "certificates": PATH,
    "own_repository": FLAG,
    "repository": REPOSITORY,
    "encryption_key": KEY,
    "removal_policy": REMOVAL_POLICY,
    "log_encryption_key": KEY,
}
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# The tag of an asset is the hash of its source, behind the synthesizer's prefix if it has one.
_PINNED: Final = re.compile(r"(?:@sha256:|:[\w.-]*)[0-9a-f]{64}$")
_ECR_URI: Final = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.(?P<suffix>amazonaws\.com(?:\.cn)?)"
    r"/(?P<repository>[a-z0-9._/-]+)@(?P<digest>sha256:[0-9a-f]{64})"
)


@dataclass(frozen=True, kw_only=True)
class InferenceImage:
    """An image that answers SageMaker's container contract, named so that new bytes are a change.

    `uri` ends in a digest or in the hash of the source, never in a tag that moves. `account`
    and `region` of its registry are given where they are known and may differ from the stack's.
    `runtime` is `litert` or `tensorflow`, and None where nobody said it.

    Raises:
        ValidationError: a `uri` that can come to mean another image, or an unknown architecture
            or runtime.
    """

    uri: str
    repository_arn: str
    architecture: str
    account: str | None = None
    region: str | None = None
    dependencies: Sequence[IDependable] = ()
    runtime: str | None = None

    def __post_init__(self) -> None:
        texts = {"uri": self.uri, "repository_arn": self.repository_arn}
        refuse("InferenceImage", kind_faults(texts, dict.fromkeys(texts, required(TEXT))))
        faults = _architecture_faults(self.architecture)
        if self.runtime is not None:
            faults += _runtime_faults(self.runtime)
        # Text that ends in a token ends in what only the deployment knows.
        if not _PINNED.search(self.uri) and not _ends_in_token(self.uri):
            faults.append(
                "uri must end in @sha256:<digest>, or in the source hash that an asset has for a "
                f"tag, because other tags can move; got {self.uri!r}"
            )
        refuse("InferenceImage", faults)

    @classmethod
    def from_repository(
        cls,
        repository: ecr.IRepository,
        *,
        digest: str,
        architecture: str,
        runtime: str | None = None,
    ) -> "InferenceImage":
        """An image that is in an ECR repository already, by its `sha256:…` digest.

        `runtime` need only be given where it matters, to train with the image.

        Raises:
            ValidationError: `digest` is a tag, or the architecture or runtime is unknown.
        """
        faults = kind_faults(
            {"repository": repository},
            {"repository": required(REPOSITORY)},
        )
        faults += _architecture_faults(architecture)
        if not is_token(digest) and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            faults.append(
                "digest must be sha256: and 64 hexadecimal digits, because a tag can move "
                f"without the template changing; got {shown(digest)}"
            )
        refuse("InferenceImage", faults)
        return cls(
            uri=repository.repository_uri_for_digest(digest),
            repository_arn=repository.repository_arn,
            architecture=architecture,
            account=known_text(repository.env.account),
            region=known_text(repository.env.region),
            runtime=runtime,
        )

    @classmethod
    def from_uri(
        cls, uri: str, *, architecture: str, runtime: str | None = None
    ) -> "InferenceImage":
        """An image by its full URI, `<account>.dkr.ecr.<region>.amazonaws.com/<name>@sha256:…`.

        `runtime` need only be given where it matters, to train with the image.

        Raises:
            ValidationError: the URI is not of that form, or the architecture or runtime is unknown.
        """
        faults = _architecture_faults(architecture)
        match = _ECR_URI.fullmatch(uri) if isinstance(uri, str) else None
        if is_token(uri):
            # Region, account and repository are read from it.
            faults.append(
                "uri must be known at synthesis: give what only the deployment knows to "
                f"InferenceImage.from_repository, as digest; got {shown(uri)}"
            )
        elif match is None:
            faults.append(
                "uri must be <account>.dkr.ecr.<region>.amazonaws.com/<repository>@sha256:<digest>"
                f" (SageMaker pulls from Amazon ECR, and a tag can move); got {shown(uri)}"
            )
        elif len(uri) > limits.IMAGE_URI_CHARACTERS:
            faults.append(f"uri must have at most {limits.IMAGE_URI_CHARACTERS} characters")
        refuse("InferenceImage", faults)
        part = match.groupdict() if match else {}
        account, region = part["account"], part["region"]
        partition = "aws-cn" if part["suffix"].endswith(".cn") else cdk.Aws.PARTITION
        return cls(
            uri=uri,
            repository_arn=(
                f"arn:{partition}:ecr:{region}:{account}:repository/{part['repository']}"
            ),
            architecture=architecture,
            account=account,
            region=region,
            runtime=runtime,
        )

    def grant_pull(self, role: iam.IRole) -> None:
        """Let `role` pull from this image's repository, and log in to the registry.

        Raises:
            ValidationError: `role` is none.
        """
        refuse(f"image {self.uri}", kind_faults({"role": role}, {"role": ROLE}))
        allow(
            role,
            "PullImage",
            [
                "ecr:BatchCheckLayerAvailability",
                "ecr:BatchGetImage",
                "ecr:GetDownloadUrlForLayer",
            ],
            [self.repository_arn],
        )
        allow(
            role,
            "LogInToRegistry",
            ["ecr:GetAuthorizationToken"],
            # The action has no resource: the token is the account's.
            ["*"],
        )


class InferenceImageRepo(Construct):
    """Builds the inference service's image, once for each architecture and runtime.

        image = InferenceImageRepo(self, "Images").image(architecture="arm64")

    Args:
        source: `"build"`: the CDK command line builds and pushes the image with Docker.
            `"source-digest"`: nothing is built; `uri` is the one that a build of the same
            source would be pushed under, for machines without Docker and for local runs (with
            the bootstrap qualifier of the app's context, not of a stack's own synthesizer).
        directory: the build context, with a `Dockerfile` and a `.dockerignore`.
        docker_outputs: `--output` arguments of the build. SageMaker refuses OCI manifests; give
            `("type=docker,oci-mediatypes=false",)` where Docker pushes them (docs/stacks.md says
            which one does), and nothing elsewhere: Debian's engine knows no such output.
        base_image: what the service runs on, as the Dockerfile's `BASE_IMAGE`; pin it by digest.
        build_args: further arguments of the build.
        certificates: a file of certificate authorities that pip trusts while building, for
            networks that look into TLS; it is a build secret and enters neither image nor hash.
        own_repository: copy the images into an ECR repository of this stack, scanned on push,
            with tags that never move. The copy has a Docker manifest whatever the engine made.
        repository: copy them into this repository of yours instead.
        encryption_key: KMS key of the own repository.
        removal_policy: what `cdk destroy` does with the own repository and its images.
        max_image_count: images that the own repository keeps, at least 2: an endpoint pulls its
            image again whenever it scales out.
        log_encryption_key: KMS key of the log group of the function that copies; one that is not
            made in this app must let CloudWatch Logs use it.

    Defaults: `"build"`, from the installed `inference_image` package, on the Dockerfile's own
    base, as the engine puts images out by itself, in the bootstrap's repository; an own
    repository is encrypted by ECR, kept (RETAIN), and holds 50 images; the log is kept for one
    week, encrypted by CloudWatch Logs.

    Defines: a Docker image asset for each image asked for, in the bootstrap's ECR repository.
    With an own repository, that, and a function with its role and log group that copies. With
    `"source-digest"`, nothing. Bootstrap stacks keep their images when an app is
    destroyed: `cdk gc` deletes the unused ones.

    Raises:
        ValidationError: listing everything about the arguments that cannot be built.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        source: ImageSource = IMAGE_BUILD,
        directory: Path | str | None = None,
        docker_outputs: Sequence[str] = (),
        base_image: str | None = None,
        build_args: Mapping[str, str] | None = None,
        certificates: Path | str | None = None,
        own_repository: bool = False,
        repository: ecr.IRepository | None = None,
        encryption_key: kms.IKey | None = None,
        removal_policy: cdk.RemovalPolicy = cdk.RemovalPolicy.RETAIN,
        max_image_count: int = 50,
        log_encryption_key: kms.IKey | None = None,
    ) -> None:
        refuse_place(type(self), scope, construct_id)
        super().__init__(scope, construct_id)
        values = {
            "source": source,
            "directory": directory,
            "docker_outputs": docker_outputs,
            "base_image": base_image,
            "build_args": build_args,
            "certificates": certificates,
            "own_repository": own_repository,
            "repository": repository,
            "encryption_key": encryption_key,
            "removal_policy": removal_policy,
            "log_encryption_key": log_encryption_key,
        }
        refuse(f"InferenceImageRepo {self.node.path}", kind_faults(values, _REPO_KINDS))
        # Absolute, because the CDK's Node process need not share Python's current folder.
        context = Path(directory or Path(inference_image.__file__).parent).resolve()
        certificates = None if certificates is None else Path(certificates)
        given = dict(build_args or {})
        faults = []
        if source not in IMAGE_SOURCES:
            faults.append(f"source must be one of {', '.join(IMAGE_SOURCES)}; got {source!r}")
        if not (context / "Dockerfile").is_file():
            faults.append(f"directory must hold a Dockerfile; there is none in {context}")
        if base_image == "":
            faults.append("base_image must name an image, or be left out; got ''")
        if certificates is not None and not certificates.is_file():
            faults.append(f"certificates must be a file; there is none at {certificates}")
        faults += [
            f"build_args may not set {name}: {setter} does"
            for name, setter in _SET_BY_CONSTRUCT.items()
            if name in given
        ]
        faults += [
            f"build_args[{name!r}] must be text; got {shown(value)}"
            for name, value in given.items()
            if not isinstance(value, str)
        ]
        if own_repository and repository is not None:
            faults.append("give own_repository or repository, and not both")
        if (own_repository or repository is not None) and source == IMAGE_SOURCE_DIGEST:
            faults.append(
                "source must be 'build' for images that are copied into another repository; got "
                f"{source!r}, which builds nothing to copy"
            )
        if encryption_key is not None and not own_repository:
            faults.append("encryption_key is for an own repository: set own_repository=True")
        if log_encryption_key is not None and not own_repository and repository is None:
            faults.append(
                "log_encryption_key is for the function that copies images: set "
                "own_repository=True or repository"
            )
        if repository is not None:
            faults += _repository_faults(repository, cdk.Stack.of(self))
        if is_token(max_image_count):
            # The lifecycle is one text, which a reference inside would spoil.
            faults.append(
                f"max_image_count must be known at synthesis; got {shown(max_image_count)}"
            )
        faults += whole_number_fault(
            "max_image_count",
            max_image_count,
            _LEAST_IMAGE_COUNT,
            because=", the image before an update and the one after it",
        )
        refuse(f"InferenceImageRepo {self.node.path}", faults)
        encryption_key, log_encryption_key = map(key_itself, (encryption_key, log_encryption_key))
        self._source = source
        self._directory = context
        self._docker_outputs = list(docker_outputs)
        self._build_args = given if base_image is None else {**given, "BASE_IMAGE": base_image}
        self._certificates = certificates
        self._images: dict[tuple[str, str], InferenceImage] = {}
        self.repository = repository
        if own_repository:
            self.repository = make_repository(
                self,
                encryption_key=encryption_key,
                removal_policy=removal_policy,
                max_image_count=max_image_count,
            )
        self._copier = (
            None
            if self.repository is None
            else ImageCopier(
                self, "Copier", target=self.repository, log_encryption_key=log_encryption_key
            )
        )

    def image(self, *, architecture: str, runtime: str = RUNTIME_LITERT) -> InferenceImage:
        """The image for `architecture` (`amd64`, `arm64`) and `runtime`; asked twice, built once.

        Raises:
            ValidationError: an architecture or runtime that there is no image for.
        """
        faults = _architecture_faults(architecture)
        faults += _runtime_faults(runtime)
        refuse(f"InferenceImageRepo {self.node.path}", faults)
        key = (str(architecture), runtime)
        if key not in self._images:
            self._images[key] = self._make(*key)
        return self._images[key]

    def _make(self, architecture: str, runtime: str) -> InferenceImage:
        stack = cdk.Stack.of(self)
        if self._source == IMAGE_BUILD:
            asset = self._asset(self, architecture, runtime)
            if self._copier is not None and self.repository is not None:
                copy = self._copier.copy(
                    f"{runtime.capitalize()}{architecture.capitalize()}",
                    asset=asset,
                    architecture=architecture,
                )
                return InferenceImage(
                    uri=self.repository.repository_uri_for_tag(asset.asset_hash),
                    repository_arn=self.repository.repository_arn,
                    architecture=architecture,
                    account=known_text(self.repository.env.account),
                    region=known_text(self.repository.env.region),
                    dependencies=(copy,),
                    runtime=runtime,
                )
            return InferenceImage(
                uri=asset.image_uri,
                repository_arn=asset.repository.repository_arn,
                architecture=architecture,
                account=known_text(stack.account),
                region=known_text(stack.region),
                dependencies=(asset,),
                runtime=runtime,
            )
        return self._unbuilt(stack, architecture, runtime)

    def _asset(
        self, scope: Construct, architecture: str, runtime: str
    ) -> ecr_assets.DockerImageAsset:
        return ecr_assets.DockerImageAsset(
            scope,
            f"{runtime.capitalize()}{architecture.capitalize()}",
            directory=str(self._directory),
            # Without a platform the image takes the builder's, and dies with "exec format
            # error" on the endpoint. `platform` as a build argument has no effect.
            platform=_PLATFORMS[architecture],
            build_args={**self._build_args, "RUNTIME": runtime},
            build_secrets=(
                None
                if self._certificates is None
                # Absolute: the command line builds from the folder of the assembly.
                else {"ca": cdk.DockerBuildSecret.from_src(str(self._certificates.resolve()))}
            ),
            outputs=self._docker_outputs or None,
            # Where a machine keeps its certificates does not make another image.
            invalidation=ecr_assets.DockerImageAssetInvalidationOptions(build_secrets=False),
        )

    def _unbuilt(self, stack: cdk.Stack, architecture: str, runtime: str) -> InferenceImage:
        """The image as a build would name it, read off an asset in an app that is thrown away."""
        account, region = known_text(stack.account), known_text(stack.region)
        with tempfile.TemporaryDirectory(prefix="dr-endpoints-") as outdir:
            app = cdk.App(
                outdir=outdir, analytics_reporting=False, context=self.node.get_all_context()
            )
            twin = cdk.Stack(
                app,
                "SourceHash",
                env=cdk.Environment(account=account, region=region),
            )
            asset = self._asset(twin, architecture, runtime)
            return InferenceImage(
                uri=asset.image_uri,
                repository_arn=asset.repository.repository_arn,
                architecture=architecture,
                account=account,
                region=region,
                runtime=runtime,
            )


def _repository_faults(repository: ecr.IRepository, stack: cdk.Stack) -> list[str]:
    """The copying function knows the repository by its name, in its own account and region."""
    faults = []
    for name, there, here in (
        ("region", repository.env.region, stack.region),
        ("account", repository.env.account, stack.account),
    ):
        known, own = known_text(there), known_text(here)
        if known is not None and own is not None and known != own:
            faults.append(
                f"repository must be in the stack's {name}, {own}, where its images are copied; "
                f"got {known}"
            )
    return faults


def _ends_in_token(text: str) -> bool:
    return cdk.Token.is_unresolved(text) and text.endswith("]}")


def _architecture_faults(architecture: str) -> list[str]:
    if architecture in limits.ARCHITECTURES:
        return []
    return [
        # Platform of the build and rules of the endpoints follow from it: no tokens.
        f"architecture must be one of {', '.join(limits.ARCHITECTURES)}; got {shown(architecture)}"
    ]


def _runtime_faults(runtime: object) -> list[str]:
    if runtime in RUNTIMES:
        return []
    return [f"runtime must be one of {', '.join(RUNTIMES)}; got {shown(runtime)}"]
