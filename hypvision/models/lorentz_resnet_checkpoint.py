"""Translation of checkpoints of kschwethelm/HyperbolicCV (classification) to those of Lorentz
ResNets, and back.

Official weights act on whole points: a convolution is a matrix ``(C' + 1, k * k * C + 1)`` over a
patch whose time comes first and whose space parts are ordered by position, then channel; its first
row is never used. Ours are blocks of that matrix. Every official module has a copy of
``manifold.k`` (``-<x, x>``); our weights have ``log c = -log k`` once, if it is not 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from hypvision.checkpoints.match import translated, unknown_name
from hypvision.checkpoints.read import network_weights
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import HypvisionError, Plain, Values

# Pairs of an official name and ours, see translated(). The first two belong to the stem of a
# Euclidean encoder.
_NAMES = [
    ("conv1.0.{rest}", "stem.conv.{rest}"),
    ("conv1.1.{rest}", "stem.norm.{rest}"),
    ("conv1.conv.0.{rest}", "stem.conv.{rest}"),
    ("conv1.conv.1.{rest}", "stem.norm.{rest}"),
]
_PARTS = {
    "conv.0": "conv1",
    "conv.1": "norm1",
    "conv.3": "conv2",
    "conv.4": "norm2",
    "conv.6": "conv3",
    "conv.7": "norm3",
    "shortcut.0": "downsample.conv",
    "shortcut.1": "downsample.norm",
}
for _stage in range(4):
    _NAMES += [
        (
            f"conv{_stage + 2}_x.{{n}}.{official}.{{rest}}",
            f"stages.{_stage}.blocks.{{n}}.{ours}.{{rest}}",
        )
        for official, ours in _PARTS.items()
    ]
_HEAD = {"head.weight": "decoder.z", "head.bias": "decoder.a"}
_DEPTHS = {"18": (2, 2, 2, 2), "50": (3, 4, 6, 3)}
_SHARED = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "beta", "gamma")


def is_official_hyperboliccv(state_dict: Weights) -> bool:
    """Return whether the names of a state dict are those of HyperbolicCV's ResNet classifiers."""
    return any(re.match(r"(encoder\.)?conv2_x\.0\.conv\.0\.", name) for name in state_dict)


def _curvatures(state_dict: Weights) -> list[Tensor]:
    """Return the ``k`` of the encoder, if it has one, and that of the head, as far as the
    checkpoint has them.

    Raises:
        HypvisionError: copies of one ``k`` differ.
    """
    encoder = r"(enc_manifold|encoder\.manifold|encoder\..*manifold|conv.*manifold|manifold)\.k"
    found = []
    for names in (encoder, r"(dec_manifold|(decoder|predictor)\.manifold)\.k"):
        copies = {name: value for name, value in state_dict.items() if re.fullmatch(names, name)}
        values = [value.detach().double().reshape(()) for value in copies.values()]
        for name, value in zip(copies, values):
            if value != values[0]:
                raise HypvisionError(
                    f"The checkpoint has {next(iter(copies))} = {values[0]:g}, but {name} = "
                    f"{value:g}: official networks have one curvature in the encoder and one in "
                    "the head. Take an intact copy."
                )
        found += values[:1]
    return found


def _kernel(layer: str, bottleneck: bool) -> int:
    if layer.endswith("downsample.conv"):
        return 1
    if layer == "stem.conv" or not bottleneck:
        return 3
    return 3 if layer.endswith("conv2") else 1


def hyperboliccv_from_official(state_dict: Weights) -> StateDict:
    """Return the state dict of :class:`hypvision.models.LorentzResNet` for that of an L-ResNet or
    EL-ResNet classifier."""
    if not any(re.fullmatch(r"(decoder|predictor)\.z", name) for name in state_dict):
        raise HypvisionError(
            "The checkpoint has no Lorentz head (decoder.z). Convert L-ResNet or EL-ResNet "
            "classifiers; for a Euclidean network use timm's own models."
        )
    bottleneck = any(".conv.6." in name for name in state_dict)
    out: StateDict = {}
    for name in state_dict:
        if name.endswith(("manifold.k", "linearized_kernel.scale")):
            continue
        found = _entries(state_dict, name, bottleneck)
        if not found:
            raise HypvisionError(unknown_name(name, "HyperbolicCV ResNet"))
        out |= found
    given = _curvatures(state_dict)
    if any(k != 1 for k in given):
        if "stem.conv.time_weight" in out:
            out["manifolds.0.log_c"] = -torch.log(given[0]).float()
        out["head_manifold.log_c"] = -torch.log(given[-1]).float()
    return out


