"""Few-shot recognition with a frozen CLIP: what a method makes of images and class names.

A host takes images and gives unit features of images and classes (:class:`HostOutput`); logits are their scaled
cosines. What it learns is in :attr:`Host.learner`, the frozen CLIP beside it. A new list of classes is one call,
:meth:`Host.set_classes`: nothing that was learned depends on it.

>>> host = build_host(create_clip("ViT-B-16", "openai"), "maple")
>>> host.set_classes(["cat", "dog"])
>>> host(images).logits()
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import network_weights, read
from hypvision.checks import at_least
from hypvision.clip.adapters import ADAPTERS
from hypvision.clip.classes import warn_of_equal_texts
from hypvision.clip.memo import Memo
from hypvision.clip.models import CLIPBundle
from hypvision.clip.prompting.learners import CoCoOpLearner, MaPLeLearner, PromptLearner
from hypvision.clip.prompting.official import learned_names
from hypvision.clip.prompting.templates import SELECTED
from hypvision.clip.towers import PromptTokens, embedding_size, encode_image, encode_text, fixed_size
from hypvision.errors import HypvisionError, did_you_mean
from hypvision.geometry.numerics import exact

_CHUNK = 256  # texts that are encoded at a time where no gradient is wanted


@dataclass
class HostOutput:
    """What a host makes of a batch.

    Attributes:
        image: (B, d) unit image features, float32.
        text: (C, d) unit class features, or (B, C, d) where each image has its own.
        scale: of the cosines, ``1 / tau``.
        losses: what the host learns by beside the classification loss, weighted.
        extra: (B, C) logits that are added to the cosines (Tip-Adapter), or None.
        teacher: (B, C) logits of a teacher, which stand for labels that nobody has (PromptKD), or None.
        direct: (B, C) logits of a classifier without class features (linear probe), or None.
        distillation, temperature: weight of the loss against ``teacher``, and of the softmax in it.
        consistency: the losses of ``losses`` with other unit class features in place of the host's (PromptSRC), or
            None.
        raw_image, raw_text: ``image`` and ``text`` before they were normalised.
    """

    image: Tensor
    text: Tensor | None
    scale: Tensor
    losses: dict[str, Tensor] = field(default_factory=dict)
    extra: Tensor | None = None
    teacher: Tensor | None = None
    direct: Tensor | None = None
    distillation: float = 1.0
    temperature: float = 1.0
    consistency: Callable[[Tensor], dict[str, Tensor]] | None = None
    raw_image: Tensor | None = None
    raw_text: Tensor | None = None

    def logits(self, text: Tensor | None = None) -> Tensor:
        """(B, C), with these class features (they need not be of unit length) or the host's own; outside autocast."""
        if text is None:
            if self.direct is not None:
                return self.direct
            text = self.text
        with exact(self.image.device):
            text = F.normalize(text, dim=-1)
            cosines = self.image @ text.T if text.dim() == 2 else (text @ self.image[..., None])[..., 0]
            logits = self.scale * cosines
            return logits if self.extra is None else logits + self.extra

    def fit(self, logits: Tensor, labels: Tensor | None) -> Tensor:
        """The classification loss of logits: cross-entropy with the labels, or the divergence from the teacher.

        The divergence is summed and divided by the number of elements, as PromptKD's code has it, times its weight.
        """
        if self.teacher is None:
            return F.cross_entropy(logits, labels)
        t = self.temperature
        return self.distillation * t**2 * mean_divergence(logits / t, self.teacher / t)


