"""Writes the baseline's model: the network of `dr_training.networks` with random weights and a
softmax, as a Keras file.

python -m benchmarks.serving.keras_model mobilenet out/mobilenet.keras
"""

import sys

import keras

from dr_training.networks import build_network

keras.utils.set_random_seed(0)
network = build_network(sys.argv[1], input_size_px=224)
probabilities = keras.layers.Softmax(name="probabilities")(network.output["logits"])
keras.Model(network.input, probabilities).save(sys.argv[2])
