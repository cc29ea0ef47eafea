# The Euclidean counterpart of lvit-slim_3e_cifar10.py: a ViT of as many blocks, heads and
# dimensions, without a class token, under the same recipe.
_base_ = ["./lvit-slim_3e_cifar10.py"]
model = dict(
    backbone=dict(
        model_name="vit_tiny_patch16_224", class_token=False, global_pool="avg", fc_norm=False
    )
)
