"""The language models HELM-D and HELM-MiCE in plain PyTorch, and their Euclidean counterparts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hypvision.geometry.numerics import readable
from hypvision.io import HypvisionError

from . import rows
from .attention import Context, FullAttention, LatentAttention, first_columns
from .cache import Cache
from .config import Architecture
from .experts import MixtureOfCurvatures, Routing
from .head import token_losses
from .layers import FeedForward, Layout, PointEmbedding, RowLinear, RowNorm, apply_linear


class Output(NamedTuple):
    """The output of a forward pass.

    Attributes:
        logits: ``(B, L or logits_to_keep, V)``; None if labels are given.
        loss: mean cross entropy of the labels plus the loss on uneven loads; None without labels.
        cross_entropy: the mean cross entropy alone; None without labels.
        labelled: number of labels of which the loss is the mean; None without labels.
        routing: routing of the tokens in every layer with experts.
        hidden: the points that the head reads, ``(B, L, width)``.
    """

    logits: Tensor | None
    loss: Tensor | None
    cross_entropy: Tensor | None
    labelled: Tensor | None
    routing: tuple[Routing, ...]
    hidden: Tensor


class Block(nn.Module):
    """One layer of a decoder: attention and a feed-forward layer, each with its residual connection
    and the norm that follows it.

    The norm before the attention is computed in the previous block, although published names count
    it to this one.
    """

    def __init__(self, config: Architecture, layer: int):
        super().__init__()
        self.config = config
        self.layout = Layout(config.dim, config)
        self.attn = (FullAttention if config.attention == "full" else LatentAttention)(
            config, layer
        )
        dense = not config.mixed or layer < config.n_dense_layers
        self.ffn = FeedForward(config, config.inter_dim) if dense else MixtureOfCurvatures(config)
        self.ffn_norm = RowNorm(self.layout, config.rms_eps)
        self.next_norm = (
            RowNorm(self.layout, config.rms_eps) if layer + 1 < config.n_layers else None
        )
        if config.lorentz:
            self.attn_w_y = nn.Parameter(torch.empty(1))
            self.ffn_w_y = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights of the residual connections with 1."""
        if self.config.lorentz:
            nn.init.ones_(self.attn_w_y)
            nn.init.ones_(self.ffn_w_y)

    def forward(
        self, x: Tensor, h: Tensor, context: Context
    ) -> tuple[Tensor, Tensor | None, Routing | None]:
        """Return points and normalised points ``(B, L, width)`` for the next block, and the routing
        of tokens, from the points ``x`` and the normalised points ``h``."""
        w_attn, w_ffn = (self.attn_w_y, self.ffn_w_y) if self.config.lorentz else (None, None)
        x, normed = self._residual(x, self.attn(h, context), w_attn, self.ffn_norm)
        u = self.ffn(normed)
        routing = None
        if isinstance(u, tuple):
            u, routing = u
        return *self._residual(x, u, w_ffn, self.next_norm), routing

    def _residual(
        self, x: Tensor, u: Tensor, w: Tensor | None, norm: RowNorm | None
    ) -> tuple[Tensor, Tensor | None]:
        config = self.config
        layout = self.layout
        gain = None if norm is None else norm.weight
        return rows.residual_norm(
            x,
            u,
            w,
            gain,
            layout.n,
            layout.size,
            config.scale,
            config.rms_eps,
            config.safe_clamp,
            config.fused,
        )


