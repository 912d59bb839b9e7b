"""What a SageMaker training job of a study runs: its specification under the supervisor.

    python -m dr_training.study.sagemaker_job

Standard library only. The specification is in the hyper-parameters, in pieces; the results go to
`/opt/ml/model`, which SageMaker brings to S3. A training that fails is a result as well: the
job itself then has not failed.
"""

import json
import sys
from pathlib import Path

from dr_training.study.supervise import supervise

_ML = Path("/opt/ml")


def main(root: Path = _ML) -> int:
    """Run the job below `root`."""
    parameters = json.loads((root / "input" / "config" / "hyperparameters.json").read_text())
    pieces = [parameters[name] for name in sorted(parameters) if name.startswith("spec_")]
    result = supervise(json.loads("".join(pieces)), root / "model")
    print(f"{result['status']} {result['reason']}".strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
