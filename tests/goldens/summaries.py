"""Numbers that do not depend on the machine, summaries of tensors, and the file that holds them.

Weights and inputs come from NumPy's ``RandomState``, whose stream NumPy has frozen. :func:`fill`
numbers the entries of a state dict within each shape, in their order, and seeds with shape and
number: names may change, as may the order of entries of different shapes. Entries of one shape must
keep their order.
"""

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import internals
import numpy as np
import torch
from torch import Tensor, nn

FILE = Path(__file__).with_name("goldens.npz")
SAMPLES = 32


def numbers(seed: str, *shape: int) -> Tensor:
    """Uniform numbers of variance 1, float32."""
    state = np.random.RandomState(zlib.crc32(seed.encode()))
    values = 12**0.5 * (np.asarray(state.random_sample(shape)) - 0.5)
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def images(count: int = 2, size: int = 64, channels: int = 3) -> Tensor:
    """Waves of different lengths with a little noise, about normalised."""
    row, column = torch.meshgrid(
        torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij"
    )
    waves = [
        torch.sin((3 + 2 * n + c) * row * (1 + n) + (5 - c) * column + n)
        + torch.cos((4 + n) * column * row * (c + 2))
        for n in range(count)
        for c in range(channels)
    ]
    noise = numbers("images", count, channels, size, size)
    return torch.stack(waves).view(count, channels, size, size) + 0.3 * noise


@torch.no_grad()
def fill(module: nn.Module) -> nn.Module:
    """Give all parameters and running statistics values that depend on neither the random state nor
    the names.

    Matrices and kernels get noise of the size ``1 / sqrt(fan in)``, at least 0.02. Vectors and
    scalars that start constant (norms, curvatures, temperatures, layer scales) keep that value plus
    noise of the size 0.1; those that start at random, biases of PyTorch's layers among them, are
    such noise. Points are put back on their manifold.
    """
    parameters, seen, count = {id(p) for p in module.parameters()}, set(), Counter()
    layers = [
        m
        for m in module.modules()
        if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d))
    ]
    biases = {id(layer.bias) for layer in layers if layer.bias is not None}
    for name, value in module.state_dict(keep_vars=True).items():
        running = name.endswith(("running_mean", "running_var"))
        if (
            not value.is_floating_point()
            or id(value) in seen
            or not (running or id(value) in parameters)
        ):
            continue
        seen.add(id(value))
        shape = tuple(value.shape)
        noise = numbers(f"{shape} {count[shape]}", *shape)
        count[shape] += 1
        if name.endswith("running_var"):
            value.mul_(1 + 0.3 * noise)
        elif value.numel() > max(shape, default=1):
            value.copy_(noise * max(0.02, (value.numel() / shape[0]) ** -0.5))
        elif id(value) not in biases and (value == value.flatten()[0]).all():
            value.add_(0.1 * noise)
        else:
            value.copy_(0.1 * noise)
    for _, parameter, manifold in internals.named_manifold_parameters(module):
        parameter.copy_(manifold.projx(parameter))
    return module


def gradients(parameters: list[Tensor], count: int = 5) -> dict[str, Any]:
    """The norm of all gradients together, and those of ``count`` of the parameters, by their place.

    What is rounding noise (the gradient of a bias before a batch norm, say) is given as 0.
    """
    found = [(i, p.grad) for i, p in enumerate(parameters) if p.grad is not None]
    total = torch.stack([grad.double().norm() for _, grad in found]).norm()
    places = np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int)
    chosen = [found[k] for k in places]
    out = {f"grad.{k}": grad * (grad.norm() > 1e-5 * total) for k, (_, grad) in enumerate(chosen)}
    return {"grad.norm": total, "grad.count": len(found), **out}


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Tensors and texts in nested containers, with dotted names; numbers become tensors, None is
    left out."""
    if value is None:
        return {}
    if isinstance(value, Mapping) or hasattr(value, "_asdict"):
        parts = (value if isinstance(value, Mapping) else value._asdict()).items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        return {name: value if isinstance(value, str) else torch.as_tensor(value)}
    return {
        k: v
        for key, part in parts
        for k, v in flatten(part, f"{name}.{key}" if name else str(key)).items()
    }


def summary(value: Tensor | str) -> Any:
    """A text as it is; of a tensor its shape, its mean, standard deviation and norm, and evenly
    spaced values of it."""
    if isinstance(value, str):
        return value
    flat = value.detach().double().flatten().numpy()
    if not np.isfinite(flat).all():
        raise ValueError(f"{int((~np.isfinite(flat)).sum())} of {flat.size} values are not finite.")
    places = np.linspace(0, max(flat.size - 1, 0), min(SAMPLES, flat.size)).round().astype(int)
    statistics = [flat.mean(), flat.std(), np.linalg.norm(flat)] if flat.size else [0.0] * 3
    exact = not value.is_floating_point()
    samples = [] if exact else flat[places]
    return dict(
        shape=list(value.shape), exact=exact, numbers=np.array([*statistics, *samples],
        dtype=np.float32)
    )  # fmt: skip


def difference(old: Any, new: Any) -> float:
    """The largest relative difference of two summaries; infinite where shapes or texts differ.

    A value's difference is seen relative to its own size plus the root mean square of the tensor.
    Of integers (labels, places) only the mean counts, as one of them may be another where two
    scores are about equal.
    """
    if isinstance(old, str) or isinstance(new, str):
        return 0.0 if old == new else float("inf")
    if old["shape"] != new["shape"] or old["exact"] != new["exact"]:
        return float("inf")
    size = int(np.prod(old["shape"]))
    a, b = old["numbers"].astype(np.float64), new["numbers"].astype(np.float64)
    typical = a[2] / max(size, 1) ** 0.5
    scale = np.abs(a) + typical + 1e-12
    scale[2] = a[2] + 1e-12
    apart = np.abs(a - b) / scale
    return float(0.01 * apart[0] if old["exact"] else apart.max())


def write(
    goldens: Mapping[str, Mapping[str, Any]], about: Mapping[str, str], path: Path = FILE
) -> None:
    """Write summaries, by case and by name."""
    index, values = {}, []
    for case, outputs in goldens.items():
        index[case] = {}
        for name, golden in outputs.items():
            text = isinstance(golden, str)
            index[case][name] = (
                golden if text else [golden["shape"], golden["exact"], len(golden["numbers"])]
            )
            if not text:
                values.append(golden["numbers"])
    head = json.dumps(dict(about=about, index=index)).encode()
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(
            file, head=np.frombuffer(head, dtype=np.uint8), values=np.concatenate(values)
        )
    temporary.replace(path)


def read(path: Path = FILE) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What :func:`write` wrote."""
    with np.load(path) as file:
        head, values = json.loads(file["head"].tobytes()), file["values"]
    place, goldens = 0, {}
    for case, outputs in head["index"].items():
        goldens[case] = {}
        for name, entry in outputs.items():
            if isinstance(entry, str):
                goldens[case][name] = entry
                continue
            shape, exact, count = entry
            goldens[case][name] = dict(
                shape=shape, exact=exact, numbers=values[place : place + count]
            )
            place += count
    return goldens, head["about"]
