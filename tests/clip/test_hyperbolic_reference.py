"""MERU and HyCoCLIP as CLIP models and in training against the formulas of the papers in
float64."""

import math
from types import SimpleNamespace

import pytest
import torch
from helpers.cases import each
from open_clip.tokenizer import SimpleTokenizer
from references import hyperbolic_clip as reference

from hypvision.clip.hyperbolic_checkpoint import to_official
from hypvision.clip.models import ARCHITECTURES, CLIPBundle, create_clip
from hypvision.clip.radial.traversal import meru_traversal
from hypvision.clip.spaces import Hyperboloid, Sphere
from hypvision.tasks.contrastive import CLIPContrast

CAPTIONS = [f"a photo of a {word}" for word in ("dog", "cat", "bird")] + ["a long story " * 40]
BOX_CAPTIONS = [f"{word} there" for word in ("house", "lamp", "chair", "road")]
TINY = dict(width=192, depth=12, patch=16, grid=2, text_width=32, text_depth=2, embedding=24)
REAL = dict(width=384, depth=12, patch=16, grid=14, text_width=512, text_depth=12, embedding=512)
HEADS = dict(visual=3, textual=2)
REAL_HEADS = dict(visual=12, textual=8)
TOLERANCE = 1e-5  # of float32, relative to the norm


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_state(sizes, heads, lengths, mean=MEAN):
    """An official state dict in float32.

    ``lengths``: about those of its features of images and texts after alpha, times sqrt(c); None
    for a baseline.
    """
    torch.manual_seed(0)
    state = {}
    for key, shape in reference.shapes(**sizes, hyperbolic=lengths is not None).items():
        spread = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) in (2, 4) else 0.1
        is_scale = key.endswith("weight") and ("norm" in key or "ln_" in key)
        state[key] = torch.randn(shape) * spread + float(is_scale)
    state["visual.pos_embed"] = reference.sine_cosine_positions(
        sizes["width"], sizes["grid"]
    ).float()
    state["textual.token_embed.weight"] = torch.randn(state["textual.token_embed.weight"].shape)
    state["textual.attn_mask"] = torch.ones(77, 77, dtype=torch.bool).triu(1)
    state["pixel_mean"] = torch.tensor(mean).view(3, 1, 1)
    state["pixel_std"] = torch.tensor(STD).view(3, 1, 1)
    state["logit_scale"] = torch.tensor(1.3)
    if lengths is not None:
        state |= {
            "curv": torch.tensor(0.4),
            "visual_alpha": torch.tensor(-0.7),
            "textual_alpha": torch.tensor(-0.2),
        }
        image, ids = (
            torch.rand(1, 3, 16 * sizes["grid"], 16 * sizes["grid"]),
            torch.tensor([[49406, 320, 49407]]),
        )
        image = reference.image_features(state, image, heads["visual"])
        text = reference.text_features(state, ids, heads["textual"])
        for tower, features, length in zip(("visual", "textual"), (image, text), lengths):
            factor = math.exp(state[f"{tower}_alpha"] + 0.5 * state["curv"])
            state[f"{tower}_proj.weight"] *= length / (factor * features.norm())
    return state


@pytest.fixture
def build(tmp_path, monkeypatch):
    """One random model on both sides: this package's, loaded from an official file, and the state
    in float64."""

    def build(lengths, sizes=TINY, heads=HEADS, name="reference-tiny", mean=MEAN):
        state = random_state(sizes, heads, lengths, mean)
        torch.save({"model": state}, tmp_path / "official.pth")
        vision = dict(
            image_size=32,
            timm_model_name="vit_tiny_patch16_224",
            timm_pool="token",
            timm_proj="linear",
        )
        text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=2)
        config = dict(embed_dim=24, vision_cfg=vision, text_cfg=text, vision_heads=3)
        config["geometry"] = "sphere" if lengths is None else "lorentz"
        monkeypatch.setitem(ARCHITECTURES, "reference-tiny", config)
        task = CLIPContrast(
            dict(name=name, pretrained=str(tmp_path / "official.pth")), classes=["dog", "cat"]
        )
        state = {key: value.double().requires_grad_() for key, value in state.items()}
        size = 16 * sizes["grid"]
        pixels = torch.randint(0, 200, (2, len(CAPTIONS), 3, 1, 1)) + torch.randint(
            0, 56, (2, 1, 3, size, size)
        )
        clip = CLIPBundle(
            task.clip, task.tokenizer, task.mean.flatten().tolist(), task.std.flatten().tolist()
        )
        return SimpleNamespace(clip=clip, task=task, state=state, pixels=pixels.byte(), heads=heads)

    return build


