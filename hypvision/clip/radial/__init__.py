"""Radial embeddings (Alper and Averbuch-Elor, ECCV 2024): measure and tune the order of a CLIP's
texts from general to specific.

CLIP gets no new parts. The closer a text's embedding lies to the *root* (the embedding of the empty
text), the more general it is. :mod:`hypvision.clip.spaces` defines the distance, :mod:`.texts`
embeds many texts fast, :mod:`.metrics` and :mod:`.retrieval` measure, :mod:`.traversal` finds words
for an image from general to specific, and :mod:`.weights` saves and merges tuned text towers. The
tuning is :class:`hypvision.tasks.radial.RadialTuning`.
"""
