"""`dr verify STACK`: is what the stack's template says what the endpoint serves?

A failed update of an endpoint can end with the endpoint "InService" on the configuration that it
had before, while CloudFormation calls the stack complete. Configurations and models of SageMaker
cannot be changed once made, so that comparing their names with the stack's is enough to know what
is served; the sizes in the template are compared as well, in case somebody made a stack's
resources by hand. Functions of container images are compared in `verify_lambda`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.findings import Finding, fault, good, show, unknown
from dr_cli.region import aws_region
from dr_cli.template_values import differences, refers_to, shown
from dr_cli.verify_lambda import function_findings, image_functions

ENDPOINT: Final = "AWS::SageMaker::Endpoint"
CONFIG: Final = "AWS::SageMaker::EndpointConfig"
MODEL: Final = "AWS::SageMaker::Model"
_SERVICES: Final = ("cloudformation", "sagemaker", "lambda")
IN_SERVICE: Final = "InService"
_REDEPLOY: Final = "deploy the stack again, and read its events if the endpoint falls back again"

# Properties of a variant: CloudFormation's name -> SageMaker's, where they differ.
_VARIANT_PROPERTIES: Final = {
    "VariantName": "VariantName",
    "InstanceType": "InstanceType",
    "InitialInstanceCount": "InitialInstanceCount",
    "InitialVariantWeight": "InitialVariantWeight",
    "ServerlessConfig": "ServerlessConfig",
}


def verify(stacks: list[str], *, region: str | None) -> int:
    """Print what was found about each stack; returns the number of faults."""
    from dr_cli.local import running_local_aws

    local = running_local_aws() if region is None else None
    if local:
        clients = {name: local.client(name) for name in _SERVICES}
    else:
        import boto3

        session = boto3.session.Session(region_name=aws_region(region))
        clients = {name: session.client(name) for name in _SERVICES}
    findings: list[Finding] = []
    for stack in stacks:
        findings += stack_findings(
            stack,
            cloudformation=clients["cloudformation"],
            sagemaker=clients["sagemaker"],
            functions=clients["lambda"],
        )
    faults = show(findings, make_console())
    where = "the local AWS" if local else "AWS"
    print(f"{len(stacks)} {'stack' if len(stacks) == 1 else 'stacks'} on {where}: {faults} faults")
    return faults


def stack_findings(
    stack: str, *, cloudformation: Any, sagemaker: Any, functions: Any
) -> list[Finding]:
    """What is right and wrong with the endpoints of a deployed stack.

    Args:
        functions: a client of Lambda.

    Raises:
        CommandError: there is no such stack, or it has no endpoint.
    """
    from botocore.exceptions import ClientError

    try:
        (description,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        if "does not exist" not in str(error):
            raise
        raise CommandError(f"there is no stack {stack}; list them with: npx cdk list") from None
    status = description["StackStatus"]
    resources = _resources(stack, cloudformation)
    endpoints = {name: id_ for name, (kind, id_) in resources.items() if kind == ENDPOINT}
    template = _template(stack, cloudformation)
    on_lambda = image_functions(template)
    if not endpoints and not on_lambda:
        raise CommandError(f"stack {stack} has no endpoint to compare; name the stack of one")
    return [
        _status_finding(stack, status, description.get("StackStatusReason")),
        *(
            finding
            for name, physical_id in endpoints.items()
            for finding in _endpoint_findings(
                stack, name, physical_id, resources, template, sagemaker
            )
        ),
        *(
            finding
            for name in on_lambda
            for finding in function_findings(stack, name, resources, template or {}, functions)
        ),
    ]


def _status_finding(stack: str, status: str, reason: str | None) -> Finding:
    said = f"{status} ({reason})" if reason else status
    if status in {"CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"}:
        return good(stack, said)
    if status.endswith("_IN_PROGRESS"):
        return unknown(stack, said, fix="wait until the deployment has ended, and verify again")
    return fault(
        stack,
        f"{said}: the last deployment did not go through, and what runs is what was there before",
        fix=f"see why with `aws cloudformation describe-stack-events --stack-name {stack}`, put "
        "that right, and deploy again",
    )


def _endpoint_findings(
    stack: str,
    logical_id: str,
    physical_id: str,
    resources: Mapping[str, tuple[str, str]],
    template: Mapping[str, Any] | None,
    sagemaker: Any,
) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    # The physical id is the ARN on AWS.
    name = physical_id.rpartition("/")[2]
    subject = f"{stack} endpoint {name}"
    try:
        endpoint = sagemaker.describe_endpoint(EndpointName=name)
    except ClientError:
        yield fault(subject, "is not there any more", fix=_REDEPLOY)
        return
    status = endpoint["EndpointStatus"]
    if status == IN_SERVICE:
        yield good(subject, IN_SERVICE)
    else:
        reason = endpoint.get("FailureReason", "no reason is given")
        yield fault(subject, f"is {status}: {reason}", fix=_REDEPLOY)
    served = endpoint["EndpointConfigName"]
    wanted_id, wanted = _wanted_config(logical_id, resources, template)
    if wanted is None:
        yield unknown(subject, f"serves {served}; the stack's own configuration could not be told")
        return
    if served != wanted:
        yield fault(
            subject,
            f"serves the configuration {served}, and the stack's is {wanted}: an update failed, "
            "or somebody changed the endpoint by hand",
            fix=f"`aws sagemaker update-endpoint --endpoint-name {name} --endpoint-config-name "
            f"{wanted}`, or {_REDEPLOY}",
        )
        return
    yield good(subject, f"serves the stack's configuration {served}")
    config = sagemaker.describe_endpoint_config(EndpointConfigName=served)
    yield from _config_findings(subject, config, wanted_id, resources, template)
    yield from _image_findings(subject, endpoint, config, sagemaker)


def _wanted_config(
    endpoint_id: str,
    resources: Mapping[str, tuple[str, str]],
    template: Mapping[str, Any] | None,
) -> tuple[str | None, str | None]:
    """Logical id and name of the configuration that the stack's template gives the endpoint."""
    configs = {name: id_ for name, (kind, id_) in resources.items() if kind == CONFIG}
    if template is not None:
        said = template["Resources"][endpoint_id]["Properties"]["EndpointConfigName"]
        for name, physical_id in configs.items():
            if refers_to(said, name):
                return name, physical_id.rpartition("/")[2]
    if len(configs) == 1:
        ((name, physical_id),) = configs.items()
        return name, physical_id.rpartition("/")[2]
    return None, None


