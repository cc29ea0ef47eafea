"""UNCHA and PHyCLIP: losses and geometry against a reference written from the sheet, its numbers,
and official files in both directions."""

import math

import numpy as np
import pytest
import torch
from helpers.cases import each
from references import uncha_phyclip as reference
from references.uncha_phyclip import det

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
from helpers.clip_models import bundle_of, tiny

from hypvision.clip.hyperbolic import HyperbolicCLIP
from hypvision.clip.hyperbolic_checkpoint import PUBLISHED, to_official, variant
from hypvision.clip.models import ARCHITECTURES, CLIPBundle, create_clip, pretrained_tags
from hypvision.clip.names import clip_options
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP, set_tuning
from hypvision.clip.prompting.hosts import build_host
from hypvision.clip.radial.traversal import meru_traversal
from hypvision.clip.spaces import Hyperboloid, HyperboloidProduct
from hypvision.geometry import Lorentz
from hypvision.inference.predictors import Request, zero_shot
from hypvision.io.errors import HypvisionError
from hypvision.losses import (
    box_to_whole_contrast,
    compositional_entailment,
    contrastive_loss,
    uncertain_entailment,
    uncertainty,
)
from hypvision.losses.contrastive import soft_cross_entropy
from hypvision.tasks.contrastive import CLIPContrast
from hypvision.tasks.embedding import clip_embedder
from hypvision.zoo.convert import CONVERTERS, convert_file

START = math.log(1 / 0.07)
OWNER = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3])  # of the mask 111, 100, 110, 111 of the sheet
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)


KINDS = {"uncha": dict(geometry="lorentz", box_scales=True), "phyclip": dict(geometry="product")}


# PHyCLIP's space and loss


