"""Steps of a training: what must not move, and the published steps."""

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import each
from helpers.helm import MODELS, pair, tokens
from references.helm import MiCE, RiemannianAdam, official_state

from hypvision.helm import Helm, preset
from hypvision.helm.checkpoint import helm_from_official, helm_to_official
from hypvision.helm.layers import RowLinear, RowNorm
from hypvision.optim import RiemannianAdamW, param_groups

VARIANTS = MODELS | {
    "D, space embedding": ("helm_d_tiny", dict(project_emb=True)),
    "latent, dense": ("helm_mice_tiny", dict(n_routed_experts=0)),
    "MiCE, full attention": ("helm_mice_tiny", dict(attention="full")),
    "LLaMA-like": ("helm_d_tiny", dict(geometry="euclidean")),
    "DeepSeek-like": ("helm_mice_tiny", dict(geometry="euclidean", q_lora_rank=24)),
}


def free_slots(model):
    """Of each parameter the entries that stand for no coordinate, where a row has its padding or
    its time."""
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            free = torch.ones(parameter.shape, dtype=torch.bool)
            if isinstance(module, RowLinear):
                rows = torch.tensor(module.live_out)
                free[
                    (rows[:, None], torch.tensor(module.live_in)) if parameter.dim() == 2 else rows
                ] = False
            elif isinstance(module, RowNorm):
                free[: module.layout.size] = False
            else:
                free[:] = False
            yield f"{prefix}.{name}", parameter, free


NAMED = [(name, True) for name in VARIANTS] + [
    (name, False) for name in ("D", "MiCE", "DeepSeek-like")
]


@each("name, fused", NAMED)
def test_slots_of_padding_and_time_never_learn(name, fused):
    kind, options = VARIANTS[name]
    torch.manual_seed(0)
    model = Helm(preset(kind, **dict(n_layers=2, vocab_size=40, fused=fused) | options))
    optimizer = RiemannianAdamW(param_groups(model, lr=1e-2, weight_decay=0.1))
    for step in range(4):
        optimizer.zero_grad()
        ids = tokens(2, 8, 40, seed=step)
        model(ids, labels=ids).loss.backward()
        for where, parameter, free in free_slots(model):
            assert parameter.grad is None or not parameter.grad[free].any(), (where, step)
        optimizer.step()
    for where, parameter, free in free_slots(model):
        assert not parameter[free].any(), where
    assert sum(int((~free).sum()) for _, _, free in free_slots(model)) == model.num_parameters()
    if model.config.lorentz:  # the published weights are all that a model is
        state = model.state_dict()
        again = helm_from_official(helm_to_official(state, model.config), model.config)
        assert again.keys() == state.keys() and all(
            torch.equal(again[key], state[key]) for key in state
        )


def published_groups(model):
    """Weights that the published scripts decay, and those that they do not; the points apart."""
    named = [
        (n, p)
        for n, p in model.named_parameters()
        if p.requires_grad and not n.endswith("embed.embedding")
    ]
    still = [
        n.endswith((".bias", ".scale")) or "norm" in n and n.endswith(".weight") for n, _ in named
    ]
    groups = [
        dict(params=[p for (_, p), s in zip(named, still) if s is kept]) for kept in (False, True)
    ]
    return [groups[0] | dict(weight_decay=0.01), groups[1] | dict(weight_decay=0.0)]


def published_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class PublishedTraining:
    """Steps of the published script on its model: AdamW, its Riemannian Adam, gradients cut at 1,
    biases by loads."""

    def __init__(self, model, lr: float):
        self.model, self.config = model, model.config
        self.adam = torch.optim.AdamW(published_groups(model), lr=lr)
        self.table = model.embed.embedding
        self.points = RiemannianAdam(self.table.detach(), lr)

    def step(self, ids) -> list[float]:
        """Cross entropy, loss on uneven loads, norm of the gradient, and the cross entropy behind
        the step."""
        self.adam.zero_grad()
        self.table.grad = None
        logits, counts, scores = self.model(ids)
        cross_entropy = published_loss(logits, ids)
        e, k = self.config.n_routed_experts, self.config.n_activated_experts
        shares = [(score / score.sum(-1, keepdim=True)).mean(0) for score in scores]
        balance = sum(
            (count * e / (k * ids.numel()) * share).sum() for count, share in zip(counts, shares)
        )
        (cross_entropy + 1e-4 * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.points.step(self.table.grad)
        with torch.no_grad():
            self.table.copy_(self.points.x)
            for layer, count in zip(
                [m for m in self.model.modules() if isinstance(m, MiCE)], counts
            ):
                share = count / count.sum()
                layer.gate.bias += 0.005 * (share.mean() - share)
            after = published_loss(self.model(ids)[0], ids)
        return [cross_entropy.item(), balance.item(), norm.item(), after.item()]


class Training:
    """The same steps of ours."""

    def __init__(self, model, lr: float):
        from hypvision.tasks.language import released_decay

        self.model = model
        named = [(n, p) for n, p in model.named_parameters() if n != "embed.weight"]
        groups = [
            dict(
                params=[p for n, p in named if released_decay(n, True) is decayed],
                weight_decay=0.01 * decayed,
            )
            for decayed in (True, False)
        ]
        self.optimizer = RiemannianAdamW(
            [*groups, dict(params=[model.embed.weight], weight_decay=0.0)], lr=lr
        )

    def step(self, ids) -> list[float]:
        self.optimizer.zero_grad()
        found = self.model(ids, labels=ids)
        found.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        for block, way in zip(self.model.layers[1:], found.routing):
            block.ffn.gate.follow(way.counts)
        balance, after = (
            sum(way.balance for way in found.routing),
            self.model(ids, labels=ids).cross_entropy,
        )
        return [found.cross_entropy.item(), balance.item(), norm.item(), after.item()]


def test_three_steps_are_the_published():
    """All twelve figures of them, and the weights that they lead to; in float64, as Adam's first
    steps go by the sign of a gradient, even of one that is round-off."""
    pytest.importorskip("mmengine")
    official, ours = pair("helm_mice_tiny")
    published, training = PublishedTraining(official.double(), 4e-3), Training(ours.double(), 4e-3)
    idle = 0
    for step in range(3):
        ids = tokens(2, 12, seed=step)
        torch.testing.assert_close(training.step(ids), published.step(ids), rtol=1e-7, atol=1e-7)
        idle += sum(
            expert.down.weight.grad is None
            for block in ours.layers[1:]
            for expert in block.ffn.experts
        )
    assert idle  # else nothing is said of experts without tokens
    weights = helm_from_official(official_state(official), ours.config)
    for name, value in ours.state_dict().items():
        if name.endswith("attn.bias"):  # which the softmax does not see: its gradient is round-off
            continue
        assert (value - weights[name]).norm() < 1e-5 * (weights[name].norm() + 0.1), name
