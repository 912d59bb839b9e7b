"""What all tests of this folder share that use TensorFlow in their own process."""

import pytest
import tensorflow as tf


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """TensorFlow takes its numbers of threads once, before it begins: here, for all files."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
