"""Heads of hyperbolic pixels, against the ball in float64 and numbers of the published code."""

import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.cases import each
from helpers.configs import data, shrink  # noqa: F401 - a fixture
from references import segmentation as reference

pytest.importorskip("mmseg")
pytest.importorskip("hypvision.openmmlab")  # before mmseg: gives mmcv its operations
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.datasets import BaseSegDataset
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from hypvision.engine.run import train
from hypvision.geometry import Lorentz, PoincareBall, named_manifold_parameters
from hypvision.io.errors import HypvisionError
from hypvision.losses.class_tree import ClassTree
from hypvision.openmmlab.hyperbolic_head import LONGEST, LorentzPixelLogits, PixelLogits
from hypvision.openmmlab.sample_checks import CheckSamplesHook

NAMES = ("cat", "dog", "fish", "car", "train")
TOY = {"organism": {"mammal": ["cat", "dog"], "fish": []}, "vehicle": ["car", "train"]}


def published(name, *shape):
    """Numbers that the comparison with the official code was made with."""
    numbers = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    return torch.from_numpy(numbers.standard_normal(shape).astype(np.float32))


def planes(c=1.0, dim=5, count=9, learn=False, clamp=None):
    return PixelLogits(dim, count, PoincareBall(c, learnable=learn), clamp)


def test_losses_of_the_published_code():
    layer = planes()
    layer.offsets.data = 0.05 * published("offsets", 9, 5)
    layer.normals.data = 0.05 * published("normals", 9, 5)
    pixels = 0.5 * published("pixels", 2, 3, 4, 5)
    logits = layer(pixels.movedim(-1, 1)).reshape(24, 9)
    flat = ClassTree([str(i) for i in range(9)])(logits)
    assert -flat[range(24), torch.arange(24) % 9].mean().item() == pytest.approx(2.26897, abs=1e-5)
    tree = ClassTree(NAMES, TOY)(logits[:, :8])
    assert -tree[range(24), torch.arange(24) % 5].mean().item() == pytest.approx(1.72946, abs=1e-5)


@each("c", [0.1, 1.0, 2.0])
@each("length", [1e-6, 0.3, 2.0, 3.0, 50.0, 1e10])
@each("offset", [0.0, 0.6, 0.99])
def test_logits_are_those_of_the_ball(c, length, offset):
    """Near, far, and beyond the longest point."""
    torch.manual_seed(0)
    layer = planes(c)
    u = torch.randn(4, 5, 3, 3)
    u = length / c**0.5 * u / u.norm(dim=1, keepdim=True)
    points = torch.randn(9, 5)
    layer.offsets.data = offset / c**0.5 * points / points.norm(dim=-1, keepdim=True)
    found = layer(u)
    rows = u.movedim(1, -1).reshape(-1, 5).double()
    expected = reference.logits(rows, layer.offsets.double(), layer.normals.double(), c)
    torch.testing.assert_close(found.reshape(-1, 9).double(), expected, rtol=2e-4, atol=1e-5)


@each("c", [0.1, 1.0, 2.0])
@each("length", [1e-6, 0.3, 2.0, 5.0, 1e10])
@each("offset", [0.0, 0.6, 0.99])
def test_the_official_clamp_cuts_the_moved_point(c, length, offset):
    """Where the sheet says it acts, far from the offset, it changes most logits, and gradients."""
    torch.manual_seed(0)
    layer = planes(c, clamp="official")
    u = torch.randn(4, 5, 3, 3)
    u = (length / c**0.5 * u / u.norm(dim=1, keepdim=True)).requires_grad_()
    points = torch.randn(9, 5)
    layer.offsets.data = offset / c**0.5 * points / points.norm(dim=-1, keepdim=True)
    found = layer(u).reshape(-1, 9).double()
    wide = [x.detach().double().requires_grad_() for x in (u, layer.offsets, layer.normals)]
    rows = wide[0].movedim(1, -1).reshape(-1, 5)
    expected = reference.logits(rows, *wide[1:], c, 0.999)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-5)
    changed = (expected - reference.logits(rows, *wide[1:], c)).abs() > 1e-3
    if offset == 0 or length < 1:
        assert not changed.any()
    if offset == 0.6 and length == 5:
        assert changed.double().mean() > 0.8
        assert found.abs().max() <= 15.21 / c**0.5 * layer.normals.norm(dim=-1).max()
    if 0.1 < length < 10 and (offset or length < 3):  # else all points are where the cut begins
        found.sum().backward()
        expected.sum().backward()
        for one, other in zip((u, layer.offsets, layer.normals), wide):
            limit = 1e-3 * float(other.grad.abs().max()) + 1e-6
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=0, atol=limit)


