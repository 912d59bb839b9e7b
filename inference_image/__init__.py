"""The inference container: one FastAPI service for the SageMaker and Lambda contracts.

The folder is a Docker build context and an importable package at the same time, and it
imports nothing else of this project, so that what is tested is what is shipped.
"""
