"""``hypvision browse``: the pictures show what the network gets, with the truth moved along."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
from helpers.engine import fails, make_images, tiny, write_config
from helpers.shapes.export import export

from hypvision.cli import main
from hypvision.engine import browsing
from hypvision.io.errors import HypvisionError
from hypvision.viz.palette import label_colours
from hypvision.viz.sheet import titled_sheet

LEFT, TOP = 10, 44  # of the first picture on a sheet


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("photos") / "data", per_class=2)


def browse(config, out, *words):
    assert main(["browse", str(config), "--out", str(out), *map(str, words)]) == 0
    return {path.stem: Image.open(path).convert("RGB") for path in out.iterdir()}


def test_the_normalisation_is_undone(photos, tmp_path, capsys):
    sheet = browse(
        write_config(tmp_path / "c.py", photos), tmp_path / "out", "--part", "val", "--samples", 1
    )["val"]
    said = capsys.readouterr().out
    assert "val: 1 of 6 samples" in said
    assert "images 3 x 32 x 32" in said
    assert "3 classes: blue, green, red" in said
    assert "mean 0.485, 0.456, 0.406; std 0.229, 0.224, 0.225 (of pixels from 0 to 1)" in said
    seen = np.asarray(sheet.crop((LEFT, TOP, LEFT + 256, TOP + 256)))[4::8, 4::8]  # enlarged by 8
    files = [
        np.asarray(Image.open(path).convert("RGB")) for path in (photos / "val").glob("*/*.png")
    ]
    assert any((seen == pixels).all() for pixels in files)


def test_a_box_is_mirrored_with_its_picture(tmp_path):
    data = export(tmp_path / "data", "coco", 1, 1, 64, level="kind")
    path = data / "annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    box = dict(
        content["annotations"][0],
        bbox=[10, 20, 20, 30],
        segmentation=[[10, 20, 30, 20, 30, 50, 10, 50]],
    )
    content["annotations"] = [box]
    path.write_text(json.dumps(content))
    Image.new("RGB", (64, 64)).save(data / "train2017" / content["images"][0]["file_name"])
    config = tiny("detection", data, tmp_path / "c.py")
    options = "train_dataloader.dataset.pipeline.2.prob=1.0"
    sheet = browse(config, tmp_path / "out", "--part", "train", "--cfg-options", options)["train"]
    seen = np.asarray(sheet.crop((LEFT, TOP, LEFT + 256, TOP + 256)))
    rows, columns = np.nonzero((seen[100:] > 20).any(-1))  # below the label
    colour = label_colours(4)[box["category_id"] - 1]
    edges = (34 * 4, 54 * 4)  # of 64 pixels enlarged by 4
    assert abs(columns.min() - edges[0]) <= 2 and abs(columns.max() - edges[1]) <= 2
    assert abs(rows.max() + 100 - 50 * 4) <= 2
    inside = seen[120:160, edges[0] + 8 : edges[1] - 8].reshape(-1, 3)
    assert (
        np.abs(inside.astype(int) - colour // 2).max() <= 1
    )  # the mask, at half its strength on black


def test_classes_have_one_legend_and_one_colour_on_the_whole_sheet(tmp_path, capsys):
    data = export(tmp_path / "data", "ade", 3, 1, 64, level="kind")
    config = tiny("segmentation", data, tmp_path / "c.py")
    fed = browsing.browse(config, phases=["train"], count=3)[0]
    seen = np.asarray(fed.sheet).reshape(-1, 3)
    below = np.asarray(fed.sheet)[-60:].reshape(-1, 3)
    labels = [np.asarray(Image.open(path)) for path in (data / "annotations/training").iterdir()]
    present = {int(label) for found in labels for label in np.unique(found)} - {0}
    for label in range(1, 6):
        assert (below == label_colours(5)[label - 1]).all(-1).any() == (label in present)
    assert len(np.unique(seen, axis=0)) > 50


def test_the_seed_chooses_and_augments(photos, tmp_path):
    config = write_config(
        tmp_path / "c.py", photos, transform=dict(input_size=32, is_training=True)
    )
    one, again, other = (
        browsing.browse(config, phases=["train"], count=3, seed=seed)[0].sheet for seed in (1, 1, 2)
    )
    assert one.tobytes() == again.tobytes() != other.tobytes()


def test_mixed_pictures_name_their_classes(photos, tmp_path, monkeypatch):
    config = write_config(tmp_path / "c.py", photos, mixup=dict(mixup_alpha=1.0, cutmix_alpha=0.0))
    titles = []

    def sheet(tiles, *args, **options):
        titles.extend(title for _, title in tiles)
        return titled_sheet(tiles, *args, **options)

    monkeypatch.setattr(browsing, "titled_sheet", sheet)
    browsing.browse(config, phases=["train", "val"], count=6, seed=3)
    mixed, plain = titles[:6], titles[6:]
    assert any(" % " in title and " + " in title for title in mixed)
    assert set(plain) == {"blue", "green", "red"}


def test_several_labels_captions_and_numbers():
    assert browsing._title(dict(label=torch.tensor([1.0, 0.0, 1.0])), ["a", "b", "c"]) == "a, c"
    assert browsing._title(dict(label=-1, caption="a red disk"), []) == "a red disk"
    assert browsing._title(dict(label=4), ["a"]) == "label 4"
    assert browsing._mixed(torch.tensor([0.05, 0.65, 0.3]), ["a", "b", "c"]) == "65 % b + 30 % c"


def test_grey_pictures_are_seen_in_grey_and_bytes_as_they_are():
    how = browsing._Normalisation(torch.tensor([0.5]), torch.tensor([0.5]), 1.0, "x")
    assert how.undo(torch.zeros(1, 2, 2)).tolist() == [[[128] * 3] * 2] * 2
    image = torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)
    assert (browsing._Normalisation().undo(image) == image.permute(1, 2, 0).numpy()).all()


def test_what_cannot_be_shown(photos, tmp_path, capsys):
    config = write_config(tmp_path / "c.py", photos)
    said = fails(
        capsys, "browse", config, "--part", "test", "--cfg-options", "test_dataloader=None"
    )
    assert "has no data for test" in said
    said = fails(capsys, "browse", config, "--out", photos / "train/red")
    assert "holds data" in said
    with pytest.raises(HypvisionError, match="have no pictures"):
        browsing._samples([dict(inputs=torch.zeros(7))], 1, 0)
    with pytest.raises(ValueError, match="no images"):
        titled_sheet([])
