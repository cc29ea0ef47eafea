"""Emoji: which images and words a training may see, captions that are true, images that stay what
they are."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.emoji import STYLES, make_emoji

pytest.importorskip("open_clip")

from hypvision.data.emoji import TEMPLATES, EmojiCaptions, augment, read_emoji
from hypvision.engine.config import load_config
from hypvision.io.errors import HypvisionError
from hypvision.tasks.contrastive import CLIPContrast

(CONFIG,) = (Path(__file__).parents[2] / "configs/hierarcaps").glob("clip-emoji_*i.py")
HELD_OUT = {"openmoji", "fxemoji", "fluent-mono"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_emoji(tmp_path_factory.mktemp("data") / "emoji")


def datasets(config, root):
    for phase in ("train", "val", "test"):
        options = dict(config[f"{phase}_dataloader"].dataset)
        assert options.pop("type") == "EmojiCaptions"
        yield phase, EmojiCaptions(**{**options, "root": root})


def check_what_the_training_sees(root):
    splits = json.loads((root / "splits/emoji_split.json").read_text())
    for phase, data in datasets(load_config(CONFIG), root):
        assert data.split == phase  # nothing but the test loader looks at the test split
        assert {path.stem for _, path in data.items} <= set(splits[phase])
        assert {path.parent.name for _, path in data.items} == set(STYLES) - HELD_OUT
    assert not set(splits["train"]) & (set(splits["val"]) | set(splits["test"]))


def test_the_clip_is_trained_on_train_emoji_and_styles_alone(root):
    check_what_the_training_sees(root)


def test_the_same_of_the_real_emoji():
    root = Path(__file__).parents[2] / "data/emoji"
    if not root.is_dir():
        pytest.skip("data/emoji is not there")
    check_what_the_training_sees(root)
    assert tuple(load_config(CONFIG).classes) == read_emoji(root, "train")[1]


def test_captions_say_what_is_shown(root):
    data = EmojiCaptions(root, styles=["noto", "fxemoji"], length=400)
    levels = {0: 0, 1: 0, 2: 0}
    for i in range(400):
        item = data[i]
        owner, label, group = item["concepts"].tolist()
        emoji = data.emoji[owner]
        names = (emoji.name, emoji.classname, emoji.group)
        bare = [
            item["caption"].removeprefix(t.format(""))
            for t in TEMPLATES
            if item["caption"].startswith(t[:-2])
        ]
        said, _, keywords = (bare or [item["caption"]])[0].partition(": ")
        assert said == names[item["level"]] and label == item["label"] == emoji.label
        assert (
            set(filter(None, keywords.split(", "))) <= set(emoji.keywords)
            and data.groups[group] == emoji.group
        )
        levels[item["level"]] += 1
    assert levels[1] == pytest.approx(100, abs=30) and levels[2] == pytest.approx(40, abs=20)
    again = EmojiCaptions(root, styles=["noto", "fxemoji"], length=400)
    assert (
        torch.equal(data[7]["inputs"], again[7]["inputs"])
        and data[7]["caption"] == again[7]["caption"]
    )


def test_other_splits_are_shown_once_as_they_are(root):
    data = EmojiCaptions(root, "val", styles=["noto", "fxemoji"])
    assert len(data) == 6 + 4  # fxemoji lacks one emoji of each class
    assert "used 10 of 12 images. Left out: 2 images (no file: val-0-0.png, val-1-0.png)" in str(
        data.usage
    )
    assert data[0]["caption"] == data.emoji[0].name
    colours = {tuple(colour) for colour in data[0]["inputs"].flatten(1).T.tolist()}
    assert len(colours) == 2 and (255, 255, 255) in colours


def test_one_sided_pictures_are_not_mirrored(root):
    emoji, _ = read_emoji(root, "train")
    assert [item.one_sided for item in emoji] == [False] * 3 + [True] * 3
    pixels = np.full((64, 64, 3), 255, dtype=np.uint8)
    pixels[24:40, 4:20] = 0
    left = [
        augment(np.random.default_rng(i), pixels, mirror=False)[:, :32].mean() for i in range(40)
    ]
    assert max(left) < 250  # the square is always on the left
    right = [augment(np.random.default_rng(i), pixels)[:, 32:].mean() for i in range(40)]
    assert 8 < sum(value < 250 for value in right) < 32
    for i in range(40):
        found = augment(np.random.default_rng(i), pixels)
        assert found.dtype == np.uint8 and found.shape == pixels.shape and (found[0] == 255).all()


def test_mistakes_are_told(root, tmp_path):
    with pytest.raises(HypvisionError, match="There is no file '.*emoji.json'.* data_root=FOLDER"):
        make_emoji(tmp_path / "a")
        (tmp_path / "a/emoji.json").unlink()
        EmojiCaptions(tmp_path / "a")
    with pytest.raises(HypvisionError, match="no split 'tset'. Did you mean test"):
        EmojiCaptions(root, "tset")
    with pytest.raises(HypvisionError, match="style 'nato' has no image"):
        EmojiCaptions(root, styles=["nato"])
    with pytest.raises(HypvisionError, match="three probabilities"):
        EmojiCaptions(root, mix=(0.5, 0.5, 0.5))
    rows = json.loads((root / "emoji.json").read_text())
    broken = make_emoji(tmp_path / "b")
    (broken / "emoji.json").write_text(json.dumps(rows[1:]))
    with pytest.raises(HypvisionError, match="'train-0-0' .* no entry"):
        EmojiCaptions(broken)
    del rows[4]["keywords"]
    (broken / "emoji.json").write_text(json.dumps(rows))
    with pytest.raises(HypvisionError, match="emoji.json.*missing keywords"):
        EmojiCaptions(broken)
    (broken / "emoji.json").write_text("{")
    with pytest.raises(
        HypvisionError, match="cannot be read as JSON: .* Replace it by an intact copy"
    ):
        EmojiCaptions(broken)


def test_captions_that_are_true_of_several_images():
    """The loss written out: a class caption is true of both mammals, a name of one emoji in both
    its images."""
    model = CLIPContrast(dict(name="emoji-s16"), classes=["a"]).eval()
    inputs = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    captions = ["mammal", "cat", "dog: pet", "hand"]
    concepts = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 0], [5, 3, 1]])
    level = torch.tensor([1, 0, 0, 0])
    with torch.no_grad():
        found = model(inputs, captions, concepts=concepts, level=level, mode="loss")
        images = model(inputs, captions).double()
        order = ["cat", "dog: pet", "hand", "mammal"]
        text = model.clip.encode_text(model.tokenizer(order), normalize=True).double()
    logits = (model.clip.logit_scale.exp().item() * images @ text.T).tolist()
    true = [{"mammal", "dog: pet"}, {"mammal", "cat"}, {"mammal", "dog: pet"}, {"hand"}]

    def log_share(values, i):
        return values[i] - math.log(sum(math.exp(v) for v in values))

    def mean(values):
        return sum(values) / len(values)

    of_image = -mean(
        [mean([log_share(row, order.index(t)) for t in names]) for row, names in zip(logits, true)]
    )
    columns = [[row[t] for row in logits] for t in range(4)]
    of_text = -mean(
        [
            mean([log_share(columns[t], i) for i in range(4) if order[t] in true[i]])
            for t in range(4)
        ]
    )
    assert float(found["loss_image"]) == pytest.approx(of_image / 2, rel=1e-4)
    assert float(found["loss_text"]) == pytest.approx(of_text / 2, rel=1e-4)
