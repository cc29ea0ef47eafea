# As helm-mice-1b_4xb1_wikipedia.py, with learned positions instead of RoPE.
_base_ = ["./helm-mice-1b_4xb1_wikipedia.py"]
model = dict(positions="learned")
