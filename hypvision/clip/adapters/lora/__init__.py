"""LoRA: low-rank changes of CLIP's attention projections.

"LoRA: Low-Rank Adaptation of Large Language Models", Hu et al., ICLR 2022; HyperCLIP's paper
compares itself with this method. It computes what peft's LoRA does. But peft wraps the attention
module, so the dense path of the last image block, which reads only the value projection, would not
see its change.

>>> adapters.inject(model, "lora", rank=8)
"""

from .config import LoRAConfig
from .model import LoRA, LowRankMap

__all__ = ["LoRA", "LoRAConfig", "LowRankMap"]