def product_losses(features, c, scales, logit_scale):
    """Contrast and half the sum of entailments, from features image, text, box_image, box_text."""
    space = HyperboloidProduct(c, features[0].shape[1] // len(c), scales=scales)
    kinds = ("image", "text", "image", "text")
    image, text, box_image, box_text = (space.embed(x, k) for x, k in zip(features, kinds))
    scale = logit_scale.exp()
    whole = sum(contrastive_loss(space.logits(image, text, scale)))
    eye = torch.eye(len(image))
    boxes = soft_cross_entropy(space.logits(box_image, text, scale), eye)
    boxes = boxes + soft_cross_entropy(space.logits(box_text, image, scale), eye)
    parts = compositional_entailment(image, text, box_image, box_text, space.manifold)
    return 0.25 * (whole + boxes), 0.5 * sum(parts.values())


def phyclip_leaves(spread=1.0, k=8, dtype=torch.float64):
    torch.manual_seed(0)
    features = [spread * torch.randn(5, 8 * k, dtype=torch.float64) for _ in range(4)]
    logs = [0.4 * torch.randn(k, dtype=torch.float64) for _ in range(3)]
    logs = [logs[0], logs[1] - 1, logs[2] - 1, torch.tensor(1.3, dtype=torch.float64)]
    return [x.to(dtype).requires_grad_() for x in (*features, *logs)]


def of_leaves(leaves):
    curvs, images, texts, scale = leaves[4:]
    scales = {"image": images.exp(), "text": texts.exp()}
    return product_losses(leaves[:4], curvs.exp(), scales, scale)


def test_phyclip_has_the_numbers_of_the_sheet():
    names = ("image", "text", "box_image", "box_text")
    features = [det(f"phy/{name}", 5, 64) for name in names]
    scale = torch.full((8,), 8**-0.5, dtype=torch.float64)
    contrast, entail = product_losses(
        features,
        torch.ones(8, dtype=torch.float64),
        {"image": scale, "text": scale},
        torch.tensor(START, dtype=torch.float64),
    )
    assert float(contrast) == pytest.approx(3.207277, abs=2e-6)
    assert float(entail) == pytest.approx(4.807023, abs=2e-6)
    assert float(contrast + 0.2 * entail) == pytest.approx(4.168682, abs=2e-6)


@each("spread", [0.01, 1.0, 4.0])
def test_phyclip_and_its_gradients_are_those_of_the_reference(spread):
    found, expected = phyclip_leaves(spread), phyclip_leaves(spread)
    losses = of_leaves(found)
    truth = reference.PHyCLIP(*expected[4:]).losses(*expected[:4])
    for one, other in zip(losses, truth):
        assert one.item() == pytest.approx(other.item(), rel=1e-9)
    sum(losses).backward()
    sum(truth).backward()
    for one, other in zip(found, expected):
        assert float((one.grad - other.grad).norm()) <= 1e-6 * float(other.grad.norm())


@each("spread", [0.0, 1e-12, 1.0, 30.0, 1e4])
def test_phyclip_has_finite_gradients_near_and_far(spread):
    leaves = phyclip_leaves(spread, dtype=torch.float32)
    sum(of_leaves(leaves)).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_the_product_is_what_the_sheet_says():
    leaves = [leaf.detach() for leaf in phyclip_leaves()]
    curvs, images, texts, _ = leaves[4:]
    truth = reference.PHyCLIP(*leaves[4:])
    x, y = truth.embed(leaves[0], "image"), truth.embed(leaves[1], "text")
    for metric in ("l1", "l2"):
        space = HyperboloidProduct(
            curvs.exp(), 8, scales={"image": images.exp(), "text": texts.exp()}, metric=metric
        )
        points = space.embed(leaves[0], "image"), space.embed(leaves[1], "text")
        torch.testing.assert_close(space.distances(*points), truth.distance(x, y, metric))
    for part, own, c in zip(space.manifold.split(points[0]), x, truth.c):
        torch.testing.assert_close(part[:, 1:], own)
        torch.testing.assert_close(part[:, 0], reference.time(own, c))
    torch.testing.assert_close(space.similarity(*points), truth.similarity(x, y))
    radii = [torch.acosh(c**0.5 * reference.time(one, c)) / c**0.5 for one, c in zip(x, truth.c)]
    torch.testing.assert_close(space.radius(points[0]), torch.stack(radii).mean(0))
    inside = [
        reference.angle(one, other, c) <= reference.aperture(one, c)
        for one, other, c in zip(x, y, truth.c)
    ]
    assert torch.equal(space.entails(*points), torch.stack(inside).all(0))
    behind = space.way(points[0][0], 3).flip(0)[1:]  # from the root outwards, on rays
    assert space.entails(behind[:1], behind[1:]).all()
    l1 = HyperboloidProduct(curvs.exp(), 8).distances(*points)
    assert (l1 <= space.distances(*points) + 1e-12).all()


def test_one_factor_is_hycoclip_and_the_order_of_factors_does_not_matter():
    leaves = [leaf.detach() for leaf in phyclip_leaves(k=4)]
    c, images, texts = (leaf.exp() for leaf in leaves[4:7])
    one = Hyperboloid(c[0], scales={"image": images[0], "text": texts[0]})
    alone = HyperboloidProduct(c[:1], 32, scales={"image": images[:1], "text": texts[:1]})
    for modality in ("image", "text"):
        torch.testing.assert_close(alone.embed(leaves[0], modality), one.embed(leaves[0], modality))
    x, y = one.embed(leaves[0], "image"), one.embed(leaves[1], "text")
    scale = torch.tensor(3.0)
    for space in (one, alone):
        torch.testing.assert_close(space.logits(x, y, scale), one.logits(x, y, scale))
        torch.testing.assert_close(space.similarity(x, y), one.similarity(x, y))
        torch.testing.assert_close(space.exterior_angle(x, y), one.exterior_angle(x, y))
        torch.testing.assert_close(space.half_aperture(x), one.half_aperture(x))
    order = torch.tensor([2, 0, 3, 1])
    swapped = [x.unflatten(1, (4, 8))[:, order].flatten(1) for x in leaves[:4]]
    swapped += [log[order] for log in leaves[4:7]] + leaves[7:]
    for found, expected in zip(of_leaves(swapped), of_leaves(leaves)):
        torch.testing.assert_close(found, expected)
    twice = HyperboloidProduct(c[:1].expand(4), 8)
    features = [x[:, :8].repeat(1, 4) for x in leaves[:2]]
    points = [twice.embed(x, "image") for x in features]
    first = [point[:, :9] for point in points]
    torch.testing.assert_close(twice.distances(*points), Lorentz(float(c[0])).cdist(*first))


def test_the_walk_of_a_product_ends_at_its_root():
    torch.manual_seed(1)
    space = HyperboloidProduct(torch.tensor([0.5, 2.0]), 4)
    image = space.embed(torch.randn(8), "image")
    texts = space.embed(torch.randn(5, 8) * 0.1, "text")
    steps = meru_traversal(image, texts, list("abcde"), space, 9)
    assert steps[-1].text == "[ROOT]" and steps[-1].radius == 0


# UNCHA's loss


def uncha_losses(features, owner, c, scales, temperatures):
    space = Hyperboloid(c, scales=scales)
    kinds = ("image", "text", "image", "text")
    image, text, box_image, box_text = (space.embed(x, k) for x, k in zip(features, kinds))
    whole, local, across = (scale.exp() for scale in temperatures)
    total = 0.5 * sum(contrastive_loss(space.logits(image, text, whole)))
    total = total + 0.5 * sum(contrastive_loss(space.logits(box_image, box_text, local)))
    for box, other in ((box_image, text), (box_text, image)):
        logits = space.logits(box, other[owner], across)
        total = total + 0.5 * box_to_whole_contrast(logits, box)
    parts = uncertain_entailment(image, text, box_image, box_text, owner, space.manifold)
    return total, parts


def uncha_features():
    boxes = [0.7 * det(f"unc/{name}", 4, 3, 512)[MASK] for name in ("box_image", "box_text")]
    return [det("unc/image", 4, 512), det("unc/text", 4, 512), *boxes]


def uncha_leaves(spread=1.0, dtype=torch.float64):
    torch.manual_seed(0)
    features = [spread * torch.randn(n, 24, dtype=torch.float64) for n in (4, 4, 9, 9)]
    logs = [torch.tensor(x, dtype=torch.float64) for x in (0.3, -1.1, -0.9, 1.2, 1.0, 0.8)]
    return [x.to(dtype).requires_grad_() for x in (*features, *logs)]


def of_uncha(leaves):
    c, image, text, *temperatures = leaves[4:]
    scales = {"image": image.exp(), "text": text.exp()}
    contrast, parts = uncha_losses(leaves[:4], OWNER, c.exp(), scales, temperatures)
    return contrast, sum(parts.values())


def test_uncha_has_the_numbers_of_the_sheet():
    start = torch.tensor(512**-0.5, dtype=torch.float64)
    temperatures = [torch.tensor(-math.log(t), dtype=torch.float64) for t in (0.07, 0.05, 0.06)]
    contrast, parts = uncha_losses(
        uncha_features(), OWNER, torch.ones((), dtype=torch.float64),
        {"image": start, "text": start}, temperatures,
    )  # fmt: skip
    assert float(contrast) == pytest.approx(6.422966, abs=5e-6)
    assert float(parts["text_image"]) == pytest.approx(1.356583, abs=5e-6)
    assert 2 * float(parts["image_box"]) == pytest.approx(1.123095, abs=5e-6)
    assert float(parts["image_calibration"]) == pytest.approx(31.535738, abs=5e-5)
    entail = sum(parts.values())
    assert float(entail) == pytest.approx(66.916211, abs=1e-4)
    assert float(contrast + 0.2 * entail) == pytest.approx(19.806208, abs=2e-5)


@each("spread", [0.05, 1.0, 3.0])
def test_uncha_and_its_gradients_are_those_of_the_reference(spread):
    found, expected = uncha_leaves(spread), uncha_leaves(spread)
    losses = of_uncha(found)
    truth = reference.UNCHA(*expected[4:7], expected[7:]).losses(*expected[:4], OWNER)
    for one, other in zip(losses, truth):
        assert one.item() == pytest.approx(other.item(), rel=1e-9)
    sum(losses).backward()
    sum(truth).backward()
    for one, other in zip(found, expected):
        error = float((one.grad - other.grad).norm())
        assert error <= 1e-6 * float(other.grad.norm()) + 1e-12


@each("spread", [0.0, 1e-12, 1.0, 40.0, 1e4])
def test_uncha_has_finite_gradients_near_and_far(spread):
    """Where the official code has none for far points."""
    leaves = uncha_leaves(spread, dtype=torch.float32)
    sum(of_uncha(leaves)).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_the_weights_of_uncertain_boxes_pass_no_gradient():
    boxes = Lorentz(1.0).expmap0(torch.randn(3, 4)).requires_grad_()
    logits = torch.randn(3, 3, requires_grad=True)
    box_to_whole_contrast(logits, boxes).backward()
    assert boxes.grad is None and logits.grad.abs().sum() > 0
    root = Lorentz(1.0).origin(4)
    assert float(uncertainty(root)) == pytest.approx(math.log(2))
    # rows whose scale is that of the boxes make one contrast of the other
    weights = torch.exp(-uncertainty(boxes.detach()) / 2)[:, None]
    found = box_to_whole_contrast(logits / weights, boxes)
    assert found.item() == pytest.approx(contrastive_loss(logits)[0].item(), rel=1e-5)


# In training


def batch(count=4, places=3):
    torch.manual_seed(0)
    shape = (count, places, 3, 32, 32)
    words = ["a disk", "a red ring", "a house", "a star", "a cup", "a dog"]
    return dict(
        inputs=torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8),
        caption=[f"{word} on a wall" for word in words[:count]],
        box_inputs=torch.randint(0, 256, shape, dtype=torch.uint8),
        box_caption=[[f"{word} {n}" for word in words[:count]] for n in range(places)],
        box_count=torch.tensor([3, 1, 2, 3][:count]),
    )


