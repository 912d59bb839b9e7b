"""The built wheel in an empty environment, and a user's own app on it."""

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from constructs_lib import InferenceImageRepo
from tests.constructs_fixtures import manifest_of, new_stack
from tools.setup_environment import uv_environment

# What an app of a user's own looks like: a folder `stacks` without an `__init__.py`.
THEIR_STACK = "NAME = 'clinic'\n"


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "VIRTUAL_ENV"} and not name.startswith("AWS_")
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    uv = Path(sys.executable).parent / "uv"
    build = ("build", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable)
    run(uv, *build, "--out-dir", out, repository, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    uv = Path(sys.executable).parent / "uv"
    run(uv, "venv", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    # At the locked versions, and from where set-up got them; its cache may have been removed.
    pinned = ("--constraint", str(repository / "requirements.txt"))
    known = uv_environment(Path(sys.executable)).items()
    source = {name: value for name, value in known if name.startswith(("UV_", "SSL_"))}
    run(uv, "pip", "install", "--python", python, *pinned, wheel, cwd=folder, **source)
    return python


@pytest.fixture
def clinic(repository: Path, tmp_path: Path) -> Path:
    """The example as a user copies it, with a model and a folder `stacks` of their own."""
    folder = tmp_path / "clinic"
    shutil.copytree(repository / "examples" / "clinic", folder)
    shutil.copytree(repository / "tests/data/tiny-model", folder / "models" / "mine")
    (folder / "stacks").mkdir()
    (folder / "stacks" / "network.py").write_text(THEIR_STACK)
    return folder


def test_the_wheel_holds_what_must_be_importable_and_what_the_image_is_built_from(
    wheel: Path, repository: Path
) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert folders == {
        "constructs_lib",
        "dr_cli",
        "dr_experiments",
        "dr_local",
        "dr_training",
        "inference_image",
    }
    for wanted in (
        "constructs_lib/py.typed",
        "constructs_lib/janitor/index.py",
        "constructs_lib/image_copy/index.py",
        "inference_image/Dockerfile",
        "inference_image/.dockerignore",
        "inference_image/bin/serve",
        "inference_image/native/fundus.c",
        "inference_image/docker/build_kernel.py",
        "inference_image/requirements-compiler.txt",
        "dr_experiments/prices.toml",
    ):
        assert wanted in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    # What set-up compiled stays here: the wheel is for every machine.
    assert (repository / "inference_image" / "native" / f"fundus-{platform.machine()}.so").is_file()
    assert not [name for name in names if name.endswith((".so", ".stamp"))]
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_example_synthesizes_on_the_wheel_alone(
    python: Path, clinic: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cdk.out"
    environment = {
        "CDK_OUTDIR": str(out),
        "CDK_VALIDATION": "false",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
    }
    run(python, "app.py", cwd=clinic, **environment)
    template: dict[str, Any] = json.loads((out / "Clinic.template.json").read_text())
    resources = template["Resources"]
    kinds = {it["Type"] for it in resources.values()}
    assert {
        "AWS::SageMaker::Endpoint",
        "AWS::KMS::Key",
        "AWS::EC2::VPC",
        "AWS::S3::Bucket",
        "AWS::ECR::Repository",
    } <= kinds
    (model,) = (it for it in resources.values() if it["Type"] == "AWS::SageMaker::Model")
    assert len(model["Properties"]["VpcConfig"]["Subnets"]) == 2
    (config,) = (it for it in resources.values() if it["Type"] == "AWS::SageMaker::EndpointConfig")
    assert "KmsKeyId" in config["Properties"]
    manifest = json.loads((out / "Clinic.assets.json").read_text())
    ((digest, image),) = manifest["dockerImages"].items()
    assert image["source"]["platform"] == "linux/arm64"
    assert (out / image["source"]["directory"] / "Dockerfile").is_file()
    # The installed folder gives the image that a checkout gives.
    assert digest == hash_in_checkout()


def hash_in_checkout() -> str:
    """Name of the same image, made from this checkout's own files."""
    stack = new_stack()
    InferenceImageRepo(stack, "Images").image(architecture="arm64")
    (digest,) = manifest_of(stack)["dockerImages"]
    return str(digest)


def test_a_users_own_stacks_are_imported_and_not_ours(python: Path, clinic: Path) -> None:
    code = "import constructs_lib, stacks.network; print(stacks.network.NAME)"
    assert run(python, "-c", code, cwd=clinic).stdout.strip() == "clinic"


def test_commands_that_need_the_stacks_say_where_they_are(python: Path, tmp_path: Path) -> None:
    code = (
        "from dr_cli.errors import explain\n"
        "try:\n"
        "    import stacks.matrix\n"
        "except ModuleNotFoundError as error:\n"
        "    print(explain(error))\n"
    )
    said = run(python, "-c", code, cwd=tmp_path).stdout
    assert "in a checkout of dr-endpoints" in said
    code = "from constructs_lib.stage_names import staged; print(staged('shared', 'ana'))"
    assert run(python, "-c", code, cwd=tmp_path).stdout.strip() == "dr-ana-shared"


WRONG = """
import aws_cdk as cdk
from aws_cdk import aws_s3 as s3

from constructs_lib import InferenceImageRepo, ModelArtifact, ServerlessDREndpoint

stack = cdk.Stack(cdk.App(), "Stack")
bucket = s3.Bucket(stack, "Bucket")
model = ModelArtifact.in_bucket(bucket, model_id="demo", sha256="0")
image = InferenceImageRepo(stack, "Images").image(architecture="amd64")
ServerlessDREndpoint(stack, "A", model=model, image=image, memory_mib="2048")
ServerlessDREndpoint(stack, "B", model="s3://bucket/key", image=image, memory_mib=2048)
ServerlessDREndpoint(stack, "C", model=model, image=image, memory_mib=2048, vcp=None)
ServerlessDREndpoint(stack, "D", model, image, memory_mib=2048)
InferenceImageRepo(stack, "Pull", source="pull")
ServerlessDREndpoint(stack, "E", model=model, image=image)
"""


def test_wrong_types_fail_and_the_example_has_none(repository: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    good = subprocess.run(
        [*mypy, "examples/clinic/app.py"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (good.returncode, good.stdout) == (0, "")
    done = subprocess.run(
        [*mypy, str(wrong)], cwd=repository, capture_output=True, text=True, check=False
    )
    lines = {
        int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error:" in line
    }
    first = first_wrong_line()
    assert set(lines) == set(range(first, first + 6)), done.stdout
    assert '"memory_mib"' in lines[first]
    assert '"vcp"' in lines[first + 2]


def first_wrong_line() -> int:
    return next(number for number, it in enumerate(WRONG.splitlines(), 1) if '"A"' in it)


def test_pyright_finds_the_same(repository: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    folders = {"extraPaths": [str(repository)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(folders))
    shutil.copy(repository / "examples" / "clinic" / "app.py", tmp_path / "right.py")
    pyright = repository / "node_modules" / ".bin" / "pyright"
    done = subprocess.run(
        [str(pyright), "--pythonpath", sys.executable, "--outputjson", "--project", str(tmp_path)],
        cwd=tmp_path,
        # The program is Node's, as the set-up has it.
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    errors = [it for it in report["generalDiagnostics"] if it["severity"] == "error"]
    assert [it["message"] for it in errors if it["file"].endswith("right.py")] == []
    lines = {it["range"]["start"]["line"] + 1 for it in errors if it["file"] == str(wrong)}
    first = first_wrong_line()
    assert lines == set(range(first, first + 6)), errors


def test_the_readme_shows_the_example(repository: Path) -> None:
    example = (repository / "examples" / "clinic" / "app.py").read_text()
    body = example[example.index("app = cdk.App()") :]
    assert body in (repository / "README.md").read_text()
    code = [line for line in body.splitlines() if line.strip()]
    assert len(code) <= 22
