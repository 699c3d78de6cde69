"""What a full-text index is, as a user says it: `hr.search_index("users.db", text=["name", "about"])`. A value, and
where its file is. Knows no SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from headrace.errors import InvalidArgument, UnknownSink
from headrace.names import check_name

if TYPE_CHECKING:
    from headrace.connect.index.writing import Indexing
    from headrace.log.contract import Log, Topic

__all__ = ["FOLDER", "KIND", "SearchIndex", "search_index"]

FOLDER: Final = "indexes"
KIND: Final = "index"
TEXTS_MAX: Final = 32
Tokenizer = Literal["unicode61", "porter", "trigram"]


@dataclass(frozen=True)
class SearchIndex:
    """`path`: a name lies in the folder `indexes` of the home; anything else is a path. `text`: columns of text that
    are searched; all columns are kept. `key`: columns that tell rows apart, if the topic does not say so. `tokenizer`:
    "unicode61" (words, without accents), "porter" (English word stems, too), "trigram" (parts of words)."""

    path: str
    text: tuple[str, ...]
    key: tuple[str, ...] | None = None
    tokenizer: Tokenizer = "unicode61"

    @property
    def kind(self) -> str:
        return KIND

    def facts(self) -> dict[str, Any]:
        return {"path": self.path, "text": [*self.text], "key": self.key and [*self.key], "tokenizer": self.tokenizer}

    @classmethod
    def of(cls, name: str, facts: Mapping[str, Any]) -> SearchIndex:
        """As it was recorded; UnknownSink if what was recorded is no index."""
        if facts.get("kind") != KIND:
            raise UnknownSink(sink=name, known=[], kind=KIND)
        return search_index(facts["path"], text=facts["text"], key=facts["key"], tokenizer=facts["tokenizer"])

    def file(self, home: Path) -> Path:
        return home / FOLDER / self.path if "/" not in self.path else Path(self.path)

    def over(
        self, name: str, log: Log, topic: Topic, home: Path, key: tuple[str, ...] | None, *, anew: bool = False
    ) -> Indexing:
        from headrace.connect.index.writing import Indexing

        return Indexing(name, log, topic, self.file(home), self, self.key or key, anew=anew)


def search_index(
    path: str | Path,
    *,
    text: str | Sequence[str],
    key: str | Sequence[str] | None = None,
    tokenizer: Tokenizer = "unicode61",
) -> SearchIndex:
    """For `stream.to_sink(name, …)`: a full-text index in a SQLite file, exactly once by position. `path`: a name lies
    in the folder `indexes` of the home. `text`: the columns that are searched. `key`: the columns that tell rows apart,
    where the topic is not a table's. `tokenizer`: "unicode61" finds words, without regard to accents; "porter" also
    other forms of English words; "trigram" any three letters, for languages without spaces."""
    texts = (text,) if isinstance(text, str) else tuple(text)
    if not texts or len(texts) > TEXTS_MAX or not all(isinstance(each, str) and each for each in texts):
        raise InvalidArgument("text", text, f"must be names of columns, 1 to {TEXTS_MAX}: text=['title', 'body']")
    if len({*texts}) < len(texts):
        raise InvalidArgument("text", text, "names a column twice")
    if tokenizer not in get_args(Tokenizer):
        raise InvalidArgument("tokenizer", tokenizer, f"must be one of {', '.join(map(repr, get_args(Tokenizer)))}")
    keys = None if key is None else (key,) if isinstance(key, str) else tuple(key)
    if keys is not None and not all(isinstance(each, str) and each for each in keys):
        raise InvalidArgument("key", key, "must be names of columns")
    where = str(path) if isinstance(path, str) and "/" not in path else str(Path(path).absolute())
    if "/" not in where:
        check_name(where, argument="path")
    return SearchIndex(where, texts, keys or None, tokenizer)
