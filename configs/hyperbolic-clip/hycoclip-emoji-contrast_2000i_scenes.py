# Ablation: HyCoCLIP without entailment.
_base_ = ["./hycoclip-emoji_2000i_scenes.py"]
model = dict(entail=0.0)
