"""HELM as a model of the transformers library: saving, loading, ``generate()``, Trainer, adapters.

Importing this module registers ``HelmConfig`` and ``HelmForCausalLM`` with the Auto classes:

    >>> import hypvision.helm.huggingface
    >>> model = AutoModelForCausalLM.from_pretrained("folder")
    >>> model.generate(**tokenizer("The sea", return_tensors="pt"), max_new_tokens=40)

The cache is one of transformers' own. It holds the space parts of keys and values, or for latent
attention the latent vectors, the rotated keys and the times of keys and values of each head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import safe_open
from torch import Tensor

from hypvision.checkpoints.match import load_into, nonfinite_names
from hypvision.checkpoints.pickles import bounded_functions
from hypvision.checkpoints.read import check_bounds, network_weights, read, read_file
from hypvision.checkpoints.types import Weights
from hypvision.geometry import named_manifold_parameters
from hypvision.geometry.parameters import mark
from hypvision.io import HypvisionError, Plain, StrPath, Values, require
from hypvision.io.records import ShardTable, read_record

from .cache import Cache
from .checkpoint import (
    decoder_weights,
    helm_architecture,
    helm_from_official,
    is_official_helm,
    official_architecture,
)
from .config import ALIASES, Architecture, architecture, preset
from .model import Helm, Output

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

# The name of the cache among the arguments and outputs of transformers; before version 5.24 it is
# "past_key_values".
_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
_REAL = ("F64", "F32", "F16", "BF16")  # the types of real numbers in safetensors
_FIELDS = {field.name: field.default for field in dataclasses.fields(Architecture)}


class HelmConfig(PretrainedConfig):
    """Configuration of a HELM model in transformers: the options of
    :class:`hypvision.helm.Architecture`, and those that every configuration of transformers has."""

    model_type = "helm"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
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
        unset = dict(
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None
        )
        self.architecture()
        super().__init__(**unset | options)

    def architecture(self) -> Architecture:
        """Return the sizes and options of the network."""
        return architecture({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def of(cls, config: Architecture | str, **options: Any) -> HelmConfig:
        """Return the configuration of an architecture, or of a preset by its name."""
        config = preset(config) if isinstance(config, str) else config
        return cls(**config.to_dict(), **options)


def _one_cache(cache: Cache | None, past: Cache | None, keep: bool) -> Cache | None:
    """Return the cache that was given by one of its two names; a new one if none was given and
    ``keep`` is true."""
    if cache is not None and past is not None and cache is not past:
        raise HypvisionError("cache and past_key_values are two names of one argument. Give one.")
    given = past if cache is None else cache
    return DynamicCache() if given is None and keep else given


def _check_columns(columns: Tensor | None, cache: Cache | None, length: int) -> None:
    start = 0 if cache is None or columns is None else int(cache.get_seq_length())
    if columns is not None and columns.tolist() != list(range(start, start + length)):
        raise HypvisionError(
            f"cache_position must number the tokens one by one from {start}, got "
            f"{columns.tolist()}."
        )


def _of_items(found: Output, count: Tensor | int | None) -> Tensor | None:
    """Return the loss as a sum over labels divided by ``count``; without a count, the mean over the
    labels."""
    if found.loss is None or found.labelled is None or count is None:
        return found.loss
    return found.loss * (found.labelled / count)


def _first(names: list[str]) -> str:
    return ", ".join([*names[:5], *["..."] * (len(names) > 5)])


def _check_file(path: Path) -> None:
    """Raise HypvisionError if a file of weights is not whole, or does not hold real numbers, to
    which transformers would convert any others."""
    check_bounds(path)
    with safe_open(path, "pt") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in tuple(file.keys())}
    wrong = [name for name, kind in kinds.items() if kind not in _REAL]
    if wrong:
        raise HypvisionError(
            f"The weights in '{path}' are not real numbers ({kinds[wrong[0]]}: {_first(wrong)}). "
            "Copy the whole folder again."
        )


def _check_weights(model: torch.nn.Module, report: Values, source: object) -> None:
    """Raise HypvisionError if a weight of a model was missing, is not finite, or if a weight was
    there that the model does not have."""
    own = model.state_dict()
    lost = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if lost:
        raise HypvisionError(
            f"The weights in '{source}' do not fit the model of its config.json: {len(lost)} of "
            f"{len(own)} are missing or of another shape ({_first(lost)}). Copy the whole folder "
            "again."
        )
    unknown = sorted(map(str, report["unexpected_keys"]))
    if unknown:
        raise HypvisionError(
            f"The weights in '{source}' have {len(unknown)} entries that the model of its "
            f"config.json does not know: {_first(unknown)}. Without them it would compute "
            "something else."
        )
    wrong = nonfinite_names({name: value for name, value in own.items() if not value.is_meta})
    if wrong:
        raise HypvisionError(
            f"The weights in '{source}' have NaN or infinite values in {len(wrong)} tensors "
            f"({_first(wrong)}): the files are damaged, or the training that gave them has "
            "diverged. Take other weights."
        )


class HelmForCausalLM(PreTrainedModel, GenerationMixin):
    """A HELM language model, or its Euclidean counterpart.

    With labels the loss is computed without a tensor of all logits; in evaluation mode the logits
    are returned too.
    """

    config_class = HelmConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # forward accepts num_items_in_batch
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def __init__(self, config: HelmConfig):
        super().__init__(config)
        self.model = Helm(config.architecture())
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        own = list(module.parameters(recurse=False))
        loaded = any(getattr(parameter, "_is_hf_initialized", False) for parameter in own)
        reset = getattr(module, "reset_parameters", None)
        if own and not loaded and callable(reset):
            reset()

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embed

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.model.head

    def resize_token_embeddings(self, *args: Any, **options: Any) -> NoReturn:
        """Raise HypvisionError, because new rows would have to be points, but transformers draws
        them from a normal distribution."""
        raise HypvisionError(
            "The vocabulary of a HELM model is fixed when it is built. Build one with the "
            "vocab_size of the tokenizer."
        )

    def generate(self, inputs: Tensor | None = None, *args: Any, **options: Any) -> Any:
        """Return generated tokens, as every model of transformers does; raise HypvisionError if
        there are no prompts."""
        prompts = options.get("input_ids", inputs)
        if prompts is not None and not prompts.numel():
            raise HypvisionError(
                "generate() needs at least one prompt of at least one token, got "
                f"{tuple(prompts.shape)}. Let prompts begin with a token of your own (such as the "
                "end of a text), and leave out empty batches."
            )
        # The type checker is silenced, because transformers types ``self`` with a protocol that
        # its own models do not satisfy.
        return super().generate(inputs, *args, **options)  # type: ignore[misc]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        sequence_id: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        cache_position: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Run the model; see :meth:`hypvision.helm.Helm.forward`. Unknown arguments are a
        TypeError.

        Args:
            input_ids, attention_mask, position_ids, sequence_id, labels, logits_to_keep: see
                :meth:`hypvision.helm.Helm.forward`.
            num_items_in_batch: number of labels in all the batches whose gradients one step of an
                optimiser sums, as the Trainer counts them. The loss is then a sum divided by this
                number instead of the mean of this batch.
            cache, past_key_values: cache of earlier tokens; transformers calls it ``cache`` since
                5.24.
            cache_position: columns of the tokens, which must follow those in the cache.
            use_cache: whether a cache is returned; by default in evaluation without labels, if the
                configuration says so.
            inputs_embeds, output_attentions: not supported; they raise HypvisionError.
            output_hidden_states: whether the points that the head reads are returned.
            return_dict: False for a tuple instead of an output object.
        """
        if input_ids is None or inputs_embeds is not None:
            raise HypvisionError(
                "HELM models do not take inputs_embeds, which would have to be points of the "
                "hyperboloid. Give input_ids."
            )
        if self._asked("output_attentions", output_attentions):
            raise HypvisionError(
                "HELM's attention keeps no weights: output_attentions must be False."
            )
        if use_cache is None:
            use_cache = self._remembers(labels)
        cache = _one_cache(cache, past_key_values, use_cache)
        _check_columns(cache_position, cache, input_ids.shape[1])
        found = self.model(
            input_ids, labels, attention_mask, sequence_id, cache, logits_to_keep, position_ids
        )
        logits = found.logits
        loss = _of_items(found, num_items_in_batch)
        if logits is None and not self.training:
            with torch.no_grad():
                logits = self.model.logits(found.hidden, logits_to_keep).float()
        hidden = self._asked("output_hidden_states", output_hidden_states)
        remembered: Plain = {_CACHE: cache}
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=(found.hidden,) if hidden else None,
            **remembered,
        )
        return output if self._asked("return_dict", return_dict) else output.to_tuple()

    def _remembers(self, labels: Tensor | None) -> bool:
        return self.config.use_cache and labels is None and not self.training

    def _asked(self, option: str, given: bool | None) -> bool:
        """Return the option's value if it was given, else the configuration's."""
        return bool(getattr(self.config, option) if given is None else given)

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """Return a saved model, as every model of transformers does, but raise HypvisionError
        unless every weight is there and finite. transformers replaces parameters by its own, so
        points are marked as such again for the optimisers of :mod:`hypvision.optim`."""
        source = options.get("pretrained_model_name_or_path", args[0] if args else None)
        folder = Path(str(source))
        for table in folder.glob("*.index.json"):
            read_record(ShardTable, table, "Copy it again.", extra=True)
        for weights in folder.glob("*.safetensors"):
            _check_file(weights)
        for weights in folder.glob("pytorch_model*.bin"):
            read_file(weights, mapped=True)  # transformers would read it by torch.load
        reported = options.pop("output_loading_info", False)
        with bounded_functions():
            loaded: Any = super().from_pretrained(*args, output_loading_info=True, **options)
        model, report = loaded
        _check_weights(model, report, source)
        for _, parameter, manifold in named_manifold_parameters(model):
            # Sharded parameters and those offloaded to disk are skipped.
            if type(parameter) is torch.nn.Parameter and not parameter.is_meta:
                mark(parameter, manifold)
        return loaded if reported else model

    @classmethod
    def from_official(cls, source: StrPath | Weights, **options: Any) -> HelmForCausalLM:
        """Return a model with the weights of an official checkpoint, of one that
        ``hypvision zoo convert`` wrote, or of a training. ``source`` is a file, another name of a
        checkpoint (:func:`hypvision.checkpoints.sources.fetch`), or a state dict; ``options`` are
        settings that cannot be read off the weights, such as ``max_seq_len`` or
        ``n_activated_experts``."""
        weights = decoder_weights(
            source if isinstance(source, Mapping) else network_weights(read(source), None)
        )
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
