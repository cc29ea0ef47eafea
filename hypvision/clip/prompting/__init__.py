"""Few-shot recognition with a frozen CLIP: hosts, what they learn, and their official checkpoints."""

from hypvision.clip.prompting import promptsrc  # hosts are registered by importing them
from hypvision.clip.prompting.hosts import HOSTS, Host, HostOutput, build_host, feature_size

__all__ = ["HOSTS", "Host", "HostOutput", "build_host", "feature_size", "promptsrc"]
