# As helm-mice-1b_4xb1_wikipedia.py, with all curvatures fixed at -1 (the paper's MiCE-Const).
_base_ = ["./helm-mice-1b_4xb1_wikipedia.py"]
model = dict(train_curv=False)
