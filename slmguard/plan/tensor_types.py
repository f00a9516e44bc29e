"""GGUF's numbers for tensor and value types, and the bytes that each takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A ggml tensor type: `block_values` values take `block_bytes` bytes."""

    name: str
    block_values: int
    block_bytes: int

    def row_bytes(self, values: int) -> int:
        """Bytes of a row of `values`; raises ValueError when the row is no whole number of blocks."""
        blocks, rest = divmod(values, self.block_values)
        if rest:
            raise ValueError(f"a row of {values} values is no multiple of {self.name}'s block of {self.block_values}")
        return blocks * self.block_bytes


# ggml.h; the numbers 4, 5, 31 to 33 and 36 to 38 belonged to types that llama.cpp removed.
TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("f32", 1, 4),
    1: TensorType("f16", 1, 2),
    2: TensorType("q4_0", 32, 18),
    3: TensorType("q4_1", 32, 20),
    6: TensorType("q5_0", 32, 22),
    7: TensorType("q5_1", 32, 24),
    8: TensorType("q8_0", 32, 34),
    9: TensorType("q8_1", 32, 36),
    10: TensorType("q2_k", 256, 84),
    11: TensorType("q3_k", 256, 110),
    12: TensorType("q4_k", 256, 144),
    13: TensorType("q5_k", 256, 176),
    14: TensorType("q6_k", 256, 210),
    15: TensorType("q8_k", 256, 292),
    16: TensorType("iq2_xxs", 256, 66),
    17: TensorType("iq2_xs", 256, 74),
    18: TensorType("iq3_xxs", 256, 98),
    19: TensorType("iq1_s", 256, 50),
    20: TensorType("iq4_nl", 32, 18),
    21: TensorType("iq3_s", 256, 110),
    22: TensorType("iq2_s", 256, 82),
    23: TensorType("iq4_xs", 256, 136),
    24: TensorType("i8", 1, 1),
    25: TensorType("i16", 1, 2),
    26: TensorType("i32", 1, 4),
    27: TensorType("i64", 1, 8),
    28: TensorType("f64", 1, 8),
    29: TensorType("iq1_m", 256, 56),
    30: TensorType("bf16", 1, 2),
    34: TensorType("tq1_0", 256, 54),
    35: TensorType("tq2_0", 256, 66),
    39: TensorType("mxfp4", 32, 17),
    40: TensorType("nvfp4", 64, 36),
    41: TensorType("q1_0", 128, 18),
    42: TensorType("q2_0", 64, 18),
}

# What llama.cpp takes for -ctk and -ctv (common/arg.cpp).
CACHE_TYPES: dict[str, TensorType] = {
    name: next(tensor_type for tensor_type in TENSOR_TYPES.values() if tensor_type.name == name)
    for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
}

# general.file_type (llama_ftype in llama.h): what people call the quantisation.
FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
