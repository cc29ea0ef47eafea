# As helm-d-tiny_books.py, with latent attention and four experts on hyperboloids of their own.
_base_ = ["./helm-d-tiny_books.py"]
model = dict(
    preset="helm_mice_tiny", n_layers=2, mice_inter_dim=68, kv_lora_rank=11, qk_nope_head_dim=8,
    qk_rope_head_dim=9, v_head_dim=9,
)  # fmt: skip
