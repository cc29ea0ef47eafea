# As helm-mice-120m_4xb4_wikipedia.py, with all curvatures fixed at -1 (the paper's MiCE-Const).
_base_ = ["./helm-mice-120m_4xb4_wikipedia.py"]
model = dict(train_curv=False)
