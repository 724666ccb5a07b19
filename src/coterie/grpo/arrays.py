"""The array type of this package: numpy, torch and jax arrays alike, through the array API."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import array_api_compat

# The array API has no type of its own to name; what may stand here is said where it is used.
Array = Any


def namespace(*arrays: Array) -> Any:
    """The functions that go with these arrays."""
    return array_api_compat.array_namespace(*arrays)


def constants(values: Sequence[float], like: Array) -> Array:
    """Plain numbers as an array of the same library, type and device."""
    return namespace(like).asarray(values, dtype=like.dtype, device=array_api_compat.device(like))


def stop_gradient(values: Array) -> Array:
    """The same numbers, constant to a gradient; the array API has no word for it."""
    if array_api_compat.is_torch_array(values):
        return values.detach()
    if array_api_compat.is_jax_array(values):
        # Whoever holds a jax array has imported jax; this package does not.
        return sys.modules["jax"].lax.stop_gradient(values)
    return values


def where_masked(values: Array, mask: Array) -> Array:
    """The values where the mask holds, 0 elsewhere; what lies outside may be anything, even NaN."""
    xp = namespace(values, mask)
    return xp.where(mask, values, xp.zeros_like(values))


def masked_sum(values: Array, mask: Array) -> Array:
    """The sum where the mask holds."""
    return namespace(values, mask).sum(where_masked(values, mask))


def row_mean(values: Array, mask: Array) -> Array:
    """[N, T] -> [N, 1]: each row's mean where the mask holds; 0 in a row without any."""
    xp = namespace(values, mask)
    count = xp.sum(xp.astype(mask, values.dtype), axis=1, keepdims=True)
    return xp.sum(where_masked(values, mask), axis=1, keepdims=True) / xp.clip(count, 1.0, None)
