"""What is to become of each path on the host, three-way: what the fork started from, the host now, the fork now.

A change that the host has too is done already. Where the host still has what the fork started from, the fork's side is
taken. Else it is a conflict. Content, mode, owner and attributes are judged apart: what only the host changed stays.
"""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISGID, S_ISUID

from hostfork.apply.rows import Moved, Rows
from hostfork.apply.sides import Found, Sides, Source
from hostfork.apply.values import Conflict, ConflictKind, Decision, LeftOut, OnConflict, Resolution
from hostfork.collect.changeset import Change
from hostfork.collect.lines import compare_lines, split_lines
from hostfork.vocabulary import ChangeKind, EntryKind

_DEVICES = (EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE)
_ALL_FIELDS = ("mode", "owner", "xattrs", "acl")
_BITS = S_ISUID | S_ISGID


class ThreeWay:
    """Judges the changes of one private path, in the order of paths. The answers fill up the lists."""

    def __init__(self, source: Source, sides: Sides, resolution: Resolution, special: bool) -> None:
        self.taken: list[Decision] = []
        self.conflicts: list[Conflict] = []
        self.left_out: list[tuple[str, LeftOut]] = []
        self.resolved: list[tuple[str, OnConflict]] = []
        self.equal = 0
        self.kept: set[str] = set()
        """Names of the target that stay as the host has them, by resolution."""
        self.barred: set[str] = set()
        """Those of them that are no folder there, so that nothing of the fork's can come below."""
        self.seen: dict[str, tuple[int, int, int]] = {}
        """Inode, size and mtime of what was judged on the host, by name."""
        self.linked: dict[str, tuple[int, int, int]] = {}
        """Device, inode and number of names of the files there that have several."""
        self._made = frozenset(
            source.name(change.path)
            for change in source.changes
            if change.kind is EntryKind.FOLDER and change.was is not EntryKind.FOLDER
        )
        self._source, self._sides, self._resolution, self._special = source, sides, resolution, special

    def judge(self, change: Change) -> None:
        """One change that is to be applied."""
        name = self._source.name(change.path)
        gone = change.change is ChangeKind.DELETED
        fork = None if gone else self._sides.fork(change.path)
        if not gone and fork is None:
            raise FileNotFoundError(2, "is missing in the fork's storage", change.path)
        if fork is not None and self._is_left_out(change, fork):
            return
        host = self._sides.host(name)
        if host is not None:
            self.seen[name] = (host.stat.st_ino, host.stat.st_size, host.stat.st_mtime_ns)
            if host.stat.st_nlink > 1 and host.kind is EntryKind.FILE:
                self.linked[name] = (host.stat.st_dev, host.stat.st_ino, host.stat.st_nlink)
        answer = self._judge(change, name, fork, host)
        if isinstance(answer, Conflict):
            answer = self._resolve(answer, change, name, fork, host)
        if answer is None:
            self.equal += 1
        elif isinstance(answer, Decision):
            self.taken.append(answer)

    def _is_left_out(self, change: Change, fork: Found) -> bool:
        if self._special:
            return False
        if fork.kind is EntryKind.SOCKET or fork.kind in _DEVICES:
            why = LeftOut.SOCKET if fork.kind is EntryKind.SOCKET else LeftOut.DEVICE
            self.left_out.append((change.path, why))
            return True
        bits = fork.kind is EntryKind.FILE and fork.stat.st_mode & _BITS
        fresh = change.change in (ChangeKind.CREATED, ChangeKind.TYPE) or "mode" in change.fields
        if (bits and fresh) or _has_capability(fork):
            self.left_out.append((change.path, LeftOut.SET_UID))
        return False

    def _judge(self, change: Change, name: str, fork: Found | None, host: Found | None) -> Decision | Conflict | None:
        if change.change is ChangeKind.CREATED:
            assert fork is not None
            return self._created(change, name, fork, host)
        if host is None:
            if fork is None:
                return None
            if name in self._source.applied and self._source.applied[name] is None:
                return Decision(change, name, True, _ALL_FIELDS)
            return Conflict(change.path, ConflictKind.HOST_DELETED, _did(change), "deleted")
        same, base = self._compared(change, name, host)
        if fork is None:
            return self._deleted(change, name, host, same, base)
        if same:
            if name in self._source.applied and _are_equal(host, fork):
                return None
            return Decision(change, name, change.change is not ChangeKind.METADATA, change.fields)
        if change.change is ChangeKind.TYPE or host.kind is not change.was:
            if host.same_substance(fork) and change.change is ChangeKind.TYPE:
                return None
            return self._conflict(change, ConflictKind.TYPE, host, base)
        return self._edited(change, name, fork, host, base)

    def _compared(self, change: Change, name: str, host: Found) -> tuple[bool, Found | None]:
        """Whether the host's entry is all that the fork started from, and that, where it is kept."""
        applied = self._source.applied.get(name)
        if applied is not None and applied == host.identity():
            return True, None
        unwritten = self._sides.unwritten(change, host)
        if unwritten is not None:
            return unwritten, None
        base = self._sides.base(change.path)
        if base is None or not host.same_substance(base):
            return False, base
        return all(host.field(field) == base.field(field) for field in _ALL_FIELDS), base

    def _created(self, change: Change, name: str, fork: Found, host: Found | None) -> Decision | Conflict | None:
        if host is None:
            return self._conflict_above(change, name) or Decision(change, name, True, _ALL_FIELDS)
        if host.kind is EntryKind.FOLDER and fork.kind is EntryKind.FOLDER:
            return None  # both made it: what it holds is judged by itself
        if _are_equal(host, fork):
            return None
        if self._source.applied.get(name, ()) == host.identity():
            return Decision(change, name, True, _ALL_FIELDS)
        return self._conflict(change, ConflictKind.CREATED, host, None)

    def _conflict_above(self, change: Change, name: str) -> Conflict | None:
        """The host deleted or replaced the folder in which the fork made something."""
        above = name.rpartition("/")[0]
        if not above or above in self._made:
            return None
        found = self._sides.host(above)
        if found is None:
            return Conflict(change.path, ConflictKind.HOST_DELETED, "created", "deleted its folder")
        if found.kind is not EntryKind.FOLDER:
            words = f"made its folder a {_kind(found.kind)}"
            return Conflict(change.path, ConflictKind.TYPE, "created", words, host_time=found.stat.st_ctime)
        return None

    def _deleted(
        self, change: Change, name: str, host: Found, same: bool, base: Found | None
    ) -> Decision | Conflict | None:
        if same or (host.kind is change.was is EntryKind.FOLDER and base is None and not self._source.kept):
            return Decision(change, name, True)
        kind = ConflictKind.FORK_DELETED if host.kind is change.was else ConflictKind.TYPE
        return self._conflict(change, self._or_gone(change, kind), host, base)

    def _edited(
        self, change: Change, name: str, fork: Found, host: Found, base: Found | None
    ) -> Decision | Conflict | None:
        """Both have an entry of the kind that it was, and the host's is not all that it was."""
        substance = change.change is ChangeKind.MODIFIED
        if substance and not (base is not None and host.same_substance(base)):
            if not host.same_substance(fork):
                return self._conflict(change, self._or_gone(change, ConflictKind.EDITED), host, base)
            substance = False
        fields = []
        for field in change.fields:
            if host.field(field) == fork.field(field):
                continue
            if base is None or host.field(field) != base.field(field):
                return self._conflict(change, self._or_gone(change, ConflictKind.METADATA), host, base)
            fields.append(field)
        return Decision(change, name, substance, tuple(fields)) if substance or fields else None

    def _or_gone(self, change: Change, kind: ConflictKind) -> ConflictKind:
        return kind if self._sides.known_before(change) else ConflictKind.BASE_GONE

    def _conflict(self, change: Change, kind: ConflictKind, host: Found, base: Found | None) -> Conflict:
        fork = None if change.change is ChangeKind.DELETED else self._sides.fork(change.path)
        did = _did(change)
        made = change.was is None
        words = "created" if made else _host_did(change, kind, host, base)
        return Conflict(
            change.path, kind, did, words,
            None if fork is None else _lines(base, fork, made),
            _lines(base, host, made),
            host.stat.st_mtime if host.kind is EntryKind.FILE else host.stat.st_ctime,
        )  # fmt: skip

    def _resolve(
        self, conflict: Conflict, change: Change, name: str, fork: Found | None, host: Found | None
    ) -> Decision | Conflict | None:
        how = self._resolution.of(change.path)
        answer: Decision | None = None
        if how is OnConflict.FORK:
            answer = Decision(change, name, True, () if fork is None else self._fields(change))
        elif how is OnConflict.MERGE and fork is not None and host is not None:
            merged = self._merged(conflict, change, fork, host)
            if merged is not None:
                answer = Decision(change, name, True, (), merged)
        elif how is OnConflict.HOST:
            self.kept.add(name)
            if host is None or host.kind is not EntryKind.FOLDER:
                self.barred.add(name)
            self.resolved.append((change.path, how))
            return None
        if answer is None:
            self.conflicts.append(conflict)
            return conflict
        self.resolved.append((change.path, how))
        return answer

    def _fields(self, change: Change) -> tuple[str, ...]:
        return change.fields if change.change in (ChangeKind.MODIFIED, ChangeKind.METADATA) else _ALL_FIELDS

    def _merged(self, conflict: Conflict, change: Change, fork: Found, host: Found) -> bytes | None:
        """Both changes of a text in one; None where they touch the same lines, or it is no text."""
        from hostfork.apply.merge import merge_text

        if conflict.kind not in (ConflictKind.EDITED, ConflictKind.CREATED):
            return None
        before = b""
        if conflict.kind is ConflictKind.EDITED:
            found = self._sides.base(change.path)
            text = None if found is None else found.text()
            if text is None:
                return None
            before = text
        one, two = host.text(), fork.text()
        return None if one is None or two is None else merge_text(one, before, two)

    def other(self, path: str, kind: ConflictKind, name: str, other: str | None = None) -> OnConflict:
        """A conflict that shows only when all changes are known; says how it is resolved, FAIL where it is not."""
        how = self._resolution.of(path)
        if how is OnConflict.HOST:
            self.kept.add(name)
        if how in (OnConflict.HOST, OnConflict.FORK):
            self.resolved.append((path, how))
            return how
        found = self._sides.host(name)
        words = "made something in it" if kind is ConflictKind.FOLDER else "has another name for it"
        did = "deleted" if kind is ConflictKind.FOLDER else "edited"
        self.conflicts.append(
            Conflict(path, kind, did, words, None, None, None if found is None else found.stat.st_ctime, other)
        )
        return OnConflict.FAIL

    def through(self, folders: list[str]) -> None:
        """Folders (names) of the fork that the host lacks, and in which something taken lies."""
        for name in folders:
            path = os.path.join(self._source.root, name)
            change = Change(path, ChangeKind.CREATED, EntryKind.FOLDER)
            self.taken.append(Decision(change, name, True, _ALL_FIELDS, None, True))

    def check_seen(self, name: str, rows: Rows) -> None:
        """What is about to be displaced is what was judged. Raises Moved."""
        forced = any(how is OnConflict.FORK for _, how in self.resolved)
        for row in rows:
            full = f"{name}/{row.relative}" if row.relative else name
            seen = self.seen.get(full)
            if seen is None and forced:
                continue
            if seen is None or (not S_ISDIR(row.mode) and seen != (row.inode, row.size, row.mtime_ns)):
                raise Moved(os.path.join(self._source.root, full))

    def keep_mode(self, decision: Decision, fork: Found, host: Found | None) -> tuple[int, int, int, dict[str, bytes]]:
        """Mode, owner and attributes of what is to be there: the fork's where it changed them, else the host's."""
        mine = fork.facts
        if host is None or host.kind is not fork.kind:
            found = {k: v for k, v in fork.attributes().items() if self._special or k != "security.capability"}
            return self._plain(fork.kind, mine.mode), mine.uid, mine.gid, found
        fields = decision.fields
        mode = self._plain(fork.kind, mine.mode) if "mode" in fields else host.facts.mode
        uid, gid = (mine.uid, mine.gid) if "owner" in fields else (host.facts.uid, host.facts.gid)
        found = dict(host.attributes())
        for field in ("xattrs", "acl"):
            if field in fields:
                for key in host.some_attributes(field):
                    del found[key]
                found |= fork.some_attributes(field)
        if not self._special and "security.capability" not in host.attributes():
            found.pop("security.capability", None)
        return mode, uid, gid, found

    def _plain(self, kind: EntryKind, mode: int) -> int:
        return mode & ~_BITS if kind is EntryKind.FILE and not self._special else mode


