"""A theory as a SARAH model file (Staub, arXiv 1309.7223): gauge groups, matter and terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coterie.worlds.theory.anomalies import factor_names
from coterie.worlds.theory.groups import dimension, find_rep, rep_name
from coterie.worlds.theory.invariants import Form, forms_of
from coterie.worlds.theory.theory import TERMS, Term, Theory, left_handed


def sarah_model(theory: Theory, name: str) -> str:
    """The text of NAME.m. Fermions are left-handed Weyl fields, as SARAH wants them."""
    with_conjugate, without = lagrangian(theory)
    lines = [
        "(* Written by Coterie *)",
        "Off[General::spell]",
        f'Model`Name = "{name}";',
        f'Model`NameLaTeX = "{name}";',
        "",
        "(* Gauge groups *)",
        *_gauge(theory),
        "",
        "(* Matter *)",
        *_matter(theory),
        "",
        "NameOfStates = {GaugeES};",
        "DEFINITION[GaugeES][LagrangianInput] = {{LagHC, {AddHC -> True}}, {LagNoHC, {AddHC -> False}}};",
        f"LagHC = {_sum(with_conjugate)};",
        f"LagNoHC = {_sum(without)};",
        "",
    ]
    return "\n".join(lines)


def _gauge(theory: Theory) -> Iterator[str]:
    for i, (n, name) in enumerate(zip(theory.groups, factor_names(theory.groups), strict=True), 1):
        plain = name.replace("_", "")
        kind = "U[1]" if n == 1 else f"SU[{n}]"
        yield f"Gauge[[{i}]] = {{V{plain}, {kind}, factor{i}, g{i}, False}};"


def _matter(theory: Theory) -> Iterator[str]:
    for i, f in enumerate(theory.fermions, 1):
        reps, charges = left_handed(f, theory.simple)
        content = f"F{i}L" if f.left else f"conj[F{i}R]"
        yield f"FermionFields[[{i}]] = {{f{i}, {f.generations}, {content}, {_under(theory, reps, charges)}}};"
    for i, s in enumerate(theory.scalars, 1):
        yield f"ScalarFields[[{i}]] = {{s{i}, 1, S{i}, {_under(theory, s.reps, s.charges)}}};"


def _under(theory: Theory, reps: tuple[str, ...], charges: tuple[int, ...]) -> str:
    """Charges as they are, representations by dimension: a conjugate is negative, an ambiguous one also has labels."""
    names, numbers = iter(reps), iter(charges)
    told = []
    for n in theory.groups:
        if n == 1:
            told.append(str(theory.charge(next(numbers))))
            continue
        rep = find_rep(n, next(names))
        size = dimension(n, rep)
        signed = str(-size if rep < rep[::-1] else size)
        plain = rep_name(n, rep).removesuffix("bar")
        labels = ", ".join(map(str, rep))
        told.append(signed if plain.isdigit() and n < 4 else f"{{{signed}, {{{labels}}}}}" if size > 1 else signed)
    return ", ".join(told)


def lagrangian(theory: Theory) -> tuple[list[str], list[str]]:
    """Terms to which the conjugate is to be added, and those that are their own."""
    with_conjugate: list[str] = []
    without: list[str] = []
    for number, term in enumerate(theory.terms, 1):
        for form in distinct_forms(term, forms_of(theory, term)):
            written = ".".join(_field(kind, i, bar) for kind, i, bar in _slots(term, form))
            coefficient = {"PHI2": f"M{number}^2", "PHI3": f"T{number}", "PHI4": f"L{number}"}.get(
                term.kind, f"{'Y' if term.kind == 'YUKAWA' else 'M'}{number}"
            )
            (without if _real(term, form) else with_conjugate).append(f"{coefficient} {written}")
    return with_conjugate, without


def _slots(term: Term, form: Form) -> list[tuple[str, int, bool]]:
    return list(zip(TERMS[term.kind][0], term.fields, form, strict=True))


def distinct_forms(term: Term, forms: Sequence[Form]) -> list[Form]:
    """Forms that are not the same product, or its conjugate, in another order."""
    seen, kept = set[tuple[tuple[str, int, bool], ...]](), []
    for form in forms:
        slots = tuple(sorted(_slots(term, form)))
        opposite = tuple(sorted((kind, i, not bar) for kind, i, bar in slots))
        if slots not in seen and opposite not in seen:
            seen.add(slots)
            kept.append(form)
    return kept


def _real(term: Term, form: Form) -> bool:
    slots = _slots(term, form)
    return sorted(slots) == sorted((kind, i, not bar) for kind, i, bar in slots)


def _field(kind: str, index: int, bar: bool) -> str:
    name = f"{kind.lower()}{index + 1}"
    return f"conj[{name}]" if bar else name


def _sum(terms: list[str]) -> str:
    return f"-({' + '.join(terms)})" if terms else "0"
