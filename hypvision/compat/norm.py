"""Gyrogroup batch normalisation on the hyperboloid (GyroLBN), with the exponential map at the mean,
as geoopt has it."""

from __future__ import annotations

from hypvision.nn.norm import LorentzBatchNorm1d, LorentzBatchNorm2d


class GyroLorentzBatchNorm2d(LorentzBatchNorm2d):
    """Gyrogroup batch normalisation (GyroLBN): radii are multiplied by
    ``exp(gamma) / sqrt(var + eps)``.

    The mean is the centroid over all pixels, the variance the mean *squared* distance from it, and
    ``gamma`` starts at 0. Otherwise this layer equals :class:`LorentzBatchNorm2d`, except that by
    default only the dtype limits the radii.
    """

    gyro = joint = True
    exp_limit = None


class GyroLorentzBatchNorm1d(LorentzBatchNorm1d):
    """Gyrogroup batch normalisation of points ``(N, n)`` or tokens; see
    :class:`GyroLorentzBatchNorm2d`."""

    gyro = joint = True
    exp_limit = None