def _has_capability(fork: Found) -> bool:
    """Only root can see, and set, what only programs have."""
    program = fork.kind is EntryKind.FILE and fork.stat.st_mode & 0o111 and os.geteuid() == 0
    return bool(program) and "security.capability" in fork.attributes()


def _are_equal(host: Found, fork: Found) -> bool:
    return host.same_substance(fork) and all(host.field(field) == fork.field(field) for field in _ALL_FIELDS)


def _did(change: Change) -> str:
    """What the fork did, in a word or two."""
    if change.change is ChangeKind.TYPE:
        return f"made it a {_kind(change.kind)}"
    if change.change is ChangeKind.METADATA:
        return f"changed {', '.join(change.fields)}"
    return {ChangeKind.CREATED: "created", ChangeKind.DELETED: "deleted"}.get(change.change, "edited")


def _host_did(change: Change, kind: ConflictKind, host: Found, base: Found | None) -> str:
    if host.kind is not change.was:
        return f"made it a {_kind(host.kind)}"
    if kind is ConflictKind.BASE_GONE:
        return "may have edited it"
    if base is not None and host.same_substance(base):
        return f"changed {', '.join(field for field in _ALL_FIELDS if host.field(field) != base.field(field))}"
    return "edited"


def _kind(kind: EntryKind) -> str:
    return "link" if kind is EntryKind.SYMLINK else kind.value.replace("-", " ")


def _lines(base: Found | None, now: Found, made: bool) -> tuple[int, int] | None:
    """Lines added and removed, where both are text."""
    try:
        before = b"" if made else None if base is None else base.text()
        after = now.text()
    except OSError:
        return None
    if before is None or after is None:
        return None
    blocks = compare_lines(split_lines(before), split_lines(after))
    return sum(block.new_end - block.new for block in blocks), sum(block.old_end - block.old for block in blocks)
