"""Captions made of tags: crops, words and their order against the label maps, mistakes told,
CamVid's configs."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")

from helpers.emoji import make_emoji

from hypvision.checkpoints.storage import expand_tokens
from hypvision.data.emoji_export import export_emoji
from hypvision.data.tag_captions import TagCaptions, caption_of
from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.tasks.contrastive import CLIPContrast
from hypvision.tasks.publishing import stripped

CONFIGS = Path(__file__).parents[2] / "configs/hyperclip"
NAMES = ["sky", "road", "apple"]
COLOURS = np.array([[0, 0, 255], [90, 90, 90], [255, 0, 0], [255, 255, 255]], dtype=np.uint8)
PREFIX = dict(img_path="img/train", seg_map_path="ann/train")


@pytest.fixture
def folder(tmp_path):
    """Two images of sky over road, one with a red apple and a stripe of void; colours tell the
    labels."""
    for kind in ("img", "ann"):
        (tmp_path / kind / "train").mkdir(parents=True)
    for number in range(2):
        labels = np.zeros((40, 60), dtype=np.uint8)
        labels[20:] = 1
        if number:
            labels[5:15, 10:30] = 2
            labels[:, 55:] = 3
        Image.fromarray(labels).save(tmp_path / f"ann/train/{number}.png")
        Image.fromarray(COLOURS[labels]).save(tmp_path / f"img/train/{number}.png")
    return tmp_path


def shares(inputs):
    """Of each name's colour, from the pixels alone."""
    pixels = inputs.permute(1, 2, 0).numpy().astype(int).reshape(-1, 3)
    nearest = np.abs(pixels[:, None] - COLOURS[None].astype(int)).sum(-1).argmin(1)
    return np.bincount(nearest, minlength=4)[:3] / len(pixels)


def test_sentences():
    assert caption_of(["road"]) == "a photo of a road"
    assert caption_of(["road", "apple"]) == "a photo of a road and an apple"
    assert caption_of(["apple", "road", "sky"]) == "a photo of an apple, a road and a sky"
    assert caption_of(["cat"], "A photo of {} in the scene") == "A photo of a cat in the scene"


def test_words_are_what_the_crop_shows(folder):
    (folder / "img/train/2.xcf").write_bytes(b"x")
    data = TagCaptions(folder, PREFIX, NAMES, size=48, zoom=(0.2, 0.9), share=0.1, most=2)
    assert str(data.usage).endswith(
        f"used 2 of 3 images. Left out: 1 images (suffix .xcf: {folder}/img/train/2.xcf)."
    )
    seen = set()
    for i in range(80):
        item = data[i]
        assert item["inputs"].shape == (3, 48, 48) and item["inputs"].dtype == torch.uint8
        words = re.findall(r"sky|road|apple", item["caption"])
        found = shares(item["inputs"])
        order = sorted(range(3), key=lambda k: -found[k])
        # Resizing moves borders by a pixel: words are checked where the shares leave no doubt.
        for k, name in enumerate(NAMES):
            if found[k] > 0.15 and k in order[:2]:
                assert name in words, (item["caption"], found)
            if found[k] == 0:
                assert name not in words, (item["caption"], found)
        if (
            len(words) == 2
            and abs(found[NAMES.index(words[0])] - found[NAMES.index(words[1])]) > 0.1
        ):
            assert found[NAMES.index(words[0])] > found[NAMES.index(words[1])]
        assert 1 <= len(words) <= 2
        if found.max() > 0.55:
            assert item["label"] == found.argmax()
        seen.update(words)
    assert seen == set(NAMES)


def test_samples_are_repeatable_and_single_ones_have_a_label(folder):
    data, again = (
        TagCaptions(folder, PREFIX, NAMES, single=True, jitter=0.2, length=30) for _ in range(2)
    )
    for i in range(30):
        one, two = data[i], again[i]
        assert torch.equal(one["inputs"], two["inputs"]) and one["caption"] == two["caption"]
        assert one["label"] >= 0
    other = TagCaptions(folder, PREFIX, NAMES, single=True, jitter=0.2, seed=1)
    assert any(not torch.equal(data[i]["inputs"], other[i]["inputs"]) for i in range(5))


