# As helm-d-tiny_books.py, with latent attention and four experts on hyperboloids of their own.
_base_ = ["./helm-d-tiny_books.py"]
model = dict(preset="helm_mice_tiny")
