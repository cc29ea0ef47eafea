"""Every function that takes a list of texts or of names refuses one text, of which Python would
take the letters, an empty list, and what is no text."""

import pytest
import torch
from helpers.cases import each
from helpers.fewshot import bundle

from hypvision.clip.prompting import build_host
from hypvision.clip.radial.texts import embed_texts
from hypvision.data.classes import checked_templates
from hypvision.io.errors import HypvisionError


def taught(clip):
    """A student that passes its class names on to its teacher."""
    return build_host(clip, "promptkd", teacher=build_host(clip, "zeroshot"), depth=1)


TAKERS = {
    "CLIPBundle.embed_texts": lambda clip: clip.embed_texts,
    "CLIPBundle.embed_classes": lambda clip: clip.embed_classes,
    "radial.texts.embed_texts": lambda clip: (
        lambda texts: embed_texts(clip.model, clip.tokenizer, texts)
    ),
    "Host.set_classes": lambda clip: build_host(clip, "zeroshot").set_classes,
    "PromptKD.set_classes": lambda clip: taught(clip).set_classes,
}


@each("taker", sorted(TAKERS))
def test_one_text_is_not_a_list_of_texts(taker):
    take = TAKERS[taker](bundle())
    take(["cat", "dog"])
    for wrong, said in (
        ("cat", r"the text 'cat'. Give \['cat'\]"),
        ([], "an empty list"),
        (["a", 3], "3"),
    ):
        with pytest.raises(HypvisionError, match=f"list of texts.*{said}"):
            take(wrong)


@each("template", ["a photo", "a {} of {x}", "a {} {}", "{name}"])
def test_a_template_has_one_place_for_the_name(template):
    clip = bundle()
    host = build_host(clip, "zeroshot")
    for take in (
        lambda: checked_templates(template),
        lambda: clip.embed_classes(["cat"], template),
        lambda: host.set_classes(["cat"], template),
        lambda: host.set_classes(["cat"], templates=[template]),
    ):
        with pytest.raises(HypvisionError, match="needs one {} for the class name"):
            take()
    host.set_classes(["cat"], templates="a {}.")  # one sentence is not its letters
    assert host.mean_templates == ("a {}.",)


def test_points_of_classes_are_means_over_their_sentences():
    clip = bundle()
    sentences = ("a photo of a {}.", "a {} in the snow")
    with torch.no_grad():
        found = clip.embed_classes(["cat {x}", "dog"], sentences)
        for name, point in zip(("cat {x}", "dog"), found):
            texts = clip.embed_texts([text.replace("{}", name) for text in sentences])
            mean = texts.mean(0)
            assert (point - mean / mean.norm()).abs().max() < 1e-5
        own = clip._replace(templates=sentences).embed_classes(["cat {x}", "dog"])
        assert torch.equal(own, found)
        assert clip.embed_classes(["cat"]).shape == found[:1].shape