def test_balance(folder):
    """Pixels: of sky 1200 + 20 * 55 - 200, of road 1200 + 20 * 55, of the apple 200; void does not
    count."""
    total = np.array([2100.0, 2300.0, 200.0])
    for balance in (0.0, 0.5, 1.0):
        chances = TagCaptions(folder, PREFIX, NAMES, balance=balance)._chances
        expected = total**balance / (total**balance).sum()
        assert np.allclose(chances, expected)
    assert np.allclose(
        TagCaptions(folder, PREFIX, [*NAMES, "void", "cow"])._chances[4], 0
    )  # nowhere to be seen


def test_an_unnamed_class_is_not_named_and_no_crop_is_drawn_for_it(folder):
    every, few = (TagCaptions(folder, PREFIX, NAMES, unnamed=names) for names in ((), ["road"]))
    assert few._chances[1] == 0 < few._chances[0] and every._chances[1] > 0
    captions = [[data[i]["caption"] for i in range(60)] for data in (every, few)]
    assert any("road" in caption for caption in captions[0])
    assert not any("road" in caption for caption in captions[1])
    assert any("sky" in caption for caption in captions[1])
    assert any("apple" in caption for caption in captions[1])
    single = TagCaptions(folder, PREFIX, NAMES, unnamed=["road"], single=True)
    assert {single[i]["label"] for i in range(20)} <= {0, 2}
    with pytest.raises(
        HypvisionError, match=r"unnamed\[0\] must be one of 'sky', 'road', 'apple', got 'rod'.*mean"
    ):
        TagCaptions(folder, PREFIX, NAMES, unnamed=["rod"])


def test_mistakes_are_told(folder):
    with pytest.raises(HypvisionError, match="img/val"):
        TagCaptions(folder, dict(img_path="img/val", seg_map_path="ann/val"), NAMES)
    for options in (
        dict(zoom=(0.5, 0.2)),
        dict(zoom=(0, 1)),
        dict(share=1.0),
        dict(most=0),
        dict(jitter=1.0),
    ):
        with pytest.raises(
            HypvisionError, match="most must be" if "most" in options else "jitter below 1"
        ):
            TagCaptions(folder, PREFIX, NAMES, **options)
    Image.new("RGB", (30, 30)).save(folder / "img/train/0.png")
    with pytest.raises(HypvisionError, match="60 x 40 pixels, but its image .* has 30 x 30"):
        [
            item
            for data in [TagCaptions(folder, PREFIX, NAMES)]
            for item in (data[i] for i in range(20))
        ]
    Image.new("RGB", (60, 40)).save(folder / "ann/train/0.png")
    with pytest.raises(HypvisionError, match="one number a pixel"):
        TagCaptions(folder, PREFIX, NAMES)
    (folder / "ann/train/0.png").write_bytes(b"no image")
    with pytest.raises(HypvisionError, match="cannot be read"):
        TagCaptions(folder, PREFIX, NAMES)
    (folder / "ann/train/0.png").unlink()
    assert str(TagCaptions(folder, PREFIX, NAMES).usage).endswith(
        f"used 1 of 2 images. Left out: 1 images (no label map: {folder / 'img/train/0.png'})."
    )
    Image.fromarray(np.full((40, 60), 255, dtype=np.uint8)).save(folder / "ann/train/0.png")
    Image.fromarray(np.full((40, 60), 255, dtype=np.uint8)).save(folder / "ann/train/1.png")
    with pytest.raises(HypvisionError, match="nothing to name"):
        TagCaptions(folder, PREFIX, NAMES)


