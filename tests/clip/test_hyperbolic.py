"""MERU and HyCoCLIP as CLIP models: checkpoints, embeddings against mpmath, what they refuse."""

import json
import math
import warnings

import mpmath
import pytest
import torch
import torch.nn.functional as F
from helpers.cases import each

from hypvision.checkpoints.match import load_trained
from hypvision.clip import locate
from hypvision.clip.hyperbolic import HyperbolicCLIP, sincos_positions
from hypvision.clip.hyperbolic_checkpoint import (
    PIXELS,
    PUBLISHED,
    SCALARS,
    check_scalars,
    from_official,
    to_official,
    variant,
)
from hypvision.clip.models import ARCHITECTURES, CLIPBundle, create_clip, pretrained_tags
from hypvision.clip.names import clip_options
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP, set_tuning
from hypvision.clip.spaces import (
    ExteriorAngles,
    Hyperboloid,
    HyperboloidProduct,
    Sphere,
    space_of,
)
from hypvision.geometry import lorentz
from hypvision.io.errors import HypvisionError
from hypvision.tasks.contrastive import CLIPContrast
from hypvision.zoo.convert import CONVERTERS, convert_file
from hypvision.zoo.export_clip import clip_tower


def tiny(geometry="lorentz", **options):
    torch.manual_seed(0)
    vision = dict(image_size=32, timm_model_name="test_vit", timm_pool="token", timm_proj="linear")
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=2)
    return HyperbolicCLIP(24, vision, text, geometry=geometry, vision_heads=2, **options).eval()


@pytest.fixture
def meru(tmp_path, monkeypatch):
    """An official file of a small model, and its name."""
    model = tiny()
    vision = dict(image_size=32, timm_model_name="test_vit", timm_pool="token", timm_proj="linear")
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=2)
    config = dict(embed_dim=24, vision_cfg=vision, text_cfg=text, vision_heads=2)
    monkeypatch.setitem(ARCHITECTURES, "meru-tiny", config | dict(geometry="lorentz"))
    monkeypatch.setitem(ARCHITECTURES, "clip-tiny", config | dict(geometry="sphere"))
    weights = to_official(model.state_dict())
    weights["curv"] += 0.3
    torch.save({"model": weights, "iteration": 3}, tmp_path / "meru.pth")
    return tmp_path / "meru.pth", weights


def test_official_files_go_in_and_come_out_equal(meru):
    path, weights = meru
    clip = create_clip("meru-tiny", path)
    assert {name.split(".")[0] for name in weights} == {
        "visual", "textual", "visual_proj", "textual_proj", "logit_scale", "curv", "visual_alpha",
        "textual_alpha", "pixel_mean", "pixel_std",
    }  # fmt: skip
    back = to_official(clip.model.state_dict())
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    assert clip.mean == pytest.approx((123.675, 116.28, 103.53))
    assert isinstance(clip.space, Hyperboloid)


HYCOCLIP = torch.tensor([0.229, 0.224, 0.225]).reshape(
    3, 1, 1
)  # mean and deviation in its official files


