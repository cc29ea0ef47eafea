"""Hosts with learned tokens: CoOp, CoCoOp, deep prompts of one tower or both, MaPLe.

Common options: ``words``: the text tokens start from these, empty: at random; ``depth``: layers with tokens of their
own (default: the published number, or all of a tower with fewer); ``emulate_half`` of :class:`.learners.PromptLearner`;
``text_chunk`` of :class:`.hosts.Host`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.checks import one_of
from hypvision.clip.models import CLIPBundle
from hypvision.clip.prompting.hosts import Host, HostOutput, encode_sentences, register_host
from hypvision.clip.prompting.learners import CoCoOpLearner, MaPLeLearner, PromptLearner, depth_for, tokens_for
from hypvision.clip.towers import PromptTokens, encode_image, text_part
from hypvision.errors import HypvisionError


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
        if not (layers := self.learner.vision()):
            return super().features(images)
        return encode_image(self.clip, self.normalised(images), prompts=PromptTokens(layers)).float()


@register_host("coop")
class CoOp(PromptedHost):
    """CoOp (Zhou et al., IJCV 2022): a learned context of the class name.

    Args:
        clip, words, text_chunk: see :mod:`.prompted`.
        tokens: of the context; default 16, or half of the places of a CLIP with short texts.
        position: of the class name: ``"end"``, ``"middle"`` or ``"front"`` of the context.
        per_class: a context for each class; then classes cannot change after training.
        classes: their number, for ``per_class``.
    """

    feature_inputs = True

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int | None = None,
        words: str = "",
        position: str = "end",
        per_class: bool = False,
        classes: int = 0,
        text_chunk: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        one_of(("end", "middle", "front"), position=position)
        if per_class and classes < 1:
            raise HypvisionError("CoOp with per_class=True needs the number of classes. Give classes=N.")
        self.position = position
        self.learner = PromptLearner(clip, text=tokens_for(clip.model, tokens, 16), words=words)
        if per_class:
            start = self.learner.ctx.detach()
            if not words:
                start = torch.randn(classes, *start.shape) * start.std()
            self.learner.ctx = nn.Parameter(start.expand(classes, -1, -1).clone())

    def encode_classes(self) -> Tensor:
        ctx, tokens = self.learner.ctx, self.tokens(self.sentences())
        if ctx.dim() == 3 and len(ctx) != len(tokens):
            raise HypvisionError(
                f"This CoOp learned a context for each of {len(ctx)} classes, so it cannot recognise {len(tokens)} "
                "others. Train it with per_class=False."
            )
        if self.position == "end":
            return self._encode(tokens, {0: ctx})
        embedded, count = text_part(self.clip).token_embedding(tokens), ctx.shape[-2]
        context = ctx.to(embedded).expand(len(tokens), -1, -1)
        embedded = torch.cat([embedded[:, :1], context, embedded[:, 1 + count :]], 1)
        places = self._places(tokens.shape[1], count).to(tokens.device)
        embedded = embedded.gather(1, places[..., None].expand_as(embedded))
        return encode_sentences(self.clip, tokens, None, self.text_chunk, embedded)

    def _places(self, length: int, count: int) -> Tensor:
        """(C, L): for each position the index into ``start, context, name, rest``."""
        # argmax finds the end token; lengths include start and end token
        ends = self.tokenizer(list(self.names)).argmax(-1).tolist()
        before = count // 2 if self.position == "middle" else 0
        rows = []
        for end in ends:
            name, context = range(1 + count, count + end), range(1, 1 + count)
            rows.append([0, *context[:before], *name, *context[before:], *range(count + end, length)])
        return torch.tensor(rows)


@register_host("cocoop")
class CoCoOp(PromptedHost):
    """CoCoOp (Zhou et al., CVPR 2022): the context depends on the image, so the texts are encoded for each image."""

    learner: CoCoOpLearner
    feature_inputs = True

    def __init__(self, clip: CLIPBundle, tokens: int = 4, words: str = "a photo of a", text_chunk: int | None = None):
        super().__init__(clip, text_chunk)
        self.learner = CoCoOpLearner(clip, tokens, words)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        image = self.features(images)
        context = self.learner.context(F.normalize(image, dim=-1))  # (B, n, width)
        tokens = self.tokens(self.sentences())
        every = context[:, None].expand(-1, len(tokens), -1, -1).flatten(0, 1)
        text = self._encode(tokens.repeat(len(image), 1), {0: every}).unflatten(0, (len(image), -1))
        return self.output(image, (F.normalize(text, dim=-1), text))


@register_host("ivlp")
class IVLP(PromptedHost):
    """Independent deep prompts of both towers, the base of PromptSRC.

    Args:
        clip, depth, words, emulate_half, text_chunk: see :mod:`.prompted`.
        text, vision: tokens of each layer.
        text_depth, vision_depth: the depth of one tower, if it differs from ``depth``.
    """

    usual_depth = 9

    def __init__(
        self,
        clip: CLIPBundle,
        text: int = 4,
        vision: int = 4,
        depth: int | None = None,
        words: str = "a photo of a",
        emulate_half: bool = False,
        text_chunk: int | None = None,
        text_depth: int | None = None,
        vision_depth: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        towers = [name for name, count in (("text", text), ("vision", vision)) if count]
        deep = 0 if text_depth and vision_depth else depth_for(clip.model, depth, self.usual_depth, *towers)
        depths = text_depth or deep, vision_depth or deep
        self.learner = PromptLearner(clip, text, vision, *depths, words, emulate_half)


@register_host("deep-vision")
class DeepVision(IVLP):
    """Deep prompts of the image tower alone (VPT; Jia et al., ECCV 2022), ``tokens`` a layer."""

    usual_depth = 12

    def __init__(self, clip: CLIPBundle, tokens: int = 8, depth: int | None = None, emulate_half: bool = False):
        super().__init__(clip, 0, tokens, depth, emulate_half=emulate_half)


@register_host("deep-language")
class DeepLanguage(IVLP):
    """Deep prompts of the text tower alone, ``tokens`` a layer."""

    feature_inputs = True
    usual_depth = 12

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int = 4,
        depth: int | None = None,
        words: str = "a photo of a",
        emulate_half: bool = False,
        text_chunk: int | None = None,
    ):
        super().__init__(clip, tokens, 0, depth, words, emulate_half, text_chunk)


@register_host("maple")
class MaPLe(PromptedHost):
    """MaPLe (Khattak et al., CVPR 2023), with ``tokens`` a layer in each tower."""

    learner: MaPLeLearner

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int = 2,
        depth: int | None = None,
        words: str = "a photo of a",
        emulate_half: bool = False,
        text_chunk: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        depth = depth_for(clip.model, depth, 9, "text", "vision")
        self.learner = MaPLeLearner(clip, tokens, depth, words, emulate_half)