def _entries(state_dict: Weights, name: str, bottleneck: bool) -> StateDict:
    """Return our entries of a state dict for an official one; an empty dict if it has no
    counterpart."""
    value = state_dict[name]
    head = re.fullmatch(r"(?:decoder|predictor)\.([az])", name)
    if head:
        return {{"a": "head.bias", "z": "head.weight"}[head[1]]: value}
    ours = translated(name.removeprefix("encoder."), _NAMES)
    if ours is None:
        return {}
    layer, _, entry = ours.partition(".linearized_kernel.")
    if not entry:
        layer, _, entry = ours.rpartition(".")
    if entry == "weight.weight":
        kernel = _kernel(layer, bottleneck)
        space = value[1:, 1:].unflatten(1, (kernel * kernel, -1)).transpose(1, 2)
        return {
            f"{layer}.weight": space.unflatten(2, (kernel, kernel)).clone(),
            f"{layer}.time_weight": value[1:, 0].clone(),
        }
    if entry == "weight.bias":
        return {f"{layer}.bias": value[1:].clone()}
    if entry not in _SHARED:
        return {}
    lorentz = entry == "running_mean" and name.replace("running_mean", "beta") in state_dict
    return {f"{layer}.{entry}": value[1:].clone() if lorentz else value}


def hyperboliccv_to_official(state_dict: Weights, curvature: float | None = None) -> StateDict:
    """Return the official state dict for one of ours, the inverse of
    :func:`hyperboliccv_from_official`, as the official code loads it strictly: the rows that are
    never used are 0, and every module has its copy of ``k``.

    Args:
        state_dict: the state dict of our model.
        curvature: the curvature of the model, which its weights contain only if it is learned;
            None: 1.
    Raises:
        HypvisionError: a name has no official counterpart, like those of the "+" components; the
            stages have several curvatures; or ``curvature`` is not positive, or is given although
            the weights hold learned ones.
    """
    learned = _learned(state_dict)
    _check_curvatures(learned, curvature)
    default = torch.tensor(math.log(1.0 if curvature is None else curvature))
    out: StateDict = {}
    lorentz = "stem.conv.time_weight" in state_dict
    names = _NAMES[2:] if lorentz else _NAMES
    for name, value in state_dict.items():
        if name in learned:
            continue
        if name in _HEAD:
            out[_HEAD[name]] = value
            continue
        found = translated(name, names, back=True)
        if found is None:
            raise HypvisionError(unknown_name(name, "exact Lorentz ResNet (conv='exact')"))
        out |= _official_entries(state_dict, name, f"encoder.{found}")
    if lorentz:
        k = torch.exp(-learned.get("manifolds.0.log_c", default))
        out |= {f"{module}.k": k for module in _manifolds(out)}
    k = torch.exp(-learned.get("head_manifold.log_c", default))
    out["dec_manifold.k"] = out["decoder.manifold.k"] = k
    return {name: value.clone() for name, value in out.items()}


def _learned(state_dict: Weights) -> StateDict:
    """Return the logarithms of learned curvatures among weights, by their names."""
    return {name: value for name, value in state_dict.items() if name.endswith("log_c")}


def _check_curvatures(learned: Weights, curvature: float | None) -> None:
    """Raise HypvisionError for curvatures that official weights cannot have, and for one that is
    given although the weights hold learned ones."""
    if curvature is not None and learned:
        raise HypvisionError(
            f"The curvature {curvature:g} was given, but the weights hold a learned one. Leave it "
            "out."
        )
    if curvature is not None and not 0 < curvature < math.inf:
        raise HypvisionError(f"The curvature {curvature:g} was given, but it must be positive.")
    inner = [value for name, value in learned.items() if name.startswith("manifolds.")]
    if any(not torch.equal(value, inner[0]) for value in inner):
        raise HypvisionError(
            "The stages have several curvatures (curvature_per_stage), but official networks have "
            "one curvature."
        )


def _official_entries(state_dict: Weights, name: str, official: str) -> StateDict:
    """Return the official entries for our entry ``name``, whose place in the official network is
    ``official``; a time weight has none of its own, because it is part of its layer's matrix."""
    value = state_dict[name]
    layer, _, entry = name.rpartition(".")
    place = official.removesuffix(f".{entry}")
    if f"{layer}.time_weight" in state_dict:
        if entry == "time_weight":
            return {}
        if entry == "bias":
            bias = torch.cat([value.new_zeros(1), value])
            return {f"{place}.linearized_kernel.weight.bias": bias}
        if entry == "weight":
            space = value.permute(0, 2, 3, 1).flatten(1)
            rows = torch.cat([state_dict[f"{layer}.time_weight"].unsqueeze(1), space], 1)
            matrix = torch.cat([torch.zeros_like(rows[:1]), rows])
            return {
                f"{place}.linearized_kernel.weight.weight": matrix,
                f"{place}.linearized_kernel.scale": value.new_tensor(2.3),
            }
    if entry not in _SHARED:
        raise HypvisionError(unknown_name(name, "exact Lorentz ResNet (conv='exact')"))
    if entry == "running_mean" and f"{layer}.beta" in state_dict:  # officially a point
        value = torch.cat([value.new_zeros(1), value])
    return {official: value}


