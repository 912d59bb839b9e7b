"""Faults in one message, for whoever made the data, and without what could name a patient."""

import pytest

from dr_training.data.faults import MOST_SHOWN, DataError, Faults


def test_a_text_that_names_nobody_is_its_own_anonymous_one() -> None:
    assert DataError("a split needs two parts").anonymous == "a split needs two parts"


def test_what_may_name_a_patient_is_only_counted() -> None:
    faults = Faults()
    faults.add("a.csv row 2 (Oliveira)", "patient Oliveira is in two parts", anonymous="a leak")
    faults.add("a.csv row 9 (Souza)", "patient Souza is in two parts", anonymous="a leak")
    faults.add("Souza.jpg", "cannot be read")
    with pytest.raises(
        DataError, match=r"row 2 .Oliveira.: patient Oliveira is in two parts; "
    ) as caught:
        faults.raise_if_any("cannot be used")
    assert caught.value.anonymous == (
        "cannot be used: a leak (2 times); 1 more not told here, because they may name a patient: "
        "`dr data check` names them beside the data"
    )


def test_all_that_may_name_a_patient_is_a_number() -> None:
    faults = Faults()
    for name in ("Oliveira", "Souza"):
        faults.add(name, "cannot be read")
    assert faults.anonymous().startswith("2 faults not told here")


def test_many_kinds_are_cut_and_counted() -> None:
    faults = Faults()
    for row in range(MOST_SHOWN + 7):
        faults.add(f"row {row}", "Souza", anonymous=f"row {row}: a cell")
    assert faults.anonymous().count("a cell") == MOST_SHOWN
    assert "; 7 more not told here" in faults.anonymous()
