"""The published recipes of MERU, HyCoCLIP and their baselines: their numbers, and a step of each
from shards."""

import math
from pathlib import Path

import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmengine")
pytest.importorskip("webdataset")
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS
from PIL import Image

from hypvision.clip.models import ARCHITECTURES
from hypvision.clip.spaces import ExteriorAngles, Hyperboloid, HyperboloidProduct, Sphere, space_of
from hypvision.data.write_shards import write_shards
from hypvision.engine.config import import_extensions, load_config
from hypvision.engine.run import train

ROOT = Path(__file__).parents[1] / "configs/hyperbolic-clip"
RECIPES = sorted(path.stem for path in ROOT.glob("*-vit-*.py"))
WIDTHS = {"s": (384, 12), "b": (768, 12), "l": (1024, 16)}  # with the heads
DEPTHS = {"s": 12, "b": 12, "l": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with four captions and a box of each."""
    root = tmp_path_factory.mktemp("folder")
    (root / "images").mkdir()
    lines = ["image,caption,left,top,right,bottom,words"]
    for name in ("red", "blue", "green", "black"):
        Image.new("RGB", (40, 30), name).save(root / f"images/{name}.png")
        lines.append(f"{name}.png,a {name} wall,0,0,20,20,{name}")
    (root / "captions.csv").write_text("\n".join(lines) + "\n")
    return root


def test_every_model_has_a_recipe():
    models = {name.partition("_")[0] for name in RECIPES if name.endswith("redcaps")}
    expected = {f"{family}-vit-{size}" for family in ("clip", "meru") for size in "sbl"}
    assert models == {*expected, "atmg-vit-s", "atmg-vit-b"}
    models = {name.partition("_")[0] for name in RECIPES if name.endswith("grit")}
    families = ("clip", "meru", "hycoclip", "uncha", "phyclip")
    expected = {f"{family}-vit-{size}" for family in families for size in "sb"}
    assert models == {*expected, "phyclip-vit-l"}


@each("name", [name for name in RECIPES if "-vit-s" in name])
def test_networks_of_the_recipes(name):
    """What the table in their README, which test_recipes.py compares, does not say."""
    config = load_config(ROOT / f"{name}.py")
    import_extensions(config)
    model, _, data = name.split("_")
    family, _, size = model.split("-")
    boxes = dict(hycoclip=True, uncha=5, phyclip=True)
    loader = config.train_dataloader
    assert loader.dataset.get("boxes", False) == boxes.get(family, False)
    assert loader.dataset.get("subreddits", 0.0) == (0.5 if data == "redcaps" else 0.0)
    assert loader.dataset.transform.input_size == 224
    with torch.device("meta"):
        clip = MODELS.build(config.model).clip
    spaces = dict(clip=Sphere, phyclip=HyperboloidProduct, atmg=ExteriorAngles)
    assert type(space_of(clip)) is spaces.get(family, Hyperboloid)
    assert config.model.entail == (0.0 if family == "atmg" else 0.2)
    width, heads = WIDTHS[size]
    assert clip.visual.trunk.embed_dim == width and clip.text_projection.shape == (512, 512)
    assert clip.visual.trunk.blocks[0].attn.num_heads == heads
    assert len(clip.visual.trunk.blocks) == DEPTHS[size] and len(clip.transformer.resblocks) == 12


@pytest.fixture
def tiny(monkeypatch):
    """The models with small towers."""
    small = ("clip-vit-s-16", "meru-vit-b-16", "hycoclip-vit-s-16", "uncha-vit-s-16")
    for name in (*small, "phyclip-vit-s-16", "atmg-vit-s-16"):
        config = ARCHITECTURES[name]
        vision = dict(
            image_size=32,
            timm_model_name="vit_tiny_patch16_224",
            timm_pool="token",
            timm_proj="linear",
        )
        text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=2)
        monkeypatch.setitem(
            ARCHITECTURES,
            name,
            config | dict(embed_dim=24, vision_cfg=vision, text_cfg=text, vision_heads=3),
        )


@pytest.mark.parametrize("name", ["hycoclip-vit-s_8xb96-500k_grit", "own_captions"])
def test_what_decays(tiny, name):
    """All but four scalars in the official trainings (sheet 2); of ours norms and biases do not."""
    config = load_config(
        ROOT / f"{name}.py", {"model.clip.name": "hycoclip-vit-s-16", "model.clip.pretrained": None}
    )
    import_extensions(config)
    model = MODELS.build(config.model)
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    decays = {
        id(p): group["weight_decay"]
        for group in wrapper.optimizer.param_groups
        for p in group["params"]
    }
    norms = {
        id(p) for m in model.modules() if isinstance(m, torch.nn.LayerNorm) for p in m.parameters()
    }
    scalars = {"logit_scale", "curv", "visual_alpha", "textual_alpha"}
    found = {name: decays[id(p)] for name, p in model.clip.named_parameters() if p.requires_grad}
    assert scalars <= found.keys()
    for name, parameter in model.clip.named_parameters():
        if parameter.requires_grad:
            free = id(parameter) in norms or "bias" in name
            free = name in scalars or (free and config.filename.endswith("own_captions.py"))
            assert found[name] == (0.0 if free else 0.2), name


def test_what_decays_in_its_successors(tiny):
    """UNCHA's three scales do not; PHyCLIP's curvatures and scales do, being in lists."""
    for name, free in (
        ("uncha", {"curv", "visual_alpha", "textual_alpha"}),
        ("phyclip", {"logit_scale"}),
    ):
        config = load_config(ROOT / f"{name}-vit-s_8xb96-500k_grit.py")
        import_extensions(config)
        model = MODELS.build(config.model)
        groups = build_optim_wrapper(model, config.optim_wrapper).optimizer.param_groups
        kept = {id(p) for group in groups if not group["weight_decay"] for p in group["params"]}
        found = {n for n, p in model.clip.named_parameters() if id(p) in kept and p.requires_grad}
        assert {n for n in found if not n.endswith("_logit_scale")} == free
        assert len(found) == (6 if name == "uncha" else 1)


@pytest.mark.parametrize(
    ("name", "steps"), [("256-120k_redcaps", 120_000), ("96-500k_grit", 500_000)]
)
def test_the_rates_are_those_of_the_sheet(name, steps):
    """Their shape in a hundredth of the steps."""
    rows = load_config(ROOT / f"meru-vit-s_8xb{name}.py").param_scheduler
    assert [(row.begin, row.end) for row in rows] == [
        (0, 4001),
        (4000, steps),
    ]  # mmengine's last step is end - 1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=5e-4)
    for row in rows:
        row.update(begin=row.begin // 100, end=row.end // 100 + row.end % 100)
    schedulers = [PARAM_SCHEDULERS.build(dict(row, optimizer=optimizer)) for row in rows]
    optimizer.step()
    for step in range(steps // 100):
        rest = (step - 40) / (steps / 100 - 40)
        expected = 5e-4 * (step / 40 if step < 40 else math.cos(math.pi / 2 * rest) ** 2)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-4, abs=1e-11), step
        for scheduler in schedulers:
            scheduler.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "hycoclip-vit-s_8xb96-500k_grit",
        pytest.param("meru-vit-b_8xb256-120k_redcaps", marks=pytest.mark.slow),
        pytest.param("clip-vit-s_8xb256-120k_redcaps", marks=pytest.mark.slow),
        "uncha-vit-s_8xb96-500k_grit",
        "phyclip-vit-s_8xb96-500k_grit",
        "atmg-vit-s_8xb256-120k_redcaps",
    ],
)
def test_recipes_take_steps_from_shards(name, tiny, folder, tmp_path):
    write_shards(folder, tmp_path / "shards")
    config = load_config(
        ROOT / f"{name}.py", {"train_dataloader.dataset.shards": str(tmp_path / "shards")}
    )
    config.train_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    config.train_dataloader.dataset.transform.input_size = 32
    config.model.classes = ["red", "blue"]
    config.train_cfg.max_iters = 3  # more than an epoch
    config.val_dataloader = config.val_cfg = config.val_evaluator = None
    runner = train(config, tmp_path / "work")
    assert runner.iter == 3 and math.isfinite(runner.message_hub.get_scalar("train/loss").current())
    counts = dict(clip=0, atmg=0, meru=1, hycoclip=4, uncha=6, phyclip=4)
    entailed = [key for key in runner.message_hub.log_scalars if "loss_entail" in key]
    assert len(entailed) == counts[name.partition("-")[0]]
