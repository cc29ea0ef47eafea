_base_ = [
    "../_base_/language_runtime.py",
    "../_base_/schedules/helm.py",
    "../_base_/datasets/wikipedia.py",
]
model = dict(type="LanguageModel", preset="helm_mice_120m")
default_hooks = dict(logger=dict(interval=640), checkpoint=dict(interval=6400))  # 10 and 100 steps
