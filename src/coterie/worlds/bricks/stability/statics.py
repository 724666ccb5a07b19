"""The equilibrium of a structure as one sparse matrix: five balances a brick times the unknown forces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from coterie.worlds.bricks.stability.contacts import GROUND, Contacts, Indices
from coterie.worlds.bricks.stability.patches import PATCHES, Points, Reals, patch_of
from coterie.worlds.bricks.structure import Brick

HALF_HEIGHT = 0.5 * 9.6 / 7.8  # of a brick, in studs
BALANCES = 5  # forces along x, y and z, torques about x and y

# What a unit of shear along x and along y does to the upper and to the lower brick: it is applied
# at the interface, so it turns both the same way.
_SHEAR_ROWS = np.array([[0, 4], [1, 3]])
_SHEAR_VALUES = np.array([[1.0, -HALF_HEIGHT, -1.0, -HALF_HEIGHT], [1.0, HALF_HEIGHT, -1.0, HALF_HEIGHT]])


@dataclass(frozen=True)
class Statics:
    """Columns are forces: K at contact points, then two of shear a joint, then one a touching face."""

    num_bricks: int
    start: NDArray[np.int32]  # [F + 1] where each column begins
    index: NDArray[np.int32]  # row of each entry, five rows a brick
    value: Reals
    lower: Reals  # [F] the least each force may be
    weight: Reals  # [B] gram-force
    joint: Indices  # [K] the joint of each contact point
    place: Reals  # [K, 2]

    @property
    def num_forces(self) -> int:
        return len(self.lower)

    @property
    def num_points(self) -> int:
        return len(self.joint)

    @property
    def matrix(self) -> csc_array:
        """[5B, F]"""
        return csc_array((self.value, self.index, self.start), shape=(BALANCES * self.num_bricks, self.num_forces))

    @property
    def balance(self) -> Reals:
        """[5B] what the forces must add up to."""
        target = np.zeros((self.num_bricks, BALANCES))
        target[:, 2] = self.weight
        return target.ravel()


def centers_of(bricks: Sequence[Brick]) -> Reals:
    """[B + 1, 2]; the last is the ground's, which has none."""
    table = np.array([*bricks, (0, 0, 0, 0, 0)], np.float64)
    return table[:, 2:4] + table[:, :2] / 2


def weights_of(bricks: Sequence[Brick]) -> Reals:
    """[B] in gram-force, which is the mass in grams."""
    return np.array([brick.mass for brick in bricks])


def patches_of(bricks: Sequence[Brick], contacts: Contacts) -> Indices:
    """[J] which patch each joint is; the upper brick decides where its points are."""
    table = np.array(bricks, np.int64).reshape(-1, 5)
    return patch_of(table[contacts.upper, :2].min(1) == 1, contacts.extent)


def assemble(bricks: Sequence[Brick], contacts: Contacts, points: Points = PATCHES.corners) -> Statics:
    """All equations at once; the corners of the patches say as much as every point."""
    patch = patches_of(bricks, contacts)
    joint, which = np.nonzero(points.present[patch])
    patch_of_point = patch[joint]
    place = points.place[patch_of_point, which] + contacts.corner[joint]
    upper, lower = contacts.upper[joint], contacts.lower[joint]
    center = centers_of(bricks)
    num_points, num_joints, num_sides = len(joint), len(patch), len(contacts.axis)

    # The ground's entries are made like a brick's, then left out.
    rows = np.empty((num_points, 6), np.int32)
    values = np.empty((num_points, 6))
    for first, brick, sign in ((0, upper, 1.0), (3, lower, -1.0)):
        arm = sign * (place - center[brick])
        rows[:, first : first + 3] = (BALANCES * brick)[:, None] + (2, 3, 4)
        values[:, first] = sign
        values[:, first + 1] = arm[:, 1]
        values[:, first + 2] = -arm[:, 0]
    real = np.ones((num_points, 6), np.bool_)
    real[:, 3:] = (lower != GROUND)[:, None]

    # One free pair of shears a joint: as yaw is not modelled, its studs are interchangeable.
    ends = BALANCES * np.stack([contacts.upper, contacts.lower], 1)  # [J, 2]
    shear_rows = (ends[:, None, :, None] + _SHEAR_ROWS[:, None, :]).reshape(num_joints, 2, 4)
    shear_real = np.ones((num_joints, 2, 4), np.bool_)
    shear_real[:, :, 2:] = (contacts.lower != GROUND)[:, None, None]
    shear_values = np.broadcast_to(_SHEAR_VALUES, (num_joints, 2, 4))

    side_rows = np.stack([contacts.pushed, contacts.pusher], 1) * BALANCES + contacts.axis[:, None]
    counts = np.concatenate([real.sum(1), shear_real.sum(2).ravel(), np.full(num_sides, 2)])
    start = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=start[1:])
    least = np.zeros(len(counts))
    least[:num_points] = -points.capacity[patch_of_point, which]
    least[num_points : num_points + 2 * num_joints] = -np.inf
    return Statics(
        num_bricks=len(bricks),
        start=start,
        index=np.concatenate([rows[real], shear_rows[shear_real], side_rows.ravel()]).astype(np.int32),
        value=np.concatenate([values[real], shear_values[shear_real], np.tile([1.0, -1.0], num_sides)]),
        lower=least,
        weight=weights_of(bricks),
        joint=joint,
        place=place,
    )
