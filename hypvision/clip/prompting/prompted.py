"""Hosts with learned tokens: CoOp, CoCoOp, deep prompts of one tower or both, MaPLe.

Common options: ``words``: the words whose embeddings are the initial text tokens (empty: random
tokens); ``depth``: number of layers with tokens of their own (None: the published number, or all
layers of a tower with fewer); ``emulate_half`` of :class:`PromptLearner`; ``text_chunk`` of
:class:`.hosts.Host`.

Depth counts the first layer: with ``depth=9`` tokens enter at block 0 and are replaced by eight
other sets at blocks 1 to 8; later blocks process the last set. Depth 1 is shallow prompting.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.clip.models import CLIPBundle
from hypvision.clip.towers import PromptTokens, embedding_size, encode_image, find_towers, text_part
from hypvision.io import HypvisionError, one_of

from .hosts import Host, HostOutput, encode_sentences

# Modules with learned tokens
# --------------------------------------------------------------------------------------------------


def tower_width(clip: nn.Module, modality: str, depth: int) -> int:
    """Return the width of the tower ``"text"`` or ``"vision"``; a tower without transformer blocks,
    or with too few for ``depth``, is an error."""
    tower = next((tower for tower in find_towers(clip) if tower.modality == modality), None)
    if tower is None:
        methods = "zeroshot, linear-probe, coop, cocoop, clip-adapter and tip-adapter"
        raise HypvisionError(
            f"The {modality} tower of {type(clip).__name__} is not a transformer, so no prompts "
            f"can enter it. Methods for it: {methods if modality == 'vision' else 'none of ours'}; "
            "or use a model such as ViT-B-16."
        )
    blocks = len(tower.blocks)
    if not 1 <= depth <= blocks:
        raise HypvisionError(
            f"The {modality} prompts have a depth of {depth}; the tower allows 1 to {blocks}. Set "
            f"depth={blocks}."
        )
    return tower.width


def depth_for(clip: nn.Module, depth: int | None, usual: int, *modalities: str) -> int:
    """Return the depth of prompts: the given one, else ``usual``, or with a warning the number of
    blocks of a tower that has fewer."""
    blocks = min(
        [usual, *(len(tower.blocks) for tower in find_towers(clip) if tower.modality in modalities)]
    )
    return _possible(
        depth,
        usual,
        blocks,
        f"a depth of {{}} instead of {usual}: a tower of this CLIP has {blocks} blocks",
    )


def _possible(given: int | None, usual: int, most: int, text: str) -> int:
    """Return ``given``, else ``usual``, or with a warning ``most`` if a CLIP allows no more."""
    if given is None and most < usual:
        warnings.warn(f"The prompts have {text.format(most)}.", stacklevel=3)
    return min(usual, most) if given is None else given


@torch.no_grad()
def word_embeddings(clip: CLIPBundle, words: str, count: int) -> Tensor:
    """Return the token embeddings ``(count, width)`` of the first words of a sentence, with one
    token for each word."""
    embedding = text_part(clip.model).token_embedding
    return (
        embedding(clip.tokenizer([words]).to(embedding.weight.device))[0, 1 : 1 + count]
        .detach()
        .float()
        .clone()
    )


class PromptLearner(nn.Module):
    """Independent learned tokens for the text tower, the image tower or both.

    CoOp (Zhou et al., IJCV 2022) has only text tokens, of depth 1; deep language and deep vision
    prompting have deep tokens of one tower; independent prompting (IVLP) and PromptSRC (Khattak et
    al., ICCV 2023) of both.

    Args:
        text, vision: number of tokens of each layer; 0: no tokens in this tower.
        text_depth, vision_depth: number of layers with tokens of their own.
        words: the embeddings of the first of these words are the initial text tokens of the first
            layer; empty: random tokens.
        emulate_half: round all tokens but those of the first text layer to float16, as the official
            code of MaPLe and PromptSRC does.
    """

    def __init__(
        self,
        clip: CLIPBundle,
        text: int = 0,
        vision: int = 0,
        text_depth: int = 1,
        vision_depth: int = 1,
        words: str = "",
        emulate_half: bool = False,
    ):
        super().__init__()
        self.text_tokens = text
        self.words = words
        self.emulate_half = emulate_half
        if text:
            width = tower_width(clip.model, "text", text_depth)
            if words and len(words.split()) < text:
                raise HypvisionError(
                    f"{text} text tokens cannot start from the {len(words.split())} words "
                    f"'{words}'. Give more words."
                )
            self.ctx = nn.Parameter(
                word_embeddings(clip, words, text) if words else _random(text, width)
            )
            self.deep_text = nn.ParameterList(_random(text, width) for _ in range(text_depth - 1))
        if vision:
            width = tower_width(clip.model, "vision", vision_depth)
            self.visual = nn.Parameter(_random(vision, width))
            self.deep_visual = nn.ParameterList(
                _random(vision, width) for _ in range(vision_depth - 1)
            )

    @property
    def prefix(self) -> str:
        """The words before a class name; learned tokens replace some of them."""
        return self.words or " ".join(["X"] * self.text_tokens)

    def rounded(self, tokens: Tensor) -> Tensor:
        """Return tokens rounded to float16, as in the official code, if ``emulate_half``."""
        return tokens.half().to(tokens.dtype) if self.emulate_half else tokens

    def text(self) -> Mapping[int, Tensor]:
        """Return the text tokens ``(n, width)`` by block number."""
        if not self.text_tokens:
            return {}
        return {
            0: self.ctx,
            **{i: self.rounded(tokens) for i, tokens in enumerate(self.deep_text, 1)},
        }

    def vision(self) -> Mapping[int, Tensor]:
        """Return the image tokens ``(n, width)`` by block number."""
        if not hasattr(self, "visual"):
            return {}
        return {
            i: self.rounded(tokens) for i, tokens in enumerate([self.visual, *self.deep_visual])
        }


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape) * 0.02


class MaPLeLearner(PromptLearner):
    """The tokens of MaPLe (Khattak et al., CVPR 2023): ``tokens`` for each of ``depth`` layers of
    both towers; image tokens are projected from the text tokens of the same layer."""

    def __init__(self, clip: CLIPBundle, tokens: int, depth: int, words: str, emulate_half: bool):
        super().__init__(
            clip, text=tokens, text_depth=depth, words=words, emulate_half=emulate_half
        )
        width = tower_width(clip.model, "vision", depth)
        self.projections = nn.ModuleList(nn.Linear(self.ctx.shape[1], width) for _ in range(depth))

    def vision(self) -> Mapping[int, Tensor]:
        texts = [self.ctx, *self.deep_text]
        return {
            i: self.rounded(project(tokens))
            for i, (project, tokens) in enumerate(zip(self.projections, texts))
        }


class CoCoOpLearner(PromptLearner):
    """The context of CoCoOp (Zhou et al., CVPR 2022): a small network maps each image's feature to
    a shift of the context."""

    def __init__(self, clip: CLIPBundle, tokens: int, words: str):
        super().__init__(clip, text=tokens, words=words)
        dim = embedding_size(clip.model)
        hidden = max(1, dim // 16)
        self.meta = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, self.ctx.shape[1])
        )

    def context(self, image: Tensor) -> Tensor:
        """Return the context ``(B, n, width)`` of each image for unit image features ``(B, d)``."""
        return self.ctx + self.meta(image)[:, None]


# Hosts: the few-shot methods
# --------------------------------------------------------------------------------------------------


class PromptedHost(Host):
    """A host whose learner is a :class:`PromptLearner`."""

    learner: PromptLearner

    def text_parameters(self) -> list[Tensor]:
        return [self.learner.ctx, *self.learner.deep_text] if self.learner.text_tokens else []

    def sentences(self) -> list[str]:
        if not self.learner.text_tokens:
            return super().sentences()
        return [f"{self.learner.prefix} {name}{self.ending}" for name in self.names]

    def encode_classes(self) -> Tensor:
        return self._encode(self.tokens(self.sentences()), self.learner.text())

    def features(self, images: Tensor) -> Tensor:
        layers = self.learner.vision()
        if not layers:
            return super().features(images)
        return encode_image(
            self.clip, self.normalised(images), prompts=PromptTokens(layers)
        ).float()


class CoOp(PromptedHost, name="coop"):
    """CoOp (Zhou et al., IJCV 2022): learned tokens are the context of the class name.

    Args:
        tokens: number of tokens of the context; None: 16, or half of the positions of a CLIP with
            short texts.
        position: where the class name stands: at the ``"end"``, in the ``"middle"`` or in
            ``"front"`` of the context.
        per_class, classes: learn a context for each of this number of classes, which then cannot
            change after training.
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
            raise HypvisionError(
                "CoOp with per_class=True needs the number of classes. Give classes=N."
            )
        self.position = position
        most = len(text_part(clip.model).positional_embedding) // 2
        places = f"{{}} tokens instead of 16: texts of this CLIP have {2 * most} positions"
        self.learner = PromptLearner(clip, text=_possible(tokens, 16, most, places), words=words)
        if per_class:
            start = self.learner.ctx.detach()
            if not words:
                start = torch.randn(classes, *start.shape) * start.std()
            self.learner.ctx = nn.Parameter(start.expand(classes, -1, -1).clone())

    @property
    def fixed_classes(self) -> int | None:
        return len(self.learner.ctx) if self.learner.ctx.dim() == 3 else None

    def encode_classes(self) -> Tensor:
        ctx = self.learner.ctx
        tokens = self.tokens(self.sentences())
        if ctx.dim() == 3 and len(ctx) != len(tokens):
            raise HypvisionError(
                f"This CoOp learned a context for each of {len(ctx)} classes, so it cannot "
                f"recognise {len(tokens)} others. Train it with per_class=False."
            )
        if self.position == "end":
            return self._encode(tokens, {0: ctx})
        embedded = text_part(self.clip).token_embedding(tokens.to(ctx.device))
        count = ctx.shape[-2]
        context = ctx.to(embedded).expand(len(tokens), -1, -1)
        embedded = torch.cat([embedded[:, :1], context, embedded[:, 1 + count :]], 1)
        places = self._places(tokens.shape[1]).to(ctx.device)
        embedded = embedded.gather(1, places[..., None].expand_as(embedded))
        return encode_sentences(self.clip, tokens, None, self.text_chunk, embedded)

    def _places(self, length: int) -> Tensor:
        """Return ``(C, L)``: for each position of a class's text the index into ``start, context,
        name, rest``."""
        # argmax finds the end token; the lengths include the start and end tokens.
        ends = self.tokenizer(list(self.names)).argmax(-1).tolist()
        # The context also contains the words that follow the learned tokens.
        count = int(self.tokenizer([self.learner.prefix]).argmax(-1)) - 1
        before = count // 2 if self.position == "middle" else 0
        rows = []
        for end in ends:
            # A sentence that was cut off keeps only its end token after the name.
            rest = min(count + end, length - 1)
            name = range(1 + count, rest)
            context = range(1, 1 + count)
            rows.append([0, *context[:before], *name, *context[before:], *range(rest, length)])
        return torch.tensor(rows)