def mean_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)), summed and divided by the number of elements (B C)."""
    total = F.kl_div(logits.log_softmax(-1), target.log_softmax(-1), reduction="sum", log_target=True)
    return total / logits.numel()


class Host(nn.Module):
    """Base of the methods.

    Args:
        clip: the model with its tokenizer; it is frozen.
        text_chunk: encode at most so many class texts at a time when training, and compute their activations again in
            backward: memory then does not grow with the number of classes. None: all at once.

    Attributes:
        learner: what is learned.
        names: the classes.
    """

    feature_inputs = False
    """Whether features of the frozen image tower, (B, d), may be given in place of images."""
    reads_names = True
    """Whether classes are told by the texts of their names."""

    def __init__(self, clip: CLIPBundle, text_chunk: int | None = None):
        super().__init__()
        if text_chunk is not None:
            at_least(1, integer=True, text_chunk=text_chunk)
        self.clip, self.tokenizer, self.text_chunk = clip.model.requires_grad_(False), clip.tokenizer, text_chunk
        self.register_buffer("mean", torch.tensor(tuple(clip.mean))[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(tuple(clip.std))[:, None, None], persistent=False)
        self.learner: nn.Module = nn.Module()
        self.names: tuple[str, ...] = ()
        self.template, self.mean_templates = "a photo of a {}.", (*SELECTED, "a photo of a {}.")
        self._memo = Memo()
        self.register_state_dict_post_hook(_keep_learned)
        self.register_load_state_dict_pre_hook(_add_frozen)

    # Classes

    def set_classes(
        self, names: Sequence[str], template: str | None = None, templates: Sequence[str] | None = None
    ) -> None:
        """Change the classes.

        Args:
            names: in the order of the labels; ``_`` stands for a space.
            template: the sentence of the data set, for methods without a context of their own; default: as before.
            templates: those of the data set for methods that take the mean over several; default: the seven of
                :data:`.templates.SELECTED` and ``template``.

        Classes whose texts are the same for the tower are warned of.

        Raises:
            HypvisionError: no classes, or a template without ``{}``.
        """
        if not names:
            raise HypvisionError("The class list is empty. Give at least one class name.")
        template = template or self.template
        templates = (*SELECTED, template) if templates is None else tuple(templates)
        if wrong := [text for text in (template, *templates) if "{}" not in text]:
            raise HypvisionError(f"The template '{wrong[0]}' needs {{}} for the class name.")
        names = tuple(name.replace("_", " ") for name in names)
        if (names, template, templates) != (self.names, self.template, self.mean_templates):
            self.names, self.template, self.mean_templates = names, template, templates
            self._memo.clear()
            if self.reads_names:
                warn_of_equal_texts(names, self.tokens(self.sentences()))

    def sentences(self) -> list[str]:
        """What the text tower reads for each class."""
        return [self.template.format(name) for name in self.names]

    def tokens(self, sentences: list[str]) -> Tensor:
        """Token numbers (T, L) on the device of the model."""
        return self.tokenizer(sentences).to(self.scale.device)

    def texts(self) -> Tensor:
        """Unit class features (C, d), float32; computed once while neither classes nor what was learned change.

        Raises:
            HypvisionError: there are no classes.
        """
        return self.class_features()[0]

    def class_features(self) -> tuple[Tensor, Tensor]:
        """:meth:`texts`, and the same before they were normalised."""
        if not self.names:
            raise HypvisionError("There are no classes. Call set_classes(['cat', 'dog', ...]) first.")

        def make() -> tuple[Tensor, Tensor]:
            raw = self.encode_classes()
            return F.normalize(raw, dim=-1), raw

        learned = self.text_parameters()
        if torch.is_grad_enabled() and any(p.requires_grad for p in learned):
            return make()
        return self._memo.get(learned, make)

    def text_parameters(self) -> list[Tensor]:
        """What is learned that class features depend on."""
        return []

    def encode_classes(self) -> Tensor:
        """Class features (C, d), anew and not normalised, float32."""
        return self._encode(self.tokens(self.sentences()))

    def _encode(self, tokens: Tensor, layers: Mapping[int, Tensor] | None = None) -> Tensor:
        return encode_sentences(self.clip, tokens, layers, self.text_chunk)

    # Images

    @property
    def scale(self) -> Tensor:
        """``1 / tau`` of the frozen CLIP."""
        return self.clip.logit_scale.exp().float()

    def frozen_features(self, images: Tensor) -> Tensor:
        """Features (B, d) of the frozen image tower, not normalised, float32; what are features already stay."""
        if images.dim() == 2:
            return images.float()
        with torch.no_grad():
            return encode_image(self.clip, self.normalised(images)).float()

    def normalised(self, images: Tensor) -> Tensor:
        """Pixels as this CLIP was trained on them.

        Raises:
            HypvisionError: images of another size than the tower has positions for.
        """
        if (size := fixed_size(self.clip)) is not None and tuple(images.shape[-2:]) != size:
            given, wanted = ("x".join(map(str, pair)) for pair in (images.shape[-2:], size))
            raise HypvisionError(
                f"The images have {given} pixels, and this CLIP takes {wanted}. Set the data's size={size[0]} "
                f"(hypvision fewshot: --size {size[0]})."
            )
        return (images.float() - self.mean) / self.std

    def features(self, images: Tensor) -> Tensor:
        """Image features (B, d), not normalised, float32."""
        return self.frozen_features(images)

    def images(self, images: Tensor) -> Tensor:
        """Unit image features (B, d), float32."""
        return F.normalize(self.features(images), dim=-1)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        """Features of a batch.

        Args:
            images: RGB (B, 3, H, W) from 0 to 255; features (B, d) where :attr:`feature_inputs` says so.
            labels: (B,), for hosts whose losses use them.
        """
        return self.output(self.features(images), self.class_features())

    def output(self, image: Tensor, classes: tuple[Tensor, Tensor], **others: Any) -> HostOutput:
        """Of image features that are not normalised, and what :meth:`class_features` gives."""
        text, raw = classes
        return HostOutput(F.normalize(image, dim=-1), text, self.scale, raw_image=image, raw_text=raw, **others)

    # Of any module

    def unsaid(self) -> dict[str, Tensor]:
        """What stays as it is where a file does not say it, by the names of the state dict."""
        return {}

    def train(self, mode: bool = True) -> Host:
        """As of any module; the frozen CLIP stays in evaluation mode."""
        super().train(mode)
        self.clip.eval()
        self._memo.clear()
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._memo.clear()
        return super()._apply(*args, **kwargs)


# Files: what was learned, and nothing else


def is_learned(name: str) -> bool:
    """Whether a tensor of a host's state is no part of the frozen models."""
    return name.startswith("learner.") or (
        name.startswith("clip.") and any(part in ADAPTERS for part in name.split("."))
    )


