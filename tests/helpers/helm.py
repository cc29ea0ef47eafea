"""Small HELM models and their published counterparts with the same weights."""

from __future__ import annotations

import torch
from references.helm import HelmD, HelmMiCE, official_state

from hypvision.helm import Helm, preset
from hypvision.helm.checkpoint import helm_from_official


def stirred(model: torch.nn.Module) -> torch.nn.Module:
    """A model whose scalars, which start at round numbers, have values of their own."""
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() <= 1 and not name.endswith(".k"):
                parameter.add_(torch.randn_like(parameter) * 0.05)
            if name.endswith("experts.1.manifold.k"):
                parameter.fill_(0.5 + 0.01 * i)
    return model


def pair(name: str = "helm_d_tiny", seed: int = 0, **options) -> tuple[torch.nn.Module, Helm]:
    """A published model with random weights, and ours with the same."""
    torch.manual_seed(seed)
    config = preset(name, **options)
    official = HelmD(config) if config.attention == "full" else HelmMiCE(config, eval_crash=False)
    stirred(official)
    ours = Helm(config)
    ours.load_state_dict(helm_from_official(official_state(official), config))
    return official, ours


def published_logits(official: torch.nn.Module, tokens: torch.Tensor, blocked: torch.Tensor | None = None):
    found = official(tokens, blocked)
    return found if isinstance(found, torch.Tensor) else found[0]


def tokens(batch: int = 2, length: int = 24, vocabulary: int = 259, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))