@each("c", [0.1, 1.0, 2.0])
@each("length", [1e-6, 0.6, 4.0, 6.0, 1e10])
def test_logits_on_the_hyperboloid_are_those_of_the_ball(c, length):
    """The ball's hyperplane through the point at the distance a along the normal z, of half the
    normal, for half the tangent vector."""
    torch.manual_seed(0)
    layer = LorentzPixelLogits(5, 9, Lorentz(c))
    layer.planes.a.data = torch.linspace(-2, 2, 9) / c**0.5
    u = torch.randn(4, 5, 3, 3)
    u = (length / c**0.5 * u / u.norm(dim=1, keepdim=True)).requires_grad_()
    found = layer(u).reshape(-1, 9).double()
    wide = [x.detach().double().requires_grad_() for x in (u, layer.planes.a, layer.planes.z)]
    normals = wide[2] / wide[2].norm(dim=-1, keepdim=True)
    offsets = normals * ((c**0.5 / 2 * wide[1]).tanh() / c**0.5)[:, None]
    rows = wide[0].movedim(1, -1).reshape(-1, 5) / 2
    expected = reference.logits(rows, offsets, wide[2] / 2, c)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip((u, layer.planes.a, layer.planes.z), wide):
        limit = 1e-3 * float(other.grad.abs().max()) + 1e-6
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=0, atol=limit)
    at = layer.manifold.expmap0(u[..., 0, 0].detach() / max(length, 1))
    distance = layer.manifold.dist0(at)
    torch.testing.assert_close(layer.radius(u)[:, 0, 0, 0] / max(length, 1), distance)


def test_official_arrays_go_in_and_out():
    numbers = {
        "offsets": 0.2 * published("offsets", 12, 5).numpy(),
        "normals": published("normals", 12, 5).numpy(),
        "curvature": np.float32(0.7),
    }
    rows = [0, 1, 3, 4, 5, 8, 9, 10, 11]  # the labels 2, 6 and 7 are those of no image
    layer = planes(learn=True)
    layer.load_published(numbers, rows)
    u = published("pixels", 4, 5, 1, 1)
    wide = (torch.from_numpy(numbers[name][rows]).double() for name in ("offsets", "normals"))
    expected = reference.logits(u[..., 0, 0].double(), *wide, 0.7)
    torch.testing.assert_close(layer(u)[:, 0, 0].double(), expected, rtol=2e-4, atol=1e-5)
    again = planes(0.7)
    kept = layer.published()
    again.load_published(kept)
    offsets = kept["offsets"].copy()
    again.offsets.data.zero_()
    np.testing.assert_array_equal(kept["offsets"], offsets)  # a copy, not the parameters
    again.load_published(kept)
    assert planes(0.7).bfloat16().published()["normals"].dtype == np.float32
    for name, value in layer.published().items():
        np.testing.assert_allclose(again.published()[name], value, rtol=1e-6)
    for changed, message in (
        ({}, r"offsets.*\(12, 5\).*needs \(9, 5\).*'rows'"),
        ({"normals": None}, "'normals' is missing"),
        ({"curvature": 30.0}, "curvature of the arrays is 30, .* from 0.1 to 10"),
        ({"offsets": 9 * numbers["offsets"]}, "outside of the ball"),
    ):
        wrong = {key: value for key, value in (numbers | changed).items() if value is not None}
        with pytest.raises(HypvisionError, match=message):
            planes(learn=True).load_published(wrong, rows if changed else None)
    with pytest.raises(HypvisionError, match="Set c=0.7"):
        planes(1.0).load_published(numbers, rows)


def test_gradients_are_those_of_the_ball():
    torch.manual_seed(0)
    layer = planes(0.7, learn=True)
    layer.offsets.data = 0.2 * torch.randn(9, 5)
    u = torch.randn(2, 5, 3, 3).requires_grad_()
    weights = torch.randn(18, 9)
    (layer(u).reshape(18, 9) * weights).sum().backward()
    wide = [
        value.detach().double().requires_grad_()
        for value in (u, layer.offsets, layer.normals, layer.manifold.c)
    ]
    rows = wide[0].movedim(1, -1).reshape(18, 5)
    (reference.logits(rows, *wide[1:]) * weights.double()).sum().backward()
    for found, expected in zip((u, layer.offsets, layer.normals), wide):
        torch.testing.assert_close(found.grad.double(), expected.grad, rtol=1e-4, atol=1e-5)
    of_log = wide[3].grad * wide[3]
    torch.testing.assert_close(
        layer.manifold.log_c.grad.double().sum(), of_log.sum(), rtol=1e-4, atol=1e-4
    )


