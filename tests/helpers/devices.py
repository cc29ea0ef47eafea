"""A GPU that is not there: for tests under torch's FakeTensorMode, where tensors have shapes and devices alone."""

import sys

import torch
from torch import nn

from hypvision.geometry.lorentz import distances


def without_lists_of_pairs(monkeypatch):
    """Fake tensors have no numbers to give, so the one list of pairs that a GPU is waited for is empty.

    It is that of the pairs which the distances of HCFormer cannot tell from round-off
    (hypvision.geometry.lorentz.distances).
    """
    nonzero = torch.Tensor.nonzero

    def empty(self, as_tuple=False):
        if as_tuple and sys._getframe(1).f_code.co_filename == distances.__file__:
            return (self.new_empty(0, dtype=torch.long),) * self.dim()
        return nonzero(self, as_tuple=True) if as_tuple else nonzero(self)

    monkeypatch.setattr(torch.Tensor, "nonzero", empty)


def on_gpu(model: nn.Module) -> nn.Module:
    """Every parameter and buffer of a model on a GPU that is not there; inside FakeTensorMode."""
    moved = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for key, value in table.items():
                if value is not None and id(value) not in moved:
                    fake = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cuda")
                    moved[id(value)] = value, nn.Parameter(fake) if isinstance(value, nn.Parameter) else fake
                table[key] = None if value is None else moved[id(value)][1]
    return model
