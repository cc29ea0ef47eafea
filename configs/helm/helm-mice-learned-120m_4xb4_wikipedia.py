# As helm-mice-120m_4xb4_wikipedia.py, with learned positions instead of RoPE.
_base_ = ["./helm-mice-120m_4xb4_wikipedia.py"]
model = dict(positions="learned")
