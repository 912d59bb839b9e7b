"""The wire shapes are those from which botocore makes its exceptions."""

import json

import botocore.parsers
import botocore.session
import pytest

from dr_local.platform_errors import (
    InternalFailure,
    ModelError,
    PlatformError,
    ServiceUnavailable,
    ThrottlingException,
    ValidationError,
)

MODEL = botocore.session.get_session().get_service_model("sagemaker-runtime")


def parsed(error: PlatformError) -> dict:
    parser = botocore.parsers.create_parser("rest-json")
    response = {
        "status_code": error.status,
        "headers": {"x-amzn-errortype": error.code},
        "body": json.dumps(error.document()).encode(),
    }
    operation = MODEL.operation_model("InvokeEndpoint")
    document = parser.parse(response, operation.output_shape)
    shape = MODEL.shape_for_error_code(document["Error"]["Code"])
    if shape is not None:
        document.update(parser.parse(response, shape))
    return document


@pytest.mark.parametrize("kind", [ValidationError, InternalFailure, ServiceUnavailable])
def test_names_and_status_codes_are_in_the_service_model(kind: type[PlatformError]):
    shape = MODEL.shape_for_error_code(kind.code)
    assert shape.metadata["error"]["httpStatusCode"] == kind.status
    assert parsed(kind("why"))["Error"] == {"Code": kind.code, "Message": "why"}


def test_throttling_is_what_botocore_retries():
    assert parsed(ThrottlingException("slow down"))["Error"]["Code"] == "ThrottlingException"


@pytest.mark.parametrize(("status", "party"), [(415, "client"), (503, "server"), (0, "server")])
def test_a_model_error_keeps_what_the_container_said(status: int, party: str):
    error = ModelError(
        original_status=status, original_message='{"a": "é"}', log_stream_arn="arn:x", log_file="L"
    )
    document = parsed(error)
    assert document["OriginalStatusCode"] == status
    assert document["OriginalMessage"] == '{"a": "é"}'
    assert document["LogStreamArn"] == "arn:x"
    assert document["Error"]["Message"].startswith(
        f"Received {party} error ({status}) from primary"
    )
