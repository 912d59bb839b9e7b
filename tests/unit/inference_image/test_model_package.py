"""Packing is deterministic, and unpacking trusts nothing."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_image.contract import GRADE_LABELS
from inference_image.model_package import pack_model, read_spec_from_archive, unpack_model
from inference_image.model_spec import (
    MODEL_JSON,
    ModelPackageError,
    load_model_spec,
    missing_files,
    parse_model_spec,
    verify_files,
)

MODEL_BYTES = b"TFL3 not really a network" * 100


def document(**changes: Any) -> dict[str, Any]:
    """A complete `model.json`, with `changes` applied."""
    base: dict[str, Any] = {
        "schema_version": 1,
        "id": "tiny",
        "task": "grade5",
        "input_size_px": 32,
        "labels": list(GRADE_LABELS),
        "preprocessing": [{"step": "resize_area"}],
        "quality_gate": None,
        "operating_points": [{"name": "high_sensitivity", "threshold": 0.3}],
        "default_operating_point": "high_sensitivity",
        "temperature": 1.0,
        "outputs": {"logits": "logits"},
        "files": {
            "model.tflite": {
                "sha256": hashlib.sha256(MODEL_BYTES).hexdigest(),
                "size_bytes": len(MODEL_BYTES),
            }
        },
    }
    base.update(changes)
    return base


def write_package(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.tflite").write_bytes(MODEL_BYTES)
    (folder / MODEL_JSON).write_text(json.dumps(document(**changes)))
    return folder


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema_version": 2}, "schema_version must be 1"),
        ({"task": "grade4"}, "task must be one of"),
        ({"id": "../evil"}, "id may hold"),
        ({"id": ""}, "id may hold"),
        ({"id": "réseau"}, "id may hold up to 128 letters of ASCII"),
        ({"id": "x" * 129}, "id may hold up to 128"),
        ({"labels": sorted(GRADE_LABELS)}, "in this order"),
        ({"task": "referable"}, "2 labels"),
        ({"input_size_px": 7}, "between 8 and 4096"),
        ({"input_size_px": True}, "wrong type"),
        ({"temperature": 0}, "temperature must be between"),
        ({"temperature": float("nan")}, "temperature must be between"),
        ({"temperature": 1e-320}, "temperature must be between"),
        ({"temperature": 10**400}, "temperature must be between"),
        ({"operating_points": [{"name": "a", "threshold": 10**400}]}, "threshold in"),
        ({"operating_points": [{"name": "a", "threshold": float("nan")}]}, "threshold in"),
        ({"head_file": "head.npz"}, "is not in files"),
        ({"head_file": "/etc/passwd"}, "is not in files"),
        ({"operating_points": [{"name": "a", "threshold": 1.5}]}, "threshold in"),
        ({"operating_points": ["a"]}, "threshold in"),
        ({"default_operating_point": "unknown"}, "not in operating_points"),
        (
            {"operating_points": [{"name": "a", "threshold": t} for t in (0.2, 0.7)]},
            "has 'a' twice",
        ),
        ({"outputs": {}}, "must name either the logits or the probabilities"),
        ({"preprocessing": ["resize"]}, "'step'"),
        ({"files": {}}, "files is empty"),
        ({"files": {"../x": {"sha256": "0" * 64, "size_bytes": 1}}}, "inside the package"),
        ({"files": {"/x": {"sha256": "0" * 64, "size_bytes": 1}}}, "inside the package"),
        ({"files": {"x": {"sha256": "0"}}}, "needs sha256"),
    ],
)
def test_a_model_json_that_contradicts_itself_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelPackageError, match=r"model\.json: ") as refusal:
        parse_model_spec(json.dumps(document(**changes)).encode())
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", sorted(document()))
def test_each_key_is_required(key: str) -> None:
    incomplete = document()
    del incomplete[key]
    with pytest.raises(ModelPackageError, match=f"{key} is missing"):
        parse_model_spec(json.dumps(incomplete).encode())


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_spec_or_one_error(data: bytes) -> None:
    with pytest.raises(ModelPackageError) as refusal:
        parse_model_spec(data)
    assert str(refusal.value)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6),
       st.sampled_from(sorted(document())))  # fmt: skip
def test_any_value_under_any_key_is_a_spec_or_one_error(value: Any, key: str) -> None:
    try:
        spec = parse_model_spec(json.dumps(document(**{key: value})).encode())
    except ModelPackageError:
        return
    assert spec.labels == GRADE_LABELS


def test_deep_nesting_is_one_error() -> None:
    with pytest.raises(ModelPackageError, match="nested too deeply"):
        parse_model_spec(b"[" * 200_000)


def test_the_digest_is_that_of_model_json_and_names_the_key(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    spec = load_model_spec(package)
    assert spec.sha256 == hashlib.sha256((package / MODEL_JSON).read_bytes()).hexdigest()
    assert spec.object_key == f"models/tiny/{spec.sha256}.tar.gz"


@pytest.mark.parametrize(
    "text", ['{"temperature": 1, "temperature": 2}', '{"input": {"scale": 1, "scale": 2}}']
)
def test_a_name_that_stands_twice_in_one_object_is_refused(text: str) -> None:
    with pytest.raises(ModelPackageError, match=r"'(temperature|scale)' stands twice in one"):
        parse_model_spec(text.encode())


def test_packing_twice_gives_the_same_bytes_whatever_the_times_and_modes(tmp_path: Path) -> None:
    first = write_package(tmp_path / "a")
    second = write_package(tmp_path / "b")
    os.utime(second / "model.tflite", (1, 1))
    (second / "model.tflite").chmod(0o600)
    (second / "MODEL_CARD.md").write_text("not part of the package")
    pack_model(first, tmp_path / "a.tar.gz")
    pack_model(second, tmp_path / "b.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        rows = [(m.name, m.mtime, m.uid, m.gid, m.mode) for m in tar]
    assert rows == [(MODEL_JSON, 0, 0, 0, 0o644), ("model.tflite", 0, 0, 0, 0o644)]


def test_a_package_survives_packing_and_unpacking(tmp_path: Path) -> None:
    packed = pack_model(write_package(tmp_path / "p"), tmp_path / "m.tar.gz")
    unpack_model(tmp_path / "m.tar.gz", tmp_path / "out")
    spec = load_model_spec(tmp_path / "out")
    verify_files(spec, tmp_path / "out")
    assert spec.sha256 == packed.sha256 == read_spec_from_archive(tmp_path / "m.tar.gz").sha256


def test_files_that_differ_from_their_record_are_named(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    spec = load_model_spec(package)
    (package / "model.tflite").write_bytes(MODEL_BYTES[:-1])
    with pytest.raises(ModelPackageError, match=r"model\.tflite has \d+ bytes where"):
        verify_files(spec, package)
    (package / "model.tflite").write_bytes(MODEL_BYTES[:-1] + b"X")
    with pytest.raises(ModelPackageError, match="does not have the SHA-256"):
        pack_model(package, tmp_path / "m.tar.gz")
    (package / "model.tflite").unlink()
    assert missing_files(spec, package) == ("model.tflite",)
    with pytest.raises(ModelPackageError, match="is missing from"):
        verify_files(spec, package)
    assert [path.name for path in tmp_path.iterdir()] == ["p"], "a half-written archive was left"


def archive_of(target: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(target, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return target


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    if "\0" in name:  # an old header ends at the zero byte; an extended one does not
        info.pax_headers = {"path": name}
    return info


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        (member("../evil"), "outside the package"),
        (member("/etc/evil"), "outside the package"),
        (member("a\\..\\evil"), "outside the package"),
        (member("a\0b"), "outside the package"),
        (member("link", tarfile.SYMTYPE, "/etc/passwd"), "link or a device"),
        (member("link", tarfile.LNKTYPE, "model.json"), "link or a device"),
        (member("pipe", tarfile.FIFOTYPE), "link or a device"),
        (member("device", tarfile.CHRTYPE), "link or a device"),
    ],
)
def test_an_archive_that_reaches_out_is_refused(
    tmp_path: Path, info: tarfile.TarInfo, sentence: str
) -> None:
    archive = archive_of(tmp_path / "evil.tar.gz", (info, b""))
    with pytest.raises(ModelPackageError, match=sentence):
        unpack_model(archive, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_a_link_in_a_package_folder_is_not_followed(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    (package / "model.tflite").rename(tmp_path / "elsewhere")
    (package / "model.tflite").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelPackageError, match="is missing from"):
        verify_files(load_model_spec(package), package)


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    twice = archive_of(
        tmp_path / "twice.tar.gz", (member(MODEL_JSON), b"{}"), (member(f"./{MODEL_JSON}"), b"{}")
    )
    with pytest.raises(ModelPackageError, match="twice"):
        unpack_model(twice, tmp_path / "out")


def test_a_header_that_says_what_cannot_be_is_damage(tmp_path: Path) -> None:
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"}
    for number, said in enumerate(({"size": "-1"}, {**sparse, "GNU.sparse.realsize": "9"})):
        archive = tmp_path / f"{number}.tar.gz"
        info = member(MODEL_JSON)
        info.pax_headers = said
        archive_of(archive, (info, b""))
        with pytest.raises(ModelPackageError, match="is damaged"):
            unpack_model(archive, tmp_path / "out")
        with pytest.raises(ModelPackageError, match=r"is damaged|is not JSON"):
            read_spec_from_archive(archive)


def test_a_bomb_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_image.model_package.MAX_UNPACKED_BYTES", 1000)
    archive = archive_of(tmp_path / "bomb.tar.gz", (member("zeros"), bytes(1001)))
    with pytest.raises(ModelPackageError, match="more than 1000 bytes"):
        unpack_model(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_every_truncation_and_every_flipped_byte_is_refused_or_caught_by_the_digests(
    tmp_path: Path,
) -> None:
    pack_model(write_package(tmp_path / "p"), tmp_path / "m.tar.gz")
    whole = (tmp_path / "m.tar.gz").read_bytes()
    broken = [whole[:cut] for cut in range(0, len(whole) - 8, 37)]
    broken += [
        whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), 29)
    ]
    original = load_model_spec(tmp_path / "p").sha256
    for number, data in enumerate(broken):
        (tmp_path / "broken.tar.gz").write_bytes(data)
        target = tmp_path / f"out{number}"
        try:
            unpack_model(tmp_path / "broken.tar.gz", target)
            spec = load_model_spec(target)
            verify_files(spec, target)
        except ModelPackageError:
            continue
        # Only header fields that carry no content (times, names) may change unnoticed.
        assert spec.sha256 == original


@pytest.mark.parametrize(
    "data",
    [b"", b"text", gzip.compress(b"not a tar", mtime=0), b"\x1f\x8b"],
    ids=["empty", "text", "gzip of no tar", "two bytes"],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.tar.gz").write_bytes(data)
    with pytest.raises(ModelPackageError, match=r"m\.tar\.gz"):
        unpack_model(tmp_path / "m.tar.gz", tmp_path / "out")
    with pytest.raises(ModelPackageError, match=r"m\.tar\.gz"):
        read_spec_from_archive(tmp_path / "m.tar.gz")


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelPackageError, match="there is no file"):
        unpack_model(tmp_path / "absent.tar.gz", tmp_path / "out")
    with pytest.raises(ModelPackageError, match="there is no file"):
        read_spec_from_archive(tmp_path / "absent.tar.gz")
