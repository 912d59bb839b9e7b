"""Somebody else's `.tflite` becomes a package, with what was declared and nothing assumed."""

from pathlib import Path

import pytest

from dr_cli import importing
from dr_cli.errors import CommandError
from dr_training.card_page import write_card_page
from dr_training.data.faults import DataError
from dr_training.imported import Declared, import_model, order_of, sanity_check
from dr_training.keras_files import check_harmless
from inference_image.model_spec import verify_files
from inference_image.predictor import Predictor

GRADES = ("0", "1", "2", "3", "4")


def _declared(**changes: object) -> Declared:
    values: dict[str, object] = {"labels": GRADES, "scaling": "0..255", "channel_order": "rgb"}
    return Declared(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def tflite(repository: Path, tmp_path: Path) -> Path:
    target = tmp_path / "theirs.tflite"
    target.write_bytes((repository / "tests/data/tiny-model/model.tflite").read_bytes())
    return target


@pytest.fixture
def small_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a time that grows with the area."""
    monkeypatch.setattr("dr_training.imported._SAMPLE_PX", 256)
    monkeypatch.setattr("dr_training.card_page._SAMPLE_PX", 256)


@pytest.mark.usefixtures("small_drawings")
def test_a_tflite_is_wrapped_and_answers_as_declared(tflite: Path, tmp_path: Path) -> None:
    made = import_model(tflite, tmp_path / "package", _declared(), model_id="theirs")
    verify_files(made.spec, tmp_path / "package")
    assert made.spec.raw["provenance"]["declared"]["labels"] == list(GRADES)
    assert any("no heat map" in one for one in made.cannot)
    assert any("no validated threshold" in one for one in made.cannot)
    assert made.spec.default_operating_point == "unvalidated"
    samples, doubts = sanity_check(tmp_path / "package")
    assert [one.name for one in samples] == [f"drawn, grade {grade}" for grade in range(5)]
    assert all(one.referable is not None for one in samples)
    assert isinstance(doubts, list)
    files = write_card_page(tmp_path / "package")
    page = (tmp_path / "package" / "MODEL_CARD.html").read_text()
    assert "data:image/jpeg;base64," in page
    assert "are as stated by whoever imported it" in page
    assert {path.name for path in files} == {"MODEL_CARD.md", "MODEL_CARD.html", "samples.jpg"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": ("4", "3", "2", "1", "0")}, "cannot be put in another order here"),
        ({"labels": ("not referable", "referable")}, "2 labels were given"),
        ({"labels": ("0", "1", "2", "3", "3")}, "each of the grades 0,1,2,3,4 once"),
        ({"labels": ("a",)}, "each of the grades 0,1,2,3,4 once"),
        ({"scaling": "0..1"}, r"takes (whole numbers|numbers from 0 to 255)"),
    ],
)
def test_what_contradicts_the_file_is_refused_and_leaves_nothing(
    changes: dict[str, object], sentence: str, tflite: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=sentence):
        import_model(tflite, tmp_path / "package", _declared(**changes), model_id="theirs")
    assert list(tmp_path.iterdir()) == [tflite]


@pytest.mark.parametrize(
    "changes",
    [{"scaling": "0..2"}, {"channel_order": "gbr"}, {"preparation": "maybe"}, {"threshold": 1.0}],
)
def test_a_declaration_that_nobody_knows_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(DataError, match=r"is one of|lies between"):
        _declared(**changes)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.tflite").write_bytes(b"not a network")
    with pytest.raises(ValueError, match="cannot be loaded by LiteRT"):
        import_model(
            tmp_path / "broken.tflite", tmp_path / "package", _declared(), model_id="broken"
        )
    (tmp_path / "broken.keras").write_bytes(b"not a zip file")
    with pytest.raises(DataError, match=r"damaged, or is no Keras file"):
        check_harmless(tmp_path / "broken.keras")


@pytest.mark.parametrize(
    ("labels", "task", "order"),
    [
        (("No_DR", "Mild", "Moderate", "Severe", "Proliferate_DR"), "grade5", (0, 1, 2, 3, 4)),
        (("Mild", "Moderate", "No_DR", "Proliferate_DR", "Severe"), "grade5", (2, 0, 1, 4, 3)),
        (("Referable", "not-referable"), "referable", (1, 0)),
        (("referable",), "referable", (0,)),
    ],
)
def test_the_order_of_the_alphabet_is_never_assumed(
    labels: tuple[str, ...], task: str, order: tuple[int, ...]
) -> None:
    assert order_of(labels) == (task, order)


def test_nothing_is_guessed_where_nobody_can_be_asked(tflite: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"give --scaling"):
        importing.import_package(
            source=str(tflite),
            out=str(tmp_path / "package"),
            model_id=None,
            labels="0,1,2,3,4",
            scaling=None,
            channel_order="rgb",
            preparation="crop",
            threshold=0.5,
            licence=None,
            images=None,
        )
    assert not (tmp_path / "package").exists()


def test_a_network_that_says_the_same_of_everything_is_doubted() -> None:
    from dr_training.imported import _doubts

    assert "hardly depend" in _doubts([(0.2,) * 5] * 5)[0]
    rows = [(0.9 - 0.01 * i, 0.1 + 0.01 * i) for i in range(5)]
    assert "same label" in _doubts(rows)[0]
    assert _doubts([(0.9, 0.1), (0.2, 0.8), (0.6, 0.4)]) == []
    assert "nothing was checked" in _doubts([])[0]


def test_a_keras_file_with_code_of_its_maker_is_not_opened(tmp_path: Path) -> None:
    import json
    import zipfile

    for config, sentence in (
        ({"class_name": "Lambda", "module": "keras.layers", "config": {}}, "Lambda layer"),
        ({"class_name": "Thing", "module": "os.path", "config": {}}, r"needs os\.path\.Thing"),
        (
            {"class_name": "Mine", "module": None, "registered_name": "Custom>Mine", "config": {}},
            r"needs Custom\.Mine",
        ),
    ):
        path = tmp_path / "theirs.keras"
        with zipfile.ZipFile(path, "w") as archive:
            nested = {"class_name": "Sequential", "module": "keras", "config": {"layers": [config]}}
            archive.writestr("config.json", json.dumps(nested))
        with pytest.raises(DataError, match=sentence):
            check_harmless(path)


def test_the_imported_package_is_served(tflite: Path, tmp_path: Path) -> None:
    import_model(tflite, tmp_path / "package", _declared(preparation="none"), model_id="theirs")
    predictor = Predictor.load(tmp_path / "package", threads=1)
    predictor.warm_up()
    assert predictor.spec.quality_gate is None
