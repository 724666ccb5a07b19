"""Does it stand? The programs that answer, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.worlds.bricks.stability.certificate import joint_loads, least_norm_wrenches
from coterie.worlds.bricks.stability.contacts import FLOATS, find_contacts, find_floating, find_supports
from coterie.worlds.bricks.stability.limit_load import solve_limit_load
from coterie.worlds.bricks.stability.prefixes import iterate_prefixes
from coterie.worlds.bricks.stability.published import judge_published, solve_by_gurobi, solve_by_highs
from coterie.worlds.bricks.stability.statics import assemble, patches_of
from coterie.worlds.bricks.stability.verdict import Verdict, brick_loads, say_floating, say_limit
from coterie.worlds.bricks.structure import Brick

MAX_LOAD_FACTOR = 10.0
# Enough above 1 to tell standing from not: nearly every structure that stands is then settled by
# the certificate alone, and partial credit below 1 is unchanged.
VERDICT_CAP = 1.001


def judge_limit_load(bricks: Sequence[Brick], cap: float) -> Verdict:
    """Cheapest first: are all joined, do the least-norm forces hold, and only then the linear program."""
    contacts = find_contacts(bricks)
    supports = find_supports(len(bricks), contacts)
    if (supports == FLOATS).any():
        return say_floating(bricks, np.flatnonzero(supports == FLOATS))
    patch = patches_of(bricks, contacts)
    wrench = least_norm_wrenches(bricks, contacts, patch)
    loads = joint_loads(patch, wrench) if wrench is not None else None
    if loads is not None and loads.max() * cap <= 1.0:
        return Verdict(cap, load=brick_loads(len(bricks), contacts, loads))
    statics = assemble(bricks, contacts)
    limit = solve_limit_load(statics, contacts, supports, cap)
    holds = loads is not None and loads.max() < 1.0
    return say_limit(bricks, contacts, statics, limit, loads if holds else None)


def judge_verdict(bricks: Sequence[Brick], cap: float) -> Verdict:
    """Only whether it stands; what it carries beyond its own weight is not asked."""
    return judge_limit_load(bricks, min(cap, VERDICT_CAP))


def judge_connectivity(bricks: Sequence[Brick], cap: float) -> Verdict:
    """Only whether every brick is joined to the ground, as if studs held any load."""
    floating = find_floating(len(bricks), find_contacts(bricks))
    return say_floating(bricks, floating) if len(floating) else Verdict(cap, load=np.zeros(len(bricks)))


def judge_by_highs(bricks: Sequence[Brick], cap: float) -> Verdict:
    """The published objective, by a solver that needs no license."""
    return judge_published(bricks, cap, solve_by_highs)


def judge_by_gurobi(bricks: Sequence[Brick], cap: float) -> Verdict:
    """The published objective, by the solver it was published with."""
    return judge_published(bricks, cap, solve_by_gurobi)


PROGRAMS: dict[str, Callable[[Sequence[Brick], float], Verdict]] = {
    "limit_load": judge_limit_load,
    "verdict": judge_verdict,
    "published": judge_by_highs,
    "gurobi": judge_by_gurobi,
    "connectivity": judge_connectivity,
}


def analyze(bricks: Sequence[Brick], program: str = "limit_load", cap: float = MAX_LOAD_FACTOR) -> Verdict:
    """Judge a structure that is in bounds and without overlaps; load factors above the cap are not told apart."""
    if program not in PROGRAMS:
        raise ValueError(f"there is no stability program {program!r}; write one of {', '.join(PROGRAMS)}")
    _check_cap(cap)
    return PROGRAMS[program](bricks, cap) if bricks else Verdict(0.0, None, "there is no brick")


def analyze_prefixes(bricks: Sequence[Brick], cap: float = VERDICT_CAP) -> list[Verdict]:
    """The verdicts on the first brick, the first two, and so on to all; building asks only whether each stands."""
    _check_cap(cap)
    return list(iterate_prefixes(bricks, cap))


def _check_cap(cap: float) -> None:
    if not 1.0 < cap < np.inf:
        raise ValueError(f"cap is {cap}; write a number above 1, or what stands cannot be told from what falls")
