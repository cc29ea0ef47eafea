"""Tuned towers in files: whole or as differences, onto the right base model, plain weights
afterwards."""

import pytest
import torch

pytest.importorskip("open_clip")

from helpers.clip_models import openai_clip

from hypvision.clip.radial.weights import content_hash, merge_tower, save_tower, tower_weights
from hypvision.io.errors import HypvisionError


@pytest.fixture
def tuned():
    model = openai_clip()
    torch.manual_seed(3)
    with torch.no_grad():
        for name, value in tower_weights(model).items():
            if "resblocks.1" in name or name == "text_projection":
                value.add_(1e-3 * torch.randn_like(value))
    return model


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("delta", [False, True])
def test_merged_weights_are_the_tuned_ones(tuned, tmp_path, delta, storage):
    base = openai_clip()
    path = save_tower(tuned, tmp_path / "a.safetensors", base if delta else None, storage=storage)
    merged = openai_clip()
    assert merge_tower(merged, path) is None
    own, expected = merged.state_dict(), tuned.state_dict()
    # A difference of 1e-3 in bfloat16 is good to 4e-6, a weight of 0.1 to 4e-4.
    tolerance = dict(float32=1e-7, bfloat16=2e-5 if delta else 1e-2)[storage]
    for name, value in expected.items():
        assert torch.allclose(own[name], value, rtol=0, atol=tolerance), name
        if name.startswith(("visual.", "logit_")):
            assert torch.equal(own[name], value)
    if delta:
        whole = save_tower(tuned, tmp_path / "b.safetensors", storage=storage)
        assert (
            path.stat().st_size < 0.6 * whole.stat().st_size
        )  # what did not change is not written


def test_a_learned_root_travels_along(tuned, tmp_path):
    root = torch.randn(64)
    path = save_tower(tuned, tmp_path / "a.safetensors", openai_clip(), root)
    assert torch.equal(merge_tower(openai_clip(), path), root)


def test_mistakes_are_told(tuned, tmp_path):
    path = save_tower(tuned, tmp_path / "a.safetensors", openai_clip())
    with pytest.raises(HypvisionError, match="differences to another CLIP"):
        merge_tower(tuned, path)
    merge_tower(tuned, path, strict=False)
    whole = save_tower(tuned, tmp_path / "b.safetensors")
    with pytest.raises(HypvisionError, match="does not fit"):
        merge_tower(openai_clip(text_layers=2), whole)
    with pytest.raises(HypvisionError, match="another architecture"):
        save_tower(tuned, path, openai_clip(text_layers=2))
    with pytest.raises(HypvisionError, match=r"written as \.safetensors"):
        save_tower(tuned, tmp_path / "a.pth")


def test_the_sum_is_of_names_and_values():
    weights = {"a": torch.ones(2), "b": torch.zeros(3)}
    assert content_hash(weights) == content_hash(dict(reversed(weights.items())))
    assert content_hash(weights) != content_hash({**weights, "a": torch.ones(2) + 1e-7})
    assert content_hash(weights) != content_hash({"c": weights["a"], "b": weights["b"]})
