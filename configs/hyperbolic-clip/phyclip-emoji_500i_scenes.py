# PHyCLIP: HyCoCLIP in a product of 16 hyperboloids of 8 dimensions.
_base_ = ["./hycoclip-emoji_500i_scenes.py"]
model = dict(clip=dict(name="phyclip-emoji-s16", geometry="product"))
