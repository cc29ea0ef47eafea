"""Lorentz layers of maps on a GPU in few launches: Triton kernels for :mod:`hypvision.nn`.

The batch norm, and the factors and summands of efficient convolutions; the plain forms in that
package define both. Names are those of :func:`hypvision.nn.norm._numbers` and
:meth:`hypvision.nn.conv._Efficient._along_axis`, and ``by_f`` is the derivative of the loss with
respect to ``f``. Maps are float32, numbers of pixels and of the layer are float64. Numbers that few
programs need are stored as partial sums, and each program adds them up anew in the same order, so
that no sum is atomic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypvision.io import Plain

# the number of programs that add up numbers of pixels; the pixels and the channels that a program
# takes at a time
SUMS = 256
PIXELS = 64
CHANNELS = 16


@triton.jit
def _sinh(x):
    return 0.5 * (tl.exp(x) - tl.exp(-x))


@triton.jit
def _root(c):
    return tl.sqrt(tl.load(c).to(tl.float64))


@triton.jit
def _row(pointer, channels: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    return tl.load(pointer + at, at < channels, 0.0).to(tl.float64)


@triton.jit
def _centroid(time, space):
    """Return the space part of the centroid of points with this mean, and the square by whose root
    the mean was divided."""
    length = tl.sqrt(tl.sum(space * space))
    square = tl.maximum((time - length) * (time + length), 1.0)
    return space / tl.sqrt(square), square


@triton.jit
def _by_centroid(by_point, by_time, point, time, square):
    """Return the derivatives with respect to space part and time of a mean of points, from those
    with respect to the space part and the time of its centroid."""
    by_point += by_time * point / tl.sqrt(1.0 + tl.sum(point * point))
    along = tl.where(square > 1.0, tl.sum(by_point * point), 0.0)
    return (by_point + along * point) / tl.sqrt(square), -along * time / square


@triton.jit
def image_means(
    size, center, c, images, points, channels: tl.constexpr, pixels: tl.constexpr,
    BLOCK: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Store the centroid of every image, the mean of its times, and its sum of t - 1 / t."""
    row = tl.program_id(0)
    root = _root(c)
    time = tl.zeros([PIXELS], tl.float64)
    lift = tl.zeros([PIXELS], tl.float64)
    for start in range(0, pixels, PIXELS):
        at = start + tl.arange(0, PIXELS)
        q = tl.load(size + row * pixels + at, at < pixels, 0.0).to(tl.float64) * root
        t = tl.sqrt(1.0 + q * q)
        time += tl.where(at < pixels, t, 0.0)
        lift += t - 1.0 / t
    mean = tl.sum(time) / pixels
    point, _ = _centroid(mean, _row(center + row * channels, channels, BLOCK) * root)
    at = tl.arange(0, BLOCK)
    tl.store(images + 2 * row, mean)
    tl.store(images + 2 * row + 1, tl.sum(lift))
    tl.store(points + row * channels + at, point, at < channels)


