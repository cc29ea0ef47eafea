"""hypvision."""
