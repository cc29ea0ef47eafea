"""Every metric-learning config builds and trains on tiny data in the published layouts."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mmengine")
from helpers.configs import shipped
from helpers.retrieval_layouts import write_cars, write_cub, write_folder, write_inshop, write_sop

from hypvision.engine.config import load_config
from hypvision.engine.run import test as run_test
from hypvision.engine.run import train

ROOT = Path(__file__).parents[2] / "configs" / "lhier"
CONFIGS = [path.name for path in shipped("lhier/*.py")]
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDERS = ("cifar10", "grocery", "omniglot")
CHARACTERS = tuple(f"Greek_{i:03d}" for i in range(183))
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*published are"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_cub(root / "cub200")
    write_sop(root / "sop")
    write_inshop(root / "inshop")
    write_folder(root / "cifar10/train", CIFAR, images=8)
    write_folder(root / "cifar10/test", CIFAR, images=8)
    names = load_config(ROOT / "hier_efficientnet-lite0_20e_grocery.py")
    groceries = (*names.fit, *names.held, *names.unseen)
    write_folder(root / "grocery/images/train", groceries, images=4)
    write_folder(root / "grocery/images/test", groceries, images=2)
    (root / "grocery/ancestors.json").write_text(
        json.dumps({name: ["food", "fruit"] for name in groceries})
    )
    write_folder(root / "omniglot/images", CHARACTERS, images=4)
    split = dict(
        train=CHARACTERS[:92],
        test=CHARACTERS[92:],
        ancestors={name: [name[:5]] for name in CHARACTERS},
    )
    (root / "omniglot/split.json").write_text(json.dumps(split))
    return root


def tiny(name, data, **options):
    """A few small images, random weights, no worker processes."""
    key = next(k for k in ("cub200", "cars196", "sop", "inshop", *FOLDERS) if k in name)
    if key == "cars196" and not (data / key).exists():
        pytest.importorskip("scipy")
        write_cars(data / key)
    config = load_config(
        ROOT / name, {"data_root": str(data / key), "model.backbone.pretrained": False, **options}
    )
    for loader in (config.train_dataloader, config.val_dataloader, config.test_dataloader):
        loader.update(
            num_workers=0, persistent_workers=False, batch_size=24 if key in FOLDERS else 8
        )
        loader.dataset.transform.input_size = 32
    if key in FOLDERS or name.startswith("hypvit"):  # a class has four images
        config.train_dataloader.batch_sampler.m = 4
    if name.startswith("hypvit"):  # plain colours are so far apart that their loss would be 0
        config.model.metric_loss.temperature = 2.0
    config.model.checkpoint = None
    if config.model.backbone.model_name.startswith(("vit", "deit")):
        config.model.backbone.update(img_size=32, depth=2)
    if config.model.get("hier_loss"):
        config.model.hier_loss.update(num_proxies=12, neighbours=6)
    return config


@pytest.mark.quick(
    "lhier_dino-small_2xb90-100e_cub200.py", "hypvit_dino-small_1xb900-50i_cub200.py"
)
@pytest.mark.parametrize("name", CONFIGS)
def test_config_trains_and_measures(name, data, tmp_path):
    """One epoch, which is two steps of a recipe that counts steps."""
    config = tiny(name, data)
    if config.train_cfg.by_epoch:
        config.train_cfg.update(max_epochs=1, val_interval=1)
    else:
        config.train_cfg.update(max_iters=2, val_interval=2)
    runner = train(config, tmp_path)
    steps = len(runner.train_dataloader)
    assert runner.iter == steps > 0
    scalar = runner.message_hub.get_scalar
    assert scalar("train/loss").current() > 0 and 0 <= scalar("val/recall@1").current() <= 100
    groups = runner.optim_wrapper.optimizer.param_groups
    rates = {group.get("name", "body"): group["lr"] for group in groups}  # Hyp-ViT's has one rate
    assert rates["body"] > 0
    if config.model.metric_loss.name in ("SupConLoss", "PrototypeMetricLoss"):
        assert "class_proxies" not in rates  # neither learns any
    else:
        assert rates["class_proxies"] > rates["body"]
    if config.model.neck.geometry == "lorentz":
        manifold = runner.model.neck.manifold
        manifold.check_point(runner.model.hier_loss.proxies)
        assert manifold._value() != 1.0


def test_a_trained_checkpoint_is_measured_again(data, tmp_path):
    """What validation said at the end, testing says again; embeddings are written."""
    config = tiny("lhier_resnet10t_cifar10.py", data)
    config.train_cfg.update(max_epochs=1)
    config.param_scheduler = []
    said = train(config, tmp_path / "run").message_hub.get_scalar("val/recall@1").current()
    out = tmp_path / "embeddings.npz"
    places = dict(out=tmp_path / "report", save=out)
    found = run_test(
        tiny("lhier_resnet10t_cifar10.py", data),
        tmp_path / "run/epoch_1.pth",
        tmp_path / "test",
        **places,
    )
    assert found["recall@1"] == pytest.approx(said)
    assert {"r_precision", "map@r", "mistake_height"} <= set(found)
    page = (tmp_path / "report/report.html").read_text()
    assert "MetricLearner does not give one class to each image" in page and "<img" not in page
    with np.load(out) as file:
        assert file["embeddings"].shape == (32, 65) and list(file["classes"]) == [
            "frog",
            "horse",
            "ship",
            "truck",
        ]


@pytest.mark.parametrize(
    "options",
    [
        {"model.neck.learnable": False},
        {"model.neck.slope": 3.0, "model.neck.limit": 6.0},
        {"optim_wrapper.optimizer.type": "RiemannianAdam"},
        {"optim_wrapper.optimizer.move": "project"},
        {"optim_wrapper.paramwise_cfg.curvature_lr": 1e-4},
        {
            "model.metric_loss.name": "MultiSimilarityLoss",
            "model.metric_loss.distance": "hyperbolic",
        },
        {"model.hier_loss.exclude_anchor": True},
        {"model.neck.dim": 16},
    ],
    ids=lambda options: " ".join(
        f"{key.rpartition('.')[2]}={value}" for key, value in options.items()
    ),
)
def test_switches_that_the_readme_names_take_a_step(options, data):
    """Without a Runner: the learner and its optimiser are built from the config, and the loss is
    finite."""
    import torch
    from mmengine.optim import build_optim_wrapper
    from mmengine.registry import MODELS

    import hypvision.tasks.metric_learning  # noqa: F401 - registers the learner

    if "model.metric_loss.name" in options:
        pytest.importorskip("pytorch_metric_learning")
    config = tiny("lhier_resnet10t_cifar10.py", data, **options)
    model = MODELS.build(config.model)
    optim = build_optim_wrapper(model, config.optim_wrapper)
    batch = dict(inputs=torch.randn(8, 3, 32, 32), label=torch.arange(8) // 2)
    losses = [model.train_step(batch, optim)["loss"] for _ in range(2)]
    assert all(torch.isfinite(loss) for loss in losses)
    moved = model.neck.manifold._value() != 1.0
    assert moved == (options.get("model.neck.learnable") is not False)


def test_there_is_a_config_for_every_data_set_backbone_and_method():
    for method in ("hier", "lhier"):
        for backbone in ("resnet50", "deit-small", "dino-small", "vit-small"):
            for place in ("cub200", "cars196", "sop", "inshop"):
                assert len(shipped(f"{method}_{backbone}_*_{place}.py")) == 1
    assert sum("_2xb90-" in name for name in CONFIGS) == 32
