"""Prompts from a file, and rewards that people already have."""

from coterie.worlds.prompts.world import PromptsWorld

__all__ = ["PromptsWorld"]
