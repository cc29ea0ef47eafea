# ATMG: MERU's network and data, compared by exterior angles and without entailment, ViT-S/16.
_base_ = ["./_base_/redcaps.py"]
model = dict(clip=dict(name="atmg-vit-s-16"), entail=0.0)
