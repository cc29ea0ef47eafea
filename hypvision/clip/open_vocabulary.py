"""CLIP with an adapter and class names, the base of every open-vocabulary model.

:class:`OpenVocabularyCLIP` builds the model, chooses which parameters train, and embeds class
names; the embeddings are cached until names or weights change. Models for segmentation, detection
and panoptic segmentation add their heads to it. Further functions check class names for a CLIP:
which of them it cannot distinguish, and which never occurred in its training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hypvision.checkpoints.language import Language
from hypvision.checkpoints.match import placed
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.data.classes import checked_templates, load_classes, prompts
from hypvision.io import HypvisionError, Plain, StrPath, one_of, refuse

from . import adapters
from .hyperbolic_checkpoint import PIXELS, check_scalars
from .memo import Memo
from .models import CLIPBundle, clip_names, create_clip
from .spaces import Sphere, space_of
from .towers import embedding_size, encode_by_length, encode_text, find_towers

# Long lists have a few classes with equal texts (ADE-847: 18 of 847); a larger share than this must
# be a mistake of the user.
_EQUAL_SHARE = 0.1
_ADVICE = (
    "Small CLIPs ship: emoji-s16 knows what emoji show (cat face, fruit), emoji-t8 a few kinds of "
    "emoji on photos. For other words take one that was trained on photos, downloaded once: --clip "
    "ViT-B-16:openai."
)

TUNING = ("adapter", "attention", "bias", "text", "image", "full", "frozen")
"""Which parameters of CLIP train, in this order: its adapters; queries and values of the attention
(CAT-Seg); all biases (BitFit, Ben Zaken et al., ACL 2022); the text tower; the image tower; all;
none."""


def set_tuning(model: nn.Module, mode: str) -> None:
    """Choose which parameters of an open_clip model train; ``mode`` is one of :data:`TUNING`.

    ``"attention"`` trains the query and value rows of every packed projection. Gradients of the key
    rows are set to zero, and no optimiser changes these rows, not even by weight decay. A
    ``copy.deepcopy`` of the model needs another call, because PyTorch does not copy hooks. No mode
    trains the constants of a hyperbolic CLIP: the positions of its ViT, and a fixed curvature.
    """
    one_of(TUNING, tune=mode)
    for parameter in model.parameters():
        hook = parameter.__dict__.pop("frozen_keys", None)
        if hook is not None:
            hook.remove()  # the hook of an earlier call with mode="attention"
    model.requires_grad_(False)
    for parameter in _tuned(model, mode):
        parameter.requires_grad_(True)
        if mode == "attention":
            parameter.frozen_keys = parameter.register_hook(_without_keys)
    if mode == "attention":
        _hold_keys()
    for name in getattr(model, "constants", ()):
        model.get_parameter(name).requires_grad_(False)


# tuning -> whether a parameter of this name trains; the scales of logits are excluded elsewhere
_PARTS: dict[str, Callable[[str], bool]] = {
    "frozen": lambda name: False,
    "bias": lambda name: name.endswith("bias"),
    # The scale of image features belongs to the image tower, the curvature to both towers.
    "image": lambda name: name.startswith(("visual", "curv")),
    "text": lambda name: not name.startswith("visual"),
}


def _tuned(model: nn.Module, mode: str) -> list[Any]:
    """Return the parameters that a mode trains, including constants, which are frozen
    afterwards."""
    if mode == "full":
        return [*model.parameters()]
    if mode == "adapter":
        return [*adapters.trainable_parameters(model)]
    if mode == "attention":
        return [tower.frozen(block) for tower in find_towers(model) for block in tower.blocks]
    named = model.named_parameters()
    return [p for name, p in named if _PARTS[mode](name) and "logit_" not in name]


def _without_keys(grad: Tensor) -> Tensor:
    third = len(grad) // 3
    grad = grad.clone()
    grad[third : 2 * third] = 0
    return grad


@cache
def _hold_keys() -> None:
    """Make every optimiser restore frozen key rows after its step, because weight decay shrinks
    them even without a gradient."""
    kept: WeakKeyDictionary[Optimizer, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()

    def before(optimizer: Optimizer, *_: Any) -> None:
        kept[optimizer] = [
            (keys, keys.clone())
            for group in optimizer.param_groups
            for weight in group["params"]
            if hasattr(weight, "frozen_keys")
            for keys in weight.detach().chunk(3)[1:2]
        ]

    def after(optimizer: Optimizer, *_: Any) -> None:
        for keys, old in kept.pop(optimizer, ()):
            keys.copy_(old)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _take_normalisation(model: Any, _: Any) -> None:
    """Copy the normalisation of images from the loaded weights of a hyperbolic CLIP to the
    model."""
    for name, values in model.clip.normalisation().items():
        buffer = model.get_buffer(name)
        buffer.copy_(torch.tensor([255 * value for value in values]).reshape(buffer.shape))


def _bundle_of(clip: Any, **given: Any) -> CLIPBundle:
    """Return a bundle for a CLIP model in any form that :meth:`OpenVocabularyCLIP.build_clip`
    takes; values ``given`` beside it replace those of the bundle."""
    if clip is None or isinstance(clip, dict):
        clip = create_clip(**(clip or {}))
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(clip, CLIPBundle):
        return clip._replace(**given)
    if len(given) < 3:
        raise HypvisionError(
            "For a CLIP given as a module give its tokenizer, mean and std, too (see create_clip)."
        )
    return CLIPBundle(clip, **given)


def _check_dense(clip: nn.Module) -> None:
    """Raise an error for a CLIP model without embeddings of single patches."""
    trunk = getattr(getattr(clip, "visual", None), "trunk", None)
    refuse(
        (
            not isinstance(space_of(clip), Sphere),
            "Hyperbolic CLIP models (MERU, HyCoCLIP) do not segment: their training lifts the "
            "class token alone, and a patch has no distance to a text. Take a CLIP such as "
            "ViT-B-16.",
        ),
        (
            getattr(trunk, "cls_token", None) is not None,
            "CLIP models with a ViT of timm that has a class token (the baselines "
            "'clip-vit-...' of MERU and HyCoCLIP are such) do not segment: their patches give "
            "no embeddings. Take a CLIP such as ViT-B-16.",
        ),
    )


def _inject(clip: nn.Module, adapter: Plain | None, tune: str) -> None:
    """Add the adapter to the towers, if one trains; one that changes no tower is an error."""
    if adapter is None and tune != "adapter":
        return
    if tune != "adapter":
        raise HypvisionError(
            f"An adapter trains with tune='adapter', got '{tune}'. Leave out one of the two."
        )
    adapters.inject(clip, adapter or {})
    for name, method in adapters.ADAPTERS.items():
        if adapters.is_injected(clip, name) and not method.changes_towers:
            raise HypvisionError(
                f"The adapter '{name}' would have no effect here: it changes no tower of "
                "CLIP, but features of a few-shot method (FewShotCLIP). Take another, such "
                "as dict(type='hyperclip')."
            )


def _freeze_unused(clip: nn.Module, tune: str) -> None:
    """Freeze the parameters that dense embeddings and texts do not use."""
    for name in ("logit_scale", "logit_bias"):
        unused = getattr(clip, name, None)
        if unused is not None:
            unused.requires_grad_(False)
    if tune == "adapter":
        adapters.adapter_of(clip).freeze_unused()


class OpenVocabularyCLIP(nn.Module):
    """A mix-in for models: CLIP with an adapter and a list of class names, made by
    :meth:`build_clip`."""

    clip: nn.Module
    mean: Tensor
    std: Tensor
    words: tuple[str, ...]
    """The class words that the weights name (:mod:`hypvision.checkpoints.language`); () if they
    name none."""
    takes_templates = True
    """Whether a config of the model may contain ``templates``."""

    def build_clip(
        self,
        clip: Plain | CLIPBundle | nn.Module | None = None,
        adapter: Plain | None = None,
        tune: str = "adapter",
        classes: StrPath | Sequence[str] | None = None,
        templates: str | Sequence[str] | None = None,
        synonyms: str = "first",
        tokenizer: Any = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dense: bool = True,
    ) -> None:
        """Make the CLIP model, its adapter and its class names; constructors call this once.

        Args:
            clip: arguments of :func:`~hypvision.clip.models.create_clip`, a bundle that it returns,
                or an open_clip model (then also give ``tokenizer``, ``mean`` and ``std``).
            adapter: a config of :func:`~hypvision.clip.adapters.inject`, such as
                ``dict(type="hyperclip", block=64)``; one that changes no tower is an error.
            tune: which parameters of CLIP train, see :data:`TUNING`; an ``adapter`` needs
                ``"adapter"``.
            classes, synonyms: class names, and which of their synonyms are used, see
                :func:`~hypvision.data.classes.prompts`.
            templates: a name in :data:`~hypvision.data.classes.TEMPLATES`, a template, or several;
                None: the templates that the weights name, else ``"catseg"``.
            dense: whether the model uses only dense embeddings and texts; then other parameters are
                frozen, because a parameter without a gradient stops distributed training.
        """
        bundle = _bundle_of(clip, tokenizer=tokenizer, mean=mean, std=std)
        self.clip = bundle.model
        self.words: tuple[str, ...] = bundle.words
        self.tokenizer = bundle.tokenizer
        one_of(("first", "mean"), synonyms=synonyms)
        if dense:
            _check_dense(self.clip)
        _inject(self.clip, adapter, tune)
        set_tuning(self.clip, tune)
        if dense:
            _freeze_unused(self.clip, tune)
        self.templates = checked_templates(templates or bundle.templates or "catseg")
        self.synonyms = synonyms
        for name, values in dict(mean=bundle.mean, std=bundle.std).items():
            column = torch.tensor(tuple(values))[:, None, None]
            self.register_buffer(name, column, persistent=False)
        if hasattr(self.clip, "normalisation"):
            self.register_load_state_dict_post_hook(_take_normalisation)
        self.classes: tuple[str, ...] = ()
        self._text = Memo()
        if classes is not None:
            self.set_classes(classes)

    def checkpoint_filter(self, weights: Weights) -> StateDict:
        """Return weights by this model's names; weights of a CLIP model alone are accepted too."""
        found = placed(self, "clip", clip_names(weights))
        own = {name.removeprefix("clip."): value for name, value in found.items()}
        whole = "token_embedding.weight" in own
        check_scalars(own, getattr(self.clip, "family", "clip"), whole=whole)
        # Files of older trainings lack the normalisation.
        for name in PIXELS if whole and hasattr(self.clip, "normalisation") else ():
            found.setdefault(f"clip.{name}", self.clip.get_buffer(name))
        return found

    @property
    def language(self) -> Language:
        """The prompt templates and class words, which are saved in the model's checkpoints."""
        return Language(self.templates, self.classes or self.words)

    @property
    def embedding_size(self) -> int:
        return embedding_size(self.clip)

    @property
    def trains_clip(self) -> bool:
        """Whether any parameter of the CLIP model trains."""
        return any(parameter.requires_grad for parameter in self.clip.parameters())

    def set_classes(self, classes: StrPath | Sequence[str]) -> None:
        """Replace the class names by ``classes``, see
        :func:`~hypvision.data.classes.load_classes`."""
        self.classes = load_classes(classes)

    def encode_classes(self, classes: Sequence[str] | None = None) -> Tensor:
        """Return embeddings ``(T, P, E)`` of T class names (None: the model's own) in P templates:
        of unit length for CLIP's sphere, and before the lift for a hyperboloid. They are cached
        until names or weights change."""
        names = self.classes if classes is None else load_classes(classes)
        if not names:
            # Models of mmseg and mmdet have a list for training, too.
            setter = "set_test_classes" if hasattr(self, "set_test_classes") else "set_classes"
            raise HypvisionError(
                f"The class list is empty. Call {setter}(['cat', 'dog', ...]) first."
            )
        text = getattr(self.clip, "text", None)
        named = self.clip.named_parameters()
        parameters = [p for n, p in named if text is not None or not n.startswith("visual.")]
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            return self._encode_classes(names)

        def encode() -> Tensor:
            text = self._encode_classes(names)
            pairs = equal_pairs(text)
            if pairs:
                warnings.warn(
                    f"CLIP cannot tell {_first(names, pairs)}. They are the same word, or words "
                    f"that it was never taught. {_ADVICE}",
                    stacklevel=4,
                )
            return text

        return self._text.get(parameters, encode, (names, self.templates, self.synonyms))

    def _encode_classes(self, names: Sequence[str]) -> Tensor:
        sentences = []
        owner = []
        for number, name in enumerate(names):
            for synonym in prompts(name, self.templates, self.synonyms):
                sentences += synonym
                owner.append(number)
        tokens = self.tokenizer(sentences)
        grad = torch.is_grad_enabled()
        encode = encode_text if grad else partial(encode_by_length, budget=4096)
        text = encode(self.clip, tokens)
        space = space_of(self.clip)
        text = space.to_average(text).unflatten(0, (len(owner), len(self.templates)))
        if len(owner) == len(names):
            return text
        index = torch.tensor(owner, device=text.device)
        total = text.new_zeros(len(names), *text.shape[1:]).index_add(0, index, text)
        return space.to_average(total / index.bincount(minlength=len(names))[:, None, None])

    def class_points(self) -> Tensor:
        """Return the points of the class names over the templates, in the model's space
        (:meth:`hypvision.clip.spaces.Space.mean`)."""
        return space_of(self.clip).mean(self.encode_classes(), "text")

    def train(self, mode: bool = True) -> OpenVocabularyCLIP:
        """Set the mode and clear the cached embeddings, because weights may have been swapped."""
        if mode != self.training:
            self._text.clear()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._text.clear()  # Moving or casting the module makes the cached embeddings invalid.
        return super()._apply(*args, **kwargs)


