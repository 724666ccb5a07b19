"""Does it stand? Rigid bricks, studs that hold up to a limit, solved as a linear program.

Model: Liu et al., StableLego (arXiv 2402.10711). Units are gram-force and studs, so that the
numbers stay near one and a solver's tolerance means something. The default program maximizes t,
the multiple of its own weight that the structure can carry: it stands when t > 1, and the
shortfall below 1 is a smooth measure of how far it is from standing.
"""

from coterie.worlds.bricks.stability.contacts import Contacts, find_contacts, find_floating
from coterie.worlds.bricks.stability.prefixes import iterate_prefixes
from coterie.worlds.bricks.stability.programs import (
    MAX_LOAD_FACTOR,
    PROGRAMS,
    VERDICT_CAP,
    analyze,
    analyze_prefixes,
)
from coterie.worlds.bricks.stability.statics import Statics, assemble
from coterie.worlds.bricks.stability.verdict import Verdict

__all__ = [
    "MAX_LOAD_FACTOR",
    "PROGRAMS",
    "VERDICT_CAP",
    "Contacts",
    "Statics",
    "Verdict",
    "analyze",
    "analyze_prefixes",
    "assemble",
    "find_contacts",
    "find_floating",
    "iterate_prefixes",
]
