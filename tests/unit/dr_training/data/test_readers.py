"""Each layout as it is published, and every way in which one is not."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dr_training.data.duplicates import describe, duplicate_groups
from dr_training.data.faults import MOST_SHOWN, DataError
from dr_training.data.readers import APTOS_FOLDERS, KINDS, Options, label_map, read
from dr_training.data.table import read_table, write_table
from tests.unit.dr_training.data.conftest import Draw, write_bytes, write_csv

GRADES = (0, 1, 2, 3, 4)


@pytest.fixture
def aptos(tmp_path: Path, drawn: Draw) -> Path:
    folder = tmp_path / "aptos2019"
    names = [f"{grade:02d}a24{seed}" for grade in GRADES for seed in (0, 1)]
    for name in names:
        write_bytes(folder / "train_images" / f"{name}.png", drawn(int(name[-1]), int(name[1])))
    write_csv(folder / "train.csv", ["id_code", "diagnosis"], [(n, n[1]) for n in names])
    write_csv(folder / "test.csv", ["id_code"], [["ffff"]])
    return folder


def test_aptos(aptos: Path) -> None:
    reading = read("aptos", aptos)
    assert reading.table.grades() == (2, 2, 2, 2, 2)
    first = reading.table.photographs[0]
    assert (first.id, first.grade, first.patient) == ("00a240", 0, "")
    assert (first.width_px, first.height_px, first.row) == (256, 256, "train.csv row 2")
    assert first.size_bytes == Path(first.path).stat().st_size
    assert reading.notes == ()


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", ["gaussian_filtered_images", "colored_images"])
def test_aptos_folders_of_224_px(tmp_path: Path, drawn: Draw, kind: str, nested: bool) -> None:
    folder = tmp_path / kind / kind if nested else tmp_path / kind
    rows = []
    for name, grade in APTOS_FOLDERS.items():
        write_bytes(folder / name / f"id{grade}.png", drawn(0, grade))
        rows.append((f"id{grade}", grade))
    write_csv(tmp_path / "train.csv", ["id_code", "diagnosis"], rows)
    table = read("aptos", tmp_path).table
    assert {one.id: one.grade for one in table} == {f"id{grade}": grade for grade in GRADES}
    # The folders' alphabetical order would be Mild, Moderate, No_DR, Proliferate_DR, Severe.
    assert sorted(APTOS_FOLDERS) != sorted(APTOS_FOLDERS, key=lambda name: APTOS_FOLDERS[name])


def test_a_folder_that_contradicts_its_label_is_named(tmp_path: Path, drawn: Draw) -> None:
    write_bytes(tmp_path / "Mild" / "aa.png", drawn(0, 1))
    for name in ("No_DR", "Moderate", "Severe", "Proliferate_DR"):
        write_bytes(tmp_path / name / f"{name}.png", drawn(0, 0))
    write_csv(tmp_path / "train.csv", ["id_code", "diagnosis"], [("aa", 3), ("bb", 1)])
    with pytest.raises(DataError) as caught:
        read("aptos", tmp_path)
    text = str(caught.value)
    assert "train.csv row 2: grade 3, but it lies in Mild" in text
    assert "train.csv row 3: no folder holds bb" in text
    assert "No_DR/No_DR.png: train.csv has no row for it" in text


def test_eyepacs(tmp_path: Path, drawn: Draw) -> None:
    rows = [("10_left", 0), ("10_right", 4), ("13_left", 2)]
    for name, grade in rows:
        write_bytes(tmp_path / "train" / f"{name}.jpeg", drawn(0, grade))
    write_csv(tmp_path / "trainLabels.csv", ["image", "level"], rows)
    write_bytes(tmp_path / "test" / "1_left.jpeg", drawn(1, 1))
    write_csv(
        tmp_path / "retinopathy_solution.csv",
        ["image", "level", "Usage"],
        [("1_left", 1, "Private")],
    )
    table = read("eyepacs", tmp_path).table
    found = {(one.id, one.patient, one.eye, one.extra["published_split"]) for one in table}
    assert ("10_right", "10", "right", "train") in found
    assert ("1_left", "1", "left", "test") in found
    assert table.photographs[-1].extra["usage"] == "Private"


def test_messidor2_with_its_pairs_and_other_suffixes(tmp_path: Path, drawn: Draw) -> None:
    write_bytes(tmp_path / "IMAGES" / "20051020_43808_0100_PP.png", drawn(0, 0, "PNG"))
    write_bytes(tmp_path / "IMAGES" / "IM000001.JPG", drawn(0, 2))
    write_bytes(tmp_path / "IMAGES" / "IM000002.JPG", drawn(1, 2))
    write_csv(
        tmp_path / "messidor_data.csv",
        ["image_id", "adjudicated_dr_grade", "adjudicated_dme", "adjudicated_gradable"],
        [
            ("20051020_43808_0100_PP.png", "0.0", "0.0", 1),
            ("IM000001.jpg", 2, 1, 1),
            ("IM000002.jpg", "", "", 0),
        ],
    )
    (tmp_path / "messidor-2.csv").write_text(
        "left;right\n20051020_43808_0100_PP.png;IM000001.JPG\nIM000002.JPG;\n"
    )
    first, second, third = read("messidor2", tmp_path).table
    assert (first.patient, first.eye) == ("pair0002", "left")
    assert (second.patient, second.eye, second.grade) == ("pair0002", "right", 2)
    assert (third.grade, third.extra["adjudicated_gradable"]) == (None, "0")
    assert second.extra["adjudicated_dme"] == "1"


def test_messidor2_without_pairs_says_so_and_a_lost_grade_is_named(
    tmp_path: Path, drawn: Draw
) -> None:
    write_bytes(tmp_path / "IM1.JPG", drawn(0, 2))
    columns = ["image_id", "adjudicated_dr_grade", "adjudicated_gradable"]
    write_csv(tmp_path / "messidor_data.csv", columns, [("IM1.jpg", 2, 1)])
    assert "messidor-2.csv" in read("messidor2", tmp_path).notes[0]
    write_csv(tmp_path / "messidor_data.csv", columns, [("IM1.jpg", "", 1)])
    with pytest.raises(DataError, match=r"row 2: no grade, but it is not marked as ungradable"):
        read("messidor2", tmp_path)


def test_idrid_parts_share_names_and_headers_have_blanks(tmp_path: Path, drawn: Draw) -> None:
    folder = tmp_path / "B. Disease Grading"
    for letter, word, count in (("a", "Training", 3), ("b", "Testing", 2)):
        lines = ["Image name,Retinopathy grade,Risk of macular edema ,,,"]
        for number in range(1, count + 1):
            name = f"IDRiD_{number:03d}"
            target = folder / "1. Original Images" / f"{letter}. {word} Set" / f"{name}.jpg"
            write_bytes(target, drawn(number, number + count - 3))
            lines.append(f"{name},{number + count - 3},1,,,")
        labels = f"{letter}. IDRiD_Disease Grading_{word} Labels.csv"
        write_bytes(folder / "2. Groundtruths" / labels, ("\n".join(lines) + "\n").encode())
    table = read("idrid", tmp_path).table
    ids = [one.id for one in table]
    assert ids[0] == "train/IDRiD_001"
    assert ids[-1] == "test/IDRiD_002"
    assert [one.grade for one in table] == [1, 2, 3, 0, 1]
    assert table.photographs[0].extra == {"published_split": "train", "macular_edema_risk": "1"}


def test_folders_need_a_label_map(tmp_path: Path, drawn: Draw) -> None:
    for name, grade in (("healthy", 0), ("severe", 3)):
        write_bytes(tmp_path / name / "same-name.jpg", drawn(0, grade))
    with pytest.raises(DataError, match=r"as NAME=GRADE.*Folders there: healthy, severe"):
        read("folders", tmp_path)
    labels = label_map(["severe=3", "healthy=0"])
    table = read("folders", tmp_path, Options(labels=labels)).table
    assert {one.id: one.grade for one in table} == {"healthy/same-name": 0, "severe/same-name": 3}
    with pytest.raises(DataError, match="severe: no grade is given for its 1 images"):
        read("folders", tmp_path, Options(labels={"healthy": 0}))
    (tmp_path / "mild").mkdir()
    with pytest.raises(DataError, match=r"mild: holds no image.*|there is no folder moderate"):
        read("folders", tmp_path, Options(labels={**labels, "mild": 1, "moderate": 2}))


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("No_DR", "give it as NAME=GRADE"),
        ("a=5", "grade '5' is not one of 0 to 4"),
        ("=1", "give it as NAME=GRADE"),
    ],
)
def test_a_label_that_is_none_is_named(pair: str, text: str) -> None:
    with pytest.raises(DataError, match=text):
        label_map([pair])


def test_medmnist(shared_data: Path) -> None:
    reading = read("npz", shared_data / "retinamnist" / "retinamnist-train-val.npz")
    assert len(reading.table) == 1200
    assert reading.table.grades() == (540, 140, 234, 214, 72)
    last = reading.table.photographs[-1]
    assert (last.id, last.extra["published_split"]) == ("val/00119", "validation")
    assert (last.width_px, last.height_px, last.size_bytes) == (28, 28, 28 * 28 * 3)


def test_arrays_that_do_not_fit_are_named(tmp_path: Path) -> None:
    images = np.zeros((3, 28, 28, 3), np.uint8)
    np.savez(
        tmp_path / "bad.npz",
        train_images=images,
        train_labels=np.array([[0], [9], [1]]),
        val_images=images,
        val_labels=np.zeros((2, 1), int),
        test_images=images.astype(np.float32),
        test_labels=np.zeros((3, 1), int),
    )
    with pytest.raises(DataError) as caught:
        read("npz", tmp_path / "bad.npz")
    text = str(caught.value)
    assert "bad.npz train row 1: grade '9' is not one of 0 to 4" in text
    assert "val has 3 images and 2 labels" in text
    assert "test_images is float32" in text
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"is not an \.npz of arrays"):
        read("npz", tmp_path / "text.npz")


def test_drawn_photographs_of_one_seed_are_one_patient(tmp_path: Path, drawn: Draw) -> None:
    for grade in GRADES:
        write_bytes(tmp_path / f"grade{grade}-seed7.jpg", drawn(0, grade))
    write_bytes(tmp_path / "holiday.jpg", drawn(0, 0))
    reading = read("drawn", tmp_path)
    assert {one.patient for one in reading.table} == {"seed7"}
    assert reading.notes == ("holiday.jpg is left out: its name is not gradeG-seedN",)


@pytest.mark.parametrize(
    ("column", "way"),
    [
        ("eye", "say --eye-column eye, or rename it"),
        ("patient", "say --patient-column patient, or rename it"),
        ("sha256", ": rename it"),
        ("width_px", ": rename it"),
    ],
)
def test_a_column_that_the_table_would_hold_twice_is_refused(
    column: str, way: str, tmp_path: Path, drawn: Draw
) -> None:
    write_bytes(tmp_path / "a.jpg", drawn(0, 0))
    write_csv(tmp_path / "labels.csv", ["image", "grade", column], [("a.jpg", 0, "left")])
    with pytest.raises(DataError, match=f"a column {column}, and so has the table.*{way}"):
        read("csv", tmp_path / "labels.csv")


def test_photographs_without_a_patient_among_others_are_counted(
    tmp_path: Path, drawn: Draw
) -> None:
    rows = []
    for index, (patient, eye) in enumerate((("P1", "OD"), ("", "os"), ("P2", "L"), ("", ""))):
        write_bytes(tmp_path / f"{index}.jpg", drawn(index, 0))
        rows.append((f"{index}.jpg", 0, patient, eye))
    write_csv(tmp_path / "labels.csv", ["image", "grade", "patient", "eye"], rows)
    options = Options(patient_column="patient", eye_column="eye")
    reading = read("csv", tmp_path / "labels.csv", options)
    assert [one.eye for one in reading.table] == ["right", "left", "left", ""]
    (note,) = reading.notes
    assert note.startswith("2 of 4 photographs name no patient")
    nobody = [(name, grade, "", eye) for name, grade, _, eye in rows]
    write_csv(tmp_path / "labels.csv", ["image", "grade", "patient", "eye"], nobody)
    (note,) = read("csv", tmp_path / "labels.csv", options).notes
    assert note.startswith("4 of 4 photographs name no patient")


def test_a_mac_s_umlauts_are_those_of_the_labels(tmp_path: Path, drawn: Draw) -> None:
    apart = unicodedata.normalize("NFD", "Mäßig früh")
    write_bytes(
        tmp_path / "all" / apart / f"{unicodedata.normalize('NFD', 'Müller')}.jpg", drawn(0, 1)
    )
    labels = {"Mäßig früh": 1}
    assert len(read("folders", tmp_path / "all", Options(labels=labels)).table) == 1
    write_csv(tmp_path / "all" / "labels.csv", ["image", "grade"], [("MÜLLER.jpg", 1)])
    assert len(read("csv", tmp_path / "all" / "labels.csv").table) == 1


def test_a_name_in_two_folders_is_told_with_both(tmp_path: Path, drawn: Draw) -> None:
    for folder in ("left", "right"):
        write_bytes(tmp_path / folder / "img1.jpg", drawn(0, 0))
    write_csv(tmp_path / "labels.csv", ["image", "grade"], [("img1.jpg", 0)])
    with pytest.raises(DataError, match=r"may be left/img1.jpg or right/img1.jpg"):
        read("csv", tmp_path / "labels.csv")


def test_a_hospital_s_own_labels(tmp_path: Path, drawn: Draw) -> None:
    write_bytes(tmp_path / "export" / "a.b.jpg", drawn(0, 0))
    write_bytes(tmp_path / "export" / "c.jpg", drawn(1, 3))
    (tmp_path / "labels.csv").write_bytes(
        "\ufefffile;icdr;case;side;camera\nexport/a.b.jpg;0;P1;Left;X\nC.JPG;3;P2;;Y\n".encode()
    )
    options = Options(
        image_column="file", grade_column="icdr", patient_column="case", eye_column="side"
    )
    first, second = read("csv", tmp_path / "labels.csv", options).table
    assert (first.patient, first.eye, first.grade, dict(first.extra)) == (
        "P1",
        "left",
        0,
        {"camera": "X"},
    )
    assert (second.patient, second.eye, second.grade) == ("P2", "", 3)
    with pytest.raises(DataError, match="column image, grade missing; it has file, icdr"):
        read("csv", tmp_path / "labels.csv")


def test_all_faults_of_a_data_set_come_in_one_message(aptos: Path) -> None:
    labels = aptos / "train.csv"
    labels.write_text(labels.read_text().replace("03a240,3", "03a240,7") + "eeee,1\n")
    with pytest.raises(DataError, match=r"train.csv row 12: train_images holds no image eeee"):
        read("aptos", aptos)
    labels.write_text(labels.read_text().replace("eeee,1\n", ""))
    (aptos / "train_images" / "01a240.png").write_bytes(b"not a picture")
    (aptos / "train_images" / "02a240.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        read("aptos", aptos)
    text = str(caught.value)
    assert "train.csv row 8: grade '7' is not one of 0 to 4" in text
    assert "train.csv row 4: 01a240.png cannot be read" in text
    assert "train.csv row 6: 02a240.png cannot be read" in text
    labels.write_text(labels.read_text().replace("03a240,7", "03a240,3"))
    reading = read("aptos", aptos, Options(keep_unreadable=True))
    assert [one.id for one in reading.table if not one.readable] == ["01a240", "02a240"]
    assert len(reading.notes) == 2


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_photograph_that_was_cut_off_is_found_out_by_its_row(
    tmp_path: Path, drawn: Draw, form: str
) -> None:
    """Its header says nothing of it; the sentence names the row, and not whose it is."""
    names = [f"souza-maria-{n}.{form.lower()}" for n in range(4)]
    for n, name in enumerate(names):
        data = drawn(n, n, form)
        write_bytes(tmp_path / name, data[: len(data) * 2 // 3] if n == 2 else data)
    rows = [(name, n, f"souza-{n}") for n, name in enumerate(names)]
    labels = write_csv(tmp_path / "labels.csv", ["image", "grade", "case"], rows)
    options = Options(patient_column="case")
    with pytest.raises(DataError) as caught:
        read("csv", labels, options)
    assert str(caught.value) == (
        "the data set cannot be used: labels.csv row 4: the photograph cannot be decoded: "
        f"The {form} cannot be decoded: it is truncated or damaged."
    )
    assert "souza" not in caught.value.anonymous
    assert "a photograph cannot be read" in caught.value.anonymous
    kept = read("csv", labels, replace(options, keep_unreadable=True))
    assert [one.readable for one in kept.table] == [True, True, False, True]
    assert "labels.csv row 4: the photograph cannot be decoded" in kept.notes[0]
    unseen = read("csv", labels, replace(options, headers_only=True))
    assert all(one.readable for one in unseen.table)


def test_missing_columns_files_and_rows_are_named(aptos: Path, tmp_path: Path) -> None:
    write_csv(aptos / "train.csv", ["id", "diagnosis"], [("a", 1)])
    with pytest.raises(DataError, match=r"train.csv: column id_code missing; it has id, diagnosis"):
        read("aptos", aptos)
    write_csv(aptos / "train.csv", ["id_code", "diagnosis"], [])
    with pytest.raises(DataError, match="has no rows"):
        read("aptos", aptos)
    (aptos / "train.csv").write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        read("aptos", aptos)
    with pytest.raises(DataError, match=r"there is no .*nowhere"):
        read("aptos", tmp_path / "nowhere")
    with pytest.raises(DataError, match="known are aptos, eyepacs"):
        read("kaggle", aptos)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_empty_folder_is_said_to_lack_what_the_layout_needs(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError):
        read(kind, tmp_path)


def test_files_without_a_row_are_a_note(aptos: Path, drawn: Draw) -> None:
    write_bytes(aptos / "train_images" / "extra.png", drawn(5, 0))
    assert read("aptos", aptos).notes == ("train_images: 1 files that no row names: extra.png",)


def test_a_long_list_of_faults_is_cut(aptos: Path) -> None:
    rows = [(f"missing{number}", 0) for number in range(MOST_SHOWN + 5)]
    write_csv(aptos / "train.csv", ["id_code", "diagnosis"], rows)
    with pytest.raises(DataError, match=r"; and 5 more$"):
        read("aptos", aptos)


def test_identical_files_are_found_and_their_conflicts(aptos: Path, drawn: Draw) -> None:
    write_bytes(aptos / "train_images" / "copy1.png", drawn(0, 2))
    write_bytes(aptos / "train_images" / "copy2.png", drawn(1, 3))
    with (aptos / "train.csv").open("a") as stream:
        stream.write("copy1,2\ncopy2,4\n")
    groups = duplicate_groups(read("aptos", aptos).table)
    assert [[one.id for one in group.photographs] for group in groups] == [
        ["02a240", "copy1"],
        ["03a241", "copy2"],
    ]
    assert [group.conflicting for group in groups] == [False, True]
    assert groups[1].grades == (3, 4)
    assert describe(groups) == (
        "2 byte-identical copies in 2 groups, 1 of them with different grades."
    )


def test_a_table_is_the_same_after_writing_and_reading(aptos: Path, tmp_path: Path) -> None:
    table = read("aptos", aptos).table
    write_table(table, tmp_path / "table.csv")
    again = read_table(tmp_path / "table.csv")
    assert again == table
    assert again.digest == table.digest
    text = (tmp_path / "table.csv").read_text()
    assert str(tmp_path) not in text, "a table that is moved with its data must still be right"


def test_a_table_s_faults_are_named_with_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "id,grade,sha256,path,eye\na,1,x,a.jpg,left\na,1,x,a.jpg,left\nb,six,x,b.jpg,\n"
        "c,1,x,c.jpg,middle\n,1,x,d.jpg,\ne,1,,e.jpg,\nf,1,x\n"
    )
    with pytest.raises(DataError, match=r"own\.csv row 8: 3 cells under 5 columns"):
        read_table(path)
    path.write_text(path.read_text().replace("f,1,x\n", ""))
    with pytest.raises(DataError) as caught:
        read_table(path)
    for fault in (
        "own.csv row 3: id 'a' is also in row 2",
        "own.csv row 4: grade 'six' is not one of 0 to 4",
        "own.csv row 5: eye 'middle'",
        "own.csv row 6: the id is empty",
        "own.csv row 7: sha256 is empty",
    ):
        assert fault in str(caught.value)
    path.write_text("id,path\na,b\n")
    with pytest.raises(DataError, match="column grade, sha256 missing; it has id, path"):
        read_table(path)
