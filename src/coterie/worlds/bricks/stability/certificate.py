"""Forces of least norm: one factorization that settles most structures without a linear program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import LinAlgError, solveh_banded

from coterie.worlds.bricks.stability.contacts import GROUND, Contacts, Indices
from coterie.worlds.bricks.stability.patches import PATCHES, Reals, levers
from coterie.worlds.bricks.stability.statics import Statics, centers_of, weights_of
from coterie.worlds.bricks.structure import Brick

_BALANCE_TOLERANCE = 1e-6  # gram-force (studs) that the solution may leave unbalanced


def joint_loads(patch: Indices, wrench: Reals) -> Reals:
    """[J] the smallest share of its studs' capacity with which each joint can pass on its wrench.

    Wrenches are about the joint's corner: force along z, torques about x and y.
    """
    taken = -(PATCHES.facets[patch] @ wrench[:, :, None])[:, :, 0]
    loads: Reals = taken.max(1, initial=0.0)
    return loads


def point_wrenches(statics: Statics, contacts: Contacts, forces: Reals) -> Reals:
    """[J, 3] the wrench of each joint from the forces at its points."""
    parts = forces[: statics.num_points, None] * levers(statics.place - contacts.corner[statics.joint])
    num_joints = len(contacts.upper)
    return np.stack([np.bincount(statics.joint, part, num_joints) for part in parts.T], 1)


def least_norm_wrenches(bricks: Sequence[Brick], contacts: Contacts, patch: Indices) -> Reals | None:
    """[J, 3] one equilibrium under the structure's own weight, or None if none was found.

    It has no sideways forces, and the least sum of squares over all contact points. As everything
    scales, its largest joint load is a bound: the load factor is at least the inverse. Every brick
    must be joined to the ground.
    """
    num_bricks, num_joints = len(bricks), len(contacts.upper)
    center, weight = centers_of(bricks), weights_of(bricks)

    # Moves a wrench from the joint's corner to the brick's center, with the sign it has there.
    move = np.zeros((2, num_joints, 3, 3))
    ends = np.stack([contacts.upper, contacts.lower])
    arm = contacts.corner - center[ends]  # [2, J, 2]
    move[:, :, 1, 0], move[:, :, 2, 0] = arm[..., 1], -arm[..., 0]
    move[:, :, (0, 1, 2), (0, 1, 2)] = 1.0
    move[1] *= -1.0
    stiff = PATCHES.gram[patch] @ move.transpose(0, 1, 3, 2)  # [2, J, 3, 3]
    blocks = move[:, None] @ stiff[None]  # [2, 2, J, 3, 3]

    order, position = _narrow_order(bricks, ends)
    place = 3 * position[ends][:, :, None] + np.arange(3)  # [2, J, 3]
    rows = np.broadcast_to(place[:, None, :, :, None], blocks.shape)
    columns = np.broadcast_to(place[None, :, :, None, :], blocks.shape)
    kept = (rows >= columns) & (rows < 3 * num_bricks)
    rows, columns = rows[kept], columns[kept]
    below = rows - columns
    width = int(below.max()) + 1
    band = np.bincount(columns * width + below, blocks[kept], 3 * num_bricks * width)
    target = np.zeros((num_bricks, 3))
    target[:, 0] = weight[order]
    try:
        found = solveh_banded(band.reshape(-1, width).T, target.ravel(), lower=True, check_finite=False)
    except LinAlgError:
        return None
    motion = np.zeros((num_bricks + 1, 3))
    motion[order] = found.reshape(-1, 3)
    wrench: Reals = (stiff @ motion[ends][..., None]).sum(0)[..., 0]  # [J, 3]

    unbalanced = np.zeros((num_bricks + 1, 3))
    np.add.at(unbalanced, ends, (move @ wrench[..., None])[..., 0])
    unbalanced[:num_bricks, 0] -= weight
    if np.abs(unbalanced[:num_bricks]).max() > _BALANCE_TOLERANCE:
        return None
    return wrench


def _narrow_order(bricks: Sequence[Brick], ends: Indices) -> tuple[Indices, Indices]:
    """The bricks in the direction that keeps joined ones closest, for a narrow band; and the inverse."""
    table = np.array(bricks, np.int64)
    between = ends[:, ends[1] != GROUND]
    best: tuple[int, Indices, Indices] | None = None
    for column in (2, 3, 4):
        order = np.argsort(2 * table[:, column] + (table[:, column - 2] if column < 4 else 0), kind="stable")
        position = np.empty(len(bricks) + 1, np.int64)
        position[order] = np.arange(len(bricks))
        position[GROUND] = len(bricks)
        apart = np.abs(np.diff(position[between], axis=0)).max(initial=0)
        if best is None or apart < best[0]:
            best = int(apart), order, position
    assert best is not None
    return best[1:]
