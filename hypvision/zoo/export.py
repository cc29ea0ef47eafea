"""Export a trained model to other runtimes; the file is kept only if its outputs equal PyTorch's.

An exported file (``onnx``, or ``torchexport``: a ``.pt2`` of :func:`torch.export.save`) takes
batches of any size, and images whose sides are multiples of 32, from those of the training upwards.
It is read back and run on images of several sizes; if an output differs from that of eager PyTorch
by more than the tolerance, the file is removed.

The exported network is a whole classifier, segmenter or detector, or the part of any model before
its head. A whole detector takes one image of a fixed size (:mod:`~hypvision.zoo.export_detector`).
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch._dynamo
import torch.nn.functional as F
from timm.layers import padding
from torch import Tensor, nn

from hypvision.checkpoints.sources import find
from hypvision.clip.spaces import space_of
from hypvision.io import (
    HypvisionError,
    Plain,
    StrPath,
    Values,
    ensure,
    one_line,
    one_of,
    refuse,
    require,
)
from hypvision.io.files import many_objects, replacing

from .decompositions import decompose
from .export_clip import ImageTower, TextTower, geometry_of
from .export_detector import DetectorNetwork
from .loading import images_of, load, load_trained

SUFFIXES = {"onnx": ".onnx", "torchexport": ".pt2"}
FORMATS = tuple(SUFFIXES)
PARTS = ("whole", "features")
TOLERANCE = (
    # The tolerance is relative to the largest output; it allows for round-off of float32 when
    # operations run in another order.
    1e-3
)
HALF_TOLERANCE = 3e-2  # the same tolerance for float16 (11 bits) through all layers
_ABOUT = ("mean", "std", "crop_pct", "interpolation", "crop_mode", "classes", "geometry", "c")
_PIXELS = (0, 1)  # the range of colours that mean and std are given for, in files and in records
_AXES = ("batch", "channels", "height", "width")
# Sides must be multiples of the stride of the last stage, to which windows are aligned.
_UNIT = 32


class ExportReport(NamedTuple):
    """The comparison of an exported file with eager PyTorch.

    Attributes:
        shapes: shapes of the inputs that were compared.
        difference: the largest difference of an output, divided by the largest output.
        dynamic: a sentence that says which dimensions are free.
    """

    shapes: tuple[tuple[int, ...], ...]
    difference: float
    dynamic: str

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, shape)) for shape in self.shapes)
        return (
            f"Equal to eager PyTorch up to {self.difference:.1e} of the largest output, on "
            f"{shapes}. {self.dynamic}"
        )


class _Enlarge(nn.Module):
    """mmseg's Upsample by a whole factor; mmseg's own computes sizes as floats, which the tracer
    treats as constants."""

    def __init__(self, factor: int, mode: str, align_corners: bool | None):
        super().__init__()
        self.factor = factor
        self.mode = mode
        self.align_corners = align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = [side * self.factor for side in x.shape[-2:]]
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


class _Segmenter(nn.Module):
    """An mmseg model as a function of images ``(B, C, H, W)`` that returns logits ``(B, classes, H,
    W)``."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.align_corners = model.align_corners
        for parent in list(model.modules()):
            for name, child in parent.named_children():
                factor = getattr(child, "scale_factor", None)
                if (
                    type(child).__name__ == "Upsample"
                    and isinstance(factor, float)
                    and factor.is_integer()
                ):
                    setattr(parent, name, _Enlarge(int(factor), child.mode, child.align_corners))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model.decode_head(self.model.extract_feat(x))
        return F.interpolate(logits, x.shape[2:], mode="bilinear", align_corners=self.align_corners)


class _Maps(nn.Module):
    """Backbone and neck of an mmseg or mmdet model: returns maps ``(B, C_i, H_i, W_i)``, the finest
    first."""

    def __init__(self, model: Any):
        super().__init__()
        self.backbone = model.backbone
        self.neck = model.neck if model.with_neck else None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = self.backbone(x)
        return tuple(maps if self.neck is None else self.neck(maps))