def first_boxes(data):
    """The same with one box of each image."""
    one = dict(data, box_inputs=data["box_inputs"][:, 0], box_caption=data["box_caption"][0])
    del one["box_count"]
    return one


def task(kind):
    return CLIPContrast(bundle_of(tiny(**KINDS[kind])), classes=["dog", "cat"])


def test_the_training_of_uncha_is_its_loss():
    model, data = task("uncha"), batch()
    losses = model(**data, mode="loss")
    clip = model.clip
    counts = data["box_count"].tolist()
    owner = torch.tensor([i for i, count in enumerate(counts) for _ in range(count)])
    places = [(i, n) for i, count in enumerate(counts) for n in range(count)]
    pixels = torch.cat([data["inputs"], torch.stack([data["box_inputs"][p] for p in places])])
    texts = [*data["caption"], *(data["box_caption"][n][i] for i, n in places)]
    with torch.no_grad():
        images = clip.encode_image((pixels.float() - model.mean) / model.std).double()
        words = clip.encode_text(model.tokenizer(texts)).double()
        logs = [clip.curv, clip.visual_alpha, clip.textual_alpha]
        scales = [
            clip.global_logit_scale, clip.local_logit_scale, clip.global_local_logit_scale,
        ]  # fmt: skip
        truth = reference.UNCHA(*(x.double() for x in logs), [x.double() for x in scales])
        contrast, entail = truth.losses(images[:4], words[:4], images[4:], words[4:], owner)
    entailed = sum(value for name, value in losses.items() if "entail" in name)
    assert float(entailed) == pytest.approx(0.2 * float(entail), rel=1e-4)
    assert float(sum(losses.values()) - entailed) == pytest.approx(float(contrast), rel=1e-4)
    sum(losses.values()).backward()
    without = {name for name, p in clip.named_parameters() if p.requires_grad and p.grad is None}
    assert not without  # a parameter without a gradient stops distributed training


