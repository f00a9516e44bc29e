"""Bytes of the weights: the mapped file and the repacked copy of some tensors."""

from __future__ import annotations

from slmguard.plan.cpu import Cpu
from slmguard.plan.gguf_header import Tensor
from slmguard.plan.model_file import ModelFile

# Looked up by row, never multiplied with: these stay in the mapped file.
_LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")


def repacked_bytes(model: ModelFile, cpu: Cpu) -> int:
    """Bytes of the copies that llama.cpp makes for this CPU, to the byte what it prints as CPU_REPACK."""
    tensors = model.tensors
    # Without a matrix of its own for the output, the token table serves as one and is copied for that.
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    return sum(tensor.size_bytes for tensor in tensors if _is_repacked(tensor, cpu, tied=tied))


def plain_bytes(model: ModelFile, cpu: Cpu) -> int:
    """Bytes of the tensors that are held in their file's layout when the file is read instead of mapped."""
    tied_table = "token_embd.weight"
    tied = not any(tensor.name == "output.weight" for tensor in model.tensors)
    return sum(
        tensor.size_bytes
        for tensor in model.tensors
        if tensor.name == tied_table or not _is_repacked(tensor, cpu, tied=tied)
    )


def _is_repacked(tensor: Tensor, cpu: Cpu, *, tied: bool) -> bool:
    if tensor.tensor_type is None or not tensor.name.endswith(".weight"):
        return False
    if tensor.name in _LOOKED_UP and not (tied and tensor.name == "token_embd.weight"):
        return False
    if len(tensor.shape) < 2 or ("_exps" in tensor.name) != (len(tensor.shape) == 3):
        return False
    multiple = cpu.repacked.get(tensor.tensor_type.name)
    return multiple is not None and tensor.shape[1] % multiple == 0
