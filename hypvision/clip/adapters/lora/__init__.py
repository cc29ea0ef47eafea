"""LoRA: low-rank changes of CLIP's attention projections.

"LoRA: Low-Rank Adaptation of Large Language Models", Hu et al., ICLR 2022; one of the methods that
HyperCLIP is compared with. It computes what peft's does; peft's wraps the attention module, where
the dense path of the last image block, which reads the value projection alone, does not see it.

>>> adapters.inject(model, "lora", rank=8)
"""

from hypvision.clip.adapters.lora.config import LoRAConfig
from hypvision.clip.adapters.lora.model import LoRA, LowRankMap

__all__ = ["LoRA", "LoRAConfig", "LowRankMap"]
