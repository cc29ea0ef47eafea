"""How far a picture lies from the classes of a training: by hand, in checkpoints and in
predictions."""

import json

import numpy as np
import pytest
import torch

from hypvision.zoo.familiar import Familiar, familiar_of, fit, written


def test_the_distance_is_that_of_the_nearest_class():
    found = Familiar(torch.tensor([[2.0, 0.0], [0.0, 0.5]]), 0.1, 0.0)
    features = torch.tensor([[5.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [3.0, 4.0]])
    torch.testing.assert_close(
        found.distances(features), torch.tensor([0.0, 1 - 0.5**0.5, 1.0, 0.2])
    )


def test_the_limit_holds_back_a_twentieth_of_the_held_out_images():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4

    def draw(count):
        return 3 * torch.eye(4, 16)[labels[:count]] + torch.randn(count, 16, generator=generator)

    features = draw(400)
    found = fit(features, labels, draw(400))
    torch.testing.assert_close(found.means[2], features[labels == 2].mean(0))
    beyond = (found.distances(draw(400)) > found.limit).float().mean().item()
    assert 0.01 < beyond < 0.12 and 0.01 < found.false_alarms < 0.12
    far = torch.randn(400, 16, generator=generator)
    assert (found.distances(far) > found.limit).float().mean() > 0.5


@pytest.mark.parametrize(
    "change",
    [
        dict(means=[1.0]),
        dict(means=torch.ones(3)),
        dict(limit="0.1"),
        dict(more=1),
        dict(means=torch.ones(2, 2).long()),
    ],
    ids=["list", "shape", "text", "more", "whole numbers"],
)
def test_other_content_of_a_checkpoint_counts_for_nothing(change):
    right = written(Familiar(torch.ones(2, 3), 0.1, 0.05))
    assert torch.equal(familiar_of(dict(meta=dict(familiar=right))).means, torch.ones(2, 3))
    assert familiar_of(dict(meta=dict(familiar={**right, **change}))) is None
    assert (
        familiar_of({}) is None
        and familiar_of(dict(meta=None)) is None
        and familiar_of(dict(meta={})) is None
    )


def test_from_a_training_to_a_warning(tmp_path, capsys):
    pytest.importorskip("mmengine")
    from helpers.engine import make_images, write_config
    from PIL import Image

    from hypvision.cli import main

    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data"), epochs=4)
    text = "\ndefault_hooks.update(checkpoint=dict(save_best='top1', rule='greater'))\n"
    config.write_text(config.read_text() + text)
    work = tmp_path / "run"
    assert main(["train", str(config), "--work-dir", str(work)]) == 0
    (best,) = work.glob("best_*.pth")
    holding = [
        path.name
        for path in work.glob("*.pth")
        if "familiar" in torch.load(path, weights_only=False)["meta"]
    ]
    assert sorted(holding) == sorted([best.name, "epoch_4.pth"])
    # the stored means are those of the network
    found = familiar_of(torch.load(best, weights_only=False))
    assert found.means.shape[0] == 3 and 0 < found.limit < 1

    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[::2] = 255
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    own = tmp_path / "data/train/red/0.png"
    for model in (str(config), "test_vit"):
        out = tmp_path / "predicted" / model.rpartition("/")[2]
        words = [
            "predict",
            str(own),
            str(tmp_path / "stripes.png"),
            "--model",
            model,
            "--weights",
            str(best),
        ]
        assert main([*words, "--out", str(out)]) == 0
        told = capsys.readouterr().err
        rows = json.loads((out / "predictions.json").read_text())["annotations"]
        places = {row["image_id"]: (row["distance"], row["foreign"]) for row in rows}
        (near, _), (far, foreign) = (places[key] for key in sorted(places))
        assert near < found.limit < far and foreign
        assert f"('stripes.png' ({far:.2f})): unlike anything the model was trained on" in told
