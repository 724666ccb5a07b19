"""What a set of scored groups amounts to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.engines.base import Metrics
from coterie.rollouts import Finish, Group, Score
from coterie.training.discoveries import distinct_share


def pass_at_k(num_answers: int, num_right: int, k: int) -> float:
    """The chance that k of these answers, drawn without replacement, hold a right one.

    Chen et al. (arXiv 2107.03374), equation 1.
    """
    return 1.0 - comb(num_answers - num_right, k) / comb(num_answers, k)


def summarize(groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Metrics:
    """The means that training and evaluation both report."""
    flat = [score for group in scores for score in group]
    totals = np.array([[score.total for score in group] for group in scores])
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(int(c.chosen.sum()) for c in completions)
    names = dict.fromkeys(name for score in flat for name in score.parts)
    faults = Counter(score.fault for score in flat if score.fault)
    return {
        "reward": float(totals.mean()),
        "reward_std": float(totals.std(axis=1).mean()),
        "success": float(np.mean([score.success for score in flat])),
        "valid": float(np.mean([score.valid for score in flat])),
        **distinct_share(scores),
        "distinct": float(np.mean([len(set(group.answers)) / len(group.completions) for group in groups])),
        **{f"rewards/{name}": float(np.mean([s.parts[name] for s in flat if name in s.parts])) for name in names},
        "completions/mean_length": float(np.mean([c.chosen.sum() for c in completions])),
        "mean_log_prob": float(sum(c.logprobs.sum() for c in completions) / max(1, tokens)),
        "completions/nothing_chosen": float(sum(not c.chosen.any() for c in completions)),
        "completions/clipped_ratio": float(np.mean([c.finish is Finish.LENGTH for c in completions])),
        "completions/dead_ends": float(np.mean([c.finish is Finish.DEAD_END for c in completions])),
        "faults": float(sum(faults.values())),
        **{f"faults/{kind}": float(count) for kind, count in sorted(faults.items())},
    }


def evaluate_groups(groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> Metrics:
    """`summarize`, and for k the number of answers a task: pass@1, pass@k, and the mean of the best of k."""
    size = len(scores[0])
    best = {f"best@{size}": float(np.mean([max(score.total for score in group) for group in scores]))}
    right = [sum(score.success for score in group) for group in scores]
    passes = {f"pass@{k}": float(np.mean([pass_at_k(size, r, k) for r in right])) for k in sorted({1, size})}
    return {**summarize(groups, scores), **passes, **best}


def rollout_rows(
    groups: Sequence[Group], scores: Sequence[Sequence[Score]], advantages: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Every answer with what it was worth; those the world failed on come first."""
    rows: list[dict[str, Any]] = [
        {
            "task": group.task.id,
            "answer": completion.text,
            "finish": completion.finish.value,
            **asdict(score),
            "advantage": float(advantage),
        }
        for group, verdicts, row in zip(groups, scores, advantages, strict=True)
        for completion, score, advantage in zip(group.completions, verdicts, row, strict=True)
    ]
    return sorted(rows, key=lambda row: not row["fault"])
