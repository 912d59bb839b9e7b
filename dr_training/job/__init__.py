"""Steps of a training on SageMaker: prepare, train, gate and pack, each run by one job."""
