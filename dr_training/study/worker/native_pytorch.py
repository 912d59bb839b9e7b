"""PyTorch itself: modules, autograd, `torch.optim.SGD`."""

from typing import Any

import numpy as np
import torch

from dr_training.study.worker.networks import CONVOLUTIONS_OF_BLOCK, Network, channels_first
from dr_training.study.worker.trainers import UnavailableError


class _PyTorch:
    def __init__(self, model: Any, device: Any, learning_rate: float, momentum: float) -> None:
        self._model, self._device = model.to(device), device
        self._optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
        self._loss = torch.nn.CrossEntropyLoss()

    def train(self, pixels: Any, labels: Any) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(
            self._model(self._tensor(pixels)), torch.from_numpy(labels).to(self._device)
        )
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def predict(self, pixels: Any) -> Any:
        with torch.inference_mode():
            return self._model(self._tensor(pixels)).cpu().numpy()

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "numpy": np.__version__}

    def _tensor(self, pixels: Any) -> Any:
        first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        return torch.from_numpy(first).to(self._device)


def make(
    network: Network,
    weights: list[tuple[Any, Any]],
    *,
    device: str,
    threads: int,
    learning_rate: float,
    momentum: float,
) -> _PyTorch:
    """See `trainers.make_trainer`."""
    torch.set_num_threads(threads)
    if device == "gpu" and not torch.cuda.is_available():
        raise UnavailableError(f"torch {torch.__version__} sees no CUDA GPU")
    layers: list[Any] = []
    for number, (kind, inputs, outputs) in enumerate(network.layers()):
        if kind == "convolution":
            layers += [torch.nn.Conv2d(inputs, outputs, 3, padding="same"), torch.nn.ReLU()]
            if number % CONVOLUTIONS_OF_BLOCK == CONVOLUTIONS_OF_BLOCK - 1:
                layers.append(torch.nn.MaxPool2d(2))
            continue
        if kind != network.layers()[number - 1][0]:
            layers.append(torch.nn.Flatten())
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    with torch.no_grad():
        values = [value for pair in channels_first(network, weights) for value in pair]
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(torch.from_numpy(value))
    where = torch.device("cuda" if device == "gpu" else "cpu")
    return _PyTorch(model, where, learning_rate, momentum)