def test_places_without_a_box_change_nothing():
    model, data = task("uncha"), batch()
    expected = model(**data, mode="loss")
    data["box_inputs"] = torch.cat([data["box_inputs"], data["box_inputs"]], 1)
    data["box_caption"] += data["box_caption"]
    for name, value in model(**data, mode="loss").items():
        torch.testing.assert_close(value, expected[name])


def test_the_training_of_phyclip_is_its_loss():
    model, data = task("phyclip"), first_boxes(batch())
    losses = model(**data, mode="loss")
    clip = model.clip
    pixels = torch.cat([data["inputs"], data["box_inputs"]])
    with torch.no_grad():
        images = clip.encode_image((pixels.float() - model.mean) / model.std).double()
        texts = [*data["caption"], *data["box_caption"]]
        words = clip.encode_text(model.tokenizer(texts)).double()
        lists = (clip.curvs, clip.visual_concept_alphas, clip.textual_concept_alphas)
        logs = [torch.stack([*numbers]).double() for numbers in lists]
        truth = reference.PHyCLIP(*logs, clip.logit_scale.double())
        contrast, entail = truth.losses(images[:4], words[:4], images[4:], words[4:])
        x, y = truth.embed(images[:4], "image"), truth.embed(words[:4], "text")
        outside = truth.outside(y, x, 0.7)
    entailed = sum(value for name, value in losses.items() if "entail" in name)
    assert float(entailed) == pytest.approx(0.2 * float(entail), rel=1e-4)
    assert float(sum(losses.values()) - entailed) == pytest.approx(float(contrast), rel=1e-4)
    sum(losses.values()).backward()
    without = {name for name, p in clip.named_parameters() if p.requires_grad and p.grad is None}
    assert not without
    plain = dict(inputs=data["inputs"], caption=data["caption"])
    found = model(**plain, mode="loss")["loss_entail"]
    assert float(found) == pytest.approx(0.2 * float(outside), rel=1e-4)


