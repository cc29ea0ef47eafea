"""The class names of training, validation, test and checkpoint are compared for every task; labels
follow them."""

import re
import shutil
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config

from hypvision.data.image_folder import ImageFolderDataset
from hypvision.engine.hooks import CheckClassesHook
from hypvision.engine.run import test as measure
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError

NAMES = ("blue", "green", "red")


class Log(list):
    def warning(self, text):
        self.append(text)


def run_of(model, resume=False):
    return SimpleNamespace(model=model, logger=Log(), _resume=resume, _load_from="old.pth")


# A model of each task, and data as each task has it: only class folders can change their labels.
HEAD = SimpleNamespace(num_classes=3)
TASKS = {
    "classification": SimpleNamespace(num_classes=3),
    "segmentation": SimpleNamespace(decode_head=HEAD),
    "two auxiliary heads": SimpleNamespace(decode_head=[HEAD, HEAD]),
    "detection": SimpleNamespace(bbox_head=HEAD),
    "instances": SimpleNamespace(roi_head=SimpleNamespace(bbox_head=HEAD)),
    "with test-time augmentation": SimpleNamespace(module=SimpleNamespace(decode_head=HEAD)),
}


def dataset(names, place, **more):
    return SimpleNamespace(metainfo=dict(classes=tuple(names)), data_root=place, **more)


@each("task", TASKS)
@each(
    "other, said",
    [
        (
            ("blue", "green", "Red"),
            "'Red' only here.*'red' only there.*'Red' is called 'red' there",
        ),
        (("blue", "red", "green"), "in another order: label 1 is 'red' here and 'green' there"),
        (("blue", "light_green", "red"), "3 classes, 'light_green' only here"),
        (("blue", "red"), "2 classes.*3 classes, 'green' only there"),
    ],
)
def test_names_that_differ_are_an_error_in_every_task(task, other, said):
    hook, run = CheckClassesHook(), run_of(TASKS[task])
    hook.check(run, dataset(NAMES, "train"))
    with pytest.raises(HypvisionError, match=said):
        hook.check(run, dataset(other, "val"))
    hook.check(run, dataset(NAMES, "val"))
    hook = CheckClassesHook()
    hook.after_load_checkpoint(run, dict(meta=dict(dataset_meta=dict(classes=NAMES))))
    with pytest.raises(HypvisionError, match=f"{said}|old.pth"):
        hook.check(run, dataset(other, "test"))
    CheckClassesHook(by_name=False).check(run, dataset(other, "test"))


def test_words_that_a_model_is_tested_with_are_those_of_the_data():
    def model(words=NAMES, given=True):
        found = SimpleNamespace(tested_words=words, gives_words=given)
        found.set_classes = lambda names: setattr(found, "tested_words", names)
        return found

    def check(names, *args, hook=None, **more):
        run = run_of(model(*args))
        (hook or CheckClassesHook()).check(run, dataset(names, "test", **more))
        return run.model.tested_words, run.logger

    assert check(NAMES) == (NAMES, [])
    words, said = check(NAMES[::-1])  # labels stay, words move
    assert words == NAMES[::-1] and "follow the order of SimpleNamespace in 'test'" in said[0]
    for names, given in (
        (NAMES[:2], True),  # fewer
        ((*NAMES, "x"), True),
        (("red", "x", "y"), True),  # 'red' is known at another place
        (("x", "y", "z"), False),  # words that nobody has chosen for these data
    ):
        with pytest.raises(
            HypvisionError, match="class names differ.*Set model.classes in the config"
        ):
            check(names, NAMES, given)
    numbers = ("n01", "n02", "n03")
    words, said = check(numbers)  # a word for each folder, such as ImageNet's
    assert words == NAMES and "label 0 is 'n01' in the data and 'blue' in the model" in said[0]
    assert check(numbers, NAMES, False, numbered=True) == (NAMES, [])
    by_number = CheckClassesHook(by_name=False)
    assert check(NAMES[::-1], hook=by_number) == (NAMES, [])
    with pytest.raises(HypvisionError, match="class names differ"):
        check(NAMES[:2], hook=by_number)


def test_models_that_take_words_are_free():
    for model, more in (
        (SimpleNamespace(decode_head=HEAD, open_vocabulary=True), {}),
        (SimpleNamespace(bbox_head=HEAD), dict(return_classes=True)),
        (SimpleNamespace(train_classes=3), {}),  # a metric learner is tested on other classes
    ):
        hook = CheckClassesHook()
        hook.check(run_of(model), dataset(NAMES, "train", **more))
        hook.check(run_of(model), dataset(("x", "y"), "val", **more))


def test_names_of_a_checkpoint_may_be_decomposed():
    """Folders and tables give composed names, which trainings of before did not."""
    hook = CheckClassesHook()
    run = run_of(TASKS["classification"])
    names = ("bus", "\u00e9t\u00e9", "zoo")
    older = [unicodedata.normalize("NFD", name) for name in names]
    hook.after_load_checkpoint(run, dict(meta=dict(dataset_meta=dict(classes=older))))
    hook.check(run, dataset(names, "val"))
    with pytest.raises(HypvisionError, match="in another order"):
        hook.check(run, dataset(reversed(names), "val"))