def _keep_learned(host: nn.Module, state_dict: dict[str, Tensor], prefix: str, _: Any) -> None:
    """After ``state_dict()``: the frozen models are not part of it."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        if not is_learned(name.removeprefix(prefix)):
            del state_dict[name]


def _add_frozen(host: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Before ``load_state_dict()``: what is not part of it stays as it is."""
    for name, module in host.named_modules():
        if name.partition(".")[0] in ("clip", "teacher"):
            for own, value in (*module._parameters.items(), *module._buffers.items()):
                full = f"{name}.{own}"
                if value is not None and own not in module._non_persistent_buffers_set and not is_learned(full):
                    state_dict.setdefault(prefix + full, value)


def load_learned(host: Host, source: str | Path) -> None:
    """Load what a host learned, from a checkpoint of a training or an official one, converted or not.

    Raises:
        HypvisionError: no such file, or one of another method or other sizes.
    """
    weights = learned_names(network_weights(read(source), re.compile(r"host\.(.+)")))
    weights = {**host.unsaid(), **{name.removeprefix("host."): value for name, value in weights.items()}}
    load_into(
        host, weights, source, f"the few-shot method ({type(host).__name__})",
        "Give the CLIP model and the options that it was trained with.",
    )  # fmt: skip


def encode_sentences(
    clip: nn.Module,
    tokens: Tensor,
    layers: Mapping[int, Tensor] | None = None,
    chunk: int | None = None,
    embeddings: Tensor | None = None,
) -> Tensor:
    """Text features (T, d), not normalised, float32.

    Args:
        clip: an open_clip model.
        tokens: (T, L) token numbers.
        layers: learned tokens that take the place of those behind the first; (n, width), or (T, n, width).
        chunk: with gradients, encode so many at a time and compute activations again in backward.
        embeddings: (T, L, width) in place of those of the tokens.
    """

    def encode(rows: Tensor, embedded: Tensor | None, *prompts_of_rows: Tensor) -> Tensor:
        prompts = PromptTokens(dict(zip(layers, prompts_of_rows)), overwrite=True) if layers else None
        return encode_text(clip, rows, prompts=prompts, embeddings=embedded).float()

    grad, values = torch.is_grad_enabled(), list((layers or {}).values())
    size = chunk if grad else chunk or _CHUNK
    if size is None or len(tokens) <= size:
        return encode(tokens, embeddings, *values)
    # Texts of similar length together: each part is cut as short as it can be.
    order = (tokens != 0).sum(-1).argsort(stable=True)
    found = []
    for rows in order.split(size):
        parts = [value[rows] if value.dim() == 3 else value for value in values]
        inputs = (tokens[rows], None if embeddings is None else embeddings[rows], *parts)
        found.append(checkpoint(encode, *inputs, use_reentrant=False) if grad else encode(*inputs))
    return torch.cat(found)[order.argsort()]


