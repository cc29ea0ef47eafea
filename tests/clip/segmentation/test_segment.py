"""The command and the function that segment images; the command that measures radii."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import clip_models
from helpers.segmenter import build, random_image
from helpers.shapes.images import make_object
from PIL import Image

from hypvision.checkpoints.storage import expand_tokens, trim_tokens, write_weights
from hypvision.cli import main
from hypvision.clip import adapters, load_segmenter, segment
from hypvision.clip.models import create_clip
from hypvision.clip.radius import (
    hyperbolic_radius,
    radius_penalty,
    radius_statistics,
    scale_sweep,
    text_radii,
)
from hypvision.data.emoji_scenes import EmojiScenes
from hypvision.io.errors import HypvisionError
from hypvision.viz.overlay import draw_segmentation

SHIPPED = "zoo:emoji-t8.scenes"
DEMO = Path(__file__).parents[3] / "tools/demo_data"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for i in range(2):
        Image.fromarray(make_object(i, "val", 96)[0]).save(folder / f"{i}.png")
    return folder


def test_function_takes_any_image_and_any_classes(photos):
    model = build()
    array = random_image(40, 50).permute(1, 2, 0).numpy().astype(np.uint8)
    found = segment(array, ["cat", "dog"], model)
    assert found.labels.shape == (40, 50)
    assert found.classes == ("cat", "dog")
    assert set(np.unique(found.labels)) <= {0, 1}
    drawn = draw_segmentation(found.image, found.labels, found.classes)
    assert drawn.size[1] > 40
    assert draw_segmentation(found.image, found.labels, found.classes, legend=False).size == (
        50,
        40,
    )
    assert found.label_image().mode == "L"
    things = tuple(f"thing {i}" for i in range(300))
    with pytest.raises(
        HypvisionError, match="cannot distinguish 'thing 0'"
    ):  # to this tokenizer some are the same
        segment(Image.fromarray(array), things, model)
    model.set_classes(things)  # the caller answers for these
    many = segment(Image.fromarray(array), things, model)
    assert many.label_image().mode.startswith("I;16") and np.array(many.label_image()).max() < 300
    assert segment(photos / "0.png", ["cat"], model).labels.shape == (96, 96)
    for match, arguments in (
        ("must be uint8", (array.astype(float), ["cat"])),
        ("There is no image", ("none.png", ["cat"])),
        ("is empty", (array, [])),
        ("got Tensor", (torch.zeros(3, 40, 50), ["cat"])),
        ("must be uint8", (array[:0], ["cat"])),
        ("The image has 15 x 50 pixels, less than one patch of 16 x 16", (array[:15], ["cat"])),
    ):
        with pytest.raises(HypvisionError, match=match):
            segment(*arguments, model)


def test_shipped_clip_has_learned_something():
    """Classes of emoji on photos, which a random model cannot tell."""
    scenes = EmojiScenes(
        DEMO / "emoji", DEMO / "photos/test", length=48, size=64, count=(1, 1), side=(0.8, 0.9)
    )
    bundle = create_clip("emoji-t8", SHIPPED)
    drawn = [scenes.scene(i) for i in range(48)]
    images = torch.from_numpy(np.stack([scene.image for scene in drawn])).permute(0, 3, 1, 2)
    truth = torch.tensor([scenes.emoji[scene.objects[0].emoji].label for scene in drawn])
    texts = [f"a photo of a {name}" for name in scenes.metainfo["classes"]]
    with torch.no_grad():
        found = bundle.similarity(bundle.embed_images(images), bundle.embed_texts(texts))
    assert (found.argmax(1) == truth).float().mean() > 0.5  # chance: 1 in 21


def test_command(photos, tmp_path, capsys):
    common = [
        *("--classes", "groceries, fruit", "--clip", "emoji-t8", "--device", "cpu"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["clip", "segment", str(photos), *common]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "0_labels.png", "0_overlay.png", "1_labels.png", "1_overlay.png"
    ]  # fmt: skip
    assert set(np.unique(np.array(Image.open(tmp_path / "out/0_labels.png")))) <= {0, 1}
    (tmp_path / "names.txt").write_text("fruit\nbird\n")
    assert (
        main(
            [
                "clip",
                "segment",
                str(photos / "0.png"),
                *common[:1],
                str(tmp_path / "names.txt"),
                *common[2:],
            ]
        )
        == 0
    )
    capsys.readouterr()
    for match, arguments in (
        ("There is no image", ["none.png", *common]),
        ("more than once", [str(photos), "--classes", "a, a", *common[2:]]),
        ("There is no video", ["none.mp4", *common]),
        ("with one of openai", [str(photos), "--classes", "a", "--clip", "ViT-B-16"]),
        ("Did you mean emoji-t8", [str(photos), "--classes", "a", "--clip", "emoji-t9"]),
        ("There is no checkpoint", [str(photos), "--classes", "a", "--weights", "none.pth"]),
        ("at least 1", [str(photos), *common, "--every", "0"]),
    ):
        assert main(["clip", "segment", *arguments]) == 2
        assert match in capsys.readouterr().err


def test_what_ships_is_found_from_any_folder(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = load_segmenter(clip="emoji-t8")
    expected = create_clip("emoji-t8", SHIPPED).model
    given = own.state_dict()
    matches = [name for name in given if name.endswith("visual.conv1.weight")]
    assert matches and torch.equal(given[matches[0]], expected.state_dict()["visual.conv1.weight"])


def test_video(photos, tmp_path):
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(tmp_path / "a.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 64))
    if not writer.isOpened():
        pytest.skip("OpenCV has no codec here")
    for i in range(4):
        writer.write(make_object(i, "val", 64)[0])
    writer.release()
    out = str(tmp_path / "out")
    arguments = [
        "--classes",
        "fruit, bird",
        *f"--clip emoji-t8 --every 2 --out {out} --device cpu".split(),
    ]
    assert main(["clip", "segment", str(tmp_path / "a.mp4"), *arguments]) == 0
    reader = cv2.VideoCapture(str(tmp_path / "out/a_overlay.mp4"))
    assert reader.get(cv2.CAP_PROP_FRAME_COUNT) == 2
    # A pattern finds both kinds; videos of one name in two folders have results of their own.
    (tmp_path / "more").mkdir()
    (tmp_path / "a.mp4").rename(tmp_path / "more/0.mp4")
    (tmp_path / "more/1.avi").write_bytes((tmp_path / "more/0.mp4").read_bytes())
    (tmp_path / "0.MP4").write_bytes((tmp_path / "more/0.mp4").read_bytes())
    (tmp_path / "more/0.png").write_bytes((photos / "0.png").read_bytes())
    assert (
        main(["clip", "segment", str(tmp_path / "more/*"), str(tmp_path / "0.MP4"), *arguments])
        == 0
    )
    written = {path.name for path in (tmp_path / "out").iterdir()}
    apart = {"more_0_overlay.mp4", "more_1_overlay.mp4", "0_overlay.mp4"}
    assert written >= {*apart, "0_labels.png"}
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    for name in ("bad.mp4", "none.mp4", "none*.mp4"):
        assert main(["clip", "segment", str(tmp_path / name), *arguments]) == 2


def test_trained_weights_come_back(tmp_path, capsys, photos):
    config = tmp_path / "config.py"
    config.write_text(
        "model = dict(type='HyperCLIPSegmentor', clip=dict(name='emoji-t8'), "
        "adapter=dict(block=32), resolution=64,\n    crop=64, slide=64, "
        "head=dict(type='similarity'), train_classes=['a'])\n"
    )
    from hypvision.clip.segmentation.segment import _options_of
    from hypvision.clip.segmentation.segmenter import OpenVocabSegmenter
    from hypvision.engine.config import load_config

    model = OpenVocabSegmenter(**_options_of(load_config(config).model, config)).eval()
    write_weights(model.state_dict(), tmp_path / "weights.safetensors", "float32", {})
    again = load_segmenter(tmp_path / "weights.safetensors", load_config(config).model)
    names = ["fruit", "bird", "mammal"]
    first, second = (segment(photos / "0.png", names, which).labels for which in (model, again))
    assert (first == second).all()
    # Its adapter fits a CLIP with the same frozen weights.
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(again.clip):
            parameter.add_(0.1 * torch.randn_like(parameter))
    path = adapters.save(again.clip, tmp_path / "adapter.safetensors")
    base = create_clip("emoji-t8")
    base.model.load_state_dict(model.clip.state_dict(), strict=False)
    adapters.load(base.model, path)
    again.set_classes(names)
    own = text_radii(base, names, convention="half")
    assert torch.allclose(
        own, text_radii(base._replace(model=again.clip), names, convention="half")
    )
    with pytest.raises(
        HypvisionError, match="a model of another size .hyperclip-width64-patch8.. Give its config"
    ):
        load_segmenter(tmp_path / "weights.safetensors")
    with pytest.raises(HypvisionError, match="Leave out one"):
        load_segmenter(tmp_path / "weights.safetensors", clip="emoji-t8")
    plain = {**load_config(config).model, "adapter": None, "tune": "frozen"}
    with pytest.raises(HypvisionError, match="holds an adapter 'hyperclip'"):
        load_segmenter(tmp_path / "weights.safetensors", plain)
    with pytest.raises(
        HypvisionError, match="config describes the segmenter.* no weights are given"
    ):
        load_segmenter(config=plain)
    for options in (dict(weights="none.pth"), dict(clip="emoji-t8")):
        with pytest.raises(HypvisionError, match="not both"):
            segment(photos / "0.png", names, again, **options)


def test_offline_is_told(monkeypatch):
    import open_clip

    def offline(*args, **kwargs):
        raise OSError("Max retries exceeded\nmore")

    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    with pytest.raises(
        HypvisionError, match="'ViT-B-16:openai' cannot be fetched.* machine: emoji-s16.captions, "
    ):
        create_clip("ViT-B-16", "openai")
    monkeypatch.setattr(
        open_clip, "create_model", offline
    )  # of the text tower of transformers, say
    with pytest.raises(
        HypvisionError, match="cannot be made: Max retries exceeded. .* machine: emoji-s16.captions"
    ):
        create_clip("ViT-B-16")


def test_models_by_name(tmp_path):
    def fails(match, *args):
        with pytest.raises(HypvisionError, match=match):
            create_clip(*args)

    fails("no CLIP model 'ViT-B-17'. Did you mean", "ViT-B-17")
    fails("'ViT-B-16' has no weights 'mine'", "ViT-B-16", "mine")
    fails("There is no CLIP checkpoint", "emoji-t8", "none.pt")
    fails("'emoji-t8' has no weights 'openai'", "emoji-t8", "openai")
    fails(
        "weights of 'hcformer_nano' .classification., not of",
        "emoji-t8",
        "zoo:hcformer_nano.cifar10",
    )
    fails(
        "weights of 'emoji-t8' .zero-shot., not of the CLIP model 'ViT-B-16'", "ViT-B-16", SHIPPED
    )
    model = create_clip("emoji-t8").model
    used = torch.tensor([5, 49406, 49407])
    trimmed = trim_tokens(model.state_dict(), used)
    full = expand_tokens(trimmed)["token_embedding.weight"]
    within = {f"clip.{key}": value for key, value in model.state_dict().items()} | {
        "head.bias": torch.ones(())
    }
    beside = expand_tokens(trim_tokens(within, used, "clip."))
    assert beside.keys() == within.keys()
    assert torch.equal(beside["clip.token_embedding.weight"], full)
    assert torch.equal(full[used], model.token_embedding.weight[used]) and full[6].abs().sum() == 0
    path = tmp_path / "clip.safetensors"
    write_weights(trimmed, path, "float32", {})
    assert path.stat().st_size < 10e6
    assert torch.equal(create_clip("emoji-t8", path).model.token_embedding.weight, full)
    write_weights(trimmed, path, "int8", {})
    stored = create_clip("emoji-t8", path).model.token_embedding.weight
    assert path.stat().st_size < 4e6 and (stored - full).abs().max() <= full.abs().max() / 250
    write_weights({"a": torch.ones(1)}, tmp_path / "bad.safetensors", "float32", {})
    fails("does not fit the CLIP model", "emoji-t8", tmp_path / "bad.safetensors")


# Radius


def test_radius_is_twice_the_norm_whatever_the_curvature():
    z = torch.randn(7, 16, dtype=torch.double)
    for c in (0.01, 1.0):
        root = math.sqrt(c)
        n = z.norm(dim=-1, keepdim=True)
        point = torch.tanh(root * n) * z / (root * n)
        expected = 2 / root * torch.atanh(root * point.norm(dim=-1))
        assert torch.allclose(hyperbolic_radius(z, c), expected)
        assert torch.allclose(expected, 2 * n[:, 0])
        assert torch.allclose(hyperbolic_radius(point, c, input="ball"), expected)
        assert torch.allclose(hyperbolic_radius(z, c, "half"), n[:, 0])
    with pytest.raises(HypvisionError, match="not inside the ball"):
        hyperbolic_radius(z * 10, 1.0, input="ball")
    with pytest.raises(HypvisionError, match="convention must be one of 'metric2', 'half'"):
        hyperbolic_radius(z, convention="third")
    assert radius_statistics(torch.tensor([1.0, 2.0, 3.0]))["median"] == 2.0


def test_sweep_and_penalty():
    bundle = create_clip("emoji-t8", SHIPPED)
    with pytest.raises(HypvisionError, match="tower has none"):
        scale_sweep(bundle, ["fruit"], [1.0])
    adapters.inject(bundle.model, block=32)
    before = text_radii(bundle, ["fruit", "bird"])
    assert before.shape == (2,)
    found = scale_sweep(bundle, ["fruit", "bird"], [0.5, 1.0, 2.0])
    assert found[1.0] == pytest.approx(float(before.mean()), rel=1e-5)
    assert len(set(found.values())) == 3
    assert torch.allclose(text_radii(bundle, ["fruit", "bird"]), before)
    z = torch.randn(4, 8, requires_grad=True)
    radius_penalty(z, 1.0).backward()
    assert z.grad.isfinite().all() and (z.detach() * z.grad).sum() > 0  # long vectors are to shrink


def test_radius_command(tmp_path, photos, capsys):
    model = adapters.inject(create_clip("emoji-t8", SHIPPED).model, block=32)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.mul_(0.9)
    adapter = adapters.save(model, tmp_path / "a.safetensors")
    arguments = f"--clip emoji-t8 --classes voc20 --adapter {adapter} --images {photos}".split()
    assert (
        main(["clip", "radius", *arguments, "--sweep", "0.9", "1", "--out", str(tmp_path / "out")])
        == 0
    )
    printed = capsys.readouterr().out
    assert (
        "text voc20 before: mean" in printed and "patches after" in printed and "S x 0.9" in printed
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "radius.json",
        "radius.png",
    ]
    assert (
        main(
            [
                "clip",
                "radius",
                "--clip",
                "emoji-t8",
                "--classes",
                "fruit, bird",
                "--out",
                str(tmp_path / "named"),
            ]
        )
        == 0
    )
    assert "fruit, bird" in capsys.readouterr().out
    assert clip_models.VOCABULARY == 100
    torch.save(model.state_dict(), tmp_path / "model.pth")
    for wrong, match in (
        (["--clip", "ViT-B-32"], "Say which weights of 'ViT-B-32'"),
        (
            ["--clip", "emoji-t8", "--adapter", str(tmp_path / "model.pth")],
            "save the adapter of its clip",
        ),
    ):
        assert (
            main(["clip", "radius", *wrong, "--classes", "voc20", "--out", str(tmp_path / "out")])
            == 2
        )
        assert match in capsys.readouterr().err


def test_damaged_tables_of_words_are_refused():
    for change in (
        dict(size=torch.tensor(2**50)),  # too large for any memory
        dict(size=torch.tensor(-3)),
        dict(size=torch.arange(3)),
        dict(size=torch.tensor(math.nan)),
        dict(index=torch.tensor([0, 10**9])),
        dict(index=torch.tensor([0, -1])),
        dict(index=torch.rand(2)),
        dict(index=torch.arange(3)),
        dict(rows=torch.ones(2)),
        dict(size=None),
    ):
        parts = dict(rows=torch.ones(2, 4), index=torch.arange(2), size=torch.tensor(9)) | change
        weights = {
            f"token_embedding.{name}": value for name, value in parts.items() if value is not None
        }
        with pytest.raises(HypvisionError, match="token embedding .* is damaged"):
            expand_tokens(weights)


def test_weights_that_were_trained_anew_are_read_again(tmp_path, monkeypatch):
    model, module, read = build(), sys.modules["hypvision.clip.segmentation.segment"], []
    monkeypatch.setattr(
        module, "load_segmenter", lambda weights, clip: read.append(weights) or model
    )
    for given in (dict(weights=tmp_path / "w.pth"), dict(clip=f"ViT-B-32:{tmp_path}/w.pth")):
        read.clear()
        for content, count in (("a", 1), ("a", 1), ("bc", 2)):
            if count > len(read):
                (tmp_path / "w.pth").write_text(content)
            segment(Image.new("RGB", (96, 96)), ["cat"], **given)
            assert len(read) == count
        module._default.cache_clear()
