"""Where a run takes place: this machine, a machine over SSH, a SageMaker training job.

Each runner takes a specification and brings back the same `result.json`, whose training was
watched where it ran.
"""
