"""A model card with pictures: Markdown, HTML in one file, and the pictures beside it.

    >>> write_card_page(Path("model_artifacts/mobilenet-demo"))

The figures come from `model.json`, the pictures from it and from the model's answers to
photographs that the project draws. Neither is part of the package's digest.
"""

import base64
import io
import json
import textwrap
from pathlib import Path
from typing import Any, Final

from dr_training.data.table import write_whole
from dr_training.drawing import draw_fundus
from dr_training.evaluation_page import confusion_picture, roc_picture
from dr_training.export import CARD_FILE
from dr_training.model_card import model_card
from inference_image.contract import EXPLAIN_GRADCAM, GRADE_LABELS
from inference_image.model_spec import MODEL_JSON, load_model_spec, missing_files
from inference_image.predictor import Answer, Predictor

CARD_PAGE: Final = "MODEL_CARD.html"
PICTURES: Final = "card"
_SAMPLE_SEED: Final = 8_000_000
_SAMPLE_PX: Final = 520
_TITLE_LETTERS: Final = 34
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;"
    "color:#1c2733}table{border-collapse:collapse;margin:1rem 0}th,td{border:1px solid #c8d2dc;"
    "padding:.3rem .6rem;text-align:left}img{max-width:100%}code,pre{background:#f2f5f8}"
    "pre{padding:.8rem;overflow-x:auto}h1,h2{color:#1f3b57}"
)


def write_card_page(folder: Path) -> list[Path]:
    """Write the card of the package in `folder`; gives the files.

    A package without figures has no confusion matrix and no ROC curve; one whose model is not
    on disk has no samples.

    Raises:
        ModelPackageError: it is no package, or a damaged one.
    """
    spec = load_model_spec(folder)
    document = json.loads((folder / MODEL_JSON).read_text(encoding="utf-8"))
    pictures = _figures(document)
    if not missing_files(spec, folder):
        caption = (
            "Photographs drawn by the project, one of each grade, and what the model says of them; "
            "below, where it looked, if it can say so"
        )
        pictures[caption] = ("samples.jpg", _samples(folder))
    (folder / PICTURES).mkdir(exist_ok=True)
    for name, data in pictures.values():
        write_whole(folder / PICTURES / name, data)
    paths = {caption: f"{PICTURES}/{name}" for caption, (name, _) in pictures.items()}
    text = model_card(document, pictures=paths)
    write_whole(folder / CARD_FILE, text.encode())
    write_whole(folder / CARD_PAGE, _html(text, pictures, str(document["id"])).encode())
    named = [folder / PICTURES / name for name, _ in pictures.values()]
    return [folder / CARD_FILE, folder / CARD_PAGE, *named]


def _figures(document: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Caption -> name and bytes."""
    metrics = document.get("metrics") or {}
    found = {}
    if metrics.get("roc"):
        false, true = zip(*metrics["roc"], strict=True)
        picture = roc_picture(false, true, metrics.get("operating_points", {}))
        found["ROC curve of the referable decision, with the operating points"] = (
            "roc.png",
            picture,
        )
    if metrics.get("confusion"):
        found["Confusion matrix, shaded by the share of the true grade"] = (
            "confusion.png",
            confusion_picture(metrics["confusion"]["counts"]),
        )
    return found


def _samples(folder: Path) -> bytes:
    """JPEG: one drawn photograph of each grade with the answer, and its heat map."""
    import numpy as np
    from matplotlib.figure import Figure
    from PIL import Image

    predictor = Predictor.load(folder, threads=1)
    spec = predictor.spec
    explains = spec.head_file is not None and "feature_map" in spec.outputs
    figure = Figure(figsize=(11, 5.4 if explains else 3.1), layout="constrained")
    grid = figure.subplots(2 if explains else 1, len(GRADE_LABELS), squeeze=False)
    for grade, title in enumerate(GRADE_LABELS):
        drawn = draw_fundus(_SAMPLE_SEED + grade, grade, _SAMPLE_PX)
        answer = predictor.predict(
            drawn.jpeg_bytes(), explain=EXPLAIN_GRADCAM if explains else None
        )
        grid[0][grade].imshow(drawn.image)
        grid[0][grade].set_title(f"drawn: {grade} {title}\n{_wrapped(_said(answer))}", fontsize=8)
        if explains and answer.heat_map is not None:
            heat = Image.open(io.BytesIO(base64.b64decode(answer.heat_map.image_base64)))
            grid[1][grade].imshow(np.asarray(heat))
        for row in grid:
            row[grade].axis("off")
    stream = io.BytesIO()
    figure.savefig(stream, format="jpg", dpi=80, pil_kwargs={"quality": 82})
    return stream.getvalue()


def _said(answer: Answer) -> str:
    if answer.probabilities is None:
        return f"ungradable: {', '.join(answer.quality.reasons)}"
    word = "refer" if answer.referable.positive else "do not refer"
    # A model that grades nothing says the decision only, once.
    label = "" if answer.grade is None else f"{answer.label}; "
    return f"says: {label}{word} ({answer.referable.probability:.2f})"


def _wrapped(text: str) -> str:
    """In lines that are no wider than the picture below them."""
    return textwrap.fill(text, _TITLE_LETTERS)


def _html(text: str, pictures: dict[str, tuple[str, bytes]], title: str) -> str:
    """The Markdown as one HTML file with its pictures inside."""
    from markdown_it import MarkdownIt

    body = str(MarkdownIt("commonmark").enable("table").render(text))
    for name, data in pictures.values():
        kind = "jpeg" if name.endswith(".jpg") else "png"
        inside = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
        body = body.replace(f'src="{PICTURES}/{name}"', f'src="{inside}"')
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Model card: {title}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}</body></html>\n"
    )
