"""The curves of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.extras import require

# What a reader looks for first; then come the parts of the reward.
PANELS = ("reward", "success", "valid")
# What nobody trains on is drawn beside what everybody does.
BESIDE = {"reward": "rewards/independent"}
AFTER_PARTS = ("entropy", "kl", "approx_kl", "grad_norm", "frac_reward_zero_std", "tokens_per_s")


def plot_curves(metrics: Sequence[Mapping[str, float]], path: Path, title: str) -> None:
    """One panel a metric over the steps, with a running mean and evaluations as dots."""
    require("matplotlib", "plot").use("Agg")
    from matplotlib import pyplot

    logged = dict.fromkeys(name for record in metrics for name in record)
    parts = [name for name in logged if name.startswith("rewards/")]
    panels = [name for name in (*PANELS, *parts, *AFTER_PARTS) if name in logged]
    columns = 3
    figure, axes = pyplot.subplots(
        -(-len(panels) // columns), columns, figsize=(12, 2.4 * -(-len(panels) // columns)), squeeze=False
    )
    for axis, name in zip(axes.flat, panels, strict=False):
        steps = [record["step"] for record in metrics if name in record]
        values = [record[name] for record in metrics if name in record]
        axis.plot(steps, values, color="0.75", linewidth=1)
        axis.plot(steps, running_mean(values), color="tab:blue")
        beside = [(record["step"], record[BESIDE[name]]) for record in metrics if BESIDE.get(name) in record]
        if beside:
            axis.plot(*zip(*beside, strict=True), color="0.85", linewidth=1)
            others = running_mean([value for _, value in beside])
            axis.plot([step for step, _ in beside], others, color="tab:green", label=BESIDE[name])
            axis.legend(fontsize=8)
        held_out = [(record["step"], record[f"eval/{name}"]) for record in metrics if f"eval/{name}" in record]
        if held_out:
            axis.plot(*zip(*held_out, strict=True), "o", color="tab:orange", label="held out")
            axis.legend(fontsize=8)
        axis.set_title(name, fontsize=10)
        axis.tick_params(labelsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def running_mean(values: Sequence[float], memory: float = 0.9) -> list[float]:
    """Exponentially weighted, without the pull of a zero start."""
    mean, weight, result = 0.0, 0.0, []
    for value in values:
        mean, weight = memory * mean + (1 - memory) * value, memory * weight + (1 - memory)
        result.append(mean / weight)
    return result
