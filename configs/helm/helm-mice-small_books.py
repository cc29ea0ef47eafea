# As helm-d-small_books.py, with latent attention and four experts on hyperboloids of their own.
_base_ = ["./helm-d-small_books.py"]
model = dict(preset="helm_mice_tiny")
optim_wrapper = dict(optimizer=dict(lr=4e-3))
