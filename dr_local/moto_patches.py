"""What moto does differently from SageMaker and CloudFormation, put right in one place.

Checked against moto 5.2.5 on 2026-11-28. `tests/integration/local_aws/test_control_plane.py`
holds what each patch is for.

| moto | AWS | here |
|---|---|---|
| drops `EndpointName` and invents one | uses it, refuses a taken one | `_create_endpoint` |
| updates an endpoint by delete and create | keeps endpoint and ARN | `_update_endpoint` |
| knows instance types up to 2020 | knows those of its service model | `_validate_instance_type` |
| a replaced model leaves its config alone | replaces what refers to it | `_updating_in_order` |
| deletes before it makes | makes, switches, then cleans up | `_updating_in_order` |
| a resource that returns is the deleted one | makes it anew | `_updating_in_order` |
| a change of tags replaces model, config and endpoint | tags change, all else stays | `_replace` |
| loses a resource that it cannot update; it outlives its stack | keeps it | `_keeping` |
| cannot tag a bucket whose name CloudFormation chose | tags it | `_update_bucket` |
| makes a deleted stack's bucket anew to describe it | describes what was | `_deleting` |
| deletes a stack whose exports are imported | refuses | `_refusing_exports_in_use` |
| answers 200 for endpoints that do not exist | ValidationError | `_refuse_invocation` |

What stays different: a bucket that is not empty outlives its stack in silence (AWS: DELETE_FAILED,
and the stack stays); an export may be dropped by an update while others import it; a log group
stays as it was made. `DeploymentConfig`, `EnableNetworkIsolation`, bucket policies, alarms and
autoscaling are dropped by moto in silence, endpoints are InService at once, there is no
`UpdateEndpoint` call outside CloudFormation, permissions are not enforced, and all state lives
in the memory of the process.
"""

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
from moto.cloudformation import parsing
from moto.cloudformation.exceptions import ValidationError as StackError
from moto.cloudformation.models import CloudFormationBackend
from moto.cloudformation.parsing import ResourceMap, clean_json
from moto.s3.models import FakeBucket
from moto.sagemaker import models as sagemaker
from moto.sagemaker.exceptions import ValidationError
from moto.sagemakerruntime.models import SageMakerRuntimeBackend

# CloudFormation makes a resource before those that refer to it; moto follows the template.
_SAGEMAKER_ORDER = (
    "AWS::SageMaker::Model",
    "AWS::SageMaker::EndpointConfig",
    "AWS::SageMaker::Endpoint",
)

_cleanup = threading.local()
# What each Model and EndpointConfig was made of, references resolved. Beside the objects, not in
# them: moto answers a description with every attribute that it finds.
_made_of: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_change_log: Path | None = None


def apply_patches(*, change_log: Path | None = None) -> None:
    """Patch moto in this process; call it before the first request.

    `change_log` is a file that grows by one byte whenever an endpoint is created, updated or
    deleted. The runtime server compares its size before each invocation, which costs
    microseconds where asking the control plane costs milliseconds.
    """
    global _change_log  # noqa: PLW0603  (one control plane is one process)
    _change_log = change_log
    endpoint = sagemaker.FakeEndpoint
    endpoint.create_from_cloudformation_json = classmethod(_create_endpoint)
    endpoint.update_from_cloudformation_json = classmethod(_update_endpoint)
    for replaceable in (sagemaker.Model, sagemaker.FakeEndpointConfig):
        create = replaceable.create_from_cloudformation_json.__func__
        replaceable.create_from_cloudformation_json = classmethod(_remembering(create))
        replaceable.update_from_cloudformation_json = classmethod(_replace)
    sagemaker.FakeEndpointConfig.validate_instance_type = _validate_instance_type
    backend = sagemaker.SageMakerModelBackend
    backend.create_endpoint = _noting_change(_refusing_taken_name(backend.create_endpoint))
    backend.delete_endpoint = _noting_change(backend.delete_endpoint)
    ResourceMap.update = _updating_in_order(ResourceMap.update)
    ResourceMap.delete = _deleting(ResourceMap.delete)
    parsing.parse_and_update_resource = _keeping(parsing.parse_and_update_resource)
    update_bucket = FakeBucket.update_from_cloudformation_json.__func__
    FakeBucket.update_from_cloudformation_json = classmethod(_update_bucket(update_bucket))
    stacks = CloudFormationBackend
    stacks.delete_stack = _refusing_exports_in_use(stacks.delete_stack)
    SageMakerRuntimeBackend.invoke_endpoint = _refuse_invocation
    SageMakerRuntimeBackend.invoke_endpoint_async = _refuse_invocation


