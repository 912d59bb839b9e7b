"""The build context that the project ships: what goes into the image, and what does not."""

import shutil
from pathlib import Path

import aws_cdk as cdk
import pytest

import inference_image
from constructs_lib import InferenceImageRepo
from tests.constructs_fixtures import manifest_of, new_stack

SERVICE = Path(inference_image.__file__).parent


def staged(directory: Path | None = None) -> tuple[str, Path]:
    """Hash and staged copy of the service's build context."""
    stack = new_stack()
    InferenceImageRepo(stack, "Images", directory=directory).image(architecture="amd64")
    ((name, image),) = manifest_of(stack)["dockerImages"].items()
    root = stack.node.root
    assert isinstance(root, cdk.App)
    return str(name), Path(root.outdir, image["source"]["directory"])


@pytest.fixture(scope="module")
def files() -> set[str]:
    _, folder = staged()
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_service_and_its_locked_requirements_are_in_the_context(files: set[str]) -> None:
    assert {"Dockerfile", "contract.py", "model_spec.py", "requirements-litert.txt"} <= files
    assert {"native/fundus.c", "docker/build_kernel.py", "requirements-compiler.txt"} <= files


def test_caches_and_outputs_are_not(files: set[str]) -> None:
    unwanted = ("__pycache__", ".pyc", "cdk.out", ".git/", "node_modules", ".tar.gz", ".tflite")
    assert not [name for name in files if any(word in name for word in (*unwanted, ".so"))]


def test_the_context_is_small() -> None:
    _, folder = staged()
    size_kib = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1024
    assert size_kib < 1024


def test_running_the_service_or_compiling_its_kernel_makes_no_new_image(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.stamp")
    shutil.copytree(SERVICE, tmp_path / "clean", ignore=ignored)
    shutil.copytree(SERVICE, tmp_path / "used", ignore=ignored)
    for folder in (tmp_path / "used", tmp_path / "used" / "runtimes"):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"cache")
    for name in ("fundus-x86_64.so", "fundus-x86_64.stamp", "fundus-aarch64.so"):
        (tmp_path / "used" / "native" / name).write_bytes(b"compiled")
    (tmp_path / "used" / "native" / ".build-x").mkdir()
    (tmp_path / "used" / "native" / ".build-x" / "probe.c").write_bytes(b"being compiled")
    assert staged(tmp_path / "clean")[0] == staged(tmp_path / "used")[0] == staged()[0]
