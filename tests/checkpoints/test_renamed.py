"""Names of earlier versions, read by those of this one."""

import pytest
import torch
from torch import nn

from hypvision.checkpoints.renamed import current_names


def test_blocks_of_hyperclip():
    stem = "clip.visual.transformer.resblocks.11"
    found = current_names({
        f"{stem}.hyperbolic_attn.adapter_attn_q.weights": 1,
        f"{stem}.attn.in_proj_weight": 2,
        "hyperbolic_attn.adapter_attn_v.weights": 3,
        "hyperbolic_attn.adapter_attn_x.weights": 4,
        "nonhyperbolic_attn.adapter_attn_v.weights": 5,
    })  # fmt: skip
    assert found == {
        f"{stem}.hyperclip.q": 1,
        f"{stem}.attn.in_proj_weight": 2,
        "hyperclip.v": 3,
        "hyperbolic_attn.adapter_attn_x.weights": 4,
        "nonhyperbolic_attn.adapter_attn_v.weights": 5,
    }
    assert current_names(found) == found


def test_a_training_of_an_earlier_version_is_taken_for_its_own():
    """By the check that comes before a checkpoint is loaded for testing or resuming."""
    pytest.importorskip("mmengine")
    from hypvision.engine.checkpoint import check_compatible

    model = nn.Module()
    model.hyperclip = nn.Module()
    model.hyperclip.q = nn.Parameter(torch.zeros(1, 2, 2))
    check_compatible(model, {"hyperbolic_attn.adapter_attn_q.weights": torch.zeros(1, 2, 2)}, "old.pth")