def _config_findings(
    subject: str,
    config: Mapping[str, Any],
    logical_id: str | None,
    resources: Mapping[str, tuple[str, str]],
    template: Mapping[str, Any] | None,
) -> Iterator[Finding]:
    models = {id_.rpartition("/")[2] for kind, id_ in resources.values() if kind == MODEL}
    for variant in config["ProductionVariants"]:
        if models and variant["ModelName"] not in models:
            yield fault(
                subject,
                f"variant {variant['VariantName']} serves the model {variant['ModelName']}, which "
                "is not the stack's",
                fix=_REDEPLOY,
            )
    if template is None or logical_id is None:
        yield unknown(subject, "the stack's template could not be read to compare sizes")
        return
    written = template["Resources"][logical_id]["Properties"]["ProductionVariants"]
    wrong = [
        f"{path} is {shown(actual)} and the template says {shown(expected)}"
        for wanted, variant in zip(written, config["ProductionVariants"], strict=False)
        for ours, theirs in _VARIANT_PROPERTIES.items()
        if ours in wanted
        for path, expected, actual in differences(ours, wanted[ours], variant.get(theirs))
    ]
    if len(written) != len(config["ProductionVariants"]):
        wrong.append(
            f"{len(config['ProductionVariants'])} variants, and {len(written)} in the template"
        )
    if wrong:
        yield fault(subject, "; ".join(wrong), fix=_REDEPLOY)
    else:
        yield good(subject, "sizes are the template's")


def _image_findings(
    subject: str, endpoint: Mapping[str, Any], config: Mapping[str, Any], sagemaker: Any
) -> Iterator[Finding]:
    wanted = {}
    for variant in config["ProductionVariants"]:
        model = sagemaker.describe_model(ModelName=variant["ModelName"])
        wanted[variant["VariantName"]] = model.get("PrimaryContainer", {}).get("Image")
    for variant in endpoint.get("ProductionVariants", []):
        for image in variant.get("DeployedImages", []):
            specified = image.get("SpecifiedImage")
            ours = wanted.get(variant["VariantName"])
            if specified and ours and specified != ours:
                yield fault(
                    subject,
                    f"variant {variant['VariantName']} runs {specified}, and the model's image is "
                    f"{ours}",
                    fix=_REDEPLOY,
                )


def _resources(stack: str, cloudformation: Any) -> dict[str, tuple[str, str]]:
    """Type and physical id of every resource, by logical id."""
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
    return {
        it["LogicalResourceId"]: (it["ResourceType"], it["PhysicalResourceId"])
        for page in pages
        for it in page["StackResourceSummaries"]
        if it.get("PhysicalResourceId") and it.get("ResourceStatus") != "DELETE_COMPLETE"
    }


def _template(stack: str, cloudformation: Any) -> dict[str, Any] | None:
    """The template as deployed; None where it is in a form that cannot be read."""
    body = cloudformation.get_template(StackName=stack, TemplateStage="Original")["TemplateBody"]
    if isinstance(body, str):
        # The CDK command line sends small templates as YAML, of which JSON is a part.
        import yaml

        try:
            body = yaml.safe_load(body)
        except yaml.YAMLError:
            return None
    return dict(body) if isinstance(body, dict) and "Resources" in body else None
