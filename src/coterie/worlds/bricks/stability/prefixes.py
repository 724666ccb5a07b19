"""The verdicts on all beginnings of one structure, each from the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coterie.worlds.bricks.stability.certificate import joint_loads, least_norm_wrenches, point_wrenches
from coterie.worlds.bricks.stability.contacts import GROUND, Contacts, Indices, find_contacts
from coterie.worlds.bricks.stability.limit_load import Columns, Limit, LimitLoad, tree_basis
from coterie.worlds.bricks.stability.patches import Reals
from coterie.worlds.bricks.stability.statics import BALANCES, Statics, assemble, centers_of, patches_of
from coterie.worlds.bricks.stability.verdict import Verdict, brick_loads, say_floating, say_limit
from coterie.worlds.bricks.structure import Brick


def iterate_prefixes(bricks: Sequence[Brick], cap: float) -> Iterator[Verdict]:
    """Judge the first brick, the first two, and so on; stop when you have seen enough.

    Each verdict is that of `analyze` with the same cap, but for the choice among equally good
    forces. Cheapest first: the forces found before, with the new brick's weight led down to the
    ground; the least-norm forces; the linear program, which grows and keeps its basis.
    """
    if not bricks:
        return
    contacts = find_contacts(bricks)
    arrivals = _find_arrivals(len(bricks), contacts)
    carried = CarriedWeight(bricks, contacts, arrivals)
    program = GrowingProgram(bricks, contacts, arrivals, cap)
    limited = False
    for k in range(len(bricks)):
        floating = np.flatnonzero(arrivals.entry[: k + 1] > k)
        if len(floating):
            yield say_floating(bricks[: k + 1], floating)
            continue
        carried.lead_down(k)
        # Another brick seldom helps what is past its limit: the program is asked at once.
        if not limited and (carried.holds(cap) or (carried.spread_out(k) and carried.holds(cap))):
            yield Verdict(cap, load=brick_loads(len(bricks), contacts, carried.loads)[: k + 1])
            continue
        limit = program.solve(k)
        limited = limit.load_factor < cap
        if not limited:
            carried.take_over(point_wrenches(program.statics, contacts, limit.forces) / cap)
        verdict = say_limit(bricks, contacts, program.statics, limit)
        yield replace(verdict, load=verdict.load[: k + 1])


@dataclass(frozen=True)
class Arrivals:
    """When and by which way each brick is joined to the ground."""

    entry: Indices  # [B] the brick with which it is first joined; B if it never is
    order: list[int]  # the bricks as they are joined
    path: list[list[tuple[int, float]]]  # [B] the joints down to the ground; -1.0 where it hangs


def _find_arrivals(num_bricks: int, contacts: Contacts) -> Arrivals:
    neighbors: list[list[tuple[int, int, float]]] = [[] for _ in range(num_bricks + 1)]
    for joint, (upper, lower) in enumerate(zip(contacts.upper.tolist(), contacts.lower.tolist(), strict=True)):
        neighbors[upper].append((lower, joint, 1.0))
        neighbors[lower].append((upper, joint, -1.0))
    entry = [num_bricks] * num_bricks + [0]  # the last is the ground's
    path: list[list[tuple[int, float]]] = [[] for _ in range(num_bricks + 1)]
    order: list[int] = []

    def join(brick: int, k: int) -> bool:
        """Join a brick by the shortest way to the ground, if there is one."""
        ways = [(len(path[other]), other, joint, sign) for other, joint, sign in neighbors[brick] if entry[other] <= k]
        if not ways:
            return False
        _, other, joint, sign = min(ways)
        entry[brick] = k
        path[brick] = [(joint, sign), *path[other]]
        order.append(brick)
        return True

    for k in range(num_bricks):
        reached = [k] if join(k, k) else []
        for brick in reached:
            for other, _, _ in neighbors[brick]:
                if GROUND < other < k and entry[other] > k:
                    join(other, k)
                    reached.append(other)
    return Arrivals(np.array(entry[:num_bricks], np.int64), order, path)


class CarriedWeight:
    """Forces that balance the bricks so far under their own weight, whether or not the studs hold them."""

    def __init__(self, bricks: Sequence[Brick], contacts: Contacts, arrivals: Arrivals) -> None:
        self.bricks, self.contacts, self.arrivals = bricks, contacts, arrivals
        self.patch = patches_of(bricks, contacts)
        self.center = centers_of(bricks)
        self.wrench = np.zeros((len(contacts.upper), 3))
        self.loads = np.zeros(len(contacts.upper))
        self.num_led = 0

    def holds(self, cap: float) -> bool:
        return bool(self.loads.max() * cap <= 1.0)

    def lead_down(self, k: int) -> None:
        """Bring each new brick's weight to the ground through the joints of its path, and no others."""
        while self.num_led <= k:
            brick = self.arrivals.order[self.num_led]
            self.num_led += 1
            joints, signs = zip(*self.arrivals.path[brick], strict=True)
            along = list(joints)
            arm = self.center[brick] - self.contacts.corner[along]
            force = self.bricks[brick].mass * np.array(signs)
            self.wrench[along] += np.stack([force, force * arm[:, 1], -force * arm[:, 0]], 1)
            self.loads[along] = joint_loads(self.patch[along], self.wrench[along])

    def spread_out(self, k: int) -> bool:
        """Take the least-norm forces instead; False if there are none."""
        c = self.contacts
        present = np.flatnonzero((c.upper <= k) & (c.lower <= k))
        part = replace(c, upper=c.upper[present], lower=c.lower[present], corner=c.corner[present])
        found = least_norm_wrenches(self.bricks[: k + 1], part, self.patch[present])
        if found is None:
            return False
        wrench = np.zeros_like(self.wrench)
        wrench[present] = found
        self.take_over(wrench)
        return True

    def take_over(self, wrench: Reals) -> None:
        self.wrench = wrench
        self.loads = joint_loads(self.patch, wrench)


