"""Radial embeddings (Alper and Averbuch-Elor, ECCV 2024): what CLIP knows of general and specific, measured and tuned.

Nothing is added to CLIP. A text is the more general, the nearer its embedding lies to a *root*, that of the empty
text. :mod:`.spaces` says what near means for a model, :mod:`.texts` embeds many texts at little cost, :mod:`.metrics`
and :mod:`.retrieval` measure, :mod:`.traversal` goes from general to specific words for an image, and :mod:`.weights`
keeps and merges tuned text towers. Tuning itself is :class:`hypvision.tasks.radial.RadialTuning`.
"""
