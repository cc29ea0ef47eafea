# ATMG: the same network and data, compared by exterior angles on a hyperboloid of curvature 0.1.
_base_ = ["./meru-emoji_500i_scenes.py"]
model = dict(clip=dict(name="atmg-emoji-s16"), entail=0.0)
