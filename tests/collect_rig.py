"""Trees to find changes in: random actions, a real overlay that a child keeps mounted, a copy with its manifest."""

import ctypes
import errno
import os
import pickle
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from typing import Any

from hostfork.collect.changeset import Changeset
from hostfork.collect.full import FullManifest
from hostfork.collect.manifest import StatManifestWriter
from hostfork.vocabulary import ChangeKind, EntryKind

_CLONE_NEWUSER, _CLONE_NEWNS = 0x10000000, 0x20000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
NAMES = ["a", "b", "c", "dir", "odd\nname", "\udcff:,\\", "build", ".gitignore", "x.pyc", "node_modules"]
CONTENTS = [b"", b"one\n", b"two\n", b"x" * 5000, b"*.pyc\nbuild/\n", b"!x.pyc\n/a\n"]


def _libc(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount_overlay(lower: str, upper: str, work: str, target: str) -> None:
    """In a new mount namespace (and user namespace, for an ordinary user) of this single-threaded process.

    `lower`: one folder, or several from the top down with colons between them. Without `upper` it is read-only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    _libc(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if uid else 0)))
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _libc(libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
    options = f"lowerdir={lower},userxattr" + (f",upperdir={upper},workdir={work}" if upper else "")
    _libc(libc.mount(b"overlay", os.fsencode(target), b"overlay", ctypes.c_ulong(0), os.fsencode(options)))


class OverlayChild:
    """A child that holds an overlay over `base` in a namespace of its own and calls functions there.

    `base`: a folder, or layers from the top down. `written`: with an upper folder; else it shows several layers.
    """

    def __init__(self, folder: str, base: str | tuple[str, ...], written: bool = True) -> None:
        self.upper, self.merged = f"{folder}/upper", f"{folder}/merged"
        lower = base if isinstance(base, str) else ":".join(base)
        for name in (self.upper, self.merged, f"{folder}/work"):
            os.mkdir(name)
        ask, self._asks = os.pipe2(os.O_CLOEXEC)
        self._answers, answer = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._asks)
            os.close(self._answers)
            try:
                mount_overlay(lower, self.upper if written else "", f"{folder}/work", self.merged)
                self._serve(ask, answer)
            finally:
                os._exit(1)
        os.close(ask)
        os.close(answer)
        self._reader = open(self._answers, "rb")  # noqa: SIM115 (closed in close)
        self.call(os.getpid)
        self.seen = f"/proc/{self.pid}/root{self.merged}"
        """The merged tree from outside, where other people's ids in ACLs keep their numbers."""

    def _serve(self, ask: int, answer: int) -> None:
        with open(ask, "rb") as asks, open(answer, "wb") as answers:
            while True:
                try:
                    function, arguments = pickle.load(asks)
                except EOFError:
                    os._exit(0)
                try:
                    result = (function(*arguments), None)
                except Exception as error:
                    result = (None, repr(error))
                pickle.dump(result, answers)
                answers.flush()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result in the child."""
        os.write(self._asks, pickle.dumps((function, arguments)))
        result, failure = pickle.load(self._reader)
        if failure is not None:
            raise AssertionError(failure)
        return result

    def close(self) -> None:
        """End the child; its namespace and mount go with it."""
        os.close(self._asks)
        self._reader.close()
        os.waitpid(self.pid, 0)


def copy_with_manifest(source: str, copy: str, manifest: str, *options: str) -> None:
    """`cp -a`, then the manifest that a copying mechanism writes while it copies."""
    subprocess.run(["cp", "-a", *options, "--", source, copy], check=True)
    with StatManifestWriter(manifest) as writer:
        _witness(writer, source, copy, b"")


def _witness(writer: StatManifestWriter, source: str, copy: str, relative: bytes) -> None:
    one = os.path.join(os.fsencode(source), relative) if relative else os.fsencode(source)
    two = os.path.join(os.fsencode(copy), relative) if relative else os.fsencode(copy)
    if stat.S_ISDIR(os.lstat(one).st_mode):
        for name in os.listdir(one):
            _witness(writer, source, copy, relative + b"/" + name if relative else name)
    writer.witness(relative, os.lstat(one), os.lstat(two))


def _paths(root: str) -> list[str]:
    found = [""]
    for folder, folders, files in os.walk(root):
        here = os.path.relpath(folder, root)
        found += [os.path.normpath(os.path.join(here, name)) for name in folders + files]
    return sorted(found)


def act(root: str, verb: str, pick: int, other: int, name: str, content: bytes) -> None:
    """Do one thing in the tree to the entry that `pick` chooses. What the kernel refuses is not done."""
    paths = _paths(root)
    path = os.path.join(root, paths[pick % len(paths)])
    second = os.path.join(root, paths[other % len(paths)])
    folder = path if os.path.isdir(path) and not os.path.islink(path) else os.path.dirname(path)
    if not folder.startswith(root):
        folder = root
    new = os.path.join(folder, name)
    try:
        _VERBS[verb](root, path, second, new, content)
    except (OSError, shutil.Error) as error:
        if getattr(error, "errno", 0) == errno.EIO:
            raise


def _write(path: str, content: bytes, flags: int) -> None:
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def _rewrite_equal(path: str) -> None:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        content = file.read()
    _write(path, content, os.O_WRONLY | os.O_TRUNC)


def _remove(root: str, path: str) -> None:
    if path == root or path == root + "/":
        return
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _recreate(root: str, path: str, content: bytes) -> None:
    was_folder = os.path.isdir(path) and not os.path.islink(path)
    _remove(root, path)
    if was_folder:
        os.mkdir(path)
        _write(path + "/a", content, os.O_WRONLY | os.O_CREAT)
    else:
        _write(path, content, os.O_WRONLY | os.O_CREAT)


def _rebuild(root: str, path: str) -> None:
    """The same folders again, without what was in them."""
    if path.rstrip("/") == root or not os.path.isdir(path) or os.path.islink(path):
        return
    folders = [folder for folder, _, _ in os.walk(path)]
    shutil.rmtree(path)
    for folder in folders:
        os.mkdir(folder)


def _change_type(root: str, path: str) -> None:
    if path in (root, root + "/"):
        return
    was_folder = os.path.isdir(path) and not os.path.islink(path)
    _remove(root, path)
    if was_folder:
        os.symlink("/nowhere", path)
    else:
        os.mkdir(path)
        _write(path + "/b", b"inside", os.O_WRONLY | os.O_CREAT)


def _bind(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(os.path.dirname(path), os.O_PATH)
        try:
            server.bind(f"/proc/self/fd/{folder}/" + os.path.basename(path))
        finally:
            os.close(folder)


def _set_acl(path: str) -> None:
    if stat.S_ISLNK(os.lstat(path).st_mode):
        return
    subprocess.run(["setfacl", "-m", "u:12345:r", "--", path], check=False, stderr=subprocess.DEVNULL)


def _chmod(path: str, mode: int) -> None:
    if not os.path.islink(path):
        os.chmod(path, mode | 0o100 if mode and os.path.isdir(path) else mode)


def _xattr(path: str, content: bytes) -> None:
    if stat.S_ISREG(os.lstat(path).st_mode) or stat.S_ISDIR(os.lstat(path).st_mode):
        if "user.test" in os.listxattr(path) and not content:
            os.removexattr(path, "user.test")
        else:
            os.setxattr(path, "user.test", content[:100])


_VERBS: dict[str, Callable[[str, str, str, str, bytes], None]] = {
    "create": lambda root, path, second, new, content: _write(new, content, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "write": lambda root, path, second, new, content: _write(path, content, os.O_WRONLY | os.O_TRUNC),
    "append": lambda root, path, second, new, content: _write(path, content, os.O_WRONLY | os.O_APPEND),
    "rewrite": lambda root, path, second, new, content: _rewrite_equal(path),
    "touch": lambda root, path, second, new, content: os.utime(path, follow_symlinks=False),
    "chmod": lambda root, path, second, new, content: _chmod(path, (0o644, 0o755, 0o600, 0o750)[len(content) % 4]),
    "close": lambda root, path, second, new, content: None if path.rstrip("/") == root else _chmod(path, 0),
    "chown": lambda root, path, second, new, content: os.chown(path, 1234, len(content), follow_symlinks=False),
    "mkdir": lambda root, path, second, new, content: os.mkdir(new),
    "rename": lambda root, path, second, new, content: None if path.rstrip("/") == root else os.rename(path, new),
    "exchange": lambda root, path, second, new, content: os.rename(path, second),
    "remove": lambda root, path, second, new, content: _remove(root, path),
    "rebuild": lambda root, path, second, new, content: _rebuild(root, path),
    "recreate": lambda root, path, second, new, content: _recreate(root, path, content),
    "link": lambda root, path, second, new, content: os.link(path, new, follow_symlinks=False),
    "symlink": lambda root, path, second, new, content: os.symlink(os.path.basename(second) or "..", new),
    "type": lambda root, path, second, new, content: _change_type(root, path),
    "fifo": lambda root, path, second, new, content: os.mkfifo(new),
    "socket": lambda root, path, second, new, content: _bind(new),
    "device": lambda root, path, second, new, content: os.mknod(new, 0o644 | stat.S_IFCHR, os.makedev(1, 3)),
    "xattr": lambda root, path, second, new, content: _xattr(path, content),
    "acl": lambda root, path, second, new, content: _set_acl(path),
}
VERBS = sorted(_VERBS)


def remove(path: str) -> None:
    """Remove a tree, whatever modes it has."""
    subprocess.run(["chmod", "-R", "u+rwx", path], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", path], check=True)


def _opened(root: str) -> dict[str, int]:
    """Give their owner what is closed to them; the relative paths with the modes that they had, folders first."""
    closed: dict[str, int] = {}
    modes: dict[int, int] = {}
    waiting = [""]
    while waiting:
        path = waiting.pop()
        full = os.path.join(root, path)
        found = os.lstat(full)
        if stat.S_ISLNK(found.st_mode):
            continue
        mode = modes.setdefault(found.st_ino, stat.S_IMODE(found.st_mode))
        wanted = mode | (0o700 if stat.S_ISDIR(found.st_mode) else 0o400)
        if wanted != mode:
            os.chmod(full, wanted)
            closed[path] = mode
        if stat.S_ISDIR(found.st_mode):
            waiting += [os.path.join(path, name) for name in os.listdir(full)]
    return closed


def _closed_again(root: str, closed: dict[str, int]) -> None:
    for path in reversed(closed):
        if os.path.lexists(os.path.join(root, path)):
            os.chmod(os.path.join(root, path), closed[path])


def reduced(copy: str, changes: Changeset, at: str, delta: str) -> None:
    """What is left of a copy that gave up everything that equals the base."""
    closed = _opened(copy)
    subprocess.run(["cp", "-a", copy, delta], check=True)
    _closed_again(copy, closed)
    kept = {change.path[len(at) + 1 :] for change in changes.changes if change.change is not ChangeKind.DELETED}
    for path in reversed(_paths(delta)):
        if path and path != "." and path not in kept:
            full = os.path.join(delta, path)
            if not os.path.isdir(full) or os.path.islink(full):
                os.unlink(full)
            elif not os.listdir(full):
                os.rmdir(full)
    _closed_again(delta, closed)


def content(manifest: FullManifest) -> dict[str, object]:
    """What must be equal in an exported tree."""
    return {path: (entry.facts, entry.digest, entry.attributes) for path, entry in manifest.entries.items()}


def git_view(manifest: FullManifest) -> dict[str, object]:
    """What git knows of a tree: files with their executable bit, and symlinks."""
    return {
        path: (entry.digest, entry.facts.target, entry.facts.kind is EntryKind.FILE and entry.facts.mode & 0o100)
        for path, entry in manifest.entries.items()
        if entry.facts.kind in (EntryKind.FILE, EntryKind.SYMLINK)
    }


def files_only(source: str, place: str) -> None:
    """A copy with what git knows: no FIFOs, sockets, devices and empty folders."""
    subprocess.run(["cp", "-a", source, place], check=True)
    subprocess.run(
        ["find", place, "-mindepth", "1", "!", "-type", "d", "!", "-type", "f", "!", "-type", "l", "-delete"]
    )
    subprocess.run(["find", place, "-mindepth", "1", "-type", "d", "-empty", "-delete"])
