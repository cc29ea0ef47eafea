"""The size and speed of a network: parameters, multiply-adds and activations of each module, and
images a second.

The counts contain the operations that dominate networks, as in published tables: convolutions,
linear and recurrent layers, other products of matrices, and attention. A multiply-add is two
floating-point operations. Sums, activation functions, normalisations and interpolation are left
out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import timm
import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.utils.flop_counter import FlopCounterMode

from hypvision.checkpoints.sources import find
from hypvision.io import HypvisionError, Plain, Values, explaining, one_line, refuse, refuse_weights
from hypvision.io.plugins import PLUGINS
from hypvision.zoo.loading import images_of, known_model, load, timm_model

from .predictors import means_config, means_record

if TYPE_CHECKING:
    from hypvision.clip.models import CLIPBundle

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.convolution, _ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm)


class Subject(NamedTuple):
    """A network to summarise, with an input.

    Attributes:
        network: the network, in evaluation mode.
        inputs: a batch of one input: ``(1, C, H, W)`` for images, ``(1, L)`` for texts.
        run: a function that calls the network on such a batch; None: the network itself.
        unit: what one input is: ``"image"`` or ``"text"``.
        about: a note on the network for the reader of the summary.
    """

    network: nn.Module
    inputs: Tensor
    run: Callable[[Tensor], Any] | None = None
    unit: str = "image"
    about: str = ""


class Row(NamedTuple):
    """The counts of a module of a network, with those of all modules inside it.

    Attributes:
        module: name of the module; empty for the whole network.
        kind: class of the module.
        parameters: number of parameters; one that is used twice counts once.
        multiply_adds: multiply-adds for one input.
        activations: number of outputs of its convolutions and products of matrices for one input;
            fused attention computes no such product.
    """

    module: str
    kind: str
    parameters: int
    multiply_adds: int
    activations: int


class Summary(NamedTuple):
    """The size, cost and speed of a network.

    Attributes:
        rows: the whole network, then its modules in their order.
        trained: number of parameters that a training would change.
        seconds: time of each measured call; empty if none was measured.
        batch: number of inputs in a measured call.
    """

    rows: list[Row]
    trained: int
    seconds: list[float]
    batch: int

    @property
    def rate(self) -> float | None:
        """Inputs a second, by the median time of the measured calls; None if none was measured."""
        return self.batch / statistics.median(self.seconds) if self.seconds else None


def subject_of(name: str, arguments: Values, size: int | None = None) -> Subject:
    """Return the network that a name means, with an input, as a :class:`Subject`.

    Args:
        name: name of a timm model or of a config, which then has random weights; or of trained
            weights: a record of the zoo, or a release.
        arguments: arguments of the constructor of a timm model.
        size: side of the images in pixels; None: that of the config's test data or of the weights,
            or else the model's own.
    """
    if means_config(name):
        if arguments:
            raise HypvisionError(
                "A config contains the arguments of its model: leave out --model-args."
            )
        build: Callable[..., Subject] = resolve_name(PLUGINS["subject of a config"])
        return build(name, size)
    refuse_weights(name, "Give the config of the training, or timm's name of the network.")
    if means_record(name):
        return _subject_of_record(name, arguments, size)
    known_model(name)
    with explaining(
        lambda error: f"The model '{name}' does not accept --model-args: {error}",
        TypeError,
        ValueError,
    ):
        network = timm_model(name, **_with_size(name, arguments, size)).eval()
    return Subject(network, torch.randn(1, *images_of(network, arguments, size)))


def _subject_of_record(name: str, arguments: Values, size: int | None) -> Subject:
    """Return the network of a record of the zoo, with its trained weights and an input."""
    record = find(name)[1]
    clip = record.task == "zero-shot"
    refuse(
        (
            arguments and record.task != "classification",
            f"'{name}' is a {record.task} model: leave out --model-args, which classifiers take.",
        ),
        (clip and size, f"The CLIP '{name}' takes images of one size: leave out --size."),
    )
    if clip:
        from hypvision.clip.models import create_clip
        from hypvision.clip.names import clip_options

        return subject_of_clip(create_clip(**clip_options(name)), "image")
    channels, *sides = record.input.size
    shape = (channels, *([size, size] if size else sides))
    if record.task in ("segmentation", "detection"):
        subject: Subject = resolve_name(PLUGINS[f"subject of {record.task}"])(load(name), shape)
        return subject
    return Subject(load(name, **arguments), torch.randn(1, *shape))


def _with_size(name: str, arguments: Values, size: int | None) -> Plain:
    """Return the arguments, with ``img_size`` added for a model that must be built for one size."""
    fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
    return {**({"img_size": size} if size and fixed else {}), **arguments}


def subject_of_clip(clip: CLIPBundle, part: str) -> Subject:
    """Return a tower of a CLIP, ``part`` ``"image"`` or ``"text"``; that of a hyperbolic CLIP
    includes the lift onto the manifold."""
    from hypvision.zoo.export_clip import TextTower, clip_tower

    tower, shape, _ = clip_tower(clip, part)
    if isinstance(tower, TextTower):
        return Subject(tower, tower.example((1, *shape), None), unit="text")
    return Subject(tower, torch.randn(1, *shape))


def summarise(
    subject: Subject,
    depth: int = 1,
    batch: int = 1,
    repeats: int = 5,
    tell: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Count the parameters and operations of a network, and measure its speed on its own device.

    Args:
        subject: the network and its input, on one device.
        depth: list modules with fewer than this many dots in their names: 1 for the parts of the
            network (or the parts of its only part), 0 for the whole network alone.
        batch: number of inputs in a measured call.
        repeats: number of measured calls, after one that is not measured; 0: none.
        tell: a function that gets the name of each step.
    """
    network = subject.network
    run = subject.run or network
    with torch.no_grad():
        tell("Counting")
        multiply_adds, activations = _counts(network, run, subject)
        many = subject.inputs.expand(batch, *subject.inputs.shape[1:]).contiguous()
        seconds = _seconds(run, many, repeats, tell)
    rows = []
    for name, module in network.named_modules():
        place = f"{type(network).__name__}.{name}".rstrip(".")
        work = _within(module, place, multiply_adds)
        size = _size(module.parameters())
        row = Row(name, type(module).__name__, size, work, _within(module, place, activations))
        rows.append(row)
    whole, *parts = rows
    parts = [part for part in parts if part.parameters or part.multiply_adds]
    # A wrapper has only one part, the network: then list the parts of the network.
    while depth > 0 and sum(part.module.count(".") < depth for part in parts) < min(2, len(parts)):
        depth += 1
    shown = [part for part in parts if part.module.count(".") < depth]
    trained = _size(value for value in network.parameters() if value.requires_grad)
    return Summary([whole, *shown], trained, seconds, batch)


