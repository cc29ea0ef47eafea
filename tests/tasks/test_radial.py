"""Radial tuning: one step against the published one, what it changes and saves, roots, baselines,
learning."""

from pathlib import Path

import pytest
import torch
from helpers.chains import make_chains
from helpers.emoji import make_emoji

pytest.importorskip("open_clip")

from references import radial as reference

from hypvision.clip.features import frozen_texts
from hypvision.clip.models import create_clip
from hypvision.clip.radial.texts import embed_texts
from hypvision.clip.radial.weights import merge_tower, save_tower, tower_weights
from hypvision.data.chains import Chain, write_chains
from hypvision.data.text_chains import TextChains
from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.tasks.radial import ChainOrder, RadialTuning

CONFIGS = Path(__file__).parents[2] / "configs/hierarcaps"
CHAINS = make_chains(6)


@pytest.fixture
def clip():
    torch.manual_seed(0)
    return create_clip("emoji-s16")


def batch(chains=CHAINS):
    return dict(
        positive=list(zip(*(c.texts for c in chains))),
        negative=list(zip(*(c.negatives for c in chains))),
    )


@pytest.fixture
def prepared(clip, tmp_path):
    def make(**options):
        model = RadialTuning(clip, **options)
        texts = [text for chain in CHAINS for text in (*chain.texts, *chain.negatives)]
        model.reference = frozen_texts(model.clip, model.tokenizer, texts, tmp_path, torch.float32)
        return model

    return make


def test_a_step_is_the_published_one(prepared, clip):
    """Loss and gradients against 8 b texts padded to the context, a frozen tower, and a root by
    itself."""
    model = prepared()
    frozen = create_clip("emoji-s16").model
    merge = {name: value.clone() for name, value in tower_weights(model.clip).items()}
    frozen.load_state_dict(merge, strict=False)
    with torch.no_grad():  # the model has moved since
        for parameter in model.clip.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    given = batch()
    parts = model(**given, mode="loss")
    sum(parts.values()).backward()
    ours = {name: p.grad.clone() for name, p in model.clip.named_parameters()}
    model.zero_grad()
    texts = [text for level in (*given["positive"], *given["negative"]) for text in level]
    e = model.clip.encode_text(model.tokenizer(texts), normalize=True).unflatten(
        0, (8, len(CHAINS))
    )
    root = model.clip.encode_text(model.tokenizer([""]), normalize=True)[0]
    with torch.no_grad():
        before = frozen.encode_text(model.tokenizer(texts), normalize=True).unflatten(
            0, (8, len(CHAINS))
        )
    ploss, eloss, mloss, total = reference.radial_loss(e, root, before)
    assert parts["loss_prior"].item() == pytest.approx(10 * ploss.item(), abs=1e-5)
    assert parts["loss_entail"].item() == pytest.approx(eloss.item(), abs=1e-5)
    assert parts["loss_hard"].item() == pytest.approx(mloss.item(), abs=1e-5)
    total.backward()
    for name, parameter in model.clip.named_parameters():
        assert torch.allclose(
            ours[name], parameter.grad, rtol=1e-3, atol=1e-5 * parameter.grad.abs().max()
        ), name


