"""The card as a page: its pictures are inside, and what is written above them fits."""

import shutil
from pathlib import Path

import pytest

from dr_training import card_page
from dr_training.drawing import draw_fundus
from inference_image.predictor import Predictor


@pytest.mark.parametrize(
    ("package", "pictures"),
    [
        ("referral-demo", {"roc.png", "samples.jpg"}),
        ("vgg19-small-demo", {"roc.png", "confusion.png", "samples.jpg"}),
        ("mobilenet-demo", {"roc.png", "confusion.png", "samples.jpg"}),
    ],
)
def test_a_committed_package_has_a_page_with_its_pictures_inside(
    package: str, pictures: set[str], repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / package
    shutil.copytree(
        repository / "model_artifacts" / package,
        folder,
        ignore=shutil.ignore_patterns("card", "MODEL_CARD.*"),
    )
    written = card_page.write_card_page(folder)
    assert {path.name for path in written} == {"MODEL_CARD.md", "MODEL_CARD.html", *pictures}
    page = (folder / "MODEL_CARD.html").read_text("utf-8")
    assert page.count('src="data:image/') == len(pictures)
    assert 'src="card/' not in page
    committed = repository / "model_artifacts" / package / "MODEL_CARD.md"
    assert (folder / "MODEL_CARD.md").read_bytes() == committed.read_bytes()


@pytest.mark.parametrize("package", ["referral-demo", "vgg19-small-demo"])
def test_what_is_said_above_a_picture_fits_and_is_said_once(package: str, repository: Path) -> None:
    predictor = Predictor.load(repository / "model_artifacts" / package, threads=1)
    answer = predictor.predict(draw_fundus(8_000_004, 4, 520).jpeg_bytes())
    said = card_page._said(answer)
    assert said.startswith("says: ")
    assert said.lower().count("refer") == 1
    assert ("; refer (" in said) == (answer.grade is not None)
    # Five columns of a figure 11 inches wide hold this many letters of 8 points.
    assert all(len(line) <= 34 for line in card_page._wrapped(said).splitlines())