def test_the_normalisation_of_a_file_goes_everywhere(meru, tmp_path, monkeypatch):
    """Through a conversion both ways, a training and its checkpoint, an export; and files without
    it stay MERU's."""
    path, weights = meru
    images = torch.randint(0, 256, (2, 3, 32, 32))
    torch.save({"model": {**weights, "pixel_mean": HYCOCLIP}}, path)
    clip = create_clip("meru-tiny", path)
    expected = clip.embed_images(images)
    assert clip.mean == pytest.approx([255 * value for value in HYCOCLIP.flatten().tolist()])
    monkeypatch.setitem(
        CONVERTERS, "meru", CONVERTERS["meru"]._replace(variant=lambda weights: ("tiny", {}))
    )
    convert_file("meru", path, tmp_path / "ours.safetensors")
    convert_file("meru", tmp_path / "ours.safetensors", tmp_path / "out.pth", to_official=True)
    back = torch.load(tmp_path / "out.pth", weights_only=True)["model"]
    assert all(torch.equal(back[name], HYCOCLIP) for name in PIXELS)
    torch.testing.assert_close(
        create_clip("meru-tiny", tmp_path / "ours.safetensors").embed_images(images), expected
    )

    task = CLIPContrast(dict(name="meru-tiny"), classes=["a"])
    torch.save(
        {"state_dict": CLIPContrast(dict(name="meru-tiny", pretrained=path)).state_dict()},
        tmp_path / "a.pth",
    )
    load_trained(task, torch.load(tmp_path / "a.pth", weights_only=True), tmp_path / "a.pth")
    torch.testing.assert_close(task(images, None), expected)
    torch.testing.assert_close(
        create_clip("meru-tiny", tmp_path / "a.pth").embed_images(images), expected
    )
    about = clip_tower(clip, "image")[2]
    assert about["std"] == pytest.approx(HYCOCLIP.flatten().tolist()) == about["mean"]

    # A user who forces another gets it; files of older trainings have none.
    forced = create_clip("meru-tiny", path, force_preprocess_cfg=dict(mean=(0.5, 0.5, 0.5)))
    assert forced.mean == (127.5,) * 3 and forced.std == clip.std
    old = {
        f"clip.{name}": value
        for name, value in clip.model.state_dict().items()
        if name not in PIXELS
    }
    torch.save({"state_dict": old}, tmp_path / "old.pth")
    assert create_clip("meru-tiny", tmp_path / "old.pth").mean == pytest.approx(
        (123.675, 116.28, 103.53)
    )
    load_trained(task, torch.load(tmp_path / "old.pth", weights_only=True), tmp_path / "old.pth")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("offsets", "'offsets'"),
        ("visual.offsets", "visual.trunk.offsets"),
        ("textual.resblocks.0.offsets", "transformer.resblocks.0.offsets"),
    ],
)
def test_weights_of_other_models_are_not_dropped(meru, entry, message):
    """Without them embeddings would be wrong."""
    path, weights = meru
    torch.save({"model": {**weights, entry: torch.zeros(())}}, path)
    with pytest.raises(HypvisionError, match=message):
        create_clip("meru-tiny", path)
    if "." in entry:
        return
    model = OpenVocabularyCLIP()
    model.build_clip(dict(name="meru-tiny"), tune="frozen", dense=False)
    for load in (
        lambda: clip_options(str(path)),
        lambda: convert_file("meru", path, path.with_name("ours.pth")),
        lambda: model.checkpoint_filter({**weights, entry: torch.zeros(())}),
    ):
        with pytest.raises(HypvisionError, match=message):
            load()
    ours = from_official(weights)
    torch.save({**ours, entry: torch.zeros(())}, path)
    with pytest.raises(HypvisionError, match=entry):
        create_clip("meru-tiny", path)


def test_a_training_leaves_constants_alone():
    """The positions of the ViT (sheet 1), and a curvature that is not learned."""
    for model, fixed in (
        (tiny(), {"visual.trunk.pos_embed"}),
        (tiny("sphere"), {"visual.trunk.pos_embed"}),
        (tiny(learn_curvature=False), {"visual.trunk.pos_embed", "curv"}),
    ):
        assert {name for name, p in model.named_parameters() if not p.requires_grad} == fixed
        for mode in ("full", "image", "text"):
            set_tuning(model, mode)
            trained = {name for name, p in model.named_parameters() if p.requires_grad}
            assert trained and not trained & fixed, mode
            # The scale of a modality trains with its tower, the curvature, which both have, with
            # either.
            scalars = (
                {*SCALARS} - {dict(image="textual_alpha", text="visual_alpha").get(mode)} - fixed
            )
            assert trained & {*SCALARS} == (scalars if hasattr(model, "curv") else set()), mode
        set_tuning(model, "full")
        assert {name for name, p in model.named_parameters() if not p.requires_grad} == fixed


@each("length", [1e-6, 0.5, 3.0, 14.0, 60.0])
def test_points_and_similarities_against_mpmath(length):
    """The sheet's lift with its cut at asinh(2^15), and the inner product of two points."""
    c, space = 1.7, Hyperboloid(1.7, scales={"image": torch.tensor(0.5)})
    features = (
        F.normalize(torch.randn(2, 24, generator=torch.Generator().manual_seed(0)), dim=-1)
        * length
        / 0.5
    )
    points = space.embed(features, "image")
    with mpmath.workdps(30):
        truth = []
        for row in features.double():
            v = [mpmath.mpf(float(value)) / 2 for value in row]
            norm = mpmath.sqrt(sum(value**2 for value in v))
            root = mpmath.sqrt(mpmath.mpf(c)) * norm
            x = [mpmath.sinh(min(root, mpmath.asinh(2**15))) * value / root for value in v]
            truth.append([mpmath.sqrt(1 / mpmath.mpf(c) + sum(value**2 for value in x)), *x])
        assert torch.allclose(
            points.double(),
            torch.tensor([[float(v) for v in row] for row in truth]).double(),
            rtol=2e-5,
        )
        inner = -truth[0][0] * truth[1][0] + sum(a * b for a, b in zip(truth[0][1:], truth[1][1:]))
        assert float(space.similarity(points, points)[0, 1]) == pytest.approx(
            float(inner), rel=2e-5
        )
        logits = space.logits(points, points, torch.tensor(2.0))
        assert float(logits[0, 1]) == pytest.approx(
            -2 * float(mpmath.acosh(max(1, -c * inner)) / mpmath.sqrt(c)), abs=2e-3
        )


