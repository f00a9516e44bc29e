"""What a plan is made for: the server's settings, all of them given."""

from __future__ import annotations

from dataclasses import dataclass

from slmguard.plan.tensor_types import CACHE_TYPES, TensorType

LOAD_MODES = ("mmap", "none", "mlock")
SERVERS = ("llama-server", "ollama", "rkllm")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Start-up settings that memory depends on. `context` is the total over all slots, as llama-server's -c."""

    context: int
    parallel: int = 1
    cache_type_k: TensorType = CACHE_TYPES["f16"]
    cache_type_v: TensorType = CACHE_TYPES["f16"]
    unified: bool = False
    batch: int = 2048
    micro_batch: int = 512
    repack: bool = True
    load_mode: str = "mmap"
    cache_ram_bytes: int = 0
    checkpoints: int = 0
    full_window: bool = False
    server: str = "llama-server"
