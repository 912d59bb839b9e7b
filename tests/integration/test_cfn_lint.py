"""cfn-lint over every template: the whole matrix, and an app with every option."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.constructs_fixtures import built_app
from tests.integration.test_compliance import every_option

# The CDK writes both on purpose: a dependency on a role covers its policy, which no GetAtt does;
# and an output may hand on what another stack exports.
NOT_FAULTS = ("W3005", "W6001")


def test_every_template_is_clean(tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    whole = built_app(
        image="source-digest",
        **{"ttl-hours": "8", "budget-usd": "5", "budget-email": "a@example.org"},
    )
    for app in (whole, every_option(tmp_path / "options", keys=True)):
        for path in Path(app.synth().directory).glob("*.template.json"):
            shutil.copy(path, templates)
    files = sorted(str(path) for path in templates.iterdir())
    assert len(files) > 30
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "cfn-lint"),
            *("--regions", "us-east-1", "eu-west-1"),
            *("--ignore-checks", *NOT_FAULTS),
            *("--format", "parseable", "--template"),
            *files,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-1000:]
