# The Euclidean counterpart of helm-d-115m_4xb4_wikipedia.py: a LLaMA of the same sizes.
_base_ = ["./helm-d-115m_4xb4_wikipedia.py"]
model = dict(geometry="euclidean")