# The table ------------------------------------------------------------------------------------------------------------

HOSTS: dict[str, type[Host]] = {}
"""Methods by name, as configs and the command line call them."""


def register_host(name: str) -> Any:
    """Class decorator: make a host known by a name."""

    def enter(host: type[Host]) -> type[Host]:
        HOSTS[name] = host
        return host

    return enter


def build_host(clip: CLIPBundle, name: str, **options: Any) -> Host:
    """A host by its name.

    Args:
        clip: see :func:`hypvision.clip.models.create_clip`.
        name: a key of :data:`HOSTS`.
        options: arguments of the class.

    Raises:
        HypvisionError: no such method or option, or the model does not fit it.
    """
    if name not in HOSTS:
        raise HypvisionError(
            f"There is no few-shot method '{name}'.{did_you_mean(name, HOSTS)} There are: {', '.join(sorted(HOSTS))}."
        )
    for key, given in inspect.signature(HOSTS[name]).parameters.items():
        if key in options and options[key] != given.default:
            _check_option(name, key, str(given.annotation), options[key])
    try:
        return HOSTS[name](clip, **options)
    except TypeError as error:
        raise HypvisionError(f"The few-shot method '{name}' does not take these options: {error}.") from error


def _check_option(method: str, key: str, kind: str, value: Any) -> None:
    """``kind`` is the annotation of the argument."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    least = 0 if key in ("text", "vision") else 1  # tokens of one tower alone
    wanted, fits = {
        "int": (f"a whole number of at least {least}", number and isinstance(value, int) and value >= least),
        "float": ("a finite number", number),
        "bool": ("True or False", isinstance(value, bool)),
        "str": ("a text", isinstance(value, str)),
    }.get(kind.removesuffix(" | None"), ("", True))
    if not fits:
        raise HypvisionError(f"{key} of the few-shot method '{method}' must be {wanted}, got {value!r}.")


# Zero-shot and prompts ------------------------------------------------------------------------------------------------


@register_host("zeroshot")
class ZeroShot(Host):
    """CLIP as it is (Radford et al., ICML 2021).

    Args:
        clip: see :class:`Host`.
        ensemble: see :func:`mean_class_features`.
    """

    feature_inputs = True

    def __init__(self, clip: CLIPBundle, ensemble: bool = False):
        super().__init__(clip)
        self.ensemble = ensemble

    def encode_classes(self) -> Tensor:
        return mean_class_features(self) if self.ensemble else super().encode_classes()


@torch.no_grad()
def sentence_features(host: Host, templates: Sequence[str]) -> Tensor:
    """Text features (T, C, d) of the frozen tower, of each template and class, not normalised."""
    tokens = host.tokens([template.format(name) for template in templates for name in host.names])
    return encode_sentences(host.clip, tokens).unflatten(0, (len(templates), -1))


def mean_class_features(host: Host) -> Tensor:
    """Class features (C, d) over several sentences: the seven that CLIP's authors selected on ImageNet and, on other
    data, the data set's own. The direction is that of the mean of unit features, the length the mean of theirs."""
    sentences = sentence_features(host, host.mean_templates)
    lengths = sentences.norm(dim=-1).mean(0)
    return F.normalize(F.normalize(sentences, dim=-1).mean(0), dim=-1) * lengths[:, None]


