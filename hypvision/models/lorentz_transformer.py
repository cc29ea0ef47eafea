"""What the vision transformers on the hyperboloid share: timm's interface, blocks and pooling.

Tokens are the space parts of points, one per patch: ``(B, n, h, w)``. With a class token, patches
follow it in a row: ``(B, n, 1 + h w)``. The feature maps that a network returns
(``features_only=True``, ``forward_intermediates``) are tangent vectors at the origin, without that
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from hypvision.checkpoints.types import StateDict
from hypvision.geometry import Lorentz
from hypvision.io import ArgumentError, Plain, at_least, one_of
from hypvision.nn import LorentzConv2d, LorentzGlobalAvgPool2d, ToTangent

from .base import (
    COMMON_CFG,
    FeatureMaps,
    StagedModel,
    build_model,
    check_pool,
    check_sizes,
    level_indices,
    with_zoo,
)
from .lorentz_resnet import LorentzClassifier


class TokenBlock(nn.Module):
    """Block of a transformer on maps of space parts, ``(B, n, h, w)`` or ``(B, n, N)``."""

    def __init__(self) -> None:
        super().__init__()
        self.grad_checkpointing = False

    def _tokens(self, x: Tensor) -> Tensor:
        """Return the results ``(B, N, n)`` for tokens of that shape."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        tokens = x.flatten(2).transpose(1, 2)
        tokens = (
            checkpoint(self._tokens, tokens) if self.grad_checkpointing else self._tokens(tokens)
        )
        out: Tensor = tokens.transpose(1, 2).unflatten(2, size)
        return out


class TokenPool(nn.Module):
    """Pool space parts ``(B, C, 1 + N)`` to ``(B, C)``: to the class token, which stands first, or
    with ``"avg"`` to the centroid of the others."""

    def __init__(self, manifold: Lorentz, pool_type: str):
        super().__init__()
        self.pool_type = pool_type
        self.mean = LorentzGlobalAvgPool2d(manifold)

    def forward(self, x: Tensor) -> Tensor:
        if self.pool_type == "token":
            return x[..., 0]
        out: Tensor = self.mean(x[..., 1:].unsqueeze(-1))
        return out


class TokenStem(nn.Module):
    """Layer from images to the tokens of their patches, with positions.

    Args:
        manifold: the hyperboloid of the tokens.
    """

    conv: LorentzConv2d
    pos_embed: nn.Parameter
    class_token: nn.Parameter | None

    def __init__(self, manifold: Lorentz):
        super().__init__()
        self.manifold = manifold


