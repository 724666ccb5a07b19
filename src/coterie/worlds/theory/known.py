"""Known theories, shipped as texts, and what is left of one when a field is taken away."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from coterie.worlds.theory.theory import TERMS, Term, Theory, parse_theory


@lru_cache(maxsize=1)
def known_theories() -> dict[str, Theory]:
    """By name: standard-model, su5, …"""
    texts = sorted(files(__package__).joinpath("known").iterdir(), key=lambda file: file.name)
    return {file.name[:-4]: parse_theory(file.read_text()) for file in texts if file.name.endswith(".txt")}


def without_fermion(theory: Theory, gone: int) -> Theory:
    """The theory without one of its fermions and the terms that name it."""

    def renumbered(term: Term) -> Term:
        kinds = TERMS[term.kind][0]
        fields = (f - (kind == "F" and f > gone) for kind, f in zip(kinds, term.fields, strict=True))
        return term._replace(fields=tuple(fields))

    def names_it(term: Term) -> bool:
        return any(kind == "F" and f == gone for kind, f in zip(TERMS[term.kind][0], term.fields, strict=True))

    return theory._replace(
        fermions=theory.fermions[:gone] + theory.fermions[gone + 1 :],
        terms=tuple(renumbered(term) for term in theory.terms if not names_it(term)),
    )
