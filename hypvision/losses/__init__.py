"""Losses of hyperbolic learning."""

from .hier import HIERLoss, clip_to_ball, lca_triplet_loss, mutual_neighbours, rescale_radii, sample_triplets
from .himapper import gaussian_prior_kl, tree_contrastive_loss
from .metric_learning import MetricLoss, hyperbolic_distance
from .proxy_anchor import ProxyAnchorLoss, ProxyNCALoss
from .supcon import SupConLoss

__all__ = [
    "HIERLoss",
    "MetricLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SupConLoss",
    "clip_to_ball",
    "gaussian_prior_kl",
    "hyperbolic_distance",
    "lca_triplet_loss",
    "mutual_neighbours",
    "rescale_radii",
    "sample_triplets",
    "tree_contrastive_loss",
]
