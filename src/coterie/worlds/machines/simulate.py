"""Five seconds in the life of a machine: what moves where, what breaks, and whether the physics held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.extras import require
from coterie.worlds.machines.blocks import BLOCKS, BOULDER, Motion
from coterie.worlds.machines.bodies import LOAD_NAME, ROOT_NAME, Built, build, load_mujoco, name_of
from coterie.worlds.machines.terrain import Scene
from coterie.worlds.machines.tree import Machine, TreeError

Numbers = NDArray[np.float64]

SECONDS, DT, EVERY = 5.0, 0.005, 0.2
CHUNK = 1.0  # seconds between looks at the attachments
DEEPEST = 0.01  # m that things may be in each other at the start
FARTHEST, FASTEST = 500.0, 200.0  # m and m/s, beyond which physics has blown up
STILL = 1e-3  # m/s and rad/s: what moves less, for half a second, will go on doing so
SUSTAINED = 0.02  # seconds on end over its limit, that an attachment does not survive


@dataclass(frozen=True)
class Stretch:
    """Part of a run in which nothing broke: every step's full physics state."""

    built: Built
    start: int  # its first state is that of this step
    states: Numbers  # [steps + 1, state]


@dataclass(frozen=True)
class Run:
    """What happened. Tracks are in MuJoCo's axes (x forward, y left, z up), a row every 0.2 s from the start on."""

    times: Numbers  # [K]
    root: Numbers  # [K, 3]
    boulder: Numbers | None  # [K, 3] of the first one
    clear: Numbers | None  # [K] from its middle to that of the nearest block that is no boulder
    load: Numbers | None  # [K, 3] of what is to be carried
    broken: tuple[tuple[float, int], ...]  # when and which
    stretches: tuple[Stretch, ...]


def simulate(machine: Machine, scene: Scene, seconds: float = SECONDS, dt: float = DT) -> Run:
    """Run the machine; TreeError with reason `physics` where the result would mean nothing."""
    steps, per_row = round(seconds / dt), round(EVERY / dt)
    stretches: list[Stretch] = []
    broken: list[tuple[float, int]] = []
    built = build(machine, scene, dt=dt)
    data = _begin(built)
    at = 0
    while at < steps:
        stretch, failing = _roll(machine, built, data, at, steps, round(CHUNK / dt))
        stretches.append(stretch)
        at += len(stretch.states) - 1
        if failing:
            broken += [(at * dt, number) for number in failing]
            again = build(machine, scene, [number for _, number in broken], dt)
            built, data = again, _carry_over(machine, stretch, again)
    rows = np.arange(0, steps + 1, per_row)
    first = next((i for i, part in enumerate(machine.parts) if part.kind == BOULDER), None)
    return Run(
        times=np.asarray(rows * dt, np.float64),
        root=_track(stretches, rows, ROOT_NAME),
        boulder=_track(stretches, rows, name_of(first)) if first is not None else None,
        clear=_clearance(machine, stretches, rows, name_of(first)) if first is not None else None,
        load=_track(stretches, rows, LOAD_NAME) if scene.load_mass else None,
        broken=tuple(broken),
        stretches=tuple(stretches),
    )


def _begin(built: Built) -> Any:
    mujoco = load_mujoco()
    data = mujoco.MjData(built.model)
    mujoco.mj_forward(built.model, data)
    if data.ncon and (depth := -float(data.contact.dist.min())) > DEEPEST:
        raise TreeError("physics", f"something is {depth:.2f} m inside something else at the start")
    return data


def _roll(machine: Machine, built: Built, data: Any, at: int, steps: int, chunk: int) -> tuple[Stretch, list[int]]:
    """Go on until something breaks or the time is up."""
    mujoco = load_mujoco()
    kind = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
    size, model = mujoco.mj_stateSize(built.model, kind), built.model
    states = np.empty((steps - at + 1, size))
    mujoco.mj_getState(model, data, states[0], kind)
    roller = require("mujoco.rollout", "machines").Rollout(nthread=0)
    over, done = np.zeros(len(built.watched), np.int64), 0
    patience = round(SUSTAINED / model.opt.timestep)
    while at + done < steps:
        count = min(chunk, steps - at - done)
        measured = np.empty((1, count, model.nsensordata))
        following = states[None, done + 1 : done + 1 + count]
        warm = data.qacc_warmstart[None].copy()
        roller.rollout(
            model, data, states[None, done], nstep=count, state=following, sensordata=measured, initial_warmstart=warm
        )
        ends_at, over = _first_break(_loads(machine, built, measured[0]), over, patience)
        _check(model, following[0, :ends_at])
        if ends_at is None and data.warning.number.any():
            raise TreeError("physics", "the simulation became unstable")
        if ends_at is not None:
            failing = [built.watched[i] for i in np.flatnonzero(over >= patience)]
            return Stretch(built, at, states[: done + ends_at + 1]), failing
        done += count
        if _at_rest(model, following[0]):
            states[done + 1 :] = states[done]
            break
    return Stretch(built, at, states), []


