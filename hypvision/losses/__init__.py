"""Losses of hyperbolic learning."""

from .hier import HIERLoss, clip_to_ball, lca_triplet_loss, mutual_neighbours, rescale_radii, sample_triplets
from .metric_learning import MetricLoss, hyperbolic_distance
from .proxy_anchor import ProxyAnchorLoss

__all__ = [
    "HIERLoss",
    "MetricLoss",
    "ProxyAnchorLoss",
    "clip_to_ball",
    "hyperbolic_distance",
    "lca_triplet_loss",
    "mutual_neighbours",
    "rescale_radii",
    "sample_triplets",
]