class Helm(nn.Module):
    """A decoder language model: it takes tokens and returns logits of the next tokens, or a loss.

    >>> model = Helm(preset("helm_d_tiny"))
    >>> loss = model(tokens, labels=tokens).loss
    """

    embed: nn.Embedding

    def __init__(self, config: Architecture):
        super().__init__()
        self.config = config
        self.layout = layout = Layout(config.dim, config)
        if config.lorentz and not config.project_emb:
            self.embed = PointEmbedding(config.vocab_size, config.dim)
        else:
            self.embed = nn.Embedding(config.vocab_size, layout.size)
        self.positions = None
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_seq_len, layout.size)
            nn.init.normal_(self.positions.weight, std=0.02)
        self.first_norm = RowNorm(layout, config.rms_eps)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.n_layers))
        self.final_proj = None
        if config.lorentz:
            self.final_proj = RowLinear(layout.width, layout.width, layout.ambient, layout.space)
        self.norm = RowNorm(layout, config.rms_eps)
        self.head = RowLinear(
            layout.width,
            config.vocab_size,
            layout.ambient,
            range(config.vocab_size),
            bias=False,
            init="torch",
        )
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Callable[..., Any] | None = None

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: the points."""
        return {"embed.weight"}

    def num_parameters(self) -> int:
        """Return the number of learned values, without the zeros that pad rows."""
        total = 0
        for module in self.modules():
            if isinstance(module, RowLinear):
                total += len(module.live_out) * (len(module.live_in) + (module.bias is not None))
            elif isinstance(module, RowNorm):
                total += module.layout.size
            else:
                total += sum(p.numel() for p in module.parameters(recurse=False))
        return total

    def points(self, input_ids: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the embeddings of tokens ``(B, L)`` as rows ``(B, L, width)``.

        Learned positions are read at ``places``, ``(B, L)`` or ``(1, L)``; by default at the
        columns.
        """
        e = rows.upcast(self.embed(input_ids))
        layout = self.layout
        if isinstance(self.embed, PointEmbedding):
            # Half precision is too coarse for the time, which is then computed anew.
            half = self.embed.weight.dtype in rows.HALF
            if not half and self.positions is None:
                return F.pad(
                    torch.cat([e[..., 1:], e[..., :1]], -1), (0, layout.width - layout.size - 1)
                )
            e = e[..., 1:]
        if self.positions is not None:
            if places is None:
                places = torch.arange(input_ids.shape[1], device=input_ids.device)
            e = e + rows.upcast(self.positions(places))
        return rows.lift(F.pad(e, (0, layout.width - layout.size)), layout.n)

    def hidden(self, input_ids: Tensor, context: Context) -> tuple[Tensor, tuple[Routing, ...]]:
        """Return the points that the head reads, ``(B, L, width)``, and the routing of the tokens
        in each layer with experts.

        An embedding that is not finite would reach all tokens through attention, whose weight of 0
        times NaN is NaN. It is replaced by zeros, and tokens that attend to it become NaN at the
        end.
        """
        x = self.points(input_ids, context.places)
        broken = ~x.detach().sum(-1).isfinite()
        # On a GPU any() is not asked, because it would make the CPU wait.
        if not readable(x) or bool(broken.any()):
            x = x.masked_fill(broken[..., None], 0.0)
            context = context._replace(broken=broken)
        h = self.first_norm(x)
        routing = []
        for block in self.layers:
            x, h, way = self._run(block, x, h, context)
            if way is not None:
                routing.append(way)
        if self.final_proj is not None:
            x = apply_linear(self.final_proj, x)
        x = self.norm(x)
        if context.broken is not None:
            x = x.masked_fill(context.seeing(context.broken)[..., None], float("nan"))
        return x, tuple(routing)

    def _run(self, block: nn.Module, *args: Any) -> Any:
        # With a cache blocks are not recomputed, because their tokens would enter it twice.
        if not (self.gradient_checkpointing and self.training and args[-1].cache is None):
            return block(*args)
        if self._gradient_checkpointing_func is not None:
            return self._gradient_checkpointing_func(block.__call__, *args)
        return checkpoint(block, *args, use_reentrant=False)

    def context(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        sequence_id: Tensor | None = None,
        cache: Cache | None = None,
        position_ids: Tensor | None = None,
    ) -> Context:
        """Return the attention context of the tokens; the arguments are those of
        :meth:`forward`."""
        start = 0 if cache is None else _filled(cache, len(input_ids))
        # On a GPU only prompts are checked, because the CPU waits for the result; while compiling
        # there are no values to check.
        prompt = cache is not None and not start
        if not torch.compiler.is_compiling() and (prompt or input_ids.device.type == "cpu"):
            check_tokens(input_ids, self.config.vocab_size)
        self._check_shapes(input_ids, start, attention_mask, sequence_id)
        if position_ids is not None:
            sequence_id = _documents(position_ids, attention_mask, sequence_id, start, input_ids)
        sequence_id = _without_padding(sequence_id, attention_mask)
        places = None
        if self.positions is not None:
            places = self._places(input_ids, start, attention_mask, sequence_id, position_ids)
        if sequence_id is None:
            mask = _mask(attention_mask, start, input_ids)
            return Context(start, mask, None, cache, places=places)
        if readable(input_ids):
            lengths = document_lengths(sequence_id)
            return Context(0, None, lengths, cache, sequence_id, places=places)
        # On a GPU a mask is used, because asking for the lengths of documents would make the CPU
        # wait.
        return Context(0, document_mask(sequence_id), None, cache, sequence_id, places=places)

    def _check_shapes(
        self,
        input_ids: Tensor,
        start: int,
        attention_mask: Tensor | None,
        sequence_id: Tensor | None,
    ) -> None:
        b, length = input_ids.shape
        total = start + length
        if total > self.config.max_seq_len:
            raise HypvisionError(
                f"{total} tokens are more than the context of {self.config.max_seq_len} that this "
                "model has. Shorten the prompt, ask for fewer new tokens, or build the model with "
                "a longer max_seq_len."
            )
        if attention_mask is not None and attention_mask.shape != (b, total):
            raise HypvisionError(
                f"attention_mask must be (batch, tokens) = ({b}, {total}), including the tokens "
                f"in the cache, got {tuple(attention_mask.shape)}. Packed documents are told apart "
                "by sequence_id."
            )
        if sequence_id is not None and (start or sequence_id.shape != input_ids.shape):
            raise HypvisionError(
                "sequence_id must have the shape of the tokens, and cannot be combined with tokens "
                f"in the cache; got {tuple(sequence_id.shape)} for {tuple(input_ids.shape)} and "
                f"{start} tokens in the cache."
            )

    def _places(
        self,
        input_ids: Tensor,
        start: int,
        attention_mask: Tensor | None,
        sequence_id: Tensor | None,
        position_ids: Tensor | None,
    ) -> Tensor:
        """Return the positions ``(B, L)`` or ``(1, L)`` of tokens in their documents; those of
        padding do not matter."""
        length = input_ids.shape[1]
        limit = self.config.max_seq_len
        column = torch.arange(start, start + length, device=input_ids.device)
        if position_ids is None and sequence_id is not None:
            return column - first_columns(sequence_id)
        if position_ids is None and attention_mask is not None:
            before = (attention_mask.bool().cumsum(1) == 0).sum(1, keepdim=True)
            return (column - before).clamp(min=0)
        if position_ids is None:
            return column[None]
        outside = (position_ids < 0) | (position_ids >= limit)
        if sequence_id is not None:
            outside = outside & (sequence_id >= 0)
        elif attention_mask is not None:
            outside = outside & attention_mask[:, start:].bool()
        if bool(outside.any()):
            raise HypvisionError(
                f"position_ids must be from 0 to {limit - 1}, the learned positions that this "
                f"model has, got {int(position_ids.min())} to {int(position_ids.max())}. Begin "
                "each document at 0."
            )
        return position_ids.clamp(0, limit - 1)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        sequence_id: Tensor | None = None,
        cache: Cache | None = None,
        logits_to_keep: int | Tensor = 0,
        position_ids: Tensor | None = None,
    ) -> Output:
        """Run the model: return logits, or with labels the loss.

        Args:
            input_ids: tokens ``(B, L)``.
            labels: ``(B, L)``, the tokens themselves: each is compared with the prediction at the
                position before it; -100 for no label. With packed documents the first token of each
                is left out.
            attention_mask: ``(B, L)``, or with a cache ``(B, all)``: 0 for padding, else 1.
            sequence_id: ``(B, L)``, for each token the number of its document, -1 for padding: no
                document sees another.
            cache: cache that stores keys and values for later tokens; it needs the methods
                ``update`` and ``get_seq_length``.
            logits_to_keep: the number of last positions whose logits are computed, 0 for all; or
                the positions themselves, ``(count,)``.
            position_ids: ``(B, L)`` or ``(1, L)``. They must go up by one within a document;
                without a mask, ``sequence_id`` or a filled cache each jump begins another document,
                as in transformers. To RoPE only differences matter. Learned positions are read at
                these numbers, by default counted from the first token of each document, after the
                padding.
        """
        context = self.context(input_ids, attention_mask, sequence_id, cache, position_ids)
        if labels is not None:
            self._check_labels(labels, input_ids, context)
        hidden, routing = self.hidden(input_ids, context)
        if labels is None:
            return Output(self.logits(hidden, logits_to_keep), None, None, None, routing, hidden)
        target = shifted(labels, attention_mask, context.documents)
        cross_entropy = token_losses(self.head, hidden, target)
        loss = cross_entropy
        if routing and self.training and self.config.aux_alpha:
            loss = loss + self.config.aux_alpha * sum(way.balance for way in routing)
        return Output(None, loss, cross_entropy, (target != -100).sum(), routing, hidden)

    def _check_labels(self, labels: Tensor, input_ids: Tensor, context: Context) -> None:
        if labels.shape != input_ids.shape or context.start:
            raise HypvisionError(
                "labels must have the shape of the tokens (the model shifts them by one), and no "
                f"tokens may be in a cache; got {tuple(labels.shape)} for "
                f"{tuple(input_ids.shape)}, with {context.start} in the cache."
            )
        if readable(labels):
            check_tokens(labels[labels != -100], self.config.vocab_size)

    def logits(self, hidden: Tensor, logits_to_keep: int | Tensor = 0) -> Tensor:
        """Return the logits ``(B, kept, V)`` of points ``(B, L, width)``."""
        which = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return rows.upcast(apply_linear(self.head, hidden[:, which]))


