"""How a changeset looks to people: a letter, a path, what became of it; ignored folders are one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hostfork.cli.look import (
    Look,
    columns,
    counts_in_words,
    harmless,
    number,
    pad,
    plural,
    shorten,
    size,
)
from hostfork.collect.changeset import Change, Changeset
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind

LETTERS = {
    ChangeKind.CREATED: ("A", "green"),
    ChangeKind.MODIFIED: ("M", "yellow"),
    ChangeKind.DELETED: ("D", "red"),
    ChangeKind.TYPE: ("T", "cyan"),
    ChangeKind.METADATA: ("P", "blue"),
}
LineCounts = Mapping[str, tuple[int, int] | None]
_PERMISSIONS = 0o7777


@dataclass(frozen=True)
class Fold:
    """One ignored folder in place of all that changed in it."""

    path: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Shown:
    """What is shown: paths and folds, in the order of the changeset; `changeset` holds the paths alone."""

    entries: tuple[Change | Fold, ...]
    changeset: Changeset


def expanded(changeset: Changeset) -> Shown:
    """Every path."""
    return Shown(changeset.changes, changeset)


def folded(changeset: Changeset) -> Shown:
    """Every ignored folder as one entry. A file that is ignored by its own name stays; so does what may be run."""
    entries: list[Change | Fold] = []
    place: dict[str, int] = {}
    inside: dict[str, list[Change]] = {}
    for change in changeset.changes:
        folder = change.ignored_by
        if folder is None or change.active or (folder == change.path and change.kind is not EntryKind.FOLDER):
            entries.append(change)
            continue
        if folder not in inside:
            place[folder] = len(entries)
            inside[folder] = []
            entries.append(change)
        inside[folder].append(change)
    for folder, changes in inside.items():
        entries[place[folder]] = Fold(folder, tuple(changes))
    plain = tuple(entry for entry in entries if isinstance(entry, Change))
    return Shown(tuple(entries), Changeset(plain))


def diff_lines(shown: Shown, counts: LineCounts, roots: Sequence[str], look: Look) -> list[str]:
    """The lines of a changeset. Paths are relative where there is one private path only."""
    root = roots[0] if len(roots) == 1 else None
    widest = None if look.width is None else max(20, look.width - 28)
    rows = []
    for entry in shown.entries:
        if isinstance(entry, Fold):
            rows.append((*_fold_letter(entry), _name(entry.path, root, look, "/"), _fold_words(entry)))
        else:
            letter, style = LETTERS[entry.change]
            if entry.active:
                letter, style = "!", "red"
            mark = "/" if entry.kind is EntryKind.FOLDER and entry.change is not ChangeKind.TYPE else ""
            rows.append((letter, style, _name(entry.path, root, look, mark), _words(entry, counts)))
    names = [shorten(name, widest) for _, _, name, _ in rows]
    room = max((columns(name) for name in names), default=0)
    room = min(room, widest or 60)
    return [
        f"{look.paint(letter, style)}  {pad(name, room)}   {words}".rstrip()
        for name, (letter, style, _, words) in zip(names, rows, strict=True)
    ]


def _name(path: str, root: str | None, look: Look, mark: str) -> str:
    if root is not None and path.startswith(root.rstrip("/") + "/"):
        return harmless(path[len(root.rstrip("/")) + 1 :]) + mark
    return look.path(path) + (mark if not path.endswith("/") else "")


def _fold_letter(fold: Fold) -> tuple[str, str]:
    kinds = {change.change for change in fold.changes}
    return LETTERS[kinds.pop()] if len(kinds) == 1 else LETTERS[ChangeKind.MODIFIED]


def _fold_words(fold: Fold) -> str:
    counts = Changeset(fold.changes).counts()
    kind = next(change.class_ for change in fold.changes)
    why = {
        ChangeClass.DEPENDENCY: "dependencies",
        ChangeClass.GENERATED: "generated",
        ChangeClass.RUNTIME: "runtime state",
    }.get(kind, "ignored by the project")
    return f"{counts_in_words(counts)}, {why}     --all lists them"


def _words(change: Change, counts: LineCounts) -> str:
    """What became of one path."""
    words = [_main_words(change, counts)]
    if change.active:
        words.append("runs on your host by itself")
    if change.base_gone:
        words.append("what it was before cannot be read any more")
    if change.change is not ChangeKind.METADATA and change.change is not ChangeKind.CREATED:
        words += _metadata_words(change) if change.change is ChangeKind.MODIFIED else []
    return "     ".join(word for word in words if word)


def _main_words(change: Change, counts: LineCounts) -> str:
    match change.change:
        case ChangeKind.TYPE:
            now = f"link to {harmless(change.target)}" if change.target is not None else kind_in_words(change.kind)
            return f"{kind_in_words(change.was)} -> {now}"
        case ChangeKind.METADATA:
            return ", ".join(_metadata_words(change))
        case ChangeKind.DELETED:
            return "" if change.kind is EntryKind.FILE else kind_in_words(change.kind)
    if change.kind is EntryKind.SYMLINK:
        return f"link to {harmless(change.target or '')}"
    if change.kind is not EntryKind.FILE:
        return "" if change.kind is EntryKind.FOLDER else kind_in_words(change.kind)
    return _content_words(change, counts)


def _content_words(change: Change, counts: LineCounts) -> str:
    lines = counts.get(change.path)
    if lines is not None:
        added, removed = lines
        parts = [f"{number(added)} +" if added else "", f"{number(removed)} -" if removed else ""]
        return " ".join(part for part in parts if part)
    if change.size is None:
        return ""
    if change.old_size is not None and change.old_size != change.size:
        return f"{size(change.old_size)} -> {size(change.size)}"
    return size(change.size)


def _metadata_words(change: Change) -> list[str]:
    words = []
    if change.mode is not None and change.old_mode is not None and change.mode != change.old_mode:
        words.append(f"{change.old_mode & _PERMISSIONS:o} -> {change.mode & _PERMISSIONS:o}")
    words += [field for field in change.fields if field != "mode"]
    return words


def kind_in_words(kind: EntryKind | None) -> str:
    """What a name is, in a word."""
    if kind is EntryKind.SYMLINK:
        return "link"
    return "nothing" if kind is None else kind.value.replace("-", " ").replace("fifo", "FIFO")


def stat_lines(changeset: Changeset, counts: LineCounts, roots: Sequence[str], look: Look) -> list[str]:
    """Numbers only: for each private path and class of change, and the lines of text."""
    lines = []
    for root in sorted(roots):
        inside = Changeset(tuple(change for change in changeset.changes if _belongs(change.path, root, roots)))
        if not inside.changes:
            continue
        lines.append(f"{look.path(root)}  {counts_in_words(inside.counts())}")
        for kind in ChangeClass:
            some = Changeset(tuple(change for change in inside.changes if change.class_ is kind))
            if some.changes and len(some.changes) != len(inside.changes):
                lines.append(f"  {kind.value:<12}{counts_in_words(some.counts())}")
    known = [pair for pair in counts.values() if pair is not None]
    added, removed = sum(pair[0] for pair in known), sum(pair[1] for pair in known)
    if added or removed:
        lines.append(f"{plural(added, 'line')} added, {number(removed)} removed")
    return lines


def _belongs(path: str, root: str, roots: Sequence[str]) -> bool:
    """Whether the innermost of the private paths around `path` is `root`."""
    around = [other for other in roots if path == other or path.startswith(other.rstrip("/") + "/")]
    return bool(around) and max(around, key=len) == root


def patch_lines(piece: bytes, look: Look) -> list[str]:
    """A piece of a patch for a terminal: harmless, in colour."""
    styles = {"+": ("green",), "-": ("red",), "@": ("cyan",)}
    lines = []
    for line in piece.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
        shown = "\t".join(harmless(part) for part in line.split("\t"))
        style = ("bold",) if line.startswith(("diff ", "--- ", "+++ ")) else styles.get(line[:1], ())
        lines.append(look.paint(shown, *style))
    return lines