def equal_pairs(text: Tensor) -> list[tuple[int, int]]:
    """Return pairs of classes whose embeddings ``(T, P, E)``, averaged over P, are equal up to
    rounding errors of float32: in each group of equal embeddings, the first class paired with each
    of the others."""
    mean = F.normalize(text.float().mean(1), dim=-1)
    pairs: list[tuple[int, int]] = []
    # The classes are compared in parts: a matrix of all pairs of 100,000 classes needs 40 GB.
    for start in range(0, len(mean), 1024):
        same = (mean[start : start + 1024] @ mean[: start + 1024].T > 1 - 1e-6).tril(start - 1)
        rows = same.any(1).nonzero().flatten()
        pairs += zip(same[rows].int().argmax(1).tolist(), (rows + start).tolist())
    return pairs


def _first(names: Sequence[str], pairs: Sequence[tuple[int, int]]) -> str:
    """Return words for the first pair of classes, and for how many more pairs there are."""
    more = f" (and {len(pairs) - 1} more such pairs)" if len(pairs) > 1 else ""
    return (
        f"'{names[pairs[0][0]]}' from '{names[pairs[0][1]]}'{more}: their texts have the same "
        "embedding"
    )


# Words that a CLIP model does not know


def check_words(model: OpenVocabularyCLIP, names: Sequence[str]) -> None:
    """Raise an error if a CLIP cannot distinguish the class names or knows none of them; warn of
    names that it does not know."""
    foreign = unknown_words(model.clip, model.tokenizer, names)
    listed = _listed(foreign)
    if len(foreign) == len(names):
        raise HypvisionError(
            f"This CLIP was never taught {'any of the words ' * (len(names) > 1)}{listed}. "
            f"{_ADVICE}"
        )
    with torch.no_grad(), warnings.catch_warnings():
        # encode_classes warns of equal texts, but the error below says more.
        warnings.simplefilter("ignore")
        pairs = equal_pairs(model.encode_classes(names))
    if len({number for pair in pairs for number in pair}) > _EQUAL_SHARE * len(names):
        why = (
            f"It was never taught {listed}. {_ADVICE}"
            if foreign
            else "Leave one out, or give it another name."
        )
        raise HypvisionError(f"This CLIP cannot distinguish {_first(names, pairs)}. {why}")
    if foreign:
        warnings.warn(
            f"This CLIP was never taught {listed}: what it finds there means little. {_ADVICE}",
            stacklevel=3,
        )


