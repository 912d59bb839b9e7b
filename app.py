"""The CDK app: the shared stack, and a stack for each row of the deployment matrix.

npx cdk synth
npx cdk deploy dr-serverless-mobilenet-2048 -c modes=serverless -c stage=ana
"""

import sys
from dataclasses import replace
from pathlib import Path

import aws_cdk as cdk

from stacks.endpoint_stack import EndpointStack
from stacks.janitor_stack import JanitorStack
from stacks.matrix import select
from stacks.settings import Settings
from stacks.shared_stack import SharedStack


def build(app: cdk.App, *, model_root: Path | None = None) -> cdk.App:
    """Add the stacks that `app`'s context selects; packages are in `model_root`, if given."""
    settings = Settings.of(app)
    rows = select(models=settings.models, modes=settings.modes)
    if settings.runtime is not None:
        rows = tuple(replace(row, runtime=settings.runtime) for row in rows)
    shared = SharedStack(
        app, rows=rows, settings=settings, model_root=model_root or settings.model_root
    )
    if settings.ttl_hours is not None:
        # Deployed with the shared stack, and so before anything that it is to end.
        shared.add_stack_dependency(JanitorStack(app, settings=settings))
    for row in rows:
        EndpointStack(app, deployment=row, shared=shared, settings=settings)
    return app


if __name__ == "__main__":
    try:
        build(cdk.App()).synth()
    except ValueError as error:
        # What a person can get wrong (context, package, size) is said without a traceback.
        sys.exit(f"app.py: {error}")
