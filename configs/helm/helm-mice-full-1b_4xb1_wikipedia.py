# As helm-mice-1b_4xb1_wikipedia.py, with full attention instead of latent attention.
_base_ = ["./helm-mice-1b_4xb1_wikipedia.py"]
model = dict(attention="full")
