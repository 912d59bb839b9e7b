"""The errors of InvokeEndpoint, in the shapes from which boto3 makes its exceptions.

    PlatformError
    ├── ValidationError       400  the request, or an endpoint that was never deployed
    ├── PayloadTooLargeError  413  real-time, over the limit (its code is the number, as on AWS)
    ├── ThrottlingException   429  more requests at once than MaxConcurrency
    ├── ModelError            424  the container answered an error, died, or was too slow
    ├── InternalFailure       500
    └── ServiceUnavailable    503

Names, status codes and members as in the service model of `sagemaker-runtime` (botocore
1.44.8); messages as reported in public by people who met them.
"""

from typing import Any, ClassVar


class PlatformError(Exception):
    """An error that the platform, not the container, answers with."""

    code: ClassVar[str]
    status: ClassVar[int]

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def document(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        return {"Code": self.code, "Message": self.message}


class ValidationError(PlatformError):
    """The request is malformed or too large, or names an endpoint that was never deployed."""

    code = "ValidationError"
    status = 400


class PayloadTooLargeError(PlatformError):
    """A real-time request above the limit; its code is the number, as on AWS."""

    code = "413"
    status = 413


class ThrottlingException(PlatformError):  # noqa: N818  (the name on the wire)
    """More requests at once than `MaxConcurrency` lets in."""

    code = "ThrottlingException"
    status = 429


class InternalFailure(PlatformError):  # noqa: N818  (the name on the wire)
    """The endpoint refers to what is not there, or to what this runtime does not run."""

    code = "InternalFailure"
    status = 500


class ServiceUnavailable(PlatformError):  # noqa: N818  (the name on the wire)
    """The control plane does not answer."""

    code = "ServiceUnavailable"
    status = 503


class ModelError(PlatformError):
    """The container failed. `original_status` is 0 when it gave no answer at all."""

    code = "ModelError"
    status = 424

    def __init__(
        self, *, original_status: int, original_message: str, log_stream_arn: str, log_file: str
    ) -> None:
        party = "client" if 400 <= original_status < 500 else "server"
        super().__init__(
            f"Received {party} error ({original_status}) from primary with message "
            f'"{original_message}". See {log_file} for more information.'
        )
        self.original_status = original_status
        self.original_message = original_message
        self.log_stream_arn = log_stream_arn

    def document(self) -> dict[str, Any]:
        return {
            **super().document(),
            "OriginalStatusCode": self.original_status,
            "OriginalMessage": self.original_message,
            "LogStreamArn": self.log_stream_arn,
        }
