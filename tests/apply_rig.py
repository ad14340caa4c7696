"""What tests of apply and undo share: pictures of a tree, forks of a project, applies that are killed on the way."""

import hashlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from rigs import Person

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
Picture = dict[str, tuple[Any, ...]]

PROJECT = """
mkdir -p src/deep closed gone/inner both kind
printf 'one\\ntwo\\nthree\\nfour\\nfive\\nsix\\nseven\\n' > src/a.py
echo keep > src/keep; echo old > old.txt; echo run > run.sh; echo 1 > closed/in; chmod 0555 closed
echo 2 > gone/inner/f; echo 3 > gone/g; ln -s src link; echo was > kind/file; mkdir kind/folder; echo x > kind/folder/x
echo twin > twin1; ln twin1 twin2; chmod 640 src/a.py; mkfifo pipe
touch -d '2020-01-02 03:04:05' src/a.py old.txt run.sh gone/g
"""
CHANGES = """
set -e
sed -i s/two/TWO/ src/a.py; echo more >> src/keep; rm old.txt; chmod 755 run.sh
chmod 755 closed; echo 2 > closed/in; echo 3 > closed/more; chmod 555 closed
rm -r gone; mkdir -p new/a/b; echo n > new/a/b/n; chmod 555 new/a/b; rm link; ln -s src/deep link
rm kind/file; mkdir kind/file; echo f > kind/file/f; rm -r kind/folder; ln -s nowhere kind/folder
echo twins >> twin1; rm pipe; mkfifo pipe2; chmod 700 both; printf 'w' > 'odd
name'
"""


def picture(root: str, inodes: bool = False) -> Picture:
    """What a tree is: kinds, modes, owners, contents, times of files, attributes; `inodes`: and which are one file."""
    found: Picture = {}
    links: dict[int, str] = {}
    for folder, names, files in os.walk(root):
        for name in sorted([*names, *files]):
            path = os.path.join(folder, name)
            seen = os.lstat(path)
            kind = stat.S_IFMT(seen.st_mode)
            content: object = ""
            if kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    content = hashlib.sha1(file.read()).hexdigest(), seen.st_mtime_ns
            elif kind == stat.S_IFLNK:
                content = os.readlink(path)
            shown = [one for one in os.listxattr(path, follow_symlinks=False) if one.startswith(("user.", "system."))]
            extra = {one: os.getxattr(path, one, follow_symlinks=False) for one in shown}
            mode = 0 if kind == stat.S_IFLNK else stat.S_IMODE(seen.st_mode)
            row: tuple[Any, ...] = (kind, mode, seen.st_uid, seen.st_gid, content, extra)
            if inodes:
                row += (links.setdefault(seen.st_ino, os.path.relpath(path, root)),)
            found[os.path.relpath(path, root)] = row
    return found


def differing(one: Picture, other: Picture) -> list[str]:
    """The paths in which two pictures differ, for a message."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


def make(person: Person, folder: str, script: str = PROJECT) -> str:
    """A project of this person."""
    person.run(["sh", "-ec", script], cwd=folder, check=True)
    return folder


def fork(hostfork: Run, person: Person, project: str, script: str = CHANGES, name: str = "f", *options: str) -> None:
    """A kept fork of the project, `:how` may follow, in which the script ran."""
    done = hostfork(
        person,
        "run",
        "--name",
        name,
        "--private",
        project,
        *options,
        "--",
        "sh",
        "-c",
        script,
        cwd=project.split(":")[0],
    )
    assert done.returncode == 0, done.stderr


def apply(hostfork: Run, person: Person, *options: str, name: str = "f", check: int | None = 0) -> Any:
    """`hostfork apply`, in JSON."""
    done = hostfork(person, "apply", name, *options, "--yes", "--json", check=check)
    return json.loads(done.stdout)


def undo(hostfork: Run, person: Person, *options: str, name: str = "f", check: int | None = 0) -> Any:
    """`hostfork undo`, in JSON."""
    return json.loads(hostfork(person, "undo", name, *options, "--yes", "--json", check=check).stdout)


def nothing_left(person: Person, *roots: str) -> None:
    """No stage, no open apply, wherever one might be."""
    for root in roots:
        left = [os.path.join(folder, name) for folder, names, _ in os.walk(root) for name in names
                if name.startswith(".hostfork-apply-")]  # fmt: skip
        assert left == []
    applies = os.path.join(person.state, "applies")
    if os.path.isdir(applies):
        assert [name for name in os.listdir(applies) if os.path.exists(os.path.join(applies, name, "open"))] == []


def with_notes(hook: Callable[[str, bool], None], function: Callable[[], Any]) -> Any:
    """Call a function while `hook(record, written)` is told of each record of an apply's journal, before and after."""
    from hostfork.lifecycle.applies import ApplyFolder

    real = ApplyFolder.note

    def note(self: ApplyFolder, event: str, **facts: Any) -> None:
        record = event + (f"-{facts['number']}" if "number" in facts else "")
        hook(record, False)
        real(self, event, **facts)
        hook(record, True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ApplyFolder, "note", note)
        return function()


def apply_here() -> bool:
    """Apply the fork f in this process; whether it was written."""
    from hostfork import api

    return api.apply("f", api.Choice(active=True)).written


def undo_here() -> bool:
    """Undo it in this process."""
    from hostfork import api

    return api.undo("f").written


def records(person: Person, function: Callable[[], Any]) -> list[str]:
    """The records of the journal that a call writes."""

    def call() -> list[str]:
        seen: list[str] = []
        with_notes(lambda record, written: None if written else seen.append(record), function)
        return seen

    found = person.call(call)
    assert isinstance(found, list)
    return found


def kill_at(person: Person, record: str, after: bool, function: Callable[[], Any]) -> None:
    """Let a call be killed right before, or after, it writes a record of the journal."""

    def hook(seen: str, written: bool) -> None:
        if seen == record and written is after:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildProcessError, match="ended with -9"):
        person.call(lambda: with_notes(hook, function))