@triton.jit
def _rows(
    pointer,
    first,
    count,
    step: tl.constexpr,
    channels: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Load ``ROWS`` rows from number ``first`` on, which begin ``step`` numbers apart; rows beyond
    ``count`` are 0."""
    row = first + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    mask = (row < count)[:, None] & (at < channels)[None, :]
    return tl.load(pointer + row[:, None] * step + at[None, :], mask, 0.0).to(tl.float64)


@triton.jit
def _mean_of_images(points, count, channels: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the mean time and the mean space part of the images' centroids."""
    total = tl.zeros([BLOCK], tl.float64)
    time = tl.sum(total)
    first = 0
    while first < count:
        some = _rows(points, first, count, channels, channels, ROWS, BLOCK)
        total += tl.sum(some, 0)
        times = tl.sqrt(1.0 + tl.sum(some * some, 1))
        time += tl.sum(tl.where(first + tl.arange(0, ROWS) < count, times, 0.0))
        first += ROWS
    return time / count, total / count


@triton.jit
def batch_mean(
    points, beta, c, running, running_var, basis, lengths, sums, count, total,
    channels: tl.constexpr, TRAINING: tl.constexpr, MOMENTUM: tl.constexpr, LONGEST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the space parts of mean and beta, their times and their inner product, and update the
    running mean.

    In evaluation the running mean takes the place of the batch's, and the running variance is
    stored as the sum of all distances that would give it.
    """
    at = tl.arange(0, BLOCK)
    inside = at < channels
    root = _root(c)
    old = _row(running, channels, BLOCK) * root
    length = tl.sqrt(tl.sum(old * old))
    old *= _sinh(tl.minimum(length, LONGEST)) / tl.maximum(length, 1e-30)
    if TRAINING:
        time, space = _mean_of_images(points, count, channels, ROWS, BLOCK)
        m, _ = _centroid(time, space)
    else:
        m = old
        tl.store(sums, tl.load(running_var).to(tl.float64) * total * root)
    m = m.to(tl.float32).to(tl.float64)
    b = (_row(beta + 1, channels, BLOCK) * root).to(tl.float32).to(tl.float64)
    m_time = tl.sqrt(1.0 + tl.sum(m * m))
    tl.store(basis + at, m, inside)
    tl.store(basis + channels + at, b, inside)
    tl.store(lengths, m_time)
    tl.store(lengths + 1, tl.sqrt(1.0 + tl.sum(b * b)))
    tl.store(lengths + 2, tl.sum(m * b))
    if TRAINING:
        time = tl.sqrt(1.0 + tl.sum(old * old))
        new, _ = _centroid(time + MOMENTUM * (m_time - time), old + MOMENTUM * (m - old))
        length = tl.sqrt(tl.sum(new * new))
        angle = tl.log(length + tl.sqrt(1.0 + length * length))
        tl.store(running + at, new * (angle / (tl.maximum(length, 1e-30) * root)), inside)


@triton.jit
def _distance(size, products, c, lengths, p, inside, pixels: tl.constexpr, LEAST: tl.constexpr):
    """Return t, h, sinh(r), r, x.m and x.b of pixels, and whether h was at least ``LEAST``, to
    which smaller ones are raised."""
    root = _root(c)
    q = tl.load(size + p, inside, 0.0).to(tl.float64) * root
    t = tl.sqrt(1.0 + q * q)
    product = products + p // pixels * pixels + p
    x_m = tl.load(product, inside, 0.0).to(tl.float64) * root
    x_b = tl.load(product + pixels, inside, 0.0).to(tl.float64) * root
    h = tl.load(lengths) * t - x_m - 1.0
    free = h >= LEAST
    h = tl.maximum(h, LEAST)
    sinh = tl.sqrt(h * (h + 2.0))
    return t, h, sinh, tl.log(1.0 + h + sinh), x_m, x_b, free


@triton.jit
def distance_sums(
    size,
    products,
    c,
    lengths,
    sums,
    total,
    pixels: tl.constexpr,
    LEAST: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Store sums of r, each over the pixels of one program."""
    out = tl.zeros([PIXELS], tl.float64)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    while tl.min(p) < total:
        _, _, _, r, _, _, _ = _distance(size, products, c, lengths, p, p < total, pixels, LEAST)
        out += tl.where(p < total, r, 0.0)
        p += tl.num_programs(0) * PIXELS
    tl.store(sums + tl.program_id(0), tl.sum(out))


@triton.jit
def _gain(sums, gamma, c, total, EPS: tl.constexpr, SUMS: tl.constexpr):
    """Return the variance, and the number by which radii are multiplied."""
    var = tl.sum(tl.load(sums + tl.arange(0, SUMS))) / (total * _root(c))
    return var, tl.load(gamma).to(tl.float64) / (var + EPS)


@triton.jit
def _scaled(r, gain, most, LONGEST: tl.constexpr, START: tl.constexpr):
    """Return s, and its derivatives with respect to gain * r and to the logarithm of the
    rescaling's limit."""
    s = r * gain
    local = 0.0 * s + 1.0
    bent = 0.0 * s
    if START != 0.0:
        u = s * (START / most)
        away = tl.exp(-2.0 * tl.abs(u))
        tanh = tl.where(u < 0.0, -1.0, 1.0) * (1.0 - away) / (1.0 + away)
        local = START * (1.0 - tanh * tanh)
        bent = most * tanh - s * local
        s = most * tanh
    grows = tl.where(s <= LONGEST, 1.0, 0.0)
    return tl.minimum(s, LONGEST), local * grows, bent * grows


@triton.jit
def _moved(t, h, sinh, s, x_b, lengths):
    """Return f, e_m, e_b and cosh(s) of pixels."""
    f = _sinh(s) / sinh
    cosh = 0.5 * (tl.exp(s) + tl.exp(-s))
    e_m = -f * ((t + 1.0 + h) / (tl.load(lengths) + 1.0))
    e_b = cosh + (f * x_b + e_m * tl.load(lengths + 2)) / (tl.load(lengths + 1) + 1.0)
    return f, e_m, e_b, cosh


@triton.jit
def move(
    x, size, products, basis, lengths, sums, gamma, c, most, out, running, total,
    channels: tl.constexpr, pixels: tl.constexpr, TRAINING: tl.constexpr, MOMENTUM: tl.constexpr,
    EPS: tl.constexpr, LONGEST: tl.constexpr, START: tl.constexpr, LEAST: tl.constexpr,
    SUMS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Store f x + e_m m + e_b b for some pixels and channels; the first program updates the running
    variance."""
    row = tl.program_id(0)
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    inside = at < pixels
    p = row * pixels + at
    spread, gain = _gain(sums, gamma, c, total, EPS, SUMS)
    t, h, sinh, r, _, x_b, _ = _distance(size, products, c, lengths, p, inside, pixels, LEAST)
    s, _, _ = _scaled(r, gain, tl.load(most), LONGEST, START)
    f, e_m, e_b, _ = _moved(t, h, sinh, s, x_b, lengths)
    root = _root(c)
    f = f.to(tl.float32)
    e_m = (e_m / root).to(tl.float32)
    e_b = (e_b / root).to(tl.float32)
    k = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    m = tl.load(basis + k, k < channels, 0.0)
    b = tl.load(basis + channels + k, k < channels, 0.0)
    place = (row * channels + k)[:, None] * pixels + at[None, :]
    mask = (k < channels)[:, None] & inside[None, :]
    value = (
        tl.load(x + place, mask, 0.0) * f[None, :]
        + m[:, None] * e_m[None, :]
        + b[:, None] * e_b[None, :]
    )
    tl.store(out + place, value, mask)
    if TRAINING and (row == 0) & (tl.program_id(1) == 0) & (tl.program_id(2) == 0):
        old = tl.load(running).to(tl.float64)
        tl.store(running, old + MOMENTUM * (spread - old))


@triton.jit
def project(
    x,
    grad,
    basis,
    by,
    channels: tl.constexpr,
    pixels: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Store the inner products of the gradient of each pixel with x, mean and beta."""
    row = tl.program_id(0)
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    with_x = tl.zeros([PIXELS], tl.float32)
    with_m = tl.zeros([PIXELS], tl.float32)
    with_b = tl.zeros([PIXELS], tl.float32)
    for first in range(0, channels, CHANNELS):
        k = first + tl.arange(0, CHANNELS)
        place = (row * channels + k)[:, None] * pixels + at[None, :]
        mask = (k < channels)[:, None] & (at < pixels)[None, :]
        g = tl.load(grad + place, mask, 0.0)
        with_x += tl.sum(g * tl.load(x + place, mask, 0.0), 0)
        with_m += tl.sum(g * tl.load(basis + k, k < channels, 0.0)[:, None], 0)
        with_b += tl.sum(g * tl.load(basis + channels + k, k < channels, 0.0)[:, None], 0)
    place = by + row * 3 * pixels + at
    tl.store(place, with_x, at < pixels)
    tl.store(place + pixels, with_m, at < pixels)
    tl.store(place + 2 * pixels, with_b, at < pixels)


@triton.jit
def number_sums(
    size, products, by, lengths, sums, gamma, c, most, by_gain, ends, by_products, by_time, parts,
    total, pixels: tl.constexpr, FINAL: tl.constexpr, EPS: tl.constexpr, LONGEST: tl.constexpr,
    START: tl.constexpr, LEAST: tl.constexpr, SUMS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Store sums, over the pixels of each program, of derivatives with respect to the gain. The
    final launch, which reads those of all programs, stores the derivatives with respect to products
    and times of pixels, and sums of those with respect to lengths and curvature."""
    root = _root(c)
    var, gain = _gain(sums, gamma, c, total, EPS, SUMS)
    m_time = tl.load(lengths)
    b_time = tl.load(lengths + 1)
    inner = tl.load(lengths + 2)
    by_var = 0.0 * var
    if FINAL:
        by_var = -tl.sum(tl.load(by_gain + tl.arange(0, SUMS))) * gain / (var + EPS)
    by_m_time = tl.zeros([PIXELS], tl.float64)
    by_b_time = tl.zeros([PIXELS], tl.float64)
    by_inner = tl.zeros([PIXELS], tl.float64)
    by_root = tl.zeros([PIXELS], tl.float64)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    while tl.min(p) < total:
        inside = p < total
        t, h, sinh, r, x_m, x_b, free = _distance(
            size, products, c, lengths, p, inside, pixels, LEAST
        )
        s, local, bent = _scaled(r, gain, tl.load(most), LONGEST, START)
        f, e_m, e_b, cosh = _moved(t, h, sinh, s, x_b, lengths)
        place = by + p // pixels * 2 * pixels + p
        by_m = tl.load(place + pixels, inside, 0.0).to(tl.float64) / root
        by_b = tl.load(place + 2 * pixels, inside, 0.0).to(tl.float64) / root
        by_e = by_m + by_b * inner / (b_time + 1.0)
        by_f = tl.load(place, inside, 0.0).to(tl.float64)
        by_f += by_b * x_b / (b_time + 1.0) - by_e * (t + 1.0 + h) / (m_time + 1.0)
        by_s = by_b * _sinh(s) + by_f * cosh / sinh
        if FINAL:
            along = -by_e * f / (m_time + 1.0)  # the part of t and h in e_m
            by_r = by_s * local * gain + by_var / (total * root)
            by_h = tl.where(free & inside, along + (by_r - by_f * f * (h + 1.0) / sinh) / sinh, 0.0)
            by_t = along + by_h * m_time
            by_x_b = by_b * f / (b_time + 1.0)
            by_m_time += by_h * t - by_e * e_m / (m_time + 1.0)
            by_b_time += by_b * (cosh - e_b) / (b_time + 1.0)
            by_inner += by_b * e_m / (b_time + 1.0)
            change = (
                by_s * bent
                - by_m * e_m
                - by_b * e_b
                - by_h * x_m
                + by_x_b * x_b
                + by_t * (t - 1.0 / t)
            )
            by_root += tl.where(inside, change, 0.0)
            place = p // pixels * pixels + p
            tl.store(ends + place, e_m / root, inside)
            tl.store(ends + place + pixels, e_b / root, inside)
            tl.store(by_products + place, -by_h * root, inside)
            tl.store(by_products + place + pixels, by_x_b * root, inside)
            tl.store(by_time + p, by_t, inside)
        else:
            by_root += tl.where(inside, by_s * local * r, 0.0)
        p += tl.num_programs(0) * PIXELS
    place = tl.program_id(0)
    if FINAL:
        tl.store(parts + place, tl.sum(by_m_time))
        tl.store(parts + SUMS + place, tl.sum(by_b_time))
        tl.store(parts + 2 * SUMS + place, tl.sum(by_inner))
        tl.store(parts + 3 * SUMS + place, tl.sum(by_root))
    else:
        tl.store(by_gain + place, tl.sum(by_root))


@triton.jit
def mean_back(
    outer, inner, parts, points, beta, c, lengths, basis, sums, by_gain, gamma, by_mean, by_beta,
    by_rest, count, total, channels: tl.constexpr, EPS: tl.constexpr, SUMS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the derivatives with respect to the mean over the images, to beta and to gamma, and the
    part of that with respect to the curvature that is known so far."""
    at = tl.arange(0, BLOCK)
    root = _root(c)
    m = _row(basis, channels, BLOCK)
    b = _row(basis + channels, channels, BLOCK)
    by_m_time = tl.sum(tl.load(parts + tl.arange(0, SUMS)))
    by_b_time = tl.sum(tl.load(parts + SUMS + tl.arange(0, SUMS)))
    by_inner = tl.sum(tl.load(parts + 2 * SUMS + tl.arange(0, SUMS)))
    by_m = b * by_inner + m * (by_m_time / tl.load(lengths))
    by_b = m * by_inner + b * (by_b_time / tl.load(lengths + 1))
    first = 0
    while first < count:
        by_m += tl.sum(_rows(outer, first, count, 2 * channels, channels, ROWS, BLOCK), 0)
        by_m += tl.sum(_rows(inner, first, count, 2 * channels, channels, ROWS, BLOCK), 0)
        by_b += tl.sum(
            _rows(outer + channels, first, count, 2 * channels, channels, ROWS, BLOCK), 0
        )
        by_b += tl.sum(
            _rows(inner + channels, first, count, 2 * channels, channels, ROWS, BLOCK), 0
        )
        first += ROWS
    time, space = _mean_of_images(points, count, channels, ROWS, BLOCK)
    m, square = _centroid(time, space)
    by_space, by_time = _by_centroid(by_m, 0.0, m, time, square)
    tl.store(by_mean + at, by_space / count, at < channels)
    tl.store(by_mean + channels, by_time / count)
    tl.store(by_beta, 0.0)
    tl.store(by_beta + 1 + at, by_b * root, at < channels)
    var, gain = _gain(sums, gamma, c, total, EPS, SUMS)
    by_gain = tl.sum(tl.load(by_gain + tl.arange(0, SUMS)))
    by_root = tl.sum(tl.load(parts + 3 * SUMS + tl.arange(0, SUMS)))
    by_root += tl.sum(by_b * _row(beta + 1, channels, BLOCK)) * root + by_gain * gain * var / (
        var + EPS
    )
    tl.store(by_rest, by_gain / (var + EPS))
    tl.store(by_rest + 1, by_root)


@triton.jit
def images_back(
    center, points, images, by_mean, c, bias, by_times, by_curvature, channels: tl.constexpr,
    pixels: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the derivatives with respect to x and t of every pixel through its image's centroid,
    and those with respect to the curvature."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    root = _root(c)
    time = tl.load(images + 2 * row)
    mean = _row(center + row * channels, channels, BLOCK) * root
    point, square = _centroid(time, mean)
    by_point = _row(by_mean, channels, BLOCK)
    by_space, by_time = _by_centroid(by_point, tl.load(by_mean + channels), point, time, square)
    tl.store(bias + row * channels + at, by_space * root / pixels, at < channels)
    tl.store(by_times + row, by_time / pixels)
    tl.store(
        by_curvature + row,
        tl.sum(by_space * mean) + by_time / pixels * tl.load(images + 2 * row + 1),
    )


@triton.jit
def move_back(
    x, grad, size, products, basis, lengths, sums, gamma, c, most, by_products, by_time, bias,
    by_times, by_curvature, by_rest, out, by_c, by_gamma, count, channels: tl.constexpr,
    pixels: tl.constexpr, total, EPS: tl.constexpr, LONGEST: tl.constexpr, START: tl.constexpr,
    LEAST: tl.constexpr, SUMS: tl.constexpr, IMAGES: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Store the derivative with respect to x for some pixels and channels; the first program
    finishes those with respect to curvature and gamma."""
    row = tl.program_id(0)
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    inside = at < pixels
    p = row * pixels + at
    _, gain = _gain(sums, gamma, c, total, EPS, SUMS)
    t, _, sinh, r, _, _, _ = _distance(size, products, c, lengths, p, inside, pixels, LEAST)
    s, _, _ = _scaled(r, gain, tl.load(most), LONGEST, START)
    f = (_sinh(s) / sinh).to(tl.float32)
    root = _root(c)
    radial = (tl.load(by_time + p, inside, 0.0) + tl.load(by_times + row)) * (root * root) / t
    radial = radial.to(tl.float32)
    place = by_products + p + row * pixels
    by_m = tl.load(place, inside, 0.0)
    by_b = tl.load(place + pixels, inside, 0.0)
    k = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    m = tl.load(basis + k, k < channels, 0.0)
    b = tl.load(basis + channels + k, k < channels, 0.0)
    shift = tl.load(bias + row * channels + k, k < channels, 0.0)
    place = (row * channels + k)[:, None] * pixels + at[None, :]
    mask = (k < channels)[:, None] & inside[None, :]
    value = (
        tl.load(grad + place, mask, 0.0) * f[None, :]
        + tl.load(x + place, mask, 0.0) * radial[None, :]
    )
    value += m[:, None] * by_m[None, :] + b[:, None] * by_b[None, :] + shift[:, None]
    tl.store(out + place, value, mask)
    if (row == 0) & (tl.program_id(1) == 0) & (tl.program_id(2) == 0):
        every = tl.arange(0, IMAGES)
        by_root = tl.load(by_rest + 1) + tl.sum(tl.load(by_curvature + every, every < count, 0.0))
        tl.store(by_c, by_root / (2.0 * root * root))
        tl.store(by_gamma, tl.load(by_rest))


@triton.jit
def _boosted(
    square, wanted, last, c, angle, p, inside, pixels: tl.constexpr, stride, MATCHED: tl.constexpr
):
    """Return for pixels, from their squared norms: the factor that gives them the wanted norms (1
    if they are not matched); their squared norm and last channel after it; their time; and the last
    channel after a boost by the angle along it."""
    q = tl.load(square + p, inside, 0.0).to(tl.float64)
    e = tl.load(last + p // pixels * stride + p % pixels, inside, 0.0).to(tl.float64)
    f = 0.0 * q + 1.0
    if MATCHED:
        w = tl.load(wanted + p, inside, 0.0).to(tl.float64)
        f = tl.sqrt((w + 1e-30) / (q + 1e-30))
        q = w
        e *= f
    t = tl.sqrt(q + 1.0 / tl.load(c).to(tl.float64))
    a = tl.load(angle).to(tl.float64)
    return f, q, e, t, _sinh(a) * t + 0.5 * (tl.exp(a) + tl.exp(-a)) * e


@triton.jit
def _shrunk(q, c, most, START: tl.constexpr, LEAST: tl.constexpr):
    """Return the rescaling's factor for squared norms, sinh(r) before the rescaling, whether it was
    at least its least value, and s with its derivatives."""
    u = q * tl.load(c).to(tl.float64)
    sinh = tl.sqrt(tl.maximum(u, LEAST))
    r = tl.log(sinh + tl.sqrt(1.0 + sinh * sinh))
    s, local, bent = _scaled(r, 1.0, tl.load(most), 1e300, START)
    return _sinh(s) / sinh, sinh, u >= LEAST, s, local, bent


@triton.jit
def boost_numbers(
    square, wanted, last, c, angle, most, factor, shift, total, pixels: tl.constexpr, stride,
    MATCHED: tl.constexpr, START: tl.constexpr, LEAST: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Store the factor of pixels, and the number added to their last channel, by norm matching,
    boost and rescaling."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = p < total
    f, q, e, t, moved = _boosted(square, wanted, last, c, angle, p, inside, pixels, stride, MATCHED)
    k, _, _, _, _, _ = _shrunk(q + (moved - e) * (moved + e), c, most, START, LEAST)
    tl.store(factor + p, f * k, inside)
    tl.store(shift + p, (moved - e) * k, inside)


@triton.jit
def boost_numbers_back(
    square, wanted, last, c, angle, most, by_factor, by_shift, by_square, by_wanted, by_last, parts,
    total, pixels: tl.constexpr, stride, MATCHED: tl.constexpr, START: tl.constexpr,
    LEAST: tl.constexpr, SUMS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Store the derivatives with respect to squared norms and last channels, and sums, over the
    pixels of each program, of those with respect to curvature and angle."""
    c_value = tl.load(c).to(tl.float64)
    a = tl.load(angle).to(tl.float64)
    sinh_a = _sinh(a)
    cosh_a = 0.5 * (tl.exp(a) + tl.exp(-a))
    by_c = tl.zeros([PIXELS], tl.float64)
    by_angle = tl.zeros([PIXELS], tl.float64)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    while tl.min(p) < total:
        inside = p < total
        f, q, e, t, moved = _boosted(
            square, wanted, last, c, angle, p, inside, pixels, stride, MATCHED
        )
        d = moved - e
        u = q + d * (moved + e)
        k, sinh, free, s, local, bent = _shrunk(u, c, most, START, LEAST)
        by_f = tl.load(by_factor + p, inside, 0.0).to(tl.float64)
        by_d = tl.load(by_shift + p, inside, 0.0).to(tl.float64)
        by_k = by_f * f + by_d * d
        by_s = by_k * 0.5 * (tl.exp(s) + tl.exp(-s)) / sinh
        by_sinh = by_s * local / tl.sqrt(1.0 + sinh * sinh) - by_k * k / sinh
        by_u = tl.where(free, by_sinh / (2.0 * sinh), 0.0)
        by_c += by_u * u + by_s * bent / (2.0 * c_value)
        by_u *= c_value
        by_d = by_d * k + by_u * (moved + e)
        by_moved = by_d + by_u * d
        by_t = by_moved * sinh_a / (2.0 * t)
        by_c -= by_t / (c_value * c_value)
        by_angle += by_moved * (cosh_a * t + sinh_a * e)
        by_e = by_u * d - by_d + by_moved * cosh_a
        by_q = by_u + by_t
        if MATCHED:
            by_f = by_f * k + by_e * e / f
            tl.store(by_wanted + p, by_q + by_f * f / (2.0 * (q + 1e-30)), inside)
            by_q = -by_f * f * f * f / (2.0 * (q + 1e-30))
        tl.store(by_square + p, by_q, inside)
        tl.store(by_last + p, by_e * f, inside)
        p += tl.num_programs(0) * PIXELS
    tl.store(parts + tl.program_id(0), tl.sum(by_c))
    tl.store(parts + SUMS + tl.program_id(0), tl.sum(by_angle))


def _tiles(x: Tensor) -> tuple[tuple[int, int, int], dict[str, int], dict[str, int]]:
    """Return the grid of programs over a map ``(B, C, N)``, the pixels and channels of each
    program, and the number of rows and the block of programs that read whole rows."""
    pixels = min(PIXELS, triton.next_power_of_2(x.shape[2]))
    channels = min(CHANNELS, triton.next_power_of_2(x.shape[1]))
    grid = (x.shape[0], triton.cdiv(x.shape[2], pixels), triton.cdiv(x.shape[1], channels))
    block = triton.next_power_of_2(x.shape[1])
    return (
        grid,
        dict(PIXELS=pixels, CHANNELS=channels),
        dict(ROWS=max(1, 2048 // block), BLOCK=block),
    )


def forward(
    x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, most: Tensor, running: tuple[Tensor, Tensor],
    momentum: float | None, constants: Plain,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the batch norm of a map ``(B, C, N)``, and the tensors that the backward of training
    needs; running statistics are updated.

    Args:
        x: the map, float32 and contiguous.
        beta, gamma, c: parameters and curvature, of any dtype.
        most: the radius that the rescaling approaches.
        running: running mean and running variance.
        momentum: weight of this batch in the running statistics; None in evaluation.
        constants: ``EPS``, ``LONGEST``, ``START`` (0 without rescaling) and ``LEAST``.
    """
    count, channels, pixels = x.shape
    total = count * pixels
    training = momentum is not None
    grid, tiles, whole = _tiles(x)
    parts = min(SUMS, triton.next_power_of_2(triton.cdiv(total, PIXELS))) if training else 1
    wide: Plain = dict(dtype=torch.float64, device=x.device)
    size = torch.linalg.vector_norm(x, dim=1)
    center = x
    images = x.new_empty(0)
    points = x.new_empty(0)
    if training:
        center = x.mean(2)
        images = torch.empty(count, 2, **wide)
        points = torch.empty(count, channels, **wide)
        some = min(1024, triton.next_power_of_2(pixels))
        image_means[(count,)](
            size, center, c, images, points, channels, pixels, whole["BLOCK"], some
        )
    basis = x.new_empty(2, channels)
    lengths = torch.empty(3, **wide)
    sums = torch.empty(parts, **wide)
    moving = dict(TRAINING=training, MOMENTUM=momentum or 0.0)
    batch_mean[(1,)](
        points, beta, c, *running, basis, lengths, sums, count, total, channels,
        LONGEST=constants["LONGEST"], **moving, **whole,
    )  # fmt: skip
    products = torch.bmm(basis.expand(count, -1, -1), x)
    if training:
        distance_sums[(parts,)](
            size, products, c, lengths, sums, total, pixels, constants["LEAST"], PIXELS
        )
    out = torch.empty_like(x)
    move[grid](
        x, size, products, basis, lengths, sums, gamma, c, most, out, running[1], total, channels,
        pixels, SUMS=parts, **moving, **constants, **tiles,
    )  # fmt: skip
    return out, size, center, images, points, basis, lengths, sums, products


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, most: Tensor,
    kept: tuple[Tensor, ...], constants: Plain,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the derivatives with respect to x, beta, gamma and c in training; ``kept`` are the
    tensors that :func:`forward` returned after the result."""
    size, center, images, points, basis, lengths, sums, products = kept
    count, channels, pixels = x.shape
    total = count * pixels
    grid, tiles, whole = _tiles(x)
    wide: Plain = dict(dtype=torch.float64, device=x.device)
    by = x.new_empty(count, 3, pixels)
    by_gain = torch.empty_like(sums)
    by_numbers = sums.new_empty(4, sums.numel())
    project[grid[:2]](x, grad, basis, by, channels, pixels, **tiles)
    ends = torch.empty_like(products)
    by_products = torch.empty_like(products)
    by_time = torch.empty_like(size)
    for final in (False, True):
        number_sums[sums.shape](
            size, products, by, lengths, sums, gamma, c, most, by_gain, ends, by_products, by_time,
            by_numbers, total, pixels, final, SUMS=sums.numel(), PIXELS=PIXELS, **constants,
        )  # fmt: skip
    outer = torch.bmm(ends, grad.transpose(1, 2))
    inner = torch.bmm(by_products, x.transpose(1, 2))
    by_mean = torch.empty(channels + 1, **wide)
    by_beta = torch.empty_like(beta)
    by_rest = torch.empty(2, **wide)
    mean_back[(1,)](
        outer, inner, by_numbers, points, beta, c, lengths, basis, sums, by_gain, gamma, by_mean,
        by_beta, by_rest, count, total, channels, constants["EPS"], sums.numel(), **whole,
    )  # fmt: skip
    bias = torch.empty_like(center)
    by_times = torch.empty(count, **wide)
    by_curvature = torch.empty(count, **wide)
    images_back[(count,)](
        center,
        points,
        images,
        by_mean,
        c,
        bias,
        by_times,
        by_curvature,
        channels,
        pixels,
        whole["BLOCK"],
    )
    out = torch.empty_like(x)
    by_c = torch.empty_like(c)
    by_gamma = torch.empty_like(gamma)
    move_back[grid](
        x, grad, size, products, basis, lengths, sums, gamma, c, most, by_products, by_time, bias,
        by_times, by_curvature, by_rest, out, by_c, by_gamma, count, channels, pixels, total,
        SUMS=sums.numel(), IMAGES=triton.next_power_of_2(count), **constants, **tiles,
    )  # fmt: skip
    return out, by_beta, by_gamma, by_c


def boost_forward(
    square: Tensor, wanted: list[Tensor], last: Tensor, c: Tensor, angle: Tensor, most: Tensor,
    constants: dict[str, float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return norm matching, boost and rescaling of maps as a factor ``(B, 1, ...)`` and a number to
    add to the last channel, of the same shape.

    Args:
        square: squared norms of pixels ``(B, 1, ...)``, contiguous.
        wanted: a list of the squared norms that they get, empty if norms are not matched.
        last: the last channel ``(B, 1, ...)``.
        c, angle: the curvature, and the angle of the boost.
        most: the radius that the rescaling approaches.
        constants: ``START`` (0 without rescaling) and ``LEAST``.
    """
    factor = torch.empty_like(square)
    shift = torch.empty_like(square)
    given = (square, (*wanted, square)[0], last, c, angle, most)
    total = square.numel()
    pixels = square[0].numel()
    boost_numbers[(triton.cdiv(total, PIXELS),)](
        *given,
        factor,
        shift,
        total,
        pixels,
        last.stride(0),
        len(wanted) > 0,
        PIXELS=PIXELS,
        **constants,
    )
    return factor, shift


def boost_backward(
    grads: tuple[Tensor, ...], square: Tensor, wanted: list[Tensor], last: Tensor, c: Tensor,
    angle: Tensor, most: Tensor, constants: dict[str, float],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the derivatives with respect to ``square``, ``last``, ``c``, ``wanted`` (if it is
    given) and ``angle``."""
    total = square.numel()
    pixels = square[0].numel()
    sums = min(SUMS, triton.next_power_of_2(triton.cdiv(total, PIXELS)))
    parts = torch.empty(2, sums, dtype=torch.float64, device=square.device)
    by_square, by_last, by_wanted = (torch.empty_like(square) for _ in range(3))
    given = (
        square,
        (*wanted, square)[0],
        last,
        c,
        angle,
        most,
        *(grad.contiguous() for grad in grads),
    )
    boost_numbers_back[(sums,)](
        *given, by_square, by_wanted, by_last, parts, total, pixels, last.stride(0),
        len(wanted) > 0, SUMS=sums, PIXELS=PIXELS, **constants,
    )  # fmt: skip
    by_c, by_angle = parts.sum(1).unbind()
    return (
        by_square,
        by_last,
        by_c,
        *([by_wanted] if wanted else []),
        by_angle.view_as(angle).to(angle.dtype),
    )
