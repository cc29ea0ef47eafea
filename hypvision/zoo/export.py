"""``hypvision export``: a model of the zoo for other runtimes, written only if it computes what PyTorch computes.

``onnx`` and ``torchexport`` (a ``.pt2`` of :func:`torch.export.save`) take any batch, and pictures whose sides are
multiples of 32, from that of the training upwards; ``torchscript`` takes any size. After the file has been written it
is read back and run on pictures of several sizes; if an output differs from eager PyTorch's by more than the tolerance,
there is no file.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.errors import HypvisionError, require
from hypvision.files import replacing
from hypvision.zoo.loading import load
from hypvision.zoo.records import Record
from hypvision.zoo.sources import find

__all__ = ["FORMATS", "SUFFIXES", "ExportReport", "export_model", "export_network"]

SUFFIXES = {"onnx": ".onnx", "torchexport": ".pt2", "torchscript": ".pt"}
FORMATS = tuple(SUFFIXES)
TOLERANCE = 1e-3  # of the largest output: float32 round-off of another order of operations
_UNIT = 32  # sides are multiples of it: the stride of the last stage, which windows are aligned to


class ExportReport(NamedTuple):
    """How an exported file compares with eager PyTorch.

    Attributes:
        shapes: of the inputs that were compared.
        difference: the largest one of an output, as a share of the largest output.
        dynamic: which dimensions are free, in words.
    """

    shapes: tuple[tuple[int, ...], ...]
    difference: float
    dynamic: str

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, shape)) for shape in self.shapes)
        return f"Equal to eager PyTorch up to {self.difference:.1e} of the largest output, on {shapes}. {self.dynamic}"


class _Enlarge(nn.Module):
    """mmseg's Upsample by a whole factor. Its own goes through a float, which the tracer takes for a constant."""

    def __init__(self, factor: int, mode: str, align_corners: bool | None):
        super().__init__()
        self.factor, self.mode, self.align_corners = factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = [side * self.factor for side in x.shape[-2:]]
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