def test_the_training_with_the_distance_of_squares():
    """The ablation l2."""
    model = CLIPContrast(bundle_of(tiny(geometry="product", product_metric="l2")), classes=["dog"])
    data = {name: value for name, value in batch().items() if name in ("inputs", "caption")}
    losses = model(**data, mode="loss")
    clip = model.clip
    with torch.no_grad():
        pixels = (data["inputs"].float() - model.mean) / model.std
        words = model.tokenizer(data["caption"])
        lists = (clip.curvs, clip.visual_concept_alphas, clip.textual_concept_alphas)
        logs = [torch.stack([*numbers]).double() for numbers in lists]
        truth = reference.PHyCLIP(*logs, clip.logit_scale.double())
        x = truth.embed(clip.encode_image(pixels).double(), "image")
        y = truth.embed(clip.encode_text(words).double(), "text")
        logits = -truth.scale * truth.distance(x, y, "l2")
        expected = reference.both_ways(logits)
    found = losses["loss_image"] + losses["loss_text"]
    assert found.item() == pytest.approx(float(expected), rel=1e-4)
    assert float(reference.both_ways(-truth.scale * truth.distance(x, y))) != pytest.approx(
        float(expected), rel=1e-3
    )


def test_the_number_of_boxes_must_fit_the_loss():
    data = batch()
    plain = {name: data[name] for name in ("inputs", "caption")}
    with pytest.raises(HypvisionError, match="needs boxes"):
        task("uncha")(**plain, mode="loss")
    with pytest.raises(HypvisionError, match="boxes=True"):
        task("phyclip")(**data, mode="loss")


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_stay_in_their_intervals(kind):
    model = tiny(**KINDS[kind])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 0:
                parameter.fill_(50.0)
    model.clamp_scalars()
    for name, parameter in model.named_parameters():
        if parameter.dim():
            continue
        limit = 0.0
        if "logit_scale" in name:
            limit = math.log(100)
        elif "curv" in name:
            limit = math.log(10)
        assert float(parameter) == pytest.approx(limit), name


