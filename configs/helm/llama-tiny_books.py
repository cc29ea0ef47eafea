# The Euclidean twin of helm-d-tiny_books.py.
_base_ = ["./helm-d-tiny_books.py"]
model = dict(geometry="euclidean")
