"""A CLIP without PyTorch: the exported folder's classes, scores and walks are hypvision's."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("tokenizers")
from helpers.engine import ROOT

import hypvision
from hypvision.cli import main
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.clip.names import clip_options
from hypvision.clip.radial.measure import embed_images, rooted
from hypvision.clip.radial.texts import embed_texts
from hypvision.clip.radial.traversal import meru_traversal
from hypvision.clip.spaces import ExteriorAngles, Hyperboloid, HyperboloidProduct, Sphere
from hypvision.data.preprocessing import Preprocessing
from hypvision.inference.predictors import Request, zero_shot
from hypvision.io.errors import HypvisionError
from hypvision.zoo import rank
from hypvision.zoo.export_ranking import export_ranking, tokenizer_of

SHIPPED = "hycoclip-emoji-s16.scenes"
NOTO = ROOT / "tools/demo_data/emoji/images/noto"
WORDS = (ROOT / "docs/images/hyperbolic-clip/words.txt").read_text().splitlines()
# PyTorch and hypvision cannot be imported here, and the folder is all that there is.
ALONE = """
import json, sys
sys.modules["torch"] = sys.modules["hypvision"] = None
sys.path.insert(0, ".")
from rank import CLIP
asked = json.load(sys.stdin)
clip = CLIP(".")
images = clip.images(asked["images"])
texts = clip.texts(asked["words"])
classes = clip.classes(asked["classes"])
ends = [None, images[-1]]
json.dump(dict(
    images=images.tolist(),
    scores=[clip.rank(image, classes).tolist() for image in images],
    walks=[[clip.walk(image, texts, asked["words"], end=end) for image in images] for end in ends],
), sys.stdout)
"""


def alone(folder, **asked):
    command = [sys.executable, "-I", "-c", ALONE]
    done = subprocess.run(
        command, cwd=folder, input=json.dumps(asked), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_walks(clip, found, images, words):
    points = embed_images(clip, images)
    texts = embed_texts(clip.model, clip.tokenizer, words)
    np.testing.assert_allclose(found["images"], points, rtol=1e-4, atol=1e-5)
    names = set()
    for end, walks in zip((None, points[-1]), found["walks"]):
        for point, walk in zip(points, walks):
            expected = meru_traversal(point, texts, words, rooted(clip), end=end)
            assert [step[0] for step in walk] == [step.text for step in expected]
            numbers = [list(step)[1:] for step in expected]
            np.testing.assert_allclose([step[1:] for step in walk], numbers, rtol=1e-4, atol=1e-4)
            names |= {step.text for step in expected}
    return names


@pytest.mark.slow
def test_shipped_weights_without_pytorch(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "emoji"
    command = ["export", "--clip", SHIPPED, "--part", "both", "--format", "onnx"]
    assert main([*command, "--save", str(folder)]) == 0
    assert capsys.readouterr().out.count("Equal to eager PyTorch") == 2
    pictures = sorted(NOTO.glob("*.png"))[::8]
    wide = tmp_path / "wide.png"
    Image.open(pictures[0]).resize((150, 101)).save(wide)
    images = [*pictures, wide]
    found = alone(folder, images=list(map(str, images)), words=WORDS, classes=None)
    predictions = hypvision.predict(images, SHIPPED)
    scores = np.stack([each.result.scores for each in predictions])
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-3, atol=1e-6)
    assert (np.argmax(found["scores"], 1) == scores.argmax(1)).all()
    about = json.loads((folder / "clip.json").read_text())
    assert tuple(about["classes"]) == predictions[0].result.names
    clip = create_clip(**clip_options(SHIPPED))
    assert len(check_walks(clip, found, images, WORDS)) > 4


def tiny(family, monkeypatch):
    """A random model of a family, whose curvatures and scales matter."""
    text = dict(context_length=20, vocab_size=49408, width=32, heads=2, layers=2)
    vision = dict(image_size=32, layers=2, width=32, patch_size=16, head_width=16)
    config = ARCHITECTURES[f"{family}-vit-s-16"]
    config = config | dict(embed_dim=24, vision_cfg=vision, text_cfg=text)
    monkeypatch.setitem(ARCHITECTURES, "tiny", config)
    torch.manual_seed(0)
    clip = create_clip("tiny")
    with torch.no_grad():
        for name, parameter in clip.model.named_parameters():
            if "curv" in name or "alpha" in name:
                parameter.add_(0.3 * torch.randn(()) + ("alpha" in name))
    templates = ("a photo of a {}", "a drawing of the {}, in colours", "{}")
    return clip._replace(templates=templates)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["clip", "meru", "hycoclip", "uncha", "phyclip", "atmg"])
def test_every_family_without_pytorch(family, monkeypatch, tmp_path):
    pytest.importorskip("onnxruntime")
    clip = tiny(family, monkeypatch)
    folder = tmp_path / family
    export_ranking(clip, folder)
    long = " ".join(WORDS[:30])  # is cut: by UNCHA without an end
    words = [*WORDS[:40], long]
    images = [str(path) for path in sorted(NOTO.glob("*.png"))[:4]]
    names = ["cat face, cat", "fruit", long]
    found = alone(folder, images=images, words=words, classes=names)
    with pytest.warns(UserWarning, match="cut to their beginning"):
        check_walks(clip, found, images, words)
    predictor = hypvision.clip.open_vocabulary.OpenVocabularyCLIP()
    predictor.build_clip(clip, tune="frozen", classes=names, dense=False)
    with torch.no_grad():
        points = embed_images(clip, images)
        scale = hypvision.clip.towers.logit_scale_of(clip.model).exp()
        scores = clip.space.class_logits(points, predictor.class_points(), scale).softmax(-1)
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-3, atol=1e-5)
    predicted = zero_shot(predictor.eval(), Request({}))
    shown = predicted.find([predicted.prepare(Image.open(path).convert("RGB")) for path in images])
    assert [int(np.argmax(row)) for row in found["scores"]] == [
        int(each.scores.argmax()) for each in shown
    ]


def test_tokens_are_those_of_open_clip():
    clip = create_clip(**clip_options(SHIPPED))
    texts = [
        "A photo of a Dog's tail,  3½ km!!",
        "they'll say we've DON'T",
        "été, naïve cafe\u0301; 日本語 😀😀 ΣΑΣ İ",
        "a_b <b>&amp;lt;</b>",
        "",
        "two <end_of_text> ends",
        "very " * 90 + "long",
    ]
    for ends in (True, False):
        about = dict(context=77, ends=ends)
        reader = object.__new__(rank.CLIP)
        vars(reader).update(about=about, _tokenizer=tokenizer_of(clip))
        clip.tokenizer.ends = ends
        clip.tokenizer.warned = True
        np.testing.assert_array_equal(reader.tokens(texts), clip.tokenizer(texts))


def spaces():
    """Those of hypvision, and of rank.py."""
    c = torch.tensor([0.3, 1.0, 4.0]).double()
    root = torch.nn.functional.normalize(torch.ones(9).double(), dim=0)
    yield Sphere(root), rank.Sphere(dict(root=root.tolist()))
    yield Hyperboloid(0.4, 0.2), rank.Hyperboloids(dict(c=0.4, min_radius=0.2))
    product = rank.Hyperboloids(dict(c=c.tolist(), min_radius=0.1))
    yield HyperboloidProduct(c, 3), product
    yield ExteriorAngles(0.1, 0.2), rank.Angles(dict(c=0.1, min_radius=0.2))


@each("truth, space", [*spaces()])
@each("length", [1e-6, 0.3, 2.0])
def test_numbers_are_those_of_the_space(truth, space, length):
    torch.manual_seed(0)
    features = length * torch.randn(12, 3, 9, dtype=torch.float64)
    points = truth.embed(features, "text")
    x, y = points[:, 0], torch.cat([points[:7, 1], points[:2, 0], truth.way(points[0, 0], 3)[1:]])
    own, others = x.numpy(), y.numpy()
    close = dict(rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(space.similarity(own, others), truth.similarity(x, y), **close)
    one = torch.ones(())
    classes = truth.mean(features, "text")
    if not isinstance(truth, ExteriorAngles):  # whose angles of equal points mean nothing
        expected = truth.class_logits(x, y, one)
        found = space.logits(own, others)
        # of equal points the matrix product leaves 1e-8 sinh(r), as lorentz.cdist says
        equal = (own[:, None] == others[None]).all(-1)
        np.testing.assert_allclose(found[equal], expected[equal], rtol=1e-8, atol=1e-5)
        np.testing.assert_allclose(found[~equal], expected[~equal], rtol=1e-8, atol=1e-6)
    expected = truth.class_logits(x[:5], classes[5:], one)
    np.testing.assert_allclose(space.logits(own[:5], classes[5:].numpy()), expected, atol=1e-6)
    np.testing.assert_allclose(space.radius(own), truth.radius(x), **close)
    np.testing.assert_allclose(space.way(own[0], 5), truth.way(x[0], 5), **close)
    way = truth.way(x[0], 5, y[1])
    np.testing.assert_allclose(space.way(own[0], 5, others[1]), way, **close)
    if length < 2:  # no lift is cut
        np.testing.assert_allclose(space.mean(points.numpy()), classes, **close)
    if not isinstance(truth, Sphere):
        cones = []
        for point, row in zip(x, own):
            cones += [truth.entails(y, point.expand_as(y)).numpy()]
            np.testing.assert_array_equal(space.inside(others, row[None]), cones[-1])
        assert np.any(cones) and (length < 1 or not np.all(cones))


def test_the_formulas_of_the_page():
    """docs/hyperbolic-clip.md has them for browsers, in this form."""
    c, radius, share = 0.6, 0.1, 0.3
    space = rank.Hyperboloids(dict(c=c, min_radius=radius))
    s, other = np.random.default_rng(0).normal(size=(2, 40, 5)) * 0.6
    other[::2] /= 20
    other += 1.5 * s
    t, later = (np.sqrt(1 / c + (x**2).sum(-1)) for x in (s, other))
    x, y = np.column_stack([t, s]), np.column_stack([later, other])
    inner = (s * other).sum(-1) - t * later
    np.testing.assert_allclose(space.similarity(x, y).diagonal(), inner)
    np.testing.assert_allclose(space.logits(x, y).diagonal(), -np.arccosh(-c * inner) / c**0.5)
    size = np.linalg.norm(s, axis=-1)
    r = np.arcsinh(c**0.5 * size)
    np.testing.assert_allclose(space.radius(x), r / c**0.5)
    moved = s * (np.sinh((1 - share) * r) / np.sinh(r))[:, None]
    np.testing.assert_allclose([space.way(row, 11)[3, 1:] for row in x], moved)
    g = ((other - s) * s).sum(-1) / size
    w = np.linalg.norm(other - s - (g / size)[:, None] * s, axis=-1)
    angle = np.arctan2(w / c**0.5, t * g - size * (later - t))
    inside = angle <= np.arcsin(np.minimum(1, 2 * radius / (c**0.5 * size)))
    found = [space.inside(x[[row]], y[[row]])[0] for row in range(40)]
    np.testing.assert_array_equal(found, inside)
    assert 0 < inside.sum() < 40


@each("size", [(40, 40), (64, 64), (101, 57), (33, 200)])
@each("mode, word", [("shortest", None), ("squash", "squash")])
def test_images_are_prepared_alike(size, mode, word):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    about = dict(input_size=(3, 64, 64), crop_mode=word, interpolation="bicubic")
    about |= dict(mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])
    seen = Preprocessing((64, 64), "bicubic", mode)(image).numpy() / 255
    mean, std = (np.array(about[key])[:, None, None] for key in ("mean", "std"))
    np.testing.assert_allclose(rank.prepared(image, about), (seen - mean) / std, atol=1e-5)


def test_what_cannot_be_written_is_told(tmp_path):
    clip = create_clip(**clip_options(SHIPPED))
    with pytest.raises(HypvisionError, match="another tokenizer than OpenAI's"):
        export_ranking(clip._replace(tokenizer=lambda texts: texts), tmp_path / "a")
    clip.model.visual.preprocess_cfg["resize_mode"] = "longest"
    with pytest.raises(HypvisionError, match="in the mode 'longest', but"):
        export_ranking(clip, tmp_path / "a")
    (tmp_path / "kept").write_text("")
    with pytest.raises(HypvisionError, match="is not empty"):
        export_ranking(clip, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    command = ["export", "--clip", SHIPPED, "--part", "both", "--format", "torchexport"]
    assert main(command) != 0
