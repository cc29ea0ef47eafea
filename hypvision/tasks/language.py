"""Language models under mmengine's Runner: their losses, the loads of experts, parameter groups and
the metric bits per byte.

>>> model = dict(type="LanguageModel", preset="helm_mice_tiny", n_layers=4)
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.runner import Runner
from torch import Tensor, nn

from hypvision.checkpoints.match import placed
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.data.language import PackedText
from hypvision.engine.extensions import PREDICTORS
from hypvision.engine.hooks import network_of
from hypvision.engine.metrics import Metric
from hypvision.engine.param_groups import ParamGroups
from hypvision.engine.sharded import whole_tensor
from hypvision.helm import Helm
from hypvision.helm.checkpoint import helm_from_official, is_official_helm
from hypvision.helm.config import preset as _architecture
from hypvision.helm.experts import MixtureOfCurvatures
from hypvision.helm.head import token_losses
from hypvision.helm.model import check_tokens, shifted
from hypvision.io import Metrics, Plain, one_of
from hypvision.optim import param_groups

DATASETS.register_module(module=PackedText, force=True)


class _Tokens(BaseDataPreprocessor):
    """mmengine's preprocessor, which moves a batch to the device of the model, with a check of the
    tokens before."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size

    def forward(self, data: dict, training: bool = False) -> dict:
        check_tokens(data["input_ids"], self.vocab_size)
        return super().forward(data, training)


@MODELS.register_module()
class LanguageModel(BaseModel):
    """A decoder that learns to predict the next token: a preset of :data:`hypvision.helm.PRESETS`,
    with its options changed by ``options``.

    Args:
        freeze_embedding: do not train the table of embeddings, as the published script of HELM-D
            does by an oversight.
        checkpointing: compute the blocks again in the backward pass, which saves memory.
    """

    def __init__(
        self,
        preset: str = "helm_d_tiny",
        freeze_embedding: bool = False,
        checkpointing: bool = False,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
        **options: Any,
    ):
        config = _architecture(preset, **options)
        tokens = _Tokens(config.vocab_size) if data_preprocessor is None else data_preprocessor
        super().__init__(data_preprocessor=tokens, init_cfg=init_cfg)
        self.decoder = Helm(config)
        self.decoder.embed.requires_grad_(not freeze_embedding)
        self.decoder.gradient_checkpointing = checkpointing
        # Number of tokens of each expert, layer by layer, since the last step of the optimiser.
        self.accumulated: list[Tensor] = []

    def checkpoint_filter(self, weights: Weights) -> StateDict:
        """Return weights under this model's names; ``weights`` may also be those of a decoder
        alone, including checkpoints of the published code."""
        if is_official_helm(weights):
            weights = helm_from_official(weights, self.decoder.config)
        return placed(self, "decoder", weights)

    def blocks(self) -> nn.ModuleList:
        """Return the modules whose weights a :class:`~hypvision.engine.sharded.ShardedRunner`
        gathers one module at a time."""
        return self.decoder.layers

    def forward(self, input_ids: Tensor, sequence_id: Tensor, mode: str = "tensor") -> Any:
        """Compute what mmengine's ``mode`` asks for, from tokens and numbers of documents, both
        ``(B, L)``: ``"tensor"``: the logits; ``"loss"``: the cross-entropy, and with experts the
        loss for uneven loads; ``"predict"``: for each row the sum of its losses in nats and the
        number of predicted tokens."""
        one_of(("tensor", "loss", "predict"), mode=mode)
        if mode == "tensor":
            return self.decoder(input_ids, sequence_id=sequence_id).logits
        if mode == "predict":
            hidden = self.decoder(input_ids, sequence_id=sequence_id, logits_to_keep=1).hidden
            target = shifted(input_ids, None, sequence_id)
            found = []
            for row, wanted in zip(hidden, target):
                count = int((wanted != -100).sum())
                mean = (
                    token_losses(self.decoder.head, row[None], wanted[None]).item()
                    if count
                    else 0.0
                )
                found.append(dict(loss=mean * count, count=count))
            return found
        found = self.decoder(input_ids, labels=input_ids, sequence_id=sequence_id)
        losses = dict(loss_tokens=found.cross_entropy)
        if found.routing:
            losses["loss_balance"] = found.loss - found.cross_entropy
            counts = [way.counts.detach() for way in found.routing]
            self.accumulated = (
                [a + b for a, b in zip(self.accumulated, counts)] if self.accumulated else counts
            )
        return losses