def _note_change() -> None:
    if _change_log is not None:
        with _change_log.open("ab") as stream:
            stream.write(b".")


def _noting_change(method: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        _note_change()
        return result

    return noting


def _refusing_taken_name(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_endpoint(self: Any, endpoint_name: str, *args: Any, **kwargs: Any) -> Any:
        if endpoint_name in self.endpoints:
            arn = self.endpoints[endpoint_name].arn
            raise ValidationError(message=f'Cannot create already existing endpoint "{arn}".')
        return create(self, endpoint_name, *args, **kwargs)

    return create_endpoint


def _create_endpoint(
    cls: Any,
    /,
    resource_name: str,
    cloudformation_json: Any,
    account_id: str,
    region_name: str,
    **_: Any,
) -> Any:
    properties = cloudformation_json["Properties"]
    return sagemaker.sagemaker_backends[account_id][region_name].create_endpoint(
        endpoint_name=properties.get("EndpointName") or resource_name,
        endpoint_config_name=properties["EndpointConfigName"],
        tags=properties.get("Tags", []),
    )


def _update_endpoint(
    cls: Any,
    /,
    original_resource: Any,
    new_resource_name: str,
    cloudformation_json: Any,
    account_id: str,
    region_name: str,
) -> Any:
    properties = cloudformation_json["Properties"]
    backend = sagemaker.sagemaker_backends[account_id][region_name]
    wanted_name = properties.get("EndpointName")
    if wanted_name and wanted_name != original_resource.endpoint_name:
        old_name = original_resource.endpoint_name
        _after_update(lambda: backend.delete_endpoint(old_name))
        return cls.create_from_cloudformation_json(
            new_resource_name, cloudformation_json, account_id, region_name
        )
    original_resource.tags = properties.get("Tags", [])
    if properties["EndpointConfigName"] == original_resource.endpoint_config_name:
        return original_resource
    config = backend.describe_endpoint_config(properties["EndpointConfigName"])
    process_variants = original_resource._process_production_variants  # noqa: SLF001
    original_resource.production_variants = process_variants(config["ProductionVariants"])
    original_resource.endpoint_config_name = properties["EndpointConfigName"]
    original_resource.last_modified_time = sagemaker.utcnow()
    _note_change()
    return original_resource


def _without_tags(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name != "Tags"}


def _remembering(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_resource(
        cls: Any, /, resource_name: str, cloudformation_json: Any, *args: Any, **kwargs: Any
    ) -> Any:
        made_of = copy.deepcopy(_without_tags(cloudformation_json["Properties"]))
        resource = create(cls, resource_name, cloudformation_json, *args, **kwargs)
        _made_of[resource] = made_of
        return resource

    return create_resource


def _replace(
    cls: Any,
    /,
    original_resource: Any,
    new_resource_name: str,
    cloudformation_json: Any,
    account_id: str,
    region_name: str,
) -> Any:
    """Every property of a Model or an EndpointConfig but its tags means replacement.

    Resolved properties are compared: a resource that is here only because it refers to one that
    kept its name stays as well.
    """
    properties = cloudformation_json["Properties"]
    if _without_tags(properties) == _made_of.get(original_resource):
        original_resource.tags = properties.get("Tags", [])
        return original_resource
    _after_update(
        lambda: cls.delete_from_cloudformation_json(
            original_resource.physical_resource_id, cloudformation_json, account_id, region_name
        )
    )
    return cls.create_from_cloudformation_json(
        new_resource_name, cloudformation_json, account_id, region_name
    )


def _after_update(action: Callable[[], None]) -> None:
    _cleanup.actions = [*getattr(_cleanup, "actions", []), action]


def _updating_in_order(update: Callable[..., None]) -> Callable[..., None]:
    def update_stack(
        self: Any, template: dict[str, Any], parameters: dict[str, Any] | None = None
    ) -> None:
        _cleanup.actions = []
        old_template = dict(self._resource_json_map)
        diff = self.build_resource_diff(template, parameters)
        removed = {
            name: (self._parsed_resources.pop(name, None), old_template[name])
            for name in diff["Remove"]
        }
        ordered = {
            "Add": diff["Add"],
            "Modify": _with_dependants(diff["Modify"], template["Resources"]),
            "Remove": [],
        }
        # moto asks for the difference again inside `update`; it gets the ordered one.
        self.build_resource_diff = lambda *_args, **_kwargs: ordered
        try:
            update(self, template, parameters)
        finally:
            del self.build_resource_diff
        for action in _cleanup.actions:
            action()
        by_type = sorted(removed.values(), key=lambda row: -_rank(row[1]["Type"]))
        for resource, resource_json in by_type:
            if resource is not None and resource_json.get("DeletionPolicy") != "Retain":
                self._delete_resource(resource, resource_json)

    return update_stack


def _deleting(delete: Callable[[Any], None]) -> Callable[[Any], None]:
    def delete_resources(self: Any) -> None:
        # Whoever describes the deleted stack asks for its outputs, and these for its resources,
        # which moto makes when it does not have them.
        as_it_was = dict(self._parsed_resources)
        delete(self)
        self._parsed_resources = as_it_was

    return delete_resources


def _keeping(update: Callable[..., Any]) -> Callable[..., Any]:
    def update_resource(
        logical_id: str, resource_json: Any, resources_map: Any, **where: str
    ) -> Any:
        updated = update(logical_id, resource_json, resources_map, **where)
        # None stands for "cannot be updated"; moto would go on with None as the resource.
        kept = resources_map._parsed_resources.get(logical_id)  # noqa: SLF001
        return kept if updated is None else updated

    return update_resource


def _update_bucket(update: Callable[..., Any]) -> Callable[..., Any]:
    def update_bucket(cls: Any, /, **change: Any) -> Any:
        properties = change["cloudformation_json"]["Properties"]
        properties.setdefault("BucketName", change["original_resource"].name)
        return update(cls, **change)

    return update_bucket


def _refusing_exports_in_use(delete: Callable[..., None]) -> Callable[..., None]:
    def delete_stack(self: Any, name_or_stack_id: str) -> None:
        for stack in list(self.stacks.values()):
            if name_or_stack_id in (stack.name, stack.stack_id):
                _refuse_exports_in_use(stack, list(self.stacks.values()))
        delete(self, name_or_stack_id)

    return delete_stack


def _refuse_exports_in_use(stack: Any, stacks: list[Any]) -> None:
    for export in stack.exports:
        users = [
            other.name
            for other in stacks
            if other is not stack
            and export.name
            in (clean_json(name, other.resource_map) for name in _imports(other.template_dict))
        ]
        if users:
            # The words of AWS; there they are the reason of the stack's status, since the call
            # itself is accepted (https://github.com/aws/aws-cdk/issues/604, checked 2026-11-28).
            raise StackError(
                message=f"Export {export.name} cannot be deleted as it is in use by "
                f"{' and '.join(sorted(users))}"
            )


def _imports(node: Any) -> Iterator[Any]:
    """What each `Fn::ImportValue` of a template names."""
    if isinstance(node, list):
        for item in node:
            yield from _imports(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "Fn::ImportValue":
                yield value
            else:
                yield from _imports(value)


def _with_dependants(modified: list[str], resources: dict[str, Any]) -> list[str]:
    """`modified` and every SageMaker resource that refers to a modified one, makers first."""
    names = set(modified)
    for kind in _SAGEMAKER_ORDER:
        names |= {
            name
            for name, resource in resources.items()
            if resource["Type"] == kind
            and any(
                resources[other]["Type"] in _SAGEMAKER_ORDER
                for other in names & set(_references(resource.get("Properties", {})))
            )
        }
    return sorted(names, key=lambda name: _rank(resources[name]["Type"]))


def _rank(resource_type: str) -> int:
    if resource_type in _SAGEMAKER_ORDER:
        return 1 + _SAGEMAKER_ORDER.index(resource_type)
    return 0


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "Ref" and isinstance(value, str):
                yield value
            elif key == "Fn::GetAtt":
                yield value[0] if isinstance(value, list) else value.split(".")[0]
            else:
                yield from _references(value)


@cache
def _instance_types() -> frozenset[str]:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return frozenset(model.shape_for("ProductionVariantInstanceType").enum)


def _validate_instance_type(self: Any, instance_type: str) -> None:
    if instance_type not in _instance_types():
        raise ValidationError(
            message=f"Value '{instance_type}' at 'instanceType' failed to satisfy constraint: "
            "it is not an instance type of SageMaker hosting"
        )


def _refuse_invocation(self: Any, endpoint_name: str, *_: Any, **__: Any) -> Any:
    raise ValidationError(
        message="The control plane does not run endpoints: send invocations "
        "to the local runtime (AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME)."
    )
