"""Few-shot training on the engine: schedules, averages that survive a cut, checkpoints, classes
from the data."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.cases import each
from helpers.configs import ROOT
from helpers.fewshot import NAMES, OTHERS, bundle
from helpers.fewshot_layouts import coop, imagenet
from helpers.processes import run_in_two
from mmengine.config import Config
from references.fewshot import unit

from hypvision.clip.features import image_features
from hypvision.clip.prompting.heads import TipAdapter
from hypvision.clip.prompting.promptsrc import gaussian_weights
from hypvision.data.fewshot import FewShotDataset
from hypvision.engine.config import Run, load_config
from hypvision.engine.extensions import PREDICTORS
from hypvision.engine.hooks import CheckClassesHook, last_checkpoint
from hypvision.engine.run import test as run_test
from hypvision.engine.run import train
from hypvision.inference.predictors import Request
from hypvision.io.errors import HypvisionError
from hypvision.tasks.few_shot import (
    ClassNamesHook,
    FewShotCLIP,
    FixedLengthSampler,
    GaussianAverageHook,
    TipAdapterHook,
    accuracy,
)
from hypvision.tasks.few_shot_recipes import few_shot_config, recipe, with_steps
from hypvision.tasks.probe import fit_probe

HOST = {
    "promptsrc": dict(text=2, vision=2, depth=2, templates=2),
    "maple": dict(depth=2),
    "coop": dict(tokens=2),
}
IMAGES = torch.randint(0, 255, (4, 3, 64, 64), dtype=torch.uint8)
LABELS = torch.tensor([0, 1, 2, 0])


def loaded(load_weights=True, **options):
    """The tiny CLIP; without its weights another one."""
    return bundle(seed=1 if load_weights else 9)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """The tiny CLIP in place of the models that are asked for by name."""
    monkeypatch.setattr("hypvision.tasks.few_shot.create_clip", loaded)
    monkeypatch.setattr(
        "hypvision.clip.prompting.promptkd.create_clip", lambda **options: bundle(seed=5)
    )


def config_of(root, method="promptsrc", **changes):
    name = method.partition("+")[0]
    options = dict(
        root=str(root), shots=2, size=64, epochs=3, classes=3, images=6, host=HOST.get(name)
    )
    return Config(few_shot_config(method, **{**options, **changes}))


def weights(runner):
    return {name: value.detach().clone() for name, value in runner.model.learned()}


# Losses
# --------------------------------------------------------------------------------------------------


@each("host", ["promptsrc", "maple", "coop", "cocoop", "clip-adapter", "zeroshot"])
def test_losses_with_and_without_the_adapter(host):
    plain = FewShotCLIP({}, dict(name=host, **HOST.get(host, {}))).train()
    adapted = FewShotCLIP(
        {}, dict(name=host, **HOST.get(host, {})), dict(type="lathadapter", attributes=3)
    ).train()
    for model in (plain, adapted):
        model.set_classes(NAMES)
    a, b = (set(model(IMAGES, LABELS, mode="loss")) for model in (plain, adapted))
    assert a - b == {"loss_ce"} and b - a == {"loss_ecls", "loss_hcls", "loss_va", "loss_at"}
    loss = sum(adapted(IMAGES, LABELS, mode="loss").values())
    loss.backward()
    learned = dict(adapted.learned())
    assert {"host.clip.lathadapter.attributes"} <= set(learned) == set(adapted.state_dict())
    assert all(value.grad is not None and value.grad.isfinite().all() for value in learned.values())
    out = adapted.eval()(IMAGES, LABELS, torch.arange(4), mode="predict")
    assert len(out) == 4 and abs(float(out[0]["scores"].sum()) - 1) < 1e-5 and out[3]["index"] == 3
    adapted.set_classes(OTHERS)
    assert adapted(IMAGES).shape == (4, 2)


def test_promptkd_learns_without_labels():
    teacher = dict(clip={}, host=dict(name="promptsrc", **HOST["promptsrc"]))
    host = dict(name="promptkd", teacher=teacher, tokens=2, depth=2)
    for adapter in (None, dict(type="lathadapter", attributes=3)):
        model = FewShotCLIP({}, host, adapter).train()
        model.set_classes(NAMES)
        torch.manual_seed(0)
        found = model(IMAGES, None, mode="loss")
        assert set(found) == (
            {"loss_ce"} if adapter is None else {"loss_ecls", "loss_hcls", "loss_va", "loss_at"}
        )
        sum(found.values()).backward()
        assert not any(name.startswith("host.teacher") for name in model.state_dict())
        assert "host.learner.projector.1.running_mean" in model.state_dict()
        with pytest.raises(
            HypvisionError, match="at least two images in a batch.*Set --batch 2 or more"
        ):
            model(IMAGES[:1], None, mode="loss")
        assert model.eval()(IMAGES[:1]).shape == (1, 4)


def ball_distance(x, y, c=0.1, radius=2.3):
    """Between points that HIER lifts: clipped, through the exponential map at 0, pulled off the
    boundary; float64."""
    points = []
    for v in (x, y):
        v = v.double()
        v = v * (radius / v.norm(dim=-1, keepdim=True)).clamp(max=1)
        size = c**0.5 * v.norm(dim=-1, keepdim=True)
        points.append(torch.tanh(size) * v / size)
    a, b = points[0][:, None], points[1][None]
    gap, left, right = ((v**2).sum(-1) for v in (a - b, a, b))
    return torch.acosh(1 + 2 * c * gap / ((1 - c * left) * (1 - c * right))) / c**0.5


@pytest.mark.parametrize("host", ["tip-adapter", "clip-adapter", "maple", "cocoop"])
def test_features_as_they_are_reach_the_adapter(host):
    """With feature_norm="none" what goes into the ball has the length that the towers give it."""
    options = dict(keys=4, classes=4) if host == "tip-adapter" else HOST.get(host, {})
    adapter = dict(type="lathadapter", attributes=3, feature_norm="none", beta=0.0)
    model = FewShotCLIP({}, dict(name=host, **options), adapter).eval()
    model.set_classes(NAMES)
    with torch.no_grad():
        out = model.host(IMAGES)
        images = model.host.features(IMAGES)
        text = model.host.encode_classes()
        if host == "cocoop":  # each image has its own classes
            images = images[:1]
            text = out.raw[1][0]
        assert (text.norm(dim=-1) - 1).abs().min() > 0.05
        found = (out.logits() - model(IMAGES))[: len(images)]  # logits are cosines less distances
    assert torch.allclose(found.double(), ball_distance(images, text), atol=2e-3)


@pytest.mark.parametrize("average", [True, False])
def test_the_average_is_over_attributes_or_not(average, tmp_path):
    coop(tmp_path)
    config = config_of(
        tmp_path, "promptsrc+lath", adapter=dict(average=average, attributes=3), epochs=2
    )
    runner = train(config, tmp_path / "run")
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, GaussianAverageHook))
    learned = {name for name, _ in runner.model.learned()}
    assert set(hook.total) == (
        learned if average else learned - {"host.clip.lathadapter.attributes"}
    )


def test_the_average_is_weighed_over_epochs_and_resumed():
    model = torch.nn.Linear(3, 1, bias=False)
    model.averaged = model.named_parameters
    values = torch.randn(20, 1, 3)

    def go_on(hook, epochs, saved, length=20):
        runner = SimpleNamespace(model=model, max_epochs=length, epoch=epochs[0])
        hook.after_load_checkpoint(runner, saved)
        hook.before_train(runner)
        for runner.epoch in epochs:
            model.weight.data.copy_(values[runner.epoch])
            hook.after_train_epoch(runner)
        hook.before_save_checkpoint(runner, saved)
        return saved

    saved = go_on(GaussianAverageHook(15, 1), range(11), {})
    assert saved["gaussian_average"]["seen"] == 11
    go_on(GaussianAverageHook(15, 1), range(11, 20), saved)
    expected = (torch.tensor(gaussian_weights(20, 15, 1))[:, None, None] * values).sum(0)
    assert torch.allclose(model.weight, expected, atol=1e-6)
    with pytest.raises(HypvisionError, match="epoch 12, but its average has 11"):
        go_on(GaussianAverageHook(15, 1), range(12, 20), saved)
    for length in (13, 16):  # weights of another length
        saved = go_on(GaussianAverageHook(9, 2), range(11), {})
        go_on(GaussianAverageHook(9, 2), range(11, length), saved, length)
        expected = (
            torch.tensor(gaussian_weights(length, 9, 2))[:, None, None] * values[:length]
        ).sum(0)
        assert torch.allclose(model.weight, expected, atol=1e-6)
    with pytest.raises(HypvisionError, match=r"mean and std \[9, 2\], the config has \[8, 2\]"):
        go_on(GaussianAverageHook(8, 2), range(11, 20), saved)


def test_more_training_of_a_tip_adapter_starts_from_the_first_alpha_and_beta():
    """Not from those that the search on validation images chose."""
    host = TipAdapter(bundle(), keys=4, classes=2, alpha=1.5, beta=1.0, tune=True)
    for epoch, expected in ((2, 1.5), (4, 3.0)):
        host.learner.alpha.fill_(3.0)
        runner = SimpleNamespace(
            model=SimpleNamespace(host=host),
            iter=8,
            epoch=epoch,
            max_epochs=4,
            train_dataloader=SimpleNamespace(dataset=[]),
        )
        TipAdapterHook().before_train(runner)
        assert host.learner.alpha == expected


# The engine
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [2, 20])
def test_rates_are_the_official_ones(epochs):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0025)
    from mmengine.registry import PARAM_SCHEDULERS

    config = few_shot_config("promptsrc", epochs=epochs)["param_scheduler"]
    schedules = [
        PARAM_SCHEDULERS.build(dict(s), default_args=dict(optimizer=optimizer)) for s in config
    ]
    for epoch in range(epochs):
        expected = (
            1e-5 if epoch == 0 else 0.0025 * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
        )
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-6), epoch
        optimizer.step()
        for schedule in schedules:
            schedule.step()


def test_a_training_that_was_cut_ends_as_one_that_was_not(tmp_path):
    """With the average over epochs, the order of the data and the augmentations."""
    coop(tmp_path)
    whole = train(config_of(tmp_path, "promptsrc+lath", epochs=4), tmp_path / "whole")
    assert whole.epoch == 4

    class Cut(Exception):
        pass

    config = config_of(tmp_path, "promptsrc+lath", epochs=4)
    from mmengine.hooks import Hook
    from mmengine.registry import HOOKS

    @HOOKS.register_module(name="CutHook", force=True)
    class CutHook(Hook):
        priority = "LOWEST"

        def after_train_epoch(self, runner):
            if runner.epoch == 1:
                raise Cut

    config.custom_hooks.append(dict(type="CutHook"))
    with pytest.raises(Cut):
        train(config, tmp_path / "cut")
    again = train(config_of(tmp_path, "promptsrc+lath", epochs=4), tmp_path / "cut", resume="auto")
    a, b = weights(whole), weights(again)
    assert a.keys() == b.keys() and all((a[name] - b[name]).abs().max() < 1e-6 for name in a)
    saved = torch.load(tmp_path / "whole/epoch_4.pth", weights_only=False)
    assert set(saved["state_dict"]) == set(whole.model.state_dict())
    assert "gaussian_average" not in saved
    assert all(
        torch.equal(saved["state_dict"][name], value) for name, value in a.items()
    )  # the average
    assert (tmp_path / "whole/epoch_4.pth").stat().st_size < 200_000
    finished = train(
        config_of(tmp_path, "promptsrc+lath", epochs=4), tmp_path / "whole", resume="auto"
    )
    assert all(torch.equal(weights(finished)[name], value) for name, value in a.items())
    metrics = run_test(
        config_of(tmp_path, "promptsrc+lath"), tmp_path / "whole/epoch_4.pth", tmp_path / "test"
    )
    data = Config(dict(config_of(tmp_path).test_dataloader.dataset)).to_dict()
    data.pop("type")
    assert metrics["top1"] == pytest.approx(accuracy(whole.model, FewShotDataset(**data)))


def test_a_resumed_tip_adapter_keeps_its_trained_keys(tmp_path):
    coop(tmp_path)
    config = config_of(tmp_path, "tip-adapter-f", views=0)
    assert config.train_dataloader.dataset.scale == (0.5, 1.0)  # of Tip-Adapter's code
    trained = weights(train(config, tmp_path / "run"))
    again = weights(
        train(config_of(tmp_path, "tip-adapter-f", views=0), tmp_path / "run", resume="auto")
    )
    assert all(torch.equal(again[name], value) for name, value in trained.items())


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [
        ("tip-adapter-f", dict(views=0), "host.learner.keys"),
        ("zeroshot+lath", dict(adapter=dict(start="text")), "host.clip.lathadapter.attributes"),
    ],
)
def test_a_training_starts_from_what_it_loads(tmp_path, method, options, name):
    coop(tmp_path)
    config = config_of(tmp_path, method, epochs=1, **options)
    state = FewShotCLIP(bundle(), config.model.host.to_dict(), config.model.adapter).state_dict()
    torch.save(
        dict(state_dict={**state, name: torch.full_like(state[name], 0.25)}), tmp_path / "start.pth"
    )
    config.load_from = str(tmp_path / "start.pth")
    found = train(config, tmp_path / "run").model.state_dict()[name]
    assert torch.allclose(found, torch.full_like(found, 0.25), atol=0.01)  # one small step away


def test_attributes_start_at_class_features_as_they_are(tmp_path):
    coop(tmp_path)
    adapter = dict(start="text", feature_norm="none", attributes=3)
    config = config_of(tmp_path, "zeroshot+lath", epochs=1, adapter=adapter)
    model = train(config, tmp_path / "run").model
    model.set_data(FewShotDataset(str(tmp_path), "caltech101", shots=2, subset="base").metainfo)
    mean = model.host.encode_classes().mean(0)
    assert (mean.norm() - 1).abs() > 0.5
    assert (model.hierarchy.attributes - mean).abs().max() < 0.12  # noise of 0.02, one small step


def test_without_views_tip_adapter_f_trains_on_new_views_of_each_epoch(tmp_path, monkeypatch):
    """The ten views of its cache are another thing: without kept features its keys learn from
    images."""
    coop(tmp_path)
    calls, read = [], FewShotCLIP.forward

    def forward(self, inputs, label=None, index=None, mode="tensor"):
        calls.append((inputs[index.argsort()], self.host.learner.keys.clone()))
        return read(self, inputs, label, index, mode)

    monkeypatch.setattr(FewShotCLIP, "forward", forward)
    images = {}
    for views in (None, 0, 3):
        calls.clear()
        config = config_of(tmp_path, "tip-adapter-f", epochs=2, views=views)
        assert train(config, tmp_path / f"run{views}").iter == len(calls) == 2
        images[views] = [inputs for inputs, _ in calls]
        norms = calls[0][1].norm(dim=-1)
        assert torch.allclose(
            norms, torch.ones_like(norms), atol=1e-5
        )  # filled before the first step
    assert images[None][0].shape == (6, 3, 64, 64) and not torch.equal(*images[None])
    assert images[0][0].shape == (6, 64) and torch.equal(*images[0])


def test_a_tip_adapter_is_made_as_published(tmp_path, monkeypatch):
    """Its cache has K images of every class, an epoch all of them, and the search sees the whole
    validation split."""
    coop(tmp_path, classes=3, train=3, val=7)
    split = tmp_path / "caltech-101/split_zhou_Caltech101.json"
    rows = json.loads(split.read_text())
    rows["train"] = [
        row for row in rows["train"] if row[1] or row[0].endswith("train0.png")
    ]  # one image of class 0
    split.write_text(json.dumps(rows))
    seen = []
    monkeypatch.setattr(
        TipAdapter, "search", lambda self, x, y, **options: seen.append((len(x), options["ends"]))
    )
    config = config_of(
        tmp_path, "tip-adapter-f", protocol="shots", shots=3, images=9, epochs=2, batch=4, views=0
    )
    runner = train(config, tmp_path / "run")
    assert runner.iter == 2 * math.ceil(9 / 4)
    host = runner.model.host
    assert host.learner.values.sum(0).tolist() == [3, 3, 3] and (
        float(host.learner.alpha),
        float(host.learner.beta),
    ) == (3, 1)
    assert seen == [(3 * 7, (12, 5))]
    data = FewShotDataset(str(tmp_path), "caltech101", shots=3, repeat=True)
    assert [item.name for item in data.items[:3]] == ["apple"] * 3
    assert len(data.whole_part("val")) == 21
    assert (
        len(FewShotDataset(str(tmp_path), "caltech101", shots=3)) == 7
    )  # the other methods take what is there


HEADS = {
    "linear-probe": dict(classes=2),
    "tip-adapter": dict(keys=2, classes=2),
    "coop": dict(tokens=2, per_class=True, classes=2),
}


@pytest.mark.parametrize("host", HEADS)
def test_learned_classes_keep_their_names(host):
    """Methods that learn each class by itself answer with the classes of their training, in their
    order."""
    model = FewShotCLIP(bundle(), dict(name=host, **HEADS[host])).eval()
    assert model.host.fixed_classes == 2
    assert FewShotCLIP(bundle(), dict(name="coop")).host.fixed_classes is None
    model.dataset_meta = dict(classes=NAMES[:2])
    config = Run(dict(test_dataloader=dict(dataset=dict(size=None))))

    def names(given, things=None):
        PREDICTORS["FewShotCLIP"](
            model, config, Request("a.py", "a.pth", classes=given, things=things)
        )
        return model.host.names

    own = names(None)
    assert names(list(own[::-1])) == own
    with pytest.raises(HypvisionError, match="is a classifier, .*: leave out --things"):
        names(own, own[:1])
    with pytest.raises(
        HypvisionError, match="'horse'.* only here.*only the classes of its training"
    ):
        names(["horse", own[1]])

    hook, log = ClassNamesHook(), []
    runner = SimpleNamespace(
        model=model, logger=SimpleNamespace(warning=log.append), hooks=[hook], iter=0
    )
    trained = dict(state_dict={}, meta=dict(dataset_meta=dict(classes=own)))

    def tested_on(*classes, mode="test"):
        hook.after_load_checkpoint(runner, trained)
        setattr(
            runner,
            f"{mode}_dataloader",
            SimpleNamespace(dataset=SimpleNamespace(metainfo=dict(classes=classes))),
        )
        getattr(hook, f"before_{mode}" + "_epoch" * (mode != "train"))(runner)
        return model.host.names

    assert tested_on(*(name.replace(" ", "_") for name in own))
    assert tested_on("a", "b", "c")  # refuses their number
    for mode, resume in (("test", False), ("val", False), ("train", True)):
        runner._resume = resume
        for wrong, said in (
            (("horse", own[1]), "'horse' only here"),
            (own[::-1], "in another order"),
        ):
            with pytest.raises(
                HypvisionError, match=f"{said}.*only the classes of its training.*by_name=False"
            ):
                tested_on(*wrong, mode=mode)
    runner._resume = False
    assert tested_on("horse", "sheep", mode="train") == ("horse", "sheep")
    assert "'horse', 'sheep' only here" in log[0]
    runner.hooks.append(CheckClassesHook(by_name=False))
    assert tested_on("horse", "sheep") == ("horse", "sheep")


@pytest.mark.parametrize("method", ["zeroshot", "tip-adapter", "tip-adapter+lath", "zeroshot+lath"])
def test_methods_without_a_training_are_configs_too(method, tmp_path, monkeypatch):
    """They pass the engine from config to result; the Tip-Adapter's alpha and beta are in the
    checkpoint."""
    coop(tmp_path)
    searched, given = [], []
    search = TipAdapter.search

    def record(self, *data, plain=None, ends):
        searched.append(search(self, *data, plain=plain, ends=ends))
        given.append(plain)

    monkeypatch.setattr(TipAdapter, "search", record)
    config = config_of(tmp_path, method, epochs=None, steps=2)
    runner = train(config, tmp_path / "run")
    trained = runner.model.eval()
    assert len(searched) == method.startswith("tip")
    path = last_checkpoint(tmp_path / "run")
    metrics = run_test(config_of(tmp_path, method, epochs=None, steps=2), path, tmp_path / "test")
    data = config.test_dataloader.dataset.to_dict()
    data.pop("type")
    test = FewShotDataset(**data)
    assert metrics["top1"] == pytest.approx(accuracy(trained, test))
    state = torch.load(path, weights_only=False)["state_dict"]
    assert ("host.clip.lathadapter.attributes" in state) == ("+lath" in method)
    if method.startswith("tip-adapter"):  # chosen on the logits that are measured
        val = FewShotDataset(**dict(data, part="val", shots=None))
        model = FewShotCLIP({}, dict(name="tip-adapter", keys=6, classes=3), config.model.adapter)
        model.load_state_dict(state)
        assert len(val) == 9 and accuracy(model, val) == pytest.approx(searched[0])
    if method == "tip-adapter+lath":
        images = torch.stack([sample["inputs"] for sample in val])
        with torch.no_grad():
            cached = model.host.cache_logits(unit(model.host.features(images)))
            assert (given[0] + cached - model(images)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["caltech101", "imagenet"])
def test_a_linear_probe_is_a_logistic_regression(name, tmp_path):
    """It reads unit features of centre crops. The validation images that were drawn choose the
    decay; ImageNet's are its test, so there training images choose."""
    coop(tmp_path) if name == "caltech101" else imagenet(tmp_path, name)
    options = dict(protocol="shots", dataset=name, epochs=None, shots=3, classes=5)
    config = config_of(tmp_path, "linear-probe", **options)
    model = train(config, tmp_path / "run").model.eval()
    drawn = FewShotDataset(str(tmp_path), name, shots=3, size=64)
    val = drawn.drawn_val()

    def looked(data):
        crops = torch.stack([sample["inputs"] for sample in data.viewed(augment=False)])
        with torch.no_grad():
            return unit(model.host.frozen_features(crops)), torch.tensor(data.labels)

    assert (val is None) == (name == "imagenet") and (val is None or len(val) == 5 * 3)
    expected = fit_probe(*looked(drawn), 5, val and looked(val))
    assert torch.allclose(model.host.learner.weight, expected.weight, rtol=1e-3, atol=1e-3)
    assert torch.allclose(model.host.learner.bias, expected.bias, rtol=1e-3, atol=1e-3)
    path = last_checkpoint(tmp_path / "run")
    again = FewShotCLIP({}, dict(name="linear-probe", classes=5))
    again.load_state_dict(torch.load(path, weights_only=False)["state_dict"])
    assert torch.equal(again.host.learner.weight, model.host.learner.weight)


