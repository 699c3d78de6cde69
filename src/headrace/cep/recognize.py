"""`MATCH_RECOGNIZE` of SQL as a pattern: `hr.match_recognize("PARTITION BY card PATTERN (small+ big) WITHIN …")`. Owns
which of its clauses are known; what they say is `definition`'s. Pure."""

from __future__ import annotations

import re

from headrace.cep.definition import Pattern
from headrace.cep.shape import Row, parse
from headrace.durations import duration_us
from headrace.errors import InvalidArgument

__all__ = ["match_recognize"]

CLAUSES = (
    ("partition", r"PARTITION\s+BY"),
    ("order", r"ORDER\s+BY"),
    ("measures", r"MEASURES"),
    ("one", r"ONE\s+ROW\s+PER\s+MATCH"),
    ("all", r"ALL\s+ROWS\s+PER\s+MATCH"),
    ("skip", r"AFTER\s+MATCH\s+SKIP"),
    ("pattern", r"PATTERN"),
    ("within", r"WITHIN"),
    ("define", r"DEFINE"),
)
CLAUSE = re.compile("|".join(rf"(?P<{name}>\b{text}\b)" for name, text in CLAUSES), re.IGNORECASE)
WHOLE = re.compile(r"\s*MATCH_RECOGNIZE\s*\((.*)\)\s*;?\s*", re.IGNORECASE | re.DOTALL)
INTERVAL = re.compile(r"(?:INTERVAL\s+)?'([^']*)'\s*([A-Za-z]*)\s*", re.IGNORECASE)
NAME = r"(?:`[^`]+`|\"[^\"]+\"|[A-Za-z_]\w*)"
AS = re.compile(rf"(.*?)\s+AS\s+({NAME})\s*", re.IGNORECASE | re.DOTALL)
DEFINED = re.compile(rf"({NAME})\s+AS\s+(.*)", re.IGNORECASE | re.DOTALL)
SKIPS = (
    (re.compile(r"PAST\s+LAST\s+ROW", re.IGNORECASE), "past_last"),
    (re.compile(r"TO\s+NEXT\s+ROW", re.IGNORECASE), "to_next"),
    (re.compile(rf"TO\s+FIRST\s+({NAME})", re.IGNORECASE), "to_first"),
    (re.compile(rf"TO\s+(?:LAST\s+)?({NAME})", re.IGNORECASE), "to_last"),
)
CHARACTERS_MAX, BLANKS_MAX = 50_000, 1_000
BLANKS = re.compile(rf"\s{{{BLANKS_MAX + 1}}}")


def match_recognize(text: str) -> Pattern:
    """A pattern from SQL's text: PARTITION BY, ORDER BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, AFTER MATCH SKIP,
    PATTERN with WITHIN, which a pattern of one event can do without, DEFINE. ORDER BY is the event time of the
    events."""
    if not isinstance(text, str):
        raise InvalidArgument("text", text, "must be a text: PARTITION BY … PATTERN (…) WITHIN '10 minutes' DEFINE …")
    if len(text) > CHARACTERS_MAX:
        raise InvalidArgument("text", f"{text[:40]}…", f"is longer than {CHARACTERS_MAX:,} characters")
    if BLANKS.search(text):
        raise InvalidArgument("text", f"{text[:40]}…", f"has more than {BLANKS_MAX:,} blanks behind each other")
    whole = WHOLE.fullmatch(text)
    found = _clauses(whole[1] if whole else text)
    if "pattern" not in found:
        raise InvalidArgument("text", text, "has no PATTERN (…)")
    shape = found["pattern"].strip()
    if not (shape.startswith("(") and shape.endswith(")")):
        raise InvalidArgument("text", text, "PATTERN is followed by '(' and ')'")
    if "within" not in found and not isinstance(parse(shape[1:-1]), Row):
        why = "has no WITHIN, and would wait for ever. Write PATTERN (…) WITHIN INTERVAL '10' MINUTE"
        raise InvalidArgument("text", text, why)
    rows = "all" if "all" in found else "one"
    order = _names(found.get("order", ""))
    if len(order) > 1:
        raise InvalidArgument("text", text, "ORDER BY names the event time, and nothing else")
    return Pattern(
        shape[1:-1],
        tuple((_plain(name), said) for name, said in _each(found.get("define", ""), DEFINED, "DEFINE x AS …")),
        _within_us(found["within"]) if "within" in found else 0,
        tuple(
            (_plain(name), _measure(said, rows))
            for said, name in _each(found.get("measures", ""), AS, "MEASURES … AS name")
        ),
        _skip(found.get("skip", "PAST LAST ROW")),
        rows=rows,  # type: ignore[arg-type]
        by=_names(found.get("partition", "")),
        order_by=order[0] if order else None,
    )


