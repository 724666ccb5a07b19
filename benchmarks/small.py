"""How fast do small policies draw answers?

    OMP_NUM_THREADS=1 python benchmarks/small.py --before OTHER_CHECKOUT --json small.json    # CPU
    python benchmarks/small.py --device cuda --json small.json                                # GPU

On a CPU the default bricks policy, that of examples/bricks.toml and that of examples/theory.toml answer the tasks of a
step; with --before the same is done in turn with the sources of another checkout. On a GPU graphs are first checked
against the plain loop and the learner, then timed against the loop and against what the device could do at best.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coterie.engines.base import Sampling
from coterie.engines.torch.causal import CausalEngine
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.rollouts import Group, Task
from coterie.worlds.base import Language


@dataclass(frozen=True)
class Case:
    """A policy and how much it is asked at once."""

    world: str
    width: int
    depth: int
    heads: int
    num_tasks: int
    group_size: int


CASES = {
    "bricks default": Case("bricks", 128, 4, 4, 16, 8),
    "bricks example": Case("bricks", 192, 6, 6, 32, 16),
    "theory example": Case("theory", 256, 4, 8, 8, 64),
    "theory 2,048": Case("theory", 512, 4, 8, 32, 64),
}
ON_CPU = ("bricks default", "bricks example", "theory example")
CAPTIONS = ("a bench {} wide 3 deep 4 tall", "a table {} wide 6 deep 3 tall", "a wall {} wide 2 deep 5 tall")
THEORIES = ("", "BOS GAUGE_GROUPS NUM_GAUGE num_2", "BOS GAUGE_GROUPS NUM_GAUGE num_3")


def make_engine(case: Case, device: str) -> tuple[CausalEngine, list[Task]]:
    language: Language
    if case.world == "theory":
        from coterie.worlds.theory.language import TheoryLanguage

        language, prompts = TheoryLanguage(), [THEORIES[i % 3] for i in range(case.num_tasks)]
    else:
        from coterie.worlds.bricks.language import AbsoluteLanguage

        language = AbsoluteLanguage(legality="attached")
        prompts = [CAPTIONS[i % 3].format(4 + i % 8) for i in range(case.num_tasks)]
    shape = PolicyShape(len(language.vocabulary), case.width, case.depth, case.heads)
    engine = CausalEngine(language, shape, LearnerSettings(), 0, device)
    return engine, [Task(str(i), prompt) for i, prompt in enumerate(prompts)]


def sample(engine: CausalEngine, tasks: Sequence[Task], group_size: int, seed: int, **how: Any) -> list[Group]:
    drawn = dict(engine.sample(tasks, group_size, Sampling(seed=seed, **how)))
    return [drawn[place] for place in range(len(tasks))]


def count(groups: Sequence[Group]) -> int:
    return sum(int(c.chosen.sum()) for group in groups for c in group.completions)


def sampling_rate(name: str, repeats: int) -> float:
    """Tokens a second of processor time, the best of several: the machine may be shared."""
    engine, tasks = make_engine(CASES[name], "cpu")
    rates = []
    for _ in range(repeats + 1):
        start = time.process_time()
        groups = sample(engine, tasks, CASES[name].group_size, 1)
        rates.append(count(groups) / (time.process_time() - start))
    return max(rates[1:])


def on_cpu(before: Path | None, rounds: int, repeats: int) -> dict[str, Any]:
    """Children measure one policy each, this checkout and the other in turn."""
    here = Path(__file__).resolve()
    checkouts = {"now": here.parent.parent} | ({"before": before} if before else {})
    figures: dict[str, Any] = {}
    for name in ON_CPU:
        best = dict.fromkeys(checkouts, 0.0)
        for _ in range(rounds):
            for label, checkout in checkouts.items():
                paths = {**os.environ, "PYTHONPATH": str(checkout / "src")}
                command = [sys.executable, str(here), "--child", name, "--repeats", str(repeats)]
                told = subprocess.run(command, env=paths, capture_output=True, text=True, check=True)
                best[label] = max(best[label], float(told.stdout))
        figures[name] = best | ({"ratio": best["now"] / best["before"]} if before else {})
        print(f"{name:15}" + "".join(f"  {label} {rate:9,.2f}" for label, rate in figures[name].items()), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        torch.set_num_threads(1)
        print(sampling_rate(chosen.child, chosen.repeats))
        return
    figures: dict[str, Any] = {"torch": torch.__version__}
    if chosen.device == "cpu":
        figures["tokens/s"] = on_cpu(chosen.before, chosen.rounds, chosen.repeats)
    else:
        from small_on_gpu import on_gpu

        figures |= on_gpu()
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
