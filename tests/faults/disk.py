"""What a disk may hold after a power loss, and disks that fail. Owns the model of what survives; the
shim disk.c traces and fails the operations. Knows nothing of headrace, only files, syncs and markers.

    disk = Disk(shim, tmp_path / "log")
    trace = disk.trace(children, program, str(disk.root))         # program calls mark(fact) where it acknowledges
    for image in trace.images(seed=1):
        image.write(copy)                                         # the directory after the power loss
        check(copy, image.markers)                                # facts acknowledged before it

The model. A sync makes durable what was written to that file before the sync began; nothing else does.
Everything later is kept, lost, torn at sectors, or reduced to its size, write by write. A sync that
failed covers nothing, and neither does a later one for the same writes (the kernel has dropped them).
Names are durable by a sync of their directory ("posix"), or, in order, also by the first sync of the
file itself ("ext4"). Not modelled, and refused when met in a trace: writing through mmap, O_SYNC,
sendfile, symlinks. SQLite's -shm is written through mmap; its pages are zeros in an image.
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.faults.children import Child, Children

__all__ = ["Disk", "Fail", "Image", "Shim", "ShimUnavailable", "Trace", "fail", "fired", "mark"]

SECTOR_BYTES = 512

Mode = Literal["nothing", "everything", "random", "reordered"]
Names = Literal["posix", "ext4"]
MODES: tuple[Mode, ...] = ("nothing", "everything", "random", "reordered")
NAMES: tuple[Names, ...] = ("posix", "ext4")


# -- the shim ----------------------------------------------------------------------------------------


class ShimUnavailable(Exception):
    """This machine cannot build or load the shim; the message says why."""


@dataclass(frozen=True)
class Fail:
    """Fail calls of one kind on files whose path below the root matches a glob (`*` crosses `/`).

    From the nth matching call of the process on, `times` calls fail (0: for ever). `error` is an errno,
    or "short": half of the bytes are written, or read. Kinds: write, sync, open, truncate (and
    fallocate), read, entry (mkdir, rename, link, unlink)."""

    kind: Literal["write", "sync", "open", "truncate", "read", "entry"]
    glob: str
    error: int | Literal["short"]
    nth: int = 1
    times: int = 1

    def __str__(self) -> str:
        error = -1 if self.error == "short" else self.error
        return f"{self.kind} {self.nth} {self.times} {error} {self.glob}"


@dataclass(frozen=True)
class Shim:
    library: Path

    @staticmethod
    def build(directory: Path) -> Shim:
        if platform.system() != "Linux" or struct.calcsize("P") != 8:
            raise ShimUnavailable("the disk shim needs 64-bit Linux")
        compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise ShimUnavailable("the disk shim needs a C compiler: install gcc or clang")
        library = directory / "disk.so"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-U_FORTIFY_SOURCE", "-pthread"]
        source = Path(__file__).with_suffix(".c")
        built = subprocess.run([compiler, *flags, "-o", library, source], capture_output=True, text=True, check=False)
        if built.returncode:
            raise ShimUnavailable(f"{compiler} cannot build the disk shim: {built.stderr}")
        shim = Shim(library)
        probe = [sys.executable, "-c", "import ctypes; ctypes.CDLL(None).hr_mark"]
        loaded = subprocess.run(probe, env={**os.environ, **shim.env()}, capture_output=True, text=True, check=False)
        if loaded.returncode:
            raise ShimUnavailable(f"{sys.executable} does not load the disk shim (static build?): {loaded.stderr}")
        return shim

    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": ":".join(filter(None, [str(self.library), os.environ.get("LD_PRELOAD")]))}


def mark(fact: Any) -> None:
    """In the traced program: put a fact (JSON) into the trace, e.g. that record 17 is acknowledged."""
    _loaded().hr_mark(json.dumps(fact).encode())


def fail(*rules: Fail) -> None:
    """In the program: replace the rules by these, counting calls from now on. None: nothing fails any more."""
    _loaded().hr_fail("\n".join(map(str, rules)).encode())


def fired() -> int:
    """In the program: how many calls were made to fail since the last `fail`."""
    count: int = _loaded().hr_fired()
    return count


def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "hr_mark"):
        raise RuntimeError("this process does not run under the disk shim: start it with Disk.trace or Disk.start")
    return library


@dataclass
class Disk:
    """A directory whose files are watched. What is there before a trace counts as durable."""

    shim: Shim
    root: Path

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root = self.root.resolve()

    def start(
        self,
        children: Children,
        program: Callable[..., None],
        *args: Any,
        rules: Sequence[Fail] = (),
        trace: Path | None = None,
    ) -> Child:
        """Start a program under the shim; several may share a trace, which has one order for all of them."""
        env = {**self.shim.env(), "HR_DISK_ROOT": str(self.root)}
        if trace is not None:
            assert self.root not in trace.resolve().parents, "the trace must not be in the directory it traces"
            env["HR_DISK_TRACE"] = str(trace)
        if rules:
            env["HR_DISK_FAIL"] = "\n".join(map(str, rules))
        return children.start(program, *args, env=env)

    def trace(self, children: Children, program: Callable[..., None], *args: Any, rules: Sequence[Fail] = ()) -> Trace:
        """Run one program to its good end and load what it did. Nobody else may use the directory meanwhile."""
        path = self.root.with_name(self.root.name + ".trace")
        path.unlink(missing_ok=True)
        before = Tree.read(self.root)
        self.start(children, program, *args, rules=rules, trace=path).finish()
        trace = Trace.load(path, before)
        trace.verify(self.root)
        return trace


# -- the trace ---------------------------------------------------------------------------------------


class Kind(enum.IntEnum):
    """The operations, numbered as in disk.c."""

    OPEN = 1
    CREATE = 2
    WRITE = 3
    TRUNCATE = 4
    ZERO = 5
    SYNC_BEGIN = 6
    SYNC_END = 7
    UNLINK = 8
    RENAME = 9
    LINK = 10
    MKDIR = 11
    MARK = 12
    UNMODELLED = 13


@dataclass(frozen=True, slots=True)
class Op:
    kind: Kind
    pid: int
    inode: int
    path: str
    a: int  # offset, size, or number of the sync
    b: int  # length, or errno of the sync
    data: bytes

    def __str__(self) -> str:
        facts = {
            Kind.WRITE: f"[{self.a}, {self.a + self.b})",
            Kind.TRUNCATE: f"to {self.a}",
            Kind.SYNC_END: f"errno {self.b}",
            Kind.MARK: self.data.decode(errors="replace"),
            Kind.RENAME: self.data.decode(errors="replace"),
        }
        return f"{self.pid} {self.kind.name} {self.path or self.inode or ''} {facts.get(self.kind, '')}".rstrip()


@dataclass(frozen=True)
class Tree:
    """The content of a directory: paths relative to it."""

    files: dict[str, bytes]
    directories: frozenset[str] = frozenset()

    @staticmethod
    def read(root: Path) -> Tree:
        below = [(p, str(p.relative_to(root))) for p in root.rglob("*")]
        return Tree(
            {name: p.read_bytes() for p, name in below if p.is_file()},
            frozenset(name for p, name in below if p.is_dir()),
        )


_HEADER_BYTES = 4096
_RECORD = struct.Struct("=IHHqQqq")


@dataclass(frozen=True)
class Trace:
    """Every change of the files, in order, over all processes that shared the trace file."""

    ops: list[Op]
    before: Tree

    @staticmethod
    def load(path: Path, before: Tree | None = None) -> Trace:
        data = path.read_bytes()
        end = int.from_bytes(data[:8], "little")
        ops: list[Op] = []
        at = _HEADER_BYTES
        while at < end:
            total_bytes, kind, path_bytes, pid, inode, a, b = _RECORD.unpack_from(data, at)
            body = at + _RECORD.size
            name = os.fsdecode(data[body : body + path_bytes])
            ops.append(Op(Kind(kind), pid, inode, name, a, b, data[body + path_bytes : at + total_bytes]))
            at += total_bytes
            if kind == Kind.UNMODELLED:
                raise ValueError(f"the power-loss model knows nothing of {ops[-1].data.decode()} on {name!r}")
        assert at == end
        return Trace(ops, before or Tree({}))

    def verify(self, root: Path) -> None:
        """The trace must be the whole truth: played to its end it gives the files that are there."""
        (end,) = self.images(0, points=[len(self.ops)], modes=["everything"], names=["posix"])
        there = Tree.read(root)
        assert end.tree.directories == there.directories
        differ = {n for n in end.tree.files.keys() | there.files if end.tree.files.get(n) != there.files.get(n)}
        differ = {name for name in differ if not name.endswith("-shm")}  # SQLite writes it through mmap
        assert not differ, f"something changed {sorted(differ)} around the shim"

    def markers(self) -> list[Any]:
        return [json.loads(op.data) for op in self.ops if op.kind is Kind.MARK]

    def images(
        self,
        seed: int,
        *,
        points: int | Iterable[int] | None = None,
        modes: Sequence[Mode] = MODES,
        names: Sequence[Names] = NAMES,
    ) -> Iterator[Image]:
        """Disk contents after a power loss at `points`: before the ops of these numbers, at so many random
        places, or anywhere (None). An image like the last one, with nothing more promised, is left out.
        An image depends on seed, point, mode and names only, so a single one is easy to get again."""
        everywhere = range(len(self.ops) + 1)
        if points is None:
            chosen = set(everywhere)
        elif isinstance(points, int):
            chosen = set(Random(seed).sample(everywhere, min(points, len(everywhere))))
        else:
            chosen = set(points)
        for rule in names:
            state = _State(self.before, rule)
            markers: list[Any] = []
            last: dict[Mode, tuple[Tree, int]] = {}
            for point in everywhere:
                if point in chosen:
                    for mode in modes:
                        tree = state.after_power_loss(mode, Random(f"{seed} {point} {mode} {rule}"))
                        if last.get(mode) == (tree, len(markers)):
                            continue
                        last[mode] = (tree, len(markers))
                        yield Image(tree, tuple(markers), point, mode, rule, seed)
                if point < len(self.ops):
                    op = self.ops[point]
                    if op.kind is Kind.MARK:
                        markers.append(json.loads(op.data))
                    else:
                        state.apply(point, op)


@dataclass(frozen=True)
class Image:
    """What is on the disk after one power loss, and what had been acknowledged before it."""

    tree: Tree
    markers: tuple[Any, ...]
    point: int
    mode: Mode
    names: Names
    seed: int

    def __str__(self) -> str:
        return f"images(seed={self.seed}, points=[{self.point}], modes=['{self.mode}'], names=['{self.names}'])"

    def write(self, directory: Path) -> Path:
        """Make `directory` hold exactly this image."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True)
        for name in sorted(self.tree.directories):
            (directory / name).mkdir(mode=0o700)
        for name, content in self.tree.files.items():
            fd = os.open(directory / name, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb", buffering=0) as file:
                file.write(content)
        return directory


# -- the model ---------------------------------------------------------------------------------------


class _Fate(enum.Enum):
    LOST = enum.auto()
    KEPT = enum.auto()
    TORN = enum.auto()  # some sectors
    SIZE = enum.auto()  # the file is as long as if it were kept, with zeros


def _fates(count: int, mode: Mode, rng: Random) -> list[_Fate]:
    """What becomes of `count` changes, in the order they were made, that nothing has made durable."""
    shapes = ["nothing", "everything", "prefix", "reordered", "each", "each"]
    match rng.choice(shapes) if mode == "random" else mode:
        case "nothing":
            return [_Fate.LOST] * count
        case "everything":
            return [_Fate.KEPT] * count
        case "prefix":
            kept = rng.randint(0, count)
            torn = [_Fate.TORN] if kept < count else []
            return [_Fate.KEPT] * kept + torn + [_Fate.LOST] * (count - kept - len(torn))
        case "reordered":  # later ones survive, earlier ones do not
            lost = rng.randint(1, count - 1) if count > 1 else rng.randint(0, count)
            return [_Fate.LOST] * lost + [_Fate.KEPT] * (count - lost)
        case _:
            return rng.choices([_Fate.LOST, _Fate.KEPT, _Fate.TORN, _Fate.SIZE], [4, 4, 2, 1], k=count)


@dataclass(slots=True, eq=False)
class _Change:
    """One change of a file's content: bytes at an offset, or (`data` is None) a new size."""

    at: int  # the op's number
    offset: int
    data: bytes | None
    durable: bool = False
    doomed: bool = False  # a sync of it failed: no later sync covers it

    def apply(self, content: bytearray, fate: _Fate, rng: Random | None = None) -> None:
        if fate is _Fate.LOST:
            return
        if self.data is None:
            if fate is _Fate.KEPT:
                _resize(content, self.offset)
            return
        end = self.offset + len(self.data)
        if fate is _Fate.KEPT:
            _grow(content, self.offset)
            content[self.offset : end] = self.data
        elif fate is _Fate.SIZE:
            _grow(content, end)
        else:
            assert rng is not None
            self._tear(content, rng)

    def _tear(self, content: bytearray, rng: Random) -> None:
        assert self.data is not None
        end = self.offset + len(self.data)
        first, last = self.offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES
        sectors = range(first, last + 1)
        kept = (
            sectors[: rng.randrange(len(sectors))] if rng.random() < 0.5 else [s for s in sectors if rng.random() < 0.5]
        )
        for sector in kept:
            start, stop = max(self.offset, sector * SECTOR_BYTES), min(end, (sector + 1) * SECTOR_BYTES)
            _grow(content, start)
            content[start:stop] = self.data[start - self.offset : stop - self.offset]
        if rng.random() < 0.5:
            _grow(content, end)


def _grow(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    _grow(content, size)


@dataclass(eq=False)
class _File:
    """`settled` is durable; of `changes`, which came after it, those marked durable are too."""

    settled: bytearray = field(default_factory=bytearray)
    changes: list[_Change] = field(default_factory=list)
    _snapshot: bytes | None = None

    def synced(self, began: int, *, failed: bool) -> None:
        for change in self.changes:
            if change.at < began and failed:
                change.doomed = True
            elif change.at < began and not change.doomed:
                change.durable = True
        settled = 0
        while settled < len(self.changes) and self.changes[settled].durable:
            self.changes[settled].apply(self.settled, _Fate.KEPT)
            settled += 1
        if settled:
            del self.changes[:settled]
            self._snapshot = None

    def after_power_loss(self, mode: Mode, rng: Random) -> bytes:
        open_changes = [change for change in self.changes if not change.durable]
        fates = dict(zip(open_changes, _fates(len(open_changes), mode, rng), strict=True))
        if all(fates.get(change) is _Fate.LOST for change in self.changes):
            if self._snapshot is None:
                self._snapshot = bytes(self.settled)
            return self._snapshot
        content = bytearray(self.settled)
        for change in self.changes:
            change.apply(content, fates.get(change, _Fate.KEPT), rng)
        return bytes(content)


@dataclass(eq=False)
class _Directory:
    """`now` is what the program sees, `durable` what is certain to be there."""

    now: dict[str, _File | _Directory] = field(default_factory=dict)
    durable: dict[str, _File | _Directory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Entry:
    """In `directory`, `name` means `node` (None: nothing) from now on."""

    directory: _Directory
    name: str
    node: _File | _Directory | None

    def apply(self, entries: dict[str, _File | _Directory]) -> None:
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


class _State:
    """The disk while a trace is played: what is durable, and what is not yet."""

    def __init__(self, before: Tree, names: Names) -> None:
        self.names = names
        self.root = _Directory()
        self.nodes: dict[int, _File | _Directory] = {}  # by inode number, as last opened or created
        self.renames: list[list[_Entry]] = []  # changes of names, not durable; each happens as a whole
        self.syncs: dict[int, int] = {}  # number of a running sync -> op number at which it began
        for path in sorted(before.directories):
            self._bind((path, _Directory()))
        for path, content in before.files.items():
            self._bind((path, _File(bytearray(content))))
        self._settle(self.renames, lambda _: True)

    def apply(self, at: int, op: Op) -> None:
        match op.kind:
            case Kind.OPEN:
                self.nodes[op.inode] = self._find(op.path)
            case Kind.CREATE:
                self.nodes[op.inode] = file = _File()
                self._bind((op.path, file))
            case Kind.WRITE:
                self._file(op).changes.append(_Change(at, op.a, op.data))
            case Kind.TRUNCATE:
                self._file(op).changes.append(_Change(at, op.a, None))
            case Kind.ZERO:
                self._file(op).changes.append(_Change(at, op.a, bytes(op.b)))
            case Kind.SYNC_BEGIN:
                self.syncs[op.a] = at
            case Kind.SYNC_END:
                self._synced(self.nodes[op.inode], self.syncs.pop(op.a), failed=op.b != 0)
            case Kind.UNLINK:
                self._bind((op.path, None))
            case Kind.RENAME:
                self._bind((os.fsdecode(op.data), self._find(op.path)), (op.path, None))
            case Kind.LINK:
                self._bind((os.fsdecode(op.data), self._find(op.path)))
            case Kind.MKDIR:
                self._bind((op.path, _Directory()))
            case _:
                raise AssertionError(op)

    def after_power_loss(self, mode: Mode, rng: Random) -> Tree:
        if self.names == "ext4" and mode not in ("nothing", "everything"):
            fates = [_Fate.KEPT] * rng.randint(0, len(self.renames))  # one journal: a prefix survives
        else:
            fates = _fates(len(self.renames), mode, rng)
        entries: dict[_Directory, dict[str, _File | _Directory]] = {}
        for change, fate in zip(self.renames, fates, strict=False):
            if fate is _Fate.KEPT:
                for entry in change:
                    entry.apply(entries.setdefault(entry.directory, dict(entry.directory.durable)))
        files: dict[str, bytes] = {}
        directories: set[str] = set()
        walk = [("", self.root)]
        while walk:
            prefix, directory = walk.pop()
            for name, node in entries.get(directory, directory.durable).items():
                if isinstance(node, _Directory):
                    directories.add(prefix + name)
                    walk.append((f"{prefix}{name}/", node))
                else:
                    files[prefix + name] = node.after_power_loss(mode, rng)
        return Tree(files, frozenset(directories))

    def _synced(self, node: _File | _Directory, began: int, *, failed: bool) -> None:
        if isinstance(node, _File):
            node.synced(began, failed=failed)
        if failed:
            return
        if self.names == "ext4":  # the journal is committed, as far as it is about this file or directory
            about = [i for i, change in enumerate(self.renames) if any(node in (e.node, e.directory) for e in change)]
            self._settle(self.renames[: about[-1] + 1] if about else [], lambda _: True)
        else:
            self._settle(self.renames, lambda entry: entry.directory is node)

    def _settle(self, changes: list[list[_Entry]], which: Callable[[_Entry], bool]) -> None:
        for change in changes:
            for entry in [entry for entry in change if which(entry)]:
                entry.apply(entry.directory.durable)
                change.remove(entry)
        self.renames = [change for change in self.renames if change]

    def _bind(self, *names: tuple[str, _File | _Directory | None]) -> None:
        change = []
        for path, node in names:
            parent, _, name = path.rpartition("/")
            directory = self._find(parent)
            assert isinstance(directory, _Directory), path
            change.append(_Entry(directory, name, node))
            change[-1].apply(directory.now)
        self.renames.append(change)

    def _find(self, path: str) -> _File | _Directory:
        node: _File | _Directory = self.root
        for name in path.split("/") if path else []:
            assert isinstance(node, _Directory), path
            if name not in node.now:
                raise ValueError(f"{path!r} was made by a process outside of the trace")
            node = node.now[name]
        return node

    def _file(self, op: Op) -> _File:
        node = self.nodes[op.inode]
        assert isinstance(node, _File), op
        return node
