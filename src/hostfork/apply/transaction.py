"""Doing the steps of a plan, all of them or none, forwards and backwards.

What stands at a name is known by device and inode: so after a crash each step tells itself whether it was done, and
putting back needs no more than the plan. What somebody else wrote is never lost: what is in the way of putting back
is set aside and told.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from stat import S_IMODE, S_ISDIR

from hostfork.apply.change import change, unchange
from hostfork.apply.rows import Moved, Row, Rows, stamps, survey
from hostfork.apply.steps import Lend, Move, Plan, Step
from hostfork.apply.target import Targets
from hostfork.collect.walk import Place
from hostfork.errors import ApplyError, Code
from hostfork.helper.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2, syncfs

Note = Callable[..., None]
"""Writes one line of the journal: the event's name, and facts."""

_FEW = 16
"""Up to here one fsync per folder; beyond, one syncfs per filesystem."""
_TOLD = 64
"""Up to here each step has its line in the journal; of more every 64th. What was done is seen at the names."""
_CHANGED = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.ESTALE)
"""What the kernel says where a name is not what it was."""


class Transaction:
    """The steps of a plan, with the targets and the stages open. `stages`: a descriptor for each."""

    def __init__(self, plan: Plan, targets: Targets, stages: Sequence[int], note: Note) -> None:
        self._plan = plan
        self._targets = targets
        self._stages = stages
        self._note = note
        self._parents: dict[tuple[int, str], tuple[int, int]] = {}
        """Device and inode of the folders in which names were replaced."""

    def do(self, forward: bool) -> None:
        """Do all steps, or undo all. Raises Moved, ApplyError, OSError: then `put` the other way is to follow."""
        steps = self._plan.steps if forward else self._plan.steps[::-1]
        if not forward:
            self._change(steps, forward)
        self._lend()
        for step in steps:
            if step.move is not Move.CHANGE:
                if len(steps) <= _TOLD or step.number % _TOLD == 0:
                    self._note("step", number=step.number, forward=forward)
                self._move(step, forward)
                self._compare(step, forward)
        self._give_back()
        if forward:
            self._change(steps, forward)
        self._note("moved", forward=forward)
        self._last_look(steps, forward)
        self._sync()

    def put(self, forward: bool) -> tuple[str, ...]:
        """Bring every name to the state after all steps, or before them, whatever is there now; sentences about what
        was in the way and where it is. May be called again after a crash."""
        told: list[str] = []
        steps = self._plan.steps if forward else self._plan.steps[::-1]
        for step in steps if not forward else ():
            if step.move is Move.CHANGE:
                self._rechange(step, forward)
        self._lend()
        for step in steps:
            if step.move is not Move.CHANGE:
                told += self._settle(step, forward)
        self._give_back()
        for step in steps if forward else ():
            if step.move is Move.CHANGE:
                self._rechange(step, forward)
        self._sync()
        return tuple(told)

    def differing(self, forward: bool) -> list[Step]:
        """The steps after which, or before which, the host is not what the plan says: somebody changed it since."""
        found = []
        for step in self._plan.steps:
            wanted = step.new if forward else step.old
            try:
                same = self._is_changed(step, forward) if step.move is Move.CHANGE else self._at(step) == wanted
            except OSError:
                same = False
            if not same:
                found.append(step)
        return found

    def _at(self, step: Step) -> Rows:
        try:
            return survey(self._targets.place(step.target, step.name))
        except FileNotFoundError:
            return ()

    # --- one name ---------------------------------------------------------------------------------------------------

    def _move(self, step: Step, forward: bool) -> None:
        path = self._plan.path(step)
        try:
            place = self._targets.place(step.target, step.name)
            self._remember(step, place)
            arriving = self._stages[step.stage], step.slot
            leaving = place.folder, place.name
            with (
                _Open(step.new if forward else step.old, *arriving),
                _Open(step.old if forward else step.new, *leaving),
            ):
                if step.move is Move.EXCHANGE:
                    _rename(arriving, leaving, RENAME_EXCHANGE)
                elif (step.move is Move.PLACE) is forward:
                    _rename(arriving, leaving, RENAME_NOREPLACE)
                else:
                    _rename(leaving, arriving, RENAME_NOREPLACE)
        except OSError as error:
            if error.errno in _CHANGED:
                raise Moved(path) from error
            raise _failed(path, error) from error

    def _compare(self, step: Step, forward: bool) -> None:
        """What was displaced is what was judged: inode, size, mtime, content, owner, mode, attributes."""
        displaced = step.old if forward else step.new
        if displaced and self._in_stage(step) != displaced:
            raise Moved(self._plan.path(step))

    def _in_stage(self, step: Step) -> Rows:
        try:
            return survey(Place(self._stages[step.stage], step.slot))
        except FileNotFoundError:
            return ()

    def _settle(self, step: Step, forward: bool) -> list[str]:
        """One name as it is to be; what is in the way comes into the stage, and stays there if it is not ours."""
        wanted, other = (step.new, step.old) if forward else (step.old, step.new)
        stage = self._stages[step.stage], step.slot
        try:
            place = self._targets.place(step.target, step.name)
        except OSError as error:
            if error.errno == errno.ENOENT and not wanted:
                return []
            return [_lost(self._plan.path(step), error.strerror or "")]
        for _attempt in range(3):
            there, staged = _stat(place), _stat(Place(*stage))
            try:
                if wanted:
                    if wanted[0].is_at(there):
                        break
                    if not wanted[0].is_at(staged):
                        return [_lost(self._plan.path(step), "what it was is gone from the stage too")]
                    with _Open(wanted, *stage):
                        flags = RENAME_NOREPLACE if there is None else RENAME_EXCHANGE
                        _rename(stage, (place.folder, place.name), flags)
                else:
                    if there is None or not (other and other[0].is_at(there)):
                        break
                    with _Open(other, place.folder, place.name):
                        _rename((place.folder, place.name), stage, RENAME_NOREPLACE)
                break
            except OSError as error:
                if error.errno not in _CHANGED:
                    raise _failed(self._plan.path(step), error) from error
        _mode_back(wanted, place)
        return self._set_aside(step, other)

    def _set_aside(self, step: Step, ours: Rows) -> list[str]:
        """What is in the stage and was not ours, or was written since: it is kept under another name."""
        place = Place(self._stages[step.stage], step.slot)
        found = _stat(place)
        if found is None:
            return []
        _mode_back(ours, place)
        if self._in_stage(step) == ours:
            return []
        name = f"aside-{step.number}"
        os.rename(step.slot, name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        where = os.path.join(self._plan.stages[step.stage].path, name)
        return [f"{self._plan.path(step)} was written by somebody meanwhile; that is kept at {where}"]

    # --- mode, owner, attributes in place ---------------------------------------------------------------------------

    def _change(self, steps: Iterable[Step], forward: bool) -> None:
        for step in steps:
            if step.move is Move.CHANGE:
                self._note("step", number=step.number, forward=forward)
                path = self._plan.path(step)
                try:
                    place = self._targets.place(step.target, step.name)
                    change(place, step.old[0], step.fields, forward, path)
                except OSError as error:
                    if error.errno in _CHANGED:
                        raise Moved(path) from error
                    raise _failed(path, error) from error

    def _rechange(self, step: Step, forward: bool) -> None:
        try:
            place = self._targets.place(step.target, step.name)
            if step.old[0].is_at(_stat(place)):
                unchange(place, step.fields, forward)
        except OSError as error:
            if error.errno not in _CHANGED:
                raise _failed(self._plan.path(step), error) from error

    def _is_changed(self, step: Step, forward: bool) -> bool:
        from hostfork.apply.change import has

        place = self._targets.place(step.target, step.name)
        found = _stat(place)
        return step.old[0].is_at(found) and all(has(place, field, forward) for field in step.fields)

    # --- folders that are closed to their owner ----------------------------------------------------------------------

    def _lend(self) -> None:
        """Give the owner's bits to the folders that need them: which, and what they have, is written down already."""
        for lend in self._plan.lends:
            self._chmod(lend, lend.mode | 0o300, lend.mode)

    def _give_back(self) -> None:
        for lend in self._plan.lends:
            self._chmod(lend, lend.mode, lend.mode | 0o300)

    def _chmod(self, lend: Lend, mode: int, before: int) -> None:
        try:
            folder = self._targets.folder(lend.target, lend.name)
        except FileNotFoundError:
            return  # the host removed it
        if S_IMODE(os.fstat(folder).st_mode) == before:
            os.chmod(f"/proc/self/fd/{folder}", mode)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _remember(self, step: Step, place: Place) -> None:
        key = step.target, step.name.rpartition("/")[0]
        if key not in self._parents:
            found = os.fstat(place.folder)
            self._parents[key] = found.st_dev, found.st_ino

    def _last_look(self, steps: Iterable[Step], forward: bool) -> None:
        """A writer that had a displaced file open wrote into that; a folder that was renamed took our work along."""
        self._targets.forget()
        for step in steps:
            path, displaced = self._plan.path(step), step.old if forward else step.new
            try:
                place = self._targets.place(step.target, step.name)
            except OSError as error:
                raise Moved(path) from error
            found = os.fstat(place.folder)
            known = self._parents.get((step.target, step.name.rpartition("/")[0]))
            if known is not None and known != (found.st_dev, found.st_ino):
                raise Moved(path)
            if step.move is not Move.CHANGE and displaced:
                staged = stamps(Place(self._stages[step.stage], step.slot))
                if staged is None or not _same(displaced[0], staged):
                    raise Moved(path)

    def _sync(self) -> None:
        """The names are on disk."""
        folders: dict[tuple[int, int], int] = {}
        for step in self._plan.steps:
            try:
                folder = self._targets.place(step.target, step.name).folder
            except OSError:
                continue
            found = os.fstat(folder)
            folders.setdefault((found.st_dev, found.st_ino), folder)
            if len(folders) > _FEW:
                break
        for folder in folders.values() if len(folders) <= _FEW else ():
            _fsync(folder)
        for number in range(len(self._plan.targets)) if len(folders) > _FEW else ():
            syncfs(self._targets.folder(number, ""))
        for stage in self._stages:
            _fsync(stage)


class _Open:
    """A folder that changes its parent must be writable by its owner: it is, while this lasts."""

    def __init__(self, rows: Rows, folder: int, name: str) -> None:
        self._rows, self._folder, self._name = rows, folder, name
        self._handle = -1

    def __enter__(self) -> None:
        rows = self._rows
        closed = rows and S_ISDIR(rows[0].mode) and not rows[0].mode & 0o200
        if closed and os.geteuid() == rows[0].uid != 0:
            self._handle = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
            if rows[0].is_at(os.fstat(self._handle)):
                os.chmod(f"/proc/self/fd/{self._handle}", S_IMODE(rows[0].mode) | 0o700)

    def __exit__(self, *_: object) -> None:
        if self._handle >= 0:
            try:
                if self._rows[0].is_at(os.fstat(self._handle)):
                    os.chmod(f"/proc/self/fd/{self._handle}", S_IMODE(self._rows[0].mode))
            finally:
                os.close(self._handle)
                self._handle = -1


def _mode_back(rows: Rows, place: Place) -> None:
    """A kill may have left a folder with the bits that it had while it moved."""
    found = _stat(place)
    if rows and found is not None and rows[0].is_at(found) and S_ISDIR(found.st_mode):
        mode = S_IMODE(rows[0].mode)
        if S_IMODE(found.st_mode) == mode | 0o700 != mode:
            handle = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
            try:
                os.chmod(f"/proc/self/fd/{handle}", mode)
            finally:
                os.close(handle)


def _rename(source: tuple[int, str], target: tuple[int, str], flags: int) -> None:
    renameat2(source[1], target[1], flags, old_folder=source[0], new_folder=target[0])


def _stat(place: Place) -> os.stat_result | None:
    try:
        return place.stat()
    except FileNotFoundError:
        return None


def _same(row: Row, found: tuple[int, int, int, int, int]) -> bool:
    if S_ISDIR(row.mode):
        return (row.device, row.inode, row.mode) == found[:3]
    return (row.device, row.inode, row.mode, row.size, row.mtime_ns) == found


def _fsync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL):
            raise


def _lost(path: str, why: str) -> str:
    return f"{path} could not be put back: {why}"


def _failed(path: str, error: OSError) -> ApplyError:
    return ApplyError(
        Code.APPLY_FAILED, f"{path} could not be replaced", step="exchange", path=path, errno=error.errno,
        details=(error.strerror or str(error), "everything was put back"),
        hint="put right what the kernel names, then apply again",
    )  # fmt: skip
