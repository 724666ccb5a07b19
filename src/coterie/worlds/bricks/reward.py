"""What a structure earns: parts with names, none of which can be had without standing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coterie.rollouts import Score
from coterie.worlds.bricks.shapes import Voxels
from coterie.worlds.bricks.stability import analyze, find_contacts, find_floating
from coterie.worlds.bricks.structure import Brick, best_overlap, find_fault, voxels_of

# A structure that stands and is at least this much of what was asked for is a success.
FAITHFUL = 0.75
PARTS = ("valid", "stability", "stable", "load_factor", "connectivity", "length", "faithfulness", "order")


@dataclass(frozen=True)
class Weights:
    """Of the parts in the total. `length` pays up to `full_length` bricks."""

    valid: float
    stability: float
    connectivity: float
    length: float
    faithfulness: float
    order: float
    full_length: int


def judge(bricks: Sequence[Brick], target: Voxels | None, weights: Weights, world_dim: int, program: str) -> Score:
    """Weigh a structure; what does not stand earns only its share of standing, or rubble would pay."""
    if not bricks:
        return invalid("there is no brick")
    if fault := find_fault(bricks, world_dim):
        return invalid(fault)
    verdict = analyze(bricks, program)
    floating = find_floating(len(bricks), find_contacts(bricks))
    parts = {
        "valid": 1.0,
        "stability": min(verdict.load_factor, 1.0),
        "stable": float(verdict.stable),
        "load_factor": verdict.load_factor,
        "connectivity": 1.0 - len(floating) / len(bricks),
        "length": min(len(bricks) / weights.full_length, 1.0),
        "order": sum(1 for _ in in_reach(bricks, patient=False)) / len(bricks),
    }
    if target is not None:
        parts["faithfulness"] = best_overlap(voxels_of(bricks, world_dim), target)
    for_standing = ("connectivity", "length", "faithfulness", "order")
    total = weights.valid + weights.stability * parts["stability"]
    total += parts["stable"] * sum(getattr(weights, name) * parts.get(name, 0.0) for name in for_standing)
    success = verdict.stable and parts.get("faithfulness", 1.0) >= FAITHFUL
    return Score(total=total, parts=parts, success=success, note=verdict.reason)


def invalid(note: str) -> Score:
    return Score(total=0.0, parts=dict.fromkeys(PARTS, 0.0), valid=False, note=note)


def in_reach(bricks: Sequence[Brick], patient: bool = True) -> Iterator[Brick]:
    """The bricks that are held, by the ground or by one put down before, when their turn comes.

    A patient builder lays a brick aside until something holds it, so that only floating ones are left out.
    """
    waiting, placed = list(bricks), set[tuple[int, int, int]]()
    progress = True
    while waiting and progress:
        progress = False
        for brick in list(waiting):
            cells = [(x, y) for x in range(brick.x, brick.x + brick.h) for y in range(brick.y, brick.y + brick.w)]
            held = brick.z == 0 or any((x, y, z) in placed for x, y in cells for z in (brick.z - 1, brick.z + 1))
            if held:
                waiting.remove(brick)
                yield brick
            if held or not patient:
                placed.update((x, y, brick.z) for x, y in cells)
            if held and patient:
                progress = True
                break