class LorentzTransformer(StagedModel):
    """A vision transformer whose tokens are points of one hyperboloid.

    A subclass makes ``stem``, then calls :meth:`_finish`.

    Args:
        img_size: side of the images, or height and width.
        patch_size: side of the patches, in pixels.
        in_chans: input channels.
        embed_dim: space dimension of the tokens.
        depth: number of blocks.
        num_heads: number of heads of the attention.
        manifold: the hyperboloid of the tokens.
        drop_rate: rate of dropout before the head.
        proj_drop_rate: rate of dropout inside blocks.
        drop_path_rate: rate of stochastic depth.

    Attributes:
        grid: rows and columns of patches.
        head_class: the class of the classifier.
        undecayed: ends of the names of parameters without weight decay.

    Raises:
        ValueError: an argument has an unknown value, or the image is no whole number of patches.
    """

    stem: TokenStem
    manifold: Lorentz
    head_class: type[nn.Module] = LorentzClassifier
    undecayed: tuple[str, ...] = ()

    def __init__(
        self,
        img_size: int | tuple[int, int],
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        manifold: Lorentz,
        drop_rate: float,
        proj_drop_rate: float,
        drop_path_rate: float,
    ):
        super().__init__()
        at_least(1, integer=True, patch_size=patch_size, depth=depth, num_heads=num_heads)
        check_sizes(
            in_chans,
            drop_rate=drop_rate,
            proj_drop_rate=proj_drop_rate,
            drop_path_rate=drop_path_rate,
        )
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        if height % patch_size or width % patch_size:
            raise ArgumentError(
                f"img_size must be a multiple of patch_size={patch_size}, got {height} x {width}."
            )
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.patch_size = patch_size
        self.num_features = self.head_hidden_size = embed_dim
        self.manifold = manifold
        self.grid = (height // patch_size, width // patch_size)
        self.feature_info = [
            dict(num_chs=embed_dim, reduction=patch_size, module=f"stages.{i}")
            for i in range(depth)
        ]

    def _finish(
        self, blocks: Iterable[TokenBlock], norm: nn.Module, global_pool: str, num_classes: int
    ) -> None:
        """Make everything after the stem."""
        self.stages = nn.ModuleList(blocks)
        self.norm = norm
        self.to_tangent = ToTangent(self.manifold)
        self._set_pool(global_pool, num_classes)
        self._set_head(num_classes)

    def _set_pool(self, pool_type: str, num_classes: int) -> None:
        has_token = self.stem.class_token is not None
        check_pool(pool_type, num_classes, ("avg", "token", "") if has_token else ("avg", ""))
        self.global_pool = nn.Identity()
        if pool_type and has_token:
            self.global_pool = TokenPool(self.manifold, pool_type)
        elif pool_type:
            self.global_pool = LorentzGlobalAvgPool2d(self.manifold)

    def _set_head(self, num_classes: int) -> None:
        at_least(0, integer=True, num_classes=num_classes)
        weight = self.stem.conv.weight
        self.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes:
            self.head = self.head_class(
                self.num_features,
                num_classes,
                self.manifold,
                device=weight.device,
                dtype=weight.dtype,
            )

    # Methods of timm's interface

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        names = (name for name, _ in self.named_parameters())
        return {name for name in names if name.endswith(self.undecayed)}

    def group_matcher(self, coarse: bool = False) -> Plain:
        """Return timm's patterns of parameter groups, from the stem to the head, for layer-wise
        learning rates."""
        # One curvature of all layers belongs to the stem; one of the head alone is not named here,
        # as the head is not.
        shared = self.stem.manifold is self.manifold
        return dict(
            stem="^stem|^manifold" if shared else "^stem",
            blocks=[(r"^stages\.(\d+)", None), (r"^norm", (99999,))],
        )

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one for ``num_classes`` (0: none), and the pooling if it is
        given."""
        if global_pool is not None:
            self._set_pool(global_pool, num_classes)
        self._set_head(num_classes)
        for part in (self.global_pool, self.head):
            part.train(self.training)

    def _stage_map(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        """Return the map in Euclidean form: tangent vectors at the origin."""
        out: Tensor = self.to_tangent(self._normed(x) if norm else x)
        return out

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        return_prefix_tokens: bool = False,
    ) -> Any:
        """Return the tokens of blocks in Euclidean form (tangent vectors at the origin), and the
        final features, as timm's ``VisionTransformer`` does.

        Args:
            x: images ``(B, in_chans, H, W)``.
            indices: which blocks: the last n for an integer n, all for None, else their numbers.
            norm: whether the final norm is applied to the tokens of each block.
            stop_early: whether blocks after the last one asked for are left out.
            output_fmt: ``"NCHW"`` for maps, ``"NLC"`` for sequences of the patches.
            intermediates_only: whether the list is returned alone.
            return_prefix_tokens: whether each entry of the list is a pair of the patches and the
                class token ``(B, 1, C)``, if the network has one.

        Returns:
            The list of maps ``(B, C, h, w)`` or sequences ``(B, h w, C)``; before it, unless
            ``intermediates_only``, what :meth:`forward_features` returns, or the last map computed.
        """
        one_of(("NCHW", "NLC"), output_fmt=output_fmt)
        taken = level_indices(len(self.stages), indices)
        count = taken[-1] + 1 if stop_early else len(self.stages)
        size = [side // self.patch_size for side in x.shape[2:]]
        found: list[Any] = []
        x = self._enter(x)
        for i, stage in enumerate(self.stages[:count]):
            x = stage(x)
            if i in taken:
                prefix, patches = self.split_tokens(self._stage_map(i, x, norm))
                given = (
                    patches.transpose(1, 2) if output_fmt == "NLC" else patches.unflatten(2, size)
                )
                has_pair = return_prefix_tokens and self.stem.class_token is not None
                found.append((given, prefix.transpose(1, 2)) if has_pair else given)
        if intermediates_only:
            return found
        return self._normed(x) if count == len(self.stages) else x, found

    def get_intermediate_layers(
        self,
        x: Tensor,
        n: int | list[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> Any:
        """Return what :meth:`forward_intermediates` lists, by the names that DINO's code has: ``n``
        are the indices, and only with ``reshape`` maps are returned."""
        return self.forward_intermediates(
            x,
            indices=n,
            norm=norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
            return_prefix_tokens=return_prefix_tokens,
        )

    def split_tokens(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class token ``(B, C, 0 or 1)`` and the patches ``(B, C, h w)`` of a stage."""
        tokens = x.flatten(2)
        count = 0 if self.stem.class_token is None else 1
        return tokens[..., :count], tokens[..., count:]

    def _prune(self, taken: list[int], last: int, prune_norm: bool) -> None:
        if prune_norm:
            self.norm = nn.Identity()


# timm's pretrained config of a transformer of patches of 16 pixels
transformer_cfg: partial[Plain] = partial(
    dict,
    COMMON_CFG,
    input_size=(3, 224, 224),
    pool_size=(14, 14),
    crop_pct=0.9,
    first_conv="stem.conv",
    license="mit",
)


def create_transformer(
    cls: type[LorentzTransformer],
    filter_fn: Callable[..., StateDict],
    variant: str,
    pretrained: bool,
    kwargs: Plain,
) -> nn.Module:
    """Return the network ``cls`` that timm builds for a variant; ``filter_fn`` translates its
    checkpoints."""
    _, kwargs = with_zoo(variant, pretrained, {}, kwargs)
    return build_model(
        cls,
        variant,
        pretrained,
        pretrained_filter_fn=filter_fn,
        feature_cfg=dict(out_indices=min(4, kwargs.get("depth", 12)), feature_cls=FeatureMaps),
        **kwargs,
    )
