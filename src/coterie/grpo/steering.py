"""How a coefficient follows what is observed towards a target; plain numbers in, the next coefficient out."""

from __future__ import annotations

# One update sees at most this relative error, so that a single odd step cannot throw the coefficient.
MAX_ERROR = 0.2


def adapt_kl_coef(coef: float, observed: float, target: float, rate: float = 0.1) -> float:
    """coef (1 + rate clip(KL / target - 1, -.2, .2)): too far from the reference, and the pull grows.

    Ziegler et al. (arXiv 1909.08593), section 2.2. With a horizon h, as others write it, rate = answers / h.
    """
    return coef * (1 + rate * _clipped(observed / target - 1))


def adapt_entropy_coef(coef: float, observed: float, target: float, rate: float = 0.1) -> float:
    """The same rule turned around: too little entropy, and the bonus grows."""
    return coef * (1 - rate * _clipped(observed / target - 1))


def _clipped(error: float) -> float:
    return min(max(error, -MAX_ERROR), MAX_ERROR)
