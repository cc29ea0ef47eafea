# As helm-mice-small_books.py, with full attention instead of latent attention, and narrower layers
# for its weights.
_base_ = ["./helm-d-small_books.py"]
model = dict(preset="helm_mice_tiny", attention="full", inter_dim=256, mice_inter_dim=120)
optim_wrapper = dict(optimizer=dict(lr=4e-3))
