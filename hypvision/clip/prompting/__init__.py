"""Few-shot recognition with a frozen CLIP: methods (called hosts), learned prompts, and official
checkpoints."""

# Importing the modules of hosts registers the hosts.
from . import heads, prompted, promptkd, promptsrc
from .hosts import HOSTS, Host, HostOutput, build_host, feature_size, load_learned

__all__ = [
    "HOSTS",
    "Host",
    "HostOutput",
    "build_host",
    "feature_size",
    "heads",
    "load_learned",
    "prompted",
    "promptkd",
    "promptsrc",
]