@pytest.mark.parametrize("kind", KINDS)
def test_merging_and_tuning(kind):
    model = tiny(**KINDS[kind])
    images = torch.randn(2, 3, 32, 32)
    tokens = create_clip("emoji-t8").tokenizer(["a dog"])
    before = model.encode_image(images, True), model.encode_text(tokens, True)
    constants = {name for name, p in model.named_parameters() if not p.requires_grad}
    unused = dict(uncha={"logit_scale", "min_radius_head.weight", "min_radius_head.bias"})
    assert constants == unused.get(kind, {"curv", "visual_alpha", "textual_alpha"})
    model.merge()
    after = model.encode_image(images, True), model.encode_text(tokens, True)
    for one, other in zip(before, after):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for mode, own in (("image", "visual"), ("text", "textual")):
        set_tuning(model, mode)
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        alphas = {name for name in trained if "alpha" in name}
        assert alphas and all(name.startswith(own) for name in alphas)
        assert any(name.startswith("curv") for name in trained) and not trained & constants
        assert not any("logit_scale" in name for name in trained)


def test_all_commands_rank_phyclip_by_similarity():
    """And not by distance, whose order differs: predict, the metrics, the suites and few-shot."""
    model = tiny(**KINDS["phyclip"])
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("curvs", "visual_concept", "textual_concept")):
                parameter.add_(torch.randn(()))
    clip = bundle_of(model.eval())
    names = ["dog", "red ring", "house", "star"]
    plain = OpenVocabularyCLIP()
    plain.build_clip(
        clip, tune="frozen", classes=names, templates=["a photo of a {}."], dense=False
    )
    host = build_host(clip, "zeroshot")
    host.set_classes(names, "a photo of a {}.")
    task = CLIPContrast(clip, classes=names, templates=["a photo of a {}."]).eval()
    pixels = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        points, classes = clip.embed_images(pixels), plain.class_points()
        found = [
            clip.similarity(points, classes),
            torch.from_numpy(
                np.stack(
                    [each.scores for each in zero_shot(plain.eval(), Request({})).find([*pixels])]
                )
            ),
            host(pixels).logits(),
            torch.stack(
                [
                    row["scores"]
                    for row in task(
                        pixels, ["x"] * 40, torch.zeros(40, dtype=torch.int64), mode="predict"
                    )
                ]
            ),
        ]
        other = -clip.space.distances(points, classes)
    first = [scores.argsort(1, descending=True) for scores in found]
    assert all(torch.equal(order, first[0]) for order in first[1:])
    assert not torch.equal(other.argsort(1, descending=True), first[0])


# Names and files


