"""Texts embedded without padding, each once, against one call that is padded to the full
context."""

import pytest
import torch
from torch import nn

pytest.importorskip("open_clip")

from helpers.clip_models import siglip

from hypvision.clip.features import frozen_texts
from hypvision.clip.models import create_clip
from hypvision.clip.radial.texts import distinct, embed_texts
from hypvision.clip.towers import encode_packed, token_lengths
from hypvision.io.errors import HypvisionError

SENTENCE = "a small red house beside the very tall green tree in front of many hills"
TEXTS = ["dog", "", "animal", "dog", SENTENCE, "a dog", "a red house", SENTENCE[:29]]


@pytest.fixture(scope="module")
def clip():
    torch.manual_seed(0)
    return create_clip("emoji-s16")


def test_embeddings_are_those_of_the_padded_texts(clip):
    with torch.no_grad():
        expected = clip.model.encode_text(clip.tokenizer(TEXTS), normalize=True)
    found = embed_texts(clip.model, clip.tokenizer, TEXTS)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(found[0], found[3])  # equal texts to the bit
    some = embed_texts(clip.model, clip.tokenizer, TEXTS[::-1])
    assert torch.allclose(some.flip(0), expected, atol=1e-6)


def test_packing_changes_neither_values_nor_gradients(clip):
    """More tokens than one sequence takes, in one that is full, one of a single text and one that
    is not full."""
    texts = [
        *TEXTS,
        *(f"{SENTENCE} {word}" for word in ("a", "b", "c", "d", "e", "f", "g", "h", "i")),
    ]
    tokens = clip.tokenizer(texts)
    weights = torch.randn(len(texts), 128)
    gradients = []
    for embeddings in (
        encode_packed(clip.model, tokens, True),
        clip.model.encode_text(tokens, normalize=True),
    ):
        clip.model.zero_grad()
        (embeddings * weights).sum().backward()
        gradients.append(
            [embeddings, *(p.grad.clone() for p in clip.model.transformer.parameters())]
        )
    for ours, theirs in zip(*gradients):
        assert torch.allclose(ours, theirs, atol=2e-5)


def test_towers_that_cannot_be_cut_are_padded():
    model = siglip()
    tokens = torch.randint(1, 90, (5, 20), generator=torch.Generator().manual_seed(0))
    found = encode_packed(model, tokens, True)
    assert torch.allclose(found, model.encode_text(tokens, normalize=True), atol=1e-5)


def test_lengths_and_repeats():
    assert token_lengths(torch.tensor([[5, 6, 0, 0], [5, 0, 7, 0], [1, 2, 3, 4]])).tolist() == [
        2,
        3,
        4,
    ]
    once, rows = distinct(["b", "a", "b"])
    assert once == ["b", "a"] and rows.tolist() == [0, 1, 0]


def test_mistakes_are_told(clip):
    with pytest.raises(HypvisionError, match="an empty list"):
        embed_texts(clip.model, clip.tokenizer, [])
    with pytest.raises(HypvisionError, match="no text tower"):
        embed_texts(nn.Linear(2, 2), clip.tokenizer, ["a"])
    broken = create_clip("emoji-s16")
    broken.model.token_embedding.weight.data[clip.tokenizer(["dog"])[0, 1]] = float("nan")
    with pytest.raises(HypvisionError, match="'a dog' is not finite"):
        embed_texts(broken.model, clip.tokenizer, ["cat", "a dog"])


def test_frozen_texts_are_kept_by_content(clip, tmp_path, monkeypatch):
    first = frozen_texts(clip.model, clip.tokenizer, TEXTS, tmp_path)
    assert first.embeddings.dtype == torch.float16 and len(first.number) == 7
    expected = embed_texts(clip.model, clip.tokenizer, ["a dog", "dog"])
    assert torch.allclose(first[["a dog", "dog"]], expected, atol=1e-3)
    assert torch.allclose(first[["dog"]].norm(dim=-1), torch.ones(1), atol=1e-6)
    with pytest.raises(HypvisionError, match="'cat' was not among them"):
        first[["cat"]]
    monkeypatch.setattr("hypvision.clip.features.embed_texts", None)  # nothing is computed again
    assert torch.equal(
        frozen_texts(clip.model, clip.tokenizer, TEXTS[::-1], tmp_path).embeddings, first.embeddings
    )
    monkeypatch.undo()
    first.path.write_bytes(b"damaged")
    assert torch.equal(
        frozen_texts(clip.model, clip.tokenizer, TEXTS, tmp_path).embeddings, first.embeddings
    )
    torch.manual_seed(7)
    other = create_clip("emoji-s16")
    assert frozen_texts(other.model, clip.tokenizer, TEXTS, tmp_path).path != first.path
    assert frozen_texts(clip.model, clip.tokenizer, TEXTS[:4], tmp_path).path != first.path
