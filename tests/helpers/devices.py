"""A GPU that is not there, for tests under torch's FakeTensorMode; and batches of any size, for
compilers."""

import torch
from torch import nn


def on_gpu(model: nn.Module) -> nn.Module:
    """Every parameter and buffer of a model on a GPU that is not there; inside FakeTensorMode."""
    moved = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for key, value in table.items():
                if value is not None and id(value) not in moved:
                    fake = torch.empty_strided(
                        value.size(), value.stride(), dtype=value.dtype, device="cuda"
                    )
                    moved[id(value)] = (
                        value,
                        nn.Parameter(fake) if isinstance(value, nn.Parameter) else fake,
                    )
                table[key] = None if value is None else moved[id(value)][1]
    return model


def any_batch(x: torch.Tensor) -> torch.Tensor:
    """The batch, which a compiled graph must take at any size: PyTorch raises an error if it binds
    the graph to one."""
    torch._dynamo.mark_dynamic(x, 0)
    return x
