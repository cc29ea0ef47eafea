"""Mistakes around a segmenter or detector (data, config, checkpoint, disk): one paragraph each,
nothing left behind."""

import errno
import json
import os
import re
import resource
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
from helpers.engine import fails, make_images, tiny, write_config
from helpers.shapes.export import export
from helpers.shapes.images import make_scene

from hypvision.cli import main
from hypvision.engine.checks import check_channels, close_configs, explain
from hypvision.engine.config import import_extensions, load_config
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.sample_checks import CheckSamplesHook, watch_samples

LAYOUTS = dict(segmentation="ade", detection="coco")
ANNOTATIONS = "annotations/instances_train2017.json"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    return {
        task: export(root / task, layout, 4, 2, 64, level="kind")
        for task, layout in LAYOUTS.items()
    }


@pytest.fixture
def copies(originals, tmp_path):
    """A function that copies the data of a task, to be spoilt."""
    return lambda task: Path(shutil.copytree(originals[task], tmp_path / task))


@pytest.fixture(scope="module")
def checkpoints(originals, tmp_path_factory):
    """One checkpoint of each task."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for task, data in originals.items():
        config = tiny(task, data, folder / f"{task}.py")
        assert main(["train", str(config), "--work-dir", str(folder / task)]) == 0
    return dict(
        segmentation=folder / "segmentation/iter_2.pth", detection=folder / "detection/epoch_1.pth"
    )


def remains(folder: Path) -> list[str]:
    """Checkpoints and temporary files below a folder."""
    return sorted(
        path.name
        for path in folder.rglob("*")
        if path.suffix in (".pth", ".tmp") or path.name[0] == "."
    )


# Single samples, without a run
# --------------------------------------------------------------------------------------


@lru_cache
def tiny_config(task):
    """The config of a task, read once; its data are moved to where a test has them."""
    with TemporaryDirectory() as folder:
        return load_config(tiny(task, Path("data"), Path(folder, f"{task}.py")))


def open_training_data(task, data):
    """The training data set of a config, watched as in a run."""
    from mmengine.registry import DATASETS, DefaultScope

    config = load_config(tiny_config(task), {"data_root": str(data)})
    import_extensions(config)
    with DefaultScope.overwrite_default_scope(config.default_scope):
        dataset = DATASETS.build(config.train_dataloader.dataset)
    watch_samples(dataset)
    return dataset


def label_map(value: int):
    return lambda path: Image.fromarray(np.full((64, 64), value, np.uint8)).save(path)


# faults of label maps that every reader tells stand in openmmlab/test_segmentation_data.py
@pytest.mark.parametrize(
    ("folder", "spoil", "mentioned"),
    [
        ("images", lambda path: path.write_bytes(b"no image"), r"image '.*000001\.jpg'"),
        ("images", lambda path: path.write_bytes(b""), r"image '.*000001\.jpg'.*empty"),
        ("annotations", Path.unlink, r"label map '.*000001\.png'.*'.*000001\.jpg'"),
        ("annotations", label_map(200), r"000001\.png' has the label 200.* 1 to 5 "),
    ],
)
def test_segmentation_samples(copies, folder, spoil, mentioned):
    data = copies("segmentation")
    dataset = open_training_data("segmentation", data)
    assert dataset[1]["data_samples"].gt_sem_seg.data.shape == (1, 64, 64)
    spoil(data / folder / "training" / f"000001.{'jpg' if folder == 'images' else 'png'}")
    assert dataset[0] is not None
    with pytest.raises(HypvisionError, match=mentioned):
        dataset[1]


def test_labels_that_do_not_count_are_right(copies):
    data = copies("segmentation")
    pixels = np.array(Image.open(data / "annotations/training/000001.png"))
    pixels[:4], pixels[4:8] = 0, 255
    Image.fromarray(pixels).save(data / "annotations/training/000001.png")
    labels = open_training_data("segmentation", data)[1]["data_samples"].gt_sem_seg.data
    assert (labels == 255).sum() == 8 * 64


def test_detection_samples(copies):
    data = copies("detection")
    dataset = open_training_data("detection", data)
    (data / "train2017/000000000000.jpg").write_bytes(b"no image")
    (data / "train2017/000000000001.jpg").unlink()
    for index, message in enumerate(
        (r"image '.*000\.jpg' cannot be read", r"There is no image '.*001\.jpg'")
    ):
        with pytest.raises(HypvisionError, match=message):
            dataset[index]
    assert len(dataset[3]["data_samples"].gt_instances) > 0


def changed(key: str, value) -> callable:
    return lambda content: content["annotations"][1].__setitem__(key, value)


# other entries of annotation files stand in openmmlab/test_detection_data.py
@pytest.mark.parametrize(
    ("spoil", "mentioned"),
    [
        (changed("category_id", 77), r"annotations\[1\]\) has the category_id 77"),
        (changed("image_id", 77), "image_id 77"),
        (changed("bbox", [1, 2, None, 3]), r"the box \[1, 2, None, 3\]"),
        (lambda content: content["annotations"][1].pop("bbox"), r"annotations\[1\].*'bbox'"),
        (lambda content: content["images"][0].pop("file_name"), r"images\[0\].*'file_name'"),
        (lambda content: content.pop("categories"), "categories"),
        (lambda content: content["categories"][3].update(name="oval"), "'round'.*'oval'"),
        (lambda content: content["categories"].append(dict(id=9, name="round")), "more than once"),
        (lambda content: [c.update(name="x") for c in content["categories"]], "'branched'"),
    ],
)
def test_annotation_files(copies, spoil, mentioned):
    data = copies("detection")
    content = json.loads((data / ANNOTATIONS).read_text())
    spoil(content)
    (data / ANNOTATIONS).write_text(json.dumps(content))
    with pytest.raises(HypvisionError, match=rf"instances_train2017\.json'.*{mentioned}"):
        open_training_data("detection", data)


def test_categories_in_any_order(copies):
    data = copies("detection")
    content = json.loads((data / ANNOTATIONS).read_text())
    content["categories"].reverse()
    (data / ANNOTATIONS).write_text(json.dumps(content))
    assert open_training_data("detection", data).cat2label == {1: 0, 2: 1, 3: 2, 4: 3}


def test_lists_of_images_without_truth(copies):
    from hypvision.openmmlab.datasets.detection import CheckedCOCO

    data = copies("detection")
    content = json.loads((data / ANNOTATIONS).read_text())
    boxes = CheckedCOCO(data / ANNOTATIONS).img_ann_map
    assert [len(boxes[i]) for i in range(4)] == [
        len(make_scene(i, size=64).objects) for i in range(4)
    ]
    del content["annotations"]
    (data / ANNOTATIONS).write_text(json.dumps(content))
    assert CheckedCOCO(data / ANNOTATIONS).get_img_ids() == [0, 1, 2, 3]


def test_damaged_annotation_file(copies):
    data = copies("detection")
    (data / ANNOTATIONS).write_text('{"images": [1')
    with pytest.raises(HypvisionError, match=r"instances_train2017\.json' cannot be read as JSON"):
        open_training_data("detection", data)


# Whole runs
# --------------------------------------------------------------------------------------------------


def test_label_out_of_range_in_test_data(copies, checkpoints, tmp_path, capsys):
    data = copies("segmentation")
    label_map(77)(data / "annotations/validation/000001.png")
    config = tiny("segmentation", data, tmp_path / "segmentation.py")
    said = fails(
        capsys, "test", config, checkpoints["segmentation"], "--work-dir", tmp_path / "run"
    )
    assert "validation/000001.png' has the label 77" in said


@pytest.mark.parametrize("task", LAYOUTS)
def test_missing_and_empty_data(copies, tmp_path, capsys, task):
    data = copies(task)
    config = tiny(task, data, tmp_path / f"{task}.py")
    images = data / ("images/training" if task == "segmentation" else "train2017")
    for path in images.iterdir():
        path.unlink()
    assert f"'{images}' of the train data" in fails(
        capsys, "train", config, "--work-dir", tmp_path / "run"
    )
    annotations = data / ("annotations/validation" if task == "segmentation" else ANNOTATIONS)
    annotations.rename(tmp_path / "away")
    (images / "0.jpg").write_bytes(b"")
    said = fails(capsys, "train", config, "--work-dir", tmp_path / "run")
    assert (
        f"'{annotations}' of the " in said and "does not exist" in said and "docs/data.md" in said
    )
    shutil.rmtree(data)
    said = fails(capsys, "train", config, "--work-dir", tmp_path / "run")
    assert f"'{data}" in said and "--cfg-options data_root=" in said


def test_no_sample_is_left(copies, tmp_path, capsys):
    data = copies("detection")
    content = json.loads((data / ANNOTATIONS).read_text())
    (data / ANNOTATIONS).write_text(json.dumps({**content, "annotations": []}))
    config = tiny("detection", data, tmp_path / "detection.py")
    said = fails(capsys, "train", config, "--work-dir", tmp_path / "run")
    assert "no images to learn from" in said
    assert "4 images (without objects, see filter_empty_gt" in said


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("segmentation", "model.decode_head.num_classes"),
        ("detection", "model.roi_head.bbox_head.num_classes"),
    ],
)
def test_class_counts_that_differ(originals, tmp_path, capsys, task, key):
    config = tiny(task, originals[task], tmp_path / f"{task}.py")
    said = fails(
        capsys, "train", config, "--work-dir", tmp_path / "run", "--cfg-options", f"{key}=7"
    )
    expected = 5 if task == "segmentation" else 4
    assert f"has {expected} classes, but the " in said and "predicts 7. Set num_classes" in said


def test_models_that_take_the_classes_at_run_time(originals):
    dataset = open_training_data("detection", originals["detection"])
    runner = SimpleNamespace(model=SimpleNamespace(bbox_head=SimpleNamespace(num_classes=256)))
    with pytest.raises(HypvisionError, match="has 4 classes, but the .* predicts 256"):
        CheckSamplesHook().check(runner, dataset)
    dataset.return_classes = True
    CheckSamplesHook().check(runner, dataset)


@pytest.mark.parametrize("task", LAYOUTS)
def test_nan_loss(originals, tmp_path, capsys, task):
    config = tiny(task, originals[task], tmp_path / f"{task}.py")
    said = fails(
        capsys,
        *(
            f"train {config} --work-dir {tmp_path / 'run'} --cfg-options "
            "optim_wrapper.optimizer.lr=1e30"
        ).split(),
    )
    assert "The loss became nan in iteration 2" in said and "optim_wrapper.optimizer.lr" in said
    # The checkpoint of the iteration before is complete; nothing was written after.
    assert remains(tmp_path / "run") == (["iter_1.pth"] if task == "segmentation" else [])


def test_checkpoints_of_others(originals, checkpoints, tmp_path, capsys):
    for task, other in (("segmentation", "detection"), ("detection", "segmentation")):
        config = tiny(task, originals[task], tmp_path / f"{task}.py")
        said = fails(capsys, "test", config, checkpoints[other], "--work-dir", tmp_path / "run")
        assert f"'{checkpoints[other]}' does not fit the model of the config" in said
        assert "missing in the file" in said
        (trained_with,) = checkpoints[other].parent.glob("*.py")
        assert f"that the checkpoint was trained with ({trained_with})" in said
    wrong = tmp_path / "wrong.pth"
    wrong.write_bytes(checkpoints["segmentation"].read_bytes()[:1000])
    assert "wrong.pth' is damaged" in fails(
        capsys, "test", config, wrong, "--work-dir", tmp_path / "run"
    )
    import timm
    import torch

    torch.save(timm.create_model("test_vit").state_dict(), wrong)
    for init, message in (
        (
            dict(type="Pretrained", checkpoint=str(wrong)),
            "wrong.pth' does not fit the backbone 'hcformer_nano'",
        ),
        (
            dict(type="Pretrained", checkpoint=str(tmp_path / "none.pth")),
            "There is no checkpoint '",
        ),
    ):
        config = tiny(
            "segmentation", originals["segmentation"], tmp_path / "segmentation.py", init=init
        )
        assert message in fails(capsys, "train", config, "--work-dir", tmp_path / "run")


def test_unknown_names(originals, tmp_path, capsys):
    config = tiny("segmentation", originals["segmentation"], tmp_path / "segmentation.py")
    arguments = ["train", config, "--work-dir", tmp_path / "run", "--cfg-options"]
    assert "Did you mean hcformer_nano" in fails(
        capsys, *arguments, "model.backbone.model_name=hcformer_nanoo"
    )
    assert "EncoderDecodr is not in the" in fails(capsys, *arguments, "model.type=EncoderDecodr")
    said = fails(capsys, *arguments, "model.neck.in_channels=[8,8,8,8]")
    assert "model.neck (FPN)" in said and "Set model.neck.in_channels=[16, 16, 16, 16]" in said


def test_channels_of_a_head_without_neck():
    Part = SimpleNamespace
    model = Part(
        backbone=Part(out_channels=[8, 16, 32]),
        decode_head=Part(in_channels=[16, 32], in_index=[1, 2]),
    )
    check_channels(model)
    model.decode_head.in_channels = [16, 64]
    with pytest.raises(
        HypvisionError,
        match=r"model\.decode_head .* expects maps of \[16, 64\] .* returns \[16, 32\]",
    ):
        check_channels(model)
    check_channels(Part(backbone=Part()))  # a backbone that does not tell


# Disks
# --------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(originals, tmp_path, capsys):
    """A real limit on the size of files, which the writing of the checkpoint meets half way."""
    config = tiny("segmentation", originals["segmentation"], tmp_path / "segmentation.py")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        said = fails(capsys, "train", config, "--work-dir", tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "iter_1.pth' was not written: File too large" in said
    assert remains(tmp_path / "run") == []


def full_disk(replace):
    """Moves files into place as on a disk that is full after the record of the run."""

    def move(source, target):
        if os.fspath(target).endswith(".py"):
            return replace(source, target)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return move


@pytest.mark.parametrize("task", LAYOUTS)
def test_full_disk(originals, checkpoints, tmp_path, capsys, monkeypatch, task):
    """All writes of predictions fail as on a full disk."""
    config = tiny(task, originals[task], tmp_path / f"{task}.py")

    monkeypatch.setattr(os, "replace", full_disk(os.replace))  # mmengine's files and ours
    out = tmp_path / "out" / "found"
    flag = "--save" if task == "detection" else "--out"
    said = fails(
        capsys, "test", config, checkpoints[task], "--work-dir", tmp_path / "run", flag, out
    )
    assert "he disk is full" in said and "Free some space" in said
    assert remains(tmp_path / "out") == []
    if task == "detection":
        assert "found.bbox.json' was not written" in said


def test_places_that_cannot_be(originals, checkpoints, tmp_path, capsys):
    config = tiny("segmentation", originals["segmentation"], tmp_path / "segmentation.py")
    (tmp_path / "file").write_text("x")
    assert "file' is not a folder" in fails(
        capsys, "train", config, "--work-dir", tmp_path / "file"
    )
    assert "file' is not a folder" in fails(
        capsys, "train", config, "--work-dir", tmp_path / "file/run"
    )
    weights = checkpoints["segmentation"]
    said = fails(
        capsys, "test", config, weights, "--work-dir", tmp_path / "run", "--out", tmp_path / "file"
    )
    assert "file' is not a folder" in said and (tmp_path / "file").read_text() == "x"
    assert explain(OSError(errno.EBADF, "Bad file descriptor")) is None  # a bug keeps its traceback


# Options that do not fit
# ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    mixup = dict(mixup_alpha=0.5)
    data = make_images(folder / "data", per_class=2)
    return write_config(
        folder / "config.py", data, batch=5, mixup=mixup
    )  # the last batch has one image


@pytest.mark.parametrize(
    ("option", "mentioned"),
    [
        ("train_dataloader.batchsize=8", "'batchsize'.*train_dataloader.batch_size"),
        ("train_dataloader.batch=8", "DataLoader.*'batch'.*batch_size"),
        ("train_dataloader.batch_size=0", "batch_size=0"),
        ("train_dataloader.dataset.rot=x", "ImageFolderDataset.*'rot'.*root"),
        ("train_cfg.max_epoch=3", "'max_epoch'.*train_cfg.max_epochs"),
        ("default_hooks.logger.intervals=3", "'intervals'.*default_hooks.logger.interval"),
        ("optim_wrapper.optimizer.learning_rate=0.1", "'learning_rate'"),
        ("optim_wrapper.optimiser.lr=1", "OptimWrapper.*'optimiser'.*optimizer"),
        ("model.smoothing=0.2", "ImageClassifier.*'smoothing'.*label_smoothing"),
        ("model.mixup.mixup_alfa=1", "Mixup.*'mixup_alfa'"),
        ("model.type=ImageClasifier", "ImageClasifier.*registry"),
        ("model.backbone.classes=3", "model.backbone.*'classes'"),
        ("model.backbone.model_name=hcformer_nanoo", "hcformer_nano .*model.backbone.model_name"),
        ("lr=0.1", "'lr'.*optim_wrapper.optimizer.lr"),
        ("optim_wraper.optimizer.lr=0.1", "'optim_wraper'.*optim_wrapper"),
    ],
)
def test_misspelt_options(classifier, tmp_path, capsys, option, mentioned):
    words = f"train {classifier} --work-dir {tmp_path / 'run'} --cfg-options {option}"
    said = fails(capsys, *words.split())
    assert re.search(mentioned, said), said
    assert remains(tmp_path / "run") == []


def test_a_misspelt_part_of_an_option_is_reported_before_the_data_is_read():
    config = (
        Path(__file__).parents[2] / "configs/hcformer/semantic-fpn_hcformer-nano_600i_camvid.py"
    )
    for option, message in (
        (
            "model.decode_head.num_clases",
            r"model\.decode_head of the config has no 'num_clases'.*head\.num_classes\?",
        ),
        (
            "param_scheduler.0.start_facto",
            r"param_scheduler\.0 of the config has no.*0\.start_factor\?",
        ),
    ):
        with pytest.raises(HypvisionError, match=message):
            load_config(config, {"data_root": "nowhere", option: 4})
    new = {
        "model.decode_head.loss_decode2": dict(),
        "model.backbone.drop_rate": 0.1,
        "env_cfg.dist_cfg.timeout": 3,
    }
    assert load_config(config, new).model.backbone.drop_rate == 0.1


def test_a_place_for_data_that_is_made_on_the_fly():
    config = Path(__file__).parents[1] / "helpers/shapes/configs/hyperclip.py"
    with pytest.raises(
        HypvisionError, match="no 'data_root', so the option 'data_root' would change nothing"
    ):
        load_config(config, {"data_root": "data"})
    assert load_config(config, {"randomness.seed": 3}).randomness.seed == 3


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("randomness.seed=x", "does not fit: TypeError"),
        ("train_dataloader.batch_size=999 train_dataloader.drop_last=True", "fewer than one batch"),
        ("env_cfg.dist_cfg=3", "has env_cfg.dist_cfg = 3, but a dict"),
        ("train_dataloader.dataset.transform=3", "value of ImageFolderDataset that does not fit"),
        ("train_dataloader.dataset.root=3", "does not fit: TypeError"),
        ("train_dataloader.collate_fn=3", "collate_fn should be a dict or callable"),
        ("train_cfg.val_interval=x", "has train_cfg.val_interval = 'x', but a whole number"),
        ("log_processor.window_size=x", "has log_processor.window_size = 'x', but a whole number"),
        ("model.backbone=3", "value of ImageClassifier that does not fit"),
        ("model.data_preprocessor=3", "data_preprocessor should be a `dict`"),
        ("model.label_smoothing=2", "label_smoothing must be a finite number from 0 to 1"),
        ("model.type=os.mkdir", "mkdir() missing required argument"),
        ("val_evaluator.topk=x", "topk must be an integer of at least 1"),
        ("load_from=mmcls://nosuch", "no weights 'mmcls://nosuch'"),
        ("load_from=open-mmlab://nosuch", "no weights 'open-mmlab://nosuch'"),
        ("custom_imports=nosuch", "has custom_imports = 'nosuch', but a dict"),
        ("custom_imports.imports=nosuch", "cannot be imported"),
    ],
)
def test_a_value_of_another_kind(classifier, tmp_path, capsys, option, message):
    said = fails(
        capsys,
        *f"train {classifier} --work-dir {tmp_path / 'run'} --cfg-options".split(),
        *option.split(),
    )
    assert message in said


def test_a_folder_of_data_is_no_config(originals):
    with pytest.raises(HypvisionError, match="hypvision train .* `data_root` of a config"):
        load_config(originals["detection"])


def test_bugs_keep_their_traceback():
    """An error of the same words that does not come from building the config."""
    with pytest.raises(TypeError) as caught:
        close_configs(nonsense=1)
    assert explain(caught.value) is None


def test_a_launcher_that_started_nothing(classifier, tmp_path, capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    said = fails(
        capsys, "train", classifier, "--work-dir", tmp_path / "run", "--launcher", "pytorch"
    )
    assert "torchrun started, which sets RANK" in said and "tools/dist_train.sh" in said


def test_half_of_a_loop_is_told(tmp_path, capsys):
    """mmengine's own words for it are a ValueError."""
    loaders = (
        "train_dataloader = dict()\ntest_dataloader = dict(dataset=dict(type='CIFARDataset'))\n"
    )
    (tmp_path / "half.py").write_text("model = dict(type='x')\n" + loaders)
    (tmp_path / "a.pth").write_bytes(b"")
    words = f"test {tmp_path / 'half.py'} {tmp_path / 'a.pth'} --work-dir {tmp_path / 'out'}"
    assert main(words.split()) == 2
    assert (
        "has train_dataloader, but no train_cfg and no optim_wrapper. Add what"
        in capsys.readouterr().err
    )
