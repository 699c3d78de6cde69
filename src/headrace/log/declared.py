"""A topic as a program declares it: a name, and what it must be. Owns when the log's topic is opened, or created: at
the first use of anything but the name. Declaring a topic touches no file. Knows no log: a function that it gets opens
the topic. After the first use it stands for that topic: if the topic is deleted, it raises TopicReplaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidArgument, nearest
from headrace.log.settings import TopicSettings, check_columns, settings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Topic as _Topic
else:
    _Topic = object  # all that a topic does is the log's, so nothing is inherited

__all__ = ["DeclaredTopic", "check_agrees", "check_declaration", "check_fits", "declare"]


class DeclaredTopic(_Topic):
    """Behaves as the log's topic. `columns`, `declared`: what the program gives it; None where it gives nothing."""

    def __init__(
        self,
        name: str,
        open: Callable[[], _Topic],
        columns: pa.Schema | None = None,
        declared: TopicSettings | None = None,
    ) -> None:
        self.name, self.columns, self.declared = name, columns, declared
        self._open = open
        self._opened: _Topic | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith(("__", "_ipython_", "_repr_")):  # what others look for must not open a log
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.opened(), name)

    def __repr__(self) -> str:
        return f"<topic {self.name!r}, not used yet>" if self._opened is None else repr(self._opened)

    def _repr_html_(self) -> str:
        opened: Any = self.opened()
        return str(opened._repr_html_())

    def opened(self) -> _Topic:
        """The log's topic."""
        if self._opened is None:
            self._opened = self._open()  # two threads at once open it twice: both have the same topic
        return self._opened

    def alter_at_first_use(self, **settings: Any) -> None:
        """The topic gets these settings when it is opened, if it has others."""
        if self._opened is not None:
            _alter(self._opened, settings)
            return
        open = self._open
        self._open = lambda: _alter(open(), settings)

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def known_columns(self) -> pa.Schema | None:
        return self.columns if self._opened is None else self._opened.schema

    @property
    def known_settings(self) -> TopicSettings | None:
        """Of the log's topic, once it was used; before, what the program declares."""
        return self.declared if self._opened is None else self._opened.settings


def _alter(topic: _Topic, settings: Mapping[str, Any]) -> _Topic:
    if any(getattr(topic.settings, name) != value for name, value in settings.items()):
        topic.alter(**settings)
    return topic


def declare(
    name: str, open: Callable[[], _Topic], columns: pa.Schema | None = None, declared: TopicSettings | None = None
) -> DeclaredTopic:
    """A topic that `open` opens, or creates, at its first use."""
    return DeclaredTopic(name, open, columns, declared)  # type: ignore[abstract]  # the rest is the log's topic's


def check_declaration(schema: Any, settings: Mapping[str, Any]) -> tuple[pa.Schema, TopicSettings]:
    """What a topic will be; InvalidArgument if there can be no such topic."""
    from headrace.schema import schema_from

    columns, found = schema_from(schema), settings_of(settings)
    check_columns(columns, found)
    return columns, found


def check_agrees(earlier: DeclaredTopic, schema: Any, asked: Mapping[str, Any]) -> None:
    """InvalidArgument if no topic can be what `earlier` is and what is asked for. Before that one is used, a column
    that it does not declare may be there."""
    import pyarrow as pa

    from headrace.schema import schema_from

    columns, settings = earlier.known_columns, earlier.known_settings
    if columns is None or settings is None:
        return
    wanted = pa.schema([]) if schema is None else schema_from(schema)
    if not earlier.is_open:
        wanted = pa.schema([field for field in wanted if field.name in columns.names])
    check_fits(earlier.name, wanted if len(wanted) else None, asked, columns, settings)


def check_fits(name: str, schema: Any, asked: Mapping[str, Any], known: pa.Schema, settings: TopicSettings) -> None:
    """InvalidArgument if the topic does not have the columns and settings asked for; it may have more columns."""
    from headrace.schema import schema_from, type_ddl

    types = {field.name: field.type for field in known}
    for field in schema_from(schema) if schema is not None else ():
        if field.name not in types:
            why = f"topic {name!r} has no such column.{nearest(field.name, list(types))} To add it: headrace "
            why += f"topics alter {name} --add-column '{field.name} {type_ddl(field.type)}'"
            raise InvalidArgument("schema", field.name, why)
        if types[field.name] != field.type:
            why = f"is {type_ddl(types[field.name])} in topic {name!r}, not {type_ddl(field.type)}"
            raise InvalidArgument("schema", field.name, why)
    for setting in ("key", "event_time"):
        value, has = asked.get(setting), getattr(settings, setting)
        if setting == "key" and value is not None:
            value = (value,) if isinstance(value, str) else tuple(value)
        if value is not None and value != has:
            raise InvalidArgument(setting, value, f"topic {name!r} has {has!r}")
