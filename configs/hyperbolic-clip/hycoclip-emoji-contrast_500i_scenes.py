# Ablation: HyCoCLIP without entailment.
_base_ = ["./hycoclip-emoji_500i_scenes.py"]
model = dict(entail=0.0)