def check_tokens(ids: Tensor, vocab_size: int) -> None:
    """Raise HypvisionError for tokens outside the vocabulary, which would crash the process on a
    GPU."""
    lowest, highest = (int(bound) for bound in ids.aminmax()) if ids.numel() else (0, 0)
    if lowest < 0 or highest >= vocab_size:
        raise HypvisionError(
            f"The tokens go from {lowest} to {highest}, but the model knows {vocab_size}, from 0. "
            "Take the tokenizer that the model was trained with, or build the model with its "
            "vocab_size."
        )


def shifted(labels: Tensor, attention_mask: Tensor | None, sequence_id: Tensor | None) -> Tensor:
    """Return for each position the next token, -100 where its document has none."""
    target = F.pad(labels[:, 1:], (0, 1), value=-100)
    if sequence_id is not None:
        following = F.pad(sequence_id[:, 1:], (0, 1), value=-1)
        target = target.masked_fill((sequence_id != following) | (sequence_id < 0), -100)
    if attention_mask is not None:
        there = attention_mask.bool()
        # Neither padding nor the token before it has a label.
        target = target.masked_fill(~(there & F.pad(there[:, 1:], (0, 1))), -100)
    return target


def document_lengths(sequence_id: Tensor) -> list[int]:
    """Return the lengths of runs of equal numbers, row after row; a run ends with its row."""
    change = torch.ones_like(sequence_id, dtype=torch.bool)
    change[:, 1:] = sequence_id[:, 1:] != sequence_id[:, :-1]
    begin = change.flatten().nonzero().flatten()
    end = F.pad(begin[1:], (0, 1), value=sequence_id.numel())
    return (end - begin).tolist()


