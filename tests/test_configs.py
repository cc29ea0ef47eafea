"""Every config takes one training step on tiny data in the real layouts, most of them in the slow
tests only."""

import re

import pytest
import timm
import torch
import yaml
from helpers.cases import each
from helpers.configs import ROOT, WHOLE, data, shipped, shrink  # noqa: F401 - a fixture
from mmengine.registry import DATASETS, HOOKS, MODELS, TRANSFORMS, init_default_scope
from mmengine.runner import load_checkpoint

from hypvision.checkpoints.index import builtin_index
from hypvision.engine.checks import check_channels
from hypvision.engine.config import import_extensions, load_config
from hypvision.engine.run import train
from hypvision.io.shipped import RECIPES, recipe_of, recipes

FOLDERS = ("hcformer", "baselines", "hecnn", "lvit")
CONFIGS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*.py")
    if "emoji" not in path.name  # of data that `hypvision data make` writes
)
# One of each family, task and optimiser; the others differ from one of these in data, size, length
# or seed.
QUICK = {
    "hcformer/mask-rcnn_hcformer-nano_8xb2-1x_coco.py",
    "hcformer/semantic-fpn_hcformer-nano_600i_camvid.py",
    "hcformer/hcformer-nano-local_25e_cifar10.py",
    "hecnn/hcnn-plus-resnet18_200e_cifar10.py",
}


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("name", CONFIGS)
def test_config_takes_a_step(name, data, tmp_path):  # noqa: F811
    runner = train(shrink(ROOT / name, name, data), tmp_path)
    assert runner.iter == 1
    assert runner.message_hub.get_scalar("train/loss").current() > 0
    if name in WHOLE:  # one of each task, which keeps its schedule; its evaluators are built too
        rate = runner.cfg.optim_wrapper.optimizer.lr
        assert runner.param_schedulers
        assert 0 < max(runner.optim_wrapper.get_lr()["lr"]) < rate  # it took its step
        assert runner.val_loop.evaluator.metrics and runner.test_loop.evaluator.metrics


SIZED = {
    path.relative_to(ROOT).as_posix(): float(match[1]) * dict(m=1e6, b=1e9)[match[2]]
    for path in shipped()
    if (match := re.search(r"-(\d+(?:\.\d+)?)([mb])(?=[-_])", path.name))
}


@each("name", SIZED)
def test_configs_have_the_size_that_their_names_say(name):
    """To 8 %: the paper calls 126.4 M parameters 120 M."""
    config = load_config(ROOT / name)
    import_extensions(config)
    init_default_scope(config.get("default_scope", "mmengine"))
    with torch.device("meta"):
        model = MODELS.build(config.model)
    network = getattr(model, "decoder", model)
    count = getattr(network, "num_parameters", lambda: sum(p.numel() for p in model.parameters()))()
    assert count == pytest.approx(SIZED[name], rel=0.08)


LOADED = [path.relative_to(ROOT).as_posix() for path in shipped("*xb*.py")]


def test_names_say_the_batch_of_a_process():
    wrong = []
    for name in LOADED:
        loader = load_config(ROOT / name).get("train_dataloader")
        said = int(re.search(r"_\d+xb(\d+)", name)[1])
        if loader is not None and loader.batch_size != said:
            wrong.append(f"{name}: {loader.batch_size}")
    assert len(LOADED) > 120 and wrong == []


# The length of a training: epochs, iterations, thousands of these, mmdet's schedules of 12 epochs.
LENGTHS = {"e": "max_epochs", "i": "max_iters", "k": "max_iters", "x": "max_epochs"}
UNITS = {"e": 1, "i": 1, "k": 1000, "x": 12}
LONG = {
    path.relative_to(ROOT).as_posix(): match
    for path in shipped()
    if (match := re.search(r"[-_](\d+)([eikx])(?=[_.-])", path.name))
}


def test_names_say_the_length_of_a_training():
    wrong = []
    for name, match in LONG.items():
        found = load_config(ROOT / name).get("train_cfg") or {}
        if found.get(LENGTHS[match[2]]) != UNITS[match[2]] * int(match[1]):
            wrong.append(f"{name}: {found}")
    assert len(LONG) > 180 and wrong == []


def test_pixels_are_scaled_as_the_weights_of_the_backbone_want():
    """Of dense models, whose mean and deviation stand in the config and not in timm's record; also
    where the backbone starts at random and an option takes its weights."""
    wrong = []
    looked = 0
    dense = [name for name in LONG if re.search("_(ade20k|coco|camvid|voc12)", name)]
    for name in dense:
        model = load_config(ROOT / name).model
        backbone = model.get("backbone") or {}
        pixels = model.get("data_preprocessor") or {}
        if backbone.get("type") == "TimmBackbone" and "mean" in pixels:
            looked += 1
            weights = timm.get_pretrained_cfg(backbone.model_name)
            wanted = [255 * value for value in (*weights.mean, *weights.std)]
            if [*pixels.mean, *pixels.std] != pytest.approx(wanted, abs=0.05):
                wrong.append(name)
    assert looked > 30 and wrong == []


def bases_of(path):
    """The files and rows that a config names as its bases, those of this package."""
    recipe = recipe_of(path)
    if recipe:
        return [ROOT / f"{piece}.py" for piece in recipe.pieces.split()]
    found = re.search(r"^_base_ = (\[.*?\]|\".*?\")", path.read_text(), re.DOTALL | re.MULTILINE)
    names = re.findall(r'"([^"]+)"', found[1]) if found else []
    own = [name.removeprefix("hypvision::") for name in names]
    return [
        ROOT / name if name != given else (path.parent / name).resolve()
        for given, name in zip(names, own)
        if "::" not in name
    ]


