"""Neural-network layers built on :mod:`hypvision.geometry`."""

from .cluster_mixer import ClusterAssignment, ClusterMixer

__all__ = ["ClusterAssignment", "ClusterMixer"]
