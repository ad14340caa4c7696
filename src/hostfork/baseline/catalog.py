"""Baselines by name: what each was made of, and where its trees lie.

STATE/baselines/NAME.json     written aside, fsynced, renamed; there after its trees and gone before them
POOL/baseline/NAME.N          the line of its tree N (see `storage.lines`)
"""

from __future__ import annotations

import os
import time

from hostfork.errors import BaselineError, Code
from hostfork.helper.lean import dumps, loads
from hostfork.storage.lines import Line
from hostfork.values import frozen
from hostfork.vocabulary import OriginKind

SCHEMA = 1
_FOLDER, _ENDING = "baselines", ".json"


@frozen
class Origin:
    """What a baseline was made of.

    `place`: of a git repository its URL or path, of an archive its file, of a fork its name. `reference` is the branch,
    tag or commit that was asked for, `commit` what that was then; `sparse` the folders that were wanted.
    """

    kind: OriginKind
    place: str = ""
    reference: str = ""
    commit: str = ""
    sparse: tuple[str, ...] = ()


@frozen
class Tree:
    """One tree of a baseline: its line, and the path at which forks have it; None where it has none of its own."""

    line: str
    path: str | None


@frozen
class Baseline:
    """A retained, immutable tree, or several, that many forks start from. Times are seconds of the clock."""

    name: str
    created: float
    refreshed: float
    pool: str
    origin: Origin
    trees: tuple[Tree, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of its trees, which may be gone."""
        return tuple(Line(self.pool, tree.line) for tree in self.trees)

    @property
    def damaged(self) -> bool:
        """Whether one of its trees was found not to hold what it held when it was made."""
        from hostfork.baseline.current import is_damaged

        return any(top is not None and is_damaged(top) for top in (line.top() for line in self.lines))

    @property
    def lost(self) -> bool:
        """Whether the storage of one of its trees is gone."""
        return any(line.top() is None for line in self.lines)


class Catalog:
    """All baselines that have a name, of one user."""

    def __init__(self, state: str) -> None:
        self.folder = os.path.join(state, _FOLDER)

    def names(self) -> tuple[str, ...]:
        """In order."""
        try:
            found = os.listdir(self.folder)
        except FileNotFoundError:
            return ()
        return tuple(sorted(name.removesuffix(_ENDING) for name in found if name.endswith(_ENDING)))

    def load(self, name: str) -> Baseline:
        """Raises BaselineError `baseline.not-found`, `.corrupt`."""
        path = self._path(name)
        try:
            with open(path, encoding="ascii") as file:
                found = loads(file.read())
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']!r}; this version of hostfork reads {SCHEMA}")
            origin = found["origin"]
            return Baseline(
                name, found["created"], found["refreshed"], found["pool"],
                Origin(OriginKind(origin["kind"]), origin["place"], origin["reference"], origin["commit"],
                       tuple(origin["sparse"])),
                tuple(Tree(tree["line"], tree["path"]) for tree in found["trees"]),
            )  # fmt: skip
        except FileNotFoundError as error:
            raise _not_found(name) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BaselineError(
                Code.BASELINE_CORRUPT, f"the record of the baseline {name} cannot be read", path=path,
                details=(str(error),), hint=f"hostfork baseline remove {name}",
            ) from error  # fmt: skip

    def find(self, beginning: str) -> Baseline:
        """The baseline of that name, or the only one whose name begins so."""
        names = self.names()
        matching = [name for name in names if beginning and name.startswith(beginning)]
        if beginning not in names and len(matching) > 1:
            raise BaselineError(
                Code.BASELINE_NOT_FOUND, f"{beginning} could be {', '.join(matching)}", hint="type more of the name"
            )
        return self.load(beginning if beginning in names or not matching else matching[0])

    def add(self, baseline: Baseline) -> None:
        """Put a new one on the list. Raises BaselineError `baseline.name-taken`, OSError."""
        fresh = self._written(baseline)
        try:
            os.link(fresh, self._path(baseline.name))
        except FileExistsError as error:
            raise name_taken(baseline.name) from error
        finally:
            os.unlink(fresh)
        self._sync()

    def replace(self, baseline: Baseline) -> None:
        """Put another in the place of the one of that name. Raises OSError."""
        os.rename(self._written(baseline), self._path(baseline.name))
        self._sync()

    def remove(self, name: str) -> None:
        """Take it off the list. Raises OSError."""
        os.unlink(self._path(name))
        self._sync()

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name + _ENDING)

    def _written(self, baseline: Baseline) -> str:
        os.makedirs(self.folder, 0o700, exist_ok=True)
        origin = baseline.origin
        text = dumps({
            "schema": SCHEMA, "name": baseline.name, "created": baseline.created, "refreshed": baseline.refreshed,
            "pool": baseline.pool,
            "origin": {
                "kind": origin.kind.value, "place": origin.place, "reference": origin.reference,
                "commit": origin.commit, "sparse": origin.sparse,
            },
            "trees": [{"line": tree.line, "path": tree.path} for tree in baseline.trees],
        })  # fmt: skip
        fresh = os.path.join(self.folder, f".{baseline.name}-{os.getpid()}-{time.monotonic_ns()}")
        with open(fresh, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return fresh

    def _sync(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def name_taken(name: str) -> BaselineError:
    """There is one of that name."""
    return BaselineError(
        Code.BASELINE_NAME_TAKEN, f"there is a baseline {name} already",
        hint=f"hostfork baseline refresh {name} · hostfork baseline remove {name}",
    )  # fmt: skip


def _not_found(name: str) -> BaselineError:
    return BaselineError(
        Code.BASELINE_NOT_FOUND, f"there is no baseline called {name}",
        hint="hostfork baseline list · hostfork baseline create NAME --from PATH",
    )  # fmt: skip