def depth(path):
    """How many files one reads, at most, one after the other behind a config."""
    return max((1 + depth(base) for base in bases_of(path)), default=0)


def test_no_config_stands_on_more_than_four_others():
    assert depth(ROOT / "helm/helm-mice-small_books.py") == 4
    assert [path.stem for path in shipped() if depth(path) > 4] == []


def test_a_row_of_a_table_is_a_config_as_a_file_is(tmp_path):
    """By name, by the path that its file would have, and as a base of one's own."""
    name = "lhier_vit-small_2xb90-150e_sop"
    config = load_config(name)
    assert config.stem == name and config.model.neck.geometry == "lorentz"
    assert config.model.num_classes == 11318 and config.train_cfg.max_epochs == 150
    assert config.custom_hooks == [dict(type="BackboneWarmUpHook", epochs=5)]
    assert not (ROOT / f"lhier/{name}.py").exists()
    for source in (f"lhier/{name}", f"configs/lhier/{name}.py", ROOT / f"lhier/{name}.py"):
        assert load_config(source).to_dict() == config.to_dict()
    own = tmp_path / "own.py"
    for base in (f"hypvision::lhier/{name}.py", str(ROOT / f"lhier/{name}.py")):
        own.write_text(f'_base_ = ["{base}"]\nmodel = dict(num_classes=7)\n')
        changed = load_config(own)
        assert changed.model.num_classes == 7 and changed.model.neck == config.model.neck
        assert any(file.endswith("lhier/_base_/lorentz.py") for file in changed.files)
    names = [row.name for row in recipes().values()]
    assert len(names) == len(set(names)) == 78


# Of CLIPs, which open_clip does not build without memory: about three seconds each.
REAL = [name for name in LOADED if name.startswith(("hyperclip", "hierarcaps"))]
# parameters; radial tuning, of vitl14 and vitb32, drops the image tower
LEAST = {"vitl14-336": 420e6, "vitl14": 120e6, "vitb32": 60e6, "vitb16": 140e6}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_networks_of_clip_are_built_at_their_real_size(name):
    pytest.importorskip("open_clip")
    config = load_config(ROOT / name)
    import_extensions(config)
    init_default_scope(config.get("default_scope", "mmengine"))
    config.model.clip.pretrained = None
    if config.model.get("backbone"):
        config.model.backbone.init_cfg = None
    model = MODELS.build(config.model)
    least = next(LEAST[key] for key in LEAST if key in name)
    assert least < sum(p.numel() for p in model.parameters()) < 1.5 * least
    assert any(p.requires_grad for p in model.parameters())


BUILT = set()  # models of siblings, by their configs


@each("name", [n for n in CONFIGS if n not in QUICK])
def test_siblings_are_read_and_their_parts_are_known(name):
    """Without their step; on the meta device, which makes no weights."""
    config = load_config(ROOT / name)
    import_extensions(config)
    init_default_scope(config.get("default_scope", "mmengine"))
    config.model.backbone.pop("init_cfg", None)
    if repr(config.model) not in BUILT:  # most differ in data and schedules alone
        BUILT.add(repr(config.model))
        with torch.device("meta"):
            model = MODELS.build(config.model)
        assert any(p.requires_grad for p in model.parameters())
        check_channels(model)
    parts = [(HOOKS, hook) for hook in config.get("custom_hooks") or []]
    for phase in ("train", "val", "test"):
        dataset = config[f"{phase}_dataloader"].dataset
        parts += [
            (DATASETS, dataset),
            *((TRANSFORMS, step) for step in dataset.get("pipeline", [])),
        ]
    for registry, part in parts:
        with registry.switch_scope_and_registry(None) as own:  # of the config
            assert own.get(part["type"]), part


@each("name", sorted(path.name for path in ROOT.iterdir() if path.name != "_base_"))
def test_every_folder_says_what_is_in_it(name):
    folder = ROOT / name
    meta = yaml.safe_load((folder / "metafile.yml").read_text())
    assert {entry["README"] for entry in meta["Collections"]} == {
        f"configs/{folder.name}/README.md"
    }
    assert (folder / "README.md").is_file()
    for model in meta["Models"]:
        path = ROOT.parent / model["Config"]
        assert path.is_file() and path.parent == folder
        of_table = path.name == RECIPES and folder / f"{model['Name']}.py" in recipes()
        assert of_table or path.stem == model["Name"]
        assert "Reported" not in model or ("Results" in model) == (
            model["Reported"] in ("paper", "here", "authors")
        )
    names = {model["Name"] for model in meta["Models"]}
    assert len(names) == len(meta["Models"])
    if name in (
        "baselines",
        "demo",
        "hecnn",
        "helm",
        "lhier",
        "lvit",
    ):  # the others have configs that are parts of a study
        assert names == {path.stem for path in shipped(f"{name}/*.py")}


@each("record", list(builtin_index()))
def test_the_config_of_a_shipped_record_takes_its_weights(record):
    """Else the command of its card, and what starts from it, ends in an error: configs change,
    weights stay."""
    config = load_config(ROOT.parent / record.config)
    import_extensions(config)
    init_default_scope(config.get("default_scope", "mmengine"))
    load_checkpoint(MODELS.build(config.model), f"zoo:{record.name}", strict=True)
