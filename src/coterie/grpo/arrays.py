"""The array type of this package: numpy, torch and jax arrays alike, through the array API."""

from __future__ import annotations

from typing import Any

import array_api_compat

# The array API has no type of its own to name; what may stand here is said where it is used.
Array = Any


def namespace(*arrays: Array) -> Any:
    """The functions that go with these arrays."""
    return array_api_compat.array_namespace(*arrays)


def masked_sum(values: Array, mask: Array) -> Array:
    """The sum where the mask holds; what lies outside may be anything, even NaN."""
    xp = namespace(values, mask)
    return xp.sum(xp.where(mask, values, xp.zeros_like(values)))
