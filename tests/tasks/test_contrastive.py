"""Pre-training of the small CLIP: its data, its loss written out pair by pair, and the file that is
shipped."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("open_clip")

from helpers import clip_repository
from helpers.open_vocabulary import SMALL
from helpers.shapes.captioned import ShapeCaptions
from helpers.shapes.images import TAXONOMY
from mmengine.runner import CheckpointLoader

import hypvision
from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.match import check_compatible, load_trained
from hypvision.checkpoints.storage import expand_tokens
from hypvision.clip import adapters
from hypvision.clip.models import create_clip
from hypvision.clip.names import clip_options
from hypvision.data.emoji_export import export_emoji
from hypvision.engine.config import load_config
from hypvision.engine.run import test as measure
from hypvision.io.errors import HypvisionError
from hypvision.tasks import CalibrationError, TopKAccuracy
from hypvision.tasks.contrastive import CLIPContrast
from hypvision.tasks.contrastive_metrics import HierarchicalErrors, ZeroShotAccuracy
from hypvision.tasks.publishing import describe_config, stripped
from hypvision.zoo.export import export_model

ROOT = Path(__file__).parents[2]


def test_data_are_repeatable_and_captions_true():
    data = ShapeCaptions(length=60)
    again = ShapeCaptions(length=60)
    for i in (0, 1, 58, 59):
        assert (
            torch.equal(data[i]["inputs"], again[i]["inputs"])
            and data[i]["caption"] == again[i]["caption"]
        )
    single = [data[i] for i in range(0, 60, 2)]
    assert all(
        item["inputs"].shape == (3, 64, 64) and item["inputs"].dtype == torch.uint8
        for item in single
    )
    named = [
        item
        for item in single
        if any(shape in item["caption"].split() for shape in TAXONOMY.classes["shape"])
    ]
    assert len(named) > 15
    assert all(
        TAXONOMY.classes["shape"][item["label"]] in item["caption"].split() for item in named
    )
    assert all(data[i]["label"] == -1 for i in range(1, 60, 2))


def test_loss_pair_by_pair():
    model = CLIPContrast(dict(name="emoji-t8")).eval()
    inputs = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    captions = ["a disk", "a red ring", "a disk", "a house"]
    with torch.no_grad():
        found = model(inputs, captions, mode="loss")
        images = model(inputs, captions)
        text = model.clip.encode_text(
            model.tokenizer(["a disk", "a house", "a red ring"]), normalize=True
        )
        logits = (float(model.clip.logit_scale.exp()) * images @ text.T).tolist()
    number = [0, 2, 0, 1]

    def log_share(values, i):
        return values[i] - math.log(sum(math.exp(v) for v in values))

    of_image = -sum(log_share(row, n) for row, n in zip(logits, number)) / 4
    columns = [[row[t] for row in logits] for t in range(3)]
    of_text = -((log_share(columns[0], 0) + log_share(columns[0], 2)) / 2 + log_share(columns[1], 3)
                + log_share(columns[2], 1)) / 3  # fmt: skip
    assert float(found["loss_image"]) == pytest.approx(of_image / 2, rel=1e-4)
    assert float(found["loss_text"]) == pytest.approx(of_text / 2, rel=1e-4)


def test_metric():
    metric = ZeroShotAccuracy()
    metric.process(
        {},
        [
            dict(scores=torch.tensor([0.1, 0.9]), label=1),
            dict(scores=torch.tensor([0.9, 0.1]), label=1),
        ],
    )
    assert metric.evaluate(2) == dict(top1=50.0, macro=25.0)
    for metric in (ZeroShotAccuracy(), HierarchicalErrors(), TopKAccuracy(), CalibrationError()):
        with pytest.raises(
            HypvisionError,
            match="needs images of one class each .*got the label -1.*Correct the labels",
        ):
            metric.process({}, [dict(scores=torch.ones(2) / 2, label=-1)])


def test_published_weights():
    """What goes into the zoo: the record's facts from the config, and of the table of words what
    the captions use."""
    known = describe_config(load_config(SMALL / "clip.py"))
    assert (known["task"], known["model"], known["input"]["size"]) == (
        "zero-shot",
        "emoji-t8",
        [3, 64, 64],
    )
    model = CLIPContrast(dict(name="emoji-t8"))
    state = dict(state_dict=model.state_dict())
    assert stripped(state, "zero-shot").keys() == model.clip.state_dict().keys()
    used = model.tokenizer(["a disk", "a red ring"]).unique()
    table = model.clip.token_embedding.weight.detach()
    rows = table[used].clone()
    table.zero_()[used] = rows
    weights = stripped(dict(state_dict=model.state_dict()), "zero-shot")
    assert torch.equal(weights["token_embedding.index"], used)
    full = expand_tokens(weights)
    assert full.keys() == model.clip.state_dict().keys()
    assert torch.equal(full["token_embedding.weight"], table)


def test_shipped_weights():
    clip = hypvision.load("emoji-t8.scenes")
    names = builtin_index().get("emoji-t8.scenes").classes
    weights = dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes")
    model = CLIPContrast(weights, classes=names, templates="photo").eval()
    with torch.no_grad():
        words = clip.encode_text(clip.tokenizer(["a photo of a fruit"]), normalize=True)
        assert torch.allclose(words, model.encode_classes(["fruit"])[:, 0], atol=1e-6)
    checkpoint = CheckpointLoader.load_checkpoint("zoo:emoji-t8.scenes")
    check_compatible(model, checkpoint["state_dict"], "zoo:emoji-t8.scenes")
    with pytest.raises(HypvisionError, match="is a CLIP, two networks"):
        export_model("emoji-t8.scenes", "onnx", "never.onnx")


def test_the_words_of_a_test_are_compared_with_its_data(tmp_path):
    shipped = ROOT / "tools/demo_data"
    export_emoji(
        tmp_path / "data", shipped / "emoji", shipped / "photos", train=1, val=20, size=96,
        level="class", val_emoji="train",
    )  # fmt: skip
    config = ROOT / "configs/hyperclip/clip-emoji-words_2000i.py"
    names = list(load_config(config).words)
    weights = CLIPContrast(dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"), classes=names)
    torch.save(weights.state_dict(), tmp_path / "a.pth")

    def top1(classes):
        options = {"data_root": str(tmp_path / "data"), "test_dataloader.dataset.length": 40}
        options["model.classes"] = classes
        return measure(config, tmp_path / "a.pth", tmp_path / "work", cfg_options=options)["top1"]

    assert top1(names[::-1]) == top1(names) > 50  # it was 0
    with pytest.raises(HypvisionError, match="'[a-z ]+'.* only here.*the model .* 8 classes"):
        top1(names[:8])


def test_words_that_were_learned_are_not_erased(tmp_path):
    with pytest.raises(
        HypvisionError, match="erase the words of the weights 'zoo:emoji-t8.scenes'"
    ):
        CLIPContrast(dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"), blank_words=True)
    table = CLIPContrast(dict(name="emoji-t8"), blank_words=True).clip.token_embedding.weight
    assert not table.any()
    name = f"local-dir:{clip_repository.folder(tmp_path / 'clip')}"  # has weights of its own
    with pytest.raises(HypvisionError, match=f"erase the words of the weights '{name}'"):
        CLIPContrast(dict(name=name), blank_words=True)
    with pytest.raises(HypvisionError, match="erase the words of the weights 'text.pt'"):
        CLIPContrast(
            dict(name=name, load_weights=False, pretrained_text_path="text.pt"), blank_words=True
        )
    assert not CLIPContrast(
        dict(name=name, load_weights=False), blank_words=True
    ).clip.token_embedding.weight.any()
    for options in (dict(tune="image"), dict(adapter=dict(type="hyperclip", block=32))):
        with pytest.raises(HypvisionError, match="would leave all texts without words"):
            CLIPContrast(dict(name="emoji-t8"), blank_words=True, **options)


def test_an_adapter_in_a_checkpoint_is_not_left_out(tmp_path):
    """Without it the model would be the untuned base, whichever way the file is loaded."""
    clip, path = dict(name="emoji-t8"), tmp_path / "tuned.pth"
    state = CLIPContrast(clip, adapter=dict(type="hyperclip", block=32)).state_dict()
    torch.save(dict(state_dict=state), path)
    plain = CLIPContrast(clip)
    for load in (
        lambda: create_clip("emoji-t8", path),
        lambda: create_clip(**clip_options(str(path))),
        lambda: create_clip(**clip_options(f"emoji-t8:{path}")),
        lambda: hypvision.load(str(path), model="emoji-t8"),
        lambda: load_trained(plain, dict(state_dict=state), path),
        lambda: check_compatible(plain, state, path),
        lambda: check_compatible(plain, state, path, exact=False),
    ):
        with pytest.raises(
            HypvisionError, match="holds an adapter 'hyperclip'.*Give the config of its training"
        ):
            load()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, partial(torch.optim.SGD, momentum=0.9)])
def test_frozen_keys_do_not_decay(optimizer):
    model = CLIPContrast(dict(name="emoji-t8"), tune="attention").train()
    weight = model.clip.transformer.resblocks[0].attn.in_proj_weight
    before = weight.detach().clone().chunk(3)
    steps = optimizer(model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(2):
        steps.zero_grad()
        sum(model(torch.zeros(2, 3, 64, 64), ["a disk", "a ring"], mode="loss").values()).backward()
        steps.step()
    assert [torch.equal(*pair) for pair in zip(before, weight.chunk(3))] == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options,learned",
    [
        (dict(adapter=dict(type="hyperclip", block=32)), ".hyperclip."),
        (dict(tune="attention"), ".in_proj_weight"),
        (dict(tune="text"), "clip."),
        (dict(tune="image"), "clip.visual."),
        (dict(tune="full"), "clip."),
    ],
    ids=str,
)
def test_what_trains(options, learned):
    """Any adapter, or a part of CLIP: that gets gradients, and nothing else does."""
    model = CLIPContrast(dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"), **options).train()
    inputs = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    sum(model(inputs, ["a disk", "a ring", "a house", "a disk"], mode="loss").values()).backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained and all(learned in name for name in trained)
    assert {
        name
        for name, p in model.named_parameters()
        if p.grad is not None and p.grad.abs().max() > 0
    } <= trained
    assert all(
        p.grad is not None and p.grad.isfinite().all()
        for p in model.parameters()
        if p.requires_grad
    )
    if options.get("tune") in ("text", "image"):
        assert {name.startswith("clip.visual.") for name in trained} == {options["tune"] == "image"}
        assert "clip.logit_scale" not in trained


def test_an_adapter_learns_and_is_saved_alone(tmp_path):
    clip = dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes")
    model = CLIPContrast(clip, adapter=dict(type="hyperclip", block=32)).train()
    data = ShapeCaptions(length=8)
    batch = [data[i] for i in range(8)]
    inputs, captions = (
        torch.stack([item["inputs"] for item in batch]),
        [item["caption"] for item in batch],
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(5):
        loss = sum(model(inputs, captions, mode="loss").values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    path = adapters.save(model.clip, tmp_path / "a.safetensors")
    fresh = CLIPContrast(clip, tune="frozen").eval()
    adapters.load(fresh.clip, path)
    with torch.no_grad():
        assert torch.allclose(fresh(inputs, captions), model.eval()(inputs, captions), atol=1e-5)
    with pytest.raises(HypvisionError, match="Leave out one of the two"):
        CLIPContrast(clip, adapter=dict(type="hyperclip", block=32), tune="text")
