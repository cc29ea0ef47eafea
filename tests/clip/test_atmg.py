"""ATMG: its loss, its scores and its retrieval against plain loops over angles, and the sheet's
number."""

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
from hypvision.clip.hyperbolic_checkpoint import family_of, to_official
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.clip.spaces import ExteriorAngles, Hyperboloid
from hypvision.geometry import Lorentz
from hypvision.inference.predictors import Request, zero_shot
from hypvision.io.errors import HypvisionError
from hypvision.losses import contrastive_loss
from hypvision.tasks.contrastive import CLIPContrast
from hypvision.tasks.contrastive_metrics import ImageTextRetrieval
from hypvision.tasks.embedding import clip_embedder
from hypvision.tasks.zero_shot import _scores as zero_shot_scores

OPTIONS = {key: ARCHITECTURES["atmg-vit-s-16"][key] for key in ("geometry", "angles", "curvature")}
C = torch.tensor(0.1, dtype=torch.float64)


def angles(x, y, c=C):
    """Exterior angles at each ``x`` towards each ``y``, of space parts, pair by pair."""
    rows = [[reference.angle(one[None], other[None], c)[0] for other in y] for one in x]
    return torch.stack([torch.stack(row) for row in rows])


def loss_of(image, text, scale, c=C):
    """The sheet's: texts find their image by small angles, images their text by large ones."""
    rows = torch.arange(len(image))
    of_images = (scale * angles(image, text, c)).log_softmax(1)[rows, rows]
    of_texts = (-scale * angles(text, image, c)).log_softmax(1)[rows, rows]
    return -0.5 * (of_images.mean() + of_texts.mean())


def ours(image, text, scale, space):
    x, y = space.embed(image, "image"), space.embed(text, "text")
    found = contrastive_loss(space.logits(x, y, scale))[0]
    return 0.5 * (found + contrastive_loss(space.text_logits(y, x, scale))[0])


def test_the_loss_has_the_number_of_the_sheet():
    start = torch.tensor(64**-0.5, dtype=torch.float64)
    space = ExteriorAngles(C, scales={"image": start, "text": start})
    scale = torch.tensor(1 / 0.07, dtype=torch.float64)
    found = ours(det("atm/image", 5, 64), det("atm/text", 5, 64), scale, space)
    assert float(found) == pytest.approx(1.936672, abs=2e-6)


@each("spread", [0.01, 1.0, 8.0])
def test_the_loss_and_its_gradients_are_those_of_the_reference(spread):
    def leaves():
        torch.manual_seed(0)
        features = [spread * torch.randn(6, 12, dtype=torch.float64) for _ in range(2)]
        logs = [torch.tensor(value, dtype=torch.float64) for value in (-0.9, -1.1, 1.4)]
        return [x.requires_grad_() for x in (*features, *logs)]

    found, expected = leaves(), leaves()
    image, text, *logs = found
    space = ExteriorAngles(C, scales={"image": logs[0].exp(), "text": logs[1].exp()})
    one = ours(image, text, logs[2].exp(), space)
    image, text, *logs = expected
    points = [reference.lift(x * log.exp(), C) for x, log in zip((image, text), logs)]
    other = loss_of(*points, logs[2].exp())
    assert one.item() == pytest.approx(other.item(), rel=1e-9)
    one.backward()
    other.backward()
    for a, b in zip(found, expected):
        assert float((a.grad - b.grad).norm()) <= 1e-6 * float(b.grad.norm())


@each("spread", [0.0, 1e-12, 1.0, 30.0, 1e4])
def test_gradients_are_finite_near_and_far(spread):
    """Where the official code has none for far points."""
    torch.manual_seed(0)
    image, text = (spread * torch.randn(5, 12) for _ in range(2))
    text[0] = image[0]  # and where points coincide, or lie on one ray
    text[1] = 2 * image[1]
    image.requires_grad_()
    text.requires_grad_()
    ours(image, text, torch.tensor(14.0), ExteriorAngles(0.1)).backward()
    assert image.grad.isfinite().all() and text.grad.isfinite().all()


