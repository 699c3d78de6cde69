"""The text of Spark's query plans, read back into a tree.

Owns Spark's way of drawing a plan: the sections of `df.explain("extended")`, the tree of operators, attributes written
as `name#id`, and where a column of the result came from. Knows no Spark and no rules. A plan's text is no language: a
string literal is written without quotes, so it may look like anything. What cannot be read for certain is reported as
opaque, never guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "MAPPERS",
    "PROBE",
    "Node",
    "Output",
    "analyzed",
    "attributes",
    "batch_columns",
    "calls",
    "fingerprint",
    "join_type",
    "optimized",
    "outputs",
    "sends_batch",
]

PROBE: Final = "headrace_batch"
"""The name of the Python function that stands for the batch: it is how the batch is found in a plan."""

MAPPERS: Final = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow"})
SUBQUERY_DEPTH: Final = 2  # Spark draws the plans inside an operator's expressions one level deeper than its children


@dataclass(slots=True)
class Node:
    """One operator: its name, its whole text, what it reads, and the plans inside its expressions."""

    operator: str
    text: str
    children: list[Node] = field(default_factory=list)
    subqueries: list[Node] = field(default_factory=list)

    @property
    def is_batch(self) -> bool:
        return self.operator in MAPPERS and f" {PROBE}(" in self.text

    def walk(self) -> Iterator[Node]:
        """This operator and all below it, subqueries included."""
        yield self
        for node in (*self.subqueries, *self.children):
            yield from node.walk()


# -- the drawing -----------------------------------------------------------------------------------

_HEADER: Final = re.compile(r"^== (Parsed Logical|Analyzed Logical|Optimized Logical|Physical) Plan ==$", re.MULTILINE)
_BRANCH: Final = re.compile(r"((?:[: ]  )*)([:+])- (?=\S)")
_OPERATOR: Final = re.compile(r"[^\w]*(\w+)")


def analyzed(explained: str) -> Node:
    """The analysed plan of an extended explanation whose topmost operator is a Project."""
    return _section(explained, "Analyzed Logical")


def optimized(explained: str) -> Node:
    """The optimised plan of such an explanation."""
    return _section(explained, "Optimized Logical")


def _section(explained: str, name: str) -> Node:
    parts = _HEADER.split(explained)
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title == name:
            return _tree(body.strip("\n").split("\n"))
    raise ValueError(f"no {name} Plan in {explained[:200]!r}")


def sends_batch(physical: str) -> bool:
    """Whether a physical plan broadcasts what a Python function made, as a batch is."""
    sent_at: int | None = None
    for line in physical.split("\n"):
        branch = _BRANCH.match(line)
        if branch is None:
            continue  # the root, which is no broadcast, or a line break inside a literal
        depth, text = branch.end(), line[branch.end() :]
        if sent_at is not None and depth <= sent_at:
            sent_at = None
        if sent_at is None and "BroadcastExchange" in text:
            sent_at = depth
        if sent_at is not None and any(mapper in text for mapper in MAPPERS):
            return True
    return False


def _tree(lines: list[str]) -> Node:
    # The analysed section opens with the schema, which may be of any length: column names hold what they like.
    start = next((i for i, line in enumerate(lines) if line.startswith("Project [")), 0)
    root = latest = Node(_operator(lines[start]), lines[start])
    above: list[tuple[int, Node]] = [(0, root)]
    complete: set[tuple[int, int]] = set()  # (parent, depth): its last branch was drawn
    for line in lines[start + 1 :]:
        branch = _BRANCH.match(line)
        depth = len(branch.group(1)) // 3 + 1 if branch else 0
        parent_depth, parent = next(((d, n) for d, n in reversed(above) if d < depth), (0, root))
        if branch is None or depth > parent_depth + SUBQUERY_DEPTH or (id(parent), depth) in complete:
            latest.text += "\n" + line  # a line break inside a literal
            continue
        if branch.group(2) == "+":
            complete.add((id(parent), depth))
        text = line[branch.end() :]
        latest = Node(_operator(text), text)
        (parent.children if depth == parent_depth + 1 else parent.subqueries).append(latest)
        above = [(d, n) for d, n in above if d < depth] + [(depth, latest)]
    return root


def _operator(text: str) -> str:
    found = _OPERATOR.match(text)
    return found.group(1) if found else ""


# -- expressions -----------------------------------------------------------------------------------

_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_ATTRIBUTE: Final = re.compile(r"[^#]*#(\d+)L?")
_ALIAS: Final = re.compile(r"(.*) AS (.*)#(\d+)L?", re.DOTALL)
_NAMED: Final = re.compile(r"(.*?)#(\d+)L?(?:, |$)", re.DOTALL)
_ID: Final = re.compile(r"#(\d+)")


def calls(text: str, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The calls of any of these functions in an operator's text: (name, the whole call).

    A column is written `name#id`, and so is the result of a Python UDF: `rand(5)#7` is either of them, no call."""
    for match in re.finditer(r"(?<![\w.`'#-])(\w+)\(", text):
        if match.group(1).lower() in names:
            end = _closing(text, match.end() - 1)
            if end is not None and text[end + 1 : end + 2] != "#":
                yield match.group(1).lower(), text[match.start() : end + 1]


