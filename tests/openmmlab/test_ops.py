"""The stand-in for mmcv's compiled operators against plain references, and Mask R-CNN from mmdet's
own config."""

import importlib.util
import inspect
import math
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from helpers.cases import each
from torch.nn.functional import conv2d

pytest.importorskip("mmcv")
import hypvision.openmmlab  # noqa: F401 - puts mmcv._ext in place before mmcv.ops asks for it
from hypvision.openmmlab import ops

if not ops.install():
    pytest.skip("a compiled mmcv is installed: its operators are in use", allow_module_level=True)

import mmcv.ops

DOUBLE = torch.float64


def random_boxes(count, size=60.0, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator, dtype=dtype) * size
    return torch.cat(
        [corner, corner + 1 + torch.rand(count, 2, generator=generator, dtype=dtype) * size / 2], 1
    )


def overlap(a, b, offset):
    width = max(min(a[2], b[2]) - max(a[0], b[0]) + offset, 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]) + offset, 0)
    area = [(x[2] - x[0] + offset) * (x[3] - x[1] + offset) for x in (a, b)]
    return width * height / (sum(area) - width * height)


def naive_nms(boxes, scores, iou_threshold, offset=0, score_threshold=0.0, max_num=-1):
    boxes, kept = boxes.tolist(), []
    for i in scores.argsort(descending=True).tolist():
        if score_threshold > 0 and scores[i] <= score_threshold:
            continue
        if all(overlap(boxes[i], boxes[j], offset) <= iou_threshold for j in kept):
            kept.append(i)
    return kept[:max_num] if max_num > 0 else kept


@each("offset", [0, 1])
@each("iou_threshold", [0.3, 0.6])
@each("score_threshold, max_num", [(0.0, -1), (0.4, -1), (0.2, 7)])
def test_nms(offset, iou_threshold, score_threshold, max_num):
    boxes, scores = random_boxes(80), torch.rand(80, generator=torch.Generator().manual_seed(1))
    dets, kept = mmcv.ops.nms(boxes, scores, iou_threshold, offset, score_threshold, max_num)
    expected = naive_nms(boxes, scores, iou_threshold, offset, score_threshold, max_num)
    assert kept.tolist() == expected
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[expected])


def test_nms_offset_decides_where_pixels_are_counted():
    # Overlap of 10 x 9 of 10 x 11 pixels if the last pixel counts (0.818), else 9 x 8 of 9 x 10
    # (0.8).
    boxes = torch.tensor([[0.0, 0, 9, 9], [0, 1, 9, 10]])
    scores = torch.tensor([0.9, 0.8])
    assert mmcv.ops.nms(boxes, scores, 0.81, offset=0)[1].tolist() == [0, 1]
    assert mmcv.ops.nms(boxes, scores, 0.81, offset=1)[1].tolist() == [0]


def test_nms_of_nothing_and_of_numpy():
    dets, kept = mmcv.ops.nms(torch.zeros(0, 4), torch.zeros(0), 0.5)
    assert dets.shape == (0, 5) and kept.shape == (0,)
    boxes, scores = random_boxes(9), torch.rand(9)
    _, kept = mmcv.ops.nms(boxes.numpy(), scores.numpy(), 0.5)
    assert kept.tolist() == naive_nms(boxes, scores, 0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nms_in_reduced_precision(dtype):
    boxes, scores = random_boxes(30).to(dtype), torch.linspace(0.1, 0.9, 30).to(dtype)
    assert mmcv.ops.nms(boxes, scores, 0.4)[1].tolist() == naive_nms(
        boxes.float(), scores.float(), 0.4
    )


@each("split_thr, class_agnostic", [(10000, False), (10, False), (10000, True)])
def test_batched_nms(split_thr, class_agnostic):
    boxes, scores = random_boxes(60), torch.rand(60, generator=torch.Generator().manual_seed(1))
    classes = torch.arange(60) % 3
    config = {"type": "nms", "iou_threshold": 0.4, "split_thr": split_thr, "max_num": 20}
    dets, kept = mmcv.ops.batched_nms(boxes, scores, classes, config, class_agnostic)
    if class_agnostic:
        expected = naive_nms(boxes, scores, 0.4)
    else:
        groups = [torch.where(classes == k)[0] for k in range(3)]
        expected = [group[naive_nms(boxes[group], scores[group], 0.4)] for group in groups]
        expected = torch.cat(expected).tolist()
        expected.sort(key=lambda i: -scores[i])
    assert kept.tolist() == expected[:20]
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[kept])


