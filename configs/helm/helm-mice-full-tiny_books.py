# As helm-mice-tiny_books.py, with full attention instead of latent attention.
_base_ = ["./helm-mice-tiny_books.py"]
model = dict(attention="full")
