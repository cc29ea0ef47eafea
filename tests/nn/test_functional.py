"""What the layers share."""

import torch

from hypvision.nn.functional import space_square, space_time


def test_squares_of_half_precision_are_float32():
    """300^2 is no number of float16."""
    x = torch.full((1, 2), 300.0, dtype=torch.float16)
    assert space_square(x).dtype == torch.float32 and space_square(x).item() == 180000
    torch.testing.assert_close(space_time(x, 1.0).item(), 180001**0.5, rtol=1e-6, atol=0)
