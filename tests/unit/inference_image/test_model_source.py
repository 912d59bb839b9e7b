"""Where a Lambda function's model comes from: the image, S3 or an earlier process."""

import fcntl
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inference_image import model_source
from inference_image.model_package import pack_model
from inference_image.model_source import ModelUrl, find_model
from inference_image.model_spec import ModelPackageError
from inference_image.s3 import S3Error, S3Location
from tests.service_harness import TINY_MODEL, copy_package, digest_of

DIGEST = digest_of(TINY_MODEL)
URL = f"s3://models-of-us/models/tiny-test/{DIGEST}.tar.gz"


class Store:
    """Takes the place of `download`: serves one archive and counts."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.asked: list[S3Location] = []

    def __call__(self, location: S3Location, target: Path, *, environment: Any) -> int:
        self.asked.append(location)
        shutil.copyfile(self.archive, target)
        return target.stat().st_size


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    archive = tmp_path / "archive.tar.gz"
    pack_model(TINY_MODEL, archive)
    made = Store(archive)
    monkeypatch.setattr(model_source, "download", made)
    return made


def find(tmp_path: Path, model_dir: Path, url: str | None) -> model_source.FoundModel:
    return find_model(
        model_dir=model_dir, model_url=url, environment={}, temporary_dir=tmp_path / "tmp"
    )


def test_the_image_comes_first_and_nothing_is_fetched(tmp_path: Path, store: Store) -> None:
    for url in (None, URL):
        found = find(tmp_path, TINY_MODEL, url)
        assert (found.folder, found.source) == (TINY_MODEL, "image")
    assert store.asked == []


def test_a_model_of_the_image_that_is_not_the_named_one_is_refused(
    tmp_path: Path, store: Store
) -> None:
    other = copy_package(tmp_path / "other", {"temperature": 2.0})
    with pytest.raises(ModelPackageError, match="DR_MODEL_URL names"):
        find(tmp_path, other, URL)


def test_without_a_model_in_the_image_the_package_is_unpacked_once(
    tmp_path: Path, store: Store
) -> None:
    (tmp_path / "empty").mkdir()
    for model_dir, source in ((tmp_path / "none", "s3"), (tmp_path / "empty", "cache")):
        found = find(tmp_path, model_dir, URL)
        assert found.source == source
        assert found.folder == tmp_path / "tmp" / "dr-model" / DIGEST
        assert digest_of(found.folder) == DIGEST
    assert store.asked == [
        S3Location(bucket="models-of-us", key=f"models/tiny-test/{DIGEST}.tar.gz")
    ]
    # Neither the archive nor a half-unpacked folder is left in the little space there is.
    assert [path.name for path in (tmp_path / "tmp" / "dr-model").iterdir()] == [DIGEST]


def test_another_package_under_the_digest_is_refused_and_not_kept(
    tmp_path: Path, store: Store
) -> None:
    pack_model(copy_package(tmp_path / "other", {"temperature": 2.0}), store.archive)
    with pytest.raises(ModelPackageError, match=rf"names {DIGEST[:12]}"):
        find(tmp_path, tmp_path / "none", URL)
    assert list((tmp_path / "tmp" / "dr-model").iterdir()) == []


def test_a_damaged_archive_is_refused(tmp_path: Path, store: Store) -> None:
    store.archive.write_bytes(store.archive.read_bytes()[:1000])
    with pytest.raises(ModelPackageError, match="damaged"):
        find(tmp_path, tmp_path / "none", URL)


def test_a_failed_read_is_the_packages_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise S3Error("access is denied")

    monkeypatch.setattr(model_source, "download", fail)
    with pytest.raises(ModelPackageError, match="access is denied"):
        find(tmp_path, tmp_path / "none", URL)


def test_a_process_beside_this_one_is_waited_for(tmp_path: Path, store: Store) -> None:
    cache = tmp_path / "tmp" / "dr-model"
    cache.mkdir(parents=True)
    with ThreadPoolExecutor(1) as beside:
        held = os.open(cache, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        found = beside.submit(find, tmp_path, tmp_path / "none", URL)
        shutil.copytree(TINY_MODEL, cache / DIGEST)
        os.close(held)
        assert found.result(timeout=60).source == "cache"
    assert store.asked == []


def test_what_an_ended_start_has_left_is_removed(tmp_path: Path, store: Store) -> None:
    """Lambda ends an init phase after 10 s, and begins again with the same `/tmp`."""
    cache = tmp_path / "tmp" / "dr-model"
    for number in range(3):
        (cache / f"unpacking-{number}" / "package").mkdir(parents=True)
        (cache / f"unpacking-{number}" / "archive.tar.gz").write_bytes(bytes(1000))
    assert find(tmp_path, tmp_path / "none", URL).source == "s3"
    assert [path.name for path in cache.iterdir()] == [DIGEST]


@pytest.mark.parametrize("spoil", ["other", "empty"])
def test_a_folder_that_is_not_the_named_package_is_fetched_anew(
    tmp_path: Path, store: Store, spoil: str
) -> None:
    folder = tmp_path / "tmp" / "dr-model" / DIGEST
    if spoil == "other":
        copy_package(folder, {"temperature": 2.0})
    else:
        folder.mkdir(parents=True)
    found = find(tmp_path, tmp_path / "none", URL)
    assert (found.source, digest_of(found.folder)) == ("s3", DIGEST)


def test_a_temporary_folder_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").write_text("a file in its place", encoding="utf-8")
    with pytest.raises(ModelPackageError, match=r"no room for the model.*more ephemeral storage"):
        find(tmp_path, tmp_path / "none", URL)

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("inference_image.model_source.tempfile.gettempdir", nowhere)
    with pytest.raises(ModelPackageError, match="No usable temporary directory"):
        find_model(model_dir=tmp_path / "none", model_url=URL, environment={})
    # A model of the image needs none.
    found = find_model(model_dir=TINY_MODEL, model_url=URL, environment={})
    assert found.source == "image"


def test_a_model_folder_that_may_not_be_read_is_a_sentence(tmp_path: Path) -> None:
    def refuse(_: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        with pytest.raises(ModelPackageError, match=r"DR_MODEL_DIR\) cannot be read \(Permission"):
            find(tmp_path, tmp_path, None)


def test_no_model_at_all_names_both_ways(tmp_path: Path) -> None:
    with pytest.raises(ModelPackageError, match=r"DR_MODEL_DIR.*DR_MODEL_URL"):
        find(tmp_path, tmp_path / "none", None)


@pytest.mark.parametrize(
    "text",
    [
        "https://models.s3.amazonaws.com/x.tar.gz",
        "s3://models/models/tiny-test/latest.tar.gz",
        f"s3://models/{DIGEST.upper()}.tar.gz",
        f"s3:///{DIGEST}.tar.gz",
        f"s3://Models/{DIGEST}.tar.gz",
        f"s3://models/{DIGEST}.zip",
    ],
)
def test_an_address_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ModelPackageError, match="s3://BUCKET/models/ID/SHA256"):
        ModelUrl.parse(text)


def test_an_address_without_folders_is_enough() -> None:
    assert ModelUrl.parse(f"s3://models/{DIGEST}.tar.gz").location.key == f"{DIGEST}.tar.gz"


def test_the_fixture_package_is_what_the_digest_says() -> None:
    assert json.loads((TINY_MODEL / "model.json").read_text(encoding="utf-8"))["id"] == "tiny-test"