def embeddings(case, pixels, captions):
    """The reference's of images and texts."""
    ids = case.clip.tokenizer(captions)
    images = reference.image_features(case.state, pixels.double() / 255, case.heads["visual"])
    texts = reference.text_features(case.state, ids, case.heads["textual"])
    return reference.embed(case.state, images, "visual_alpha"), reference.embed(
        case.state, texts, "textual_alpha"
    )


def error(found, truth):
    return float((found - truth).detach().norm() / truth.detach().norm())


def check_step(case, boxes):
    """Loss and gradients of one batch in training."""
    image, text = embeddings(case, case.pixels[0], CAPTIONS)
    batch = dict(inputs=case.pixels[0], caption=CAPTIONS)
    if boxes:
        batch |= dict(box_inputs=case.pixels[1], box_caption=BOX_CAPTIONS)
        box = embeddings(case, case.pixels[1], BOX_CAPTIONS)
        truth = reference.hycoclip_loss(case.state, image, text, *box)
    else:
        truth = (reference.meru_loss if "curv" in case.state else reference.clip_loss)(
            case.state, image, text
        )
    losses = case.task.train()(**batch, mode="loss")
    assert len(losses) == (8 if boxes else 2 + ("curv" in case.state))
    assert error(sum(losses.values()), truth) < TOLERANCE
    fixed = ("pixel_mean", "pixel_std", "textual.attn_mask", "visual.pos_embed")
    learned = {key: value for key, value in case.state.items() if key not in fixed}
    expected = dict(zip(learned, torch.autograd.grad(truth, list(learned.values()))))
    case.task.zero_grad()
    sum(losses.values()).backward()
    found = to_official(
        {name: p.grad for name, p in case.task.clip.named_parameters() if p.grad is not None}
    )
    assert found.keys() - set(fixed) == expected.keys()
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for key, gradient in expected.items():
        # A scalar's gradient is a sum over all pairs, which cancels: its rounding is that of the
        # terms.
        floor = 2e-6 * largest if gradient.ndim == 0 else 0.0
        assert float((found[key] - gradient).norm()) < TOLERANCE * float(gradient.norm()) + floor, (
            key
        )


def check_embeddings(case):
    (image, text), c = embeddings(case, case.pixels[0], CAPTIONS), case.state["curv"].exp()
    clip = case.clip
    images, texts = clip.embed_images(case.pixels[0]), clip.embed_texts(CAPTIONS)
    for found, truth in ((images, image), (texts, text)):
        assert (
            error(found[:, 1:], truth) < TOLERANCE
            and error(found[:, 0], reference.time(truth, c)) < TOLERANCE
        )
    assert error(clip.similarity(images, texts), reference.inner(image, text, c)) < TOLERANCE


def test_images_are_normalised_as_the_file_says(build):
    """HyCoCLIP's official files have the deviations as mean (sheet 2)."""
    case = build((1.0, 1.0), mean=STD)
    check_embeddings(case)
    expected = pytest.approx([255 * value for value in STD])
    assert case.clip.mean == expected and case.clip.std == expected


# Features at the first step, MERU's cones with an aperture of a right angle, and where the lift is
# cut.
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (1.0, 0.1), (14.0, 60.0)])
@pytest.mark.quick("lengths0")
def test_embeddings_losses_and_gradients(build, lengths):
    case = build(lengths)
    check_embeddings(case)
    check_step(case, boxes=False)
    check_step(case, boxes=True)


