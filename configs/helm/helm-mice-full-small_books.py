# As helm-mice-small_books.py, with full attention instead of latent attention.
_base_ = ["./helm-mice-small_books.py"]
model = dict(attention="full")
