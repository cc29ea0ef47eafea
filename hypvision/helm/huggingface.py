"""HELM as a model of the transformers library: saving, loading, ``generate()``, Trainer, adapters.

Importing this module registers ``HelmConfig`` and ``HelmForCausalLM`` with the Auto classes:

    >>> import hypvision.helm.huggingface
    >>> model = AutoModelForCausalLM.from_pretrained("folder")
    >>> model.generate(**tokenizer("The sea", return_tensors="pt"), max_new_tokens=40)

The cache is the stock one. It holds space parts of keys and values, or for latent attention the latent vectors, the
rotated keys and two times a head.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import network_weights, read
from hypvision.errors import HypvisionError, require
from hypvision.geometry import named_manifold_parameters
from hypvision.geometry.parameters import mark

from .checkpoint import helm_architecture, helm_from_official, is_official_helm, official_architecture
from .config import ALIASES, Architecture, architecture, preset
from .model import Helm

require("transformers", "lm")
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: E402

__all__ = ["HelmConfig", "HelmForCausalLM"]

_DECODER = re.compile(r"(?:decoder|model)\.(.+)")  # as a training and save_pretrained() name it
_FIELDS = {field.name: field.default for field in dataclasses.fields(Architecture)}


class HelmConfig(PretrainedConfig):
    """The options of :class:`hypvision.helm.Architecture`, and those of every configuration of transformers.

    Raises:
        HypvisionError: sizes that do not go together.
    """

    model_type = "helm"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "inter_dim",
        "max_position_embeddings": "max_seq_len",
        **ALIASES,
    }

    def __init__(self, **options: Any):
        options = {self.attribute_map.get(name, name): value for name, value in options.items()}
        for name, default in _FIELDS.items():
            setattr(self, name, options.pop(name, default))
        self.use_cache = options.pop("use_cache", True)
        unset = dict(tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)
        self.architecture()
        super().__init__(**unset | options)

    def architecture(self) -> Architecture:
        """The sizes and options of the network."""
        return architecture({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def of(cls, config: Architecture | str, **options: Any) -> HelmConfig:
        """The configuration of an architecture, or of a preset by its name."""
        config = preset(config) if isinstance(config, str) else config
        return cls(**config.to_dict(), **options)


class HelmForCausalLM(PreTrainedModel, GenerationMixin):
    """A HELM language model, or its Euclidean counterpart.

    With labels the loss is computed without a tensor of all logits; in evaluation these are given all the same.
    """

    config_class = HelmConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def __init__(self, config: HelmConfig):
        super().__init__(config)
        self.model = Helm(config.architecture())
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        own = list(module.parameters(recurse=False))
        loaded = any(getattr(parameter, "_is_hf_initialized", False) for parameter in own)
        if own and not loaded and hasattr(module, "reset_parameters"):
            module.reset_parameters()

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embed

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.model.head

    def resize_token_embeddings(self, *args: Any, **options: Any) -> torch.nn.Module:
        """Refused: rows of points cannot be drawn from a normal distribution.

        Raises:
            HypvisionError: always.
        """
        raise HypvisionError(
            "The vocabulary of a HELM model is fixed when it is built. Build one with the vocab_size of the tokenizer."
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: object | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        sequence_id: Tensor | None = None,
        return_dict: bool | None = None,
        output_hidden_states: bool | None = None,
        **unused: Any,
    ) -> CausalLMOutputWithPast:
        """One pass; see :meth:`hypvision.helm.Helm.forward`. Positions are counted from the first column, padding or
        not: only their differences matter.

        Raises:
            HypvisionError: no tokens, tokens outside the vocabulary, a context too long, or a cache of another batch.
        """
        if input_ids is None:
            raise HypvisionError(
                "HELM models take input_ids; inputs_embeds would have to be points of the hyperboloid."
            )
        if labels is not None:
            past_key_values = None
        if labels is not None or self.training and past_key_values is None:  # generate() brings its own
            use_cache = False
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        found = self.model(input_ids, labels, attention_mask, sequence_id, past_key_values, logits_to_keep)
        logits = found.logits
        if logits is None and not self.training:
            with torch.no_grad():
                logits = self.model.logits(found.hidden, logits_to_keep).float()
        output = CausalLMOutputWithPast(
            loss=found.loss,
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=(found.hidden,) if output_hidden_states else None,
        )
        return output if return_dict is not False else output.to_tuple()

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """As every model of transformers. It replaces parameters by its own; points are marked as such again, which
        the optimisers of :mod:`hypvision.optim` go by."""
        found = super().from_pretrained(*args, **options)
        model = found[0] if isinstance(found, tuple) else found  # a report comes with it, if asked for
        for _, parameter, manifold in named_manifold_parameters(model):
            if type(parameter) is torch.nn.Parameter and not parameter.is_meta:  # neither sharded nor on a disk
                mark(parameter, manifold)
        return found

    @classmethod
    def from_official(cls, source: str | Path | Mapping[str, Tensor], **options: Any) -> HelmForCausalLM:
        """A model with the weights of an official checkpoint, of one that ``hypvision convert`` has written, or of a
        training.

        Args:
            source: a file, another name of a checkpoint (:func:`hypvision.checkpoints.sources.fetch`), or a state dict.
            options: what weights do not show, such as ``max_seq_len`` or ``n_activated_experts``.

        Raises:
            HypvisionError: an unreadable file, or weights of another model.
        """
        weights = source if isinstance(source, Mapping) else network_weights(read(source), _DECODER)
        if is_official_helm(weights):
            config = official_architecture(weights, **options)
            weights = helm_from_official(weights, config)
        else:
            config = architecture(helm_architecture(weights).to_dict() | options)
        model = cls(HelmConfig.of(config))
        name = "the state dict" if isinstance(source, Mapping) else source
        load_into(model.model, weights, name, "a HELM model", "Check that the file is complete.")
        return model.eval()


AutoConfig.register("helm", HelmConfig, exist_ok=True)
AutoModelForCausalLM.register(HelmConfig, HelmForCausalLM, exist_ok=True)
