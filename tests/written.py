"""Theories written for tests, by hand and at random."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from coterie.worlds.theory.conjectures import dream
from coterie.worlds.theory.theory import Theory, parse_theory
from coterie.worlds.theory.world import products


def theory_of(groups: str, *lines: str, vevs: tuple[str, ...] = ()) -> Theory:
    """A theory from its groups, the lines of its multiplets, and those of its interactions."""
    number = len(groups.split())
    fields = [line for line in lines if line.startswith(("SCALAR", "FERMION"))]
    terms = [line for line in lines if line not in fields]
    header = f"BOS GAUGE_GROUPS NUM_GAUGE num_{number} {groups} SYMMETRY_BREAKING"
    return parse_theory(" ".join([header, *vevs, "MULTIPLETS", *fields, "INTERACTIONS", *terms, "EOS"]))


random_theories = st.builds(
    lambda place, seed: dream(products()[0][place], np.random.default_rng(seed)),
    st.integers(0, len(products()[0]) - 1),
    st.integers(0, 2**32),
)
