"""What other trainers call the metrics of a step."""

from __future__ import annotations

from coterie.engines.base import Metrics

OTHER_NAMES = {
    "pg_loss": "policy_loss",
    "mean_reward": "reward",
    "std_reward": "reward_std",
    "mean_kl": "kl",
}


def also_named(metrics: Metrics, kl_coef: float) -> Metrics:
    """The same numbers under their other names; what was not measured is left out."""
    found = {other: metrics[ours] for other, ours in OTHER_NAMES.items() if ours in metrics}
    if "kl" in metrics:
        found["kl_penalty"] = kl_coef * metrics["kl"]
    return found