def _closing(text: str, start: int) -> int | None:
    """Where the bracket that opens at `start` closes; None if brackets do not match (a literal has some)."""
    expected: list[str] = []
    for at in range(start, len(text)):
        if text[at] in _CLOSING:
            expected.append(_CLOSING[text[at]])
        elif text[at] in ")]}":
            if expected.pop() != text[at]:
                return None
            if not expected:
                return at
    return None


def attributes(text: str) -> frozenset[str]:
    """The ids of all columns a text mentions."""
    return frozenset(_ID.findall(text))


def _entries(text: str) -> list[str] | None:
    """`a#1, f(b#2, c#3) AS d#4` at its outer commas; None if the brackets do not match (a literal has some)."""
    entries, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif char == "," and depth == 0 and text[at + 1 : at + 2] == " ":
            entries.append(text[start:at])
            start = at + 2
    return None if depth else [*entries, text[start:]]


def _last_list(text: str) -> str | None:
    """What is in the last [...] of a text that ends with it, or is followed only by short arguments."""
    start = text.rfind("[")
    end = text.find("]", start)
    return None if start < 0 or end < 0 else text[start + 1 : end]


# -- where columns come from -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Output:
    """One column of an operator's result. `origin`: the column of the batch that it is, unchanged; None: it is
    something else. `opaque`: the text does not tell."""

    id: str
    origin: str | None = None
    opaque: bool = False


_PASSING: Final = frozenset(
    {
        "Filter",
        "SubqueryAlias",
        "View",
        "ResolvedHint",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "CollectMetrics",
        "CTERelationDef",
    }
)


def outputs(node: Node) -> list[Output] | None:
    """The columns of an operator's result, in order; None if the text does not tell even that."""
    if node.is_batch:
        listed = batch_columns(node)
        return [Output(id, origin=name) for name, id in listed] if listed else None
    if node.operator in _PASSING and len(node.children) == 1:
        return outputs(node.children[0])
    if node.operator == "WithCTE":
        return outputs(node.children[-1])
    if node.operator == "Project" and len(node.children) == 1:
        return _projected(node)
    if node.operator == "Generate" and len(node.children) == 1:
        below, made = outputs(node.children[0]), _last_list(node.text)
        if below is None or made is None:
            return None
        return below + [Output(id) for _, id in _NAMED.findall(made)]
    if node.operator == "Join" and len(node.children) == 2:
        left, right = outputs(node.children[0]), outputs(node.children[1])
        if join_type(node) in ("LeftSemi", "LeftAnti"):
            return left
        return None if left is None or right is None else left + right
    if node.operator == "Union":
        return _union([outputs(child) for child in node.children])
    listed_text = _last_list(node.text)
    if listed_text is None:
        return None
    return [Output(id, opaque=True) for _, id in _NAMED.findall(listed_text)]


def _projected(node: Node) -> list[Output] | None:
    below = outputs(node.children[0])
    entries = _entries(node.text.removeprefix("Project [").removesuffix("]"))
    if entries is None:
        return None
    origins = {output.id: output for output in below or ()}
    result = []
    for entry in entries:
        alias = _ALIAS.fullmatch(entry)
        source, id = (alias.group(1), alias.group(3)) if alias else (entry, "")
        attribute = _ATTRIBUTE.fullmatch(source)
        known = origins.get(attribute.group(1)) if attribute else None
        if known is not None:
            result.append(Output(id or known.id, known.origin, known.opaque))
        else:
            result.append(Output(id or (attribute.group(1) if attribute else ""), opaque=below is None))
    return result


def _union(branches: list[list[Output] | None]) -> list[Output] | None:
    sound = [branch for branch in branches if branch is not None]
    if len(sound) < len(branches) or len({len(branch) for branch in sound}) != 1:
        return None
    result = []
    for column in zip(*sound, strict=True):
        origins = {output.origin for output in column}
        opaque = any(output.opaque for output in column)
        result.append(Output(column[0].id, origins.pop() if len(origins) == 1 else None, opaque))
    return result


def join_type(node: Node) -> str:
    """`LeftOuter` of `Join LeftOuter, (a#1 = b#2)`."""
    found = re.match(r"Join (\w+)", node.text)
    return found.group(1) if found else ""


def batch_columns(node: Node) -> list[tuple[str, str]]:
    """(name, id) of the batch's columns, in order: `MapInArrow headrace_batch(id#0L)#5, [user#6, at#7], false`."""
    start = node.text.find("[", node.text.find(f" {PROBE}("))
    end = node.text.rfind("]")
    return _NAMED.findall(node.text[start + 1 : end]) if 0 <= start < end else []


# -- sameness --------------------------------------------------------------------------------------

_NUMBER: Final = re.compile(r"#\d+|(?<=^CTERelationDef )\d+|(?<=^CTERelationRef )\d+")
_OBJECT: Final = re.compile(r"@[0-9a-f]{3,}\b")
_NAMED_FOR_ONCE: Final = frozenset({"SubqueryAlias", "View"})  # spark.sql("… {df}", df=df) makes up a name each time


def fingerprint(node: Node) -> list[str]:
    """The operators' texts with ids counted anew: the same for two plans that say the same."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match.group(), f"#{len(numbers)}")

    return [
        node.operator if node.operator in _NAMED_FOR_ONCE else _OBJECT.sub("@", _NUMBER.sub(number, node.text))
        for node in node.walk()
    ]
