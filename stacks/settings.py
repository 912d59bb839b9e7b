"""What the app is told on the command line (`cdk … -c name=value`), read once."""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import aws_cdk as cdk

from constructs_lib.cost_budget import COST_TAG
from constructs_lib.inference_image_repo import IMAGE_BUILD, IMAGE_SOURCES, ImageSource
from constructs_lib.model_artifact_bucket import PUBLISH, PUBLISH_DEPLOYMENT, Publish
from constructs_lib.stack_janitor import MAX_TIME_TO_LIVE_HOURS, time_to_live_tags
from stacks.matrix import RUNTIMES, staged

MODEL_ROOT: Final = Path(__file__).resolve().parent.parent / "model_artifacts"

_FROM_ENVIRONMENT: Final = ("account", "region")
_TRUTH: Final[Mapping[str, bool]] = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The app's context, checked. Each field is the context key of its name, with hyphens.

    Attributes:
        stage: prefix that keeps two people's stacks apart in one account.
        models: models whose rows are synthesized, as `stacks.matrix.select` takes them.
        modes: modes whose rows are synthesized.
        image: `build` (Docker builds the image at deployment) or `source-digest` (nothing is
            built; endpoints refer to the image that a build would have pushed).
        docker_outputs: `--output` arguments of the build. On the command line one, whole, since
            it has commas of its own; in `cdk.json` a list of them.
        publish: `deployment` (the shared stack copies the packages) or `external` (they are
            pushed with `dr model push`).
        local: the stacks go to a local AWS: no bootstrap version rule, and no custom
            resources, because nothing runs their functions there.
        retain: keep bucket and models when the shared stack is destroyed.
        ttl_hours: hours after its last deployment at which a stack is deleted by the janitor.
        budget_usd: US dollars a month of the stage, above which `budget_email` is told.
        budget_email: who is told.
        runtime: container flavour of every row, `litert` or `tensorflow`; the packages must hold
            what it runs.
        model_root: folder that holds the packages.
        own_repository: copy the images into a repository of the shared stack, scanned and with
            tags that never move.
        account, region: where to; from CDK_DEFAULT_ACCOUNT and CDK_DEFAULT_REGION, which the
            CDK command line sets. Without them the stacks are for any account and region.
    """

    stage: str | None = None
    models: tuple[str, ...] | None = None
    modes: tuple[str, ...] | None = None
    image: ImageSource = IMAGE_BUILD
    docker_outputs: tuple[str, ...] = ()
    publish: Publish = PUBLISH_DEPLOYMENT
    local: bool = False
    retain: bool = False
    ttl_hours: int | None = None
    budget_usd: float | None = None
    budget_email: str | None = None
    runtime: str | None = None
    model_root: Path = MODEL_ROOT
    own_repository: bool = False
    account: str | None = None
    region: str | None = None

    @classmethod
    def of(cls, app: cdk.App, *, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read `app`'s context and the environment.

        Raises:
            ValueError: a context value that is not one of the known ones, or a name that
                is nearly one.
        """
        _refuse_unknown(
            app,
            [
                field.name.replace("_", "-")
                for field in fields(cls)
                if field.name not in _FROM_ENVIRONMENT
            ],
        )
        stage = _text(app, "stage")
        staged("shared", stage)
        return cls(
            stage=stage,
            models=_words(app, "models"),
            modes=_words(app, "modes"),
            image=_one_of(app, "image", IMAGE_SOURCES, IMAGE_BUILD),
            docker_outputs=_docker_outputs(app, "docker-outputs"),
            publish=_one_of(app, "publish", PUBLISH, PUBLISH_DEPLOYMENT),
            local=_flag(app, "local"),
            retain=_flag(app, "retain"),
            ttl_hours=_ttl_hours(app),
            **_budget(app),
            runtime=_one_of(app, "runtime", RUNTIMES, None),
            model_root=_model_root(app),
            own_repository=_flag(app, "own-repository"),
            account=environ.get("CDK_DEFAULT_ACCOUNT") or None,
            region=environ.get("CDK_DEFAULT_REGION") or None,
        )

    def cost_tags(self) -> dict[str, str]:
        """Tags of every stack, under which the account's costs are told apart."""
        return {"dr-endpoints": "true", COST_TAG: self.stage or "default"}

    def tags(self) -> dict[str, str]:
        """Cost tags, and the time to live where one is set; CloudFormation hands them on."""
        life = {} if self.ttl_hours is None else time_to_live_tags(self.ttl_hours)
        return {**self.cost_tags(), **life}

    @property
    def environment(self) -> cdk.Environment:
        """Account and region of every stack."""
        return cdk.Environment(account=self.account, region=self.region)

    def synthesizer(self) -> cdk.IStackSynthesizer:
        """A new synthesizer, because a stack owns its own."""
        # The rule compares a parameter that a local AWS cannot resolve on updates.
        return cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=not self.local)


