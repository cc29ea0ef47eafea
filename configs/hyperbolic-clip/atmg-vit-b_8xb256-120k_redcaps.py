# ATMG: MERU's network and data, compared by exterior angles and without entailment, ViT-B/16.
_base_ = ["./_base_/redcaps.py"]
model = dict(clip=dict(name="atmg-vit-b-16"), entail=0.0)
