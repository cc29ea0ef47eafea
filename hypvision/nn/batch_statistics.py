"""What batch norms of every geometry share: the statistics of a batch in training, running ones in
evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hypvision.io.errors import ArgumentError


class HyperbolicBatchNorm(nn.Module):
    """The base of batch norms of points.

    It is no subclass of PyTorch's, because ``nn.SyncBatchNorm.convert_sync_batchnorm`` and others
    would replace it by Euclidean layers. So they pass it over; :func:`is_batch_norm` finds both.
    """

    momentum: float
    running_mean: Tensor
    running_var: Tensor

    def reset_running_stats(self) -> None:
        """Set the running mean to the origin and the running variance to 1."""
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def takes_statistics(self, points: int) -> bool:
        """Return whether the layer, in training, has points to normalise by. A single point, whose
        variance is only rounding noise, is an error, as in PyTorch."""
        if points == 1:
            raise ArgumentError(
                f"{type(self).__name__}: expected more than 1 point (value per channel) when "
                "training, got a single one. Take larger batches (DataLoader: drop_last=True "
                "leaves out a last batch of one image), or call .eval()."
            )
        return points > 0


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module normalises by statistics of its batch: PyTorch's batch norms, those
    of the hyperboloid and those of the ball."""
    return isinstance(module, (_BatchNorm, HyperbolicBatchNorm))


@torch.no_grad()
def update_bn(loader: Iterable[Any], model: nn.Module, device: Any = None) -> None:
    """Measure the running statistics of all batch norms of a model anew, as means over the batches
    of ``loader``. An average of weights needs it, because its statistics are those of the last
    weights.

    :func:`torch.optim.swa_utils.update_bn` does so for PyTorch's batch norms alone.

    Args:
        loader: batches of images, or tuples or lists whose first entry is one.
        model: the model; afterwards all of its modules have the mode that it had.
        device: the device to which the batches are moved.
    """
    norms: list[Any] = [part for part in model.modules() if is_batch_norm(part)]
    momenta = [part.momentum for part in norms]
    training = model.training
    for part in norms:
        part.reset_running_stats()
    model.train()
    try:
        for number, batch in enumerate(loader, 1):
            for part in norms:
                part.momentum = 1 / number  # the weight of a new value in a mean of so many
            images = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(images if device is None else images.to(device))
    finally:
        for part, momentum in zip(norms, momenta):
            part.momentum = momentum
        model.train(training)
