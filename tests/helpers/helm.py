"""Small HELM models and their published counterparts with the same weights."""

from __future__ import annotations

import torch
from references.helm import HelmD, HelmMiCE, official_state

from hypvision.helm import Helm, preset
from hypvision.helm.checkpoint import helm_from_official

MODELS = {
    "D": ("helm_d_tiny", {}),
    "MiCE": ("helm_mice_tiny", {}),
    "MiCE, latent queries": ("helm_mice_tiny", dict(q_lora_rank=24)),
    "MiCE, space embedding": ("helm_mice_tiny", dict(project_emb=True, train_curv=False)),
    "MiCE, sigmoid, groups": (
        "helm_mice_tiny", dict(score_func="sigmoid", n_routed_experts=6, n_expert_groups=3,
        n_limited_groups=2)
    ),
    "MiCE, Lorentz router": ("helm_mice_tiny", dict(router="lorentz", renorm_topk=True)),
    "MiCE, centroid": ("helm_mice_tiny", dict(moe_combine="centroid", renorm_topk=True)),
    "MiCE, centroid, two shared": ("helm_mice_tiny", dict(moe_combine="centroid",
    n_shared_experts=2)),
    "MiCE, more of all": ("helm_mice_tiny", dict(n_shared_experts=2, n_activated_experts=3,
    route_scale=1.5)),
    "MiCE, published floors": ("helm_mice_tiny", dict(safe_clamp=False)),
}  # fmt: skip


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


def published_logits(
    official: torch.nn.Module, tokens: torch.Tensor, blocked: torch.Tensor | None = None
):
    found = official(tokens, blocked)
    return found if isinstance(found, torch.Tensor) else found[0]


def tokens(batch: int = 2, length: int = 24, vocabulary: int = 259, seed: int = 1) -> torch.Tensor:
    return torch.randint(
        0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed)
    )
