# LoRA of rank 8 in place of HyperCLIP's blocks, the rival in the paper's table of detection.
_base_ = ["./hyperclip-det-vitb16_8xb8-3e_coco48-17.py"]
model = dict(adapter=dict(_delete_=True, type="lora", rank=8))
