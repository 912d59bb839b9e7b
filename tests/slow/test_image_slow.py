"""The image as Docker builds and runs it: for both architectures, locked down, and on Lambda.

An engine that answers is used. Otherwise Debian's own is started for these tests, as root, with a
base image made of Debian packages. The arm64 image runs under QEMU's user mode.
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference_image import kernel
from inference_image.docker import build_kernel
from inference_image.model_spec import load_model_spec, verify_files
from inference_image.predictor import Predictor
from tests.service_harness import Served
from tests.service_harness import running as running_service
from tests.slow.sagemaker_job import Job
from tests.slow.test_fitting_slow import _losses
from tests.slow.test_training_job_slow import PARAMETERS, records
from tests.slow.test_training_slow import training_python
from tools.debian import DebianError, DebianPackages
from tools.docker_engine import DEBIAN_SUITE, Engine, debian_base, docker_engine
from tools.image import Build, build_image, save
from tools.image_archive import Archive, programs

__all__ = ["records", "training_python"]

pytestmark = pytest.mark.timeout(1500)

MEGABYTE = 1_000_000
LITERT = (("litert", "amd64"), ("litert", "arm64"))
ALL = (*LITERT, ("tensorflow", "amd64"))
# What the platform gives a container, and less: nothing is written but to /tmp.
LOCKED_DOWN = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--pids-limit", "64"),
    *("--memory", "512m", "--memory-swap", "512m", "--cpus", "1"),
)
# SageMaker's root is writable; a job with network isolation has no network.
ISOLATED = (
    *("--read-only", "--tmpfs", "/tmp", "--network", "none"),
    *("--security-opt", "no-new-privileges", "--memory", "3g"),
)
UNCHECKED_HASH = 0b01


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image in the engine, what its build said, and what is in it."""

    name: str
    log: str
    archive: Archive


class Images:
    """Builds each image once."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self._folder = folder
        self._built: dict[tuple[str, str], Built] = {}

    def get(self, runtime: str, architecture: str) -> Built:
        key = (runtime, architecture)
        if key not in self._built:
            build = Build(
                runtime=runtime,
                architecture=architecture,
                tag=f"dr-slow-test:{runtime}-{architecture}",
            )
            log = build_image(self.engine, build)
            path = self._folder / f"{runtime}-{architecture}.tar"
            archive = save(self.engine, build.name, path, compress=runtime == "litert")
            path.unlink()
            self._built[key] = Built(name=build.name, log=log, archive=archive)
        return self._built[key]

    def remove(self) -> None:
        for built in self._built.values():
            self.engine.run("rmi", "--force", built.name, check=False)


@pytest.fixture(scope="module")
def engine(repository: Path) -> Iterator[Engine]:
    cache = repository / ".docker-engine"
    with docker_engine(cache) as engine:
        if engine.own:
            debian_base(engine, cache)
        yield engine
    if engine.own:
        state = engine.environment["DOCKER_HOST"].removeprefix("unix://").rpartition("/")[0]
        assert not Path(state).exists()
        assert state not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert state.encode() not in entry.read_bytes()


@pytest.fixture(scope="module")
def images(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    images = Images(engine, tmp_path_factory.mktemp("images"))
    yield images
    images.remove()


@pytest.fixture(scope="module")
def model(repository: Path) -> Path:
    return repository / "model_artifacts" / "mobilenet-demo"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ask(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


class Container:
    """A running container; its port is on this machine's loopback interface."""

    def __init__(self, engine: Engine, identity: str, port: int) -> None:
        self._engine = engine
        self.identity = identity
        self.url = f"http://127.0.0.1:{port}"

    def log(self) -> str:
        done = self._engine.run("logs", self.identity, check=False)
        return done.stdout + done.stderr

    def state(self) -> dict[str, Any]:
        done = self._engine.run("inspect", "--format", "{{json .State}}", self.identity)
        return dict(json.loads(done.stdout))

    def wait_until_ready(self, path: str = "/ping", *, within_s: float = 60) -> None:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            assert self.state()["Running"], self.log()
            with contextlib.suppress(OSError):
                if ask(f"{self.url}{path}")[0] == 200:
                    return
            time.sleep(0.2)
        pytest.fail(f"not ready within {within_s} s:\n{self.log()}")

    def grade(self, body: bytes, media_type: str = "image/jpeg") -> Any:
        status, answer = ask(f"{self.url}/invocations", body, {"Content-Type": media_type})
        assert status == 200, (answer, self.log())
        return answer

    def stop(self) -> int:
        self._engine.run("stop", "--time", "30", self.identity)
        return int(self.state()["ExitCode"])


