"""`dr model inspect` and `dr draw` when all is well."""

import json
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


def test_inspect_shows_a_model_without_a_description_and_a_gated_variant(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = repository / "tests" / "data" / "tiny-model"
    shutil.copy(tiny / "model.tflite", tmp_path / "theirs.tflite")
    inspect(tmp_path / "theirs.tflite")
    alone = " ".join(capsys.readouterr().out.split())
    assert "Served without model.json" in alone
    assert "heat map no" in alone
    shutil.copytree(tiny, tmp_path / "variant")
    document = json.loads((tiny / "model.json").read_text())
    document["input"] = {"channel_order": "bgr", "scale": 0.5}
    document["variant"] = {"kind": "int8", "from": {"id": "the-source"}}
    document["gate"] = {
        "verdict": "refused",
        "reasons": ["too many lost"],
        "reference": {"id": "the-f32"},
        "data": "site images",
    }
    (tmp_path / "variant" / "model.json").write_text(json.dumps(document))
    inspect(tmp_path / "variant")
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "BGR, pixel * (0.5) + (0)",
        "int8 of the-source",
        "refused beside the-f32 on site images (too many lost)",
        "heat map yes",
    ):
        assert words in shown, words


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
