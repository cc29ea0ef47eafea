"""Few-shot recognition with a frozen CLIP: the interface of all methods.

A host is a method applied to a CLIP. It maps images to unit features of images and classes
(:class:`HostOutput`); logits are their cosines, times a scale. :attr:`Host.learner` is trained,
CLIP is frozen. :meth:`Host.set_classes` sets a new list of classes.

>>> host = build_host(create_clip("ViT-B-16", "openai"), "maple")         # of :mod:`.prompted`
>>> host.set_classes(["cat", "dog"])
>>> host(images).logits()
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import network_weights, read
from hypvision.checkpoints.types import StateDict
from hypvision.clip.adapters.base import ADAPTERS
from hypvision.clip.memo import Memo
from hypvision.clip.models import CLIPBundle
from hypvision.clip.spaces import Sphere, space_of
from hypvision.clip.towers import (
    PromptTokens,
    check_images,
    embedding_size,
    encode_image,
    encode_text,
    logit_scale_of,
)
from hypvision.data.classes import SELECTED, checked_templates, warn_of_equal_texts
from hypvision.geometry.numerics import exact
from hypvision.io import (
    HypvisionError,
    StrPath,
    Values,
    at_least,
    did_you_mean,
    list_of_texts,
    refuse,
)
from hypvision.io.records import parse

from .official import learned_names

_CHUNK = 256  # number of texts that are encoded at once without gradients


@dataclass
class HostOutput:
    """The output of a host for a batch of B images and C classes.

    Attributes:
        image: unit image features ``(B, d)``, float32.
        text: unit class features ``(C, d)``, or ``(B, C, d)`` if each image has its own; or None.
        scale: the factor of the cosines, ``1 / tau``.
        losses: additional losses, already weighted.
        extra: logits ``(B, C)`` that are added to the cosines (Tip-Adapter).
        teacher: logits ``(B, C)`` of a teacher in place of labels (PromptKD).
        direct: logits ``(B, C)`` in place of the cosines: those of a classifier without class
            features (linear probe), or minus the scaled distances of a hyperbolic CLIP.
        distillation: weight of the loss against ``teacher``.
        temperature: temperature of the softmax in this loss.
        raw: features of images and of classes before normalisation; None without class features.
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
    raw: tuple[Tensor, Tensor] | None = None

    def logits(self) -> Tensor:
        """Return logits ``(B, C)``, computed outside autocast."""
        if self.direct is not None:
            return self.direct if self.extra is None else self.direct + self.extra
        text = self.text
        assert text is not None, "the output has neither class features nor direct logits"
        with exact(self.image.device):
            cosines = (
                self.image @ text.T if text.dim() == 2 else (text @ self.image[..., None])[..., 0]
            )
            logits = self.scale * cosines
            return logits if self.extra is None else logits + self.extra

    def fit(self, logits: Tensor, labels: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Return the loss of logits: the weighted divergence from the teacher's logits if there are
        any, else the cross-entropy with ``weights`` of the classes ``(C,)``."""
        if self.teacher is None:
            assert labels is not None, "without a teacher the loss needs labels"
            return F.cross_entropy(logits, labels, weights)
        t = self.temperature
        return self.distillation * t**2 * mean_divergence(logits / t, self.teacher / t)


def mean_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Return KL(softmax(target) || softmax(logits)), summed over ``(B, C)`` and divided by B C, as
    in the codes of PromptKD and PromptSRC."""
    total = F.kl_div(
        logits.log_softmax(-1), target.log_softmax(-1), reduction="sum", log_target=True
    )
    return total / logits.numel()


HOSTS: dict[str, type[Host]] = {}
"""Methods by the name that configs and the command line use; a class registers itself by
``class CoOp(Host, name="coop")``."""


class Host(nn.Module):
    """Base of the few-shot methods: :attr:`learner` trains, ``clip`` is frozen, ``names`` are the
    classes.

    In training at most ``text_chunk`` class texts are encoded at a time, and their activations are
    computed again in the backward pass, so that memory does not grow with the number of classes;
    None: all texts at once.
    """

    clip: nn.Module
    learner: nn.Module
    mean: Tensor
    std: Tensor

    feature_inputs = False
    """Whether features ``(B, d)`` of the frozen image tower may be given in place of images."""
    reads_names = True
    """Whether the method recognises classes by the texts of their names."""
    on_hyperboloid = False
    """Whether the method works with a hyperbolic CLIP, whose features are tangent vectors at the
    origin."""

    @property
    def fixed_classes(self) -> int | None:
        """The number of classes if training fixes the classes, as each has weights of its own;
        None: any class names will do."""
        return None

    def __init_subclass__(cls, name: str | None = None) -> None:
        if name is not None:
            HOSTS[name] = cls

    def __init__(self, clip: CLIPBundle, text_chunk: int | None = None):
        super().__init__()
        if text_chunk is not None:
            at_least(1, integer=True, text_chunk=text_chunk)
        self.clip = clip.model.requires_grad_(False)
        self.tokenizer = clip.tokenizer
        self.text_chunk = text_chunk
        self.register_buffer(
            "mean", torch.tensor(tuple(clip.mean))[:, None, None], persistent=False
        )
        self.register_buffer("std", torch.tensor(tuple(clip.std))[:, None, None], persistent=False)
        self.learner = nn.Module()
        self.names: tuple[str, ...] = ()
        self.own_templates = clip.templates
        self.template = clip.templates[0] if clip.templates else "a photo of a {}."
        self.mean_templates: tuple[str, ...] = clip.templates or (*SELECTED, self.template)
        self._memo = Memo()
        self.register_state_dict_post_hook(_drop_frozen)
        self.register_load_state_dict_pre_hook(_add_frozen)

    # Class names and their features

    def set_classes(
        self,
        names: Sequence[str],
        template: str | None = None,
        templates: Sequence[str] | None = None,
    ) -> None:
        """Set the class names, and warn of classes with equal tokens.

        Args:
            names: class names in the order of the labels; ``_`` stands for a space.
            template: the data set's sentence for methods without a learned context; None: keep the
                current one, which at first is that of the weights.
            templates: the data set's sentences for methods that average over several; None: those
                of the weights, or else the seven of :data:`~hypvision.data.classes.SELECTED`, and
                ``template``.
        """
        list_of_texts(names=names)
        template = template or self.template
        usual = dict.fromkeys((*(self.own_templates or SELECTED), template))
        checked_templates([template])
        several = checked_templates(tuple(usual) if templates is None else templates)
        wanted = tuple(name.replace("_", " ") for name in names), template, several
        if wanted != (self.names, self.template, self.mean_templates):
            self.names, self.template, self.mean_templates = wanted
            self._memo.clear()
            if self.reads_names:
                warn_of_equal_texts(self.names, self.tokens(self.sentences()))

    def sentences(self) -> list[str]:
        return [self.template.format(name) for name in self.names]

    @property
    def ending(self) -> str:
        """The end of a sentence: a full stop, or nothing if the template has none."""
        return "." if self.template.endswith(".") else ""

    def tokens(self, sentences: list[str]) -> Tensor:
        """Return token numbers ``(T, L)`` on the CPU, where cutting texts does not wait for a
        GPU."""
        return self.tokenizer(sentences)

    def texts(self) -> Tensor:
        """Return unit class features ``(C, d)``, float32, cached until classes or learned weights
        change."""
        return self.class_features()[0]

    def class_features(self) -> tuple[Tensor, Tensor]:
        """Return class features ``(C, d)``, float32: of unit length, and before normalisation."""
        if not self.names:
            raise HypvisionError(
                "There are no classes. Call set_classes(['cat', 'dog', ...]) first."
            )

        def make() -> tuple[Tensor, Tensor]:
            raw = self.encode_classes()
            return F.normalize(raw, dim=-1), raw

        learned = self.text_parameters()
        if torch.is_grad_enabled() and any(p.requires_grad for p in learned):
            return make()
        return self._memo.get(learned, make)

    def text_parameters(self) -> list[Tensor]:
        """Return the learned parameters on which the class features depend."""
        return []

    def encode_classes(self) -> Tensor:
        """Compute class features ``(C, d)``, float32 and not normalised."""
        return self._encode(self.tokens(self.sentences()))

    def _encode(self, tokens: Tensor, layers: Mapping[int, Tensor] | None = None) -> Tensor:
        return encode_sentences(self.clip, tokens, layers, self.text_chunk)

    # Images and their features

    @property
    def scale(self) -> Tensor:
        """``1 / tau`` of the frozen CLIP, the factor of cosines."""
        return logit_scale_of(self.clip).exp().float()

    def frozen_features(self, images: Tensor) -> Tensor:
        """Return features ``(B, d)`` of the frozen image tower, float32 and not normalised;
        features in place of images are returned as they are."""
        if images.dim() == 2:
            return images.float()
        with torch.no_grad():
            return encode_image(self.clip, self.normalised(images)).float()

    def normalised(self, images: Tensor) -> Tensor:
        """Return images ``(B, 3, H, W)``, RGB from 0 to 255, normalised for this CLIP; another size
        than its own is an error."""
        check_images(self.clip, images, "Set the data's size={0} (hypvision fewshot: --size {0}).")
        return (images.float() - self.mean) / self.std

    def features(self, images: Tensor) -> Tensor:
        """Return image features ``(B, d)``, float32 and not normalised."""
        return self.frozen_features(images)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        """Return the output for a batch of images ``(B, 3, H, W)``, RGB from 0 to 255, or of
        features ``(B, d)`` if :attr:`feature_inputs`; ``labels`` ``(B,)`` are for hosts whose
        losses use them."""
        return self.output(self.features(images), self.class_features())

    def plain_logits(self, image: Tensor, text: Tensor | None = None) -> Tensor:
        """Return CLIP's logits ``(B, C)`` for image features ``(B, d)`` and class features ``(C,
        d)`` (None: the host's), which are both not normalised: cosines, or for a hyperbolic CLIP
        its ``class_logits``, times the scale."""
        text = self.class_features()[1] if text is None else text
        space = space_of(self.clip)
        with exact(image.device):
            points = space.embed(image, "image"), space.embed(text, "text")
            return space.class_logits(*points, self.scale)

    def output(self, image: Tensor, classes: tuple[Tensor, Tensor], **others: Any) -> HostOutput:
        """Return the output for image features, which are not normalised, and the result of
        :meth:`class_features`."""
        text, raw = classes
        if is_hyperbolic(self.clip):
            others["direct"] = self.plain_logits(image, raw)
        unit = F.normalize(image, dim=-1)
        return HostOutput(unit, text, self.scale, raw=(image, raw), **others)

    def unsaid(self) -> StateDict:
        """Return entries of the state dict that a checkpoint may lack, with their values."""
        return {}

    def train(self, mode: bool = True) -> Host:
        """Set the mode of the learner; the frozen CLIP stays in evaluation mode."""
        super().train(mode)
        self.clip.eval()
        self._memo.clear()
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._memo.clear()
        return super()._apply(*args, **kwargs)


# State dicts contain only what was learned


def is_learned(name: str) -> bool:
    """Return whether an entry of a host's state dict is learned and not frozen."""
    return name.startswith("learner.") or (
        name.startswith("clip.") and any(part in ADAPTERS for part in name.split("."))
    )


def _drop_frozen(host: nn.Module, state_dict: StateDict, prefix: str, _: Any) -> None:
    """Drop the entries of frozen models from the result of ``state_dict()``."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        if not is_learned(name.removeprefix(prefix)):
            del state_dict[name]


def _add_frozen(host: nn.Module, state_dict: StateDict, prefix: str, *_: Any) -> None:
    """Add the entries of frozen models before ``load_state_dict()``, which checkpoints lack."""
    for name, module in host.named_modules():
        if name.partition(".")[0] in ("clip", "teacher"):
            for own, value in (*module._parameters.items(), *module._buffers.items()):
                full = f"{name}.{own}"
                if (
                    value is not None
                    and own not in module._non_persistent_buffers_set
                    and not is_learned(full)
                ):
                    state_dict.setdefault(prefix + full, value)


def load_learned(host: Host, source: StrPath) -> None:
    """Load learned weights into a host, from a training's checkpoint or an official one, converted
    or not."""
    weights = learned_names(network_weights(read(source), re.compile(r"host\.(.+)")), host.clip)
    weights = {
        **host.unsaid(),
        **{name.removeprefix("host."): value for name, value in weights.items()},
    }
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
    """Return text features ``(T, d)``, float32 and not normalised, of tokens ``(T, L)``.

    Args:
        layers: learned tokens ``(n, width)`` or ``(T, n, width)`` by block, which replace the n
            tokens after the first one.
        chunk: with gradients, encode this many texts at a time, and compute their activations again
            in the backward pass.
        embeddings: vectors ``(T, L, width)`` in place of the token embeddings.
    """
    layers = layers or {}

    def encode(rows: Tensor, embedded: Tensor | None, *prompts_of_rows: Tensor) -> Tensor:
        prompts = (
            PromptTokens(dict(zip(layers, prompts_of_rows)), overwrite=True) if layers else None
        )
        return encode_text(clip, rows, prompts=prompts, embeddings=embedded).float()

    grad = torch.is_grad_enabled()
    values = list(layers.values())
    size = chunk or (len(tokens) if grad else _CHUNK)
    if len(tokens) <= size:
        return encode(tokens, embeddings, *values)
    # Chunks of texts of similar length need little padding, so the texts are sorted by length.
    order = (tokens != 0).sum(-1).argsort(stable=True)
    places = order.to(next(clip.parameters()).device)
    found = []
    for rows, there in zip(order.split(size), places.split(size)):
        parts = [value[there] if value.dim() == 3 else value for value in values]
        embedded = None if embeddings is None else embeddings[there]
        run = partial(checkpoint, encode, use_reentrant=False) if grad else encode
        found.append(run(tokens[rows], embedded, *parts))
    return torch.cat(found)[places.argsort()]


def is_hyperbolic(clip: nn.Module) -> bool:
    """Return whether a CLIP embeds on a hyperboloid, or on a product of several."""
    return not isinstance(space_of(clip), Sphere)


# Making hosts by name
# --------------------------------------------------------------------------------------------------


def build_host(clip: CLIPBundle, name: str, **options: Any) -> Host:
    """Return the host with this name, a key of :data:`HOSTS`, and the options of its class."""
    known_hosts = f"{did_you_mean(name, HOSTS)} There are: {', '.join(sorted(HOSTS))}."
    refuse((name not in HOSTS, f"There is no few-shot method '{name}'.{known_hosts}"))
    method = HOSTS[name]
    known = _check_host(name, method, is_hyperbolic(clip.model), options)
    hints = get_type_hints(method.__init__)
    for key, value in options.items():
        if value != known[key].default and key != "teacher":
            parse(hints[key], value, f"The few-shot method '{name}': {key}")
            # A method with tokens in both towers may have 0 in one of them.
            if str(known[key].annotation).startswith("int"):
                at_least(0 if key in ("text", "vision") else 1, integer=True, **{key: value})
    return method(clip, **options)


def _check_host(
    name: str, method: type[Host], hyperbolic: bool, options: Values
) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method; a CLIP that it cannot use, and options that it does not
    know or that are missing, are errors."""
    able = ", ".join(sorted(other for other, host in HOSTS.items() if host.on_hyperboloid))
    known = {
        key: parameter
        for key, parameter in inspect.signature(method).parameters.items()
        if key != "clip"
    }
    unknown = next((key for key in options if key not in known), "")
    lacking = next(
        (key for key, p in known.items() if key not in options and p.default is p.empty), ""
    )
    refuse(
        (
            hyperbolic and not method.on_hyperboloid,
            f"The few-shot method '{name}' compares unit vectors on a sphere, but this CLIP embeds "
            f"on a hyperboloid. Methods for such models: {able}.",
        ),
        (
            unknown,
            f"The few-shot method '{name}' has no option '{unknown}'."
            f"{did_you_mean(unknown, known)} It takes: {', '.join(known)}.",
        ),
        (lacking, f"The few-shot method '{name}' needs the option '{lacking}'."),
    )
    return known


# Zero-shot recognition and class features over several templates
# --------------------------------------------------------------------------------------------------


class ZeroShot(Host, name="zeroshot"):
    """CLIP without training (Radford et al., ICML 2021), with ``ensemble`` by
    :func:`mean_class_features`."""

    feature_inputs = on_hyperboloid = True

    def __init__(self, clip: CLIPBundle, ensemble: bool = False):
        super().__init__(clip)
        self.ensemble = ensemble

    def encode_classes(self) -> Tensor:
        return mean_class_features(self) if self.ensemble else super().encode_classes()


@torch.no_grad()
def sentence_features(host: Host, templates: Sequence[str]) -> Tensor:
    """Return text features ``(T, C, d)`` of the frozen tower, not normalised, for T templates and C
    classes."""
    tokens = host.tokens([template.format(name) for template in templates for name in host.names])
    return encode_sentences(host.clip, tokens).unflatten(0, (len(templates), -1))


def mean_class_features(host: Host) -> Tensor:
    """Return class features ``(C, d)`` over several sentences: the seven that CLIP's authors
    selected on ImageNet and, on other data, the data set's own. Their direction is that of the mean
    of the unit features, and their length is the mean of the features' lengths. For a hyperbolic
    CLIP the result is the mean of the features before the lift."""
    sentences = sentence_features(host, host.mean_templates)
    if is_hyperbolic(host.clip):
        return sentences.mean(0)
    lengths = sentences.norm(dim=-1).mean(0)
    return F.normalize(F.normalize(sentences, dim=-1).mean(0), dim=-1) * lengths[:, None]


def feature_size(host: Host) -> int:
    """Return the length d of a host's features."""
    return getattr(host, "dim", None) or embedding_size(host.clip)
