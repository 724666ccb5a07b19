"""Constraints that are automata, where the policy is: following them costs no step of the host."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from coterie.worlds.base import Tables


@dataclass(frozen=True)
class DeviceTables:
    """`Tables` on a device, and the same look-ups."""

    source: Tables
    transitions: Tensor  # [states, V] int32
    permitted: Tensor  # [states, V] bool
    role: Tensor  # [states] int32
    limits: Tensor  # [roles, counts, V] bool
    counts: Tensor  # [V] int32

    @staticmethod
    def upload(tables: Tables, device: torch.device) -> DeviceTables:
        integers = (tables.transitions, tables.role, tables.counts)
        transitions, role, counts = (torch.from_numpy(a.astype(np.int32)).to(device) for a in integers)
        permitted, limits = (
            torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (tables.legal, tables.limits)
        )
        return DeviceTables(tables, transitions, permitted, role, limits, counts)

    def legal(self, state: Tensor, count: Tensor) -> Tensor:
        """[rows, V] bool"""
        return self.permitted[state] & self.limits[self.role[state], count]

    def holds(self, tables: Tables) -> bool:
        """Whether these are the same tables."""
        return tables is self.source or all(
            np.array_equal(getattr(tables, field.name), getattr(self.source, field.name)) for field in fields(Tables)
        )
