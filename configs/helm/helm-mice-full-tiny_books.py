# As helm-mice-tiny_books.py, with full attention instead of latent attention, and narrower layers for its weights.
_base_ = ["./helm-mice-tiny_books.py"]
model = dict(attention="full", inter_dim=134, mice_inter_dim=62)
