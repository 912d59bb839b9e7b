"""The files that make the image: Dockerfile, context, locked requirements."""

import json
import re
import stat
from pathlib import Path

import pytest

from inference_image.docker import build_kernel

IMAGE = Path(__file__).resolve().parents[3] / "inference_image"


def instructions() -> list[tuple[str, str]]:
    """(instruction, argument) of the Dockerfile, continuation lines joined, comments dropped."""
    text = (IMAGE / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), argument.strip()) for name, _, argument in pairs]


def arguments(name: str) -> list[str]:
    return [argument for instruction, argument in instructions() if instruction == name]


def test_the_image_answers_serve_through_an_exec_form_entrypoint() -> None:
    (entrypoint,) = arguments("ENTRYPOINT")
    assert json.loads(entrypoint) == ["python3", "-m", "inference_image.serve"]
    (command,) = arguments("CMD")
    assert json.loads(command) == ["serve"]


def test_serve_is_also_an_executable_on_the_path() -> None:
    assert (IMAGE / "bin" / "serve").stat().st_mode & stat.S_IXOTH
    assert any("PATH=/opt/dr/bin:" in argument for argument in arguments("ENV"))
    assert any("chmod 0755 /out/opt/dr/bin/serve" in argument for argument in arguments("RUN"))


def test_it_may_be_part_of_a_pipeline_and_asks_for_no_user() -> None:
    labels = arguments("LABEL")
    assert labels == ["com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true"]
    assert arguments("USER") == []


def test_the_target_architecture_has_no_default() -> None:
    assert "TARGETARCH" in arguments("ARG")
    assert not any(argument.startswith("TARGETARCH=") for argument in arguments("ARG"))


def test_only_the_builders_own_architecture_runs_anything() -> None:
    """A stage of the target's architecture copies and runs nothing: no emulation is needed."""
    stage, runs = "", set()
    for name, argument in instructions():
        if name == "FROM":
            stage = argument
        elif name == "RUN":
            runs.add(stage)
    assert len(runs) >= 3
    assert all(stage.startswith("--platform=$BUILDPLATFORM ") for stage in runs)
    assert arguments("FROM")[-1] == "${BASE_IMAGE}"


def test_it_needs_no_frontend_of_a_registry_and_no_syntax_that_old_engines_lack() -> None:
    text = (IMAGE / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"^#\s*syntax\s*=", text, re.MULTILINE)
    assert "<<" not in text


def test_the_base_is_made_here_unless_another_one_is_named() -> None:
    defaults = dict(argument.split("=", 1) for argument in arguments("ARG") if "=" in argument)
    assert defaults["BASE_IMAGE"] in [
        stage.split(" AS ")[1] for stage in arguments("FROM") if " AS " in stage
    ]
    assert set(defaults) == {"BASE_IMAGE", "BUILD_IMAGE", "RUNTIME"}


def test_every_tree_is_readable_to_all_and_compiled_for_good() -> None:
    finish = (IMAGE / "docker" / "finish.sh").read_text(encoding="utf-8")
    assert 'chmod -R u+rwX,a+rX,go-w "$folder"' in finish
    assert "--invalidation-mode unchecked-hash" in finish
    copied, finished, stage = set(), set(), ""
    for name, argument in instructions():
        if name == "FROM":
            stage = argument.rpartition(" AS ")[2]
        elif name == "COPY" and argument.endswith(" /out/ /"):
            copied.add(argument.removeprefix("--from=").partition(" ")[0])
        elif name == "RUN" and "finish.sh /out" in argument:
            finished.add(stage)
    assert copied == finished == {"debian", "wheels", "service"}


def test_wheels_are_installed_by_hash_and_never_built() -> None:
    installs = [argument for argument in arguments("RUN") if "bin/pip install" in argument]
    # The wheels of the service, and the compiler of its kernel.
    assert len(installs) == 2
    for install in installs:
        assert "--require-hashes" in install
        assert "--only-binary=:all:" in install
        assert "export PIP_CERT=/run/secrets/ca" in install
        assert "--mount=type=secret,id=ca" in install


def test_the_kernel_is_compiled_by_the_script_of_set_up_for_either_architecture() -> None:
    (compiled,) = [argument for argument in arguments("RUN") if "build_kernel.py" in argument]
    assert "--compiler zig" in compiled
    for machine in build_kernel.TARGETS:
        assert f"machine={machine} ;;" in compiled
    assert "exit 1" in compiled
    place = "/opt/dr/inference_image/native/"
    assert f"--from=kernel /build/kernel/ /out{place}" in arguments("COPY")
    # The flags are in one place.
    assert "-O3" not in (IMAGE / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("runtime", ["litert", "tensorflow"])
def test_each_runtime_has_all_that_the_build_asks_for(runtime: str) -> None:
    one_for_all = IMAGE / f"requirements-{runtime}.txt"
    each = [IMAGE / f"requirements-{runtime}-{machine}.txt" for machine in ("amd64", "arm64")]
    assert one_for_all.is_file() or all(path.is_file() for path in each)
    for name in (f"debian-{runtime}.txt", f"prune-{runtime}.txt"):
        assert (IMAGE / "docker" / name).is_file()


@pytest.mark.parametrize("path", sorted(IMAGE.glob("requirements-*.txt")), ids=lambda p: p.name)
def test_every_requirement_is_pinned_and_hashed_and_names_no_index(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", text)
    packages = [block for block in blocks if block and not block.startswith("#")]
    assert packages
    for block in packages:
        assert re.match(r"[a-z0-9._-]+==[\w.]+", block), block
        assert "--hash=sha256:" in block, block
    assert "://" not in text
    assert "--index" not in text
    # From 1.3 on it refuses every Python that the project supports.
    version = re.search(r"backports-strenum==(\d+)\.(\d+)", text)
    assert (version is not None) == ("ai-edge-litert" in text)
    if version is not None:
        assert (int(version[1]), int(version[2])) < (1, 3)


def test_the_context_is_an_allow_list_that_leaves_caches_out() -> None:
    lines = (IMAGE / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert rules[-2:] == ["**/__pycache__", "**/*.pyc"]
    assert {"!*.py", "!runtimes/*.py", "!bin/serve", "!docker/*"} <= set(rules)
    # The source of the kernel, and not what set-up has compiled of it.
    assert [rule for rule in rules if "native" in rule] == ["!native/*.c"]
    assert "!requirements-*.txt" in rules


def test_every_source_file_is_in_the_context() -> None:
    folders = {
        path.parent.relative_to(IMAGE).as_posix()
        for path in IMAGE.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert folders == {".", "docker", "runtimes"}
    copied = " ".join(arguments("COPY"))
    assert "*.py py.typed /out/" in copied
    assert "runtimes/ " in copied
