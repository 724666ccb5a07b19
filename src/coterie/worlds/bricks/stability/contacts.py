"""Who touches whom: patches of studs between layers, faces within a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.worlds.bricks.structure import Brick

GROUND = -1
FLOATS = -1

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Contacts:
    """Joints are rectangles of studs shared by two bricks, or by a brick and the ground."""

    upper: Indices  # [J]
    lower: Indices  # [J] GROUND where the upper brick stands on the base plate
    corner: Indices  # [J, 2] x and y of the rectangle
    extent: Indices  # [J, 2] studs along x and y
    pushed: Indices  # [S] the brick on the far side of a touching face
    pusher: Indices  # [S] the brick on the near side
    axis: Indices  # [S] 0 for x, 1 for y


def find_contacts(bricks: Sequence[Brick]) -> Contacts:
    """All contacts of a structure without overlaps."""
    table = np.array(bricks, np.int64).reshape(-1, 5)
    h, w, x, y, z = table.T
    far_x, far_y = x + h, y + w
    layers_apart = z[:, None] - z

    upper, lower = np.nonzero(layers_apart == 1)
    near = np.maximum(x[upper], x[lower]), np.maximum(y[upper], y[lower])
    shared = np.minimum(far_x[upper], far_x[lower]) - near[0], np.minimum(far_y[upper], far_y[lower]) - near[1]
    joined = np.flatnonzero((shared[0] > 0) & (shared[1] > 0))
    grounded = np.flatnonzero(z == 0)

    # A face across one axis touches where the bricks overlap along the other.
    pushed, pusher, axis = [], [], []
    same_layer = layers_apart == 0
    for along, (start, end, low, high) in enumerate(((x, far_x, y, far_y), (y, far_y, x, far_x))):
        far, near_side = np.nonzero(same_layer & (start[:, None] == end))
        touching = (low[far] < high[near_side]) & (low[near_side] < high[far])
        pushed.append(far[touching])
        pusher.append(near_side[touching])
        axis.append(np.full(len(pushed[-1]), along))
    return Contacts(
        upper=np.concatenate([upper[joined], grounded]),
        lower=np.concatenate([lower[joined], np.full(len(grounded), GROUND)]),
        corner=np.stack([np.concatenate([a[joined], b[grounded]]) for a, b in zip(near, (x, y), strict=True)], 1),
        extent=np.stack([np.concatenate([a[joined], b[grounded]]) for a, b in zip(shared, (h, w), strict=True)], 1),
        pushed=np.concatenate(pushed),
        pusher=np.concatenate(pusher),
        axis=np.concatenate(axis),
    )


def find_supports(num_bricks: int, contacts: Contacts) -> Indices:
    """[B] the joint by which each brick is reached first from the ground, or FLOATS."""
    # Plain lists: for some hundred bricks they are faster than a sparse graph. The last entry is GROUND.
    joints_of: list[list[tuple[int, int]]] = [[] for _ in range(num_bricks + 1)]
    for joint, (upper, lower) in enumerate(zip(contacts.upper.tolist(), contacts.lower.tolist(), strict=True)):
        joints_of[upper].append((lower, joint))
        joints_of[lower].append((upper, joint))
    support = [FLOATS] * (num_bricks + 1)
    reached, seen = [GROUND], [False] * num_bricks + [True]
    for brick in reached:
        for other, joint in joints_of[brick]:
            if not seen[other]:
                seen[other] = True
                support[other] = joint
                reached.append(other)
    return np.array(support[:num_bricks], np.int64)


def find_floating(num_bricks: int, contacts: Contacts) -> Indices:
    """The bricks that no chain of studs joins to the ground; touching sides join nothing."""
    return np.flatnonzero(find_supports(num_bricks, contacts) == FLOATS)
