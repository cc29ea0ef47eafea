"""Data sets. :mod:`.shapes` draws labelled images on the fly; :mod:`.export` writes such images to
disk."""

from hypvision.data.shapes import TAXONOMY, Scene, ShapesClassification, ShapesScenes, Taxonomy

__all__ = ["TAXONOMY", "Scene", "ShapesClassification", "ShapesScenes", "Taxonomy"]
