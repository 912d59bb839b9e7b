"""Labels, routes, limits and environment names that every part of the project agrees on.

Standard library only: the constructs, the experiments and the container all import this
module, and none of them should pay for another one's dependencies.

    >>> from inference_image.contract import GRADE_LABELS
    >>> GRADE_LABELS[2]
    'Moderate'
"""

from typing import Final, NotRequired, TypedDict

# International Clinical Diabetic Retinopathy (ICDR) severity scale, Wilkinson et al.,
# Ophthalmology 2003;110:1677-82. The order is the grade; it is never sorted by name.
GRADE_LABELS: Final = ("No DR", "Mild", "Moderate", "Severe", "Proliferative DR")
REFERABLE_FROM_GRADE: Final = 2

TASK_GRADE5: Final = "grade5"
TASK_REFERABLE: Final = "referable"
TASKS: Final = (TASK_GRADE5, TASK_REFERABLE)

# --- SageMaker container contract ------------------------------------------------------
PING_PATH: Final = "/ping"
INVOCATIONS_PATH: Final = "/invocations"
# Batch Transform asks once, before it sends the first image.
EXECUTION_PARAMETERS_PATH: Final = "/execution-parameters"
# For monitoring beside the platform, which asks for none of these.
METRICS_PATH: Final = "/metrics"
OPENAPI_PATH: Final = "/openapi.json"
DEFAULT_PORT: Final = 8080
DEFAULT_MODEL_DIR: Final = "/opt/ml/model"
CUSTOM_ATTRIBUTES_HEADER: Final = "X-Amzn-SageMaker-Custom-Attributes"
EXPLAIN_ATTRIBUTE: Final = "explain"
EXPLAIN_GRADCAM: Final = "gradcam"
EXPLAIN_FORMAT_ATTRIBUTE: Final = "explain_format"
EXPLAIN_SIDE_ATTRIBUTE: Final = "explain_px"
OPERATING_POINT_ATTRIBUTE: Final = "operating_point"

# --- Environment of the container: name -> default, as text --------------------------
ENV_MODEL_DIR: Final = "DR_MODEL_DIR"
ENV_WORKERS: Final = "MODEL_SERVER_WORKERS"
ENV_TIMEOUT_S: Final = "MODEL_SERVER_TIMEOUT"
ENV_BIND_TO_PORT: Final = "SAGEMAKER_BIND_TO_PORT"
ENV_BATCH: Final = "SAGEMAKER_BATCH"
ENV_BIND_HOST: Final = "DR_BIND_HOST"
ENV_THREADS: Final = "DR_THREADS"
ENV_THREADS_ALONE: Final = "DR_THREADS_ALONE"
ENV_QUEUE_LIMIT: Final = "DR_QUEUE_LIMIT"
ENV_MAX_IMAGE_BYTES: Final = "DR_MAX_IMAGE_BYTES"
ENV_MAX_IMAGE_PIXELS: Final = "DR_MAX_IMAGE_PIXELS"
ENV_MAX_IMAGES: Final = "DR_MAX_IMAGES"
ENV_MAX_REQUEST_PIXELS: Final = "DR_MAX_REQUEST_PIXELS"
ENV_OPERATING_POINT: Final = "DR_OPERATING_POINT"
ENV_LOG_LEVEL: Final = "DR_LOG_LEVEL"
ENV_METRICS: Final = "DR_METRICS"
ENV_SERVING_MODE: Final = "DR_SERVING_MODE"
ENV_RUNTIME: Final = "DR_RUNTIME"
ENV_LAYOUT: Final = "DR_LAYOUT"
ENV_PLAIN_INPUT: Final = "DR_PLAIN_INPUT"
ENV_KERNEL: Final = "DR_KERNEL"
# Lambda only: on SageMaker the platform unpacks the model, and no gateway changes the path.
ENV_MODEL_URL: Final = "DR_MODEL_URL"
ENV_BASE_PATH: Final = "DR_BASE_PATH"

SERVING_MODE_SERVERLESS: Final = "serverless"
SERVING_MODE_REALTIME: Final = "realtime"
SERVING_MODE_LOCAL: Final = "local"
METRICS_PROMETHEUS: Final = "prometheus"
METRICS_EMF: Final = "emf"
METRICS: Final = (METRICS_PROMETHEUS, METRICS_EMF)

SERVING_MODES: Final = (SERVING_MODE_SERVERLESS, SERVING_MODE_REALTIME, SERVING_MODE_LOCAL)

# Engines, the preferred one first; "auto" takes the first that the package and the image have.
RUNTIME_LITERT: Final = "litert"
RUNTIME_TENSORFLOW: Final = "tensorflow"
RUNTIMES: Final = (RUNTIME_LITERT, RUNTIME_TENSORFLOW)
RUNTIME_AUTO: Final = "auto"

# Numbers that the pixels of a floating-point model without model.json become.
PLAIN_INPUT_RANGES: Final = ("0..255", "0..1", "-1..1")
PLAIN_INPUT_AUTO: Final = "auto"

# Processes: `lean` is uvicorn alone, `full` is nginx in front of gunicorn's uvicorn workers.
LAYOUT_LEAN: Final = "lean"
LAYOUT_FULL: Final = "full"
LAYOUTS: Final = (LAYOUT_LEAN, LAYOUT_FULL)
LAYOUT_AUTO: Final = "auto"

