"""The whole segmenter on tiny CLIPs: class lists, text cache, loss, sliding and whole inference,
mistakes."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import clip_models
from helpers.cases import each
from helpers.segmenter import build, random_image
from references.hyperclip import reference_loss

from hypvision.clip import adapters
from hypvision.clip.open_vocabulary import set_tuning
from hypvision.clip.segmentation.segmenter import OpenVocabSegmenter, segmentation_loss
from hypvision.clip.towers import encode_dense
from hypvision.data.classes import CLASS_LISTS, load_classes, official_ids, prompts
from hypvision.io.errors import HypvisionError


def test_any_image_any_classes():
    model = build()
    first = model.predict([random_image(), random_image(33, 20)])
    assert [tuple(label.shape) for label in first] == [(50, 70), (33, 20)]
    model.set_classes(["sky"])
    assert (model.predict([random_image()])[0] == 0).all()
    model.set_classes(
        [f"thing number {i}" for i in range(40)]
    )  # more than pad_len and more than a chunk
    label, scores = model.predict([random_image()], scores=True, sizes=[(20, 30)])[0]
    assert (
        scores.shape == (40, 20, 30)
        and (scores.argmax(0) == label).all()
        and 0 <= scores.min() <= scores.max() <= 1
    )


@pytest.mark.parametrize("make", [clip_models.siglip, clip_models.custom_blocks])
def test_every_kind_of_clip(make):
    model = build(make=make)
    assert model.predict([random_image()])[0].shape == (50, 70)
    model.train()
    loss = model(torch.stack([random_image(64, 64)]), torch.randint(0, 3, (1, 64, 64)))
    loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == trained
    assert all(".hyperclip." in name for name in trained if name.startswith("clip."))


@pytest.mark.parametrize("squash", [True, False])
def test_sliding_is_windows_and_the_whole_averaged(squash):
    """Written out window by window for one image."""
    model = build(squash=squash)
    image = random_image(50, 70)
    width = 96 if squash else round(96 / 50 * 70)
    large = F.interpolate(image[None], (96, width), mode="bilinear", align_corners=False)

    def look(part):
        with torch.no_grad():
            logits = model.logits(part)
        return F.interpolate(logits, (64, 64), mode="bilinear", align_corners=False).sigmoid()[0]

    total, count = torch.zeros(3, 96, width), torch.zeros(96, width)
    columns = (0, 32) if squash else (0, 42, 70)
    for top in (0, 32):
        for left in columns:
            total[:, top : top + 64, left : left + 64] += look(
                large[..., top : top + 64, left : left + 64]
            )
            count[top : top + 64, left : left + 64] += 1
    whole = look(F.interpolate(image[None], (64, 64), mode="bilinear", align_corners=False))
    overall = F.interpolate(whole[None], (96, width), mode="bilinear", align_corners=False)[0]
    expected = F.interpolate(
        ((total / count + overall) / 2)[None], (50, 70), mode="bilinear", align_corners=False
    )[0]
    assert sorted({left for _, left in model._windows((96, width))}) == list(columns)
    label, scores = model.predict([image], scores=True)[0]
    assert (scores - expected).abs().max() < 1e-5
    # Round-off may choose either of two classes that are as good.
    assert (expected.amax(0) - expected.gather(0, label[None])[0]).max() < 1e-5


def test_similarity_head():
    model = build(head=dict(type="similarity"))
    with torch.no_grad():
        features = encode_dense(model.clip, (random_image(64, 64)[None] - 120) / 60)[0]
        words = model.encode_classes()[:, 0]
        found = model.logits(random_image(64, 64)[None])
    assert sum(p.numel() for p in model.head.parameters()) == 2 and model.upsample1 is None
    for t in range(3):
        cosine = torch.cosine_similarity(features, words[t][None, :, None, None], dim=1)
        assert torch.allclose(found[:, t], 20 * cosine - 10, atol=1e-4)
    model.train()
    model(random_image(64, 64)[None], torch.zeros(1, 64, 64, dtype=torch.long)).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    with pytest.raises(
        HypvisionError, match="head must be one of 'catseg', 'similarity', got 'fcn'"
    ):
        build(head=dict(type="fcn"))


def test_official_windows():
    model = build(crop=384, slide=640, resolution=64)
    assert model._windows((640, 640)) == [(0, 0), (0, 256), (256, 0), (256, 256)]


def test_whole_removes_the_padding_and_official_padding_does_not():
    image = torch.zeros(3, 40, 40)
    image[:, :, 20:] = 255
    model = build(inference="whole")
    fine = model.predict([image], scores=True)[0][1]
    model.official_whole_padding = True
    official = model.predict([image], scores=True)[0][1]
    with torch.no_grad():
        padded = F.pad((image[None] - 120) / 60, (0, 24, 0, 24))
        logits = model._normalised_logits(
            padded, model.encode_classes()
        )  # 40 + 24 = 64, the resolution
        small = logits.sigmoid()
        expected = F.interpolate(small, (64, 64), mode="bilinear", align_corners=False)[
            0, :, :40, :40
        ]
        assert (fine - expected).abs().max() < 1e-5
        padded = F.interpolate(small, (40, 40), mode="bilinear", align_corners=False)[0]
        assert (official - padded).abs().max() < 1e-5 and (fine - official).abs().max() > 1e-4


def test_loss_is_the_one_hot_one():
    logits = torch.randn(1, 5, 7, 9, requires_grad=True)
    labels = torch.randint(0, 5, (1, 20, 30))
    labels[:, :4] = 255
    expected = reference_loss(logits, labels)
    found = segmentation_loss(logits, labels)
    assert torch.allclose(found, expected, rtol=1e-6)
    a, b = (torch.autograd.grad(loss, logits)[0] for loss in (found, expected))
    assert torch.allclose(a, b, atol=1e-9)
    masked = segmentation_loss(logits, labels, mask_ignored=True)
    big = F.interpolate(logits, (20, 30), mode="bilinear", align_corners=False)[:, :, 4:]
    one_hot = F.one_hot(labels[:, 4:], 5).permute(0, 3, 1, 2).float()
    assert torch.allclose(masked, F.binary_cross_entropy_with_logits(big, one_hot), rtol=1e-6)
    assert segmentation_loss(logits, torch.full((1, 8, 8), 255), mask_ignored=True) == 0
    for wrong in (5, -1):
        labels[0, 9, 9] = wrong
        with pytest.raises(HypvisionError, match=f"has the label {wrong}, but there are 5 classes"):
            segmentation_loss(logits, labels)
    for shape in ((1, 1, 8, 8), (2, 8, 8), (8, 8)):
        with pytest.raises(HypvisionError, match=r"Expected: \(1, H, W\)"):
            segmentation_loss(logits, torch.zeros(shape, dtype=torch.long))
    many = torch.randn(1, 300, 4, 4)
    with pytest.raises(
        HypvisionError, match="255 stands for ignored pixels and for one of the 300 classes"
    ):
        segmentation_loss(many, torch.full((1, 8, 8), 255))
    numbers = torch.randint(0, 300, (1, 8, 8))
    assert torch.allclose(
        segmentation_loss(many, numbers, ignore=65535),
        reference_loss(many, numbers, 65535),
        rtol=1e-6,
    )


def test_text_is_encoded_again_when_something_changed():
    model, calls = build(), []
    original = model._encode_classes
    model._encode_classes = lambda names: calls.append(names) or original(names)
    for _ in range(2):
        model.predict([random_image()])
    assert len(calls) == 1
    with torch.no_grad():
        before = model.encode_classes()
    model.set_classes(["cat", "dog", "snow"])
    model.predict([random_image()])
    model.set_classes(["cat", "dog", "grass"])
    with torch.no_grad():
        assert torch.allclose(model.encode_classes(), before, atol=1e-6)
    assert len(calls) == 3
    model.train()
    model(random_image(64, 64)[None], torch.zeros(1, 64, 64, dtype=torch.long)).backward()
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model.clip):
            parameter.sub_(10 * parameter.grad.sign() * 1e-2)
    model.eval()
    with torch.no_grad():  # the official code would use the old embeddings here
        assert not torch.allclose(model.encode_classes(), before, atol=1e-3)
        adapters.merge(model.clip)
        merged = model.encode_classes()
    assert merged.shape == (3, 1, 64) and len(calls) == 6


def test_frozen_text_is_not_encoded_in_training():
    model, calls = build(adapter=dict(block=16, text=False)), []
    original = model._encode_classes
    model._encode_classes = lambda names: calls.append(names) or original(names)
    model.train()
    for _ in range(3):
        model(random_image(64, 64)[None], torch.zeros(1, 64, 64, dtype=torch.long)).backward()
    assert len(calls) == 1


def test_templates_and_synonyms():
    model = build(templates=["a {}", "the {} here"], synonyms="mean")
    model.set_classes(["cat, kitty", "dog"])
    with torch.no_grad():
        text = model.encode_classes()
        single = build(templates=["a {}"], classes=["cat", "kitty", "dog"]).encode_classes()
    assert text.shape == (2, 2, 64) and torch.allclose(text.norm(dim=-1), torch.ones(2, 2))
    assert torch.allclose(text[0, 0], F.normalize(single[:2, 0].mean(0), dim=0), atol=1e-5)
    assert torch.allclose(text[1, 0], single[2, 0], atol=1e-5)
    assert model.predict([random_image()])[0].shape == (50, 70)
    assert prompts("wall, rock", ["a {}"]) == [["a wall"]]


def test_words_that_clip_was_never_taught_are_told():
    model = OpenVocabSegmenter(
        dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"), tune="frozen",
        head=dict(type="similarity"), resolution=64, crop=64, slide=64,
        classes=["fruit", "zebra", "bird", "cat"],
    )  # fmt: skip
    with pytest.warns(UserWarning, match="cannot tell 'zebra' from 'cat': their texts"):
        model.encode_classes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode_classes(["fruit", "bird", "zebra"])


@each("tune", ["attention", "full", "frozen"])
def test_other_tunings(tune):
    model = build(adapter=None, tune=tune).train()
    before = {name: value.clone() for name, value in model.clip.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(random_image(64, 64)[None], torch.ones(1, 64, 64, dtype=torch.long)).backward()
    optimizer.step()
    changed = {
        name
        for name, value in model.clip.state_dict().items()
        if not torch.equal(value, before[name])
    }
    if tune == "frozen":
        assert not changed
    elif tune == "attention":
        assert changed and all(name.endswith("in_proj_weight") for name in changed)
        name = "transformer.resblocks.0.attn.in_proj_weight"
        parts = [
            (a != b).any()
            for a, b in zip(model.clip.state_dict()[name].chunk(3), before[name].chunk(3))
        ]
        assert parts == [True, False, True]
    else:
        assert "visual.conv1.weight" in changed and "token_embedding.weight" in changed


@each("options", [dict(tune="full"), dict(form="feature"), dict()])
def test_whatever_trains_gets_a_gradient(options):
    """Otherwise distributed training stops."""
    tune, form = options.get("tune", "adapter"), options.get("form", "weight")
    adapter = dict(block=16, form=form) if tune == "adapter" else None
    model = build(adapter=adapter, tune=tune).train()
    model(random_image(64, 64)[None], torch.ones(1, 64, 64, dtype=torch.long)).backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_an_adapter_without_effect_is_refused():
    for kind in (name for name, method in adapters.ADAPTERS.items() if not method.changes_towers):
        with pytest.raises(HypvisionError, match=f"'{kind}' would have no effect here"):
            build(adapter=dict(type=kind))


def test_a_second_tuning_replaces_the_first_one():
    model = clip_models.openai_clip()
    for mode in ("attention", "full"):
        set_tuning(model, mode)
    model.encode_image(clip_models.random_images(model)).square().sum().backward()
    assert all(
        part.any()
        for part in model.visual.transformer.resblocks[0].attn.in_proj_weight.grad.chunk(3)
    )


def test_checkpointing_and_amp():
    gradients = []
    for checkpointing in (False, True):
        model = build(checkpointing=checkpointing).train()
        model(random_image(64, 64)[None], torch.ones(1, 64, 64, dtype=torch.long)).backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients))
    with torch.autocast("cpu", torch.bfloat16):
        assert (
            model(random_image(64, 64)[None], torch.ones(1, 64, 64, dtype=torch.long)).dtype
            == torch.float32
        )
        model.eval()
        assert model.predict([random_image()])[0].shape == (50, 70)


def test_weights_travel():
    model = build()
    other = build(classes=["cat", "dog", "grass"])
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model.clip):
            parameter.add_(0.1 * torch.randn_like(parameter))
    other.load_state_dict(model.state_dict())
    assert torch.equal(
        copy.deepcopy(other).predict([random_image()])[0], model.predict([random_image()])[0]
    )


def test_texts_follow_weights_that_are_exchanged_unseen():
    """As averaged weights are put in place for a validation: through ``.data``, which no version
    counts."""
    model = build().train()
    with torch.no_grad():
        before = model.encode_classes()
        for parameter in adapters.trainable_parameters(model.clip):
            parameter.data.copy_(parameter + 0.1 * torch.randn_like(parameter))
        model.eval()
        after = model.encode_classes()
        assert (after - before).abs().max() > 1e-3
        assert model.eval().encode_classes() is after  # evaluation goes on: nothing is made anew
        assert torch.allclose(copy.deepcopy(model).encode_classes(), after, atol=1e-6)


def test_class_lists(tmp_path):
    sizes = {name: len(load_classes(name)) for name in CLASS_LISTS}
    expected = dict(coco171=171, ade150=150, ade847=847, pc59=59, pc459=459, voc20=20, voc20b=59)
    assert sizes == expected | dict(coco48=48, coco17=17, coco65=65, coco133=133, coco116=116)
    base, novel = load_classes("coco48"), load_classes("coco17")
    assert set(load_classes("coco133")) - set(novel) == set(load_classes("coco116"))
    assert load_classes("coco65") == tuple(
        name for name in load_classes("coco133") if name in base + novel
    )
    assert load_classes("ade847")[1] == "building, edifice" and load_classes("ade150")[7] == "bed"
    assert official_ids("ade847")[:2] == [2978, 312] and len(official_ids("pc59")) == 60
    assert not {11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90} & set(official_ids("coco171"))
    (tmp_path / "a.txt").write_text("cat\n\ndog \n")
    (tmp_path / "a.json").write_text('["cat", "dog"]')
    (tmp_path / "b.json").write_text('{"dog": 1, "cat": 0}')
    (tmp_path / "c.json").write_text('{"1": "dog", "0": "cat"}')
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n")  # with a byte order mark
    for name in ("a.txt", "a.json", "b.json", "c.json", "windows.txt"):
        assert load_classes(tmp_path / name) == ("cat", "dog")


OPTIONS = [  # and what the error mentions
    (dict(overlap=1.0), "overlap.*1.0"),
    (dict(crop=0), "crop.*0"),
    (dict(slide=0), "slide.*0"),
    (dict(resolution=0), "resolution.*0"),
    (dict(resolution=70), "16 x 16 pixels. Use 64"),
    (dict(hooks=(0,)), "two numbers"),
    (dict(upsample=(0, 128)), "two numbers"),
    (dict(synonyms="last"), "'first', 'mean'"),
    (dict(adapter=None, tune="lora"), "'lora'"),
    (dict(tune="full"), "tune='adapter'"),
    (dict(inference="both"), "'slide', 'whole'"),
    (dict(templates="nice"), "'nice'.*catseg, photo, several"),
    *((dict(templates=[text]), "{}") for text in ("a cat", "a {} {", "{} and {}", "a {x} {}")),
]


@each("options, mentioned", OPTIONS)
def test_options_that_do_not_fit_are_named(options, mentioned):
    with pytest.raises(HypvisionError, match=mentioned) as caught:
        build(**options)
    assert "\n" not in str(caught.value)


def test_mistakes_are_explained(tmp_path):
    def fails(mentioned, function, *args):
        with pytest.raises(HypvisionError, match=mentioned) as caught:
            function(*args)
        assert "\n" not in str(caught.value)

    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes("Stra\xdfe".encode("latin-1"))
    for given, mentioned in (
        ([], "empty"),
        (list(map(str, range(100_001))), "100,001"),
        (tmp_path / "empty.txt", "empty"),
        (["cat", "dog", "cat "], "'cat' more than once"),
        (["cat", 3], "entry 3"),
        ("none.txt", "'none.txt'"),
        (tmp_path / "latin.txt", "UTF-8"),
        (None, "NoneType"),
    ):
        fails(mentioned, load_classes, given)
    for content in ("{", '{"cat": "x"}', '{"classes": ["cat"]}'):
        (tmp_path / "bad.json").write_text(content)
        fails("cannot be read|no number", load_classes, tmp_path / "bad.json")
    fails("no table of ids", official_ids, "voc20")
    fails("set_classes", build(classes=None).predict, [random_image()])
    fails("10 x 70.* 16 x 16", build().logits, torch.zeros(1, 3, 10, 70))
    for inference in ("slide", "whole"):
        fails("10 x 70", build(inference=inference).predict, [random_image(10, 70)])
    fails("tokenizer", OpenVocabSegmenter, clip_models.openai_clip())