def _clauses(text: str) -> dict[str, str]:
    """What stands behind each keyword, outside of brackets and quotes."""
    masked = _masked(text)
    starts = list(CLAUSE.finditer(masked))
    if not starts or masked[: starts[0].start()].strip():
        raise InvalidArgument("text", text, "must begin with a clause: PARTITION BY, ORDER BY, MEASURES, PATTERN, …")
    out: dict[str, str] = {}
    for each, after in zip(starts, [*starts[1:], None], strict=True):
        name = each.lastgroup
        assert name is not None
        if name in out or (name in ("one", "all") and {"one", "all"} & out.keys()):
            raise InvalidArgument("text", text, f"has {each[0].upper()} twice")
        out[name] = text[each.end() : after.start() if after else len(text)]
        if name in ("one", "all") and out[name].strip():
            raise InvalidArgument("text", text, f"{out[name].strip()!r} behind {each[0].upper()} is not known here")
    return out


def _masked(text: str) -> str:
    """The text with blanks for what is quoted or in brackets: in the same places."""
    out, depth, quote = [], 0, ""
    for each in text:
        hide = bool(quote) or depth > 0
        if quote:
            quote = "" if each == quote else quote
        elif each in "'\"`":
            quote, hide = each, True
        elif each == "(":
            depth, hide = depth + 1, True
        elif each == ")":
            depth, hide = depth - 1, True
        out.append(" " if hide and depth >= 0 and each not in "()" else each)
    return "".join(out)


def _split(text: str) -> list[str]:
    masked, begin, out = _masked(text), 0, []
    for at, each in enumerate(masked):
        if each == ",":
            out.append(text[begin:at])
            begin = at + 1
    return [each.strip() for each in (*out, text[begin:]) if each.strip()]


def _each(text: str, form: re.Pattern[str], said: str) -> list[tuple[str, str]]:
    out = []
    for each in _split(text):
        found = form.fullmatch(each)
        if found is None:
            raise InvalidArgument("text", each, f"is not understood: write {said}")
        out.append((found[1].strip(), found[2].strip()))
    return out


def _names(text: str) -> tuple[str, ...]:
    out = []
    for each in _split(text):
        name = re.sub(r"\s+ASC\s*$", "", each, flags=re.IGNORECASE)
        if not re.fullmatch(NAME, name):
            raise InvalidArgument(
                "text", each, "must be the name of a column, ascending; make others with .transform(…)"
            )
        out.append(_plain(name))
    return tuple(out)


def _plain(name: str) -> str:
    return name[1:-1] if name[0] in '`"' else name


def _measure(text: str, rows: str) -> str:
    """In one row for a match FINAL and RUNNING are the same; in all rows measures are running."""
    if rows == "all" and re.search(r"\bFINAL\b", text, re.IGNORECASE):
        raise InvalidArgument("text", text, "FINAL is not known here: in ALL ROWS PER MATCH measures are running")
    return re.sub(r"\b(FINAL|RUNNING)\s+(?=\w+\s*\()", "", text, flags=re.IGNORECASE)


def _skip(text: str) -> str:
    for form, how in SKIPS:
        found = form.fullmatch(text.strip())
        if found:
            return f"{how}:{_plain(found[1])}" if found.groups() else how
    why = "is not known behind AFTER MATCH SKIP: PAST LAST ROW, TO NEXT ROW, TO FIRST x and TO LAST x are"
    raise InvalidArgument("text", text.strip(), why)


def _within_us(text: str) -> int:
    found = INTERVAL.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument("within", text.strip(), "must be INTERVAL '10' MINUTE, or '10 minutes'")
    amount = f"{found[1]} {found[2]}".strip()
    return duration_us(amount.lower(), argument="within")
