"""What the whole repository promises: layout, imports, lock files, and what its texts may say."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.check_locks import LOCKS, faults

PACKAGES = (
    "constructs_lib",
    "dr_cli",
    "dr_experiments",
    "dr_local",
    "dr_training",
    "inference_image",
    "stacks",
)
# Paths of somebody's machine, and hosts of package registries (lock files are made without).
FORBIDDEN = re.compile(
    r"(?<![\w.])/(?:root|home)/[\w.-]+|"
    r"files\.pythonhosted\.org|pypi\.org/simple|registry\.npmjs\.org|deb\.debian\.org"
)
# TODO and its kind say that something is unfinished; it is finished or it is not there.
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def tracked_files(repository: Path) -> list[Path]:
    """Every file that a clone holds (tracked, or new and not ignored)."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [repository / line for line in listing if (repository / line).is_file()]


def text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_no_file_names_a_machine_a_registry_or_unfinished_work(repository: Path) -> None:
    found = []
    for path in tracked_files(repository):
        if path == Path(__file__) or (text := text_of(path)) is None:
            continue
        found += [f"{path}: {match[0]}" for match in FORBIDDEN.finditer(text)]
        if path.suffix in {".py", ".md", ".toml"}:
            found += [f"{path}: {match[0]}" for match in UNFINISHED.finditer(text)]
    assert found == []


def test_no_tracked_file_is_large(repository: Path) -> None:
    large = [p for p in tracked_files(repository) if p.stat().st_size > 4 * 1024 * 1024]
    assert large == []


def test_no_photograph_of_the_shared_data_is_in_the_repository(
    repository: Path, shared_data: Path
) -> None:
    import hashlib

    def digest(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    # An empty file is an empty file, wherever it lies.
    outside = {digest(p) for p in shared_data.rglob("*") if p.is_file() and p.stat().st_size}
    assert outside, "the shared data is empty"
    inside = [p for p in tracked_files(repository) if p.stat().st_size]
    assert [p for p in inside if digest(p) in outside] == []


def test_lock_files_fit_their_ranges_and_name_no_address() -> None:
    assert [fault for lock in LOCKS for fault in faults(lock)] == []


def test_npm_lock_names_no_address_and_pins_the_cdk(repository: Path) -> None:
    lock = json.loads((repository / "package-lock.json").read_text())
    wanted = json.loads((repository / "package.json").read_text())["devDependencies"]["aws-cdk"]
    entry = lock["packages"]["node_modules/aws-cdk"]
    assert entry["version"] == wanted
    assert entry["integrity"].startswith("sha512-")
    assert "resolved" not in json.dumps(lock)


def test_ci_runs_the_commands_of_the_readme(repository: Path) -> None:
    script = (repository / ".ci" / "run").read_text()
    readme = (repository / "README.md").read_text()
    assert "make test\n" in script
    assert "make test-slow\n" in script
    assert "make test" in readme
    assert "make demo" in readme


def test_every_module_and_public_name_has_a_docstring(repository: Path) -> None:
    bare = []
    for package in PACKAGES:
        for path in sorted((repository / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            if path.stat().st_size and not ast.get_docstring(tree):
                bare.append(str(path.relative_to(repository)))
            for node in tree.body:
                if (
                    isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                    and not node.name.startswith("_")
                    and not ast.get_docstring(node)
                ):
                    bare.append(f"{path.relative_to(repository)}:{node.lineno} {node.name}")
    assert bare == []


def test_imports_of_light_modules_stay_light() -> None:
    """Data modules and the command line must not start Node, boto3, TensorFlow or a model."""
    heavy = ["aws_cdk", "jsii", "boto3", "tensorflow", "ai_edge_litert", "matplotlib", "scipy"]
    modules = [
        "stacks.matrix",
        "constructs_lib.limits",
        "inference_image.contract",
        "inference_image.model_package",
        "dr_cli.__main__",
        "dr_experiments.pricing",
    ]
    for module in modules:
        code = (
            f"import sys, importlib; importlib.import_module({module!r}); "
            f"print([name for name in {heavy!r} if name in sys.modules])"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == "[]", f"{module} imports {result.stdout.strip()}"


def test_the_kernel_of_the_container_needs_the_standard_library_only(repository: Path) -> None:
    for name in ("contract.py", "kernel.py", "model_spec.py", "model_package.py"):
        tree = ast.parse((repository / "inference_image" / name).read_text())
        roots = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                roots |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                roots.add(node.module.split(".")[0])
        assert roots - set(sys.stdlib_module_names) <= {"inference_image"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_in_the_wheel_and_under_the_import_contracts(
    repository: Path, package: str
) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    # An installed `stacks` would hide the folder of that name in a user's own app.
    assert (package in shipped) is (package != "stacks")
    assert package in project["tool"]["importlinter"]["root_packages"]
    assert (repository / package / "__init__.py").is_file()


def test_tests_hold_assertions(repository: Path) -> None:
    """A test that cannot fail is no test."""
    checks = re.compile(
        r"Assert\(|raises|warns|assert_|check|wait_until|has_resource|match_|resource_count|fail"
    )
    idle = []
    for path in sorted((repository / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test")
                and not checks.search(ast.dump(node))
            ):
                idle.append(f"{path.relative_to(repository)}:{node.lineno} {node.name}")
    assert idle == []


def test_every_decision_is_in_the_index(repository: Path) -> None:
    folder = repository / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    pages = [p.name for p in folder.glob("*.md") if p.name != "README.md"]
    assert pages
    assert [name for name in pages if f"({name})" not in index] == []


def test_links_between_documents_lead_somewhere(repository: Path) -> None:
    broken = []
    for path in tracked_files(repository):
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(repository)} -> {target}")
    assert broken == []
