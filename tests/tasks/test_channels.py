"""Images of one and of four channels, from the file to the exported network."""

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
from helpers.engine import write_config

from hypvision.cli import main
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.io.errors import HypvisionError
from hypvision.io.images import as_rgb, open_channels
from hypvision.tasks import ImageClassifier

CHANGES = """
model["backbone"]["in_chans"] = {channels}
for part in (train_dataloader, val_dataloader):
    part["dataset"].update(channels={channels})
    part["dataset"]["transform"].update(mean={numbers}, std={numbers})
del part
"""


def write_images(folder, channels):
    rng = np.random.default_rng(0)
    for place in [
        folder / split / name for split in ("train", "val") for name in ("blue", "green", "red")
    ]:
        place.mkdir(parents=True)
        for i in range(2):
            pixels = rng.integers(0, 256, (32, 32, channels), dtype=np.uint8).squeeze()
            Image.fromarray(pixels).save(place / f"{i}.tif")
    return folder


@pytest.mark.parametrize(
    ("channels", "exported"),
    [(4, False), *(pytest.param(channels, True, marks=pytest.mark.slow) for channels in (1, 4))],
)
def test_every_command_takes_them(tmp_path, capsys, channels, exported):
    images = write_images(tmp_path / "images", channels)
    config = write_config(tmp_path / "config.py", images)
    config.write_text(
        config.read_text() + CHANGES.format(channels=channels, numbers=[0.5] * channels)
    )
    assert main(["train", str(config), "--work-dir", str(tmp_path / "run")]) == 0, (
        capsys.readouterr().err
    )
    weights = tmp_path / "run" / "epoch_1.pth"
    assert main(["test", str(config), str(weights), "--work-dir", str(tmp_path / "test")]) == 0
    model = ["--model", str(config)]
    picture = str(images / "val" / "red" / "0.tif")
    assert (
        main(
            ["predict", picture, *model, "--weights", str(weights), "--out", str(tmp_path / "out")]
        )
        == 0
    )
    embedded = tmp_path / "embeddings"
    command = f"metric embed --model test_vit --weights {weights} --save {embedded}".split()
    assert main([*command, picture]) == 0, capsys.readouterr().err
    if not exported:
        return
    out = tmp_path / "model.pt2"
    command = [
        "export",
        str(weights),
        *model,
        *f"--format torchexport --fixed-size --save {out}".split(),
    ]
    assert main(command) == 0, capsys.readouterr().err
    assert torch.export.load(out).module()(torch.randn(2, channels, 32, 32)).shape == (2, 3)


def test_no_channel_is_changed_on_the_way(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 4), dtype=np.uint8)
    pixels[:4, :, 3] = 0  # where the others would vanish if this were taken for transparency
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "x.tif")
    transform = dict(input_size=(4, 8, 6), crop_pct=1.0, mean=(0,) * 4, std=(1,) * 4)
    for cache in (False, True):
        data = ImageFolderDataset(str(tmp_path), transform, channels=4, cache=cache)
        torch.testing.assert_close(
            data[0]["inputs"], torch.from_numpy(pixels).permute(2, 0, 1) / 255
        )
    assert np.array_equal(open_channels(pixels, 4), pixels)


def test_four_channels_are_looked_at_by_their_first_three(tmp_path):
    pixels = np.full((8, 8, 4), (250, 20, 20, 255), np.uint8)
    assert (np.asarray(as_rgb(open_channels(pixels, 4))) == (250, 20, 20)).all()
    grey = open_channels(np.full((8, 8, 3), 7, np.uint8), 1)
    assert as_rgb(grey) is grey


def test_what_does_not_fit_is_told(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(HypvisionError, match="x.png' has the channels R, G, B, but 4"):
        open_channels(tmp_path / "x.png", 4)
    with pytest.raises(HypvisionError, match="channels must be one of 1, 3, 4"):
        open_channels(tmp_path / "x.png", 5)
    with pytest.raises(HypvisionError, match="3 values of 'mean' for images of 4 channels"):
        ImageFolderDataset(str(tmp_path), dict(mean=(0, 0, 0)), channels=4)
    model = ImageClassifier(dict(model_name="test_vit", num_classes=5, img_size=32, in_chans=4))
    with pytest.raises(
        HypvisionError, match="images have 3 channels, but model.backbone takes 4.*channels=4"
    ):
        model(torch.zeros(1, 3, 32, 32))
