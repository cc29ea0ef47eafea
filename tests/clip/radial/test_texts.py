"""Texts embedded in groups of like length, each once, against one call that is padded to the full context."""

import itertools

import pytest
import torch
from torch import nn

pytest.importorskip("open_clip")

from helpers.clip_models import siglip

from hypvision.clip.models import create_clip
from hypvision.clip.radial.reference import frozen_texts
from hypvision.clip.radial.texts import distinct, embed_texts, encode_by_length, length_groups, token_lengths
from hypvision.errors import HypvisionError

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


@pytest.mark.parametrize("most", [1, 2, 3])
def test_groups_change_neither_values_nor_gradients(clip, most):
    tokens = clip.tokenizer(TEXTS)
    weights = torch.randn(len(TEXTS), 128)
    gradients = []
    for embeddings in (encode_by_length(clip.model, tokens, most), clip.model.encode_text(tokens, normalize=True)):
        clip.model.zero_grad()
        (embeddings * weights).sum().backward()
        gradients.append([clip.model.transformer.resblocks[0].attn.in_proj_weight.grad.clone(), embeddings])
    for ours, theirs in zip(*gradients):
        assert torch.allclose(ours, theirs, atol=2e-5)


def test_towers_that_cannot_be_cut_are_padded():
    model = siglip()
    tokens = torch.randint(1, 90, (5, 20), generator=torch.Generator().manual_seed(0))
    found = encode_by_length(model, tokens)
    assert torch.allclose(found, model.encode_text(tokens, normalize=True), atol=1e-5)


def test_groups_are_the_cheapest():
    """Against all ways to cut the sorted lengths."""
    generator = torch.Generator().manual_seed(0)
    for count, most in itertools.product((1, 2, 40, 300), (1, 2, 3)):
        lengths = torch.randint(3, 40, (count,), generator=generator)
        groups = length_groups(lengths, most)
        assert sorted(torch.cat(groups).tolist()) == list(range(count)) and 1 <= len(groups) <= most

        def cost(parts):
            return sum(int(part.max()) * len(part) + 200 for part in parts)

        ordered = lengths.sort().values
        cuts = [i for i in range(1, count) if ordered[i] != ordered[i - 1]]
        ways = [c for k in range(most) for c in itertools.combinations(cuts, k)]
        best = min(cost(ordered.tensor_split(list(way))) for way in ways)
        assert cost([lengths[group] for group in groups]) == best


def test_lengths_and_repeats():
    assert token_lengths(torch.tensor([[5, 6, 0, 0], [5, 0, 7, 0], [1, 2, 3, 4]])).tolist() == [2, 3, 4]
    once, rows = distinct(["b", "a", "b"])
    assert once == ["b", "a"] and rows.tolist() == [0, 1, 0]


def test_mistakes_are_told(clip):
    with pytest.raises(HypvisionError, match="no texts"):
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
    with pytest.raises(HypvisionError, match="no embedding of 'cat'"):
        first[["cat"]]
    monkeypatch.setattr("hypvision.clip.radial.reference.embed_texts", None)  # nothing is computed again
    assert torch.equal(frozen_texts(clip.model, clip.tokenizer, TEXTS[::-1], tmp_path).embeddings, first.embeddings)
    monkeypatch.undo()
    first.path.write_bytes(b"damaged")
    assert torch.equal(frozen_texts(clip.model, clip.tokenizer, TEXTS, tmp_path).embeddings, first.embeddings)
    torch.manual_seed(7)
    other = create_clip("emoji-s16")
    assert frozen_texts(other.model, clip.tokenizer, TEXTS, tmp_path).path != first.path
    assert frozen_texts(clip.model, clip.tokenizer, TEXTS[:4], tmp_path).path != first.path
