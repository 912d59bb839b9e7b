"""What all endpoints of a stage share: the bucket of models and the images."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import aws_cdk as cdk
from constructs import Construct

from constructs_lib.cost_budget import COST_TAG, CostBudget
from constructs_lib.inference_image_repo import InferenceImage, InferenceImageRepo
from constructs_lib.model_artifact_bucket import (
    PUBLISH_EXTERNAL,
    ModelArtifact,
    ModelArtifactBucket,
)
from inference_image.model_spec import load_model_spec, missing_files
from stacks.matrix import Arch, Deployment, staged
from stacks.settings import MODEL_ROOT, Settings

SHARED: Final = "shared"


class SharedStack(cdk.Stack):
    """Bucket, packages and images of the given rows, and a budget; stack id `dr-shared`.

    Outputs: `ModelBucketName`, and `ImageUri` (amd64) or `ImageUriArm64` for each architecture
    that the rows need. The bucket is emptied and deleted with the stack unless
    `settings.retain`, and an own repository as well; images in the bootstrap's one stay.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        rows: Iterable[Deployment],
        settings: Settings,
        model_root: Path = MODEL_ROOT,
    ) -> None:
        super().__init__(
            scope,
            staged(SHARED, settings.stage),
            env=settings.environment,
            synthesizer=settings.synthesizer(),
            description="Models and images that the DR endpoints share",
            tags=settings.tags(),
        )
        rows = tuple(rows)
        self.model_root = model_root
        life = cdk.RemovalPolicy.RETAIN if settings.retain else cdk.RemovalPolicy.DESTROY
        self.bucket = ModelArtifactBucket(
            self,
            "Models",
            removal_policy=life,
            # Emptying takes a custom resource, which a local AWS has nobody to run.
            auto_delete_objects=not (settings.retain or settings.local),
        )
        self._models = {
            package: self._add_model(package, settings)
            for package in sorted({row.package for row in rows})
        }
        repo = InferenceImageRepo(
            self,
            "Images",
            source=settings.image,
            docker_outputs=settings.docker_outputs,
            own_repository=settings.own_repository,
            removal_policy=life,
        )
        self._images = {
            (architecture, runtime): repo.image(architecture=architecture, runtime=runtime)
            for architecture, runtime in sorted({(row.architecture, row.runtime) for row in rows})
        }
        if settings.budget_usd is not None and settings.budget_email is not None:
            CostBudget(
                self,
                "Budget",
                monthly_usd=settings.budget_usd,
                emails=[settings.budget_email],
                tag_value=settings.cost_tags()[COST_TAG],
            )
        cdk.CfnOutput(self, "ModelBucketName", value=self.bucket.bucket.bucket_name)
        for (architecture, _), image in self._images.items():
            suffix = "" if architecture == Arch.AMD64 else architecture.capitalize()
            cdk.CfnOutput(self, f"ImageUri{suffix}", value=image.uri)

    def model_of(self, row: Deployment) -> ModelArtifact:
        """The package that `row` serves, in this stack's bucket."""
        return self._models[row.package]

    def image_of(self, row: Deployment) -> InferenceImage:
        """The image that `row` runs."""
        return self._images[(row.architecture, row.runtime)]

    def missing_files_of(self, row: Deployment) -> tuple[str, ...]:
        """Files of the row's package that are not on this machine's disk."""
        package_dir = self.model_root / row.package
        return missing_files(load_model_spec(package_dir), package_dir)

    def _add_model(self, package: str, settings: Settings) -> ModelArtifact:
        package_dir = self.model_root / package
        absent = missing_files(load_model_spec(package_dir), package_dir)
        # The key of a package whose files are elsewhere still follows from its model.json.
        publish = PUBLISH_EXTERNAL if absent else settings.publish
        return self.bucket.add_model(package_dir, publish=publish)
