"""Chains of texts with a negative at each level."""

from hypvision.data.chains import Chain

GROUPS = dict(animal=("dog", "cat", "owl"), vehicle=("car", "bus", "tram"))
COLOURS = ("red", "blue", "green", "grey")


def make_chains(count: int) -> list[Chain]:
    """So many of 24 different chains of four texts."""
    found = []
    for number in range(count):
        groups = [*GROUPS] if number % 2 else [*GROUPS][::-1]
        names = [GROUPS[group][number // 2 % 3] for group in groups]
        colour = COLOURS[number // 6 % 4]
        texts, negatives = (
            ("something" if right else "nothing", f"a {group}", f"a {name}", f"a {colour} {name}")
            for right, group, name in zip((True, False), groups, names)
        )
        found.append(Chain(texts, negatives, f"{number:06d}"))
    return found
