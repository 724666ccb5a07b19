"""Texts with blanks to fill in."""

from coterie.worlds.fill.world import FillWorld

__all__ = ["FillWorld"]