class GrowingProgram:
    """The limit load of the bricks so far; a brick enters when it is joined to the ground."""

    def __init__(self, bricks: Sequence[Brick], contacts: Contacts, arrivals: Arrivals, cap: float) -> None:
        self.bricks, self.contacts, self.arrivals, self.cap = bricks, contacts, arrivals, cap
        self.num_bricks = self.num_forces = 0

    @cached_property
    def statics(self) -> Statics:
        return assemble(self.bricks, self.contacts)

    @cached_property
    def parts(self) -> tuple[Columns, Indices, Indices]:
        return _in_order_of_entry(self.statics, self.contacts, self.arrivals.entry)

    @cached_property
    def program(self) -> LimitLoad:
        return LimitLoad(self.cap)

    def solve(self, k: int) -> Limit:
        """The limit with bricks 0 to k, none of which may float; what is not there yet carries nothing."""
        columns, order, num_forces = self.parts
        weight = self.statics.weight[np.argsort(self.arrivals.entry, kind="stable")]
        until = int(num_forces[k])
        self.program.add_bricks(weight[self.num_bricks : k + 1])
        self.program.add_forces(columns.between(self.num_forces, until))
        if self.num_bricks == 0:
            supports = np.array([self.arrivals.path[brick][0][0] for brick in self.arrivals.order[: k + 1]])
            self.program.start_from(tree_basis(self.statics, len(self.contacts.upper), supports)[order[:until]])
        self.num_bricks, self.num_forces = k + 1, until
        limit = self.program.solve()
        spread = np.zeros((2, self.statics.num_forces))
        spread[:, order[:until]] = limit.forces, limit.prices
        return Limit(limit.load_factor, spread[0], spread[1])


def _in_order_of_entry(statics: Statics, contacts: Contacts, entry: Indices) -> tuple[Columns, Indices, Indices]:
    """The forces sorted by when both their bricks are in, their old places, and how many are in with each brick."""
    entry_or_ground = np.append(entry, 0)
    joint = np.maximum(entry_or_ground[contacts.upper], entry_or_ground[contacts.lower])
    side = np.maximum(entry[contacts.pushed], entry[contacts.pusher])
    since = np.concatenate([joint[statics.joint], np.repeat(joint, 2), side])
    order = np.argsort(since, kind="stable")
    num_columns = np.searchsorted(since[order], np.arange(len(entry)), side="right")

    rank = np.empty(len(entry), np.int64)
    rank[np.argsort(entry, kind="stable")] = np.arange(len(entry))
    index = BALANCES * rank[statics.index // BALANCES] + statics.index % BALANCES
    count = np.diff(statics.start)[order]
    start = np.append(0, np.cumsum(count))
    entries = np.repeat(statics.start[order] - start[:-1], count) + np.arange(start[-1])
    sorted_columns = Columns(
        start.astype(np.int32), index[entries].astype(np.int32), statics.value[entries], statics.lower[order]
    )
    return sorted_columns, order, num_columns