def test_all_angles_are_those_of_the_pairs():
    torch.manual_seed(0)
    manifold = Lorentz(0.3)
    x = manifold.expmap0(torch.randn(4, 6, dtype=torch.float64))
    y = manifold.expmap0(2 * torch.randn(5, 6, dtype=torch.float64))
    pairs = manifold.exterior_angle(x[:, None].expand(4, 5, 7), y.expand(4, 5, 7))
    torch.testing.assert_close(manifold.exterior_angles(x, y), pairs)
    behind = manifold.expmap0(torch.arange(1.0, 4.0, dtype=torch.float64)[:, None] * torch.ones(6))
    found = manifold.exterior_angles(behind, behind)
    expected = torch.full((3, 3), math.pi, dtype=torch.float64).tril(-1)
    off = ~torch.eye(3, dtype=torch.bool)
    torch.testing.assert_close(found[off], expected[off], atol=1e-7, rtol=0)
    root = manifold.origin(6, dtype=torch.float64)[None]
    torch.testing.assert_close(
        manifold.exterior_angles(x, root), torch.full((4, 1), math.pi).double()
    )


def test_classes_have_the_mean_angle_of_their_texts():
    """Each text is lifted alone, and the largest angle at the image wins."""
    torch.manual_seed(0)
    space = ExteriorAngles(0.1)
    images = space.embed(torch.randn(600, 5), "image")  # more than one block of rows
    features = torch.randn(3, 4, 5)
    classes = space.mean(features, "text")
    assert classes.shape == (3, 4, 6)
    scores = space.scores(images, classes)
    texts = reference.lift(features.double(), C)
    for row in (0, 511, 512, 599):
        for number in range(3):
            one = angles(images[row : row + 1, 1:].double(), texts[number]).mean()
            assert float(scores[row, number]) == pytest.approx(float(one), abs=1e-6)
    pairs = zero_shot_scores(space, images[:3], classes[0, :3])  # as SugarCrepe's are compared
    torch.testing.assert_close(pairs, angles(images[:3, 1:].double(), texts[0, :3]).diagonal())
    logits = space.class_logits(images, classes, torch.tensor(3.0))
    torch.testing.assert_close(logits, 3 * scores)


def test_retrieval_takes_the_angle_at_what_is_found():
    torch.manual_seed(0)
    space = ExteriorAngles(0.1)
    images = space.embed(torch.randn(30, 3), "image")
    texts = space.embed(torch.randn(30, 3), "text")
    metric = ImageTextRetrieval(topk=(1, 5))
    pairs = zip(images, texts)
    samples = [dict(image=x, text=y, caption=str(n), name=str(n), space=space)
               for n, (x, y) in enumerate(pairs)]  # fmt: skip
    metric.process(None, samples)
    found = metric.compute_metrics(metric.results)
    x, y = images[:, 1:].double(), texts[:, 1:].double()
    at_texts, at_images = angles(y, x), angles(x, y)
    for k in (1, 5):
        near = at_texts.T.argsort(1)[:, :k]  # texts with the smallest angle towards the image
        right = np.mean([n in near[n] for n in range(30)])
        assert found[f"image_to_text_r{k}"] == pytest.approx(100 * right)
        near = at_images.T.argsort(1, descending=True)[:, :k]
        right = np.mean([n in near[n] for n in range(30)])
        assert found[f"text_to_image_r{k}"] == pytest.approx(100 * right)
    assert len({*found.values()}) > 2


def task(**options):
    return CLIPContrast(bundle_of(tiny(**OPTIONS, learn_curvature=False, **options)),
                        classes=["dog", "cat"])  # fmt: skip