class _Half(nn.Module):
    """A network that computes with 16 bits; its images and outputs have 32 bits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = copy.deepcopy(model).half()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.half() if x.is_floating_point() else x
        return tuple(y.float() for y in _several(self.model(x)))


def export_model(
    name: StrPath,
    format: str,
    path: StrPath,
    dynamic_size: bool = True,
    part: str = "whole",
    model: str | None = None,
    arguments: Values | None = None,
    size: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    half: bool = False,
) -> ExportReport:
    """Export weights of the zoo, or of a training, to a file.

    Args:
        name: name of the weights, as for :func:`hypvision.load`. The network takes normalised
            images ``(B, C, H, W)`` and returns logits, for segmentation in the size of the images.
        format: format of the file, one of :data:`FORMATS`.
        path: path of the file to write.
        dynamic_size: whether the sides of the images are free; otherwise they are those of the
            training. The batch is always free.
        part: ``"whole"``, or ``"features"``: for a classifier the pooled features ``(B, D)``, for a
            segmenter or detector the maps of backbone and neck, for a CLIP the image embeddings
            ``(B, D)``.
        model, arguments: timm's name and arguments of a classifier, if ``name`` is its checkpoint
            file; see :func:`hypvision.zoo.loading.load_trained`.
        size: side of the training's images, if ``name`` is a checkpoint file; default: ``img_size``
            in ``arguments``, or the model's own.
        tell: function that is called with the name of each step, as a step can take minutes.
        half: compute with 16 bits, which halves the file; images and outputs keep 32 bits.

    Raises:
        HypvisionError: the whole of a CLIP was asked for; a detector finds boxes in its own way; a
            package is missing; the format cannot express the network; the weights do not fit the
            model; or the outputs differ.
    """
    one_of(PARTS, part=part)
    if model is not None:
        classifier = load_trained(name, model, arguments)
        shape: tuple[int, ...] = images_of(classifier, arguments or {}, size)
        config = classifier.pretrained_cfg
        about = {**config, "classes": config.get("label_names")}
        network, output = part_of(classifier, "classification", part, shape[1:])
    else:
        known = f"The zoo knows the arguments and the size of '{name}'"
        advice = "leave them out, or name the model of a file."
        ensure(not arguments and size is None, f"{known}: {advice}")
        network, output, shape, about = _of_zoo(str(name), part, dynamic_size)
    return export_network(network, shape, format, path, dynamic_size, output, tell, about, half)


def _of_zoo(
    name: str, part: str, dynamic_size: bool
) -> tuple[nn.Module, str | tuple[str, ...], tuple[int, ...], Plain]:
    """Return the network for weights of the zoo, the names of its outputs, the shape of an image,
    and the description for the file."""
    _, record = find(name)
    zero_shot = record.task == "zero-shot"
    sides = "x".join(map(str, record.input.size[1:]))
    refuse(
        (
            zero_shot and part == "features" and dynamic_size,
            f"The image tower of '{name}' takes images of {sides} only: use --fixed-size.",
        ),
        (
            zero_shot and part == "whole",
            f"'{name}' is a CLIP, two networks whose outputs are compared. Add --part features for "
            "the image tower, and keep the embeddings of the class names, which do not change.",
        ),
    )
    model: Any = load(name)
    network, output = part_of(model, record.task, part, record.input.size[1:])
    about = {key: getattr(record.input, key) for key in _ABOUT[:5]} | {"classes": record.classes}
    if zero_shot:
        about |= geometry_of(space_of(model))
    return network, output, record.input.size, about


def part_of(
    model: Any, task: str, part: str, size: Sequence[int]
) -> tuple[nn.Module, str | tuple[str, ...]]:
    """Return the part of a model that is exported, and the names of its outputs in ONNX.

    Args:
        model: a timm model, a metric learner, or a model of mmseg, mmdet or open_clip.
        task: task of the model, as in a record of the zoo.
        part: ``"whole"`` or ``"features"``, see :func:`export_model`.
        size: height and width of the images, which a whole detector is fixed to.
    """
    if getattr(model, "open_vocabulary", False):
        raise HypvisionError(
            "An open-vocabulary model takes other words at any time, so it is not one network. "
            "Export the towers of a CLIP: hypvision export --clip NAME."
        )
    if task == "classification":
        if part == "features":
            model.reset_classifier(0)
        return model.eval(), "logits" if part == "whole" else part
    if task == "zero-shot":
        return ImageTower(model).eval(), "features"
    if task == "retrieval":
        return (model, "embeddings") if part == "whole" else (model.backbone, part)
    if part == "features":
        return _Maps(model).eval(), "map"
    if task == "detection":
        return DetectorNetwork(model, size).eval(), ("boxes", "scores", "labels", "masks")
    return _Segmenter(model).eval(), "logits"


def export_network(
    model: nn.Module,
    size: tuple[int, ...],
    format: str,
    path: StrPath,
    dynamic_size: bool = True,
    output: str | tuple[str, ...] = "logits",
    tell: Callable[[str], None] = lambda _: None,
    about: Values | None = None,
    half: bool = False,
) -> ExportReport:
    """Export a network in evaluation mode; see :func:`export_model`.

    Args:
        model: network that takes ``(B, C, H, W)`` and returns one tensor or several, each with the
            batch first; or a :class:`~hypvision.zoo.export_detector.DetectorNetwork`, whose batch
            is 1 and whose size is fixed; or a :class:`~hypvision.zoo.export_clip.TextTower`, which
            takes tokens ``(B, L)``.
        size: channels, height and width of the training's images; for a text tower the length of
            its texts.
        output: ONNX's name of the output; for several outputs their common name, to which numbers
            are added, or all names.
        format, path, dynamic_size, tell, half: as for :func:`export_model`.
        about: description of images and outputs for the file: ``mean``, ``std``, ``crop_pct``,
            ``interpolation``, ``crop_mode``, ``classes``, ``geometry``, ``c``; ``mean`` and ``std``
            are for colours from 0 to 1. The file holds it, with ``input_size`` and ``pixel_range``,
            as JSON in ONNX's metadata, or in ``hypvision.json`` of a ``torch.export`` file
            (``extra_files`` of :func:`torch.export.load`).
    """
    one_of(FORMATS, format=format)
    for module in _NEEDED[format]:
        require(module, "export")
    dynamic_size = dynamic_size and not isinstance(model, DetectorNetwork | TextTower)
    refuse(
        (
            dynamic_size and any(side % _UNIT for side in size[1:]),
            f"Free sizes are multiples of {_UNIT}, but the training's is {size}: use --fixed-size.",
        ),
        (
            half and isinstance(model, DetectorNetwork),
            "A whole detector compares its boxes with 32 bits: leave out --half, or export --part "
            "features.",
        ),
    )
    written = _description(size, about or {})
    with replacing(path) as temporary, torch.no_grad(), _quiet(), ExitStack() as folds:
        network = _Half(model) if half else model
        for folded in _folds(model, network):
            folds.enter_context(folded())
        # This raises an error before the long steps if the folder cannot be written.
        temporary.touch()
        with _explained(format, dynamic_size):
            count = sum(map(torch.numel, model.parameters()))
            tell(f"Tracing the network of {count:,} parameters")
            program = _program(network, size, dynamic_size, partial(_example, model))
            run = _WRITERS[format](program, temporary, output, tell, written)
        tolerance = HALF_TOLERANCE if half else TOLERANCE
        return _compare(model, run, size, dynamic_size, format, tell, tolerance)


@contextmanager
def _explained(format: str, dynamic_size: bool) -> Iterator[None]:
    try:
        yield
    except (HypvisionError, OSError):
        raise
    # Exporters raise errors of any type.
    except Exception as error:
        fixed = " Try --fixed-size." if dynamic_size else ""
        raise HypvisionError(
            f"The network cannot be exported as {format}: {one_line(error)}.{fixed}"
        ) from error


def _description(size: tuple[int, ...], about: Values) -> Plain:
    """Return the description that is stored in the file."""
    known = {key: value for key, value in about.items() if key in _ABOUT and value}
    pixels = {"pixel_range": _PIXELS} if "mean" in known else {}
    return {"input_size": size, **known, **pixels}


def _folds(*networks: nn.Module) -> list[Callable[[], Any]]:
    """Return the contexts in which layers compute with weights that are made once."""
    layers = {layer for network in networks for layer in network.modules()}
    found = [getattr(layer, "folded", None) for layer in layers]
    return [folded for folded in found if folded is not None]


def _example(
    model: nn.Module, shape: Sequence[int], generator: torch.Generator | None = None
) -> Tensor:
    """Return an input of this shape for a network: tokens for a text tower, else random numbers."""
    if isinstance(model, TextTower):
        return model.example(shape, generator)
    return torch.randn(tuple(shape), generator=generator)


def _shapes(model: nn.Module, size: tuple[int, ...], dynamic_size: bool) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(1, *size)]
    if isinstance(model, DetectorNetwork):
        return shapes
    shapes += [(3, *size)]
    if dynamic_size:
        channels, height, width = size
        shapes += [
            (2, channels, height + _UNIT, width),
            (1, channels, 2 * height, width + 3 * _UNIT),
        ]
    return shapes


def _compare(
    model: nn.Module, run: Callable[[Tensor], Any], size: tuple[int, ...], dynamic_size: bool,
    format: str, tell: Callable[[str], None], tolerance: float,
) -> ExportReport:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    shapes = _shapes(model, size, dynamic_size)
    other = "--fixed-size or another format" if dynamic_size else "another format"
    removed = f"It was removed; try {other}."
    for shape in shapes:
        tell(f"Comparing with PyTorch on {'x'.join(map(str, shape))}")
        x = _example(model, shape, generator)
        expected = _expected(model, x)
        try:
            got = _several(run(x))
        # The error may come from violated guards of the exported program or from the runtime.
        except Exception as error:
            raise HypvisionError(
                f"The {format} file does not run on {shape}: {one_line(error)}. {removed}"
            ) from error
        sizes = [[tuple(y.shape) for y in outputs] for outputs in (got, expected)]
        given, wanted = (", ".join(map(str, each)) for each in sizes)
        ensure(
            given == wanted,
            f"The exported network gives {given} instead of {wanted}. Try another format.",
        )
        difference = _difference(model, got, expected)
        if difference > tolerance:
            _check_repeats(model, x, expected)
            raise HypvisionError(
                f"The {format} file does not compute what PyTorch computes: on {shape} an output "
                f"differs by {difference:.1e} of the largest one. {removed}"
            )
        worst = max(worst, difference)
    free = f"sides are multiples of {_UNIT} from {'x'.join(map(str, size[1:]))} upwards."
    told = f"Batch and size are free: {free}" if dynamic_size else "Batch is free, sizes are fixed."
    if isinstance(model, DetectorNetwork):
        told = "One image of this size at a time; a score of 0 is an empty place."
    return ExportReport(tuple(shapes), worst, told)


def _expected(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the outputs of PyTorch for an input; raise an error if they are not finite."""
    outputs = _several(model(x))
    ensure(
        all(y.isfinite().all() for y in outputs),
        "The network itself gives NaN or infinite values, so no file can be compared with it: the "
        "training that gave its weights has diverged. Take an earlier checkpoint.",
    )
    return outputs


