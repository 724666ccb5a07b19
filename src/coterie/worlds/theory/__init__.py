"""Particle theories: a language, exact physics, and a world."""

from coterie.worlds.theory.world import TheoryWorld

__all__ = ["TheoryWorld"]
