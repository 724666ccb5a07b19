"""Does any tree, random or mutated, raise, hang or earn a reward that is not a number?

    python benchmarks/machine_fuzz.py --trees 100000 --workers 2 --json fuzz.json

A third are random blocks, a third are made machines with a field changed or a block moved, a third are
texts of made machines with characters changed. Every one is scored on a random task as in training; the time
to refuse an invalid one is measured too.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from coterie.worlds.machines import MachinesWorld
from coterie.worlds.machines.blocks import BLOCKS
from coterie.worlds.machines.goals import goal_of
from coterie.worlds.machines.making import make_machine
from coterie.worlds.machines.tree import Part, print_machine

ODD: list[Any] = ["", "99", None, True, 1.5, -1, 64, 10**30, [], {}]


def random_tree(rng: np.random.Generator) -> str:
    """Blocks of any kind on any earlier block's face, seldom valid beyond a few."""
    kinds = [kind for kind in BLOCKS if kind != "0"]
    parts = [Part("0")]
    for number in range(1, int(rng.integers(1, 12))):
        kind = kinds[int(rng.integers(len(kinds)))]
        ends = [(int(rng.integers(number)), int(rng.integers(6))) for _ in range(2 if BLOCKS[kind].two_ended else 1)]
        parts.append(Part(kind, *(value for end in ends for value in end)))
    return print_machine(parts)


def mutated_tree(text: str, rng: np.random.Generator) -> str:
    """A machine with a field changed, or a block dropped, doubled or moved."""
    blocks: list[dict[str, Any]] = json.loads(text)
    for _ in range(int(rng.integers(1, 3))):
        at = int(rng.integers(len(blocks)))
        block = dict(blocks[at])
        if rng.random() < 0.2:
            blocks.insert(int(rng.integers(len(blocks) + 1)), block)
        elif rng.random() < 0.15 and len(blocks) > 1:
            blocks.pop(at)
        else:
            key = list(block)[int(rng.integers(len(block)))]
            plain = list(BLOCKS)[int(rng.integers(len(BLOCKS)))] if key == "id" else int(rng.integers(-1, 10))
            block[key] = plain if rng.random() < 0.9 else ODD[int(rng.integers(len(ODD)))]
            blocks[at] = block
    if rng.random() < 0.5:  # so that not every change ends at the numbering
        for number, block in enumerate(blocks):
            block["order_id"] = number
    return json.dumps(blocks)


def mutated_text(text: str, rng: np.random.Generator) -> str:
    letters = list(text)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(letters)))
        letters[at] = rng.choice(["", "0", "9", "-", '"', "{", "]", ",", "e", "\x00", letters[at] * 2])
    return "".join(letters)


def fuzz(share: tuple[int, int, int]) -> dict[str, Any]:
    """Score the trees from one number to another; every exception and every odd reward is an entry in `wrong`."""
    start, stop, seed = share
    world = MachinesWorld(blocks="all")
    tasks = [*world.tasks("train"), *world.tasks("heldout")]
    reasons: Counter[str] = Counter()
    wrong: list[str] = []
    refusing, slowest = 0.0, (0.0, -1)
    for index in range(start, stop):
        rng = np.random.default_rng([seed, index])
        task = tasks[int(rng.integers(len(tasks)))]
        made = print_machine(make_machine(goal_of(task).kind, world.allowed(task), 24, rng))
        text = (random_tree(rng), mutated_tree(made, rng), mutated_text(made, rng))[index % 3]
        begun = time.process_time()  # others may have the cores
        try:
            [score] = world.score(task, [text])
            taken = time.process_time() - begun
            finite = all(map(math.isfinite, (score.total, *score.parts.values())))
            if not finite or score.total < 0 or (not score.valid and score.total != 0):
                wrong.append(f"{index}: total {score.total}")
        except Exception as error:  # this is what we look for
            wrong.append(f"{index}: {type(error).__name__}: {error}")
            continue
        reason = next((name for name, value in score.parts.items() if value and name.startswith("invalid/")), "valid")
        reasons[reason] += 1
        slowest = max(slowest, (taken, index))
        if not score.valid and reason != "invalid/physics":
            refusing += taken
    return {"reasons": reasons, "wrong": wrong, "refusing_s": refusing, "slowest": slowest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    step = max(1, min(500, chosen.trees // chosen.workers))
    shares = [(i, min(i + step, chosen.trees), chosen.seed) for i in range(0, chosen.trees, step)]
    begun, reasons, wrong, refusing, slowest = time.perf_counter(), Counter[str](), [], 0.0, (0.0, -1)
    with multiprocessing.get_context("spawn").Pool(chosen.workers) as pool:
        for result in pool.imap_unordered(fuzz, shares):
            reasons += result["reasons"]
            wrong += result["wrong"]
            refusing += result["refusing_s"]
            slowest = max(slowest, result["slowest"])
    refused = sum(n for reason, n in reasons.items() if reason not in ("valid", "invalid/physics"))
    figures = {
        "trees": sum(reasons.values()) + len(wrong),
        "wrong": wrong[:20],
        "num_wrong": len(wrong),
        "reasons": dict(reasons.most_common()),
        "ms_to_refuse": 1e3 * refusing / max(refused, 1),
        "slowest_s": slowest[0],
        "slowest_tree": slowest[1],
        "seconds": time.perf_counter() - begun,
    }
    print(json.dumps(figures, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
