"""Arrays on their way to the device, and masks that are packed there as numpy packs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Without waiting for what the device has still to do, which from ordinary memory a copy would."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pack(mask: Tensor) -> Tensor:
    """[rows, V] bool -> [rows, ceil(V/8)] bytes, the first in the highest bit."""
    bits: Tensor = F.pad(mask, (0, -mask.shape[-1] % 8)).unflatten(-1, (-1, 8))
    weights = 2 ** torch.arange(7, -1, -1, device=mask.device, dtype=torch.uint8)
    return (bits * weights).sum(-1, dtype=torch.uint8)


def unpack(bits: Tensor, size: int) -> Tensor:
    """The inverse of `pack`: [rows, bytes] -> [rows, size] bool."""
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    return ((bits[..., None] >> shifts) & 1).flatten(-2)[..., :size].bool()
