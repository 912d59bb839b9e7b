"""Hyper-parameters: texts that become a plan, and every kind of value that does not."""

import json
from dataclasses import fields
from typing import Any

import pytest

from dr_training.fitting.plan import TrainingPlan
from dr_training.job.faults import EXIT_ASKED_WRONGLY, JobError
from dr_training.job.hyperparameters import read_hyperparameters

LEAST = {"network": "mobilenet", "package_id": "clinic-1"}


def _refused(document: Any) -> str:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(JobError) as found:
        read_hyperparameters(text)
    assert found.value.code == EXIT_ASKED_WRONGLY
    sentence = str(found.value)
    assert sentence.startswith("hyper-parameters: ")
    assert sentence.isprintable()
    assert len(sentence) < 1024
    return sentence


def test_what_is_left_out_is_as_in_dr_model_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    read = read_hyperparameters(json.dumps(LEAST))
    assert read.plan == TrainingPlan(network="mobilenet")
    assert (read.package_id, read.strategy, read.cpu_devices, read.threads) == (
        "clinic-1", "auto", 1, 3,
    )  # fmt: skip


def test_every_field_of_a_plan_can_be_said_as_a_text() -> None:
    wanted = TrainingPlan(
        network="vgg19", weights="random", task="referable", network_size_px=64, train="head",
        epochs=3, batch_size=16, learning_rate=3e-4, weight_decay=0.0, loss="focal",
        focal_gamma=1.5, class_weights="balanced", dropout=0.25, augment=False, monitor="auc",
        reduce_patience=2, reduce_factor=0.1, stop_patience=5, precision="mixed_bfloat16", seed=9,
    )  # fmt: skip
    document = wanted.as_document()
    usual = TrainingPlan(network="mobilenet").as_document()
    assert not [name for name in document if document[name] == usual[name]]
    texts = {name: str(value) for name, value in document.items()}
    own = {"strategy": "multi-worker", "cpu_devices": "2", "threads": "4"}
    read = read_hyperparameters(json.dumps({**texts, **own, "package_id": "referral-1"}))
    assert read.plan == wanted
    assert read.package_id == "referral-1"
    assert (read.strategy, read.cpu_devices, read.threads) == ("multi-worker", 2, 4)


def test_sagemakers_own_are_ignored_and_the_id_has_two_names() -> None:
    extra = {"sagemaker_program": '"x.py"', "_tuning_objective_metric": "loss"}
    read = read_hyperparameters(json.dumps({**LEAST, **extra, "model_id": "clinic-1"}))
    assert read.package_id == "clinic-1"
    assert "differ" in _refused({**LEAST, "model_id": "clinic-2"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("epochs", "ten", "epochs must be a whole number; got 'ten'"),
        ("epochs", "1.0", "epochs must be a whole number; got '1.0'"),
        ("epochs", "1_000", "epochs must be a whole number"),
        ("epochs", " 5", "epochs must be a whole number; got ' 5'"),
        ("epochs", "", "epochs must be a whole number; got ''"),
        ("epochs", "5\n", "epochs must be a whole number"),
        ("epochs", "٣", "epochs must be a whole number"),
        ("epochs", "9" * 5000, "epochs must be a whole number"),
        ("epochs", "0", "epochs must be at least 1; got 0"),
        ("batch_size", "-8", "batch_size must be at least 1; got -8"),
        ("network_size_px", "0", "network_size_px must be at least 1; got 0"),
        ("network_size_px", "None", "network_size_px must be a whole number; got 'None'"),
        ("seed", "-1", "seed must be at least 0"),
        ("seed", "4294967296", "seed must be at most 4294967295; got 4294967296"),
        ("learning_rate", "nan", "learning_rate must be a number; got 'nan'"),
        ("learning_rate", "inf", "learning_rate must be a number"),
        ("learning_rate", "1e999", "learning_rate must be a number"),
        ("learning_rate", "0x1p-3", "learning_rate must be a number"),
        ("learning_rate", "1,5", "learning_rate must be a number; got '1,5'"),
        ("learning_rate", "0", "learning_rate must be from 1e-08 to 10; got 0"),
        ("dropout", "1", "dropout must be from 0 to 0.95; got 1"),
        ("augment", "yes", "augment must be true or false; got 'yes'"),
        ("augment", "1", "augment must be true or false; got '1'"),
        ("loss", "mse", "loss must be one of cross-entropy, focal, ordinal; got 'mse'"),
        ("network", "mobilnet", "there is no network 'mobilnet'; did you mean mobilenet"),
        ("network", '"mobilenet"', "there is no network"),
        ("network", "x" * 5000, "there is no network"),
        ("strategy", "gpu", "strategy must be one of auto, cpu, one-gpu, mirrored, multi-worker"),
        ("threads", "0", "threads must be from 1 to 1024; got 0"),
        ("cpu_devices", "2000", "cpu_devices must be from 1 to 1024; got 2000"),
        ("package_id", "../x", "package_id may hold up to 100 letters, digits"),
        ("package_id", ".x", "package_id may hold up to 100 letters, digits"),
        ("package_id", "", "package_id may hold up to 100 letters, digits"),
        ("package_id", "é", "package_id may hold up to 100 letters, digits"),
        ("restart", "true", "the job would begin again at every interruption"),
        ("epoch", "5", "'epoch' is not known; did you mean epochs? known are augment, batch_size"),
        ("batch-size", "5", "'batch-size' is not known; did you mean batch_size?"),
        ("zzz", "5", "'zzz' is not known; known are"),
        ("n" * 5000, "5", "is not known"),
    ],
)
def test_a_value_that_cannot_be_is_one_sentence(name: str, value: str, said: str) -> None:
    assert said in _refused({**LEAST, name: value})


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "one JSON object"),
        ("null", "one JSON object"),
        ({}, "network is missing"),
        ({"network": "mobilenet"}, "package_id is missing"),
        ({"network": "mobilenet", "task": "referable"}, "package_id is missing"),
        ({**LEAST, "epochs": 5}, "'epochs' must be a text, as SageMaker gives it; it is 5"),
        ({**LEAST, "epochs": None}, "'epochs' must be a text"),
        ({**LEAST, "epochs": ["5"] * 1000}, "'epochs' must be a text"),
        ('{"network": "vgg19", "network": "mobilenet"}', "network given twice"),
    ],
)
def test_a_file_that_is_no_object_of_texts_is_refused(document: Any, said: str) -> None:
    assert said in _refused(document)


def test_the_ordinal_loss_of_a_referral_model_is_refused_before_it_is_paid_for() -> None:
    document = {"network": "mobilenet", "task": "referable", "loss": "ordinal"}
    assert "neither the ordinal loss nor kappa" in _refused(document)


def test_no_field_of_a_plan_was_forgotten() -> None:
    known = _refused({**LEAST, "zzz": ""}).rpartition("known are ")[2].split(", ")
    assert {field.name for field in fields(TrainingPlan)} < set(known)