def test_only_the_text_tower_is_there_and_moves(clip, prepared):
    base = {name: value.clone() for name, value in clip.model.state_dict().items()}
    model = prepared()
    assert {name.removeprefix("clip.") for name in model.state_dict()} == {
        name for name in base if not name.startswith(("visual.", "logit_"))
    }
    assert all(parameter.requires_grad for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = None
    for _ in range(8):
        parts = model(**batch(), mode="loss")
        total = sum(parts.values())
        first = first if first is not None else total.item()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    assert total.item() < first - 0.5


@pytest.mark.parametrize("kind", ["text", "frozen", "parameter"])
def test_roots(prepared, kind):
    model = prepared(root=kind)
    start = embed_texts(model.clip, model.tokenizer, [""])[0]
    embeddings, root = model.encode(["a ring", "a very long text about a ring"])
    assert torch.allclose(root, start, atol=1e-6) and embeddings.shape == (2, 128)
    assert root.requires_grad == (kind != "frozen")
    if root.requires_grad:  # the tower learns by the empty text, or the vector by itself
        root[0].backward(retain_graph=True)
        learning = {
            name for name, parameter in model.named_parameters() if parameter.grad is not None
        }
        assert ("clip.text_projection" in learning) == (kind == "text") and (
            "root" in learning
        ) == (kind != "text")
    with torch.no_grad():
        model.clip.text_projection.add_(0.1 * torch.randn_like(model.clip.text_projection))
    moved = model.encode(["a ring"])[1]
    assert torch.allclose(moved, start, atol=1e-6) == (kind != "text")
    assert ("root" in model.state_dict()) == (kind != "text")
    assert (
        torch.equal(model.encode(["a ring", ""])[1], model.encode(["a ring", ""])[0][1])
        or kind != "text"
    )


@pytest.mark.parametrize(
    "loss",
    [
        dict(type="EntailmentConeLoss", margin=0.1),
        dict(type="MERUEntailmentLoss"),
        dict(type="RadialLoss", prior=0),
    ],
)
def test_all_losses_train_it(clip, loss, tmp_path):
    model = RadialTuning(clip, loss, pairs="all")
    if model.loss.prior:
        with pytest.raises(HypvisionError, match="frozen embeddings of the texts are missing"):
            model(**batch(), mode="loss")
        texts = [text for chain in CHAINS for text in (*chain.texts, *chain.negatives)]
        model.reference = frozen_texts(model.clip, model.tokenizer, texts, tmp_path)
    sum(model(**batch(), mode="loss").values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_validation_measures_the_order():
    metric = ChainOrder()
    metric.process(
        None, [dict(radii=torch.tensor([1.0, 2, 3])), dict(radii=torch.tensor([3.0, 2, 1]))]
    )
    assert metric.compute_metrics(metric.results) == dict(d_corr=0.0)


def test_mistakes_are_told(clip, tmp_path):
    with pytest.raises(HypvisionError, match="model.root must be one of.*'origin'"):
        RadialTuning(clip, root="origin")
    with pytest.raises(
        HypvisionError, match="model.tune must be one of 'text', 'image', 'both', got 'all'"
    ):
        RadialTuning(clip, tune="all")
    with pytest.raises(HypvisionError, match=r"4 levels have no pair \(2, 4\)"):
        RadialTuning(clip, dict(prior=0), pairs=[(2, 4)])(**batch(), mode="loss")
    own = RadialTuning(clip, dict(prior=0))
    pair = ["animal", "food"]
    for positive, negative, said in (
        ([pair, ["cat"]], [pair, pair], r"2 levels of \[2, 1\] texts"),
        ([pair, pair], [pair], r"negatives of \[2\]"),
        (["animal", "cat"], ["food", "dog"], "list of texts, got the text 'animal'"),
    ):
        with pytest.raises(HypvisionError, match=said):
            own(positive, negative, mode="loss")
    with pytest.raises(HypvisionError, match="model.loss.type must be one of.*'Radial'"):
        RadialTuning(clip, dict(type="Radial"))
    write_chains(tmp_path / "a.csv", [Chain(("a", "b")), Chain(("a", "c"))])
    with pytest.raises(HypvisionError, match="All chains have 'a'"):
        TextChains(tmp_path / "a.csv")
    write_chains(tmp_path / "b.csv", CHAINS)
    with pytest.raises(HypvisionError, match="leaves none of the 6"):
        TextChains(tmp_path / "b.csv", share=(0.5, 0.5))
    with pytest.raises(HypvisionError, match="at least two of 0 to 3"):
        TextChains(tmp_path / "b.csv", levels=(2, 4))


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["image", "both"])
def test_the_image_tower_may_train(tmp_path, monkeypatch, tune):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    root = make_emoji(tmp_path / "emoji", styles=("noto",))
    (path,) = CONFIGS.glob("radial-clip-emoji_*i.py")
    torch.manual_seed(0)
    start = tmp_path / "start.pth"
    torch.save(create_clip("emoji-s16").model.state_dict(), start)
    options = {
        "data_root": str(root),
        "model.clip.pretrained": str(start),
        "train_cfg.max_iters": 2,
        "model.tune": tune,
    }
    options |= {"train_cfg.val_interval": 2, "default_hooks.checkpoint.interval": 2}
    with pytest.raises(
        HypvisionError, match="data gives no images. Set train_dataloader.dataset.images"
    ):
        train(load_config(path, options), tmp_path / "none")
    options |= {
        "train_dataloader.dataset.images": str(root / "images/noto"),
        "train_dataloader.dataset.size": 64,
    }
    model = train(load_config(path, options), tmp_path / "work").model
    before, after = create_clip("emoji-s16", start), create_clip("emoji-s16", start)
    merge_tower(after.model, tmp_path / "work/iter_2.pth")
    moved = {
        name
        for name, value in after.model.state_dict().items()
        if not value.equal(before.model.state_dict()[name])
    }
    assert any(name.startswith("visual.") for name in moved)
    assert any(name.startswith("transformer.") for name in moved) == (tune == "both")
    assert all(
        value.equal(model.state_dict()[f"clip.{name}"])
        for name, value in tower_weights(after.model, True).items()
    )
    save_tower(after.model, tmp_path / "delta.safetensors", base=before.model, images=True)
    merge_tower(before.model, tmp_path / "delta.safetensors")
    assert torch.allclose(before.model.visual.proj, after.model.visual.proj, atol=1e-6)


def test_images_are_a_level_more(clip, tmp_path):
    """Against chains with one text more, whose embeddings are those of the images."""
    model = RadialTuning(clip, dict(prior=0, hard=0), tune="both")
    inputs = torch.randint(0, 256, (len(CHAINS), 3, 64, 64), dtype=torch.uint8)
    given = batch()
    found = model(**given, inputs=inputs, mode="loss")["loss_entail"]
    texts = model(**given, mode="tensor")
    images, root = model.encode_images(inputs), model.encode([""])[1]
    levels = [(texts[i], texts[i + 1], texts[4 + i]) for i in range(3)] + [
        (texts[3], images, images.roll(-1, 0))
    ]
    p, n = (
        torch.stack([reference.angle(level[0], level[k], root) for level in levels]).mean()
        for k in (1, 2)
    )
    assert found.item() == pytest.approx((p - n).item(), abs=1e-5)
    with pytest.raises(HypvisionError, match="data gives no images"):
        model(**given, mode="loss")


def test_levels_may_be_left_out(tmp_path):
    write_chains(tmp_path / "chains.csv", make_chains(2))
    data = TextChains(tmp_path / "chains.csv", levels=(0, 1, 3))
    assert data.usage.used == {"chains": 2}
    full = make_chains(2)[1]
    assert data[1] == dict(
        positive=[full.texts[i] for i in (0, 1, 3)], negative=[full.negatives[i] for i in (0, 1, 3)]
    )


def test_the_published_config_takes_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    write_chains(tmp_path / "data/hierarcaps_train.csv.gz", make_chains(12))
    options = {
        "data_root": str(tmp_path / "data"),
        "model.clip": dict(name="emoji-s16", _delete_=True),
    }
    (config,) = CONFIGS.glob("radial-clip-vitb32_*.py")
    runner = train(load_config(config, options), tmp_path / "work")
    assert runner.iter == 2  # 12 chains in batches of 8: the last one is kept
    groups = runner.optim_wrapper.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.01} and {
        group["lr"] for group in groups
    } == {1e-7}
    assert sum(len(group["params"]) for group in groups) == len(list(runner.model.parameters()))
    found = {
        runner.message_hub.get_scalar(f"train/loss_{part}").current()
        for part in ("prior", "entail", "hard")
    }
    assert len(found) == 3
    assert len(list((tmp_path / "home/text-features").glob("*.safetensors"))) == 1


