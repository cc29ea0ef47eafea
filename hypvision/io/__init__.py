"""What every other package reads and writes by: errors, checks of arguments, files, images,
records and the names of shipped configs.

It imports nothing else of hypvision. The submodules are imported by their names, so that the
command line starts without PyTorch.
"""
