"""Making ready: the entries are staged, each step gets what stands before and after it, and what cannot be is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from stat import S_ISDIR

from hostfork.apply.planning import in_place
from hostfork.apply.rows import Row, Rows, extra_of, survey
from hostfork.apply.sides import Found, Sides, some_of
from hostfork.apply.stage import Stager
from hostfork.apply.steps import Field, Lend, Move, Plan, Stage, Step, Value
from hostfork.apply.target import Targets, blocked, must_lend, renames_into, why_closed, why_fixed, why_held
from hostfork.apply.threeway import ThreeWay
from hostfork.apply.values import Decision
from hostfork.collect.final import Entry
from hostfork.collect.walk import Place
from hostfork.errors import ApplyError, Code
from hostfork.vocabulary import ChangeKind, EntryKind

OpenStage = Callable[[Stage], int]
"""Makes a stage, written down before it is made, and gives its descriptor."""


class Maker:
    """Stages what was decided, target by target, and gives the plan. `pool`: the stage there, open already."""

    def __init__(self, targets: Targets, pool: Stage, pool_folder: int, number: str, open_stage: OpenStage) -> None:
        self._targets = targets
        self._number = number
        self._open_stage = open_stage
        self._stages = [pool]
        self._folders = [pool_folder]
        self._of_folder: dict[tuple[int, int], int] = {}
        self._stagers: dict[int, Stager] = {}
        self._steps: list[Step] = []
        self._blocked: list[tuple[str, str]] = []
        self._lends: dict[tuple[int, str], Lend] = {}
        self._inside: tuple[int, str, int] | None = None
        """The target, name and step of the folder that is being staged with what it holds."""
        self._parents: dict[tuple[int, str], tuple[str, os.stat_result]] = {}
        """Of each folder in which names are replaced, why that cannot be, or nothing."""

    def add(self, number: int, answer: ThreeWay, sides: Sides) -> None:
        """All that is taken of one private path. Raises ApplyError, OSError."""
        going: set[str] = set()
        self._inside = None
        for decision in answer.taken:
            name = decision.relative
            if decision.change.change is ChangeKind.DELETED:
                if not _is_inside(name, going):
                    going.add(name)
                    self._remove(number, decision, answer)
                continue
            if decision.change.was is EntryKind.FOLDER and decision.substance:
                going.add(name)
            fork = sides.fork(decision.change.path)
            host = sides.host(name)
            if fork is None:
                raise FileNotFoundError(2, "is missing in the fork's storage", decision.change.path)
            if self._inside is not None and self._inside[0] == number and name.startswith(self._inside[1] + "/"):
                slot = self._steps[self._inside[2]].slot + name[len(self._inside[1]) :]
                self._stage(self._steps[self._inside[2]].stage, slot, decision, answer, fork, None)
            elif in_place(decision, host):
                assert host is not None
                self._change(number, decision, answer, fork, host)
            else:
                self._put(number, decision, answer, fork, host)

    def finish(self) -> Plan:
        """Look at what was staged. Raises ApplyError `apply.blocked`."""
        for stager in self._stagers.values():
            stager.finish()
            for name in stager.left_out:
                slot = name.split("/", 1)[0]
                path = self._path(self._steps[int(slot)])
                self._blocked.append((path, "its owner or attributes cannot be kept; root can"))
        if self._blocked:
            raise blocked(self._blocked)
        steps = [self._with_new(step) for step in self._steps]
        return Plan(self._targets.targets, tuple(self._stages), tuple(self._lends.values()), tuple(steps))

    def abandon(self) -> None:
        """Close what is open."""
        for stager in self._stagers.values():
            stager.abandon()

    @property
    def folders(self) -> Sequence[int]:
        """The stages' descriptors."""
        return self._folders

    def _with_new(self, step: Step) -> Step:
        if step.move in (Move.REMOVE, Move.CHANGE):
            return step
        known = self._stagers[step.stage].known
        return step._replace(new=survey(Place(self._folders[step.stage], step.slot), known))

    def _path(self, step: Step) -> str:
        return os.path.join(self._targets.targets[step.target].path, step.name)

    def _remove(self, number: int, decision: Decision, answer: ThreeWay) -> None:
        place = self._targets.place(number, decision.relative)
        old = self._survey(place, decision.change.path)
        answer.check_seen(decision.relative, old)
        self._check(number, decision.relative, place, decision.change.path, place.stat())
        self._add(Move.REMOVE, number, decision.relative, old)

    def _put(self, number: int, decision: Decision, answer: ThreeWay, fork: Found, host: Found | None) -> None:
        name = decision.relative
        place = self._targets.place(number, name) if host is not None or self._has_parent(number, name) else None
        if place is not None:
            self._check(number, name, place, decision.change.path, None if host is None else host.stat)
        old: Rows = ()
        if host is not None and place is not None:
            plain = host.kind is EntryKind.FILE
            old = self._file_row(host, decision.change.path) if plain else self._survey(place, decision.change.path)
        if not decision.through:
            answer.check_seen(name, old)
        step = self._add(Move.PLACE if host is None else Move.EXCHANGE, number, name, old)
        if fork.kind is EntryKind.FOLDER:
            self._inside = (number, name, step.number)
        self._stage(step.stage, step.slot, decision, answer, fork, host)

    def _has_parent(self, number: int, name: str) -> bool:
        try:
            self._targets.folder(number, name.rpartition("/")[0])
        except FileNotFoundError:
            return False
        return True

    def _change(self, number: int, decision: Decision, answer: ThreeWay, fork: Found, host: Found) -> None:
        place = self._targets.place(number, decision.relative)
        user = os.geteuid()
        why = why_fixed(place) or ("its filesystem is read-only" if _is_read_only(place.folder) else "")
        if not why and user not in (0, host.stat.st_uid):
            why = f"it belongs to user {host.stat.st_uid}, who alone may change that"
        if why:
            self._blocked.append((decision.change.path, why))
            return
        mode, uid, gid, attributes = answer.keep_mode(decision, fork, host)
        values: dict[str, Value] = {"mode": mode, "owner": (uid, gid)}
        values |= {name: some_of(attributes, name) for name in ("xattrs", "acl")}
        fields = [Field(field, host.field(field), values[field]) for field in decision.fields]
        if user and any(field.name == "owner" for field in fields):
            self._blocked.append((decision.change.path, "only root can give it another owner"))
        step = self._add(Move.CHANGE, number, decision.relative, (_row(host),))
        self._steps[-1] = step._replace(fields=tuple(fields))

    def _stage(
        self, stage: int, slot: str, decision: Decision, answer: ThreeWay, fork: Found, host: Found | None
    ) -> None:
        mode, uid, gid, attributes = answer.keep_mode(decision, fork, host)
        source, ours = fork, True
        if not decision.substance and host is not None:
            source, ours = host, False
        found = source.stat
        mtime = found.st_mtime_ns
        if decision.merged is not None:
            import time

            mtime = time.time_ns()
        whole = found.st_mode & 0o170000 | mode
        entry = Entry(slot, source.place, found, ours, whole, uid, gid, mtime)
        self._stager(stage).make(entry, attributes, decision.merged)

    def _stager(self, stage: int) -> Stager:
        if stage not in self._stagers:
            self._stagers[stage] = Stager(self._folders[stage])
        return self._stagers[stage]

    def _add(self, move: Move, number: int, name: str, old: Rows) -> Step:
        stage = 0 if move is Move.CHANGE else self._stage_for(number, name)
        self._steps.append(Step(len(self._steps), move, number, name, stage, old, ()))
        return self._steps[-1]

    def _stage_for(self, number: int, name: str) -> int:
        """The stage from which a rename into the name's folder works: in the pool, else at the target's top."""
        folder = self._targets.place(number, name).folder
        device = os.fstat(folder).st_dev
        key = (number, device)
        if key not in self._of_folder:
            if renames_into(self._folders[0], folder):
                self._of_folder[key] = 0
            else:
                self._of_folder[key] = self._at_top(number, name, device)
        return self._of_folder[key]

    def _at_top(self, number: int, name: str, device: int) -> int:
        """A stage in the topmost folder of the target that is on this device: the target's, or a nested subvolume's."""
        top = name.rpartition("/")[0]
        while top and os.fstat(self._targets.folder(number, top.rpartition("/")[0])).st_dev == device:
            top = top.rpartition("/")[0]
        folder = self._targets.folder(number, top)
        target = self._targets.targets[number]
        stage = Stage(os.path.join(target.path, top, f".hostfork-apply-{self._number}"), number)
        why = why_closed(folder)
        if why:
            raise blocked([(os.path.dirname(stage.path), why)])
        self._check_lend(number, top, folder)
        self._stages.append(stage)
        self._folders.append(self._open_stage(stage))
        return len(self._stages) - 1

    def _check(self, number: int, name: str, place: Place, path: str, found: os.stat_result | None) -> None:
        above = name.rpartition("/")[0]
        if (number, above) not in self._parents:
            why = why_closed(place.folder)
            self._parents[number, above] = why, os.fstat(place.folder)
            if not why:
                self._check_lend(number, above, place.folder)
        why, parent = self._parents[number, above]
        if not why and found is not None:
            why = why_fixed(place) or why_held(place, found, parent)
        if why:
            self._blocked.append((path, why))

    def _check_lend(self, number: int, name: str, folder: int) -> None:
        if (number, name) not in self._lends:
            found = os.fstat(folder)
            if must_lend(folder, found):
                self._lends[number, name] = Lend(number, name, found.st_mode & 0o7777)

    def _file_row(self, host: Found, path: str) -> Rows:
        """Of a file that was looked up just now: what of it is known is not read again."""
        try:
            return (_row(host)._replace(content=host.digest().hex(), extra=extra_of(host.attributes())),)
        except PermissionError:
            return self._survey(host.place, path)

    def _survey(self, place: Place, path: str) -> Rows:
        try:
            return survey(place)
        except OSError as error:
            why = "something is mounted inside" if error.errno == 18 else (error.strerror or str(error))
            self._blocked.append((path, why))
            return ()


def _is_read_only(folder: int) -> bool:
    return bool(os.fstatvfs(folder).f_flag & os.ST_RDONLY)


def _row(host: Found) -> Row:
    found, folder = host.stat, S_ISDIR(host.stat.st_mode)
    size, mtime = (0, 0) if folder else (found.st_size, found.st_mtime_ns)
    return Row("", found.st_mode, found.st_uid, found.st_gid, found.st_dev, found.st_ino, size, mtime, "", "")


def _is_inside(name: str, folders: set[str]) -> bool:
    while name:
        if name in folders:
            return True
        name = name.rpartition("/")[0]
    return False


def no_room(error: OSError, path: str) -> ApplyError:
    """Staging met the kernel's no, before anything of the host was touched."""
    return ApplyError(
        Code.APPLY_FAILED, "what is to be applied could not be made ready; the host was not touched",
        step="stage", path=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else path,
        errno=error.errno, details=(error.strerror or str(error),),
        hint="make room on that disk, then apply again",
    )  # fmt: skip
