# As helm-mice-small_books.py, with full attention instead of latent attention, and narrower layers
# for its weights.
_base_ = ["./helm-mice-small_books.py"]
model = dict(attention="full", inter_dim=256, mice_inter_dim=120)
