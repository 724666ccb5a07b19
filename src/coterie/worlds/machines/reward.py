"""What a machine earns: validity times what its task is worth, in parts with names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.rollouts import Score
from coterie.worlds.machines.blocks import BLOCKS, BOULDER
from coterie.worlds.machines.bodies import LOAD, machine_front
from coterie.worlds.machines.goals import Goal
from coterie.worlds.machines.simulate import Numbers, Run, simulate
from coterie.worlds.machines.tree import REASONS, Machine, TreeError

Scoring = Literal["thrown", "code", "paper"]

LOW_THROW = 3.0  # m: a boulder that never gets this high was not thrown
CARRIED = 0.25  # of its distance: a boulder that lands this near the starting block was carried there
LANDED = BLOCKS[BOULDER].size[0] / 2 + 0.15
ALONE = 2.5  # m from any block's middle: a boulder that flies
ABOARD = 2 * LOAD  # m above the ground, for the middle of a load
DROPPED = 0.2  # what the way is worth after the load has fallen


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    task: float
    distance: float
    height: float
    success: bool
    note: str = ""


def judge(machine: Machine, goal: Goal, scoring: Scoring = "thrown") -> Score:
    """Simulate a valid machine and weigh what it did; one whose physics fails is invalid after all."""
    try:
        run = simulate(machine, goal.scene)
    except TreeError as error:
        return invalid(error)
    outcome = JUDGES[goal.kind](machine, goal, run, scoring)
    parts = {
        "valid": 1.0,
        "task": outcome.task,
        "distance": outcome.distance,
        "height": outcome.height,
        "broken": float(len(run.broken)),
        "blocks": float(len(machine.parts)),
        **{f"invalid/{reason}": 0.0 for reason in REASONS},
    }
    broken = ", ".join(f"block {number} at {time:.2f} s" for time, number in run.broken[:5])
    note = "; ".join(filter(None, (outcome.note, f"came loose: {broken}" if broken else "")))
    return Score(outcome.task, parts, success=outcome.success, note=note)


def invalid(error: TreeError) -> Score:
    """Nothing, and why."""
    parts = dict.fromkeys(("valid", "task", "distance", "height", "broken", "blocks"), 0.0)
    reasons = {f"invalid/{reason}": float(reason == error.reason) for reason in REASONS}
    return Score(0.0, {**parts, **reasons}, valid=False, note=str(error))


def way_of(goal: Goal, track: Numbers) -> float:
    """How far something got: whichever way on the level, uphill on a slope, where rolling down is no merit."""
    if goal.scene.slope:
        return max(0.0, float(track[-1, 0] - track[0, 0]))
    return float(np.linalg.norm(track[-1, :2] - track[0, :2]))


def judge_car(machine: Machine, goal: Goal, run: Run, scoring: Scoring) -> Outcome:
    """How far the starting block got."""
    distance = way_of(goal, run.root)
    return Outcome(distance, distance, _rise(run.root), distance >= goal.target)


def judge_climb(machine: Machine, goal: Goal, run: Run, scoring: Scoring) -> Outcome:
    """How far forward the starting block got; it has climbed when it is on the step."""
    forward = max(0.0, float(run.root[-1, 0] - run.root[0, 0]))
    edge = machine_front(machine) + goal.scene.ahead
    risen = float(run.root[-1, 2] - run.root[0, 2])
    climbed = run.root[-1, 0] > edge and risen > 0.8 * goal.scene.height
    return Outcome(forward, forward, _rise(run.root), bool(climbed), "" if climbed else "it is not on the step")


def judge_cross(machine: Machine, goal: Goal, run: Run, scoring: Scoring) -> Outcome:
    """How far forward the starting block got; it has crossed when it is beyond the gap and not in it."""
    forward = max(0.0, float(run.root[-1, 0] - run.root[0, 0]))
    far_edge = machine_front(machine) + goal.scene.ahead + goal.scene.width
    crossed = run.root[-1, 0] > far_edge and run.root[-1, 2] > 0
    return Outcome(forward, forward, _rise(run.root), bool(crossed), "" if crossed else "it is not across")


def judge_carry(machine: Machine, goal: Goal, run: Run, scoring: Scoring) -> Outcome:
    """How far the load got; a load that fell off counts for a fifth."""
    assert run.load is not None
    distance = way_of(goal, run.load)
    aboard = bool(run.load[-1, 2] > ABOARD)
    worth = distance if aboard else DROPPED * distance
    note = "" if aboard else "the load fell off"
    return Outcome(worth, distance, _rise(run.load), aboard and distance >= goal.target, note)


def judge_catapult(machine: Machine, goal: Goal, run: Run, scoring: Scoring) -> Outcome:
    """What the boulder did, by one of three rules."""
    if run.boulder is None:
        return Outcome(0.0, 0.0, 0.0, False, "there is no boulder")
    return {"thrown": _by_flight, "code": _by_code, "paper": _by_paper}[scoring](goal, run)


def _by_flight(goal: Goal, run: Run) -> Outcome:
    """The code's product over the longest flight: a machine that tumbles along with its boulder throws nothing."""
    assert run.boulder is not None and run.clear is not None
    track = run.boulder
    flying = (run.clear > ALONE) & (track[:, 2] > LANDED)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flying.astype(int), [0]])))
    best = Outcome(0.0, 0.0, float(track[:, 2].max()), False, "the boulder never left the machine")
    for start, stop in edges.reshape(-1, 2):
        # From the last moment on the machine to the first on the ground.
        flight = track[max(start - 1, 0) : min(stop + 1, len(track))]
        distance, height = float(np.linalg.norm(flight[-1, :2] - flight[0, :2])), float(flight[:, 2].max())
        if distance > best.distance:
            high = height >= LOW_THROW
            worth = distance * (1 + max(0.0, height - float(track[0, 2]))) if high else 0.0
            best = Outcome(worth, distance, height, high and distance >= goal.target, "" if high else _too_low(height))
    return best


