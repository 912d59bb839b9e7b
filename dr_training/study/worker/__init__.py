"""What one run of a study does, in the environment of its framework.

`python -m dr_training.study.worker SPEC.json OUT` trains once and writes `OUT/worker.json`.
The package needs NumPy and the framework of the run only, so that it works in an environment
that has nothing else of the project's requirements (MXNet needs a NumPy of its own).
"""
