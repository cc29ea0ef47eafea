"""Metric learning under mmengine's Runner: any timm model, a neck into hyperbolic space, and the
loss HIER or LHIER.

Kim et al., "HIER" (CVPR 2023); Bdeir et al., "Robust Hyperbolic Learning with Curvature-Aware
Optimization" (NeurIPS 2025). The timm model is the attribute ``backbone``, as in
:mod:`.classification`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.optim import Optimizer

import hypvision.tasks.frozen_features
import hypvision.tasks.metric_learning_metrics  # noqa: F401 - registers the metric
from hypvision.checkpoints.records import Record
from hypvision.data.image_folder import build_transform
from hypvision.engine.extensions import PREDICTORS
from hypvision.engine.param_groups import ParamGroups
from hypvision.engine.published import build_published
from hypvision.geometry import CurvatureParameter, Euclidean, Lorentz, Manifold, PoincareBall
from hypvision.geometry.numerics import exact, precise
from hypvision.inference.predictors import Predictor, Request
from hypvision.inference.results import Embedding
from hypvision.io import HypvisionError, Plain, Values, one_of
from hypvision.losses import HIERLoss, MetricLoss, clip_to_ball, rescale_radii
from hypvision.losses.contrastive import gathered
from hypvision.nn import LorentzLinear

from .classification import BackboneModel, per_image

GEOMETRIES = {"poincare": PoincareBall, "lorentz": Lorentz, "euclidean": Euclidean}


class EmbeddingNeck(nn.Module):
    """Maps features of a backbone ``(B, in_features)`` to points of a space ``(B, dim)``, or
    ``(B, dim + 1)`` for ``"lorentz"``; in float32 or more precise.

    - ``"poincare"`` (HIER): layer norm, linear layer, clipping, exponential map at the origin of
      the ball.
    - ``"lorentz"`` (LHIER): layer norm, whose output is the space part of points, Lorentz linear
      layer, maximum-distance rescaling.
    - ``"euclidean"``: layer norm, linear layer; for comparison, by cosine.

    Args:
        c: curvature; default 0.1 for ``"poincare"``, 1 for ``"lorentz"``.
        learnable: whether the curvature is learned; default: for ``"lorentz"`` only.
        bounds: limits of a learned curvature, as multiples of ``c``.
        last_norm: whether there is a layer norm; it has no weights.
        clip_radius: longest vector before the exponential map, for ``"poincare"``.
        riemannian: scale gradients by the metric, as HIER does, for ``"poincare"``; default: if the
            curvature is fixed. Hyp-ViT does not scale them.
        slope, limit: of the rescaling, for ``"lorentz"``; see
            :func:`hypvision.geometry.lorentz.rescale`.
    """

    def __init__(
        self,
        in_features: int,
        dim: int = 128,
        geometry: str = "poincare",
        c: float | None = None,
        learnable: bool | None = None,
        bounds: tuple[float, float] = (0.1, 20.0),
        last_norm: bool = True,
        clip_radius: float = 2.3,
        slope: float = 2.0,
        limit: float | None = None,
        riemannian: bool | None = None,
    ):
        super().__init__()
        one_of(GEOMETRIES, **{"model.neck.geometry": geometry})
        self.geometry = geometry
        self.dim = dim
        self.clip_radius = clip_radius
        self.slope = slope
        self.limit = limit
        self.norm = (
            nn.LayerNorm(in_features, elementwise_affine=False) if last_norm else nn.Identity()
        )
        c = (0.1 if geometry == "poincare" else 1.0) if c is None else c
        learnable = geometry == "lorentz" if learnable is None else learnable
        self.riemannian = not learnable if riemannian is None else riemannian
        self.manifold: Manifold = Euclidean()
        try:
            if geometry != "euclidean":
                self.manifold = GEOMETRIES[geometry](c=c, learnable=learnable, bounds=tuple(bounds))
        except ValueError as error:
            raise HypvisionError(f"model.neck: {error}") from error
        if isinstance(self.manifold, Lorentz):
            self.linear: nn.Module = LorentzLinear(
                in_features, dim, self.manifold, init="orthogonal"
            )
        else:
            linear = self.linear = nn.Linear(in_features, dim)
            nn.init.orthogonal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(self.norm(x))
        with exact(x.device):
            x = precise(x)
            if isinstance(self.manifold, PoincareBall):
                return clip_to_ball(x, self.manifold, self.clip_radius, self.riemannian)
            if isinstance(self.manifold, Lorentz):
                return rescale_radii(
                    self.manifold.from_space(x), self.manifold, self.slope, self.limit
                )
            return x


@MODELS.register_module()
class MetricLearner(BackboneModel):
    """A timm model, a neck, a metric loss and optionally a hierarchical loss.

    Args:
        backbone: arguments of :func:`timm.create_model`; ``num_classes`` is set to 0. A distilled
            DeiT gives its class token in training and the mean of both tokens in evaluation, as in
            the HIER recipes.
        neck: arguments of :class:`EmbeddingNeck` after the first.
        num_classes: number of training classes.
        metric_loss: arguments of :class:`~hypvision.losses.MetricLoss`: ``name``, ...
        hier_loss: arguments of :class:`~hypvision.losses.HIERLoss` after the second; None: no
            hierarchical loss.
        hier_weight: weight of the hierarchical loss.
        **kwargs: see :class:`~hypvision.tasks.classification.BackboneModel`.
    """

    def __init__(
        self,
        backbone: Plain,
        neck: Plain,
        num_classes: int,
        metric_loss: Plain | None = None,
        hier_loss: Plain | None = None,
        hier_weight: float = 0.5,
        **kwargs: Any,
    ):
        super().__init__(dict(backbone, num_classes=0), **kwargs)
        self.neck = EmbeddingNeck(self.backbone.num_features, **neck)
        self.train_classes = num_classes
        self.hier_weight = hier_weight
        manifold = self.neck.manifold
        dim = self.neck.dim
        options = {"name": "ProxyAnchorLoss", **(metric_loss or {})}
        self.metric_loss = MetricLoss(
            **options, manifold=manifold, num_classes=num_classes, dim=dim
        )
        self.hier_loss: HIERLoss | None = None
        if hier_loss is not None:
            shared = dict(
                clip_radius=self.neck.clip_radius, slope=self.neck.slope, limit=self.neck.limit
            )
            try:
                self.hier_loss = HIERLoss(manifold, dim, **{**shared, **hier_loss})
            except (ValueError, TypeError) as error:
                raise HypvisionError(f"model.hier_loss: {error}") from error
        self.train(self.training)

    @property
    def is_tuned(self) -> bool:
        """Return whether the backbone begins with trained weights: those of ``checkpoint``, or
        timm's (which have a head, here left out)."""
        return self.checkpoint is not None or self.head_is_new

    @property
    def space(self) -> str:
        """Return how embeddings compare: ``"cosine"`` or ``"lorentz"``, see
        :func:`.metric_learning_metrics.nearest`."""
        return "cosine" if self.neck.geometry == "euclidean" else "lorentz"

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features ``(B, F)`` that the backbone gives for images."""
        if self.training and hasattr(self.backbone, "head_dist"):
            return self.backbone.forward_features(inputs)[:, 0]
        return self.backbone(inputs)

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the embeddings of images, as points of the neck's manifold."""
        return self.neck(self.features(inputs))

    def comparable(self, points: Tensor) -> Tensor:
        """Return embeddings in a form that does not depend on the model: unit vectors for a
        Euclidean neck, otherwise points with time coordinate on the hyperboloid of curvature 1.

        Distances on this hyperboloid are ``sqrt(c)`` times those on the neck's manifold.
        """
        if self.neck.geometry == "euclidean":
            return F.normalize(points.float())
        if isinstance(self.neck.manifold, PoincareBall):
            points = self.neck.manifold.to_lorentz(points)
        return points.float() * self.neck.manifold._value() ** 0.5

    def forward(
        self,
        inputs: Tensor,
        label: Tensor | None = None,
        index: Tensor | None = None,
        mode: str = "tensor",
    ) -> Tensor | dict[str, Tensor] | list[Plain]:
        """Compute what mmengine's ``mode`` asks for, with the arguments of
        :class:`~hypvision.tasks.ImageClassifier`.

        Returns:
            ``"tensor"``: points; ``"loss"``: ``loss_metric``, ``loss_hier`` and, where learned, the
            ``curvature``; ``"predict"``: for each image a dict with ``embedding`` (see
            :meth:`comparable`), ``space``, the backbone's ``features`` as unit vectors, ``label``
            and ``index``.
        """
        one_of(("tensor", "loss", "predict"), mode=mode)
        self.check_channels(inputs)
        features = self.features(inputs)
        points = self.neck(features)
        if mode == "tensor":
            return points
        if mode == "loss":
            if label is None:
                raise HypvisionError(
                    "The loss of a metric learner needs the labels of the images, but label is "
                    "None."
                )
            return self.loss(points, label)
        return per_image(
            label,
            index,
            embedding=self.comparable(points).cpu(),
            features=F.normalize(features.float()).cpu(),
            space=itertools.repeat(self.space),
        )

    def loss(self, points: Tensor, label: Tensor) -> dict[str, Tensor]:
        """Return the losses of the embeddings of all processes, each of which has equally many.
        Under DistributedDataParallel, which averages gradients, all weights get exactly the
        gradient that a single process with the whole batch has."""
        points = gathered(points)
        label = gathered(label)
        try:
            losses = dict(loss_metric=self.metric_loss(points, label))
        except (ValueError, IndexError, RuntimeError) as error:
            # Changing num_classes helps only if a label is too large.
            if label.numel() == 0 or int(label.max()) < self.train_classes:
                raise
            raise HypvisionError(
                f"A label is {int(label.max())}, but model.num_classes is {self.train_classes}: "
                f"{error} Set --cfg-options model.num_classes=N to the number of training classes."
            ) from error
        if self.hier_loss is not None:
            losses["loss_hier"] = self.hier_weight * self.hier_loss(points, label)
        if self.neck.manifold.learnable:
            losses["curvature"] = torch.as_tensor(self.neck.manifold.c).detach()
        return losses


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MetricLearningParamGroups(ParamGroups):
    """The parameter groups of the HIER recipes: ``body`` (the backbone), ``neck``,
    ``hier_proxies``, ``class_proxies`` and ``curvature``, which has no weight decay.

    Options: ``neck_lr_scale`` (1), ``hier_lr_scale`` (50) and ``class_lr_scale`` (1e4), learning
    rates as multiples of the optimiser's ``lr``; ``curvature_lr`` (1e-3), a learning rate.
    """

    defaults = dict(neck_lr_scale=1.0, hier_lr_scale=50.0, class_lr_scale=1e4, curvature_lr=1e-3)

    def groups(self, model: nn.Module) -> list[Plain]:
        lr = self.optimizer_cfg["lr"]
        rates = dict(
            body=lr,
            neck=lr * self.options["neck_lr_scale"],
            hier_proxies=lr * self.options["hier_lr_scale"],
            class_proxies=lr * self.options["class_lr_scale"],
            curvature=self.options["curvature_lr"],
        )
        names = dict(neck="neck", hier_loss="hier_proxies", metric_loss="class_proxies")
        members: dict[str, list] = {name: [] for name in rates}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                curvature = isinstance(parameter, CurvatureParameter)
                group = "curvature" if curvature else names.get(name.partition(".")[0], "body")
                members[group].append(parameter)
        others = dict(curvature=dict(weight_decay=0.0))
        return [
            dict(name=name, params=params, lr=rates[name], **others.get(name, {}))
            for name, params in members.items()
            if params
        ]

    def check(self, optimizer: Optimizer) -> None:
        proxies = [
            p for g in optimizer.param_groups if g["name"] == "hier_proxies" for p in g["params"]
        ]
        if any(hasattr(p, "manifold") for p in proxies) and not hasattr(optimizer, "keeps_points"):
            raise HypvisionError(
                f"The proxies of LHIER are points of a manifold, which {type(optimizer).__name__} "
                "would leave. Set optim_wrapper.optimizer.type to RiemannianAdamW."
            )