def _by_code(goal: Goal, run: Run) -> Outcome:
    """Distance at landing x (1 + rise); nothing for low throws, and for boulders that land by the starting block."""
    assert run.boulder is not None
    track, top = run.boulder, int(run.boulder[:, 2].argmax())
    low = np.flatnonzero(track[top:, 2] < LANDED)
    landing = top + int(low[0]) if len(low) else len(track) - 1
    distance = float(np.linalg.norm(track[landing, :2] - track[0, :2]))
    height, beside = float(track[top, 2]), float(np.linalg.norm(track[landing] - run.root[landing]))
    if height < LOW_THROW or beside < CARRIED * distance:
        note = _too_low(height) if height < LOW_THROW else "the boulder was carried, not thrown"
        return Outcome(0.0, distance, height, False, note)
    return Outcome(distance * (1 + height - float(track[0, 2])), distance, height, distance >= goal.target)


def _by_paper(goal: Goal, run: Run) -> Outcome:
    """Greatest height x greatest distance."""
    assert run.boulder is not None
    farthest = float(np.linalg.norm(run.boulder[:, :2] - run.boulder[0, :2], axis=1).max())
    height = float(run.boulder[:, 2].max())
    return Outcome(height * farthest, farthest, height, height >= LOW_THROW and farthest >= goal.target)


def _too_low(height: float) -> str:
    return f"the boulder rose to {height:.2f} m, not to {LOW_THROW:g}"


def _rise(track: Numbers) -> float:
    return float(track[:, 2].max() - track[0, 2])


JUDGES: dict[str, Callable[[Machine, Goal, Run, Scoring], Outcome]] = {
    "car": judge_car,
    "catapult": judge_catapult,
    "climb": judge_climb,
    "carry": judge_carry,
    "cross": judge_cross,
}
