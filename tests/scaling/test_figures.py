"""What figures show of a sweep's rows."""

import pytest

from hypvision.scaling.figures import _means


def test_error_bars_are_over_replicates_or_over_test_batches():
    one = [dict(m=8, loss=2.0, loss_std=0.3, phi_half=0.5), dict(m=4, loss=3.0, loss_std=None, phi_half=1.0)]
    assert _means(one, "m", "loss") == ([4, 8], [3.0, 2.0], [0.0, 0.3])
    assert _means(one, "m", "phi_half") == ([4, 8], [1.0, 0.5], [0.0, 0.0])
    two = [*one, dict(m=8, loss=4.0, loss_std=0.3, phi_half=0.5)]
    assert _means(two, "m", "loss")[2] == [0.0, pytest.approx(2**0.5)]