def warn_of_classes(clip: nn.Module, tokenizer: object, names: Sequence[str], data: str) -> None:
    """Warn of the classes of a data set ``data`` that a CLIP does not know
    (:func:`unknown_words`)."""
    foreign = unknown_words(clip, tokenizer, names)
    if foreign:
        warnings.warn(
            f"This CLIP was never taught {len(foreign)} of the {len(names)} classes of '{data}' "
            f"({_listed(foreign)}): methods that compare with their names guess there. {_ADVICE}",
            stacklevel=3,
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (", ..." if len(names) > 5 else "")


def lacks_words(clip: nn.Module) -> bool:
    """Return whether some words never occurred in the training of a CLIP, see
    :func:`unknown_words`."""
    return bool(_blank_tokens(clip).any())


def _blank_tokens(clip: nn.Module) -> Tensor:
    """Return for each token whether its row of the token embedding is zero; empty without a
    table."""
    words = getattr(getattr(clip, "text", None) or clip, "token_embedding", None)
    weight: Tensor | None = getattr(words, "weight", None)
    return torch.zeros(0, dtype=torch.bool) if weight is None else ~(weight.detach() != 0).any(1)


def unknown_words(clip: nn.Module, tokenizer: object, names: Sequence[str]) -> list[str]:
    """Return the names that contain a token which never occurred in the training of a CLIP: its row
    of the token embedding is zero.

    Only CLIPs that were trained from scratch with hypvision have such rows.
    """
    blank = _blank_tokens(clip)
    if not blank.any() or not callable(tokenizer):
        return []
    found = []
    for name in names:
        tokens = tokenizer([text for (text,) in prompts(name, ("{}",))]).to(blank.device)
        if (blank[tokens] & (tokens != 0)).any():  # token 0 is the padding of texts
            found.append(name)
    return found
