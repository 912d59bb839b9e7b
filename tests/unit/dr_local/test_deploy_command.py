"""`dr local deploy` refuses what cannot be deployed before it deploys anything."""

import shutil
from pathlib import Path

import pytest

from dr_cli import local as commands
from dr_cli.errors import CommandError
from dr_cli.packages import opened_package


@pytest.fixture
def vgg19(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the VGG19 package as it is before its large file was made."""
    monkeypatch.chdir(tmp_path)
    folder = Path("model_artifacts/vgg19-demo")
    folder.mkdir(parents=True)
    shutil.copy(repository / folder / "model.json", folder)
    return folder


def test_a_package_without_its_large_file_is_refused_as_serve_does(vgg19: Path):
    with pytest.raises(CommandError) as of_deploy:
        commands.deploy(["dr-serverless-vgg19-2048"])
    with pytest.raises(CommandError) as of_serve, opened_package(vgg19):
        pass
    assert "lacks model.tflite; make it with: " in str(of_deploy.value)
    assert str(of_deploy.value) == str(of_serve.value)


def test_a_whole_package_is_asked_for_a_running_local_aws(vgg19: Path):
    (vgg19 / "model.tflite").touch()
    with pytest.raises(CommandError, match="no local AWS runs from this folder"):
        commands.deploy(["dr-serverless-vgg19-2048"])