def naive_soft_nms(boxes, scores, iou_threshold, sigma, min_score, method, offset):
    boxes, left, found = boxes.tolist(), dict(enumerate(scores.tolist())), []
    while left:
        best = max(left, key=left.get)
        found.append((best, left.pop(best)))
        for i in list(left):
            iou = overlap(boxes[i], boxes[best], offset)
            if method == "gaussian":
                left[i] *= math.exp(-(iou**2) / sigma)
            elif iou >= iou_threshold:
                left[i] *= 1 - iou if method == "linear" else 0
            if left[i] < min_score:
                del left[i]
    return found


@each("method", ["naive", "linear", "gaussian"])
@each("offset", [0, 1])
def test_soft_nms(method, offset):
    boxes, scores = random_boxes(40), torch.rand(40, generator=torch.Generator().manual_seed(2))
    arguments = (0.3, 0.5, 0.05, method, offset)
    dets, kept = mmcv.ops.soft_nms(boxes, scores, *arguments)
    expected = naive_soft_nms(boxes, scores, *arguments)
    assert kept.tolist() == [number for number, _ in expected]
    torch.testing.assert_close(dets[:, :4], boxes[kept])
    torch.testing.assert_close(dets[:, 4], torch.tensor([score for _, score in expected]))


def test_soft_nms_of_nothing():
    dets, kept = mmcv.ops.soft_nms(torch.zeros(0, 4), torch.zeros(0))
    assert dets.shape == (0, 5) and kept.shape == (0,)


def bilinear(plane, y, x):
    """``plane`` ``(H, W)`` at a point; zero further than a pixel outside, its border values
    nearer."""
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return plane.new_zeros(())
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    upper = plane[top, left] * (1 - dx) + plane[top, right] * dx
    lower = plane[bottom, left] * (1 - dx) + plane[bottom, right] * dx
    return upper * (1 - dy) + lower * dy


def naive_roi_align(maps, rois, size, scale, sampling_ratio, aligned):
    rows = []
    for number, *corners in rois.tolist():
        x1, y1, x2, y2 = (corner * scale - (0.5 if aligned else 0) for corner in corners)
        width, height = x2 - x1, y2 - y1
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        step_y, step_x = height / size[0], width / size[1]
        ny, nx = sampling_ratio or math.ceil(step_y), sampling_ratio or math.ceil(step_x)
        for plane in maps[int(number)]:
            for i in range(size[0]):
                for j in range(size[1]):
                    samples = [
                        bilinear(
                            plane,
                            y1 + (i + (p + 0.5) / ny) * step_y,
                            x1 + (j + (q + 0.5) / nx) * step_x,
                        )
                        for p in range(ny)
                        for q in range(nx)
                    ]
                    rows.append(sum(samples) / len(samples) if samples else plane.new_zeros(()))
    return torch.stack(rows).view(len(rois), maps.shape[1], *size)


def maps_and_rois(dtype=DOUBLE):
    torch.manual_seed(0)
    maps = torch.randn(2, 2, 7, 9, dtype=dtype, requires_grad=True)
    boxes = torch.cat(
        [random_boxes(3, 20, dtype=dtype), torch.tensor([[-6.0, -3, 40, 30]], dtype=dtype)]
    )  # one outside
    return maps, torch.cat([torch.tensor([[0.0], [1], [1], [0]], dtype=dtype), boxes], 1)


@each("aligned", [True, False])
@each("sampling_ratio", [0, 2])
def test_roi_align_and_its_gradient(aligned, sampling_ratio):
    maps, rois = maps_and_rois()
    out = mmcv.ops.roi_align(maps, rois, (3, 2), 0.25, sampling_ratio, "avg", aligned)
    expected = naive_roi_align(maps, rois, (3, 2), 0.25, sampling_ratio, aligned)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, maps, direction)
    (expected_grad,) = torch.autograd.grad(expected, maps, direction)
    torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_roi_align_in_reduced_precision(dtype):
    maps, rois = maps_and_rois(torch.float32)
    maps_low, rois_low = maps.detach().to(dtype).requires_grad_(), rois.to(dtype)
    out = mmcv.ops.RoIAlign((3, 2), 0.25, 2)(maps_low, rois_low)
    expected = naive_roi_align(maps_low.detach().float(), rois_low.float(), (3, 2), 0.25, 2, True)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=1e-2)
    out.sum().backward()
    assert maps_low.grad.dtype == dtype and maps_low.grad.isfinite().all()


