"""How fast does stability answer, against the published program on the same structures in the same run?

    python benchmarks/stability.py --json stability.json

`reward` is what training asks (does it stand, and how far from it), `limit_load` the load factor up
to 10, `published` the public objective through scipy.optimize.linprog. The latter is handed this
package's own assembly, so that only the program and the pipeline around it are compared. Gurobi
joins in if it is installed, up to the size its license admits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog

from coterie.worlds.bricks.laying import Builder, lay_bricks
from coterie.worlds.bricks.shapes import all_shapes
from coterie.worlds.bricks.stability import VERDICT_CAP, analyze, analyze_prefixes
from coterie.worlds.bricks.stability.published import PenaltyProgram, build_penalty_program, judge_published
from coterie.worlds.bricks.structure import SIZES, Brick

SHAPES = list(all_shapes())
# A realistic mix, in tenths: half-trained policies build mostly what stands.
MIX = {"stands": 6, "falls": 2, "floats": 2}
Bricks = list[Brick]


def random_bricks(rng: np.random.Generator, count: int, loose: float) -> Bricks:
    """Bricks dropped where they touch something from above or below; by chance, where they touch nothing."""
    extent, height = 5 + count // 6, int(rng.integers(4, 12))
    filled = np.zeros((extent + 8, extent + 8, height + 2), np.bool_)  # layers shifted up by one
    bricks: Bricks = []
    while len(bricks) < count:
        h, w = SIZES[rng.integers(len(SIZES))]
        x, y, z = int(rng.integers(extent)), int(rng.integers(extent)), int(rng.integers(height))
        column = filled[x : x + h, y : y + w]
        held = z == 0 or column[:, :, z].any() or column[:, :, z + 2].any()
        if not column[:, :, z + 1].any() and (held or rng.random() < loose):
            column[:, :, z + 1] = True
            bricks.append(Brick(h, w, x, y, z))
    return bricks


def laid_bricks(rng: np.random.Generator, count: int, slip_rate: float) -> Bricks:
    """Shapes of the captions, a stud apart, laid by a hasty builder."""
    bricks: Bricks = []
    shift = 0
    while len(bricks) < count:
        shape = SHAPES[rng.integers(len(SHAPES))]
        laid = lay_bricks(shape.voxels(), Builder(care=0.9, slip_rate=slip_rate), rng)
        bricks += [brick._replace(x=brick.x + shift) for brick in laid]
        shift += shape.wide + 1
    return bricks[:count]


def overhanging(rng: np.random.Generator, bricks: Bricks) -> Bricks:
    """The same number of bricks, the last of them piled on one stud, off center."""
    num_plates = min(int(rng.integers(8, 18)), len(bricks) - 1)
    kept = bricks[: len(bricks) - num_plates - 1]
    y = max((b.y + b.w for b in kept), default=0) + 1
    plates = [Brick(8, 1, int(rng.integers(7, 9)), y, z) for z in range(1, num_plates + 1)]
    return [*kept, Brick(1, 1, 8, y, 0), *plates]


def outcome_of(bricks: Bricks) -> str:
    load_factor = analyze(bricks).load_factor
    return "stands" if load_factor > 1.0 else "falls" if load_factor > 0.0 else "floats"


def draw_mix(rng: np.random.Generator, count: int, structures: int) -> dict[str, list[Bricks]]:
    """Random and caption-like structures in turn, by outcome."""
    mix: dict[str, list[Bricks]] = {outcome: [] for outcome in MIX}
    for outcome, drawn in mix.items():
        quota = max(1, round(structures * MIX[outcome] / 10))
        # Ten bricks seldom fall: the search is not endless.
        for attempt in range(100 * quota):
            make = laid_bricks if len(drawn) % 2 else random_bricks
            bricks = make(rng, count, 0.03 if outcome == "floats" else 0.0)
            if outcome == "falls" and attempt % 2:
                bricks = overhanging(rng, bricks)
            if outcome_of(bricks) == outcome:
                drawn.append(bricks)
            if len(drawn) == quota:
                break
    return mix


def solve_by_scipy(program: PenaltyProgram) -> Any:
    equations, rows = len(program.target), program.matrix.tocsr()
    balances: Any = rows[:equations]
    pulls: Any = rows[equations:]
    bounds: Any = np.column_stack([program.lower, np.full(len(program.lower), np.inf)])
    result = linprog(
        1e3 * program.cost,
        A_ub=pulls,
        b_ub=np.zeros(rows.shape[0] - equations),
        A_eq=balances,
        b_eq=program.target,
        bounds=bounds,
    )
    assert result.status == 0, result.message
    return result.x


def best_of(repeats: int, call: Callable[[], object]) -> float:
    """Milliseconds of the fastest of several calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def gurobi_time(structures: Sequence[Bricks], repeats: int) -> float | None:
    """Mean milliseconds, or None where Gurobi is not installed or its license refuses the size."""
    try:
        return float(np.mean([best_of(repeats, lambda b=b: analyze(b, "gurobi")) for b in structures]))  # type: ignore[misc]
    except ImportError:
        return None
    except Exception as error:
        if "too large" in str(error).lower():
            return None
        raise


