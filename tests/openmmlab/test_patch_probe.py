"""The linear probe of a segmenter: its patches, and a training that begins with it."""

import re
from types import SimpleNamespace

import pytest

pytest.importorskip("mmseg")
pytest.importorskip("hypvision.openmmlab")  # mmcv's operations, before mmseg's models
import torch
from helpers.open_vocabulary_segmentation import make_folder
from mmengine.structures import PixelData
from mmseg.models import FCNHead
from mmseg.structures import SegDataSample

from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.io.shipped import config_folder
from hypvision.openmmlab.patch_probe import PatchProbeHook, patches


def head(convs=0, **more):
    options = dict(num_convs=convs, kernel_size=3, concat_input=False, num_classes=3) | more
    return FCNHead(
        in_channels=[3, 3], in_index=[0, 1], input_transform="resize_concat", channels=6, **options
    )


class Levels(torch.nn.Module):
    """Two levels of features, the means of four and of eight pixels a side."""

    def __init__(self):
        super().__init__()
        self.decode_head = head()
        self.data_preprocessor = lambda batch, training: dict(
            batch, inputs=batch["inputs"][0][None]
        )

    def extract_feat(self, x):
        return [torch.nn.functional.avg_pool2d(x, side) for side in (4, 8)]


def sample(labels):
    data = SegDataSample(gt_sem_seg=PixelData(data=labels[None]))
    image = torch.eye(3)[labels.clamp(max=2)].permute(2, 0, 1)
    return dict(inputs=image, data_samples=data)


def test_patches_have_the_features_and_labels_of_their_places():
    labels = torch.zeros(16, 16, dtype=torch.long)
    labels[:, 8:] = 1
    labels[:8] = 255
    model = Levels().train()
    features, found = patches(model, [sample(labels), sample(labels)])
    assert features.shape == (2 * 8, 6) and model.training and model.decode_head.training
    assert sorted(found.tolist()) == [0] * 8 + [1] * 8
    # The first level is that of the patch itself: one for its class.
    assert torch.equal(features[:, :3].argmax(dim=1), found)


def test_other_heads_are_refused():
    for wrong in (head(convs=1), head(concat_input=True)):
        with pytest.raises(HypvisionError, match="one linear layer.*num_convs=0"):
            PatchProbeHook()._wanted(SimpleNamespace(decode_head=wrong))
    assert PatchProbeHook()._wanted(SimpleNamespace(decode_head=head()))


def small_config(folder, steps):
    config = load_config(
        config_folder() / "_base_" / "own_label_maps.py", {"data_root": str(folder)}
    )
    config.model.decode_head.num_classes = 3
    config.model.data_preprocessor.size = (64, 64)
    for part in ("train", "val", "test"):
        loader = config[f"{part}_dataloader"]
        loader.update(num_workers=0, persistent_workers=False, batch_size=2)
        loader.dataset.metainfo = dict(classes=("cat", "dog", "grass"))
        for step in loader.dataset.pipeline:
            for key in ("scale", "crop_size"):
                if key in step:
                    step[key] = (64, 64)
    config.train_cfg.update(max_iters=steps, val_interval=steps)
    config.default_hooks.checkpoint.interval = steps
    return config


def test_a_training_begins_with_the_probe_and_says_which_was_better(tmp_path, capsys):
    runner = train(small_config(make_folder(tmp_path / "data"), 1), tmp_path / "work")
    err = capsys.readouterr().err
    taken = re.search(r"^result .*take (\S+)$", err, re.MULTILINE)[1]
    assert re.search(r"^weights (\S+)$", err, re.MULTILINE)[1] == str(tmp_path / "work" / taken)
    said = " ".join(err.split())
    baseline = runner.message_hub.get_info("baseline")
    assert baseline["name"] == "linear probe"
    assert baseline["mIoU"] > 80  # the colour of a half tells its class
    assert "of the held-out patches right" in said
    assert f"result mIoU: linear probe {baseline['mIoU']:.4g}, fine-tuned" in said
    saved = torch.load(tmp_path / "work/probe.pth", weights_only=False)["state_dict"]
    weight = saved["decode_head.conv_seg.weight"]
    assert weight.shape == (3, 496, 1, 1) and weight.std() > 0
    resumed = small_config(tmp_path / "data", 2)
    runner = train(resumed, tmp_path / "work", resume="auto")
    assert runner.message_hub.get_info("baseline")["mIoU"] == baseline["mIoU"]


def test_a_probe_needs_validation_data(tmp_path):
    config = small_config(make_folder(tmp_path / "data"), 1)
    for part in ("dataloader", "cfg", "evaluator"):
        config.pop(f"val_{part}")
    with pytest.raises(HypvisionError, match="weight decay on validation data"):
        train(config, tmp_path / "work")


def test_a_probe_reads_wrapped_data_without_augmentation(tmp_path):
    """Joined and repeated data sets give the probe the same patches as the plain one."""
    folder = make_folder(tmp_path / "data")
    found = []
    for wrapped in (False, True):
        config = small_config(folder, 1)
        if wrapped:
            for part in ("train", "val"):
                loader = config[f"{part}_dataloader"]
                twice = dict(type="RepeatDataset", times=1, dataset=loader.dataset)
                loader.dataset = dict(type="ConcatDataset", datasets=[twice])
        runner = train(config, tmp_path / f"work{wrapped}")
        found.append(runner.message_hub.get_info("baseline"))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("evaluator", "best"),
    [(dict(prefix="val"), "val/mIoU"), (dict(iou_metrics=["mDice"]), "mDice")],
)
def test_other_metrics_are_compared(evaluator, best, tmp_path, capsys):
    config = small_config(make_folder(tmp_path / "data"), 1)
    config.val_evaluator.update(evaluator)
    config.default_hooks.checkpoint.save_best = best
    train(config, tmp_path / "work")
    assert f"result  {best}: linear probe" in "".join(capsys.readouterr())


def test_loaded_weights_keep_their_head(tmp_path, capsys):
    folder = make_folder(tmp_path / "data")
    train(small_config(folder, 1), tmp_path / "work")
    config = small_config(folder, 1)
    config.load_from = str(tmp_path / "work/iter_1.pth")
    config.optim_wrapper.optimizer.lr = 1e-9
    capsys.readouterr()
    train(config, tmp_path / "more")
    assert "not fitted: the head is that of" in "".join(capsys.readouterr())
    before, after = (
        torch.load(tmp_path / name / "iter_1.pth", weights_only=False)["state_dict"]
        for name in ("work", "more")
    )
    key = "decode_head.conv_seg.weight"
    torch.testing.assert_close(before[key], after[key])