def _at_rest(model: Any, states: Numbers) -> bool:
    """Whether nothing has moved or turned, not even a wheel, in the second half of these states."""
    velocities = states[len(states) // 2 :, 1 + model.nq : 1 + model.nq + model.nv]
    return bool(np.abs(velocities).max(initial=0.0) < STILL)


def _first_break(
    exceeded: NDArray[np.bool_], over: NDArray[np.int64], patience: int
) -> tuple[int | None, NDArray[np.int64]]:
    """After how many of these steps something gives way, and how many steps each was over its limit by then."""
    if not exceeded.any():
        return None, np.zeros_like(over)
    for step, row in enumerate(exceeded):
        over = np.where(row, over + 1, 0)
        if (over >= patience).any():
            return step + 1, over
    return None, over


def _check(model: Any, states: Numbers) -> None:
    """Physics that blew up earns nothing."""
    positions, velocities = states[:, 1 : 1 + model.nq], states[:, 1 + model.nq : 1 + model.nq + model.nv]
    if not np.isfinite(states).all() or np.abs(velocities).max(initial=0.0) > FASTEST:
        raise TreeError("physics", f"something moved faster than {FASTEST:g} m/s or rad/s")
    if np.abs(positions[:, :3]).max() > FARTHEST:
        raise TreeError("physics", f"the machine went farther than {FARTHEST:g} m")


def _loads(machine: Machine, built: Built, measured: Numbers) -> NDArray[np.bool_]:
    """[steps, watched]: whether an attachment bears more than it can."""
    over = np.zeros((len(measured), len(built.watched)), np.bool_)
    held = np.array([machine.places[number] is not None for number in built.watched], np.bool_)
    columns = np.cumsum(np.where(held, 6, 1)) - np.where(held, 6, 1)
    # All attachments at once: force and torque, three numbers each.
    six = measured[:, columns[held, None] + np.arange(6)].reshape(len(measured), -1, 2, 3)
    over[:, held] = (np.linalg.norm(six, axis=-1) > built.limits[held]).any(-1)
    for i in np.flatnonzero(~held):
        number, value = built.watched[i], np.abs(measured[:, columns[i]])
        block = BLOCKS[machine.parts[number].kind]
        if block.motion is Motion.BAND:
            rest = built.model.tendon_lengthspring[built.model.tendon(name_of(number)).id, 1]
            value = block.stiffness * (value - rest)
        over[:, i] = value > built.limits[i, 0]
    return over


def _carry_over(machine: Machine, stretch: Stretch, again: Built) -> Any:
    """The same moment in another model: poses and speeds of what is free now, joints as they were."""
    mujoco = load_mujoco()
    before, data = stretch.built.model, mujoco.MjData(again.model)
    old = mujoco.MjData(before)
    mujoco.mj_setState(before, old, stretch.states[-1], mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    mujoco.mj_forward(before, old)
    data.time = old.time
    known = {before.joint(i).name for i in range(before.njnt)}
    for i in range(again.model.njnt):
        name = again.model.joint(i).name
        free = again.model.jnt_type[i] == mujoco.mjtJoint.mjJNT_FREE
        was_free = name in known and before.joint(name).type[0] == mujoco.mjtJoint.mjJNT_FREE
        joint = data.joint(name)
        if free and not was_free:
            body, velocity = old.body(name), np.zeros(6)
            mujoco.mj_objectVelocity(before, old, mujoco.mjtObj.mjOBJ_XBODY, body.id, velocity, 0)
            joint.qpos[:] = [*body.xpos, *body.xquat]
            turning = np.zeros(3)
            mujoco.mju_rotVecQuat(turning, velocity[:3], body.xquat * [1, -1, -1, -1])
            joint.qvel[:] = [*velocity[3:], *turning]
        else:
            joint.qpos[:], joint.qvel[:] = old.joint(name).qpos, old.joint(name).qvel
    mujoco.mj_forward(again.model, data)
    return data


def _track(stretches: list[Stretch], rows: NDArray[np.int64], name: str) -> Numbers:
    """[rows, 3]: where a free body is at these steps."""
    track = np.empty((len(rows), 3))
    for stretch in stretches:
        column = 1 + stretch.built.model.joint(name).qposadr[0]
        here = (rows >= stretch.start) & (rows < stretch.start + len(stretch.states))
        track[here] = stretch.states[rows[here] - stretch.start, column : column + 3]
    return track


def _clearance(machine: Machine, stretches: list[Stretch], rows: NDArray[np.int64], name: str) -> Numbers:
    """[rows]: how far a body is from the nearest block of the machine, middle to middle."""
    mujoco = load_mujoco()
    held = [
        name_of(i)
        for i, (part, place) in enumerate(zip(machine.parts, machine.places, strict=True))
        if place is not None and part.kind != BOULDER
    ]
    clear = np.empty(len(rows))
    for stretch in stretches:
        model = stretch.built.model
        data, body = mujoco.MjData(model), model.body(name).id
        others = [model.body(other).id for other in held]
        for row in np.flatnonzero((rows >= stretch.start) & (rows < stretch.start + len(stretch.states))):
            data.qpos[:] = stretch.states[rows[row] - stretch.start, 1 : 1 + model.nq]
            mujoco.mj_kinematics(model, data)
            clear[row] = np.linalg.norm(data.xpos[others] - data.xpos[body], axis=1).min()
    return clear
