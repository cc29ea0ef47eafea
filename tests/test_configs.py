"""Every config builds and takes one training step on tiny data in the real layouts."""

import pytest
import yaml
from helpers.configs import ROOT, WHOLE, data, shrink  # noqa: F401 - a fixture
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint

from hypvision.checkpoints.index import builtin_index
from hypvision.engine.config import load_config
from hypvision.engine.extensions import import_extensions
from hypvision.engine.run import train

FOLDERS = ("hcformer", "baselines", "demo", "hecnn")
# One of each task, which keeps its schedule; its evaluators are built too.
SLOW = ("tiny", "small", "medium", "resnet50", "coco", "ade20k", "baselines/semantic-fpn", "4xb256-310e")
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
CONFIGS.remove("demo/open_vocabulary.py")  # tests/tools/test_demo.py


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if any(s in n for s in SLOW) else []) for n in CONFIGS],
)
def test_config_takes_a_step(name, data, tmp_path):  # noqa: F811
    runner = train(shrink(ROOT / name, name, data), tmp_path)
    assert runner.iter == 1
    assert runner.message_hub.get_scalar("train/loss").current() > 0
    if name in WHOLE:
        rate = runner.cfg.optim_wrapper.optimizer.lr
        assert runner.param_schedulers and 0 < max(runner.optim_wrapper.get_lr()["lr"]) < rate  # it took its step
        assert runner.val_loop.evaluator.metrics and runner.test_loop.evaluator.metrics


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.iterdir() if path.name != "_base_"))
def test_every_folder_says_what_is_in_it(name):
    folder = ROOT / name
    meta = yaml.safe_load((folder / "metafile.yml").read_text())
    assert {entry["README"] for entry in meta["Collections"]} == {f"configs/{folder.name}/README.md"}
    assert (folder / "README.md").is_file()
    for model in meta["Models"]:
        path = ROOT.parent / model["Config"]
        assert path.is_file() and path.parent == folder and path.stem == model["Name"]


def test_metafile_names_files_that_exist():
    meta = yaml.safe_load((ROOT / "hcformer/metafile.yml").read_text())
    assert {model["Reported"] for model in meta["Models"]} == {"paper", "here"}
    assert len({model["Name"] for model in meta["Models"]}) == len(meta["Models"])
    for model in meta["Models"]:
        assert (ROOT.parent / model["Config"]).is_file(), model["Config"]


@pytest.mark.parametrize("record", list(builtin_index()), ids=lambda record: record.name)
def test_the_config_of_a_shipped_record_takes_its_weights(record):
    """Else the command of its card, and what starts from it, ends in an error: configs change, weights stay."""
    config = load_config(ROOT.parent / record.config)
    import_extensions(config)
    init_default_scope(config.get("default_scope", "mmengine"))
    load_checkpoint(MODELS.build(config.model), f"zoo:{record.name}", strict=True)