# What finds the disc and judges the photograph; "auto" is the compiled one where there is one.
KERNEL_COMPILED: Final = "compiled"
KERNEL_NUMPY: Final = "numpy"
KERNEL_AUTO: Final = "auto"

# --- Media types ---------------------------------------------------------------------
MEDIA_JPEG: Final = "image/jpeg"
MEDIA_PNG: Final = "image/png"
MEDIA_TIFF: Final = "image/tiff"
MEDIA_WEBP: Final = "image/webp"
MEDIA_BMP: Final = "image/bmp"
MEDIA_DICOM: Final = "application/dicom"
MEDIA_MULTIPART: Final = "multipart/form-data"
MEDIA_JSON: Final = "application/json"
MEDIA_CSV: Final = "text/csv"
MEDIA_PROBLEM: Final = "application/problem+json"
# Types that promise nothing about the bytes: they are sniffed.
MEDIA_OPAQUE: Final = ("application/x-image", "application/octet-stream")
ACCEPTED_IMAGE_TYPES: Final = (
    MEDIA_JPEG,
    MEDIA_PNG,
    MEDIA_TIFF,
    MEDIA_WEBP,
    MEDIA_BMP,
    MEDIA_DICOM,
)
ACCEPTED_CONTENT_TYPES: Final = (
    *ACCEPTED_IMAGE_TYPES,
    *MEDIA_OPAQUE,
    MEDIA_JSON,
    MEDIA_MULTIPART,
)

# --- Problems (RFC 9457): status -> title -----------------------------------------
PROBLEM_TITLES: Final = {
    400: "Malformed request",
    413: "Image too large",
    415: "Unsupported media type",
    422: "Image cannot be decoded",
    429: "Queue full",
    500: "Internal error",
    503: "Not ready",
    504: "Too slow",
}

# Also of what belongs to no route.
TITLES: Final = {**PROBLEM_TITLES, 404: "Not found", 405: "Method not allowed"}

# --- Reasons of the quality verdict ---------------------------------------------------
REASON_NOT_FUNDUS: Final = "not_a_fundus_photograph"
REASON_TOO_DARK: Final = "too_dark"
REASON_TOO_BRIGHT: Final = "too_bright"
REASON_BLURRED: Final = "blurred"
REASON_CLIPPED_FIELD: Final = "clipped_field"
QUALITY_REASONS: Final = (
    REASON_NOT_FUNDUS,
    REASON_TOO_DARK,
    REASON_TOO_BRIGHT,
    REASON_BLURRED,
    REASON_CLIPPED_FIELD,
)

NOT_ASSESSED: Final = "Diabetic macular oedema is not assessed."
NOT_A_DEVICE: Final = "Not a medical device; not for clinical use."


class Referable(TypedDict):
    """The decision to act on. `probability` is P(grade >= 2), in [0, 1]."""

    probability: float | None
    operating_point: str
    threshold: float
    positive: bool | None


class Quality(TypedDict):
    """Verdict on the photograph; `reasons` are members of `QUALITY_REASONS`."""

    gradable: bool
    reasons: list[str]


class ServedModel(TypedDict):
    """Which package answered. `sha256` is the package digest (see `model_spec`)."""

    id: str
    sha256: str
    notice: NotRequired[str]


class Container(TypedDict):
    """Which process answered: a new `start_id` means a fresh container.

    `started_to_ready_ms` runs from the start of the supervising process to the end of the
    warm-up prediction; `requests_before` counts the predictions it had answered before.
    """

    start_id: str
    started_to_ready_ms: float
    requests_before: int


class Explanation(TypedDict):
    """A Grad-CAM heat map over the prepared image, base64 of `media_type`.

    It shows what speaks for `label`; `grade` is that label's, null for a model without grades.
    """

    method: str
    grade: int | None
    label: str
    media_type: str
    width: int
    height: int
    image: str


class Acquisition(TypedDict):
    """What a DICOM file says about how the photograph was taken; nothing about the patient.

    `pixel_spacing_mm` is the distance of rows and of columns in the stored image; `laterality`
    is R, L or B (both eyes). Each is null where the file does not say it.
    """

    pixel_spacing_mm: list[float] | None
    laterality: str | None


class Prediction(TypedDict):
    """One answer of `POST /invocations`; several images give a list of answers and problems.

    `predictions` are probabilities in the order of the model's labels and sum to 1.
    They, `grade`, `label`, `referable.probability` and `referable.positive` are null when
    the photograph is not gradable. Latencies are seconds; the three camel-case names and
    `predictions` are what clients of the earlier study parse.
    """

    predictions: list[float] | None
    grade: int | None
    label: str | None
    referable: Referable
    consistent: bool | None
    quality: Quality
    model: ServedModel
    container: Container
    requestLatency: float
    predictionLatency: float
    acquisition: NotRequired[Acquisition]
    explanation: NotRequired[Explanation]


class ExecutionParameters(TypedDict):
    """Answer of `GET /execution-parameters`: how Batch Transform should send its images."""

    MaxConcurrentTransforms: int
    BatchStrategy: str
    MaxPayloadInMB: int


class Problem(TypedDict):
    """An `application/problem+json` body (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    retry_after_s: NotRequired[float]