def test_names_tags_and_sizes():
    assert pretrained_tags("uncha-vit-b-16") == ["grit"] and not pretrained_tags("phyclip-vit-b-16")
    assert PUBLISHED["uncha-vit-s-16"]["grit"] == "hf-hub:hayeonkim/uncha#uncha_vit_s.pth"
    numbers = {}
    trained = {}
    with torch.device("meta"):
        for name in ("uncha-vit-s-16", "uncha-vit-b-16", "phyclip-vit-s-16", "phyclip-vit-b-16"):
            model = HyperbolicCLIP(**ARCHITECTURES[name])
            numbers[name] = sum(p.numel() for p in model.parameters())
            positions = model.visual.trunk.pos_embed
            assert not positions.requires_grad
            trained[name] = numbers[name] - positions.numel()
            entries = to_official(model.state_dict())
            assert len(entries) == (312 if "uncha" in name else 499)
            if "phyclip" in name:
                assert len(model.curvs) == 64 and model.space.dim == 8
    assert numbers == {
        "uncha-vit-s-16": 85_290_888, "uncha-vit-b-16": 149_620_488,
        "phyclip-vit-s-16": 85_290_564, "phyclip-vit-b-16": 149_620_164,
    }  # fmt: skip
    # with those that are in the files and unused, which the official code trains, too
    assert trained == {
        "uncha-vit-s-16": 85_215_240, "uncha-vit-b-16": 149_469_192,
        "phyclip-vit-s-16": 85_214_916, "phyclip-vit-b-16": 149_468_868,
    }  # fmt: skip
    start = tiny(**KINDS["uncha"])
    assert start.global_local_logit_scale.exp().item() == pytest.approx(1 / 0.06)
    assert tiny(**KINDS["phyclip"]).visual_concept_alphas[0].exp().item() == pytest.approx(8**-0.5)
    for options in (dict(geometry="product", factors=5), dict(geometry="sphere", box_scales=True)):
        with pytest.raises(HypvisionError, match="factors|box_scales"):
            tiny(**options)


@pytest.fixture
def named(monkeypatch):
    """The architectures with small towers of timm."""
    vision = dict(
        image_size=32, timm_model_name="vit_tiny_patch16_224", timm_pool="token",
        timm_proj="linear",
    )  # fmt: skip
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    for name in ("meru", "uncha", "phyclip"):
        config = ARCHITECTURES[f"{name}-vit-s-16"]
        small = config | dict(embed_dim=24, vision_cfg=vision, text_cfg=text, vision_heads=3)
        monkeypatch.setitem(ARCHITECTURES, f"{name}-tiny", small)


def official(name):
    torch.manual_seed(0)
    model = create_clip(name).model
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 0 or "min_radius" in key:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    weights = to_official(model.state_dict())
    weights["pixel_mean"] = weights["pixel_std"].clone()  # as in UNCHA's files
    return weights


def test_official_names_and_shapes_are_those_of_the_sheet(named):
    lists = ("curvs", "visual_concept_alphas", "textual_concept_alphas")
    scales = ("global_logit_scale", "local_logit_scale", "global_local_logit_scale")
    more = {
        "uncha": {
            **dict.fromkeys(scales, ()),
            "textual.min_radius_head.0.weight": (1, 32),
            "textual.min_radius_head.0.bias": (1,),
        },
        "phyclip": {f"{name}.{factor}": () for name in lists for factor in range(3)},
    }
    shapes = {
        name: {key: tuple(value.shape) for key, value in official(f"{name}-tiny").items()}
        for name in ("meru", *more)
    }
    assert {"curv", "visual_alpha", "textual_alpha", "logit_scale"} <= shapes["meru"].keys()
    for name, added in more.items():
        assert shapes[name] == shapes["meru"] | added and not shapes["meru"].keys() & added.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_official_files_in_both_directions(kind, named, tmp_path, monkeypatch):
    weights = official(f"{kind}-tiny")
    assert kind != "uncha" or weights["textual.min_radius_head.0.weight"].shape == (1, 32)
    torch.save({"model": weights, "iteration": 3}, tmp_path / "in.pth")
    clip = create_clip(f"{kind}-tiny", tmp_path / "in.pth")
    assert clip.mean == pytest.approx((58.395, 57.12, 57.375))  # what the file says
    back = to_official(clip.model.state_dict())
    assert back.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in back.items())
    quiet = CONVERTERS["meru"]._replace(variant=lambda weights: ("tiny", {}))
    monkeypatch.setitem(CONVERTERS, "meru", quiet)
    convert_file("meru", tmp_path / "in.pth", tmp_path / "ours.safetensors")
    convert_file("meru", tmp_path / "ours.safetensors", tmp_path / "out.pth", to_official=True)
    out = torch.load(tmp_path / "out.pth", weights_only=True)["model"]
    assert all(torch.equal(value, weights[name]) for name, value in out.items())
    model = OpenVocabularyCLIP()
    model.build_clip(dict(name=f"{kind}-tiny"), tune="frozen", dense=False)
    model.load_state_dict(model.checkpoint_filter(weights))
    images = torch.randint(0, 256, (2, 3, 32, 32))
    torch.testing.assert_close(
        CLIPBundle(model.clip, clip.tokenizer, clip.mean, clip.std).embed_images(images),
        clip.embed_images(images),
    )


