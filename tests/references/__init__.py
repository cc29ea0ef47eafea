"""The truth beside the code: each method written down literally from its paper, for tests and
benchmarks."""