def _manifolds(state_dict: Weights) -> Iterator[str]:
    """Yield the names under which the modules of an official Lorentz encoder, including activations
    and pooling, keep their manifold."""
    yield "enc_manifold"
    for module in ("encoder", "encoder.avg_pool", "encoder.conv1", "encoder.conv1.conv.2"):
        yield f"{module}.manifold"
    for name in state_dict:
        if name.endswith(".linearized_kernel.scale"):
            layer = name.removesuffix(".linearized_kernel.scale")
            yield from (f"{layer}.manifold", f"{layer}.linearized_kernel.manifold")
        elif name.endswith(".gamma"):
            yield f"{name.removesuffix('.gamma')}.manifold"
    for block in sorted(
        {
            match[0]
            for match in (re.match(r"encoder\.conv[2-5]_x\.\d+", n) for n in state_dict)
            if match
        }
    ):
        yield from (f"{block}.manifold", f"{block}.activation.manifold", f"{block}.conv.2.manifold")
        if f"{block}.conv.7.gamma" in state_dict:  # a bottleneck
            yield f"{block}.conv.5.manifold"


def hyperboliccv_variant(state_dict: Weights) -> tuple[str, Plain]:
    """Return the timm model to which converted weights belong.

    Returns:
        The name of the model, and the arguments of ``timm.create_model`` by which it differs from
        the default. The clipping radius of hybrid networks (``clip``: 1 for CIFAR, 4 for
        Tiny-ImageNet as published) is in no checkpoint.
    """
    stem = state_dict.get("stem.conv.weight")
    head = state_dict.get("head.weight")
    layers = _layers(state_dict)
    if stem is None or head is None or 0 in layers:
        raise HypvisionError(
            "The file holds only a part of a Lorentz ResNet: weights of its stem, of a stage or of "
            "its head are missing. Give a checkpoint of the whole model."
        )
    bottleneck = "stages.0.blocks.0.conv3.weight" in state_dict
    lorentz = "stem.conv.time_weight" in state_dict
    depth = "50" if bottleneck else "18"
    widths = tuple(state_dict[f"stages.{i}.blocks.0.conv1.weight"].shape[0] for i in range(4))
    usual = dict(num_classes=1000, in_chans=3, layers=_DEPTHS[depth], widths=(64, 128, 256, 512))
    given = dict(num_classes=head.shape[0], in_chans=stem.shape[1], layers=layers, widths=widths)
    arguments: Plain = {name: value for name, value in given.items() if value != usual[name]}
    if not lorentz:
        arguments.update(hyperbolic_stages=(), plus=False)
    arguments |= _learned_curvatures(state_dict)
    return f"{'hcnn' if lorentz else 'hecnn'}_resnet{depth}", arguments


def _layers(state_dict: Weights) -> tuple[int, ...]:
    """Return the number of blocks of each of the four stages."""
    numbers = [re.match(r"stages\.(\d)\.blocks\.(\d+)\.", name) for name in state_dict]
    blocks = {(int(match[1]), int(match[2])) for match in numbers if match}
    return tuple(sum(stage == i for stage, _ in blocks) for i in range(4))


def _learned_curvatures(state_dict: Weights) -> Plain:
    """Return the arguments of a model with the curvatures that the weights have learned; an empty
    dict if they have none."""
    names = ("manifolds.0.log_c", "head_manifold.log_c")
    learned = [round(torch.exp(state_dict[name]).item(), 6) for name in names if name in state_dict]
    if not learned:
        return {}
    found = dict(learn_curvature=True, curvature=learned[0])
    return found | (dict(head_curvature=learned[1]) if len(learned) == 2 else {})


def checkpoint_filter_fn(state_dict: Values, model: nn.Module) -> StateDict:
    """Return the weights in a checkpoint by the names of a
    :class:`~hypvision.models.LorentzResNet`.

    Accepts official checkpoints, those of ``hypvision train`` and the zoo's small files.

    Raises:
        HypvisionError: an official checkpoint has other curvatures than a model that does not learn
            them.
    """
    weights = network_weights(state_dict)
    if not is_official_hyperboliccv(weights):
        return weights
    converted = hyperboliccv_from_official(weights)
    network = cast(Any, model)
    if network.learn_curvature:
        return converted
    given = [1 / k.item() for k in _curvatures(weights)]
    if not given:
        return converted
    for name, own in network.curvatures().items():
        place, found = ("head", given[-1]) if name == "head_manifold" else ("encoder", given[0])
        if not math.isclose(own, found, rel_tol=1e-5):  # k is rounded to float32
            raise HypvisionError(
                f"The official checkpoint has curvature {found:g} (k = {1 / found:g}) in its "
                f"{place}, but the model has {own:g}. Create it with curvature={given[0]:g}, "
                f"head_curvature={given[-1]:g}."
            )
    return {name: value for name, value in converted.items() if not name.endswith("log_c")}