class PromptedHost(Host):
    """A host whose learner is a :class:`.learners.PromptLearner`."""

    learner: PromptLearner

    def text_parameters(self) -> list[Tensor]:
        return [self.learner.ctx, *self.learner.deep_text] if self.learner.text_tokens else []

    def sentences(self) -> list[str]:
        if not self.learner.text_tokens:
            return super().sentences()
        return [f"{self.learner.prefix} {name}." for name in self.names]

    def encode_classes(self) -> Tensor:
        return self._encode(self.tokens(self.sentences()), self.learner.text())

    def features(self, images: Tensor) -> Tensor:
        layers = self.learner.vision()
        if not layers:
            return super().features(images)
        return encode_image(self.clip, self.normalised(images), prompts=PromptTokens(layers)).float()


@register_host("coop")
class CoOp(PromptedHost):
    """CoOp (Zhou et al., IJCV 2022): a learned context of the class name.

    Args:
        clip, text_chunk: see :class:`Host`.
        tokens: of the context.
        words: it starts from; empty: at random.
        position: of the class name: ``"end"``, ``"middle"`` or ``"front"`` of the context.
        per_class: a context for each class; then classes cannot change after training.
        classes: their number, for ``per_class``.
    """

    feature_inputs = True

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int = 16,
        words: str = "",
        position: str = "end",
        per_class: bool = False,
        classes: int = 0,
        text_chunk: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        if position not in ("end", "middle", "front"):
            raise HypvisionError(
                f"The class name stands at the 'end', in the 'middle' or in 'front', not '{position}'."
            )
        if per_class and classes < 1:
            raise HypvisionError("CoOp with a context for each class needs their number: classes=N.")
        self.position = position
        self.learner = PromptLearner(clip.model, clip.tokenizer, tokens, 0, 1, words=words)
        if per_class:
            start = self.learner.ctx.detach()
            if not words:
                start = torch.randn(classes, *start.shape) * start.std()
            self.learner.ctx = nn.Parameter(start.expand(classes, -1, -1).clone())

    def encode_classes(self) -> Tensor:
        ctx, tokens = self.learner.ctx, self.tokens(self.sentences())
        if ctx.dim() == 3 and len(ctx) != len(tokens):
            raise HypvisionError(
                f"This CoOp learned a context for each of {len(ctx)} classes, so it cannot tell {len(tokens)} others. "
                "Train it with per_class=False."
            )
        if self.position == "end":
            return self._encode(tokens, {0: ctx})
        text = getattr(self.clip, "text", self.clip)
        embedded = text.token_embedding(tokens)
        count = ctx.shape[-2]
        embedded = torch.cat(
            [embedded[:, :1], ctx.to(embedded).expand(len(tokens), -1, -1), embedded[:, 1 + count :]], 1
        )
        places = self._places(tokens.shape[1], count).to(tokens.device)
        embedded = embedded.gather(1, places[..., None].expand_as(embedded))
        return encode_sentences(self.clip, tokens, None, self.text_chunk, embedded)

    def _places(self, length: int, count: int) -> Tensor:
        """(C, L): which token of ``start, context, name, rest`` stands at each place."""
        ends = self.tokenizer(list(self.names)).argmax(-1).tolist()  # start, name, end: the name has one less
        before = count // 2 if self.position == "middle" else 0
        rows = []
        for end in ends:
            name, context = range(1 + count, count + end), range(1, 1 + count)
            rows.append([0, *context[:before], *name, *context[before:], *range(count + end, length)])
        return torch.tensor(rows)


