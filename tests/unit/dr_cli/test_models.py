"""`dr model inspect` and `dr draw` when all is well."""

import shutil
from pathlib import Path

import pytest

from dr_cli.drawn import draw_photographs
from dr_cli.models import inspect
from inference_image.model_package import pack_model


def test_inspect_shows_a_folder_an_archive_and_what_is_not_on_disk(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = repository / "tests" / "data" / "tiny-model"
    spec = pack_model(tiny, tmp_path / "model.tar.gz")
    inspect(tiny)
    folder = capsys.readouterr().out
    for words in (spec.sha256, spec.object_key, "P(grade ≥ 2)", "all there, with the digests"):
        assert words in folder, words
    inspect(tmp_path / "model.tar.gz")
    assert spec.sha256 in capsys.readouterr().out
    shutil.copytree(tiny, tmp_path / "incomplete")
    (tmp_path / "incomplete" / "model.tflite").unlink()
    inspect(tmp_path / "incomplete")
    assert "not on disk: model.tflite" in capsys.readouterr().out


def test_drawn_photographs_are_named_by_grade_and_seed_and_repeat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("a", "b"):
        draw_photographs(tmp_path / folder, grade=None, count=1, seed=3, size_px=256)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == [f"grade{grade}-seed3.jpg" for grade in range(5)]
    for name in names:
        data = (tmp_path / "a" / name).read_bytes()
        assert data.startswith(b"\xff\xd8\xff")
        assert data == (tmp_path / "b" / name).read_bytes()
    assert "Proliferative DR" in capsys.readouterr().out
