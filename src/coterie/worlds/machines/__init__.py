"""Machines: construction trees that drive, climb, carry, cross and throw."""

from coterie.worlds.machines.world import MachinesWorld

__all__ = ["MachinesWorld"]
