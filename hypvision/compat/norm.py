"""Batch normalisation on the hyperboloid with the exponential map at the mean, as geoopt has it."""

from __future__ import annotations

from hypvision.nn.norm import LorentzBatchNorm1d, LorentzBatchNorm2d


class GyroLorentzBatchNorm2d(LorentzBatchNorm2d):
    """Gyrogroup batch normalisation (GyroLBN): radii are multiplied by
    ``exp(gamma) / sqrt(var + eps)``.

    The mean is the centroid over all pixels, the variance the mean *squared* distance, and
    ``gamma`` starts at 0. Otherwise this layer equals :class:`LorentzBatchNorm2d`, but by default
    radii are limited by the dtype only.
    """

    gyro = joint = True
    exp_limit = None


class GyroLorentzBatchNorm1d(LorentzBatchNorm1d):
    """Gyrogroup batch normalisation of points or tokens; see :class:`GyroLorentzBatchNorm2d`."""

    gyro = joint = True
    exp_limit = None
