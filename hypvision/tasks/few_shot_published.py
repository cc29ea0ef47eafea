"""Published accuracies of the few-shot benchmark (ViT-B/16), in percent, shown beside results.

Base-to-new, cross-data-set and few-shot numbers are those of the methods' own papers; LatHAdapter's
rows are the averages that its paper gives.
"""

from __future__ import annotations

from hypvision.data.fewshot.layouts import CROSS, DOMAINS, SETS
from hypvision.io import Metrics

_METHODS = ("zeroshot", "coop", "cocoop", "maple", "promptsrc", "promptkd")
_ROWS = {
    "average": "69.34/74.22 82.69/63.22 80.47/71.69 82.28/75.14 84.26/76.10 86.96/80.73",
    "imagenet": "72.43/68.14 76.47/67.88 75.98/70.43 76.66/70.54 77.60/70.73 80.83/74.66",
    "caltech101": "96.84/94.00 98.00/89.81 97.96/93.81 97.74/94.36 98.10/94.03 98.91/96.65",
    "oxford_pets": "91.17/97.26 93.67/95.29 95.20/97.69 95.43/97.76 95.33/97.30 96.30/98.01",
    "stanford_cars": "63.37/74.89 78.12/60.40 70.49/73.59 72.94/74.00 78.27/74.97 82.80/83.37",
    "oxford_flowers": "72.08/77.80 97.60/59.67 94.87/71.75 95.92/72.46 98.07/76.50 99.42/82.62",
    "food101": "90.10/91.22 88.33/82.26 90.70/91.29 90.71/92.05 90.67/91.53 92.43/93.68",
    "fgvc_aircraft": "27.19/36.29 40.44/22.30 33.41/23.71 37.44/35.61 42.73/37.87 49.12/41.81",
    "sun397": "69.36/75.35 80.60/65.89 79.74/76.86 80.82/78.70 82.67/78.47 83.69/81.54",
    "dtd": "53.24/59.90 79.44/41.18 77.01/56.00 80.36/59.18 83.37/62.97 85.84/71.37",
    "eurosat": "56.48/64.05 92.19/54.74 87.49/60.04 94.07/73.23 92.90/73.90 97.54/82.08",
    "ucf101": "70.53/77.50 84.69/56.05 82.33/73.45 83.00/78.66 87.10/78.80 89.71/82.27",
}

BASE_TO_NEW: dict[str, dict[str, tuple[float, float]]] = {
    method: {
        dataset: tuple(map(float, row.split()[i].split("/")))  # type: ignore[misc]
        for dataset, row in _ROWS.items()
    }
    for i, method in enumerate(_METHODS)
}
"""Method -> data set (or ``"average"``) -> accuracies on base and on new classes."""

BASE_TO_NEW |= {
    "deep-vision": {"average": (80.24, 73.43)},
    "deep-language": {"average": (81.72, 73.81)},
    "ivlp": {"average": (84.21, 71.79)},
}
HARMONIC = {"maple+lath": 79.67, "promptsrc+lath": 80.70, "promptkd+lath": 84.62}
"""Harmonic means of the average accuracies, for methods of which only these are published."""

CROSS_DATASET: dict[str, Metrics] = {
    method: dict(zip((*CROSS, "average"), map(float, row.split())))
    for method, row in {
        "coop": "93.70 89.14 64.51 68.71 85.30 18.47 64.15 41.92 46.39 66.55 63.88",
        "cocoop": "94.43 90.14 65.32 71.88 86.06 22.94 67.36 45.73 45.37 68.21 65.74",
        "maple": "93.53 90.49 65.57 72.23 86.20 24.74 67.01 46.49 48.06 68.69 66.30",
        "promptsrc": "93.60 90.25 65.70 70.25 86.15 23.90 67.10 46.87 45.50 68.75 65.81",
        "promptkd": "93.61 91.59 73.93 75.33 88.84 26.24 68.57 55.08 63.74 76.39 71.33",
    }.items()
} | {"maple+lath": {"average": 66.73}, "promptsrc+lath": {"average": 66.40}}
"""Method -> target -> accuracy."""

DOMAIN: dict[str, Metrics] = {
    method: dict(zip(("imagenet", *DOMAINS, "average"), map(float, row.split())))
    for method, row in {
        "zeroshot": "66.73 60.83 46.15 47.77 73.96 57.18",
        "coop": "71.51 64.20 47.99 49.71 75.21 59.28",
        "cocoop": "71.02 64.07 48.75 50.63 76.18 59.91",
        "maple": "70.72 64.07 49.15 50.90 76.98 60.27",
        "promptsrc": "71.27 64.35 49.55 50.90 77.80 60.65",
    }.items()
} | {"maple+lath": {"average": 60.55}, "promptsrc+lath": {"average": 60.71}}
"""Method -> domain -> accuracy."""

SHOTS: dict[str, dict[int, float]] = {
    method: dict(zip((1, 2, 4, 8, 16), map(float, row.split())))
    for method, row in {
        "linear-probe": "45.83 57.98 68.01 74.47 78.79",
        "coop": "67.56 70.65 74.02 76.98 79.89",
        "cocoop": "66.79 67.65 71.21 72.96 74.90",
        "maple": "69.27 72.58 75.37 78.89 81.79",
        "maple+lath": "73.95 76.24 78.19 81.17 83.31",
        "promptsrc": "72.32 75.29 78.35 80.69 82.87",
        "promptsrc+lath": "74.71 77.61 79.86 82.24 84.47",
    }.items()
}
"""Method -> shots -> average over the eleven data sets."""

assert set(_ROWS) == {"average", *SETS}
