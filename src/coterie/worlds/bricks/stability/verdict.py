"""What a stability program answers, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.worlds.bricks.stability.certificate import joint_loads, point_wrenches
from coterie.worlds.bricks.stability.contacts import GROUND, Contacts, Indices
from coterie.worlds.bricks.stability.limit_load import Limit
from coterie.worlds.bricks.stability.patches import Reals
from coterie.worlds.bricks.stability.statics import Statics, patches_of
from coterie.worlds.bricks.structure import Brick


@dataclass(frozen=True)
class Verdict:
    """The load factor, up to the cap that was asked for, and the first brick that is not held.

    A brick's load is the share of capacity taken at its most loaded joint, in one set of forces that
    carries the structure's own weight: the least-norm forces where these hold, else those of the
    program. At 1 and above it fails; inf means that nothing holds it. Where bricks float no forces
    are sought, and the others' loads are nan. Sets of forces are many: never learn from single loads.
    """

    load_factor: float
    weakest: int | None = None
    reason: str = ""
    load: Reals = field(default_factory=lambda: np.zeros(0), compare=False, repr=False)  # [B]

    @property
    def stable(self) -> bool:
        return self.load_factor > 1.0

    @property
    def scores(self) -> Reals:
        """[B] as published: 0 for a brick that fails, else the share of capacity left."""
        return np.maximum(1.0 - self.load, 0.0)


def say_floating(bricks: Sequence[Brick], floating: Indices) -> Verdict:
    """The verdict on a structure some of whose bricks are not joined to the ground."""
    load = np.full(len(bricks), np.nan)
    load[floating] = np.inf
    first = int(floating[0])
    reason = f"brick {first + 1}, {bricks[first]}, floats: no chain of studs joins it to the ground"
    return Verdict(0.0, first, reason, load)


def say_limit(
    bricks: Sequence[Brick], contacts: Contacts, statics: Statics, limit: Limit, loads: Reals | None = None
) -> Verdict:
    """The verdict at a structure's limit load; loads [J], where known, are the joints' own."""
    if loads is None:
        wrench = point_wrenches(statics, contacts, limit.forces)
        # At load 0 nothing is carried; so little of the weight that every load is past all bounds.
        loads = joint_loads(patches_of(bricks, contacts), wrench) / max(limit.load_factor, 1e-9)
    load = brick_loads(len(bricks), contacts, loads)
    if limit.load_factor > 1.0:
        return Verdict(limit.load_factor, load=load)
    # The forces whose limit costs load are the joints that would tear.
    torn = np.unique(statics.joint[np.abs(limit.prices[: statics.num_points]) > 1e-9])
    held = f"the studs hold {limit.load_factor:.2f} of the load"
    if len(torn) == 0:
        return Verdict(
            limit.load_factor, 0, f"the structure tips over under {limit.load_factor:.2f} of its weight", load
        )
    later = np.maximum(contacts.upper[torn], contacts.lower[torn])
    worst = torn[later.argmin()]
    upper, lower = int(contacts.upper[worst]), int(contacts.lower[worst])
    support = "the ground" if lower == GROUND else f"brick {lower + 1}, {bricks[lower]}"
    return Verdict(limit.load_factor, upper, f"brick {upper + 1}, {bricks[upper]}, tears off {support}: {held}", load)


def brick_loads(num_bricks: int, contacts: Contacts, loads: Reals) -> Reals:
    """[B] the load of each brick's most loaded joint, from the joints' [J]."""
    load = np.zeros(num_bricks + 1)  # the last is the ground's
    np.maximum.at(load, contacts.upper, loads)
    np.maximum.at(load, contacts.lower, loads)
    return load[:num_bricks]
