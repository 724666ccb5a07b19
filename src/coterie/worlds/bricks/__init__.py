"""Brick structures that stand."""

from coterie.worlds.bricks.world import BricksWorld

__all__ = ["BricksWorld"]
