"""Where the energy of a throw comes from."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from coterie.worlds.machines.simulate import Run, simulate
from coterie.worlds.machines.terrain import Scene
from coterie.worlds.machines.tree import Part, lay_out


def energy(run: Run) -> list[float]:
    """Of everything, bands included, every 0.1 s."""
    found = []
    for stretch in run.stretches:
        model = stretch.built.model
        data = mujoco.MjData(model)
        for state in stretch.states[::20]:
            data.qpos[:] = state[1 : 1 + model.nq]
            data.qvel[:] = state[1 + model.nq : 1 + model.nq + model.nv]
            mujoco.mj_forward(model, data)
            mujoco.mj_energyPos(model, data)
            mujoco.mj_energyVel(model, data)
            found.append(float(data.energy.sum()))
    return found


def test_energy_never_appears_from_nothing() -> None:
    # A boulder on a post, and a tower that topples: no motor, no band.
    still = lay_out([Part("0"), Part("63", 0, 4), Part("1", 1, 4), Part("36", 1, 0), Part("15", 0, 0)])
    run = simulate(still, Scene())
    joules = energy(run)
    assert max(joules) <= joules[0] + 0.02 * abs(joules[0])
    assert run.boulder is not None
    assert float(np.linalg.norm(run.boulder[:, :2] - run.boulder[0, :2], axis=1).max()) < 6.6


# Found by a policy: a band of 7.4 m swings an arm over the back, and throws 3 kg 100 m; the post breaks off the frame.
BAND_THROWER = lay_out(
    [
        *(Part("0"), Part("63", 0, 0), Part("63", 1, 9), Part("5", 2, 0), Part("1", 3, 0), Part("30", 4, 7)),
        *(Part("36", 5, 0), Part("9", 4, 0, 0, 1), Part("35", 0, 2), Part("35", 0, 1), Part("35", 0, 3)),
        *(Part("35", 0, 4), Part("15", 9, 0), Part("35", 0, 5), Part("35", 12, 2), Part("35", 1, 2)),
        *(Part("35", 1, 6), Part("35", 13, 2), Part("35", 1, 12)),
    ]
)


def test_what_a_band_throws_had_its_energy_in_the_band_and_flies_a_parabola() -> None:
    run = simulate(BAND_THROWER, Scene(boulder_mass=3))
    joules = energy(run)
    assert run.broken and max(joules) <= 1.001 * joules[0]
    assert run.boulder is not None
    # 0.2 s apart: nothing but gravity acts, and no speed is gained.
    bend = np.diff(run.boulder[2:], n=2, axis=0) / 0.2**2
    np.testing.assert_allclose(bend, np.tile([0.0, 0.0, -9.81], (len(bend), 1)), atol=0.02)
    speed = np.linalg.norm(np.diff(run.boulder[2:4], axis=0)) / 0.2
    assert 30 < speed < math.sqrt(2 * joules[0] / 3)


def test_what_breaks_does_so_after_the_same_time_in_shorter_steps() -> None:
    coarse, fine = (simulate(BAND_THROWER, Scene(boulder_mass=3), dt=dt) for dt in (0.005, 0.001))
    assert [number for _, number in coarse.broken] == [number for _, number in fine.broken] == [2, 3, 4]
    assert coarse.boulder is not None and fine.boulder is not None
    np.testing.assert_allclose(coarse.boulder[-1], fine.boulder[-1], rtol=0.02, atol=0.1)
