"""Who usually makes such a change, which ignored folder it lies in, and whether the host runs the file by itself."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import translate
from functools import cache
from re import Pattern, compile

from hostfork.collect import names
from hostfork.collect.active import Hooks, active
from hostfork.collect.changeset import Change
from hostfork.collect.difference import joined, relative_to
from hostfork.collect.ignores import Final, Ignores
from hostfork.values import replace
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind


def classify(changes: Iterable[Change], at: str, final: Final) -> tuple[Change, ...]:
    """The changes of the private path `at`, each with class, ignored folder and whether it is active."""
    ignores, hooks = Ignores(final), Hooks(final)
    return tuple(_classified(change, at, ignores, hooks) for change in changes)


def _classified(change: Change, at: str, ignores: Ignores, hooks: Hooks) -> Change:
    relative = relative_to(at, change.path)
    folder = change.kind is EntryKind.FOLDER
    parent = relative.rpartition("/")[0]
    ignored = ignores.folder(relative if folder else parent)
    class_ = _named_class(relative if not _is_git(at) else f".git/{relative}", folder, change.kind)
    if class_ is None:
        lost = ignored is not None or (bool(relative) and not folder and ignores.file(relative))
        class_ = ChangeClass.GENERATED if lost else ChangeClass.SOURCE
    there = not folder and change.change is not ChangeKind.DELETED
    runs = there and active(change.path, relative, change.kind, hooks)
    if class_ is ChangeClass.SOURCE and ignored is None and not runs:
        return change
    return replace(change, class_=class_, active=runs, ignored_by=None if ignored is None else joined(at, ignored))


def _is_git(at: str) -> bool:
    """Whether the private path is a repository's own folder, or lies in one."""
    return "/.git/" in at + "/"


def _named_class(relative: str, folder: bool, kind: EntryKind) -> ChangeClass | None:
    """What the known names say, the outermost folder first."""
    if kind is EntryKind.SOCKET:
        return ChangeClass.RUNTIME
    *folders, name = relative.split("/")
    if folder:
        folders.append(name)
    elif _files(names.RUNTIME_FILES).match(name) and name not in names.SOURCE_FILES:
        return ChangeClass.RUNTIME
    known = _folders()
    for part in folders:
        if part in known:
            return known[part]
    if name in names.SOURCE_FILES:
        return None
    return ChangeClass.GENERATED if _files(names.GENERATED_FILES).match(name) else None


@cache
def _folders() -> dict[str, ChangeClass]:
    known = dict.fromkeys(names.GENERATED_FOLDERS, ChangeClass.GENERATED)
    return known | dict.fromkeys(names.DEPENDENCY_FOLDERS, ChangeClass.DEPENDENCY)


@cache
def _files(patterns: tuple[str, ...]) -> Pattern[str]:
    return compile("|".join(translate(pattern) for pattern in patterns))