def kernels(running: Container) -> set[str]:
    """What finds the disc, as the container's own log says of each worker."""
    lines = [line for line in running.log().splitlines() if line.startswith("{")]
    return {event["kernel"] for event in map(json.loads, lines) if event["event"] == "ready"}


@contextlib.contextmanager
def container(
    engine: Engine,
    image: str,
    *command: str,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    mounts: Mapping[Path, str] | None = None,
    entrypoint: str | None = None,
) -> Iterator[Container]:
    """Run `image` with `options`; it is removed in any case."""
    port = free_port()
    variables = {"SAGEMAKER_BIND_TO_PORT": str(port), **(environment or {})}
    arguments = ["run", "--detach", *options]
    # An engine of its own has no bridge. Another engine maps the port.
    arguments += engine.network or ("--publish", f"127.0.0.1:{port}:{port}")
    for name, value in variables.items():
        arguments += ["--env", f"{name}={value}"]
    for source, target in (mounts or {}).items():
        arguments += ["--volume", f"{source}:{target}:ro"]
    if entrypoint:
        arguments += ["--entrypoint", entrypoint]
    identity = engine.run(*arguments, image, *command).stdout.strip()
    try:
        yield Container(engine, identity, port)
    finally:
        engine.run("rm", "--force", "--volumes", identity, check=False)


# --- what is in it ------------------------------------------------------------------------


def test_an_engine_answers(engine: Engine) -> None:
    assert engine.run("version", "--format", "{{.Server.Version}}").stdout.strip()


@pytest.mark.parametrize(("runtime", "architecture"), ALL)
def test_every_program_is_for_the_right_processor(
    images: Images, runtime: str, architecture: str
) -> None:
    archive = images.get(runtime, architecture).archive
    assert archive.architecture == architecture
    found = {entry.path: entry.program.machine for entry in programs(archive) if entry.program}
    assert len(found) > 60
    wrong = {path: machine for path, machine in found.items() if machine != architecture}
    assert wrong == {}


@pytest.mark.parametrize(("runtime", "architecture"), ALL)
def test_it_holds_one_kernel_of_its_own_processor(
    images: Images, runtime: str, architecture: str
) -> None:
    """And not what set-up compiled on this machine."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[architecture]
    folder = "/opt/dr/inference_image/native"
    files = images.get(runtime, architecture).archive.files
    (found,) = [entry for path, entry in files.items() if path.startswith(f"{folder}/")]
    assert found.path == f"{folder}/fundus-{machine}.so"
    assert found.program is not None
    assert found.program.machine == architecture
    # No library of any kind, so that it runs on every base.
    assert found.program.needed == ()


@pytest.fixture(scope="module")
def zig_folder(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked compiler of the image."""
    folder = tmp_path_factory.mktemp("zig")
    lock_file = repository / "inference_image" / "requirements-compiler.txt"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    install += ["--require-hashes", "--only-binary=:all:", "--target", str(folder)]
    subprocess.run([*install, "--requirement", str(lock_file)], check=True, timeout=600)
    return folder


@pytest.mark.parametrize("machine", sorted(build_kernel.TARGETS))
def test_two_compilations_agree_bit_for_bit(
    zig_folder: Path, repository: Path, tmp_path: Path, machine: str
) -> None:
    copy = tmp_path / "elsewhere" / "fundus.c"
    copy.parent.mkdir()
    shutil.copy(repository / "inference_image" / "native" / "fundus.c", copy)
    made = [
        build_kernel.build(
            machine, compiler="zig", source=source, out=tmp_path / name, zig_folder=zig_folder
        )
        for name, source in (("first", build_kernel.SOURCE), ("second", copy))
    ]
    assert made[0].read_bytes() == made[1].read_bytes()


