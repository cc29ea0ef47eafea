# As helm-mice-120m_4xb4_wikipedia.py, with full attention instead of latent attention.
_base_ = ["./helm-mice-120m_4xb4_wikipedia.py"]
model = dict(attention="full")