@register_host("cocoop")
class CoCoOp(PromptedHost):
    """CoCoOp (Zhou et al., CVPR 2022): the context depends on the image, so the texts are encoded for each.

    Args:
        clip, text_chunk: see :class:`Host`.
        tokens: of the context.
        words: it starts from.
    """

    learner: CoCoOpLearner
    feature_inputs = True

    def __init__(self, clip: CLIPBundle, tokens: int = 4, words: str = "a photo of a", text_chunk: int | None = None):
        super().__init__(clip, text_chunk)
        self.learner = CoCoOpLearner(clip.model, clip.tokenizer, tokens, words)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        image = self.features(images)
        context = self.learner.context(F.normalize(image, dim=-1))  # (B, n, width)
        tokens = self.tokens(self.sentences())
        every = context[:, None].expand(-1, len(tokens), -1, -1).flatten(0, 1)
        text = self._encode(tokens.repeat(len(image), 1), {0: every}).unflatten(0, (len(image), -1))
        return self.output(image, (F.normalize(text, dim=-1), text))


@register_host("deep-vision")
class DeepVision(PromptedHost):
    """Deep prompts of the image tower alone (VPT; Jia et al., ECCV 2022).

    Args:
        clip: see :class:`Host`.
        tokens: of each layer.
        depth: layers with tokens of their own.
        emulate_half: see :class:`.learners.PromptLearner`.
    """

    def __init__(self, clip: CLIPBundle, tokens: int = 8, depth: int = 12, emulate_half: bool = False):
        super().__init__(clip)
        self.learner = PromptLearner(
            clip.model, clip.tokenizer, 0, tokens, vision_depth=depth, emulate_half=emulate_half
        )


@register_host("deep-language")
class DeepLanguage(PromptedHost):
    """Deep prompts of the text tower alone.

    Args:
        clip, text_chunk: see :class:`Host`.
        tokens: of each layer.
        depth: layers with tokens of their own.
        words, emulate_half: see :class:`.learners.PromptLearner`.
    """

    feature_inputs = True

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int = 4,
        depth: int = 12,
        words: str = "a photo of a",
        emulate_half: bool = False,
        text_chunk: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        self.learner = PromptLearner(
            clip.model, clip.tokenizer, tokens, 0, depth, words=words, emulate_half=emulate_half
        )


@register_host("ivlp")
class IVLP(PromptedHost):
    """Independent deep prompts of both towers, the base of PromptSRC.

    Args:
        clip, text_chunk: see :class:`Host`.
        text, vision: tokens of each layer.
        depth: layers with tokens of their own.
        words, emulate_half: see :class:`.learners.PromptLearner`.
        text_depth, vision_depth: the depth of one tower, where it is not ``depth``.
    """

    def __init__(
        self,
        clip: CLIPBundle,
        text: int = 4,
        vision: int = 4,
        depth: int = 9,
        words: str = "a photo of a",
        emulate_half: bool = False,
        text_chunk: int | None = None,
        text_depth: int | None = None,
        vision_depth: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        depths = [depth if own is None else own for own in (text_depth, vision_depth)]
        self.learner = PromptLearner(clip.model, clip.tokenizer, text, vision, *depths, words, emulate_half)


@register_host("maple")
class MaPLe(PromptedHost):
    """MaPLe (Khattak et al., CVPR 2023).

    Args:
        clip, text_chunk: see :class:`Host`.
        tokens, depth, words, emulate_half: see :class:`.learners.MaPLeLearner`.
    """

    learner: MaPLeLearner

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int = 2,
        depth: int = 9,
        words: str = "a photo of a",
        emulate_half: bool = False,
        text_chunk: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        self.learner = MaPLeLearner(clip.model, clip.tokenizer, tokens, depth, words, emulate_half)


def feature_size(host: Host) -> int:
    """Length d of a host's features."""
    return getattr(host, "dim", None) or embedding_size(host.clip)