@each("key", ["dataset_meta.classes", "dataset_meta.CLASSES", "CLASSES"])
def test_a_resumed_training_keeps_the_classes_and_a_new_one_may_have_others(key):
    *outer, inner = key.split(".")
    meta = {outer[0]: {inner: list(NAMES)}} if outer else {inner: list(NAMES)}
    for resume in (True, False):
        hook = CheckClassesHook()
        run = run_of(TASKS["detection"], resume)
        hook.after_load_checkpoint(run, dict(meta=meta))
        run.train_dataloader = SimpleNamespace(dataset=dataset(("car", "bus", "bike"), "mine"))
        run.val_loop = None
        if resume:
            with pytest.raises(
                HypvisionError, match="'old.pth'.*'blue', 'green', 'red' only there"
            ):
                hook.before_train(run)
        else:
            hook.before_train(run)
            assert "takes the classes of its data" in run.logger[0]
            with pytest.raises(HypvisionError, match="SimpleNamespace in 'mine'"):
                hook.check(run, dataset(NAMES, "val"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training whose validation lacks the class in the middle, and its folder."""
    folder = tmp_path_factory.mktemp("trained")
    data = make_images(folder / "data", per_class=2)
    shutil.rmtree(data / "val/green")
    config = write_config(folder / "config.py", data, epochs=1)
    runner = train(config, folder / "run")
    return folder, config, runner


def test_folders_get_the_labels_of_the_training(trained):
    folder, config, runner = trained
    val = runner.val_dataloader.dataset
    assert val.metainfo["classes"] == NAMES and val.labels.tolist() == [0, 0, 2, 2]
    metric = runner.val_loop.evaluator.metrics[0]
    assert tuple(metric.dataset_meta["classes"]) == NAMES
    log = next((folder / "run").glob("*/*.log")).read_text()
    assert "has no images of 'green'" in log


def test_the_test_uses_the_names_of_the_checkpoint(trained, tmp_path):
    folder, config, runner = trained
    data = tmp_path / "data"
    shutil.copytree(folder / "data", data)
    expected = measure(config, folder / "run/epoch_1.pth", tmp_path / "one")
    options = dict(data_root=str(data))
    (data / "val/red").rename(data / "val/Red")
    with pytest.raises(
        HypvisionError, match="'Red' only here.*epoch_1.pth.*'Red' is called 'red' there"
    ):
        measure(config, folder / "run/epoch_1.pth", tmp_path / "two", cfg_options=options)
    with pytest.raises(
        HypvisionError, match="'Red' is called 'red' there"
    ):  # before the first epoch
        train(config, tmp_path / "three", cfg_options=options)
    assert not list(tmp_path.glob("three/*.pth"))
    (data / "val/Red").rename(data / "val/red")
    assert (
        measure(config, folder / "run/epoch_1.pth", tmp_path / "four", cfg_options=options)
        == expected
    )


def test_a_head_to_start_from_keeps_its_classes(trained, tmp_path):
    """model.checkpoint names the weights of a head, whose outputs are classes of these names."""
    folder, config, _ = trained
    checkpoint = torch.load(folder / "run/epoch_1.pth", weights_only=False)
    for names, said in (
        (("red", "green", "blue"), "its labels follow the names of the checkpoint"),
        (("red", "green", "sky"), "'sky' only there.*The training takes the classes of its data"),
    ):
        checkpoint["meta"]["dataset_meta"]["classes"] = names
        torch.save(checkpoint, tmp_path / "start.pth")
        work = tmp_path / names[-1]
        runner = train(config, work, cfg_options={"model.checkpoint": str(tmp_path / "start.pth")})
        assert runner.train_dataloader.dataset.metainfo["classes"] == (
            NAMES if "sky" in names else names
        )
        assert re.search(said, next(work.glob("*/*.log")).read_text())


def test_a_list_without_names_is_compared_by_numbers(tmp_path):
    data = make_images(tmp_path, per_class=1)
    (tmp_path / "val.txt").write_text("blue/0.png 0\nred/0.png 2\ngreen/0.png 1\n")
    transform = dict(input_size=16)
    listed = ImageFolderDataset(data / "val", transform, ann_file=tmp_path / "val.txt")
    hook, run = CheckClassesHook(), run_of(TASKS["classification"])
    hook.check(run, ImageFolderDataset(data / "train", transform))
    hook.check(run, listed)
    assert listed.labels.tolist() == [0, 2, 1] and "by the numbers" in run.logger[0]
    hook = CheckClassesHook()
    hook.after_load_checkpoint(run, dict(meta=dict(dataset_meta=dict(classes=("0", "1", "2")))))
    with pytest.raises(HypvisionError, match="'3' only here"):
        hook.check(run, dataset(("0", "1", "3"), "test", labels=[0]))


def test_numbered_folders(tmp_path):
    for name in ("0", "1", "2", "10", "11"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / name / "a.png")
    by_name = ImageFolderDataset(tmp_path, dict(input_size=4))
    natural = ImageFolderDataset(tmp_path, dict(input_size=4), sort="natural")
    assert by_name.metainfo["classes"] == ("0", "1", "10", "11", "2")
    assert natural.metainfo["classes"] == ("0", "1", "2", "10", "11")
    (note,) = by_name.usage.notes
    assert "label 2 is the folder '10'. With sort='natural'" in note and note.endswith("it is '2'.")
    assert not natural.usage.notes
    for data in (by_name, natural):
        for label, path in zip(data.labels, data.paths):
            assert path.split("/")[-2] == data.metainfo["classes"][label]
    hook, run = CheckClassesHook(), run_of(SimpleNamespace(num_classes=5))
    hook.check(run, natural)
    hook.check(run, by_name)
    assert by_name.labels.tolist() == natural.labels.tolist() == [0, 1, 3, 4, 2]
