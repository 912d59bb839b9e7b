"""Runs as SageMaker training jobs: one job per run, in the image that the study names.

The job's container starts this package's supervisor, which comes as an input channel; the
specification comes as hyper-parameters, and the result goes where every job's output goes, to
`model.tar.gz` in S3. What is billed is the job's own figure (`BillableTimeInSeconds`).

Sources: CreateTrainingJob and DescribeTrainingJob in
https://docs.aws.amazon.com/sagemaker/latest/APIReference/; folders of a training container in
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo.html.
"""

import hashlib
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dr_training.data.faults import DataError
from dr_training.study import supervise
from dr_training.study.runners.bundle import bundle
from dr_training.study.runners.runner import failed, python_key
from dr_training.study.supervise import LOG, MONITOR, RESULT, WORKER

_CHANNEL = "code"
_BUNDLE = "dr-study.tar.gz"
_MOST_S = 24 * 3600
_POLL_S = 20.0
_ENDED = ("Completed", "Failed", "Stopped")
# A hyper-parameter holds at most 2,500 characters; a specification is about 900.
_PIECE = 2000
_SCRIPT = (
    "set -e; cd /tmp; tar xzf /opt/ml/input/data/{channel}/{bundle}; "
    "python -m dr_training.study.sagemaker_job"
)


class SageMakerRunner:
    """Runs on `instance_type`; `settings` is [sagemaker] of the study.

    Args:
        session: a boto3 session; made from the environment when left out.
        wait: how to wait between looks at a job; `time.sleep` but in tests.
    """

    def __init__(
        self,
        *,
        instance_type: str,
        settings: Mapping[str, Any],
        session: Any = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        import boto3

        self._instance_type, self._settings, self._wait = instance_type, settings, wait
        session = session or boto3.Session()
        region = settings["region"]
        self._sagemaker = session.client("sagemaker", region_name=region)
        self._s3 = session.client("s3", region_name=region)

    def run(self, spec: dict[str, Any], out: Path) -> dict[str, Any]:
        """See `runner.Runner`. An interruption stops the job, which would be billed on."""
        out.mkdir(parents=True, exist_ok=True)
        if spec["data_dir"] is not None:
            raise DataError(
                "a SageMaker job cannot read --data-dir of this machine; leave it out, and the "
                "job draws the seeded stand-ins"
            )
        request = self.request(spec)
        self._s3.put_object(Bucket=self._settings["bucket"], Key=self._code_key(), Body=bundle())
        start = time.monotonic()
        self._sagemaker.create_training_job(**request)
        name = request["TrainingJobName"]
        try:
            job = self._until_ended(name)
        except BaseException:
            self._sagemaker.stop_training_job(TrainingJobName=name)
            raise
        result = self._result(job, spec, out, life_s=time.monotonic() - start)
        result["runner_s"] = time.monotonic() - start
        billable = job.get("BillableTimeInSeconds")
        if billable is not None:
            result["billable_s"] = billable
        return result

    def request(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The request that creates the job."""
        framework = python_key(spec)
        images = self._settings["images"]
        if framework not in images:
            raise DataError(f"[sagemaker.images] names no image for {framework!r}")
        text = json.dumps(spec, separators=(",", ":"))
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        bucket = self._settings["bucket"]
        script = _SCRIPT.format(channel=_CHANNEL, bundle=_BUNDLE)
        request: dict[str, Any] = {
            "TrainingJobName": _job_name(spec),
            "RoleArn": self._settings["role"],
            "AlgorithmSpecification": {
                "TrainingImage": images[framework],
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["bash", "-c", script],
            },
            "HyperParameters": {f"spec_{n:03d}": piece for n, piece in enumerate(pieces)},
            "InputDataConfig": [
                {
                    "ChannelName": _CHANNEL,
                    "DataSource": {
                        "S3DataSource": {
                            "S3DataType": "S3Prefix",
                            "S3Uri": f"s3://{bucket}/{self._code_key()}",
                            "S3DataDistributionType": "FullyReplicated",
                        }
                    },
                }
            ],
            "OutputDataConfig": {"S3OutputPath": f"s3://{bucket}/dr-study/output"},
            "ResourceConfig": {
                "InstanceType": self._instance_type,
                "InstanceCount": 1,
                "VolumeSizeInGB": self._settings["volume_gb"],
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": int(spec["time_limit_s"] or _MOST_S)},
            "EnableManagedSpotTraining": bool(self._settings["spot"]),
        }
        if self._settings["spot"]:
            limit = request["StoppingCondition"]["MaxRuntimeInSeconds"]
            request["StoppingCondition"]["MaxWaitTimeInSeconds"] = 2 * limit
        return request

    def _code_key(self) -> str:
        return f"dr-study/code/{hashlib.sha256(bundle()).hexdigest()[:16]}/{_BUNDLE}"

    def _until_ended(self, name: str) -> dict[str, Any]:
        while True:
            job: dict[str, Any] = self._sagemaker.describe_training_job(TrainingJobName=name)
            if job["TrainingJobStatus"] in _ENDED:
                return job
            self._wait(_POLL_S)

    def _result(
        self, job: dict[str, Any], spec: dict[str, Any], out: Path, *, life_s: float
    ) -> dict[str, Any]:
        """What the job brought back; a job without it has failed, with its own reason."""
        if job["TrainingJobStatus"] == "Completed":
            uri = job["ModelArtifacts"]["S3ModelArtifacts"]
            bucket, _, key = uri.removeprefix("s3://").partition("/")
            try:
                content = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
                with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                    for name in (RESULT, MONITOR, WORKER, LOG):
                        if name in archive.getnames() and (file := archive.extractfile(name)):
                            (out / name).write_bytes(file.read())
                result: dict[str, Any] = json.loads((out / RESULT).read_text())
            except (self._s3.exceptions.NoSuchKey, tarfile.TarError, OSError, ValueError):
                reason = f"the job {job['TrainingJobName']} left no result at {uri}"
                return failed(spec, supervise.ERROR, reason, life_s=life_s)
            return result
        said = job.get("FailureReason") or job.get("SecondaryStatus", "no reason given")
        status = supervise.ERROR
        # SageMaker's own words for an instance that ran out of memory.
        if re.search(r"out of memory|OutOfMemory|exit code:? 137", said, re.IGNORECASE):
            status = supervise.MEMORY
        elif job["TrainingJobStatus"] == "Stopped":
            runtime_over = job.get("SecondaryStatus") == "MaxRuntimeExceeded"
            status = supervise.TIME if runtime_over else supervise.INTERRUPTED
        return failed(spec, status, said, life_s=life_s)


def _job_name(spec: dict[str, Any]) -> str:
    """At most 63 letters, digits and dashes; a name cannot be used twice in an account."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{spec['study']}-{spec['run']}").strip("-")[:42]
    return f"{stem}-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}"