@pytest.mark.slow
def test_a_resumed_training_keeps_the_reference_of_its_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    (path,) = CONFIGS.glob("radial-clip-emoji_*i.py")
    options = {
        "model.clip": dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"),
        "val_cfg": None,
    }
    write_chains(tmp_path / "chains.csv", make_chains(8))
    options |= {
        "train_dataloader.dataset": dict(
            type="TextChains", source=str(tmp_path / "chains.csv"), _delete_=True
        )
    }
    options |= dict.fromkeys(
        ("val_dataloader", "val_evaluator", "test_dataloader", "test_evaluator")
    )
    options |= {
        "test_cfg": None,
        "train_cfg": dict(type="IterBasedTrainLoop", max_iters=1, _delete_=True),
    }
    options["default_hooks.checkpoint.interval"] = 1
    first = train(load_config(path, options), tmp_path / "work")
    again = train(
        load_config(path, {**options, "train_cfg.max_iters": 2}), tmp_path / "work", resume="auto"
    )
    assert again.iter == 2 and torch.equal(
        again.model.reference.embeddings, first.model.reference.embeddings
    )


def test_a_hyperbolic_clip_is_refused():
    with pytest.raises(HypvisionError, match="angles on CLIP's sphere.*hyperboloid"):
        RadialTuning(dict(name="hycoclip-emoji-s16"))
    RadialTuning(dict(name="emoji-s16", geometry="sphere"))
