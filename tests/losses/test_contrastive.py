"""The losses of MERU and HyCoCLIP, written out pair by pair in plain Python."""

import math

import pytest
import torch
from helpers.cases import each

from hypvision.clip.spaces import Hyperboloid
from hypvision.geometry import Lorentz, lorentz
from hypvision.losses import compositional_entailment, contrastive_loss

C, SCALE = 1.7, 4.0


def points(seed, n=4, d=5, radius=1.0):
    torch.manual_seed(seed)
    return lorentz.expmap0(radius * torch.randn(n, d, dtype=torch.float64), C)


def inner(x, y):
    return -x[0] * y[0] + sum(a * b for a, b in zip(x[1:], y[1:]))


def distance(x, y):
    return math.acosh(max(1.0, -C * inner(x, y))) / math.sqrt(C)


def aperture(x, k=0.1):
    return math.asin(min(1.0, 2 * k / (math.sqrt(C) * math.hypot(*x[1:]))))


def angle(x, y):
    """MERU's exterior angle: the law of cosines in the triangle of the origin, x and y."""
    product = C * inner(x, y)
    top = y[0] + x[0] * product
    return math.acos(top / (math.hypot(*x[1:]) * math.sqrt(product**2 - 1)))


@each("radius", [0.01, 1.0, 4.0])
def test_contrastive_loss(radius):
    x, y = points(0, radius=radius), points(1, radius=radius)
    found = contrastive_loss(-SCALE * lorentz.cdist(x, y, C))
    logits = [[-SCALE * distance(a, b) for b in y.tolist()] for a in x.tolist()]
    for table, loss in ((logits, found[0]), (list(zip(*logits)), found[1])):
        expected = (
            sum(math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(table)) / 4
        )
        assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_unpaired_images_and_texts_raise_an_error():
    with pytest.raises(ValueError, match="3 images and 4 texts are not pairs"):
        contrastive_loss(torch.zeros(3, 4))


def test_targets_of_another_shape_raise_an_error():
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(3, 2\)"):
        contrastive_loss(torch.zeros(3, 2), torch.eye(3))


@each("dtype", [torch.bool, torch.float32])
def test_an_image_without_a_text_has_no_loss(dtype):
    """Neither has a text without an image."""
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    true = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]).to(dtype)
    images, texts = contrastive_loss(logits, true)
    rows = logits.log_softmax(1)
    columns = logits.log_softmax(0)
    expected = -(rows[0, :2].mean() + rows[2, 2]) / 3, -(columns[0, :2].sum() + columns[2, 2]) / 4
    assert torch.allclose(torch.stack([images, texts]), torch.stack(expected))
    (images + texts).backward()
    assert logits.grad.isfinite().all()


def test_a_box_with_the_words_of_the_whole_image_costs_nothing():
    """Where the official code has an angle of pi/2 (acos of 0)."""
    text = points(0)
    assert compositional_entailment(points(1), text, points(2), text, Lorentz(C))["text_box"] == 0


def test_compositional_entailment():
    image, text, box_image, box_text = (points(seed).tolist() for seed in range(4))
    found = compositional_entailment(
        *map(torch.tensor, (image, text, box_image, box_text)), Lorentz(C)
    )

    def mean(general, specific, factor):
        return (
            sum(max(0, angle(g, s) - factor * aperture(g)) for g, s in zip(general, specific)) / 4
        )

    assert float(found["text_image"]) == pytest.approx(mean(text, image, 0.7), rel=1e-5)
    assert float(found["box_text_image"]) == pytest.approx(mean(box_text, box_image, 0.7), rel=1e-5)
    assert float(found["image_box"]) == pytest.approx(mean(box_image, image, 1.2), rel=1e-5)
    assert float(found["text_box"]) == pytest.approx(mean(box_text, text, 1.2), rel=1e-5)


def test_far_points_have_finite_gradients():
    x, y = (points(seed, radius=8.0).float().requires_grad_() for seed in (0, 1))
    loss = sum(contrastive_loss(-100.0 * lorentz.cdist(x, y, C)))
    (loss + sum(compositional_entailment(x, y, y, x, Lorentz(C)).values())).backward()
    assert x.grad.isfinite().all() and y.grad.isfinite().all()


def test_gradients_where_the_lift_is_cut():
    """Distances there are about 20, which float32 rounds to 1e-6, and the scale makes 1e-5 of it in
    the gradients."""
    torch.manual_seed(0)
    features = [
        length * torch.nn.functional.normalize(torch.randn(16, 512), dim=1) for length in (14, 60)
    ]
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in features] + [
            torch.tensor(C).to(dtype).requires_grad_()
        ]
        space = Hyperboloid(leaves[2])
        logits = space.logits(*(space.embed(x, "image") for x in leaves[:2]), torch.tensor(100.0))
        found.append(torch.autograd.grad(sum(contrastive_loss(logits)), leaves))
    for single, double in zip(*found, strict=True):
        assert float((single - double).norm()) < 1e-5 * float(double.norm())


def model_and_batch():
    from hypvision.tasks.contrastive import CLIPContrast

    torch.manual_seed(0)
    model = CLIPContrast(dict(name="emoji-t8", geometry="lorentz"), blank_words=True)
    words = ["a disk", "a red ring", "a disk", "a house", "a star", "a cup", "a dog", "a house"]
    pixels = torch.randint(0, 256, (2, 8, 3, 64, 64), dtype=torch.uint8)
    return model, dict(
        inputs=pixels[0], caption=words, box_inputs=pixels[1], box_caption=words[::-1]
    )


@pytest.mark.slow
def test_boxes_that_are_the_whole_images_change_nothing_without_entailment():
    pytest.importorskip("open_clip")
    model, batch = model_and_batch()
    model.entail = 0.0
    plain = dict(
        inputs=batch["inputs"], caption=[f"{text}, {n}" for n, text in enumerate(batch["caption"])]
    )
    meru = sum(model(**plain, mode="loss").values()).detach()
    hycoclip = model(**plain, box_inputs=plain["inputs"], box_caption=plain["caption"], mode="loss")
    assert len(hycoclip) == 4 and sum(hycoclip.values()).item() == pytest.approx(
        float(meru), rel=1e-5
    )
