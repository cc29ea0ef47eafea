"""The toy model of superposition and its scaling laws.

An autoencoder with one ReLU, ``y = relu(W W^T x + b)``, must squeeze ``n`` sparse features through
``m << n`` hidden units. How its loss falls with ``m`` tells two regimes apart: weak superposition,
where only the ``m`` or so most frequent features are kept, and strong superposition, where all are
kept, on top of each other, and the loss goes as ``1/m`` whatever the frequencies. Language models
behave as the second.

Liu, Liu and Gore, "Superposition Yields Robust Neural Scaling", NeurIPS 2025, arXiv 2505.10465.

``data`` draws batches, ``model`` is one step in closed form, ``optimizer`` AdamW with decay or
growth, ``sweep`` trains the points of a grid, ``measures`` and ``fits`` what is read from the
results, ``figures`` draws them, ``language_models`` measures real ones. It needs PyTorch alone (and
matplotlib to draw). The paper's own grids, figures and claims are ``studies/superposition``.
"""
