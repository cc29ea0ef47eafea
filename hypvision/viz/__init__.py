"""Pictures of what a model has learned. Needs NumPy and Pillow, which come with torchvision.

>>> model = timm.create_model("hcformer_nano")
>>> explain_image(model, Image.open("cat.jpg"))["regions"].show()
"""

from .clusters import (
    cluster_map,
    draw_cluster_maps,
    draw_regions,
    explain_image,
    kmeans,
    merge_clusters,
    merge_regions,
)
from .palette import palette

__all__ = [
    "cluster_map",
    "draw_cluster_maps",
    "draw_regions",
    "explain_image",
    "kmeans",
    "merge_clusters",
    "merge_regions",
    "palette",
]
