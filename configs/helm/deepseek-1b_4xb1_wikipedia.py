# The Euclidean counterpart of helm-mice-1b_4xb1_wikipedia.py: a DeepSeek-V3 of the same sizes.
_base_ = ["./helm-mice-1b_4xb1_wikipedia.py"]
model = dict(geometry="euclidean")
