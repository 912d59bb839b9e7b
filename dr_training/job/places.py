"""Folders and files of a SageMaker job, as its container sees them.

    >>> ProcessingPlaces(Path("/opt/ml")).photographs
    PosixPath('/opt/ml/processing/input/photographs')

Sources: "How Amazon SageMaker AI Provides Training Information", "Use Checkpoints in Amazon
SageMaker AI" and "How Amazon SageMaker Processing Runs Your Processing Container Image" of the
SageMaker developer guide, read 2026-11-28.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingPlaces:
    """Of a training job below `root`, which is `/opt/ml` in a container."""

    root: Path

    @property
    def hyperparameters(self) -> Path:
        """JSON object of strings."""
        return self.root / "input" / "config" / "hyperparameters.json"

    @property
    def resource_config(self) -> Path:
        """JSON object with `hosts` and `current_host`."""
        return self.root / "input" / "config" / "resourceconfig.json"

    @property
    def records(self) -> Path:
        """The channel `records`: a folder that `dr data prepare` or the step `prepare` wrote."""
        return self.root / "input" / "data" / "records"

    @property
    def checkpoints(self) -> Path:
        """Is brought to S3 while the job runs, and back when it starts again; the host's own."""
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        """Becomes `model.tar.gz` when the job ends with exit code 0."""
        return self.root / "model"


@dataclass(frozen=True)
class ProcessingPlaces:
    """Of a processing job below `root`, which is `/opt/ml` in a container."""

    root: Path

    @property
    def input(self) -> Path:
        """Holds a folder per input."""
        return self.root / "processing" / "input"

    @property
    def output(self) -> Path:
        """Holds a folder per output."""
        return self.root / "processing" / "output"

    @property
    def photographs(self) -> Path:
        """Input of `prepare`: `table.csv` as `dr data table` writes it, and the files."""
        return self.input / "photographs"

    @property
    def records(self) -> Path:
        """Input of `gate`: the records that `prepare` wrote."""
        return self.input / "records"

    @property
    def model_archive(self) -> Path:
        """Input of `gate` and `pack`: the archive that SageMaker made of `train`'s results."""
        return self.input / "model" / "model.tar.gz"

    @property
    def verdict(self) -> Path:
        """Input of `pack`: what `gate` wrote."""
        return self.input / "gate" / "gate.json"

    @property
    def prepared(self) -> Path:
        """Output of `prepare`: a folder of records."""
        return self.output / "records"

    @property
    def judged(self) -> Path:
        """Output of `gate`: `gate.json`."""
        return self.output / "gate" / "gate.json"

    @property
    def models(self) -> Path:
        """Output of `pack`: `<id>/<sha256>.tar.gz`, as `dr model push` would publish it."""
        return self.output / "models"

    @property
    def packed(self) -> Path:
        """Output of `pack`: `pack.json` with id, sha256 and key."""
        return self.output / "packed" / "pack.json"
