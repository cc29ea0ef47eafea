"""One small network of every family that can be exported, at three sizes and in 8 bits, against
eager PyTorch."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import NamedTuple

import pytest
import torch
from helpers.families import FAMILIES
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear as Linear8

from hypvision.checkpoints.storage import pack, unpack
from hypvision.io.errors import HypvisionError
from hypvision.zoo.export import _difference, _several, export_network, part_of

ROUND_OFF = 2e-5  # of the largest output; measured: 5e-6 at most
LISTS = (
    5e-4  # of a whole detector, whose boxes are scaled by its own numbers; measured: 5e-5 at most
)
# Of the length of an output; twice what was measured, and less than wrong scales of the weights
# give. Only the backbone of a segmenter or detector has linear layers, and few.
EIGHT = {"stored": 0.08, "quantised": 0.25, "few": 1e-3}


class Case(NamedTuple):
    """A network, its height and width in training, and what the export command leaves free."""

    create: Callable[[], nn.Module]
    size: tuple[int, int]
    free: bool  # otherwise the file takes images of this size alone
    batches: tuple[int, ...] = (1, 4, 3)


def classifier(name):
    return part_of(FAMILIES[name].create(), "classification", "whole", ())[0]


def task(name, kind, part, size=()):
    from helpers.task_models import TASKS

    return part_of(TASKS[name].create(), kind, part, size)[0]


def tower(name):
    """The image tower of a CLIP, with its lift where it is hyperbolic."""
    from helpers import clip_models

    return part_of(getattr(clip_models, name)(), "zero-shot", "features", ())[0]


SCENES, LARGE = (
    (64, 96),
    (160, 192),
)  # torch.export fixes maps of one pixel, as RetinaNet's last of 128
FIXED = ("himapper-official",)  # its positions fix the size
CASES = {
    **{
        name: Case(partial(classifier, name), (family.side, family.side), name not in FIXED)
        for name, family in FAMILIES.items()
    },
    "clip": Case(partial(tower, "openai_clip"), (64, 64), False),
    "meru": Case(partial(tower, "meru"), (32, 32), False),
    "hyperclip": Case(partial(task, "hyperclip-image", "zero-shot", "features"), (64, 64), False),
    **{
        name: Case(partial(task, name, "retrieval", "whole"), (32, 32), True)
        for name in ("learner-poincare", "learner-lorentz", "learner-euclidean")
    },
    "learner-features": Case(
        partial(task, "learner-lorentz", "retrieval", "features"), (32, 32), True
    ),
    "segmenter": Case(partial(task, "segmenter", "segmentation", "whole"), SCENES, True),
    "segmenter-maps": Case(partial(task, "segmenter", "segmentation", "features"), SCENES, True),
    "detector-maps": Case(partial(task, "retinanet", "detection", "features"), LARGE, True),
    **{
        name: Case(partial(task, name, "detection", "whole", SCENES), SCENES, False, (1,))
        for name in ("retinanet", "fcos", "faster_rcnn", "mask_rcnn")
    },
}


def created(name):
    """The network of a case, or a skip where a package is missing."""
    for package in ("mmseg", "mmdet") if CASES[name].size in (SCENES, LARGE) else ("open_clip",):
        pytest.importorskip(package)
    torch.manual_seed(0)
    network = CASES[name].create().eval()
    with torch.no_grad():
        for key, value in network.named_parameters():
            if "layer_scale" in key:  # so small at first that no output shows what its block does
                value.fill_(0.5)
    return network


def images(case):
    """Batches at three sizes, of which none is one that the export compares, or at the only
    size."""
    height, width = case.size
    sizes = [case.size, (height + 64, width + 32), (2 * height, width + 128)]
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(batch, 3, *(size if case.free else case.size), generator=generator)
        for batch, size in zip(case.batches, sizes)
    ]


def reader(path, kind):
    """A file as a function of images."""
    if kind == "torchexport":
        return torch.export.load(path).module()
    session = pytest.importorskip("onnxruntime").InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    return lambda x: [torch.from_numpy(y) for y in session.run(None, {"images": x.numpy()})]


@pytest.mark.quick("torchexport-meru")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["onnx", "torchexport"])
def test_files_at_three_sizes(tmp_path, record_property, name, kind):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    case, network = CASES[name], created(name)
    lists = case.batches == (1,)
    report = export_network(network, (3, *case.size), kind, tmp_path / "m.pt2", case.free)
    said = f"Batch and size are free: sides are multiples of 32 from {case.size[0]}x"
    if not case.free:
        said = "One image of this size" if lists else "Batch is free, sizes are fixed"
    assert said in str(report)
    run, found = reader(tmp_path / "m.pt2", kind), []
    with torch.no_grad():
        for x in images(case):
            found.append(_difference(network, _several(run(x)), _several(network(x))))
        if not case.free:
            with pytest.raises(Exception, match="Guard failed|invalid dimensions"):
                run(torch.randn(1, 3, case.size[0] + 32, case.size[1] + 32))
    record_property("differences", found)
    assert max(found) < (LISTS if lists else ROUND_OFF)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["himapper-official", "clip", "hyperclip"])
def test_free_sizes_are_refused_where_the_network_takes_one(tmp_path, name):
    with pytest.raises(HypvisionError, match="--fixed-size"):
        export_network(created(name), (3, *CASES[name].size), "torchexport", tmp_path / "m", True)
    assert list(tmp_path.iterdir()) == []


def error(found, expected):
    """The largest error of an output, as a share of its length."""
    shares = [
        (y - z).norm() / z.norm() for y, z in zip(_several(found), _several(expected), strict=True)
    ]
    return float(torch.stack(shares).max())


def stored(network, factor):
    """The network from weights stored in 8 bits, with the scale of every second row multiplied by a
    factor."""
    scaled = pack(network.state_dict(), "int8")
    scales = [value for key, value in scaled.items() if key.endswith(".int8_scale")]
    assert scales
    for scale in scales:
        scale[::2] *= factor
    copy = deepcopy(network)
    copy.load_state_dict(unpack(scaled))
    return copy


def quantised(network, factor):
    """The network with linear layers that compute in 8 bits, the same; None if it has none."""
    copy = torch.ao.quantization.quantize_dynamic(deepcopy(network), {nn.Linear}, dtype=torch.qint8)
    layers = [layer for layer in copy.modules() if isinstance(layer, Linear8)]
    for layer in layers:
        weight, bias = layer._packed_params._weight_bias()
        numbers = (weight.int_repr(), factor * weight.q_scale(), weight.q_zero_point())
        layer.set_weight_bias(torch._make_per_tensor_quantized_tensor(*numbers), bias)
    return copy if layers else None


@pytest.mark.quick("stored-hcnn-plus", "stored-meru", "quantised-meru")
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.batches != (1,)])
@pytest.mark.parametrize("way", [stored, quantised], ids=lambda way: way.__name__)
def test_eight_bits_at_three_sizes(record_property, way, name):
    case, network = CASES[name], created(name)
    bound = EIGHT[way.__name__] if case.size[0] == case.size[1] or way is stored else EIGHT["few"]
    right, wrong = way(network, 1), way(network, 2)
    if right is None:
        pytest.skip("it has no linear layers")
    with torch.no_grad():
        for x in images(case):
            expected = network(x)
            found = error(right(x), expected)
            record_property("error", found)
            assert 0 < found < bound < error(wrong(x), expected)