def test_pictures_are_compared_with_the_configs_words(folder):
    model = CLIPContrast(dict(name="emoji-t8"), classes=NAMES).eval()
    data = TagCaptions(folder, PREFIX, NAMES, single=True)
    batch = [data[i] for i in range(3)]
    inputs, labels = (
        torch.stack([item["inputs"] for item in batch]),
        torch.tensor([item["label"] for item in batch]),
    )
    with torch.no_grad():
        found = model(inputs, [item["caption"] for item in batch], labels, mode="predict")
        text = model.clip.encode_text(
            model.tokenizer([f"A photo of a {n} in the scene" for n in NAMES]), normalize=True
        )
        expected = model(inputs, [""] * 3) @ text.T
    assert torch.allclose(torch.stack([item["scores"] for item in found]), expected, atol=1e-5)
    assert [item["label"] for item in found] == labels.tolist()


def test_configs_of_camvid_agree():
    """Held-out classes have no label in training; the words are those of the pre-training, in the
    labels' order."""
    from hypvision.openmmlab.datasets.segmentation import CamVidDataset

    pre = load_config(CONFIGS / "clip-camvid_1000i.py")
    tuned = load_config(next(CONFIGS.glob("camvid_hyperclip_*i.py")))
    names = list(pre.model.classes)
    official = [name.lower() for name in CamVidDataset.METAINFO["classes"][:11]]
    assert [name.replace("sign", "signsymbol") for name in names] == official
    train, test = tuned.train_dataloader.dataset, tuned.test_dataloader.dataset
    assert list(train.classes) == list(test.classes) == [*names, "void"]
    assert set(train.ignore_classes) == {"car", "pavement", "tree", "void"}
    assert list(test.ignore_classes) == ["void"]
    groups = tuned.test_evaluator.groups
    assert sorted([*groups.base, *groups.novel]) == sorted(names)
    assert set(groups.novel) == set(train.ignore_classes) - {"void"}
    for config in (pre, tuned):  # nothing but the test loader looks at the test split
        for phase in ("train", "val", "test"):
            assert config[f"{phase}_dataloader"].dataset.data_prefix.img_path == f"img/{phase}"


def test_configs_of_emoji_agree():
    """One list of words, of which the held-out classes have neither label nor box in training, and
    all are tested."""
    pre, masks, boxes = (
        load_config(CONFIGS / name)
        for name in (
            "clip-emoji-scenes_900i.py",
            "emoji_hyperclip_600i.py",
            "emoji_hyperclip-det_600i.py",
        )
    )
    names, novel = list(pre.emoji_classes), list(pre.emoji_novel)
    assert len(set(names)) == 86 and len(set(novel)) == 26 and set(novel) < set(names)
    assert list(pre.model.classes) == ["photo", *names]
    assert list(pre.train_dataloader.dataset.unnamed) == ["photo"]
    for config, ground in ((masks, ["photo"]), (boxes, [])):
        train, test = config.train_dataloader.dataset, config.test_dataloader.dataset
        assert list(train.classes) == list(test.classes) == [*ground, *names]
        assert list(train.ignore_classes) == [*ground, *novel]
        assert list(test.get("ignore_classes", [])) == ground
        groups = config.test_evaluator.groups
        assert sorted([*groups.base, *groups.novel]) == sorted(names)
        assert list(groups.novel) == novel
    assert list(boxes.model.train_classes) == [name for name in names if name not in novel]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Scenes of emoji of three classes in the layout of the configs, and the classes."""
    root = tmp_path_factory.mktemp("scenes")
    for split in ("train", "test"):
        (root / "photos" / split).mkdir(parents=True)
        Image.new("RGB", (70, 60), (60, 60, 60)).save(root / "photos" / split / "grey.png")
    emoji = make_emoji(
        root / "emoji",
        styles=("noto",),
        classes=[(name, name, name) for name in ("cat", "car", "cup")],
    )
    for folder in ("known", "test", "boxes", "boxes-test"):
        layout = "coco" if "boxes" in folder else "masks"
        options = dict(train=2, val=2, size=192, level="class", val_emoji="train")
        export_emoji(root / folder, emoji, root / "photos", layout, **options)
    return root, (root / "known/classes.txt").read_text().splitlines()[1:]


@pytest.mark.quick("emoji_hyperclip_600i.py")
@pytest.mark.parametrize("config", ["emoji_hyperclip_600i.py", "emoji_hyperclip-det_600i.py"])
def test_tuning_on_scenes_of_emoji_takes_a_step(scenes, tmp_path, config):
    root, names = scenes
    ground, base, novel = ["photo"] if "det" not in config else [], names[1:], names[:1]
    options = {"data_root": str(root), "model.clip.pretrained": None, "train_cfg.max_iters": 1}
    options |= {
        "train_cfg.val_interval": 1,
        "train_dataloader.batch_size": 2,
        "param_scheduler": [],
    }
    options |= {
        f"{phase}_dataloader.dataset.classes": [*ground, *names]
        for phase in ("train", "val", "test")
    }
    options |= {"train_dataloader.dataset.ignore_classes": [*ground, *novel]}
    options |= {"val_evaluator.groups": dict(base=base, novel=novel)}
    if not ground:
        options["model.train_classes"] = base
    runner = train(load_config(CONFIGS / config, options), tmp_path)
    assert runner.iter == 1 and runner.message_hub.get_scalar("train/loss").current() > 0
    metrics = {key.rpartition("/")[2] for key in runner.message_hub.log_scalars}
    assert ({"mIoU_base", "mIoU_novel"} if ground else {"AP50_base", "AP50_novel"}) <= metrics


@pytest.fixture(scope="module")
def camvid(tmp_path_factory):
    """Two images a split in CamVid's layout, all twelve labels in each."""
    root = tmp_path_factory.mktemp("camvid")
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for kind in ("img", "ann"):
            (root / kind / split).mkdir(parents=True)
        for number in range(2):
            labels = rng.permutation(12).astype(np.uint8).reshape(3, 4).repeat(24, 0).repeat(24, 1)
            Image.fromarray(labels).save(root / f"ann/{split}/{number}.png")
            Image.fromarray((labels[..., None] * [9, 20, 5]).astype(np.uint8)).save(
                root / f"img/{split}/{number}.jpg"
            )
    return root


