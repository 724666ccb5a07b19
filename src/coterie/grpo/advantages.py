"""How good an answer is beside its siblings: rewards [P, G] -> advantages [P, G].

Every name in ADVANTAGES gives exactly 0 to a group without signal, and to a group of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from coterie.grpo.arrays import Array, constants, namespace

# Rewards closer together than this are equal: float noise is no signal.
SIGNAL_TOLERANCE = 1e-6


def has_signal(metric: Array, tolerance: float = SIGNAL_TOLERANCE) -> Array:
    """[P]: whether the answers of a group differ at all in the reward, or in another metric [P, G]."""
    xp = namespace(metric)
    return xp.max(metric, axis=1) - xp.min(metric, axis=1) > tolerance


def standardized(rewards: Array, eps: float = 1e-6) -> Array:
    """(r - mean) / (std + eps) within each group.

    Shao et al., DeepSeekMath (arXiv 2402.03300), section 4.1.2; the std is the unbiased one, as in
    TRL and verl.
    """
    return centered(rewards) / (_std(rewards, axis=1) + eps)


def centered(rewards: Array) -> Array:
    """r - mean within each group: hard and easy tasks keep their weight.

    Liu et al., Dr. GRPO (arXiv 2503.20783), section 3.2.
    """
    xp = namespace(rewards)
    return _where_signal(rewards, rewards - xp.mean(rewards, axis=1, keepdims=True))


def leave_one_out(rewards: Array) -> Array:
    """r_i minus the mean of the other answers, which is G / (G - 1) (r_i - mean).

    Kool et al. (2019); Ahmadian et al., RLOO (arXiv 2402.14740).
    """
    group_size = rewards.shape[1]
    return centered(rewards) * (group_size / max(group_size - 1, 1))


def batch_standardized(rewards: Array, eps: float = 1e-6) -> Array:
    """(r - mean of the group) / (std of the whole batch + eps).

    Liu et al., 'Tricks or Traps' (arXiv 2508.08221); REINFORCE++ (arXiv 2501.03262).
    """
    return centered(rewards) / (_std(rewards, axis=None) + eps)


def pass_at_k(rewards: Array, k: int) -> Array:
    """How much an answer raises the best of k: the mean over k-subsets S with i of max(S) - max(S without i).

    Of the answers in ascending order, the one at place p gets the sum over 1 <= j <= p of
    (r_j - r_{j-1}) C(j, k-1) / C(G-1, k-1): no term is negative, so nothing cancels.
    Tang et al. (arXiv 2503.19595); Walder and Karkhanis, PKPO (arXiv 2505.15201). An answer that stands
    alone has no rival in its subset: for k = 1 the baseline is the mean of the others.
    """
    xp = namespace(rewards)
    group_size = rewards.shape[1]
    assert 1 <= k <= group_size, f"pass@{k} needs groups of at least {k}, not of {group_size}"
    if k == 1:
        return leave_one_out(rewards)
    order = xp.argsort(rewards, axis=1)
    ascending = xp.take_along_axis(rewards, order, axis=1)
    steps = ascending[:, 1:] - ascending[:, :-1]
    shares = constants(_subset_shares(group_size, k)[1:], like=rewards)
    by_place = xp.cumulative_sum(steps * shares, axis=1, include_initial=True)
    return _where_signal(rewards, xp.take_along_axis(by_place, xp.argsort(order, axis=1), axis=1))


def pass_at_k_binary(rewards: Array, k: int) -> Array:
    """The standardized reward of the k-subsets an answer is in; right is a reward above 1/2.

    Chen et al., 'Pass@k Training' (arXiv 2508.10751).
    """
    xp = namespace(rewards)
    group_size = rewards.shape[1]
    assert 1 <= k <= group_size, f"pass@{k} needs groups of at least {k}, not of {group_size}"
    right = rewards > 0.5
    num_wrong = xp.count_nonzero(~right, axis=1)
    table = [_binary_pair(n, group_size, k) for n in range(group_size + 1)]
    if_right = xp.take(constants([pair[0] for pair in table], like=rewards), num_wrong, axis=0)
    if_wrong = xp.take(constants([pair[1] for pair in table], like=rewards), num_wrong, axis=0)
    return xp.where(right, if_right[:, None], if_wrong[:, None])


def best_minus_second(rewards: Array, eps: float = 1e-6) -> Array:
    """The best answer gets (r_best - r_second) / (std + eps), all others 0: pass@G, scaled.

    Tang et al. (arXiv 2503.19595).
    """
    xp = namespace(rewards)
    if rewards.shape[1] < 2:
        return xp.zeros_like(rewards)
    ascending = xp.sort(rewards, axis=1)
    best, second = ascending[:, -1:], ascending[:, -2:-1]
    lead = xp.where(rewards == best, best - second, xp.zeros_like(rewards))
    return _where_signal(rewards, lead / (_std(rewards, axis=1) + eps))


def with_baseline(rewards: Array, baseline: Array) -> Array:
    """r - b with a baseline [P] from elsewhere, for groups too small to be their own.

    Williams, REINFORCE (1992); the baseline must not have seen these rewards.
    """
    return rewards - baseline[:, None]


def clip_advantages(advantages: Array, limit: float) -> Array:
    """Every advantage brought within [-limit, limit]."""
    return namespace(advantages).clip(advantages, -limit, limit)


# k is the k of pass@k; the other estimators have no use for it.
ADVANTAGES: dict[str, Callable[[Array, int], Array]] = {
    "standardized": lambda rewards, k: standardized(rewards),
    "centered": lambda rewards, k: centered(rewards),
    "leave_one_out": lambda rewards, k: leave_one_out(rewards),
    "batch_standardized": lambda rewards, k: batch_standardized(rewards),
    "pass_at_k": pass_at_k,
    "pass_at_k_binary": pass_at_k_binary,
    "best_minus_second": lambda rewards, k: best_minus_second(rewards),
}


def _where_signal(rewards: Array, advantages: Array) -> Array:
    xp = namespace(rewards)
    return xp.where(has_signal(rewards)[:, None], advantages, xp.zeros_like(advantages))


def _std(rewards: Array, axis: int | None) -> Array:
    """The unbiased standard deviation, 0 of a single number."""
    xp = namespace(rewards)
    count = math.prod(rewards.shape) if axis is None else rewards.shape[axis]
    deviations = rewards - xp.mean(rewards, axis=axis, keepdims=True)
    return xp.sqrt(xp.sum(deviations**2, axis=axis, keepdims=True) / max(count - 1, 1))


def _subset_shares(group_size: int, k: int) -> list[float]:
    """C(j, k-1) / C(G-1, k-1) for j = 0 .. G-1, from the top down: the binomials themselves overflow."""
    shares = [0.0] * group_size
    shares[-1] = 1.0
    for j in range(group_size - 1, k - 1, -1):
        shares[j - 1] = shares[j] * (j - k + 1) / j
    return shares


def _binary_pair(num_wrong: int, group_size: int, k: int) -> tuple[float, float]:
    """The advantages of a right and of a wrong answer; 0 where every subset passes or none does."""
    failing = math.comb(num_wrong, k) / math.comb(group_size, k)  # 1 - rho, the share of subsets all wrong
    if failing in (0.0, 1.0):
        return 0.0, 0.0
    std = math.sqrt(failing * (1 - failing))
    failing_with = math.comb(num_wrong - 1, k - 1) / math.comb(group_size - 1, k - 1)
    return failing / std, (failing - failing_with) / std