def test_a_linear_probe_weighs_rare_classes(tmp_path):
    """By counts, which are taken before it is fitted."""
    coop(tmp_path)
    options = dict(protocol="shots", shots=3, classes=5, class_weights="balanced")
    config = config_of(tmp_path, "linear-probe", epochs=None, **options)
    model = train(config, tmp_path / "run").model
    assert model.host.learner.weight.any()
    torch.testing.assert_close(model.class_weights(), torch.ones(5))  # of equal classes


def test_stored_features_are_those_of_the_images(tmp_path):
    coop(tmp_path)
    found = []
    for folder in (None, tmp_path / "cache", tmp_path / "cache"):
        config = config_of(
            tmp_path, "tip-adapter-f", views=0, cache=folder and str(folder), epochs=1
        )
        model = train(config, tmp_path / f"run{len(found)}").model
        found.append(model.host.learner.values)
        assert model.host.learner.keys.norm(dim=-1).min() > 0.5
    assert (
        len(list((tmp_path / "cache").iterdir())) == 3
    )  # the centre crops, the ten views of the cache, the validation images of the search
    with pytest.raises(HypvisionError, match="changes the image tower"):
        config = config_of(tmp_path, "maple")
        config.custom_hooks.append(dict(type="FeatureCacheHook"))
        train(config, tmp_path / "wrong")