@HOOKS.register_module()
class ExpertLoadHook(Hook):
    """Updates the router from the loads of the experts in each optimiser step, counted over all
    tokens of the step and all processes.

    The router's biases follow the loads. The gradient of an expert without tokens is set to None,
    so that momentum and weight decay leave it unchanged, as in the published training. The log has
    the largest share of an expert in each layer (at best 1 / number of experts), and the experts'
    curvatures.
    """

    # The hook runs after the one that looks for parameters without gradient and before the loggers.
    priority = 55

    def __init__(self) -> None:
        self._loads: Tensor | None = None

    def before_train(self, runner: Runner) -> None:
        model = cast(LanguageModel, network_of(runner))
        runner.optim_wrapper.optimizer.register_step_pre_hook(lambda *_: self._before_step(model))

    def _before_step(self, model: LanguageModel) -> None:
        if not model.accumulated:
            return
        self._loads = torch.stack(model.accumulated).float()
        model.accumulated = []
        all_reduce(self._loads)
        for layer, load in zip(_mixtures(model), self._loads.tolist()):
            for expert, count in zip(layer.experts, load):
                if not count:
                    expert.zero_grad(set_to_none=True)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Plain | None = None,
    ) -> None:
        if self._loads is None:
            return
        numbers = {}
        for i, (layer, load) in enumerate(zip(_mixtures(network_of(runner)), self._loads)):
            layer.gate.follow(load)
            numbers[f"expert_share/{i}"] = load.max() / load.sum()
            for j, expert in enumerate(layer.experts):
                if hasattr(expert, "c"):
                    numbers[f"expert_c/{i}.{j}"] = (
                        whole_tensor(expert.c).detach().to(load).reshape(())
                    )
        self._loads = None
        # Stack the numbers, so that they leave the GPU in one transfer.
        for name, number in zip(numbers, torch.stack(list(numbers.values())).tolist()):
            runner.message_hub.update_scalar(f"train/{name}", number)


def _mixtures(model: nn.Module) -> list[MixtureOfCurvatures]:
    return [module for module in model.modules() if isinstance(module, MixtureOfCurvatures)]


def released_decay(name: str, mixed: bool) -> bool:
    """Return whether the published scripts apply weight decay to the parameter that has this name
    in hypvision; ``mixed`` is True for HELM-MiCE, False for HELM-D.

    The scripts exclude names that end in ``.bias`` or ``.scale`` and weights of modules with "norm"
    in their names. So the weights of residual connections, the curvatures of experts, HELM-MiCE's
    temperatures and HELM-D's norms (``ln_1``) do decay.
    """
    last = name.rpartition(".")[2]
    if last == "bias":
        return False
    if last == "scale":  # the scale of HELM-D's attention or of the sum with shared experts
        return mixed and ".attn." in name
    return "norm" not in name if mixed else not name.endswith("kv_norm.weight")


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LanguageParamGroups(ParamGroups):
    """Three groups: weights with decay, weights without decay, and points of manifolds, which never
    decay.

    Options: ``released`` (False): decay the same parameters as the published scripts, see
    :func:`released_decay`; otherwise only matrices decay. ``points_lr_scale`` (1.0): the learning
    rate of the points as a multiple of the optimiser's.
    """

    defaults = dict(released=False, points_lr_scale=1.0)

    def groups(self, model: nn.Module) -> list[Plain]:
        rate = self.optimizer_cfg["lr"]
        decay = self.optimizer_cfg.get("weight_decay", 0.0)
        options = dict(manifold_lr_scale=self.options["points_lr_scale"], manifold_weight_decay=0.0)
        if not self.options["released"]:
            return param_groups(model, rate, decay, **options)
        found = {group["name"]: group for group in param_groups(model, rate, decay, **options)}
        points = {id(p) for p in found.get("points", {"params": []})["params"]}
        mixed = cast(LanguageModel, model).decoder.config.mixed
        groups: list[Plain] = [
            dict(name="weights", params=[], lr=rate, weight_decay=decay),
            dict(name="no_weight_decay", params=[], lr=rate, weight_decay=0.0),
        ]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in points:
                groups[not released_decay(name, mixed)]["params"].append(parameter)
        return [
            group for group in [*groups, *([found["points"]] if points else [])] if group["params"]
        ]


@METRICS.register_module()
class BitsPerByte(Metric):
    """The cross-entropy of a token in nats, its perplexity, and the bits per byte of the text,
    which are comparable between tokenizers.

    All are NaN without tokens to predict.
    """

    def process(self, data_batch: Any, data_samples: list[Plain]) -> None:
        if self.check([sample["loss"] for sample in data_samples], "The loss", data_samples):
            self.results += [(sample["loss"], sample["count"]) for sample in data_samples]

    def compute_metrics(self, results: list[tuple[float, int]]) -> Metrics:
        tokens = sum(count for _, count in results)
        loss = sum(total for total, _ in results) / tokens if tokens else math.nan
        ratio = (self.dataset_meta or {}).get("tokens_per_byte", 1.0)
        # The key is not "loss", which mmengine would average over all validations so far.
        return dict(
            cross_entropy=loss,
            perplexity=math.exp(min(loss, 50.0)),
            bits_per_byte=loss * ratio / math.log(2),
        )


PREDICTORS["LanguageModel"] = (
    "A language model continues texts: use hypvision lm save, then hypvision lm generate."
)