def test_beyond_the_longest_point_logits_and_gradients_stay_finite():
    layer = planes()
    u = torch.full((1, 5, 1, 2), 1e18, requires_grad=True)
    layer(u).sum().backward()
    assert u.grad.isfinite().all() and layer.normals.grad.isfinite().all()
    zero = torch.zeros(1, 5, 1, 1, requires_grad=True)
    layer(zero).sum().backward()
    assert zero.grad.isfinite().all() and zero.grad.abs().max() > 0
    assert pytest.approx(3.8002, abs=1e-4) == LONGEST


def head(kind="FCNHead", **options):
    init_default_scope("mmseg")
    several = {
        "FCNHead": dict(in_channels=6, num_convs=1),
        "FPNHead": dict(in_channels=[6, 6], in_index=[0, 1], feature_strides=[4, 8]),
        "ASPPHead": dict(
            in_channels=6, in_index=1, dilations=(1, 2), c1_in_channels=6, c1_channels=4
        ),
        "SegformerHead": dict(in_channels=[6, 6], in_index=[0, 1]),
        "UPerHead": dict(in_channels=[6, 6], in_index=[0, 1], pool_scales=(1, 2)),
    }
    settings = dict(channels=8, num_classes=5, norm_cfg=dict(type="BN"), **several[kind])
    torch.manual_seed(0)
    return MODELS.build(dict(type=f"Hyperbolic{kind}", **settings, **options))


MAPS = (torch.randn(2, 6, 8, 8), torch.randn(2, 6, 4, 4))


@each("kind", ["FCNHead", "FPNHead", "ASPPHead", "SegformerHead", "UPerHead"])
def test_every_head_gives_log_probabilities_and_learns(kind):
    model = head(kind, dim=3, tree=TOY, classes=NAMES)
    maps = MAPS if kind != "FCNHead" else MAPS[:1]
    out = model(maps)
    torch.testing.assert_close(out.exp().sum(1), torch.ones_like(out[:, 0]))
    assert [name for name, _, _ in named_manifold_parameters(model)] == ["conv_seg.logits.offsets"]
    loss = model.loss_by_feat(out, samples())["loss_ce"]
    loss.backward()
    assert model.conv_seg.logits.offsets.grad.abs().max() > 0
    model.init_weights()


def samples():
    labels = torch.arange(5).repeat(52)[:256].reshape(1, 16, 16)
    labels[:, :2] = 255
    return [SegDataSample(gt_sem_seg=PixelData(data=labels)) for _ in range(2)]


def test_the_loss_at_the_features_takes_the_nearest_labels():
    model = head(dim=3, loss_at="feature")
    out = model(MAPS[:1])
    labels = samples()[0].gt_sem_seg.data[0, ::2, ::2].expand(2, 8, 8)
    picked = out.movedim(1, -1)[labels != 255]
    expected = -picked[range(len(picked)), labels[labels != 255]].sum() / labels.numel()
    torch.testing.assert_close(model.loss_by_feat(out, samples())["loss_ce"], expected)


def test_unseen_classes_are_not_trained_and_alone_predicted():
    model = head(dim=3, tree=TOY, classes=NAMES, unseen=["dog", "train"])
    plain = head(dim=3, tree=TOY, classes=NAMES)
    plain.load_state_dict(model.state_dict())
    out = model(MAPS[:1])
    without = samples()
    for sample in without:
        labels = sample.gt_sem_seg.data
        sample.gt_sem_seg.data = torch.where((labels == 1) | (labels == 4), 255, labels)
    found = model.loss_by_feat(out, samples())["loss_ce"]
    torch.testing.assert_close(found, plain.loss_by_feat(out, without)["loss_ce"])
    assert found.item() != pytest.approx(plain.loss_by_feat(out, samples())["loss_ce"].item())
    about = [dict(img_shape=(16, 16), pad_shape=(16, 16))] * 2
    chosen = model.predict_by_feat(out, about)
    every = plain.predict_by_feat(out, about)
    expected = torch.tensor([1, 4])[every[:, [1, 4]].argmax(1)]
    assert chosen.argmax(1).equal(expected) and not every.argmax(1).equal(expected)
    with pytest.raises(HypvisionError, match="unseen.*bird"):
        head(dim=3, tree=TOY, classes=NAMES, unseen=["bird"])


