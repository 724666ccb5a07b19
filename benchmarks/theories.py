"""Discovering theories with and without curriculum, replay and novelty, from one cold start.

Every arm is examples/theory.toml but for what its name says, and runs in a process of its own. At the end each
policy is judged on the prompts of its training, which leave the groups open, and on products of groups that no
run was ever asked for.

    python benchmarks/theories.py --steps 400 --minutes 9 --out runs/theories
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie import GRPOConfig, GRPOTrainer
from coterie.build import settle
from coterie.config import parse_settings, read_toml
from coterie.rollouts import Group, Score
from coterie.training.evaluate import evaluate_groups
from coterie.worlds.load import load_world, world_fields
from coterie.worlds.theory.canonical import canonical_form
from coterie.worlds.theory.reward import chiral_content
from coterie.worlds.theory.theory import Fermion, parse_theory
from coterie.worlds.theory.world import whole

EXAMPLE = Path(__file__).parent.parent / "examples/theory.toml"
ANSWERS = 1_000  # judged of each kind of prompt
ARMS = ("full", "without curriculum", "without replay", "without novelty")


def settings_of(arm: str, options: argparse.Namespace) -> GRPOConfig:
    settings: dict[str, Any] = {**read_toml(EXAMPLE), "steps": options.steps, "workers": options.workers}
    settings |= {"threads": options.threads, "device": options.device, "eval_every": 0, "keep_checkpoints": 1}
    config = settle(parse_settings(settings, world_fields("theory")), load_world("theory"))
    assert config.curriculum != "world"
    phases = [dict(phase) for phase in config.curriculum]
    if arm == "without curriculum":
        return config.model_copy(update={"curriculum": [], "reward_parts": phases[1]["weights"]})
    if arm == "without replay":
        return config.model_copy(update={"replay_capacity": 0})
    if arm == "without novelty":
        plain = [{**p, "weights": {k: v for k, v in p["weights"].items() if k != "novelty"}} for p in phases]
        return config.model_copy(update={"curriculum": plain})
    return config


def judge(trainer: GRPOTrainer) -> dict[str, dict[str, float]]:
    """Means over answers to the prompts of training, and to products of groups that were never asked for."""
    found = {}
    asked = trainer.world.tasks("train"), load_world("theory", {"products": True}).tasks("heldout")
    for name, tasks in zip(("asked", "never asked"), asked, strict=True):
        groups = trainer.answer(tasks, -(-ANSWERS // len(tasks)))
        scores = trainer.judge(groups)
        metrics = evaluate_groups(groups, scores)
        found[name] = {k: metrics.get(k, 0.0) for k in ("success", "distinct_successes", "rewards/content", "reward")}
        for group, verdicts in zip(groups, scores, strict=True):
            found[name][f"success of {group.task.id}"] = sum(s.success for s in verdicts) / len(verdicts)
        found[name]["distinct chiral contents"] = len(chiral_contents(groups, scores))
    return found


def chiral_contents(groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> set[str]:
    """What is left of the successes when scalars and vector-like pairs do not count."""
    found = set()
    for group, verdicts in zip(groups, scores, strict=True):
        for answer, score in zip(group.answers, verdicts, strict=True):
            if score.success:
                theory = parse_theory(whole(group.task, answer))
                chiral = [Fermion(True, n, reps, charges) for (reps, charges), n in chiral_content(theory).items()]
                found.add(canonical_form(theory._replace(fermions=tuple(chiral), scalars=(), terms=())))
    return found


def run_arm(arm: str, options: argparse.Namespace) -> None:
    out = Path(options.out) / arm.replace(" ", "-")
    cold = Path(options.out) / "cold-start"
    config = settings_of(arm, options)
    if arm == "cold start":
        config = config.model_copy(update={"steps": 0, "out": str(cold)})
    else:
        config = config.model_copy(update={"cold_start_steps": 0, "start_from": str(cold), "out": str(out)})
    trainer = GRPOTrainer(config)
    begun = time.monotonic()
    curve: list[dict[str, float]] = []

    def watch(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
        if phase == "train":
            names = ("reward", "success", "distinct_successes", "phase", "discoveries", "entropy", "kl")
            curve.append({"step": done, "seconds": time.monotonic() - begun, **{n: metrics.get(n, 0.0) for n in names}})
        if time.monotonic() - begun > 60 * options.minutes:
            trainer.stop()

    trainer.watchers.append(watch)
    with trainer.scorer:
        trainer.train()
        result = {
            "arm": arm,
            "seconds": time.monotonic() - begun,
            "steps": trainer.progress.step,
            "discoveries": len(trainer.discoveries.counts),
            "judged": judge(trainer),
            "curve": curve,
        }
    (Path(options.out) / f"{arm.replace(' ', '-')}.json").write_text(json.dumps(result))


def table(out: Path) -> str:
    lines = [
        "| | minutes | steps | distinct theories found | success | distinct of those | chiral contents of those | "
        "success with groups never asked for | distinct of those |",
        "|---" * 9 + "|",
    ]
    for arm in ("cold start", *ARMS):
        file = out / f"{arm.replace(' ', '-')}.json"
        if file.exists():
            r = json.loads(file.read_text())
            cells = [f"{r['seconds'] / 60:.1f}", str(r["steps"]), f"{r['discoveries']:,}"]
            for kind in ("asked", "never asked"):
                judged = r["judged"][kind]
                cells += [f"{judged['success']:.1%}", f"{judged['distinct_successes']:.1%}"]
                cells += [f"{judged['distinct chiral contents']:,.0f}"] if kind == "asked" else []
            lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=40.0, help="after which an arm stops, wherever it is")
    parser.add_argument("--out", default="runs/theories")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--arm", default="", help="run just this one, in this process")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.arm:
        return run_arm(options.arm, options)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, *sys.argv[1:]]
    if not (out / "cold-start.json").exists():
        subprocess.run([*command, "--arm", "cold start"], check=True)
    running = [subprocess.Popen([*command, "--arm", arm]) for arm in options.arms.split(",")]
    failed = [process.args for process in running if process.wait()]
    print(table(out))
    if failed:
        sys.exit(f"failed: {failed}")


if __name__ == "__main__":
    main()
