"""Pictures of what a model has learned. They need NumPy and Pillow, which come with torchvision.

>>> model = timm.create_model("hcformer_nano")
>>> explain(model, Image.open("cat.jpg"))["regions"].show()
"""

from .clusters import (
    cluster_map,
    confidence_map,
    draw_cluster_maps,
    draw_regions,
    explain_image,
    kmeans,
    merge_clusters,
    merge_regions,
)
from .hierarchy_tree import draw_disk, draw_levels, draw_tree, explain, explain_hierarchy, part_maps
from .overlay import draw_segmentation
from .palette import palette

__all__ = [
    "cluster_map",
    "confidence_map",
    "draw_cluster_maps",
    "draw_disk",
    "draw_levels",
    "draw_regions",
    "draw_segmentation",
    "draw_tree",
    "explain",
    "explain_hierarchy",
    "explain_image",
    "kmeans",
    "merge_clusters",
    "merge_regions",
    "palette",
    "part_maps",
]
