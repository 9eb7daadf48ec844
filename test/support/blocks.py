"""Blocks of quantised weights, drawn at random."""
import numpy as np

from minigrad.ops.block_formats import FORMATS

HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
"""Where a block has float16 numbers."""


def random_blocks(random: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    """uint8 [rows, blocks, bytes]: any bits, but for the float16 numbers, some of which are negative or 0."""
    f = FORMATS[kind]
    blocks = random.integers(0, 256, (rows, columns // f.block, f.block_bytes), dtype=np.uint8)
    for at in HALVES[kind]:
        halves = (random.standard_normal(blocks.shape[:2]) * 0.01).astype(np.float16)
        halves[random.random(halves.shape) < 0.05] = 0
        blocks[:, :, at:at + 2] = halves[..., None].view(np.uint8)
    if kind == "MXFP4":
        blocks[:, :, 0] = random.integers(112, 124, blocks.shape[:2])
    return blocks