@pytest.mark.parametrize(
    ("kind", "change", "name", "message"),
    [
        ("uncha", {}, "meru-tiny", "'global_logit_scale', so its model is UNCHA"),
        ("phyclip", {}, "meru-tiny", "'curvs.0', so its model is PHyCLIP"),
        ("phyclip", {}, "uncha-tiny", "is PHyCLIP, not UNCHA"),
        ("meru", {}, "phyclip-tiny", "is MERU or HyCoCLIP, not PHyCLIP"),
        ("meru", {}, "uncha-tiny", "is MERU or HyCoCLIP, not UNCHA"),
        ("uncha", {"local_logit_scale": None}, "uncha-tiny", "lacks local_logit_scale"),
        ("uncha", {"textual.min_radius_head.0.bias": None}, "uncha-tiny", "min_radius_head.bias"),
        ("phyclip", {"curvs.2": None}, "phyclip-tiny", "curvs.2"),
        ("phyclip", {"curvs.3": torch.zeros(())}, "phyclip-tiny", "curvs.3"),
        ("phyclip", {"curvs.1": torch.tensor(5.0)}, "phyclip-tiny", "'curvs.1'"),
        ("phyclip", {"visual_concept_alphas.0": torch.zeros(2)}, "phyclip-tiny", "alphas.0"),
        ("uncha", {"local_logit_scale": torch.tensor(math.nan)}, "uncha-tiny", "one finite"),
        ("uncha", {"offsets": torch.zeros(())}, "uncha-tiny", "'offsets'"),
    ],
)
def test_wrong_files_are_named(kind, change, name, message, named, tmp_path):
    weights = official(f"{kind}-tiny") | change
    weights = {key: value for key, value in weights.items() if value is not None}
    torch.save({"model": weights}, tmp_path / "file.pth")
    with pytest.raises(HypvisionError, match=message):
        create_clip(name, tmp_path / "file.pth")


def test_unchas_long_texts_lose_their_end():
    long = "a " * 100
    tokens = {name: create_clip(f"{name}-emoji-s16").tokenizer for name in KINDS}
    kept, cut = (tokens[name](["a dog", long]) for name in ("phyclip", "uncha"))
    assert torch.equal(kept[0], cut[0]) and torch.equal(kept[1, :76], cut[1, :76])
    assert int(kept[1, 76]) == 49407 and int(cut[1, 76]) == int(cut[1, 75]) and cut.shape == (2, 77)


def test_embeddings_of_a_product_are_no_vectors_to_search():
    clip = create_clip("phyclip-emoji-s16")
    with pytest.raises(HypvisionError, match="product of hyperboloids"):
        clip_embedder(clip, "phyclip-emoji-s16")


def test_a_file_tells_its_network(tmp_path):
    for name in ("uncha-emoji-s16", "phyclip-emoji-s16", "hycoclip-emoji-s16"):
        model = create_clip(name).model
        torch.save(model.state_dict(), tmp_path / "file.pth")
        assert clip_options(str(tmp_path / "file.pth"))["name"] == name
    wide = {"visual.trunk.norm.weight": torch.zeros(384)}
    assert variant({**wide, "global_logit_scale": torch.zeros(())})[0] == "uncha-vit-s-16"
    curvs = {f"curvs.{n}": torch.zeros(()) for n in range(64)}
    assert variant({**wide, **curvs}) == ("phyclip-vit-s-16", {})
    assert variant({**wide, "curvs.0": torch.zeros(())}) == ("phyclip-vit-s-16", {"factors": 1})
