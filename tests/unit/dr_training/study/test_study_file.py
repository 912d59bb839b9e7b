"""A study file is read whole or refused with all that is wrong in it."""

from decimal import Decimal
from pathlib import Path

import pytest

from dr_training.data.faults import DataError
from dr_training.study.study_file import bundled, read_study
from tests.unit.dr_training.study.study_texts import SMALL, study_of


def test_the_methodology_has_its_factors_scenarios_and_runs() -> None:
    study = read_study(Path("methodology"))
    assert {f.name: f.levels for f in study.factors} == {
        "framework": ("MXNet", "PyTorch", "TensorFlow"),
        "data": ("MNIST", "CIFAR-10"),
        "size": (32, 64),
        "network": (1, 2),
        "environment": ("CPU", "CPU+GPU"),
    }
    assert len(study.scenarios()) == 48
    assert (study.repetitions, study.fixed["epochs"], study.fixed["batch"]) == (5, 10, 128)
    assert study.monitor_interval_s == 10


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_study_can_be_read(name: str) -> None:
    assert read_study(Path(name)).name == name


def test_the_monitor_reads_each_second_unless_told_otherwise(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert study.monitor_interval_s == 1
    assert study.environment("cpu").hourly == Decimal("3.60")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('workload = "classification"', 'workload = "sorting"', "'sorting' is not one of"),
        ('workload = "classification"', "workload = [1]", "[1] is not one of"),
        ("repetitions = 3", "repetitions = 0", "0 is not a whole number from 1 to 1,000"),
        ("repetitions = 3", "repetitions = true", "True is not a whole number"),
        ("repetitions = 3", "repetition = 3", "study.repetition: unknown"),
        ('"PyTorch", "TensorFlow"', '"PyTorch", "Caffe"', "'Caffe' is not one of PyTorch"),
        ('"PyTorch", "TensorFlow"', '"PyTorch", "PyTorch"', "a level is there twice"),
        ('"PyTorch", "TensorFlow"', '"PyTorch"', "a list of at least two"),
        ("[32, 64]", "[32, 60]", "60 is no multiple of 8"),
        ("[32, 64]", '[32, "64"]', "'64' is not a whole number"),
        ('name = "size"', 'name = "colour"', "'colour' is not one of framework"),
        ('name = "size"', 'name = ["size"]', "is not one of framework"),
        ("batch = 8", "size = 32", "it is a factor as well"),
        ("batch = 8", "", "batch: it is neither a factor nor in [fixed]"),
        ("learning_rate = 0.01", "learning_rate = nan", "nan is not a number"),
        ('environment = "cpu"', 'environment = "tpu"', "'tpu' is not one of cpu"),
        ("network = 1", "network = 3", "3 is not one of 1, 2"),
        ('hourly = "3.60"', "hourly = 3.60", 'write it as a text, "0.23"'),
        ('hourly = "3.60"', 'hourly = "-1"', "'-1' is not an amount"),
        ('device = "cpu"', 'device = "tpu"', "'tpu' is not one of cpu, gpu"),
        ("checked = 2026-11-28", 'checked = "yesterday"', "a date such as 2026-11-28"),
        ('currency = "EUR"', "", "prices.currency"),
        ("share_of_images = 0.01", "share_of_images = 0", "above 0"),
        ("share_of_images = 0.01", "shares = 0.01", "classification.shares: unknown"),
        ("[classification]", "[referral]\ntable = 'x'\n[classification]", "nothing in this study"),
        ("[prices]", "[price]", "[price]: unknown"),
        ("threads = 1", "threads = 1\nrunner = 'ssh'", "where: '' is not a text"),
        ("threads = 1", "threads = 1\nwhere = 'host'", "only for the runners ssh and sagemaker"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SMALL
    with pytest.raises(DataError) as caught:
        study_of(tmp_path, SMALL.replace(old, new, 1))
    assert words in str(caught.value)


def test_all_faults_come_in_one_message(tmp_path: Path) -> None:
    text = SMALL.replace("order_seed = 5", "").replace("batch = 8", "batch = 0")
    with pytest.raises(DataError) as caught:
        study_of(tmp_path, text)
    assert "study.order_seed" in str(caught.value)
    assert "fixed.batch" in str(caught.value)


def test_no_file_and_no_toml(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such study file.*methodology"):
        read_study(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_text("[study\n")
    with pytest.raises(DataError, match="is not TOML"):
        read_study(tmp_path / "x.toml")


def test_repetitions_can_be_said_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SMALL)
    study = read_study(tmp_path / "s.toml", repetitions=7)
    assert study.repetitions == 7
    (tmp_path / "copy.toml").write_text(study.text)
    assert read_study(tmp_path / "copy.toml") == study
