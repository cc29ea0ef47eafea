"""The toy model of superposition, its scaling laws, and the same measures for language models.

An autoencoder with one ReLU, ``y = relu(W W^T x + b)``, must squeeze ``n`` sparse features through
``m << n`` hidden units. How its loss falls with ``m`` tells two regimes apart: weak superposition,
where only the ``m`` or so most frequent features are kept, and strong superposition, where all are
kept, on top of each other, and the loss goes as ``1/m`` whatever the frequencies. Language models
behave as the second.

Liu, Liu and Gore, "Superposition Yields Robust Neural Scaling", NeurIPS 2025, arXiv 2505.10465.

The modules: ``data`` draws batches, ``model`` computes one step in closed form, ``optimizer`` is
AdamW with decay or growth, ``sweep`` trains the models of a grid, ``measures`` and ``fits`` compute
what a study reports, ``figures`` draws the results, and ``language_models`` measures real models.
They need only PyTorch (and matplotlib to draw). The paper's own grids, figures and claims are in
``studies/superposition``.
"""