def test_the_baseline(build):
    case = build(None)
    image, text = embeddings(case, case.pixels[0], CAPTIONS)
    images, texts = case.clip.embed_images(case.pixels[0]), case.clip.embed_texts(CAPTIONS)
    assert error(images, image) < TOLERANCE and error(texts, text) < TOLERANCE
    check_step(case, boxes=False)


@pytest.mark.slow
def test_the_real_size(build):
    new = to_official(create_clip("hycoclip-vit-s-16").model.state_dict())
    assert error(new["visual.pos_embed"], reference.sine_cosine_positions(384, 14)) < 1e-6
    assert {key: tuple(value.shape) for key, value in new.items()} == reference.shapes(**REAL)
    case = build((1.0, 0.1), REAL, REAL_HEADS, "hycoclip-vit-s-16")
    check_embeddings(case)
    check_step(case, boxes=True)


def test_scalars_before_a_step(build):
    case = build((1.0, 1.0))
    for value in (-9.0, 9.0):
        with torch.no_grad():
            for name in ("logit_scale", "curv", "visual_alpha", "textual_alpha"):
                getattr(case.task.clip, name).fill_(value)
                case.state[name].fill_(value)
        case.task(case.pixels[0], CAPTIONS, mode="loss")
        for name, truth in reference.clamp_scalars(case.state).items():
            assert float(getattr(case.task.clip, name)) == pytest.approx(float(truth), rel=1e-5), (
                name
            )


@pytest.mark.parametrize("lengths", [(1.0, 0.5), None])
def test_words_and_classes_of_several_templates(build, lengths):
    case = build(lengths)
    ids = case.clip.tokenizer(CAPTIONS)
    whole = [49406, *SimpleTokenizer().encode(CAPTIONS[-1]), 49407]
    assert len(whole) > 77 and ids[-1].tolist() == [*whole[:76], 49407]
    assert ids[0].tolist() == [49406, 320, 1125, 539, 320, 1929, 49407] + [0] * 70
    truth = reference.class_weights(
        case.state, reference.text_features(case.state, ids, case.heads["textual"])
    )
    found = case.clip.space.mean(case.clip.model.encode_text(ids)[None], "text")[0]
    assert error(found[1:] if lengths else found, truth) < TOLERANCE


@each("seed", range(4))
def test_walks(seed):
    """Texts are scattered around the way from the image to the root, so that some cones hold parts
    of it."""
    generator = torch.Generator().manual_seed(seed)
    c = torch.tensor(1.7, dtype=torch.float64)
    image = torch.randn(6, generator=generator, dtype=torch.float64)
    share, noise = torch.rand(40, 1, generator=generator), torch.randn(40, 6, generator=generator)
    image, texts = reference.lift(image[None], c)[0], reference.lift(share * (image + noise / 4), c)
    truth = reference.traversal({"curv": c.log()}, image, texts)
    point, *points = (torch.cat([reference.time(x[None], c), x]) for x in (image, *texts))
    points, space = torch.stack(points), Hyperboloid(c)
    assert torch.allclose(space.half_aperture(points), reference.aperture(texts, c))
    angles = space.exterior_angle(points, point.expand_as(points))
    assert torch.allclose(angles, reference.angle(texts, image.expand_as(texts), c))
    found = meru_traversal(point, points, list(map(str, range(40))), space)
    assert [step.text for step in found] == [str(row) if row < 40 else "[ROOT]" for row in truth]
    assert len(truth) > 2 and truth[-1] == 40

    image, *rows = (x / x.norm() for x in (image, *texts))
    texts, root = torch.stack(rows[:-1]), rows[-1]
    found = meru_traversal(image, texts, list(map(str, range(39))), Sphere(root), cones=False)
    truth = reference.traversal({}, image, torch.cat([texts, root[None]]), root)
    assert [step.text for step in found] == [str(row) if row < 39 else "[ROOT]" for row in truth]
    assert len(truth) > 2 and truth[-1] == 39
