"""One template per row, as it was last looked at.

What changes with every build or training is masked, so that a new model or a new line of the
service rewrites nothing here. After a change that is meant:

    .venv/bin/python -m pytest tests/snapshot --snapshot-update
"""

import json
import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from stacks.matrix import MATRIX
from tests.constructs_fixtures import matrix_templates, new_stack, template_of
from tests.training_fixtures import a_pipeline

_MASKS = (
    # Digests of packages and sources.
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    # Logical ids that end in a hash of what the resource says.
    (re.compile(r"\b(Endpoint(?:Model|Config)[0-9A-F]{8})[0-9a-f]{8}\b"), r"\1<content>"),
    # The role, and its policy, whose path holds a hash of what it may read.
    (
        re.compile(r"\bEndpointRole[0-9a-f]{8}(DefaultPolicy)?[0-9A-F]{8}\b"),
        r"EndpointRole<content>\1",
    ),
    # A function's version is named by all that the function says.
    (
        re.compile(r"\b(EndpointFunctionCurrentVersion[0-9A-F]{8})[0-9a-f]{32}\b"),
        r"\1<content>",
    ),
)


def masked(template: dict[str, Any]) -> Any:
    text = json.dumps(template)
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return json.loads(text)


@pytest.mark.parametrize("name", ["dr-shared", *(row.stack_id for row in MATRIX)])
def test_template(name: str, snapshot: SnapshotAssertion) -> None:
    one_file_a_row = snapshot.use_extension(JSONSnapshotExtension)
    assert masked(matrix_templates()[name]) == one_file_a_row


def test_training_pipeline(snapshot: SnapshotAssertion) -> None:
    stack = new_stack()
    a_pipeline(stack, runs_bucket=None, training_instance_count=2)
    one_file = snapshot.use_extension(JSONSnapshotExtension)
    assert masked(template_of(stack)) == one_file


def test_masks_hide_digests_and_nothing_else() -> None:
    text = json.dumps(masked(matrix_templates()["dr-serverless-mobilenet-2048"]))
    assert "models/mobilenet-demo/<digest>.tar.gz" in text
    assert '"Fn::GetAtt": ["EndpointRole<content>", "Arn"]' in text
    assert "<content>" in text
    assert not re.search(r"[0-9a-f]{64}", text)
    assert '"MemorySizeInMB": 2048' in text