def _check_repeats(model: nn.Module, x: Tensor, expected: Sequence[Tensor]) -> None:
    ensure(
        not _difference(model, _several(model(x)), expected) > 0,
        "PyTorch itself gives another output at every call: the network draws random numbers in "
        "eval mode, which no file can repeat. Switch the random numbers off; for a Hi-Mapper: "
        "--model-args eval_noise=mean.",
    )


def _several(outputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def _difference(model: nn.Module, got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference of any output, divided by the largest number of that output;
    infinite for NaN."""
    if isinstance(model, DetectorNetwork):
        return model.difference(got, expected)
    shares = [(y - z).abs().max() / z.abs().max().clamp_min(1e-12) for y, z in zip(got, expected)]
    return torch.stack(shares).nan_to_num(nan=torch.inf, posinf=torch.inf).max().item()


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without the exporters' pages of notes on their own work, and without Python's search
    for cycles in their graphs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with many_objects(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _program(
    model: nn.Module,
    size: tuple[int, ...],
    dynamic_size: bool,
    example: Callable[[Sequence[int]], Tensor],
) -> torch.export.ExportedProgram:
    if isinstance(model, DetectorNetwork):
        return torch.export.export(model, (example((1, *size)),))
    Dim = torch.export.Dim
    dynamic: dict[int, object] = {0: Dim("batch", min=1)}
    if dynamic_size:
        channels, height, width = size
        # Other sides would need padding inside the network, which would be another program.
        dynamic[2] = _UNIT * Dim("rows", min=height // _UNIT, max=4096)
        dynamic[3] = _UNIT * Dim("columns", min=width // _UNIT, max=4096)
        # A tracer treats sizes of 1, and equal sizes, as constants, so the example has other sizes.
        size = (channels, height + 2 * _UNIT, width + _UNIT)
    with ExitStack() as quicker:
        # The tracer's cache takes longer to compare results of free sizes than to compute them
        # anew.
        if dynamic_size:
            quicker.enter_context(torch._dynamo.config.patch(fake_tensor_cache_enabled=False))
            quicker.enter_context(patch.object(padding, "get_same_padding", _even_padding))
        # A program without writes needs no second tracing for ONNX.
        for layer in model.modules():
            if getattr(layer, "inplace", False) is True:
                quicker.enter_context(patch.object(layer, "inplace", False))
        return torch.export.export(model, (example((2, *size)),), dynamic_shapes=(dynamic,))


def _even_padding(x: int, kernel_size: int, stride: int, dilation: int) -> int:
    """Return timm's "same" padding for sides that the stride divides, as it divides multiples of
    32, as a number. timm's formula for a free size grows with every layer, so that tracing would
    not end."""
    return max((kernel_size - 1) * dilation + 1 - stride, 0)


def _write_torchexport(
    exported: torch.export.ExportedProgram, path: Path, output: str | tuple[str, ...],
    tell: Callable[[str], None], about: Values,
) -> Callable[[Tensor], Any]:  # fmt: skip
    tell("Writing the file, reading it back")
    torch.export.save(exported, path, extra_files={"hypvision.json": json.dumps(about)})
    return torch.export.load(path).module()


def _write_onnx(
    exported: torch.export.ExportedProgram, path: Path, output: str | tuple[str, ...],
    tell: Callable[[str], None], about: Values,
) -> Callable[[Tensor], Any]:  # fmt: skip
    onnxruntime = require("onnxruntime", "export")
    tell("Translating it to ONNX")
    count = len(exported.graph_signature.user_outputs)
    if isinstance(output, tuple):
        names = list(output[:count])
    else:
        names = [output] if count == 1 else [f"{output}{i}" for i in range(count)]
    example: Any = exported.example_inputs
    # The exporter asks the program itself to replace the operations that ONNX lacks.
    vars(exported)["run_decompositions"] = lambda table=None: decompose(exported, table)
    kind = "images" if example[0][0].is_floating_point() else "tokens"
    program = torch.onnx.export(
        exported, input_names=[kind], output_names=names, dynamo=True, verbose=False, optimize=False
    )
    # The declared type may be None, but with dynamo=True it never is.
    assert program is not None
    tell(f"Simplifying its {len(program.model.graph):,} operations")
    _simplify(program.model)
    _describe(program.model, about)
    tell("Writing the file, reading it back")
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: [torch.from_numpy(y) for y in session.run(None, {name: x.numpy()})]


def _simplify(model: Any) -> None:
    """Compute the constant parts of an ONNX model and remove its unused parts, in place.

    One step of the exporter's own optimisation, rewriting by rules, is left out. It takes a quarter
    of the time of an export, and runtimes do it themselves when they load a file.
    """
    passes = require("onnx_ir.passes.common", "export")
    passes.InlinePass()(model)
    require("onnxscript.optimizer", "export").fold_constants(model)
    for step in (
        passes.RemoveUnusedNodesPass(), passes.RemoveUnusedFunctionsPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(), passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(), passes.OutputFixPass(), passes.NameFixPass(),
        # This pass removes the source location that every operation stores.
        passes.ClearMetadataAndDocStringPass(),
    ):  # fmt: skip
        step(model)


def _describe(model: Any, about: Values) -> None:
    """Write the description into an ONNX model, and name its free axes."""
    ir = require("onnx_ir", "export")
    model.metadata_props.update({key: json.dumps(value) for key, value in about.items()})
    (inputs,) = model.graph.inputs
    names = {
        str(size): name for size, name in zip(inputs.shape, _AXES) if not isinstance(size, int)
    }
    for value in (inputs, *model.graph.outputs):
        value.shape = ir.Shape(
            [s if isinstance(s, int) else names.get(str(s), str(s)) for s in value.shape]
        )


_NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torchexport": ()}
_WRITERS = {"onnx": _write_onnx, "torchexport": _write_torchexport}
