"""A run as pictures need it: where every block is, many times a second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.worlds.machines.bodies import LOAD_NAME, load_mujoco, name_of
from coterie.worlds.machines.simulate import DT, Numbers, Run, simulate
from coterie.worlds.machines.terrain import Scene
from coterie.worlds.machines.tree import Machine


@dataclass(frozen=True)
class Motion:
    """K moments. Bodies are the blocks with volume in the machine's order, then the load, where there is one."""

    times: Numbers  # [K]
    middles: Numbers  # [K, bodies, 3]
    turns: Numbers  # [K, bodies, 3, 3]
    ends: Numbers  # [K, two-ended blocks, 2, 3]
    torn: Numbers  # [two-ended blocks] when each broke; infinity: never


def record(machine: Machine, scene: Scene, every: float = 0.1) -> tuple[Run, Motion]:
    """Simulate, and note where everything is `every` so many seconds."""
    run = simulate(machine, scene)
    solid = [name_of(i) for i, place in enumerate(machine.places) if place is not None]
    solid += [LOAD_NAME] if scene.load_mass else []
    two_ended = [i for i, place in enumerate(machine.places) if place is None]
    steps = np.arange(0, round(run.times[-1] / DT) + 1, round(every / DT))
    middles, turns = np.empty((len(steps), len(solid), 3)), np.empty((len(steps), len(solid), 9))
    ends = np.empty((len(steps), len(two_ended), 2, 3))
    mujoco = load_mujoco()
    for stretch in run.stretches:
        model = stretch.built.model
        data = mujoco.MjData(model)
        bodies = [model.body(name).id for name in solid]
        sites = [[model.site(f"{name_of(i)}.{end}").id for end in range(2)] for i in two_ended]
        for row in np.flatnonzero((steps >= stretch.start) & (steps < stretch.start + len(stretch.states))):
            data.qpos[:] = stretch.states[steps[row] - stretch.start, 1 : 1 + model.nq]
            mujoco.mj_kinematics(model, data)
            middles[row], turns[row] = data.xpos[bodies], data.xmat[bodies]
            if two_ended:
                ends[row] = data.site_xpos[sites]
    broke = {number: time for time, number in run.broken}
    torn = np.array([broke.get(i, np.inf) for i in two_ended])
    return run, Motion(steps * DT, middles, turns.reshape(*turns.shape[:2], 3, 3), ends, torn)