def test_tuning_ignores_the_held_out_classes(camvid, tmp_path):
    path = next(CONFIGS.glob("camvid_hyperclip_*i.py"))
    options = {"data_root": str(camvid), "model.clip.pretrained": None, "train_cfg.max_iters": 1}
    config = load_config(path, {**options, "train_cfg.val_interval": 1})
    runner = train(config, tmp_path)
    kept = [name for name in config.classes if name not in config.novel]
    assert runner.model.train_classes == tuple(kept)
    assert runner.model.test_classes == tuple(config.classes)
    runner.train_dataloader.dataset.pipeline.transforms[
        2:-1
    ] = []  # neither resized nor cut: as they are on disk
    labels = runner.train_dataloader.dataset[0]["data_samples"].gt_sem_seg.data[0].numpy()
    original = np.asarray(Image.open(camvid / "ann/train/0.png"))
    table = np.array([kept.index(name) if name in kept else 255 for name in config.classes] + [255])
    assert np.array_equal(labels, table[original]) and (labels == 255).mean() == 4 / 12
    metrics = {key.partition("/")[2] for key in runner.message_hub.log_scalars}
    assert {"mIoU_base", "mIoU_novel"} <= metrics


def test_published_weights_keep_the_words_of_tags():
    """What goes on from the shipped CLIP and learns a word more is published with that word."""
    model = CLIPContrast(dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"))
    table = model.clip.token_embedding.weight
    word = int(model.tokenizer(["pavement"])[0, 1])
    assert not table[word].any()
    with torch.no_grad():
        table[word] = 0.5
    tokens = model.tokenizer(["a photo of a pavement"])
    before = model.clip.encode_text(tokens)
    weights = stripped(dict(state_dict=model.state_dict()), "zero-shot")
    assert len(weights["token_embedding.index"]) < 400
    with torch.no_grad():
        table.zero_()
    model.clip.load_state_dict(expand_tokens(weights))
    assert torch.allclose(model.clip.encode_text(tokens), before, atol=1e-6)
