"""What is compared: several rewards made one, and penalties that belong to the reward."""

from __future__ import annotations

from collections.abc import Callable

from coterie.grpo.advantages import standardized
from coterie.grpo.arrays import Array, namespace, where_masked


def weighted_sum(parts: Array, weights: Array) -> Array:
    """[R, P, G] rewards and their weights [R] -> [P, G]."""
    xp = namespace(parts, weights)
    return xp.sum(parts * weights[:, None, None], axis=0)


def normalized_sum(parts: Array, weights: Array, eps: float = 1e-6) -> Array:
    """The weighted sum of rewards that were each standardized within their groups first.

    A reward of large spread cannot drown the others. GDPO (arXiv 2601.05242).
    """
    num_rewards, num_tasks, group_size = parts.shape
    xp = namespace(parts)
    rows = standardized(xp.reshape(parts, (num_rewards * num_tasks, group_size)), eps)
    return weighted_sum(xp.reshape(rows, parts.shape), weights)


COMBINATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "weighted_sum": weighted_sum,
    "normalized_sum": normalized_sum,
}


def overlong_penalty(lengths: Array, max_length: int, buffer: int) -> Array:
    """0 up to max_length - buffer tokens, then falling in a line to -1 at max_length; to be added to the reward.

    Yu et al., DAPO (arXiv 2503.14476), section 3.4.
    """
    return namespace(lengths).clip((max_length - buffer - lengths) / buffer, -1.0, 0.0)


def replaced_amount(share: Array) -> Array:
    """x^4 - 2 x^3 + 2 x: how bad it is that this share of a text was replaced.

    0 at 0 and 1 at 1, steep at first (0.8125 at 1/2), as the first wrong characters spoil most.
    """
    return share**4 - 2 * share**3 + 2 * share


def minus_kl(rewards: Array, divergence: Array, mask: Array, kl_coef: float) -> Array:
    """Each answer's reward less kl_coef times its divergence [N, T] summed over the answer.

    Ziegler et al. (arXiv 1909.08593), equation 2, where the divergence is k1. Rewards are [N] or [P, G].
    """
    xp = namespace(rewards, divergence)
    return rewards - kl_coef * xp.reshape(xp.sum(where_masked(divergence, mask), axis=1), rewards.shape)