def test_the_image_holds_what_the_locked_compiler_makes(
    images: Images, zig_folder: Path, tmp_path: Path
) -> None:
    image = images.get("litert", "amd64").name
    code = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"
    done = images.engine.run(
        *("run", "--rm", *images.engine.network, *LOCKED_DOWN, "--entrypoint", "python3"),
        *(image, "-c", code, "/opt/dr/inference_image/native/fundus-x86_64.so"),
    )
    built = build_kernel.build("x86_64", compiler="zig", out=tmp_path, zig_folder=zig_folder)
    assert done.stdout.strip() == hashlib.sha256(built.read_bytes()).hexdigest()


# A machine without the system's compiler has Zig.
@pytest.mark.parametrize("compiler", ["zig", *filter(shutil.which, ["cc"])])
def test_what_either_compiler_makes_is_loaded(
    zig_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    machine = platform.machine()
    build_kernel.build(machine, compiler=compiler, out=tmp_path, zig_folder=zig_folder)
    monkeypatch.setattr(kernel, "FOLDER", tmp_path)
    kernel.load.cache_clear()
    try:
        assert kernel.name() == "compiled"
    finally:
        kernel.load.cache_clear()


@pytest.mark.parametrize(("runtime", "architecture"), ALL)
def test_every_library_that_is_asked_for_is_there(
    images: Images, runtime: str, architecture: str
) -> None:
    """What was removed took no library away from what stayed."""
    archive = images.get(runtime, architecture).archive
    names = {PurePosixPath(path).name for path in archive.files}
    missing = {
        entry.path: lacking
        for entry in programs(archive)
        if entry.program and (lacking := set(entry.program.needed) - names)
    }
    assert missing == {}


@pytest.mark.parametrize(("runtime", "architecture"), ALL)
def test_every_user_may_read_it_and_nobody_may_write(
    images: Images, runtime: str, architecture: str
) -> None:
    files = images.get(runtime, architecture).archive.files.values()
    assert files
    for entry in files:
        if entry.kind == "folder":
            assert entry.mode & 0o555 == 0o555, entry
        elif entry.kind == "file":
            assert entry.mode & 0o444 == 0o444, entry
            assert not entry.mode & 0o6000, entry
        if entry.kind != "link" and entry.path not in ("/tmp", "/var/tmp"):
            assert not entry.mode & 0o022, entry
        assert entry.owner == 0, entry
    modes = {entry.path: entry.mode for entry in files}
    assert modes["/tmp"] == 0o1777
    assert modes["/opt/dr/bin/serve"] == 0o755


@pytest.mark.parametrize(("runtime", "architecture"), ALL)
def test_byte_code_lies_beside_every_module_and_is_never_checked(
    images: Images, runtime: str, architecture: str
) -> None:
    files = images.get(runtime, architecture).archive.files
    modules = [path for path in files if path.endswith(".py")]
    assert len(modules) > 500
    bare = []
    for module in modules:
        folder, name = PurePosixPath(module).parent, PurePosixPath(module).stem
        compiled = [
            entry
            for tag in ("312", "313", "311", "314")
            if (entry := files.get(f"{folder}/__pycache__/{name}.cpython-{tag}.pyc"))
        ]
        if not compiled:
            bare.append(module)
        for entry in compiled:
            assert entry.head[4] == UNCHECKED_HASH, entry.path
    # Templates that are not Python, inside some packages, cannot be compiled.
    assert len(bare) <= len(modules) // 100, bare


@pytest.mark.parametrize(("runtime", "architecture"), LITERT)
def test_it_is_small(images: Images, runtime: str, architecture: str) -> None:
    archive = images.get(runtime, architecture).archive
    assert archive.compressed_bytes <= 60 * MEGABYTE
    assert archive.unpacked_bytes <= 180 * MEGABYTE


def test_with_tensorflow_it_is_far_below_what_a_serverless_endpoint_takes(images: Images) -> None:
    """10 GB are refused there; TensorFlow's wheels for GPUs alone make up most of that."""
    archive = images.get("tensorflow", "amd64").archive
    assert archive.unpacked_bytes <= 1500 * MEGABYTE


def test_every_line_of_the_lists_of_what_goes_still_takes_something(images: Images) -> None:
    """On one of the architectures: some wheels differ."""
    idle = [
        {
            line.split("nothing matches ")[1]
            for line in log.splitlines()
            if "nothing matches" in line
        }
        for log in (images.get(*key).log for key in LITERT)
    ]
    assert idle[0] & idle[1] == set()


def test_the_platform_finds_what_it_asks_for(images: Images) -> None:
    config = images.get("litert", "amd64").archive.config
    assert config["Entrypoint"] == ["python3", "-m", "inference_image.serve"]
    assert config["Cmd"] == ["serve"]
    assert not config.get("User")
    assert config["ExposedPorts"] == {"8080/tcp": {}}
    label = "com.amazonaws.sagemaker.capabilities.accept-bind-to-port"
    assert config["Labels"] == {label: "true"}


def test_the_same_source_gives_the_same_layers(images: Images, tmp_path: Path) -> None:
    """With the same packages on Debian's mirror; names and times of the build leave no trace."""
    first = images.get("litert", "amd64").archive
    build = Build(runtime="litert", architecture="amd64", tag="dr-slow-test:again")
    try:
        build_image(images.engine, build, extra=["--no-cache"])
        second = save(images.engine, build.name, tmp_path / "again.tar")
    finally:
        images.engine.run("rmi", "--force", build.name, check=False)
    assert [layer.digest for layer in second.layers] == [layer.digest for layer in first.layers]


# --- running ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(model: Path, real_photograph: Path) -> Any:
    """What the same source answers without a container."""
    headers = {"Content-Type": "image/jpeg"}
    with running_service(Served(model)) as served:
        reply = served.request("POST", "/invocations", real_photograph.read_bytes(), headers)
    assert reply.status == 200
    return reply.json()


@pytest.mark.parametrize("user", ["0", "65534:65534"])
def test_it_grades_with_a_root_that_cannot_be_written(
    images: Images, model: Path, real_photograph: Path, expected: Any, user: str
) -> None:
    image = images.get("litert", "amd64").name
    with container(
        images.engine,
        image,
        "serve",
        options=(*LOCKED_DOWN, "--user", user),
        mounts={model: "/opt/ml/model"},
    ) as running:
        running.wait_until_ready()
        answer = running.grade(real_photograph.read_bytes())
        assert answer["quality"] == {"gradable": True, "reasons": []}
        assert answer["grade"] == expected["grade"]
        # Another build of NumPy may round another way.
        assert answer["predictions"] == pytest.approx(expected["predictions"], abs=0.01)
        assert sum(answer["predictions"]) == pytest.approx(1)
        assert answer["model"]["id"] == "mobilenet-demo"
        # The whole service, also what is imported late.
        assert ask(f"{running.url}/openapi.json")[0] == 200
        explained = ask(
            f"{running.url}/invocations",
            real_photograph.read_bytes(),
            {
                "Content-Type": "image/jpeg",
                "X-Amzn-SageMaker-Custom-Attributes": "explain=gradcam",
            },
        )
        assert explained[0] == 200
        events = [json.loads(line) for line in running.log().splitlines() if line.startswith("{")]
        assert {event["level"] for event in events} == {"info"}
        assert kernels(running) == {"compiled"}
        assert running.stop() == 0


def test_every_format_is_read_with_what_was_left(
    images: Images, model: Path, real_photograph: Path
) -> None:
    with Image.open(real_photograph) as opened:
        picture = opened.convert("RGB").resize((640, 640))
    expected: list[float] = []
    with container(
        images.engine,
        images.get("litert", "amd64").name,
        options=LOCKED_DOWN,
        mounts={model: "/opt/ml/model"},
    ) as running:
        running.wait_until_ready()
        for media_type, kind, options, tolerance in (
            ("image/png", "PNG", {}, 0.0),
            ("image/bmp", "BMP", {}, 0.0),
            ("image/tiff", "TIFF", {"compression": "tiff_lzw"}, 0.0),
            ("image/webp", "WEBP", {"lossless": True}, 0.0),
            # The one that loses something: its pixels differ by a level or two.
            ("image/jpeg", "JPEG", {"quality": 100, "subsampling": 0}, 0.05),
        ):
            body = io.BytesIO()
            picture.save(body, kind, **options)
            answer = running.grade(body.getvalue(), media_type)
            expected = expected or answer["predictions"]
            assert answer["predictions"] == pytest.approx(expected, abs=tolerance, rel=0), kind


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as other servers have it: a SavedModel in `1/`, and nothing that describes it."""
    import tensorflow as tf

    size_px = 96
    weights = np.random.default_rng(3).normal(size=(3, 5)).astype(np.float32)
    module = tf.Module()

    def serve(photograph: Any) -> Any:
        return {"severity": tf.nn.softmax(tf.reduce_mean(photograph, (1, 2)) @ weights)}

    spec = tf.TensorSpec((None, size_px, size_px, 3), tf.float32, name="photograph")
    module.serve = tf.function(serve, input_signature=[spec])
    folder = tmp_path_factory.mktemp("saved-model")
    tf.saved_model.save(module, str(folder / "1"), signatures=module.serve)
    folder.chmod(0o755)
    return folder


@pytest.mark.parametrize("user", ["0", "65534:65534"])
def test_the_tensorflow_image_serves_a_saved_model_with_a_root_that_cannot_be_written(
    images: Images, saved_model: Path, real_photograph: Path, user: str
) -> None:
    """In the full layout, as that image does by itself: nginx, gunicorn and a worker."""
    plain = Predictor.load(saved_model, threads=1)
    expected = plain.predict(real_photograph.read_bytes()).probabilities
    assert expected is not None
    with container(
        images.engine,
        images.get("tensorflow", "amd64").name,
        "serve",
        options=(*LOCKED_DOWN, "--memory", "2g", "--memory-swap", "2g", "--user", user),
        mounts={saved_model: "/opt/ml/model"},
    ) as running:
        running.wait_until_ready(within_s=240)
        answer = running.grade(real_photograph.read_bytes())
        assert answer["model"]["id"] == "plain-model"
        assert "'severity' holds probabilities" in answer["model"]["notice"]
        assert answer["predictions"] == pytest.approx(expected, abs=1e-4)
        with urllib.request.urlopen(f"{running.url}/ping", timeout=60) as ping:
            assert ping.headers["server"] == "nginx"
        assert kernels(running) == {"compiled"}
        for line in running.log().splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                # That it came without a description is said once.
                assert event["level"] == "info" or event["event"] == "model_without_description"
        assert running.stop() == 0


def test_the_tensorflow_image_trains_and_stops_as_process_1(
    images: Images, records: Path, training_python: Path, repository: Path, tmp_path: Path
) -> None:
    image = images.get("tensorflow", "amd64").name
    job = Job(tmp_path / "job", training_python, repository, 2)
    # Two jobs of one host each; the first one ends by itself.
    roots = []
    for index, epochs in ((0, "2"), (1, "100000")):
        root = job.fill(index, records, {**PARAMETERS, "epochs": epochs, "stop_patience": "99999"})
        config = root / "input" / "config" / "resourceconfig.json"
        config.write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
        roots.append(root)
    whole, stopped = roots
    done = images.engine.run(
        "run", "--rm", *ISOLATED, "--volume", f"{whole}:/opt/ml", image, "train", check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(_losses(whole / "model")) == 2
    spec = load_model_spec(whole / "model" / "package")
    verify_files(spec, whole / "model" / "package")
    report = json.loads((whole / "model" / "training.json").read_text())
    libraries = report["environment"]["libraries"]
    assert libraries["tensorflow"]
    assert (libraries["ai-edge-litert"], libraries["scipy"]) == (None, None)

    identity = images.engine.run(
        "run", "--detach", *ISOLATED, "--volume", f"{stopped}:/opt/ml", image, "train"
    ).stdout.strip()
    try:
        state = stopped / "checkpoints" / "state.npz"
        until = time.monotonic() + 600
        while not state.exists():
            running = images.engine.run("inspect", "--format", "{{.State.Running}}", identity)
            assert running.stdout.strip() == "true", images.engine.run("logs", identity).stderr
            assert time.monotonic() < until
            time.sleep(0.2)
        images.engine.run("stop", "-t", "120", identity)
        code = images.engine.run("inspect", "--format", "{{.State.ExitCode}}", identity)
        assert code.stdout.strip() == "143"
    finally:
        images.engine.run("rm", "--force", "--volumes", identity, check=False)
    reason = (stopped / "output" / "failure").read_text()
    assert reason.startswith("stopped by SIGTERM in epoch ")
    assert reason.endswith("; the state is saved.")


def test_the_litert_image_refuses_to_train(images: Images, tmp_path: Path) -> None:
    image = images.get("litert", "amd64").name
    done = images.engine.run(
        "run", "--rm", *ISOLATED, "--volume", f"{tmp_path}:/opt/ml", image, "train", check=False
    )
    assert done.returncode == 2
    assert (tmp_path / "output" / "failure").read_text() == (
        "this image holds no TensorFlow; train needs the tensorflow image."
    )


def test_a_model_that_is_not_there_ends_it_with_a_sentence(images: Images) -> None:
    image = images.get("litert", "amd64").name
    with container(images.engine, image, "serve", options=LOCKED_DOWN) as running:
        until = time.monotonic() + 30
        while running.state()["Running"] and time.monotonic() < until:
            time.sleep(0.2)
        assert running.state()["ExitCode"] == 3
        assert "/opt/ml/model" in running.log()


def test_serve_may_be_the_whole_command(images: Images, model: Path) -> None:
    """For whoever replaces the entry point."""
    with container(
        images.engine,
        images.get("litert", "amd64").name,
        options=LOCKED_DOWN,
        mounts={model: "/opt/ml/model"},
        entrypoint="serve",
    ) as running:
        running.wait_until_ready()
        assert running.stop() == 0


def test_it_trusts_the_certificate_authorities_that_s3_needs(images: Images) -> None:
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    image = images.get("litert", "amd64").name
    done = images.engine.run(
        *("run", "--rm", *images.engine.network, *LOCKED_DOWN, "--entrypoint", "python3"),
        *(image, "-c", code),
    )
    assert int(done.stdout) > 100


def test_localhost_is_looked_up_in_the_hosts_file(images: Images) -> None:
    code = "import socket; print(socket.gethostbyname('localhost'))"
    image = images.get("litert", "amd64").name
    done = images.engine.run(
        *("run", "--rm", *images.engine.network, *LOCKED_DOWN, "--entrypoint", "python3"),
        *(image, "-c", code),
    )
    assert done.stdout.strip() == "127.0.0.1"


def test_the_same_image_is_a_lambda_function(
    images: Images, model: Path, real_photograph: Path, repository: Path
) -> None:
    emulator = repository / ".lambda-emulator/samcli/local/rapid/aws-lambda-rie-x86_64"
    assert emulator.is_file(), "run `make lambda-emulator`"
    emulator.chmod(emulator.stat().st_mode | 0o111)
    event = {
        "version": "2.0",
        "rawPath": "/invocations",
        "rawQueryString": "",
        "headers": {"content-type": "image/jpeg", "host": "x.lambda-url.on.aws"},
        "requestContext": {
            "domainName": "x.lambda-url.on.aws",
            "http": {"method": "POST", "path": "/invocations", "sourceIp": "192.0.2.1"},
            "stage": "$default",
        },
        "body": base64.b64encode(real_photograph.read_bytes()).decode(),
        "isBase64Encoded": True,
    }
    runtime_port = free_port()
    port = free_port()
    host = "127.0.0.1" if images.engine.network else "0.0.0.0"  # noqa: S104 - in the container
    options = list(LOCKED_DOWN)
    if not images.engine.network:
        options += ["--publish", f"127.0.0.1:{port}:{port}"]
    with container(
        images.engine,
        images.get("litert", "amd64").name,
        *("--runtime-interface-emulator-address", f"{host}:{port}"),
        *("--runtime-api-address", f"127.0.0.1:{runtime_port}"),
        *("/usr/bin/python3", "-m", "awslambdaric", "inference_image.lambda_handler.handler"),
        options=options,
        environment={"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "2048"},
        mounts={model: "/opt/ml/model", emulator: "/emulator"},
        entrypoint="/emulator",
    ) as running:
        url = f"http://127.0.0.1:{port}/2015-03-31/functions/function/invocations"
        until = time.monotonic() + 60
        status: int = 0
        answer: Any = None
        while time.monotonic() < until:
            assert running.state()["Running"], running.log()
            try:
                status, answer = ask(url, json.dumps(event).encode())
                break
            except OSError:
                time.sleep(0.2)
        assert status == 200, running.log()
        assert answer["statusCode"] == 200, answer
        assert json.loads(answer["body"])["grade"] in range(5)


# --- arm64 --------------------------------------------------------------------------------


def emulator_of_arm64(cache: Path) -> Path | None:
    """QEMU's user mode of Debian 13 or later; Debian 12's crashes inside LiteRT."""
    root = cache / "qemu"
    program = root / "usr/bin/qemu-aarch64"
    if not program.is_file():
        try:
            DebianPackages(cache / DEBIAN_SUITE, suite=DEBIAN_SUITE).unpack(["qemu-user"], root)
        except DebianError as error:
            print(f"QEMU is not to be had: {error}")
            return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    words = done.stdout.split()
    version = words[words.index("version") + 1] if "version" in words else "0"
    return program if done.returncode == 0 and int(version.split(".")[0]) >= 10 else None


# Processors as QEMU names them, and what runs on them. Its own default, `max`, has the matrix
# extension (SME), for which OpenBLAS inside NumPy computes wrong products there.
GRAVITON = {"neoverse-n1": "ml.m6g (Graviton2)", "neoverse-v1": "ml.c7g (Graviton3)"}


@pytest.mark.parametrize("processor", GRAVITON)
def test_the_arm64_image_grades_under_qemu(
    images: Images,
    model: Path,
    real_photograph: Path,
    expected: Any,
    repository: Path,
    processor: str,
) -> None:
    """One worker: QEMU runs what it was given, and no program that this one starts."""
    qemu = emulator_of_arm64(repository / ".docker-engine")
    assert qemu is not None, "the arm64 image was built and not run: no QEMU of version 10 or later"
    with container(
        images.engine,
        images.get("litert", "arm64").name,
        *("-cpu", processor, "/usr/bin/python3", "-m", "inference_image.serve", "serve"),
        # An emulator needs more memory than the program.
        options=(*LOCKED_DOWN, "--memory", "1g", "--memory-swap", "1g", "--cpus", "2"),
        environment={"MODEL_SERVER_WORKERS": "1", "MODEL_SERVER_TIMEOUT": "60"},
        mounts={model: "/opt/ml/model", qemu: "/qemu"},
        entrypoint="/qemu",
    ) as running:
        running.wait_until_ready(within_s=240)
        answer = running.grade(real_photograph.read_bytes())
        assert kernels(running) == {"compiled"}
        assert running.stop() == 0
    assert answer["quality"] == {"gradable": True, "reasons": []}
    assert answer["grade"] == expected["grade"]
    assert answer["referable"]["positive"] == expected["referable"]["positive"]
    # Processors round differently inside an int8 network.
    assert answer["predictions"] == pytest.approx(expected["predictions"], abs=0.05)


# --- the command --------------------------------------------------------------------------


def test_make_image_says_how_large_it_is_and_what_is_in_it(
    images: Images, repository: Path, tmp_path: Path
) -> None:
    images.get("litert", "arm64")
    tag = "dr-slow-test:command"
    try:
        done = subprocess.run(
            ["make", "--no-print-directory", "image", "ARCH=arm64", f"TAG={tag}"]
            # An engine that was started here has no other network.
            + (["NETWORK=host"] if images.engine.own else []),
            cwd=repository,
            env={**os.environ, **images.engine.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    finally:
        images.engine.run("rmi", "--force", tag, check=False)
    assert done.returncode == 0, done.stderr
    assert "MB compressed" in done.stdout
    path = repository / "out/image/dr-slow-test-command.cdx.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    assert document["specVersion"] == "1.6"
    assert {"type": "container", "name": "dr-slow-test"}.items() <= (
        document["metadata"]["component"].items()
    )
    urls = {row["purl"].partition("?")[0].rpartition("@")[0] for row in document["components"]}
    assert {"pkg:pypi/numpy", "pkg:pypi/pillow", "pkg:pypi/ai-edge-litert"} <= urls
    assert {"pkg:deb/debian/libc6", "pkg:deb/debian/libssl3t64"} <= urls
    # What was removed is not in the list, and what is inside a wheel is.
    assert "pkg:pypi/tqdm" not in urls
    pillow = next(row for row in document["components"] if row["name"] == "pillow")
    assert "libtiff" in {row["name"] for row in pillow["components"]}
    debian = [row["purl"] for row in document["components"] if "pkg:deb/" in row["purl"]]
    assert all("arch=arm64" in url or "arch=all" in url for url in debian)
