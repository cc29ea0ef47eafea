"""Data sets, their preprocessing and splits, class lists, and chains of texts."""