def document_mask(sequence_id: Tensor) -> Tensor:
    """Return the mask ``(B, 1, L, L)`` of the tokens to which a token attends: itself and those
    before it in its document."""
    place = torch.arange(sequence_id.shape[1], device=sequence_id.device)
    first = first_columns(sequence_id)[..., None]
    return ((place >= first) & (place <= place[:, None]))[:, None]


def _documents(
    position_ids: Tensor,
    attention_mask: Tensor | None,
    sequence_id: Tensor | None,
    start: int,
    input_ids: Tensor,
) -> Tensor | None:
    """Return for each token the number of its document, as ``position_ids`` tell it; raise
    HypvisionError if they contradict the other arguments."""
    b, length = input_ids.shape
    if position_ids.shape not in ((b, length), (1, length)):
        raise HypvisionError(
            f"position_ids must be (batch, tokens) = ({b}, {length}) or (1, {length}), got "
            f"{tuple(position_ids.shape)}."
        )
    if not input_ids.numel():
        return sequence_id
    offset = (
        position_ids - torch.arange(start, start + length, device=position_ids.device)
    ).expand(b, -1)
    if sequence_id is not None:
        inside = (sequence_id[:, 1:] == sequence_id[:, :-1]) & (sequence_id[:, 1:] >= 0)
        if attention_mask is not None:
            inside = inside & attention_mask[:, 1:].bool() & attention_mask[:, :-1].bool()
        wrong = (offset[:, 1:] != offset[:, :-1]) & inside
    elif attention_mask is not None:
        there = attention_mask.bool()
        # As in transformers, positions start at the first token after the padding.
        first = there.int().argmax(1, keepdim=True)
        wrong = (offset != (-first if start else offset.gather(1, first))) & there[:, start:]
    elif start:
        wrong = offset != 0
    else:
        jump = F.pad(offset[:, 1:] != offset[:, :-1], (1, 0))
        return jump.cumsum(1) if bool(jump.any()) else None
    if bool(wrong.any()):
        raise _misplaced(attention_mask)
    return sequence_id