@each("c", [0.1, 1.0, 10.0])
def test_points_lie_on_the_hyperboloid(c):
    features = torch.randn(50, 24) * torch.logspace(-4, 1, 50)[:, None]
    points = Hyperboloid(c).embed(features, "image").double()
    constraint = points[:, 0] ** 2 - points[:, 1:].square().sum(1) - 1 / c
    assert (constraint.abs() <= 1e-6 * points[:, 0] ** 2).all()


def test_without_curvature_the_ranking_is_that_of_euclidean_distance():
    """Of features in float64; with the curvature 1 it is another."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 24, generator=generator, dtype=torch.float64) for n in (20, 30))
    orders = [torch.cdist(x, y).argsort()]
    for c in (1e-6, 1.0):
        space = Hyperboloid(c)
        orders.append(
            space.similarity(space.embed(x, "image"), space.embed(y, "text")).argsort(
                descending=True
            )
        )
    assert torch.equal(orders[0], orders[1]) and not torch.equal(orders[0], orders[2])


def test_templates_are_averaged_before_the_lift():
    features = torch.randn(3, 4, 24)
    for space in (Hyperboloid(0.8, scales={"text": torch.tensor(0.3)}), Sphere()):
        found = space.mean(features, "text")
        if isinstance(space, Sphere):
            expected = F.normalize(F.normalize(features, dim=-1).sum(1), dim=-1)
        else:
            expected = lorentz.expmap0(0.3 * features.sum(1) / 4, 0.8)
        assert torch.allclose(found, expected, atol=1e-6)


def test_positions_are_those_of_the_sheet():
    table = sincos_positions((2, 3), 8)[0]
    assert table.shape == (7, 8) and not table[0].any()
    for row, (w, h) in enumerate([(w, h) for w in range(3) for h in range(2)]):
        omega = [1.0, 10000**-0.5]
        expected = [f(place * o) for place in (w, h) for f in (math.sin, math.cos) for o in omega]
        assert table[1 + row].tolist() == pytest.approx(expected, abs=1e-6)


def test_merging_keeps_embeddings_and_its_factors_are_one():
    model = tiny()
    images, tokens = torch.randn(2, 3, 32, 32), torch.tensor([[49406, 320, 1929, 49407, 0, 0]])
    before = (
        model.encode_image(images, normalize=True),
        model.encode_text(F.pad(tokens, (0, 71)), normalize=True),
    )
    model.merge()
    after = (
        model.encode_image(images, normalize=True),
        model.encode_text(F.pad(tokens, (0, 71)), normalize=True),
    )
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(before, after))
    assert float(model.visual_alpha) == float(model.textual_alpha) == 0


def test_autocast_keeps_lift_and_distances_in_float32():
    model = tiny()
    with torch.autocast("cpu", torch.bfloat16):
        points = model.encode_image(torch.randn(2, 3, 32, 32), normalize=True)
    c = model.curv.exp()
    assert points.dtype == torch.float32
    assert torch.allclose(lorentz.minkowski_inner(points, points), -1 / c.expand(2, 1), atol=1e-5)
    far = model.space.embed(torch.randn(4, 24) * 6, "image")
    scale = torch.tensor(3.0)
    expected = model.space.similarity(far, points), model.space.logits(far, points, scale)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.space.similarity(far, points), model.space.logits(far, points, scale)
    assert all(torch.equal(x, y) for x, y in zip(found, expected))


SPACES = {
    "sphere": lambda: Sphere(F.normalize(torch.ones(16), dim=0), "cosine"),
    "hyperboloid": lambda: Hyperboloid(0.7),
    "angles": lambda: ExteriorAngles(0.7),
    "product": lambda: HyperboloidProduct(torch.tensor([0.7, 1.2]), 8),
}


@each("kind", sorted(SPACES))
def test_autocast_changes_no_comparison_in_any_space(kind):
    """So a training loop may compute its loss where autocast is on."""
    torch.manual_seed(0)
    space = SPACES[kind]()
    images, texts = (space.embed(torch.randn(n, 16), "image") for n in (3, 4))
    scale = torch.tensor(50.0)

    def compared():
        return (
            space.similarity(images, texts),
            space.scores(images, texts),
            space.ranking(images, texts, "image"),
            space.logits(images, texts, scale),
            space.text_logits(texts, images, scale),
            space.class_logits(images, texts, scale),
            space.radius(texts),
            space.exterior_angle(images, texts[:3]),
            space.half_aperture(texts),
            space.way(images[0], 5),
        )

    expected = compared()
    with torch.autocast("cpu", torch.bfloat16):
        found = compared()
    assert all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(found, expected))


@each("kind", sorted(SPACES))
def test_rounded_embeddings_are_compared_with_whole_ones(kind):
    """Autocast rounds those of images; those of words were embedded before."""
    space = SPACES[kind]()
    images, texts = (space.embed(torch.randn(3, 16), "image") for _ in range(2))
    rounded = images.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = space.similarity(rounded, texts), space.radius(rounded)
    expected = space.similarity(rounded.float(), texts), space.radius(rounded.float())
    for x, y in zip(found, expected):
        torch.testing.assert_close(x.float(), y, rtol=1e-2, atol=1e-2)


def test_a_file_of_a_hyperbolic_clip_is_not_taken_for_its_baseline(tmp_path):
    """The two have the same tables: ``--clip FILE`` tells them apart, and no loader takes the one
    for the other."""
    for name in ("hycoclip-emoji-s16", "emoji-s16"):
        model = create_clip(name).model
        if name.startswith("hyco"):
            model.curv.data.fill_(0.5)
        torch.save(model.state_dict(), path := tmp_path / f"{name}.pth")
        options = clip_options(str(path))
        assert json.loads(json.dumps(options)) == dict(
            name=name, pretrained=str(path)
        )  # few-shot records store them
        space = create_clip(**options).space
        assert (
            float(space.c) == pytest.approx(math.exp(0.5))
            if name.startswith("hyco")
            else isinstance(space, Sphere)
        )
    baseline = OpenVocabularyCLIP()
    baseline.build_clip(dict(name="emoji-s16"), tune="frozen", dense=False)
    hyperbolic = tmp_path / "hycoclip-emoji-s16.pth"
    for load in (
        lambda: create_clip(**clip_options(f"emoji-s16:{hyperbolic}")),
        lambda: baseline.checkpoint_filter(
            torch.load(hyperbolic)
        ),  # test, resume and load_from of the engine
    ):
        with pytest.raises(HypvisionError, match="has 'curv', so its model is MERU"):
            load()


def test_scalars_stay_in_their_intervals():
    model = tiny()
    with torch.no_grad():
        for parameter in (model.curv, model.visual_alpha, model.textual_alpha, model.logit_scale):
            parameter.fill_(50.0)
    model.clamp_scalars()
    assert float(model.curv) == pytest.approx(math.log(10))
    assert float(model.logit_scale) == pytest.approx(math.log(100))
    assert float(model.visual_alpha) == float(model.textual_alpha) == 0


NO_SCALARS = {"curv": None, "visual_alpha": None, "textual_alpha": None}
OTHERS = [  # a change of the weights, the model that reads them, what the error mentions
    (NO_SCALARS, "meru-tiny", "its model is the CLIP baseline"),
    ({}, "clip-tiny", "MERU or HyCoCLIP"),
    ({"textual_alpha": None}, "meru-tiny", "textual_alpha"),
    ({"curv": torch.tensor(5.0)}, "meru-tiny", "curvature 148.4"),
]
DAMAGED = [
    ({"curv": None}, "meru-tiny", "curv"),
    ({"logit_scale": None}, "meru-tiny", "logit_scale"),
    (NO_SCALARS | {"logit_scale": None}, "clip-tiny", "logit_scale"),
    ({"curv": torch.tensor(math.log(0.09))}, "meru-tiny", "curvature 0.09"),
    ({"curv": torch.zeros(2)}, "meru-tiny", "curv"),
    ({"curv": torch.tensor(math.nan)}, "meru-tiny", "curv"),
    ({"visual_alpha": torch.tensor(math.inf)}, "meru-tiny", "'visual_alpha'"),
    ({"pixel_mean": torch.full((3, 1, 1), math.nan)}, "meru-tiny", "'pixel_mean'"),
    ({"pixel_mean": torch.ones(1)}, "meru-tiny", "'pixel_mean'"),
    ({"pixel_std": torch.zeros(3, 1, 1)}, "meru-tiny", "'pixel_std'"),
    ({"textual.attn_mask": torch.ones(77, 77).bool()}, "meru-tiny", "'textual.attn_mask'"),
]


def without_none(weights):
    return {key: value for key, value in weights.items() if value is not None}


@pytest.mark.parametrize(("change", "name", "mentioned"), OTHERS + DAMAGED)
def test_wrong_files_are_named(meru, change, name, mentioned):
    path, weights = meru
    torch.save({"model": without_none({**weights, **change})}, path)
    with pytest.raises(HypvisionError, match=mentioned):
        create_clip(name, path)


@pytest.mark.parametrize(("change", "name", "mentioned"), OTHERS)
@pytest.mark.parametrize("official", [True, False])
def test_trainings_and_tests_refuse_them_too(meru, change, name, mentioned, official):
    """Weights that ``hypvision test`` or ``--resume`` reads are no argument of ``create_clip``."""
    weights = without_none({**meru[1], **change})
    if not official:
        renamed = without_none({**from_official(meru[1]), **change})
        weights = {f"clip.{key}": value for key, value in renamed.items()}
    model = OpenVocabularyCLIP()
    model.build_clip(dict(name=name), tune="frozen", dense=False)
    with pytest.raises(HypvisionError, match=mentioned):
        model.checkpoint_filter(weights)


def test_a_part_of_the_weights_may_lack_the_scalars():
    model = OpenVocabularyCLIP()
    model.build_clip(CLIPBundle(tiny(), len, (0.0,) * 3, (1.0,) * 3), tune="frozen", dense=False)
    assert [*model.checkpoint_filter({"clip.ln_final.bias": torch.zeros(32)})] == [
        "clip.ln_final.bias"
    ]


@pytest.mark.parametrize("bound, way", [(0.1, 1), (10.0, -1)])
def test_a_training_at_the_bound_of_its_curvature_goes_on(bound, way):
    """Its checkpoints are saved after a step, and the clamp comes before the next one."""
    model = OpenVocabularyCLIP()
    model.build_clip(CLIPBundle(tiny(), len, (0.0,) * 3, (1.0,) * 3), tune="full", dense=False)
    with torch.no_grad():
        model.clip.curv.fill_(math.log(bound))
    model.clip.clamp_scalars()
    optimizer = torch.optim.AdamW([model.clip.curv], lr=8e-3, weight_decay=0.0)
    (way * model.clip.curv).backward()
    optimizer.step()
    assert way * (float(model.clip.curv) - math.log(bound)) < -7e-3
    assert "clip.curv" in model.checkpoint_filter(model.state_dict())


def test_the_root_of_a_baseline(meru, tmp_path):
    path, _ = meru
    weights, root = to_official(tiny("sphere").state_dict()), torch.arange(24.0)
    torch.save({"model": weights, "root": root}, path)
    assert torch.allclose(create_clip("clip-tiny", path).space.root, root / root.norm())
    for wrong in (torch.zeros(24), torch.ones(23), torch.full((24,), math.nan), "root"):
        torch.save({"model": weights, "root": wrong}, path)
        with pytest.raises(HypvisionError, match="must be a vector of 24 numbers"):
            create_clip("clip-tiny", path)


@pytest.mark.parametrize("geometry", ["lorentz", "sphere"])
def test_converting_keeps_weights_and_root(tmp_path, monkeypatch, geometry):
    monkeypatch.setitem(
        CONVERTERS, "meru", CONVERTERS["meru"]._replace(variant=lambda weights: ("tiny", {}))
    )
    content = {"model": to_official(tiny(geometry).state_dict()), "iteration": 3}
    content |= {"root": torch.arange(24.0)} if geometry == "sphere" else {}
    torch.save(content, tmp_path / "in.pth")
    convert_file("meru", tmp_path / "in.pth", tmp_path / "ours.safetensors")
    convert_file("meru", tmp_path / "ours.safetensors", tmp_path / "out.pth", to_official=True)
    back = torch.load(tmp_path / "out.pth", weights_only=True)
    assert back.keys() == content.keys() - {"iteration"}
    assert back["model"].keys() == content["model"].keys()
    assert all(torch.equal(value, content["model"][name]) for name, value in back["model"].items())
    assert geometry == "lorentz" or torch.equal(back["root"], content["root"])


def test_names_and_tags():
    assert pretrained_tags("hycoclip-vit-s-16") == ["grit"]
    assert pretrained_tags("meru-vit-l-16") == ["redcaps"]
    assert pretrained_tags("meru-vit-b-16") == ["redcaps", "grit"]
    assert pretrained_tags("emoji-t8") == []
    assert isinstance(space_of(torch.nn.Identity()), Sphere)
    with pytest.raises(HypvisionError, match="has no weights 'openai'"):
        create_clip("meru-vit-s-16", "openai")
    check_scalars({}, "clip", "file")


def test_weights_from_every_place(meru, tmp_path, monkeypatch):
    """A tag, a file of the hub, an address with a sum and the path of a file lead to the same
    model."""
    path, _ = meru
    asked = []
    monkeypatch.setattr(locate, "fetch_first", lambda address: asked.append(address) or path)
    monkeypatch.setattr(
        locate, "fetch_from_hub", lambda repository, name: asked.append((repository, name)) or path
    )
    monkeypatch.setattr(locate, "fetch", lambda address: asked.append(address) or path)
    monkeypatch.setitem(
        PUBLISHED, "meru-tiny", {"redcaps": "https://host/meru.pth", "grit": "hf-hub:me/grit#m.pth"}
    )
    found = [create_clip("meru-tiny", path).model.state_dict()]
    for source in (
        "redcaps",
        "grit",
        "hf-hub:you/repo#other.pth",
        "https://host/net.pth#sha256=00",
        str(path),
    ):
        found.append(create_clip("meru-tiny", source).model.state_dict())
    assert asked == ["https://host/meru.pth", ("me/grit", "m.safetensors"), ("you/repo",
    "other.safetensors"),
                     "https://host/net.pth#sha256=00"]  # fmt: skip
    assert all(torch.equal(value, found[0][name]) for each in found for name, value in each.items())


def test_a_file_tells_its_network():
    """The width of the ViT says the size, the curvature the family."""
    for width, size in ((384, "s"), (768, "b"), (1024, "l")):
        weights = {"visual.trunk.norm.weight": torch.zeros(width)}
        assert variant(weights) == (f"clip-vit-{size}-16", {})
        assert variant(weights | {"curv": torch.zeros(())}) == (f"meru-vit-{size}-16", {})
    with pytest.raises(HypvisionError, match="has the width 192"):
        variant({"visual.trunk.norm.weight": torch.zeros(192)})


def test_long_texts_are_cut_with_one_warning(meru):
    clip = create_clip("meru-tiny", meru[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits = clip.tokenizer(["a " * 75, "a dog"])  # with the start and the end they are 77 tokens
    with pytest.warns(UserWarning, match="'one a a.*has 80 tokens. The model takes 77"):
        cut = clip.tokenizer(["a dog", "one" + " a" * 77])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = clip.tokenizer(["one" + " a" * 100])
    assert torch.equal(cut[1], again[0])
    assert cut.shape == (2, 77)
    assert int(cut[1, -1]) == int(fits[0, -1]) == 49407
    assert torch.equal(cut[1, 2:-1], fits[0, 2:-1])


def test_the_last_block_of_the_class_token_alone_gives_the_same(monkeypatch):
    model, images = tiny(), torch.randn(3, 3, 32, 32)
    found = {}
    for name, encode in (("ours", model.encode_image), ("timm", model.visual)):
        model.zero_grad()
        out = encode(images)
        out.square().sum().backward()
        found[name] = [out, *(p.grad for p in model.visual.parameters() if p.requires_grad)]
    for x, y in zip(*found.values()):
        assert float((x - y).detach().norm()) <= 1e-5 * float(y.detach().norm()) + 1e-6
    calls = []
    model.visual.trunk.blocks[-1].register_forward_hook(
        lambda *args: calls.append(1)
    )  # then it runs as a whole
    assert torch.allclose(model.encode_image(images), found["timm"][0], atol=1e-5) and calls


@pytest.mark.parametrize("space", [Sphere(torch.ones(4) / 2), Hyperboloid(1.0)], ids=repr)
def test_points_of_two_spaces_are_named(space):
    for method in (space.similarity, space.scores):
        with pytest.raises(ValueError, match=r"\(3, 4\) and \(5, 6\)"):
            method(torch.ones(3, 4), torch.ones(5, 6))
    with pytest.raises(ValueError, match=r"\(3, 4\), y \(5, 4\) do not fit"):
        space.exterior_angle(torch.ones(3, 4), torch.ones(5, 4))
