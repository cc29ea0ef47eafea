# The Euclidean twin of helm-mice-tiny_books.py.
_base_ = ["./helm-mice-tiny_books.py"]
model = dict(geometry="euclidean")