@HOOKS.register_module()
class BackboneWarmUpHook(Hook):
    """Trains only the neck and the proxies in the first ``epochs`` epochs: the learning rate of the
    group ``body`` is then 0. The optimiser's moments of the backbone are still updated, as in the
    HIER recipes, and schedules see the true rate."""

    priority = "VERY_HIGH"  # the hook restores the rate before schedulers step

    def __init__(self, epochs: int = 1):
        self.epochs = epochs
        self._rates: list[tuple[dict, float]] = []

    def before_train(self, runner: Runner) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            raise HypvisionError(
                "BackboneWarmUpHook counts epochs, but this training counts iterations, so the "
                "hook would never train the backbone. Leave the hook out of custom_hooks, or train "
                "by epochs."
            )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if runner.epoch < self.epochs:
            for group in runner.optim_wrapper.param_groups:
                if group.get("name") == "body":
                    self._rates.append((group, group["lr"]))
                    group["lr"] = 0.0

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = []


def build_model(record: Record, path: Path, overrides: Values) -> MetricLearner:
    """Return the metric learner of a record of the zoo, built by
    :func:`hypvision.engine.published.build_published`; its attribute ``images`` holds the arguments
    of :func:`~hypvision.data.image_folder.build_transform`."""
    model, config = build_published(record, path, overrides)
    if not isinstance(model, MetricLearner):
        raise HypvisionError(
            f"'{path}' was refused: it holds a {config.get('type')}, not a metric learner."
        )
    given = record.input
    model.images = dict(
        input_size=given.size, mean=given.mean, std=given.std, crop_pct=given.crop_pct,
        interpolation=given.interpolation, crop_mode=given.crop_mode,
    )  # fmt: skip
    return model


def predictor_of_model(model: MetricLearner, request: Request) -> Predictor:
    """Return the predictor of a metric learner of the zoo, which gives embeddings."""
    return _predictor(model, model.images, request)


def _of_config(model: MetricLearner, config: Any, request: Request) -> Predictor:
    """Return the predictor that prepares images as the test data of a config and embeds them."""
    if request.classes is not None:
        raise HypvisionError(
            f"'{request.model}' gives embeddings, not classes: leave out --classes."
        )
    dataset = config.dataset("test")
    return _predictor(model, dict(dataset.transform), request, dataset.get("channels", 3))


def _predictor(
    model: MetricLearner, images: Values, request: Request, channels: int = 3
) -> Predictor:
    """Return the predictor that prepares images by a transform with the arguments ``images`` and
    embeds them; see :meth:`MetricLearner.comparable`."""

    def find(images: list[Tensor]) -> list[Embedding]:
        points = model.comparable(model.embed(torch.stack(images).to(request.device)))
        return [Embedding(vector) for vector in points.cpu().numpy()]

    return Predictor(build_transform(dict(images)), find, channels=channels)


PREDICTORS["MetricLearner"] = _of_config