class _Segmenter(nn.Module):
    """An mmseg model as a function of pictures: logits ``(B, classes, H, W)``."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.align_corners = model, model.align_corners
        for parent in list(model.modules()):
            for name, child in parent.named_children():
                factor = getattr(child, "scale_factor", None)
                if type(child).__name__ == "Upsample" and isinstance(factor, float) and factor.is_integer():
                    setattr(parent, name, _Enlarge(int(factor), child.mode, child.align_corners))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model.decode_head(self.model.extract_feat(x))
        return F.interpolate(logits, x.shape[2:], mode="bilinear", align_corners=self.align_corners)


def export_model(name: str, kind: str, path: str | Path, dynamic_size: bool = True) -> ExportReport:
    """Export weights of the zoo.

    Args:
        name: as for :func:`hypvision.load`. The network takes normalised pictures ``(B, C, H, W)`` and gives logits,
            for segmentation of the size of the pictures.
        kind: one of :data:`FORMATS`.
        path: the file to write.
        dynamic_size: free sides of the pictures; otherwise they are those of the training. The batch is free.

    Raises:
        HypvisionError: a detector or a CLIP, a missing package, a network that the format cannot express, or outputs
            that differ.
    """
    _, record = find(name)
    return export_network(_network(name, record), tuple(record.input["size"]), kind, path, dynamic_size)


def _network(name: str, record: Record) -> nn.Module:
    if record.task == "detection":
        raise HypvisionError(
            f"'{name}' is a detector, whose outputs are lists of boxes: export is for classification and segmentation."
        )
    if record.task == "zero-shot":
        raise HypvisionError(
            f"'{name}' is a CLIP, two networks whose outputs are compared: export is for classification and "
            "segmentation."
        )
    model = load(name)
    return _Segmenter(model).eval() if record.task == "segmentation" else model


def export_network(
    model: nn.Module, size: tuple[int, int, int], kind: str, path: str | Path, dynamic_size: bool = True
) -> ExportReport:
    """Export a network in eval mode; see :func:`export_model`.

    Args:
        model: takes ``(B, C, H, W)``, gives one tensor.
        size: channels, height and width of the training.
        kind, path, dynamic_size: as there.
    """
    if kind not in SUFFIXES:
        raise HypvisionError(f"There is no format '{kind}'. Known: {', '.join(FORMATS)}.")
    if dynamic_size and (size[1] % _UNIT or size[2] % _UNIT):
        raise HypvisionError(
            f"Free sizes are multiples of {_UNIT}, but the training's is {size[1]}x{size[2]}: use --fixed-size."
        )
    with replacing(path) as temporary, torch.no_grad(), _quiet():
        try:
            run = _WRITERS[kind](model, size, temporary, dynamic_size)
        except (HypvisionError, OSError):
            raise
        except Exception as error:  # the exporters raise whatever they stumble over
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            fixed = " Try --fixed-size." if dynamic_size else ""
            raise HypvisionError(f"The network cannot be exported as {kind}: {reason}.{fixed}") from error
        return _compare(model, run, size, dynamic_size, kind)


def _shapes(size: tuple[int, int, int], dynamic_size: bool) -> list[tuple[int, int, int, int]]:
    channels, height, width = size
    shapes = [(1, channels, height, width), (3, channels, height, width)]
    if dynamic_size:
        shapes += [(2, channels, height + _UNIT, width), (1, channels, 2 * height, width + 3 * _UNIT)]
    return shapes


def _compare(
    model: nn.Module, run: Callable[[Tensor], Tensor], size: tuple[int, int, int], dynamic_size: bool, kind: str
) -> ExportReport:
    generator = torch.Generator().manual_seed(0)
    worst, shapes = 0.0, _shapes(size, dynamic_size)
    for shape in shapes:
        x = torch.randn(shape, generator=generator)
        expected = model(x)
        try:
            got = run(x)
        except Exception as error:  # guards of the exported program, errors of the runtime
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise HypvisionError(
                f"The {kind} file does not run on {shape}: {reason}. It was not kept"
                + ("; try --fixed-size or another format." if dynamic_size else "; try another format.")
            ) from error
        if got.shape != expected.shape:
            raise HypvisionError(f"The exported network gives {tuple(got.shape)} instead of {tuple(expected.shape)}.")
        difference = ((got - expected).abs().max() / expected.abs().max().clamp_min(1e-12)).item()
        if not difference <= TOLERANCE:
            raise HypvisionError(
                f"The {kind} file computes something else than PyTorch: on {shape} an output differs by "
                f"{difference:.1e} of the largest one. It was not kept; try --fixed-size or another format."
            )
        worst = max(worst, difference)
    sizes = "Batch is free, sizes are fixed."
    if dynamic_size:
        sizes = f"Batch and size are free: sides are multiples of {_UNIT} from {size[1]}x{size[2]} upwards."
        if kind == "torchscript":
            sizes = "Batch and size are free."
    return ExportReport(tuple(shapes), worst, sizes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' pages of notes on their own work."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _program(model: nn.Module, size: tuple[int, int, int], dynamic_size: bool) -> torch.export.ExportedProgram:
    Dim = torch.export.Dim
    channels, height, width = size
    dynamic: dict[int, object] = {0: Dim("batch", min=1)}
    if dynamic_size:
        # Sides of another value than those below would need padding inside, and so another program.
        dynamic[2] = _UNIT * Dim("rows", min=height // _UNIT, max=4096)
        dynamic[3] = _UNIT * Dim("columns", min=width // _UNIT, max=4096)
        # An example of unequal, larger sides: the tracer takes 1 and equal sizes for constants.
        height, width = height + 2 * _UNIT, width + _UNIT
    return torch.export.export(model, (torch.randn(2, channels, height, width),), dynamic_shapes=(dynamic,))


def _write_torchexport(model: nn.Module, size: tuple, path: Path, dynamic_size: bool) -> Callable[[Tensor], Tensor]:
    torch.export.save(_program(model, size, dynamic_size), path)
    return torch.export.load(path).module()


def _write_torchscript(model: nn.Module, size: tuple, path: Path, dynamic_size: bool) -> Callable[[Tensor], Tensor]:
    if isinstance(model, _Segmenter):  # mmseg's code cannot be scripted, and the mixer's autograd functions not traced
        raise HypvisionError("Segmenters cannot be exported to TorchScript: take --format torchexport or onnx.")
    torch.jit.save(torch.jit.script(model), path)
    return torch.jit.load(path)


def _write_onnx(model: nn.Module, size: tuple, path: Path, dynamic_size: bool) -> Callable[[Tensor], Tensor]:
    for module in ("onnx", "onnxscript"):
        require(module, "export")
    onnxruntime = require("onnxruntime", "export")
    program = torch.onnx.export(
        _program(model, size, dynamic_size), input_names=["images"], output_names=["logits"], dynamo=True, verbose=False
    )
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


_WRITERS = {"onnx": _write_onnx, "torchexport": _write_torchexport, "torchscript": _write_torchscript}