def _size(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _counts(
    network: nn.Module, run: Callable[[Tensor], Any], subject: Subject
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the multiply-adds and the activations of each module, by its name in PyTorch's
    counter."""
    try:
        # The first call fills caches, such as embeddings of class names, whose cost arises once.
        run(subject.inputs)
        products = _counted(network, run, subject.inputs, _LACKING)
    except torch.OutOfMemoryError:
        raise  # the command line explains this error
    except (RuntimeError, AssertionError, ValueError) as error:
        size = " x ".join(map(str, subject.inputs.shape[1:]))
        raise HypvisionError(
            f"{type(network).__name__} takes no {subject.unit} of {size} ({one_line(error)}). "
            "Give another --size, or build the network for this one: timm's models often by "
            "--model-args img_size=N."
        ) from error
    elements = _counted(network, run, subject.inputs, dict.fromkeys(_PRODUCTS, _elements))
    return (
        {name: sum(found.values()) // 2 for name, found in products.items()},
        {name: sum(found.get(kind, 0) for kind in _PRODUCTS) for name, found in elements.items()},
    )


def _counted(
    network: nn.Module, run: Callable[[Tensor], Any], inputs: Tensor, formulas: dict[Any, Any]
) -> dict[str, dict[Any, int]]:
    """Return what PyTorch's FLOP counter counts in a call, by module and operation; ``formulas``
    replace the counter's own count of an operation, for example by its number of elements."""
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    fast = mha.get_fastpath_enabled()
    trained = [value for value in network.parameters() if value.requires_grad]
    try:
        # The fast path runs a transformer layer as one operation, which the counter ignores.
        mha.set_fastpath_enabled(False)
        # The counter would wait for gradients of parameters that are arguments of a module.
        for value in trained:
            value.requires_grad_(False)
        with counter:
            run(inputs)
    finally:
        mha.set_fastpath_enabled(fast)
        for value in trained:
            value.requires_grad_(True)
    return counter.get_flop_counts()


def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Return the floating-point operations of attention from the shapes of query ``(B, heads, L,
    E)``, key ``(B, heads, S, E)`` and value ``(B, heads, S, F)``."""
    return 2 * math.prod(query[:-1]) * value[-2] * (query[-1] + value[-1])


def _recurrent(inputs: Sequence[int], *weights: Any, **_: Any) -> int:
    """Return the floating-point operations of a recurrent layer from the shapes of its sequence
    ``(L, B, C)`` and of its weights."""
    given = weights[0] if isinstance(weights[0], list) else weights[:2]
    return 2 * math.prod(inputs[:2]) * sum(math.prod(shape) for shape in given if len(shape) == 2)


# Operations that PyTorch's counter lacks: the attention kernel for CPUs, and recurrent layers.
_LACKING = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN.mkldnn_rnn_layer: _recurrent,
    _ATEN._cudnn_rnn: _recurrent,
}


def _elements(*_: Any, out_shape: Sequence[int], **__: Any) -> int:
    return math.prod(out_shape)


def _within(module: nn.Module, place: str, counts: Mapping[str, int]) -> int:
    """Return a module's count; for a module that is never called itself, such as a list, the sum of
    its children's counts."""
    if place in counts:
        return counts[place]
    return sum(_within(child, f"{place}.{name}", counts) for name, child in module.named_children())


def _seconds(
    run: Callable[[Tensor], Any], inputs: Tensor, repeats: int, tell: Callable[[str], None]
) -> list[float]:
    if not repeats:
        return []
    tell("Measuring")
    synchronise = partial(torch.cuda.synchronize, inputs.device) if inputs.is_cuda else int
    found = []
    for _ in range(repeats + 1):
        synchronise()
        begin = time.perf_counter()
        run(inputs)
        synchronise()
        found.append(time.perf_counter() - begin)
    return found[1:]
