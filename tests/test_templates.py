"""Every entry point that turns class names into sentences takes those of the weights' record when
the user gives none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image

import hypvision.tasks.contrastive  # noqa: F401 - registers CLIPContrast
from hypvision.checkpoints.index import builtin_index, parse_record
from hypvision.checkpoints.language import Language
from hypvision.cli import main
from hypvision.clip.models import create_clip
from hypvision.clip.prompting import HOSTS, build_host
from hypvision.clip.radius import text_radii
from hypvision.clip.segmentation.segment import load_segmenter
from hypvision.data.classes import SELECTED
from hypvision.engine.config import load_config
from hypvision.inference.predictors import Request, load_predictor
from hypvision.inference.running import predict
from hypvision.io.errors import HypvisionError
from hypvision.tasks.publishing import _templates_of

RECORDS = builtin_index().select(task="zero-shot")
NAMES = ("fruit", "cat face")


@pytest.fixture(scope="module")
def emoji():
    return create_clip("emoji-s16", "zoo:emoji-s16.captions")


def _points(clip, templates, names=NAMES):
    """Unit class features (T, d), the mean over unit features of the sentences."""
    texts = [template.format(name) for name in names for template in templates]
    with torch.no_grad():
        found = clip.model.encode_text(clip.tokenizer(texts), normalize=True)
    mean = found.unflatten(0, (len(names), len(templates))).mean(1)
    return torch.nn.functional.normalize(mean, dim=-1)


@each("record", RECORDS)
def test_shipped_clips_name_their_templates_and_the_bundle_has_them(record):
    assert record.templates
    clip = create_clip(record.model, f"zoo:{record.name}")
    assert clip.templates == record.templates
    assert clip.words == record.classes
    unloaded = create_clip(record.model, f"zoo:{record.name}", load_weights=False)
    assert unloaded.templates == record.templates


def test_weights_without_a_record_name_none():
    clip = create_clip("emoji-t8")
    assert clip.templates == ()
    assert build_host(clip, "zeroshot").template == "a photo of a {}."
    assert build_host(clip, "zeroshot").mean_templates[:7] == SELECTED


def _photo():
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    return Image.fromarray(noise)


def test_predict_says_the_sentences_of_the_record(emoji):
    predictor = load_predictor(Request("emoji-s16.captions", classes=list(NAMES)))
    [found] = predict(_photo(), predictor)
    pixels = torch.from_numpy(np.array(_photo())).permute(2, 0, 1)[None]
    with torch.no_grad():
        image = emoji.embed_images(pixels)
        scale = emoji.model.logit_scale.exp()
    scores = (scale * image @ _points(emoji, ("a photo of a {}",)).T).softmax(-1)[0]
    np.testing.assert_allclose(found.result.scores, scores, atol=1e-5)


@each("record", RECORDS)
def test_predict_without_words_takes_those_of_the_record(record):
    predictor = load_predictor(Request(record.name))
    assert predictor.known.names == record.classes
    [found] = predict(_photo(), predictor)
    assert len(found.result.scores) == len(record.classes)


def _segment(name):
    model = load_segmenter(clip=name)
    return model.templates


def _contrast(name):
    from mmengine.registry import MODELS

    clip = dict(name=builtin_index().get(name).model, pretrained=f"zoo:{name}")
    model = dict(type="CLIPContrast", clip=clip, classes=NAMES, tune="frozen")
    return MODELS.build(model).templates


def _host(method):
    def found(name):
        clip = create_clip(builtin_index().get(name).model, f"zoo:{name}")
        options = dict(depth=2) if method in ("maple", "promptsrc", "ivlp") else {}
        host = build_host(clip, method, **options)
        host.set_classes(NAMES)
        assert host.mean_templates == clip.templates
        assert all(text.endswith(NAMES) for text in host.sentences())  # no full stop
        return (host.template,)

    return found


ENTRIES = {
    "clip segment": _segment,
    "training and test": _contrast,
    **{
        f"fewshot {method}": _host(method)
        for method in ("zeroshot", "coop", "cocoop", "ivlp", "maple", "promptsrc")
    },
}


def test_every_prompted_host_is_walked_over():
    behind = {"linear-probe", "clip-adapter", "tip-adapter", "tip-adapter-f", "promptkd"}
    walked = {name.removeprefix("fewshot ") for name in ENTRIES}
    assert HOSTS.keys() <= walked | behind | {"deep-language", "deep-vision"}


@each("entry", ENTRIES)
def test_entry_points_say_the_sentences_of_the_record(entry):
    record = builtin_index().get("emoji-s16.captions")
    assert ENTRIES[entry](record.name) == record.templates


def test_radii_are_those_of_the_records_sentences(emoji):
    torch.testing.assert_close(
        text_radii(emoji, NAMES), text_radii(emoji, NAMES, ("a photo of a {}",))
    )
    other = text_radii(emoji, NAMES, ("a picture of a {}.",))
    assert (text_radii(emoji, NAMES) - other).abs().min() > 1e-4


def test_what_the_user_gives_wins(emoji):
    host = build_host(emoji, "zeroshot")
    host.set_classes(NAMES, "a drawing of a {}.")
    assert host.sentences() == ["a drawing of a fruit.", "a drawing of a cat face."]
    assert host.mean_templates == ("a photo of a {}", "a drawing of a {}.")
    host = build_host(emoji, "coop", tokens=4, words="a photo of a")
    host.set_classes(NAMES, "a drawing of a {}.")
    assert host.sentences()[0] == "a photo of a fruit."


def test_clip_segment_without_words_takes_those_of_the_record(tmp_path, capsys):
    _photo().save(tmp_path / "photo.png")
    command = ["clip", "segment", str(tmp_path / "photo.png"), "--clip", "emoji-t8"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "photo_labels.png").is_file()


def test_a_published_clip_keeps_the_sentences_of_its_record():
    index = builtin_index()
    settings = load_config(index.get("hycoclip-emoji-s16.scenes").config)
    own = Language(("my {}",))
    for language in (own, Language()):
        found = _templates_of(index, "hycoclip-emoji-s16.scenes", settings, language)
        assert found == ["{}"]
    assert _templates_of(index, "new.one", settings, own) == ["my {}"]
    assert _templates_of(index, "new.one", settings, Language()) == ["a photo of a {}"]


@each("wrong", ["a photo", "{} and {}", "a {name}", "a {} {0}"])
def test_a_records_template_needs_one_place_for_the_name(wrong):
    plain = builtin_index().get("emoji-s16.captions").to_dict()
    with pytest.raises(HypvisionError, match="templates"):
        parse_record({**plain, "templates": [wrong]})