def compare(mix: dict[str, list[Bricks]], repeats: int) -> dict[str, Any]:
    """Mean milliseconds of each program over the mix, and by outcome."""
    programs: dict[str, Callable[[Bricks], object]] = {
        "reward": lambda bricks: analyze(bricks, cap=VERDICT_CAP),
        "limit_load": analyze,
        "published": lambda bricks: judge_published(bricks, 10.0, solve_by_scipy),
        "its solve alone": lambda bricks: solve_by_scipy(built[id(bricks)]),
    }
    built = {id(b): build_penalty_program(b) for group in mix.values() for b in group}
    # One structure after the other through all programs, so that a busy moment hits them alike.
    times: dict[str, dict[str, list[float]]] = {name: {outcome: [] for outcome in mix} for name in programs}
    for outcome, group in mix.items():
        for bricks in group:
            for name, program in programs.items():
                times[name][outcome].append(best_of(repeats, lambda p=program, b=bricks: p(b)))  # type: ignore[misc]
    figures: dict[str, Any] = {
        name: {
            "mean_ms": float(np.mean([t for group in of.values() for t in group])),
            **{f"{outcome}_ms": float(np.mean(group)) for outcome, group in of.items() if group},
        }
        for name, of in times.items()
    }
    figures["gurobi_ms"] = gurobi_time([b for group in mix.values() for b in group], repeats)
    return figures


def compare_prefixes(
    rng: np.random.Generator, count: int, structures: int, repeats: int
) -> dict[str, dict[str, float]]:
    """All beginnings of a structure together, against one by one."""
    mix = draw_mix(rng, count, structures)
    figures = {}
    for name, cap in (("verdicts", VERDICT_CAP), ("load factors", 10.0)):
        pairs: dict[str, list[tuple[float, float]]] = {outcome: [] for outcome in mix}
        for outcome, group in mix.items():
            for bricks in group:
                prefixes = [bricks[:k] for k in range(1, count + 1)]
                together = best_of(repeats, lambda b=bricks, c=cap: analyze_prefixes(b, c))  # type: ignore[misc]
                alone = best_of(repeats, lambda ps=prefixes, c=cap: [analyze(p, cap=c) for p in ps])  # type: ignore[misc]
                pairs[outcome].append((together, alone))
        for label, group_pairs in (("all", [pair for group in pairs.values() for pair in group]), *pairs.items()):
            together, alone = np.mean(group_pairs, 0).tolist()
            figures[f"{name}, {label}"] = {
                "together_ms": together,
                "one_by_one_ms": alone,
                "ratio": alone / together,
            }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 60, 100, 200])
    parser.add_argument("--structures", type=int, default=20, help="of each size")
    parser.add_argument("--repeats", type=int, default=3, help="the best counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)

    print("mean ms a structure (how many times faster than published); stands / falls / floats")
    sizes = {}
    for count in chosen.sizes:
        mix = draw_mix(rng, count, chosen.structures)
        figures = sizes[count] = compare(mix, chosen.repeats)
        print(f"{count} bricks: " + ", ".join(f"{len(group)} {outcome}" for outcome, group in mix.items()))
        peer = figures["published"]
        for name in ("reward", "limit_load"):
            ours = figures[name]
            ours["ratio"] = peer["mean_ms"] / ours["mean_ms"]
            ours["ratio_to_solve_alone"] = figures["its solve alone"]["mean_ms"] / ours["mean_ms"]
        for name in ("reward", "limit_load", "published", "its solve alone"):
            row = figures[name]
            ratio = f"({row['ratio']:.1f}x)" if "ratio" in row else ""
            by_outcome = " / ".join(f"{row[f'{o}_ms']:.2f}" if f"{o}_ms" in row else "-" for o in MIX)
            print(f"  {name:16} {row['mean_ms']:8.2f} {ratio:9} {by_outcome}", flush=True)
        if figures["gurobi_ms"] is not None:
            print(f"  {'gurobi':16} {figures['gurobi_ms']:8.2f}")

    print("all 60 prefixes of a structure, ms: together, one by one")
    prefixes = compare_prefixes(rng, 60, max(4, chosen.structures // 2), chosen.repeats)
    for name, figure in prefixes.items():
        print(f"  {name:24} {figure['together_ms']:8.1f} {figure['one_by_one_ms']:8.1f}  {figure['ratio']:.1f}x")
    if chosen.json:
        chosen.json.write_text(json.dumps({"sizes": sizes, "prefixes": prefixes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
