"""Radial embeddings (Alper and Averbuch-Elor, ECCV 2024): measure and tune CLIP's order from
general to specific.

Nothing is added to CLIP. The closer a text's embedding lies to the *root* (the embedding of the
empty text), the more general it is. :mod:`.spaces` defines the distance, :mod:`.texts` embeds many
texts fast, :mod:`.metrics` and :mod:`.retrieval` measure, :mod:`.traversal` finds words for an
image from general to specific, and :mod:`.weights` saves and merges tuned text towers. Tuning
itself is :class:`hypvision.tasks.radial.RadialTuning`.
"""