def _misplaced(attention_mask: Tensor | None) -> HypvisionError:
    """Return the error for positions that do not rise by one, with its cause if it is the mask:
    padding in the middle of a row."""
    cause = ""
    if attention_mask is not None:
        there = attention_mask.bool()
        begins = there & ~F.pad(there[:, :-1], (1, 0))
        if bool((begins.sum(1) > 1).any()):
            cause = (
                "The attention_mask has padding between the tokens of a text. generate() of "
                "transformers makes such a mask if the pad token is among the tokens: give it an "
                "attention_mask that is 1 for them, too. "
            )
    return HypvisionError(
        f"{cause}position_ids must rise by one from each token of a document to the next (padding "
        "does not count), and continue those of the cached tokens. For packed documents, let "
        "position_ids begin anew at each document and give no attention_mask, or give sequence_id."
    )


def _without_padding(sequence_id: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Return the numbers of documents with -1 for padding."""
    if sequence_id is None or attention_mask is None:
        return sequence_id
    return sequence_id.masked_fill(~attention_mask.bool(), -1)


def _mask(attention_mask: Tensor | None, start: int, input_ids: Tensor) -> Tensor | None:
    """Return a mask for padding, or for several new tokens after those of a cache; None if a causal
    mask is right."""
    if attention_mask is not None and not bool(attention_mask.all()):
        return _padding_mask(attention_mask.bool(), start)
    b, length = input_ids.shape
    if not start or length <= 1:
        return None
    return _padding_mask(input_ids.new_ones(b, start + length, dtype=torch.bool), start)


def _padding_mask(there: Tensor, start: int) -> Tensor:
    """Return the causal mask ``(B, 1, L, all)`` without padding; ``there`` ``(B, all)`` is False
    for padding, which sees itself so that no row is empty."""
    total = there.shape[1]
    place = torch.arange(total, device=there.device)
    query = place[start:, None]
    return ((place <= query) & there[:, None, :] | (place == query))[:, None]


def _filled(cache: Cache, batch: int) -> int:
    """Return the number of tokens that a cache holds; raise HypvisionError for a cache that HELM
    cannot use."""
    # A cache for compiling is allocated in advance and filled with zeros, which attention would
    # take for points.
    if getattr(cache, "is_compileable", False):
        raise HypvisionError(
            f"A {type(cache).__name__} has empty places for future tokens, and HELM's attention "
            "would treat them as tokens. Give a DynamicCache (in generate(): leave "
            "cache_implementation out) or a hypvision.helm.LatentCache."
        )
    layers = getattr(cache, "layers", None)
    keys = getattr(layers[0], "keys", None) if layers else None
    if keys is not None and keys.shape[0] != batch:
        raise HypvisionError(
            f"The cache holds {keys.shape[0]} sequences, but {batch} are given. Give the cache of "
            "these prompts."
        )
    return int(cache.get_seq_length())
