"""Workers of data loaders that are new processes, as on Windows, get what is patched here before
their data."""

import importlib
import multiprocessing
import pickle
from multiprocessing.context import set_spawning_popen
from operator import itemgetter
from types import SimpleNamespace

import pytest

pytest.importorskip("mmengine")
from helpers.emoji import make_emoji
from helpers.engine import make_images, tiny, write_config
from helpers.fewshot_layouts import coop
from helpers.language import make_text
from helpers.retrieval_layouts import write_cub
from helpers.shapes.export import export
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from hypvision.cli import main
from hypvision.engine import run
from hypvision.engine.config import import_extensions, load_config
from hypvision.engine.run import with_extensions, worker_context
from hypvision.io.plugins import PLUGINS

CALLS = []


class Data:
    """Data that notes when a worker gets it."""

    def __init__(self):
        self.size = 1

    def __setstate__(self, state):
        CALLS.append("data")


@pytest.fixture
def spawning(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda *_: "spawn")


@pytest.mark.parametrize("loaded", [True, False])
def test_the_extensions_come_before_the_data(spawning, monkeypatch, loaded):
    for role in [role for role in PLUGINS if role.startswith("scope ")]:
        monkeypatch.delitem(PLUGINS, role)
    monkeypatch.setitem(PLUGINS, "scope mine", "mine")
    monkeypatch.setattr(run, "sys", SimpleNamespace(modules={"mine": None} if loaded else {}))
    monkeypatch.setattr(run, "importlib", SimpleNamespace(import_module=CALLS.append))
    CALLS.clear()
    process = worker_context().Process(args=(Data(),))
    set_spawning_popen(object())
    try:
        sent = pickle.dumps(process)
    finally:
        set_spawning_popen(None)
    again = pickle.loads(sent)
    assert (["mine", "data"] if loaded else ["data"]) == CALLS
    assert type(again) is multiprocessing.get_context("spawn").Process
    assert again.name == process.name


def test_forked_workers_have_everything():
    assert multiprocessing.get_start_method() != "fork" or worker_context() is None
    assert with_extensions(DataLoader)([1, 2]).multiprocessing_context is None


def test_workers_end_with_the_training(tmp_path):
    """Also those that a loader keeps; a later loop of the runner has workers again."""
    data = make_images(tmp_path / "data")
    config = load_config(write_config(tmp_path / "config.py", data, workers=1))
    for phase in ("train", "val"):
        config[f"{phase}_dataloader"].persistent_workers = True
    before = set(multiprocessing.active_children())
    runner = run.train(config, tmp_path / "run")
    assert set(multiprocessing.active_children()) == before
    assert runner.val_loop.dataloader._iterator is None
    assert runner.val()
    assert set(multiprocessing.active_children()) > before
    run.end_workers(runner)
    assert set(multiprocessing.active_children()) == before


def test_a_training_by_steps_goes_on_with_new_workers(tmp_path):
    """The runner of a training that is over trains on, as mmengine's loop allows."""
    data = make_images(tmp_path / "data")
    config = load_config(write_config(tmp_path / "config.py", data, workers=1))
    config.train_cfg = dict(by_epoch=False, max_iters=2, val_interval=2)
    config.train_dataloader.sampler = dict(type="InfiniteSampler", shuffle=True)
    before = set(multiprocessing.active_children())
    runner = run.train(config, tmp_path / "run")
    assert set(multiprocessing.active_children()) == before
    runner.train_loop._max_iters = 4
    runner.train()
    assert runner.iter == 4
    run.end_workers(runner)
    assert set(multiprocessing.active_children()) == before


def classification(folder):
    return dict(
        type="ImageFolderDataset",
        root=f"{make_images(folder)}/train",
        transform=dict(input_size=32),
    )


def dense(task, layout, kind, **changes):
    """A stock data set of mmseg or mmdet, whose module asks for mmcv's operators."""

    def make(folder):
        data = export(folder / "data", layout, 2, 2, 64, level="kind")
        config = load_config(tiny(task, data, folder / "config.py"))
        import_extensions(config)
        data = {
            key: value for key, value in config.train_dataloader.dataset.items() if key != "level"
        }
        return dict(data, type=kind, _scope_=config.default_scope, **changes)

    return make


def metric_learning(folder):
    return dict(type="CUB200", root=str(write_cub(folder)), transform=dict(input_size=32))


def few_shot(folder):
    return dict(type="FewShotDataset", root=str(coop(folder)), name="caltech101", shots=2, size=32)


def language(folder):
    return dict(
        type="PackedText",
        source=str(make_text(folder) / "train.txt"),
        length=32,
        cache=str(folder / "tokens"),
    )


TASKS = {
    "classification": classification,
    # with its own classes: the data set refuses names that it does not have
    "segmentation": dense(
        "segmentation", "ade", "ADE20KDataset", reduce_zero_label=True, metainfo=None
    ),
    "detection": dense("detection", "coco", "CocoDataset"),
    "metric learning": metric_learning,
    "few-shot": few_shot,
    "language": language,
    "contrastive": lambda folder: dict(
        type="EmojiCaptions", root=str(make_emoji(folder / "emoji")), length=4
    ),
    "radial": lambda folder: dict(
        type="TextChains", source="emoji", root=str(make_emoji(folder / "emoji"))
    ),
}


DATA = "fewshot.dataset image_folder retrieval emoji text_chains"
MODULES = ["hypvision.tasks.language", *(f"hypvision.data.{name}" for name in DATA.split())]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_task_reads_its_data_in_a_new_process(spawning, tmp_path, task):
    for module in MODULES:  # data sets say their names where they are defined
        importlib.import_module(module)
    dataset = DATASETS.build(TASKS[task](tmp_path))
    expected = dataset[0]
    loader = with_extensions(DataLoader)(dataset, num_workers=1, collate_fn=itemgetter(0))
    found = next(iter(loader))
    assert type(found) is type(expected) and list(found) == list(expected)


@pytest.mark.slow
def test_a_killed_worker_is_a_sentence(tmp_path, capsys):
    """And the checkpoint of the epoch before is kept."""
    config = write_config(
        tmp_path / "config.py", make_images(tmp_path / "data"), workers=1, epochs=3
    )
    text = config.read_text().replace(
        "custom_hooks = []", "custom_hooks = [dict(type='KillWorker')]"
    )
    (tmp_path / "killing.py").write_text(KILLING)
    config.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{text}\ncustom_imports = "
        "dict(imports='killing')\n"
    )
    assert main(["train", str(config), "--work-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "A worker process ended before its work (" in error
    assert "Traceback" not in error and (tmp_path / "run/epoch_1.pth").is_file()


KILLING = """
import multiprocessing
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class KillWorker(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.epoch == 1:
            for child in multiprocessing.active_children():
                child.kill()
"""