@pytest.mark.parametrize("folder", [None, "cache"])
def test_a_missing_image_is_told_with_and_without_a_cache(folder, tmp_path):
    coop(tmp_path)
    data = FewShotDataset(str(tmp_path), "caltech101", "test", size=64)
    Path(data.paths[3]).unlink()
    model = FewShotCLIP({}, dict(name="zeroshot"))
    with pytest.raises(
        HypvisionError, match="There is no image '.*dice/test0.png'.* With --skip-broken"
    ):
        image_features(model.host, data, folder=folder and tmp_path / folder)


@pytest.mark.parametrize("method", ["coop", "clip-adapter"])
def test_methods_take_steps(method, tmp_path):
    coop(tmp_path)
    runner = train(config_of(tmp_path, method, steps=2, epochs=None, amp="bf16"), tmp_path / "run")
    assert runner.iter == 2 and all(value.isfinite().all() for value in weights(runner).values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
@pytest.mark.parametrize("amp", ["bf16", "fp16", "--amp"])
def test_mixed_precision_is_off_on_a_cpu(amp, tmp_path):
    """In training and in evaluation: both are those of float32."""
    coop(tmp_path)
    config = config_of(tmp_path, "maple", epochs=2, amp=None if amp == "--amp" else amp)
    mixed = train(config, tmp_path / "mixed", amp=amp == "--amp")
    plain = train(config_of(tmp_path, "maple", epochs=2), tmp_path / "plain")
    assert type(mixed.optim_wrapper).__name__ == "OptimWrapper"
    assert all(torch.equal(weights(mixed)[name], value) for name, value in weights(plain).items())
    seen, forward = [], mixed.model.forward

    def spy(inputs):
        seen.append(torch.is_autocast_enabled("cpu"))
        return forward(inputs)

    mixed.model.forward = spy
    data = config_of(tmp_path).test_dataloader.dataset.to_dict()
    data.pop("type")
    accuracy(mixed.model, FewShotDataset(**data), amp=torch.float16)
    assert seen == [False]


CONFIGS = sorted(path.name for path in (ROOT / "fewshot").glob("*.py"))


@each("name", CONFIGS)
def test_configs_are_read(name):
    config = load_config(ROOT / "fewshot" / name, {"data_root": "/elsewhere"})
    assert config.model.type == "FewShotCLIP"
    assert config.train_dataloader.dataset.root == "/elsewhere"
    assert ("-lath" in name) == (config.model.adapter is not None)
    epochs, untrained = (
        config.train_cfg.max_epochs,
        name in ("zeroshot_b2n.py", "tip-adapter_fs.py", "linear-probe_fs.py"),
    )
    assert epochs == 1 if untrained else epochs >= 2
    assert not {"few_shot_config"} & set(config.keys())


def test_a_config_takes_its_steps(tmp_path):
    coop(tmp_path)
    changes = {
        "data_root": str(tmp_path),
        "train_dataloader.dataset.shots": 1,
        "model.host.depth": 2,
    }
    changes |= {
        "train_dataloader.dataset.size": 64,
        "test_dataloader.dataset.size": 64,
        "train_cfg.max_epochs": 1,
    }
    runner = train(ROOT / "fewshot/maple-lath_b2n.py", tmp_path / "run", cfg_options=changes)
    assert runner.epoch == 1 and runner.model.hierarchy.attributes.shape == (12, 64)


def test_so_many_images_an_epoch():
    sampler = FixedLengthSampler(range(5), 12, seed=3)
    order = list(sampler)
    assert len(order) == len(sampler) == 12
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    sampler.set_epoch(1)
    assert list(sampler) != order
    found, length = with_steps(recipe("promptsrc", "base2new", "dtd", 16, 24, 384), 100, None)
    assert (found.epochs, length, found.batch) == (20, 20, 4)


def test_steps_are_kept():
    def of(method, steps, protocol="base2new", epochs=None, shots=16):
        found, length = with_steps(recipe(method, protocol, "dtd", shots, 24, 384), steps, epochs)
        assert found.epochs * length == steps * found.batch
        return found.epochs, found.average

    assert of("promptsrc", 120, "shots") == (40, (36, 4))  # of 50 epochs, averaged about the 45th
    assert of("promptsrc", 21) == (7, pytest.approx((5.25, 0.35))) and of("coop", 101) == (
        101,
        None,
    )
    assert of("promptsrc", 3)[0] == 3 and of("maple", 1)[0] == 1
    assert of("promptsrc", 12, epochs=4) == (4, pytest.approx((3, 0.2)))
    for method in (
        "maple",
        "promptsrc",
        "promptkd",
        "coop",
        "cocoop",
        "clip-adapter",
        "tip-adapter-f",
    ):
        for protocol in ("base2new", "shots", "cross"):
            for shots in (1, 4, 16):
                own = recipe(method, protocol, "dtd", shots, 24, 384)
                assert of(method, 200, protocol, shots=shots) == (own.epochs, own.average)
    with pytest.raises(
        HypvisionError, match="101 steps cannot be divided into 2 to 20 epochs.* --steps 100 or 120"
    ):
        of("promptsrc", 101)
    with pytest.raises(
        HypvisionError, match="10 steps cannot be divided into 20 epochs of equal length.* 20"
    ):
        of("promptsrc", 10, epochs=20)


def test_checkpoints_are_an_epoch_or_ten_steps_apart():
    def interval(method, **options):
        return few_shot_config(method, **options)["default_hooks"]["checkpoint"]["interval"]

    assert (
        interval("promptsrc", images=384) == interval("coop", images=1600) == interval("maple") == 1
    )
    assert interval("promptsrc", steps=200) == 1  # 20 epochs of 10 steps
    assert interval("promptsrc", protocol="shots", dataset="dtd", steps=200) == 2  # 50 of 4
    assert (
        interval("coop", protocol="shots", steps=200) == interval("coop", images=20) == 10
    )  # 200 of one
    assert interval("promptsrc", epochs=4, images=6) == 1


TWO = """
from unittest import mock

import torch
from helpers.fewshot import bundle
from mmengine.config import Config

from hypvision.engine.hooks import last_checkpoint
from hypvision.engine.run import train
from hypvision.tasks.few_shot_recipes import few_shot_config

host = dict(text=2, vision=2, depth=2, templates=2)
options = dict(shots=2, size=64, epochs=2, classes=3, images=6, batch=2, amp="fp16", host=host)
config = Config(few_shot_config("promptsrc+lath", root="{root}", **options))
with mock.patch("hypvision.tasks.few_shot.create_clip", lambda **options: bundle()):
    runner = train(config, "{root}/run", launcher="pytorch")
learned = torch.cat([value.detach().flatten() for _, value in runner.model.module.learned()])
assert learned.isfinite().all() and runner.iter == 2
every = [torch.empty_like(learned) for _ in range(2)]
torch.distributed.all_gather(every, learned)
assert torch.equal(*every)
"""


@pytest.mark.slow
def test_two_processes_learn_the_same(tmp_path):
    coop(tmp_path)
    run_in_two(TWO.replace("{root}", str(tmp_path)), tmp_path, __file__)
    saved = torch.load(tmp_path / "run/epoch_2.pth", weights_only=False)["state_dict"]
    assert "host.clip.lathadapter.attributes" in saved