class CoCoOp(PromptedHost, name="cocoop"):
    """CoCoOp (Zhou et al., CVPR 2022): the context depends on the image, so the class texts are
    encoded for each image."""

    learner: CoCoOpLearner
    feature_inputs = True

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int = 4,
        words: str = "a photo of a",
        text_chunk: int | None = None,
    ):
        super().__init__(clip, text_chunk)
        self.learner = CoCoOpLearner(clip, tokens, words)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        image = self.features(images)
        context = self.learner.context(F.normalize(image, dim=-1))  # (B, n, width)
        tokens = self.tokens(self.sentences())
        every = context[:, None].expand(-1, len(tokens), -1, -1).flatten(0, 1)
        text = self._encode(tokens.repeat(len(image), 1), {0: every}).unflatten(0, (len(image), -1))
        return self.output(image, (F.normalize(text, dim=-1), text))


class IVLP(PromptedHost, name="ivlp"):
    """Independent deep prompts of both towers, the base of PromptSRC, with ``text`` and ``vision``
    tokens in each layer; ``text_depth`` and ``vision_depth`` are the depths of single towers that
    differ from ``depth``."""

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
        deep = (
            0
            if text_depth and vision_depth
            else depth_for(clip.model, depth, self.usual_depth, *towers)
        )
        depths = text_depth or deep, vision_depth or deep
        self.learner = PromptLearner(clip, text, vision, *depths, words, emulate_half)


class DeepVision(IVLP, name="deep-vision"):
    """Deep prompts of the image tower alone (VPT; Jia et al., ECCV 2022), with ``tokens`` in each
    layer."""

    usual_depth = 12

    def __init__(
        self,
        clip: CLIPBundle,
        tokens: int = 8,
        depth: int | None = None,
        emulate_half: bool = False,
    ):
        super().__init__(clip, 0, tokens, depth, emulate_half=emulate_half)


class DeepLanguage(IVLP, name="deep-language"):
    """Deep prompts of the text tower alone, with ``tokens`` in each layer."""

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


class MaPLe(PromptedHost, name="maple"):
    """MaPLe (Khattak et al., CVPR 2023), with ``tokens`` in each layer of each tower."""

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