def test_roi_align_of_no_boxes():
    maps, _ = maps_and_rois()
    out = mmcv.ops.roi_align(maps, torch.zeros(0, 5, dtype=DOUBLE), 2)
    assert out.shape == (0, 2, 2, 2)
    out.sum().backward()
    assert (maps.grad == 0).all()


def test_roi_align_with_maxima_raises_an_error_with_the_remedy():
    maps, rois = maps_and_rois()
    with pytest.raises(NotImplementedError, match=r"pool_mode='avg'.*mmcv>=2\.1"):
        mmcv.ops.roi_align(maps, rois, 2, 1.0, 0, "max")


def naive_deform_conv(
    x, offset, mask, weight, bias, stride, padding, dilation, groups, deform_groups
):
    batch, channels, height, width = x.shape
    c_out, c_group, kh, kw = weight.shape
    h_out = (height + 2 * padding - dilation * (kh - 1) - 1) // stride + 1
    w_out = (width + 2 * padding - dilation * (kw - 1) - 1) // stride + 1
    padded = torch.nn.functional.pad(
        x, [2] * 4
    )  # a sample between the border and a zero pixel beyond
    columns = x.new_zeros(batch, channels, kh, kw, h_out, w_out)
    for b, c, i, j, p, q in (index.tolist() for index in columns.new_ones(columns.shape).nonzero()):
        tap = (c * deform_groups // channels) * kh * kw + i * kw + j
        y = p * stride - padding + i * dilation + offset[b, 2 * tap, p, q]
        x_ = q * stride - padding + j * dilation + offset[b, 2 * tap + 1, p, q]
        if not (-1 < y < height and -1 < x_ < width):
            continue
        top, left = int(y.detach().floor()), int(x_.detach().floor())
        dy, dx = y - top, x_ - left
        plane = padded[b, c, top + 2 : top + 4, left + 2 : left + 4]
        rows = torch.stack([1 - dy, dy])[:, None] * torch.stack([1 - dx, dx])[None]
        columns[b, c, i, j, p, q] = (plane * rows).sum() * (
            1 if mask is None else mask[b, tap, p, q]
        )
    columns = columns.permute(0, 4, 5, 1, 2, 3).reshape(batch * h_out * w_out, channels, kh, kw)
    out = conv2d(columns, weight, bias, groups=groups)
    return out.view(batch, h_out, w_out, c_out).permute(0, 3, 1, 2)


@pytest.mark.quick("2-2-2-2-2-True-True", "2-2-2-2-2-True-False", "2-2-2-2-2-False-False")
@pytest.mark.parametrize("modulated,with_bias", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(
    "stride,padding,dilation,groups,deform_groups", [(1, 1, 1, 1, 1), (2, 2, 2, 2, 2)]
)
def test_deformable_convolution_and_its_gradients(
    modulated, with_bias, stride, padding, dilation, groups, deform_groups
):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 5, 6, dtype=DOUBLE, requires_grad=True)
    weight = torch.randn(2, 4 // groups, 3, 2, dtype=DOUBLE, requires_grad=True)
    h_out = (5 + 2 * padding - dilation * 2 - 1) // stride + 1
    w_out = (6 + 2 * padding - dilation - 1) // stride + 1
    offset = (1.5 * torch.randn(2, deform_groups * 12, h_out, w_out, dtype=DOUBLE)).requires_grad_()
    mask = (
        torch.rand(2, deform_groups * 6, h_out, w_out, dtype=DOUBLE, requires_grad=True)
        if modulated
        else None
    )
    bias = torch.randn(2, dtype=DOUBLE, requires_grad=True) if with_bias else None
    geometry = (stride, padding, dilation, groups, deform_groups)
    if modulated:
        out = mmcv.ops.modulated_deform_conv2d(x, offset, mask, weight, bias, *geometry)
    else:
        out = mmcv.ops.deform_conv2d(x, offset, weight, *geometry)
    expected = naive_deform_conv(x, offset, mask, weight, bias, *geometry)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(out)
    inputs = [tensor for tensor in (x, offset, mask, weight, bias) if tensor is not None]
    grads = torch.autograd.grad(out, inputs, direction)
    for grad, expected_grad in zip(grads, torch.autograd.grad(expected, inputs, direction)):
        torch.testing.assert_close(grad, expected_grad)


@each("weighted", [False, True])
@each("reduction", ["mean", "sum"])
def test_sigmoid_focal_loss_and_its_gradient(weighted, reduction):
    torch.manual_seed(0)
    logits = (3 * torch.randn(7, 4, dtype=DOUBLE)).requires_grad_()
    target = torch.tensor([0, 1, 2, 3, 4, 4, 1])  # 4: background
    weight = torch.rand(4, dtype=DOUBLE) if weighted else None
    positive = torch.nn.functional.one_hot(target, 5)[:, :4].to(DOUBLE)
    p = logits.sigmoid()
    expected = (
        -0.3 * positive * (1 - p) ** 1.5 * p.log() - 0.7 * (1 - positive) * p**1.5 * (1 - p).log()
    )
    if weighted:
        expected = expected * torch.cat([weight, torch.ones(1, dtype=DOUBLE)])[target][:, None]
    expected = expected.sum() / (7 if reduction == "mean" else 1)
    loss = mmcv.ops.sigmoid_focal_loss(logits, target, 1.5, 0.3, weight, reduction)
    torch.testing.assert_close(loss, expected)
    (grad,), (expected_grad,) = (
        torch.autograd.grad(loss, logits),
        torch.autograd.grad(expected, logits),
    )
    torch.testing.assert_close(grad, expected_grad)


def test_sigmoid_focal_loss_of_extreme_logits_is_finite():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    loss = mmcv.ops.sigmoid_focal_loss(logits, torch.tensor([0, 0]))
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()


def test_roi_pool_and_its_gradient():
    maps, rois = maps_and_rois()
    out = mmcv.ops.roi_pool(maps, rois, (2, 3), 0.25)
    for k, (number, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (rounded(corner * 0.25) for corner in corners)
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i in range(2):
            for j in range(3):
                rows = slice(*(min(max(y1 + round_, 0), 7) for round_ in bin_of(i, height / 2)))
                columns = slice(*(min(max(x1 + round_, 0), 9) for round_ in bin_of(j, width / 3)))
                part = maps[int(number), :, rows, columns]
                expected = part.amax((1, 2)) if part.numel() else torch.zeros(2, dtype=DOUBLE)
                torch.testing.assert_close(out[k, :, i, j], expected)
    (grad,) = torch.autograd.grad(out.sum(), maps)
    assert grad.sum() == (out != 0).sum()  # each maximum gives one


def rounded(value):
    """Halves away from zero, as C does it."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def bin_of(number, step):
    return math.floor(number * step), math.ceil((number + 1) * step)


def naive_deformable_attention(value, shapes, places, weights):
    batch, queries, heads, levels, points, _ = places.shape
    rows = []
    for b in range(batch):
        for q in range(queries):
            for h in range(heads):
                total, start = 0, 0
                for level, (height, width) in enumerate(shapes):
                    plane = value[b, start : start + height * width, h].T.reshape(-1, height, width)
                    start += height * width
                    for p in range(points):
                        x, y = (
                            places[b, q, h, level, p] * torch.tensor([width, height]) - 0.5
                        ).unbind()
                        total = total + weights[b, q, h, level, p] * sampled(plane, y, x)
                rows.append(total)
    return torch.stack(rows).view(batch, queries, -1)


def sampled(planes, y, x):
    """Bilinear, zero outside: the four neighbours, each with what the others leave."""
    total = planes.new_zeros(len(planes))
    for row in (int(y.floor()), int(y.floor()) + 1):
        for column in (int(x.floor()), int(x.floor()) + 1):
            if 0 <= row < planes.shape[1] and 0 <= column < planes.shape[2]:
                total = total + planes[:, row, column] * (1 - (y - row).abs()) * (
                    1 - (x - column).abs()
                )
    return total


def test_deformable_attention_and_its_gradients():
    """The function that mmcv takes on GPUs; here on a CPU."""
    from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

    torch.manual_seed(0)
    shapes = [(3, 4), (2, 2)]
    value = torch.randn(2, 16, 2, 3, dtype=DOUBLE, requires_grad=True)
    places = (
        1.4 * torch.rand(2, 3, 2, 2, 2, 2, dtype=DOUBLE) - 0.2
    ).requires_grad_()  # some outside
    weights = torch.rand(2, 3, 2, 2, 2, dtype=DOUBLE, requires_grad=True)
    sizes, starts = torch.tensor(shapes), torch.tensor([0, 12])
    out = MultiScaleDeformableAttnFunction.apply(value, sizes, starts, places, weights, 64)
    expected = naive_deformable_attention(value, shapes, places, weights)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(out)
    found = torch.autograd.grad(out, (value, places, weights), direction)
    for grad, expected_grad in zip(
        found, torch.autograd.grad(expected, (value, places, weights), direction)
    ):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-4)


def test_configs_with_missing_operators_are_refused_before_they_are_built():
    from hypvision.engine.config import Run, prepare
    from hypvision.io.errors import HypvisionError

    for part, operator in (
        (dict(neck=dict(type="FPN_CARAFE")), "carafe"),
        (dict(roi_head=dict(mask_head=dict(upsample_cfg=dict(type="carafe")))), "carafe"),
        (dict(rpn_head=dict(type="mmdet.GARPNHead")), "masked_im2col"),
        (dict(heads=[dict(roi_layer=dict(type="RoIAlign", pool_mode="max"))]), "pool_mode='max'"),
    ):
        config = Run(dict(model=part, default_scope="mmdet"))
        with pytest.raises(
            HypvisionError,
            match=rf"model\..* of the config.*{operator}.*everywhere\.md.*mim install",
        ):
            prepare(config)


def operators_of(thing, seen):
    """The functions of the extension that a class or function of mmcv.ops calls, itself or through
    its module."""
    thing = getattr(
        thing, "__self__", thing
    )  # `apply` of an autograd function, which may be built in
    if thing in seen:
        return set()
    seen.add(thing)
    source, module = inspect.getsource(thing), sys.modules[thing.__module__]
    found = set(re.findall(r"ext_module\.(\w+)", source))
    for name in set(re.findall(r"\w+", source)) & set(vars(module)):
        other = getattr(vars(module)[name], "__self__", vars(module)[name])
        if getattr(other, "__module__", "").startswith("mmcv.ops") and (
            inspect.isclass(other) or inspect.isfunction(other)
        ):
            found |= operators_of(other, seen)
    return found


def test_operators_that_mmdet_and_mmseg_can_ask_for_are_answered_or_known_to_be_missing():
    names = set()
    for library in ("mmdet", "mmseg"):
        for path in Path(pytest.importorskip(library).__file__).parent.rglob("*.py"):
            for imported in re.findall(
                r"^from mmcv\.ops[.\w]* import \(?([\w, \n]+)", path.read_text(), re.MULTILINE
            ):
                names.update(re.findall(r"^ *(\w+)", imported.replace(",", "\n"), re.MULTILINE))
    names = {name for name in names if hasattr(mmcv.ops, name)}
    layers = {  # what mmdet builds a roi_layer of
        name
        for name, value in vars(mmcv.ops).items()
        if "RoI" in name
        and inspect.isclass(value)
        and "spatial_scale" in inspect.signature(value).parameters
    }
    assert len(names) > 10 and {"RoIAlign", "RoIPool", "DeformRoIPoolPack"} <= layers
    answered = {function.__name__ for function in ops.ANSWERED}
    for name in names | layers:
        lacking = operators_of(getattr(mmcv.ops, name), set()) - answered
        assert not lacking or any(
            operator.startswith(tuple(ops.MISSING)) for operator in lacking
        ), (name, lacking)
        if name in layers:
            assert bool(lacking) == bool(
                list(ops.missing_operators(dict(roi_layer=dict(type=name))))
            ), name


def test_predict_and_export_refuse_a_missing_operator_too(tmp_path):
    from mmengine.config import Config

    from hypvision.engine.predicting import trained_model
    from hypvision.io.errors import HypvisionError

    config = Config(
        dict(model=dict(type="FasterRCNN", neck=dict(type="FPN_CARAFE")), default_scope="mmdet")
    )
    with pytest.raises(HypvisionError, match=r"carafe.*everywhere\.md.*mim install"):
        trained_model(config, tmp_path / "weights.pth")


def test_other_operators_say_what_to_install():
    with pytest.raises(NotImplementedError, match=r"'bbox_overlaps'.*mim install 'mmcv>=2\.1"):
        mmcv.ops.bbox_overlaps(random_boxes(2), random_boxes(2))


def test_the_extension_looks_like_a_module():
    extension = sys.modules["mmcv._ext"]
    assert importlib.util.find_spec("mmcv._ext") is extension.__spec__ is not None
    assert ops.install() and sys.modules["mmcv._ext"] is extension
    assert not hasattr(
        extension, "__file__"
    )  # nothing that Python asks about itself is an operator
    assert "torchvision" in mmcv.ops.get_compiler_version()


def test_a_compiled_mmcv_is_left_alone(monkeypatch, tmp_path):
    (tmp_path / "mmcv").mkdir()
    (
        tmp_path / "mmcv" / "_ext.py"
    ).touch()  # a compiled one would be an .so; the finder takes either
    spec = ModuleSpec("mmcv", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "mmcv")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.delitem(sys.modules, "mmcv._ext")
    assert ops.has_compiled_mmcv() and not ops.install()
    assert "mmcv._ext" not in sys.modules


def test_mask_rcnn_from_mmdets_config():
    mmdet = pytest.importorskip("mmdet")
    from mmdet.registry import MODELS
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.config import Config
    from mmengine.registry import DefaultScope
    from mmengine.structures import InstanceData

    config = Config.fromfile(
        Path(mmdet.__file__).parent / ".mim/configs/_base_/models/mask-rcnn_r50_fpn.py"
    ).model
    config.backbone.update(depth=18, init_cfg=None)
    config.neck.update(in_channels=[64, 128, 256, 512], out_channels=16)
    config.rpn_head.update(in_channels=16, feat_channels=16)
    config.roi_head.bbox_roi_extractor.out_channels = (
        config.roi_head.mask_roi_extractor.out_channels
    ) = 16
    config.roi_head.bbox_head.update(in_channels=16, fc_out_channels=32, num_classes=3)
    config.roi_head.mask_head.update(in_channels=16, conv_out_channels=16, num_classes=3)
    config.test_cfg.rcnn.score_thr = 0.0
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope("mmdet"):
        model = MODELS.build(config)

    samples = []
    for _ in range(2):
        boxes = random_boxes(3, 40)
        masks = torch.zeros(3, 64, 96, dtype=torch.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist()):
            mask[y1:y2, x1:x2] = 1
        instances = InstanceData(
            bboxes=boxes, labels=torch.arange(3), masks=BitmapMasks(masks.numpy(), 64, 96)
        )
        shape = {
            "img_shape": (64, 96),
            "ori_shape": (64, 96),
            "pad_shape": (64, 96),
            "scale_factor": (1.0, 1.0),
        }
        samples.append(DetDataSample(metainfo=shape, gt_instances=instances))
    images = [torch.randint(0, 255, (3, 64, 96), dtype=torch.uint8) for _ in samples]
    batch = model.data_preprocessor({"inputs": images, "data_samples": samples}, training=True)
    losses = model(**batch, mode="loss")
    total, _ = model.parse_losses(losses)
    assert total.isfinite() and {"loss_mask", "loss_bbox", "loss_rpn_bbox"} <= losses.keys()
    total.backward()
    touched = [model.roi_head.mask_head.convs[0].conv.weight, model.neck.fpn_convs[0].conv.weight]
    assert all(weight.grad.isfinite().all() and weight.grad.abs().sum() > 0 for weight in touched)

    model.eval()
    with torch.no_grad():
        results = model(
            **model.data_preprocessor({"inputs": images, "data_samples": samples}), mode="predict"
        )
    found = results[0].pred_instances
    assert 0 < len(found) <= 100 and found.masks.shape == (len(found), 64, 96)
    for number in found.labels.unique():
        one_class = found[found.labels == number]
        assert len(naive_nms(one_class.bboxes, one_class.scores, 0.5)) == len(one_class)
