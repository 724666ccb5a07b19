"""How far the policy p has moved from a reference q, per token."""

from __future__ import annotations

from collections.abc import Callable

from coterie.grpo.arrays import Array, namespace

# Log-ratios are brought within +- this before any exponent.
LOG_RATIO_LIMIT = 20.0


def k1(logprobs: Array, reference: Array) -> Array:
    """log(p/q): unbiased, of either sign. For the reward; as a loss its expected gradient is 0.

    Schulman, 'Approximating KL divergence' (2020), as are k2 and k3.
    """
    return logprobs - reference


def k2(logprobs: Array, reference: Array) -> Array:
    """log(p/q)^2 / 2: biased, never negative; as a loss its expected gradient is that of KL(p, q)."""
    return 0.5 * (logprobs - reference) ** 2


def k3(logprobs: Array, reference: Array) -> Array:
    """q/p - 1 - log(q/p): unbiased and never negative; as a loss its expected gradient is that of KL(q, p)."""
    xp = namespace(logprobs, reference)
    log_ratio = xp.clip(reference - logprobs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return xp.exp(log_ratio) - 1 - log_ratio


def exact(log_p: Array, log_q: Array) -> Array:
    """[..., V] -> [...]: KL(p, q) = sum p log(p/q) over the vocabulary; a token of probability 0 adds nothing.

    A token that only the reference rules out counts with the limit, so that the sum stays finite.
    """
    xp = namespace(log_p, log_q)
    impossible = -float("inf")
    possible = log_p > impossible
    # Both inner wheres keep the gradient finite at -inf.
    safe_p = xp.where(possible, log_p, xp.zeros_like(log_p))
    safe_q = xp.where(log_q > impossible, log_q, safe_p - LOG_RATIO_LIMIT)
    return xp.sum(xp.where(possible, xp.exp(safe_p) * (safe_p - safe_q), xp.zeros_like(log_p)), axis=-1)


KLS: dict[str, Callable[[Array, Array], Array]] = {"k1": k1, "k2": k2, "k3": k3}
