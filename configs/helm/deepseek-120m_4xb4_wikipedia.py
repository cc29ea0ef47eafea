# The Euclidean counterpart of helm-mice-120m_4xb4_wikipedia.py: a DeepSeek-V3 of the same sizes.
_base_ = ["./helm-mice-120m_4xb4_wikipedia.py"]
model = dict(geometry="euclidean")