def test_the_euclidean_counterpart_and_autocast():
    for geometry in ("euclidean", "poincare", "lorentz"):
        model = head(dim=2, geometry=geometry, tree=TOY, classes=NAMES)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(MAPS[:1])
        assert out.dtype == torch.float32
        model.loss_by_feat(out, samples())["loss_ce"].backward()
        assert all(value.grad is not None for value in model.conv_seg.logits.parameters())
    with pytest.raises(HypvisionError, match="clamp='official'"):
        head(geometry="lorentz", clamp="official")
    assert not list(named_manifold_parameters(head(geometry="euclidean")))


def test_a_tree_needs_the_classes():
    with pytest.raises(HypvisionError, match="needs 'classes', the 5 names"):
        head(tree=TOY)
    with pytest.raises(HypvisionError, match="got 2"):
        head(classes=("a", "b"))


def test_the_classes_of_the_data_have_the_order_of_the_tree():
    model = torch.nn.Module()
    model.decode_head = head(tree=TOY, classes=NAMES)
    about = dict(classes=NAMES[::-1])
    samples_of = BaseSegDataset(metainfo=about, lazy_init=True, pipeline=[])
    with pytest.raises(HypvisionError, match="class tree of the HyperbolicFCNHead is for .*cat"):
        CheckSamplesHook().check(SimpleNamespace(model=model), samples_of)


def segmentor(mode="whole", **options):
    init_default_scope("mmseg")
    slide = dict(crop_size=(32, 32), stride=(16, 16)) if mode == "slide" else {}
    backbone = dict(type="TimmBackbone", model_name="resnet10t", out_indices=(1,))
    decode = dict(in_channels=64, in_index=0, channels=8, num_classes=5, num_convs=1, c=0.5)
    decode |= dict(type="HyperbolicFCNHead", norm_cfg=dict(type="BN"), dim=3) | options
    config = dict(type="HyperbolicSegmentor", backbone=backbone, decode_head=decode)
    config |= dict(test_cfg=dict(mode=mode, **slide))
    return MODELS.build(ConfigDict(config)).eval()


@each("mode, geometry", [("whole", "poincare"), ("slide", "poincare"), ("whole", "lorentz")])
def test_predictions_have_radius_and_uncertainty(mode, geometry):
    torch.manual_seed(0)
    model = segmentor(mode, geometry=geometry)
    images = torch.randn(1, 3, 64, 48)
    about = dict(ori_shape=(70, 50), img_shape=(64, 48), pad_shape=(64, 48))
    with torch.no_grad():
        [found] = model.predict(images, [SegDataSample(metainfo=about)])
        u = model.decode_head.conv_seg.project(
            model.decode_head._forward_feature(model.extract_feat(images))
        )
    assert found.seg_logits.data.shape == (5, 70, 50)
    assert found.pred_sem_seg.data.equal(found.seg_logits.data.argmax(0, keepdim=True))
    radius = found.radius.data
    norm = reference.exp0(radius.movedim(0, -1) / 2, 0.5).norm(dim=-1) * 0.5**0.5
    torch.testing.assert_close(found.uncertainty.data[0], 1 - norm)
    if mode == "whole":
        factor = 2 if geometry == "poincare" else 1
        wanted = factor * u.norm(dim=1).mean()
        torch.testing.assert_close(radius.mean(), wanted, rtol=0.02, atol=0)
    assert model(images, mode="tensor").shape[1] == 5


def test_the_segmentor_needs_a_hyperbolic_head():
    with pytest.raises(HypvisionError, match="Take EncoderDecoder"):
        segmentor(geometry="euclidean")


@pytest.mark.slow
def test_the_published_config_takes_a_step(data, tmp_path):  # noqa: F811
    name = "hyperbolic-deeplabv3plus_resnetv2-101_140e_ade20k"
    runner = train(shrink(name, name, data), tmp_path)
    assert runner.iter == 1
    assert runner.message_hub.get_scalar("train/loss").current() > 0
    offsets = runner.model.decode_head.conv_seg.logits.offsets
    assert offsets.detach().norm(dim=-1).max() > 0