def test_the_training_is_its_loss_without_entailment_or_boxes():
    torch.manual_seed(0)
    model = task()
    inputs = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    captions = ["a disk", "a red ring", "a house", "a star"]
    losses = model(inputs=inputs, caption=captions, mode="loss")
    clip = model.clip
    with torch.no_grad():
        images = clip.encode_image((inputs.float() - model.mean) / model.std).double()
        words = clip.encode_text(model.tokenizer(captions)).double()
        x = reference.lift(clip.visual_alpha.double().exp() * images, C)
        y = reference.lift(clip.textual_alpha.double().exp() * words, C)
        expected = loss_of(x, y, clip.logit_scale.double().exp())
    assert losses.keys() == {"loss_image", "loss_text"}
    assert float(sum(losses.values())) == pytest.approx(float(expected), rel=1e-5)
    sum(losses.values()).backward()
    grads = {name for name, p in clip.named_parameters() if p.requires_grad and p.grad is None}
    assert not grads and not clip.curv.requires_grad and clip.curv.grad is None
    of_images, of_texts = clip.get_logits(*_inputs(model, inputs, captions))
    assert float(sum(losses.values())) == pytest.approx(
        float(0.5 * (contrastive_loss(of_images)[0] + contrastive_loss(of_texts)[0])), rel=1e-5
    )
    boxes = dict(box_inputs=inputs, box_caption=captions)
    with pytest.raises(HypvisionError, match="takes no boxes"):
        model(inputs=inputs, caption=captions, **boxes, mode="loss")


def _inputs(model, inputs, captions):
    return (inputs.float() - model.mean) / model.std, model.tokenizer(captions)


def test_predict_and_the_metric_name_the_same_class():
    torch.manual_seed(0)
    clip = bundle_of(tiny(**OPTIONS))
    names = ["dog", "red ring", "house", "star"]
    model = OpenVocabularyCLIP()
    templates = ["a photo of a {}.", "{}"]
    model.build_clip(clip, tune="frozen", classes=names, templates=templates, dense=False)
    pixels = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        shown = zero_shot(model.eval(), Request(dict())).find([*pixels])
        scores = clip.similarity(clip.embed_images(pixels), model.class_points())
    assert [int(each.scores.argmax()) for each in shown] == scores.argmax(1).tolist()


def test_names_options_and_files(monkeypatch, tmp_path):
    """The state dict is MERU's, so a file does not tell an ATMG; its name must."""
    with torch.device("meta"):
        model, meru = (
            HyperbolicCLIP(**ARCHITECTURES[f"{name}-vit-s-16"]) for name in ("atmg", "meru")
        )
        weights = to_official(model.state_dict())
        assert weights.keys() == to_official(meru.state_dict()).keys()
        assert family_of(model.state_dict()) == model.family == "meru"
    for options in (dict(geometry="sphere", angles=True), dict(geometry="lorentz", curvature=0.0)):
        with pytest.raises(HypvisionError, match="angles|curvature"):
            tiny(**options)
    vision = dict(
        image_size=32, timm_model_name="vit_tiny_patch16_224", timm_pool="token",
        timm_proj="linear",
    )  # fmt: skip
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    for name in ("atmg", "meru"):
        config = ARCHITECTURES[f"{name}-vit-s-16"]
        small = config | dict(embed_dim=24, vision_cfg=vision, text_cfg=text, vision_heads=3)
        monkeypatch.setitem(ARCHITECTURES, f"{name}-tiny", small)
    made = create_clip("atmg-tiny")
    assert type(made.space) is ExteriorAngles and float(made.space.c) == pytest.approx(0.1)
    torch.save({"model": to_official(made.model.state_dict())}, tmp_path / "atmg.pth")
    texts = ["a dog", "a cat"]
    for name, space in (("atmg-tiny", ExteriorAngles), ("meru-tiny", Hyperboloid)):
        clip = create_clip(name, tmp_path / "atmg.pth")
        assert type(clip.space) is space
        torch.testing.assert_close(clip.embed_texts(texts), made.embed_texts(texts))
    with pytest.raises(HypvisionError, match="compared by angles"):
        clip_embedder(made, "atmg-tiny")
