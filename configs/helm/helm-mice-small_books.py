# As helm-d-small_books.py, with latent attention and four experts on hyperboloids of their own.
_base_ = ["./helm-d-small_books.py"]
model = dict(
    preset="helm_mice_tiny", inter_dim=528, mice_inter_dim=264, kv_lora_rank=33, qk_nope_head_dim=17,
    qk_rope_head_dim=17, v_head_dim=33,
)  # fmt: skip
