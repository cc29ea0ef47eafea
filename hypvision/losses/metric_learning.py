"""Metric-learning losses on the directions or the hyperbolic distances of embeddings.

Proxy-Anchor, which the HIER recipes use, Proxy-NCA and SupCon are our own (:mod:`.proxy_anchor`,
:mod:`.supcon`), in the form of HIER's code, which differs from that of the papers. All other losses
(MultiSimilarityLoss, SoftTripleLoss, ...) come from pytorch-metric-learning (``pip install
'hypvision[metric]'``) and are given our distance.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.geometry import Euclidean, Lorentz, Manifold, PoincareBall, lorentz, poincare
from hypvision.geometry.numerics import exact
from hypvision.io import HypvisionError, Plain, did_you_mean, one_of, refuse, require

from .prototypes import PrototypeMetricLoss
from .proxy_anchor import ProxyAnchorLoss, ProxyNCALoss
from .supcon import SupConLoss

# Our defaults for hyperbolic distances. Those of pytorch-metric-learning are for cosines from -1 to
# 1; distances are several units, so that with those defaults the repelling terms vanish and all
# points collapse. Multi-Similarity (on -d) and SupCon use the defaults of HIER's code for
# distances. The others use the published defaults on the similarity -d / 10, because HIER's two
# Multi-Similarity losses differ by this factor (beta 50 for cosines, 5 for distances).
_HYPERBOLIC: dict[str, dict[str, float]] = {
    "MultiSimilarityLoss": dict(alpha=1.0, beta=5.0, base=0.0),
    "ProxyAnchorLoss": dict(alpha=3.2, margin=1.0),
    "SoftTripleLoss": dict(la=2.0, gamma=1.0, margin=0.1),
    "ProxyNCALoss": dict(alpha=3.2, margin=1.0),
}

# Losses of pytorch-metric-learning that take a similarity instead of a distance.
_WANTS_SIMILARITY = ("MultiSimilarityLoss", "ProxyAnchorLoss", "SoftTripleLoss")

# Losses that compare similarities with a fixed number, so the mean distance is subtracted first.
_WANTS_CENTRE = ("MultiSimilarityLoss", "ProxyAnchorLoss")


# Losses that cannot train labelled embeddings, with the reason for the message.
_NO_LOSS = {
    **dict.fromkeys(
        ("VICRegLoss", "SelfSupervisedLoss"), "compares two views of each image and takes no labels"
    ),
    "ManifoldLoss": "makes its own groups of points and takes no labels",
    **dict.fromkeys(
        ("BaseLossWrapper", "CrossBatchMemory", "MultipleLosses"), "wraps other losses"
    ),
    **dict.fromkeys(("BaseMetricLossFunction", "GenericPairLoss"), "is the base of others"),
    **dict.fromkeys(("EmbeddingRegularizerMixin", "WeightRegularizerMixin"), "is a part of others"),
}

# Losses that accept our distance but are defined only for cosines, with the reason.
_COSINES = {
    "HistogramLoss": "its histograms are of similarities from -1 to 1",
    "P2SGradLoss": "its gradients are of cosines, whatever the distance",
}


def _sizes(num_classes: int | None, dim: int | None) -> dict[str, int | None]:
    """Return the number of classes and the dimension under all argument names that losses have for
    them."""
    return {"num_classes": num_classes, "dim": dim, "embedding_size": dim, "descriptors_dim": dim}


def hyperbolic_distance(
    manifold: Manifold, similarity: bool = False, centred: bool = False
) -> nn.Module:
    """Return the distance on the hyperboloid as a distance object of pytorch-metric-learning.

    It takes points by their space parts, ``(N, n)`` and ``(M, n)``, which may be any vectors; so
    the Euclidean proxies of a loss are points, too.

    Args:
        manifold: the manifold, of which only the curvature is used.
        similarity: return ``-d``, which is larger for more similar points, instead of ``d``.
        centred: subtract the mean of a matrix of distances (without those of points from
            themselves), as a constant without a gradient.
    """
    distances = require("pytorch_metric_learning.distances", "metric")

    base: Any = distances.BaseDistance

    class HyperbolicDistance(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(normalize_embeddings=False, is_inverted=similarity)
            self.manifold = manifold
            self.sign = -1 if similarity else 1

        def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
            x = self._points(query_emb)
            y = self._points(ref_emb)
            found = lorentz.cdist(x, y, self.manifold.c)
            if centred:
                # For distances within a batch the library passes the same tensor twice; the zeros
                # on the diagonal are then left out of the mean.
                count = found.numel() - (len(x) if query_emb is ref_emb else 0)
                found = found - found.detach().sum() / max(count, 1)
            return self.sign * found

        def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
            return self.sign * lorentz.dist(
                self._points(query_emb), self._points(ref_emb), self.manifold.c
            )

        def _points(self, space: Tensor) -> Tensor:
            return lorentz.from_space(space, self.manifold.c)

    return HyperbolicDistance()


def _parameters_of(kind: type) -> set[str]:
    """Return the argument names of a class and its bases, since some losses pass arguments on to a
    base."""
    return {
        key
        for base in kind.__mro__
        if "__init__" in vars(base)
        for key in inspect.signature(base).parameters
    }


_OWN: dict[str, type[nn.Module]] = {
    "ProxyAnchorLoss": ProxyAnchorLoss,
    "ProxyNCALoss": ProxyNCALoss,
    "SupConLoss": SupConLoss,
    "PrototypeMetricLoss": PrototypeMetricLoss,
}


class MetricLoss(nn.Module):
    """A metric-learning loss by name.

    Args:
        name: ``"ProxyAnchorLoss"``, ``"ProxyNCALoss"``, ``"SupConLoss"``, ``"PrototypeMetricLoss"``
            (``"hyperbolic"`` only), or a loss of ``pytorch_metric_learning.losses``.
        manifold: the space in which the embeddings lie.
        num_classes: number of training classes; for losses with proxies.
        dim: dimension of the space; for losses with proxies.
        distance: ``"angular"`` (cosines of the directions seen from the origin) or
            ``"hyperbolic"``.
        options: further arguments of the loss, e.g. ``alpha``. The defaults for ``"hyperbolic"``
            are not the library's:

            - MultiSimilarityLoss: ``alpha=1, beta=5``, and for ``base`` the mean of the
              similarities ``-d`` of each batch, as in the official code of HIER; a given ``base``
              is a similarity, too;
            - ProxyAnchorLoss and ProxyNCALoss: ``alpha=3.2, margin=1`` on similarities ``b - d``,
              ``b`` the mean distance of the batch from the proxies;
            - SoftTripleLoss: ``la=2, gamma=1, margin=0.1``.

            Other losses keep the library's defaults, which are meant for vectors of length 1: set
            their margins for distances of some units.

    Shapes:
        points on ``manifold`` ``(B, ...)`` and labels ``(B,)``, to a scalar. Computed outside
        autocast.
    """

    def __init__(
        self,
        name: str,
        manifold: Manifold,
        num_classes: int | None = None,
        dim: int | None = None,
        distance: str = "angular",
        **options: Any,
    ):
        super().__init__()
        one_of(("angular", "hyperbolic"), distance=distance)
        refuse(
            (
                distance == "hyperbolic" and isinstance(manifold, Euclidean),
                "distance='hyperbolic' needs hyperbolic embeddings: give the neck a curvature.",
            ),
            (
                distance == "angular" and name == "PrototypeMetricLoss",
                "PrototypeMetricLoss has prototypes at infinity: set distance='hyperbolic'.",
            ),
        )
        self.manifold = manifold
        self.angular = distance == "angular"
        kind = self._own(name) or self._of_library(name)
        taken = _parameters_of(kind)
        sizes = {key: value for key, value in _sizes(num_classes, dim).items() if key in taken}
        if not self.angular:
            options = self._hyperbolic(name, kind in _OWN.values(), options)
        try:
            self.loss = kind(**{**sizes, **options})
        except AssertionError as error:
            # Losses of the library assert that they get a distance, or that they get a similarity.
            raise HypvisionError(
                f"The loss '{name}' has no form for hyperbolic distances ({error}): set "
                "distance='angular'."
            ) from error
        except (TypeError, ValueError, KeyError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise HypvisionError(
                f"The loss '{name}' does not accept its arguments: {reason}. Correct them."
            ) from error

    def _own(self, name: str) -> type[nn.Module] | None:
        """The class of a loss of this package; the library's Proxy-Anchor is hyperbolic, too."""
        return _OWN.get(name) if self.angular or name != "ProxyAnchorLoss" else None

    def _hyperbolic(self, name: str, ours: bool, options: Plain) -> Plain:
        """Return the arguments of a loss on hyperbolic distances: the given options, our defaults
        and the distance."""
        centred = name in _WANTS_CENTRE and "base" not in options
        options = {**_HYPERBOLIC.get(name, {}), **options}
        if name == "PrototypeMetricLoss":
            return {"manifold": self.manifold, **options}
        if ours:
            return {"similarity": self._similarity, **options}
        distance = hyperbolic_distance(self.manifold, name in _WANTS_SIMILARITY, centred)
        return {**options, "distance": distance}

    def _of_library(self, name: str) -> type[nn.Module]:
        """Return the class of a loss of pytorch-metric-learning, after a check that it can be used
        here."""
        losses = require("pytorch_metric_learning.losses", "metric")
        kind: type[nn.Module] | None = getattr(losses, name, None)
        if kind is None or not inspect.isclass(kind):
            names = [
                n
                for n, value in vars(losses).items()
                if inspect.isclass(value) and n.endswith("Loss")
            ]
            hint = did_you_mean(name, names) or f" Known: {', '.join(sorted(names))}."
            raise HypvisionError(f"pytorch-metric-learning has no loss '{name}'.{hint}")
        if name in _NO_LOSS:
            raise HypvisionError(
                f"'{name}' {_NO_LOSS[name]}, so it cannot train embeddings of labelled images here."
            )
        if not self.angular and name in _COSINES:
            raise HypvisionError(
                f"The loss '{name}' has no form for hyperbolic distances ({_COSINES[name]}): set "
                "distance='angular'."
            )
        return kind

    def _similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the negative distances ``(N, M)`` of points given by their space parts, minus
        their mean, because Proxy-NCA has a fixed margin; for SupCon a constant makes no
        difference."""
        c = self.manifold.c
        found = -lorentz.cdist(lorentz.from_space(x, c), lorentz.from_space(y, c), c)
        return found - found.detach().mean()

    def vectors(self, x: Tensor) -> Tensor:
        """Return points as vectors ``(B, dim)``: the space parts on the hyperboloid, whose
        directions are those of the points as seen from the origin."""
        if isinstance(self.manifold, PoincareBall) and not self.angular:
            return poincare.to_lorentz(x, self.manifold.c)[:, 1:]
        return x[:, 1:] if isinstance(self.manifold, Lorentz) else x

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        with exact(x.device):
            out: Tensor = self.loss(
                self.vectors(x.to(torch.promote_types(x.dtype, torch.float32))), labels
            )
            return out