def _refuse_unknown(app: cdk.App, known: list[str]) -> None:
    """A misspelt name would be ignored, and the whole matrix deployed in place of one row.

    Only what looks like ours is judged: feature flags begin with "@", what the command line looks
    up holds a colon, and what is far from every name of ours may be somebody's own.
    """
    for name in app.node.get_all_context():
        if name in known or not name.replace("-", "").replace("_", "").isalnum():
            continue
        if name in _FROM_ENVIRONMENT:
            raise ValueError(
                f"context {name} is not read: account and region are those of the AWS profile, "
                "or of AWS_REGION and the keys in the environment"
            )
        near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1)
        if near:
            raise ValueError(f"context {name} is not known (near it: {near[0]})")


def _ttl_hours(app: cdk.App) -> int | None:
    value = _text(app, "ttl-hours")
    if value is None:
        return None
    if not value.isdecimal() or not 1 <= int(value) <= MAX_TIME_TO_LIVE_HOURS:
        raise ValueError(
            f"context ttl-hours must be a whole number from 1 to {MAX_TIME_TO_LIVE_HOURS}; got "
            f"{value!r}"
        )
    return int(value)


def _budget(app: cdk.App) -> dict[str, Any]:
    usd, email = _text(app, "budget-usd"), _text(app, "budget-email")
    if (usd is None) != (email is None):
        raise ValueError("context budget-usd and budget-email are given together or not at all")
    if usd is None:
        return {}
    try:
        amount = float(usd)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise ValueError(f"context budget-usd must be US dollars above 0; got {usd!r}")
    return {"budget_usd": amount, "budget_email": email}


def _model_root(app: cdk.App) -> Path:
    value = _text(app, "model-root")
    if value is None:
        return MODEL_ROOT
    folder = Path(value).resolve()
    if not folder.is_dir():
        raise ValueError(f"context model-root must be a folder of packages; got {value!r}")
    return folder


def _text(app: cdk.App, name: str) -> str | None:
    value: Any = app.node.try_get_context(name)
    return None if value is None or value == "" else str(value)


def _words(app: cdk.App, name: str) -> tuple[str, ...] | None:
    value: Any = app.node.try_get_context(name)
    if value is None or value == "":
        return None
    parts: Iterable[object] = value.split(",") if isinstance(value, str) else value
    return tuple(word for word in (str(part).strip() for part in parts) if word)


def _docker_outputs(app: cdk.App, name: str) -> tuple[str, ...]:
    value: Any = app.node.try_get_context(name)
    if value is None or value == "":
        return ()
    outputs = tuple(str(part) for part in ([value] if isinstance(value, str) else value))
    for output in outputs:
        # Docker reads anything else as a folder to write the image's files to.
        if not any(part.startswith("type=") for part in output.split(",")):
            raise ValueError(
                f"context {name} must name an exporter, for example "
                f"type=docker,oci-mediatypes=false; got {output!r}"
            )
    return outputs


def _one_of(app: cdk.App, name: str, known: tuple[Any, ...], default: Any) -> Any:
    value = _text(app, name)
    if value is None:
        return default
    if value not in known:
        raise ValueError(f"context {name} must be one of {', '.join(known)}; got {value!r}")
    return value


def _flag(app: cdk.App, name: str) -> bool:
    return _TRUTH[str(_one_of(app, name, tuple(_TRUTH), "false"))]
