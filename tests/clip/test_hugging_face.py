"""Hugging Face's state dicts: there and back to the bit, equal features, one entry point,
mistakes."""

import pytest
import torch

pytest.importorskip("open_clip")

from helpers.clip_models import openai_clip, prompts
from references.hugging_face_clip import text_features

from hypvision.clip.hugging_face import (
    clip_variant,
    from_hugging_face,
    is_hugging_face,
    to_hugging_face,
)
from hypvision.clip.models import create_clip
from hypvision.io.errors import HypvisionError


def test_there_and_back_to_the_bit():
    weights = openai_clip().state_dict()
    theirs = to_hugging_face(weights)
    assert is_hugging_face(theirs) and not is_hugging_face(weights)
    layer = "vision_model.encoder.layers.3.self_attn"
    assert theirs[f"{layer}.k_proj.weight"].shape == (64, 64) and theirs[
        "text_projection.weight"
    ].shape == (64, 32)
    assert {"vision_model.pre_layrnorm.bias", "text_model.embeddings.token_embedding.weight",
    "logit_scale",
            "visual_projection.weight",
            "text_model.encoder.layers.2.mlp.fc2.bias"} <= set(theirs)  # fmt: skip
    theirs["text_model.embeddings.position_ids"] = torch.arange(20)[None]  # may be there
    back = from_hugging_face(theirs)
    assert set(back) == set(weights) and all(
        torch.equal(back[name], weights[name]) for name in weights
    )
    for prefix in ("text_model.", "vision_model."):  # one tower alone
        half = {name: value for name, value in theirs.items() if name.startswith(prefix)}
        assert set(from_hugging_face(half)) < set(weights)


def test_features_of_both_layouts():
    model = openai_clip()
    tokens = prompts(6)
    with torch.no_grad():
        found = text_features(to_hugging_face(model.state_dict()), tokens, heads=2)
        assert torch.allclose(found, model.encode_text(tokens), atol=1e-5)


def test_create_clip_takes_such_files(tmp_path):
    torch.manual_seed(0)
    model = create_clip("emoji-s16").model
    torch.save(to_hugging_face(model.state_dict()), tmp_path / "pytorch_model.bin")
    loaded = create_clip("emoji-s16", tmp_path / "pytorch_model.bin").model
    assert all(
        torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items()
    )


def test_variants():
    small = {
        "visual.conv1.weight": torch.empty(768, 3, 32, 32),
        "visual.positional_embedding": torch.empty(50, 768),
    }
    assert clip_variant(small) == ("ViT-B-32", {"force_quick_gelu": True})
    large = {
        "visual.conv1.weight": torch.empty(1024, 3, 14, 14),
        "visual.positional_embedding": torch.empty(577, 1024),
    }
    assert clip_variant(large)[0] == "ViT-L-14-336"
    with pytest.raises(HypvisionError, match="none of OpenAI"):
        clip_variant(openai_clip().state_dict())


def test_mistakes_are_told():
    weights = to_hugging_face(openai_clip().state_dict())
    with pytest.raises(HypvisionError, match="'text_model.pooler.weight' is not a weight"):
        from_hugging_face({**weights, "text_model.pooler.weight": torch.ones(1)})
    del weights["text_model.encoder.layers.1.self_attn.v_proj.bias"]
    with pytest.raises(HypvisionError, match="lacks v_proj"):
        from_hugging_face(weights)
    with pytest.raises(HypvisionError, match="'visual.trunk.x' is not a weight"):
        to_hugging_face({"visual.trunk.x": torch.ones(1)})
