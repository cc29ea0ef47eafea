"""Losses for training in hyperbolic space: contrast, entailment, metric learning, hierarchies and
prototypes."""

from .contrastive import compositional_entailment, contrastive_loss, entailment
from .hier import HIERLoss, clip_to_ball, lca_triplet_loss, mutual_neighbours, rescale_radii
from .himapper import gaussian_prior_kl, tree_contrastive_loss
from .metric_learning import MetricLoss, hyperbolic_distance
from .prototypes import BusemannPrototypeLoss, IdealPrototypes, PrototypeHead, PrototypeMetricLoss
from .proxy_anchor import ProxyAnchorLoss, ProxyNCALoss
from .radial import (
    EntailmentConeLoss,
    MERUEntailmentLoss,
    RadialLoss,
    chain_triples,
    cone_half_aperture,
    radial_angle,
)
from .supcon import SupConLoss
from .uncha import box_to_whole_contrast, uncertain_entailment, uncertainty

__all__ = [
    "BusemannPrototypeLoss", "EntailmentConeLoss", "HIERLoss", "IdealPrototypes",
    "MERUEntailmentLoss", "MetricLoss", "PrototypeHead", "PrototypeMetricLoss", "ProxyAnchorLoss",
    "ProxyNCALoss", "RadialLoss", "SupConLoss", "box_to_whole_contrast", "chain_triples",
    "clip_to_ball", "compositional_entailment", "cone_half_aperture", "contrastive_loss",
    "entailment", "gaussian_prior_kl", "hyperbolic_distance", "lca_triplet_loss",
    "mutual_neighbours", "radial_angle", "rescale_radii",
    "tree_contrastive_loss", "uncertain_entailment", "uncertainty",
]  # fmt: skip
