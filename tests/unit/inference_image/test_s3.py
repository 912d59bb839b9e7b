"""One signed GET: the signature is botocore's, and each failure says what to change."""

import http.server
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from inference_image import s3
from inference_image.s3 import Credentials, S3Error, S3Location, download, object_url, sign

LOCATION = S3Location(bucket="models", key="models/mobilenet demo/ä+1.tar.gz")
ACCESS = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": "a-token/with+signs==",
    "AWS_REGION": "eu-central-1",
}


@pytest.mark.parametrize("token", [None, "a-token/with+signs=="])
@pytest.mark.parametrize(
    ("endpoint", "bucket"), [("", "models"), ("", "my.models"), ("http://localhost:5000", "models")]
)
def test_the_signature_is_that_of_botocore(token: str | None, endpoint: str, bucket: str) -> None:
    location = S3Location(bucket=bucket, key=LOCATION.key)
    url = object_url(location, region="eu-central-1", endpoint=endpoint)
    host, _, path = url.partition("//")[2].partition("/")
    ours = sign(
        Credentials(access_key=ACCESS, secret_key=SECRET, token=token),
        host=host,
        path=f"/{path}",
        region="eu-central-1",
        now=datetime.now(UTC),
    )
    request = AWSRequest(method="GET", url=url, headers={"host": host})
    request.context["timestamp"] = ours["x-amz-date"]
    signer = S3SigV4Auth(BotoCredentials(ACCESS, SECRET, token), "s3", "eu-central-1")
    request.headers["X-Amz-Content-SHA256"] = signer.payload(request)
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.headers["X-Amz-Date"] = ours["x-amz-date"]
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    assert ours["authorization"].endswith(f"Signature={signature}")
    scope = f"{ours['x-amz-date'][:8]}/eu-central-1/s3/aws4_request"
    assert ours["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={ACCESS}/{scope},")


@pytest.mark.parametrize(
    ("bucket", "region", "url"),
    [
        ("m", "eu-central-1", "https://m.s3.eu-central-1.amazonaws.com/k%20y"),
        ("m", "cn-north-1", "https://m.s3.cn-north-1.amazonaws.com.cn/k%20y"),
        ("m.n", "us-east-1", "https://s3.us-east-1.amazonaws.com/m.n/k%20y"),
    ],
)
def test_addresses(bucket: str, region: str, url: str) -> None:
    assert object_url(S3Location(bucket=bucket, key="k y"), region=region) == url


Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Bucket:
    """A server that gives the prepared answers, one per request; the last is repeated."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        bucket = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                bucket.requests.append((self.path, dict(self.headers)))
                answers = bucket.answers
                (answers.pop(0) if len(answers) > 1 else answers[0])(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.environment = {
            **ENVIRONMENT,
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.server.server_address[1]}",
        }


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join(timeout=10)
    made.server.server_close()


def answer(status: int, body: bytes = b"", length: int | None = None, **headers: str) -> Answer:
    def give(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return give


def fetch(bucket: Bucket, target: Path, waits: list[float] | None = None) -> int:
    sleep = (lambda _: None) if waits is None else waits.append
    return download(LOCATION, target, environment=bucket.environment, sleep=sleep)


def test_the_object_arrives_and_the_key_is_encoded(bucket: Bucket, tmp_path: Path) -> None:
    body = bytes(range(256)) * 9000
    bucket.answers = [answer(200, body)]
    assert fetch(bucket, tmp_path / "o") == len(body)
    assert (tmp_path / "o").read_bytes() == body
    path, headers = bucket.requests[0]
    assert path == "/models/models/mobilenet%20demo/%C3%A4%2B1.tar.gz"
    assert headers["x-amz-security-token"] == ENVIRONMENT["AWS_SESSION_TOKEN"]


def test_what_passes_is_tried_again(bucket: Bucket, tmp_path: Path) -> None:
    waits: list[float] = []
    bucket.answers = [answer(503), answer(200, b"half", length=8), answer(200, b"complete")]
    assert fetch(bucket, tmp_path / "o", waits) == 8
    assert (tmp_path / "o").read_bytes() == b"complete"
    assert waits == [0.1, 0.2]


def test_a_bucket_of_another_region_is_followed(bucket: Bucket, tmp_path: Path) -> None:
    moved = answer(301, x_amz_bucket_region="us-west-2")
    bucket.answers = [moved, answer(200, b"there")]
    assert fetch(bucket, tmp_path / "o") == 5
    assert "/us-west-2/s3/" in bucket.requests[1][1]["authorization"]


@pytest.mark.parametrize(
    ("status", "tries", "fragment"),
    [
        (403, 1, "s3:GetObject"),
        (404, 1, "there is no s3://models/models/mobilenet demo/ä+1.tar.gz"),
        (400, 1, "HTTP 400"),
        (500, 4, "HTTP 500"),
        (429, 4, "HTTP 429"),
    ],
)
def test_each_refusal_says_what_to_change(
    bucket: Bucket, tmp_path: Path, status: int, tries: int, fragment: str
) -> None:
    bucket.answers = [answer(status)]
    with pytest.raises(S3Error, match=r".+") as refusal:
        fetch(bucket, tmp_path / "o")
    assert fragment in str(refusal.value)
    assert len(bucket.requests) == tries
    assert SECRET not in str(refusal.value)


def test_regions_that_point_at_each_other_end(bucket: Bucket, tmp_path: Path) -> None:
    bucket.answers = [
        answer(301, x_amz_bucket_region=region) for region in ("b", "a", "b", "a", "b", "a")
    ]
    with pytest.raises(S3Error, match="in no region that could be found"):
        fetch(bucket, tmp_path / "o")


def test_an_object_larger_than_the_disk_is_refused_before_it_is_read(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.answers = [answer(200, b"", length=2**60)]
    with pytest.raises(S3Error, match="more ephemeral storage"):
        fetch(bucket, tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_a_full_disk_is_not_tried_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.answers = [answer(200, b"bytes")]

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(s3, "_store", full)
    with pytest.raises(S3Error, match="No space left on device"):
        fetch(bucket, tmp_path / "o")
    assert len(bucket.requests) == 1


@pytest.mark.parametrize("length", [None, "many"])
def test_an_answer_without_its_length_is_not_believed(
    bucket: Bucket, tmp_path: Path, length: str | None
) -> None:
    def give(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        if length is not None:
            handler.send_header("Content-Length", length)
        handler.end_headers()
        handler.wfile.write(b"perhaps all of it")

    bucket.answers = [give]
    with pytest.raises(S3Error, match="does not say how long it is"):
        fetch(bucket, tmp_path / "o")


def test_nobody_listening_is_a_sentence(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    with pytest.raises(S3Error, match="Connection refused"):
        download(LOCATION, tmp_path / "o", environment=environment, sleep=lambda _: None)


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"])
def test_a_missing_variable_is_named(tmp_path: Path, missing: str) -> None:
    environment = {name: value for name, value in ENVIRONMENT.items() if name != missing}
    with pytest.raises(S3Error, match=missing):
        download(LOCATION, tmp_path / "o", environment=environment)
