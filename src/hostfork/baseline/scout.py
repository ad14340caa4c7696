"""A second process that looks at a part of a source beside the walk: most of a large tree is as it was.

It gets folders of the source by their paths, and answers with those below (themselves included) in which something is
not as the manifest says. It decides nothing and writes nothing: the walk goes there and looks again. What it says
nothing about, since it died or found too much, the walk does itself.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from hostfork.collect.manifest import StatManifest

LEAST = 1 << 20
"""Bytes of a manifest, about 10,000 entries: below, starting a process takes longer than it saves."""
_AT_A_TIME = 2
_MOST = 2000
"""Folders in one answer. More, and the walk has to look everywhere anyway."""
_LENGTH = struct.Struct("=I")
_TOO_MUCH = b"\0"
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Scout:
    """The process, and the folders that it has. Not for threads."""

    def __init__(self, manifest: str, source: str, omit: tuple[str, ...]) -> None:
        import signal
        import socket

        ours, theirs = socket.socketpair()
        arguments = [str(os.getpid()), manifest, source, *omit]
        try:
            # Its own process group: Ctrl-C is the owner's, which then ends it.
            self._pid = os.posix_spawn(
                sys.executable, [sys.executable, "-I", "-S", os.path.abspath(__file__), *arguments], os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)], setpgroup=0, setsigmask=(),
                setsigdef=(signal.SIGPIPE,),
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket: socket.socket | None = ours
        self._waiting: list[str] = []
        self._heard = b""

    @property
    def has_room(self) -> bool:
        """Whether it can take a folder."""
        return self._socket is not None and len(self._waiting) < _AT_A_TIME

    def give(self, relative: str) -> None:
        """Let it look at a folder and all below."""
        import socket

        name = os.fsencode(relative)
        self._waiting.append(relative)
        try:
            assert self._socket is not None
            self._socket.sendall(_LENGTH.pack(len(name)) + name, socket.MSG_NOSIGNAL)
        except OSError:
            self._close()

    def answers(self, wait: bool) -> list[tuple[str, tuple[str, ...] | None]]:
        """What it has found: the folder that it had, and those that differ; None where it cannot say."""
        import socket

        found: list[tuple[str, tuple[str, ...] | None]] = []
        while self._waiting and not (found and wait):
            if self._socket is None:
                return [*found, (self._waiting.pop(0), None)]
            answer = self._next()
            if answer is not None:
                names = None if answer == _TOO_MUCH else tuple(map(os.fsdecode, answer.split(b"\0")[:-1]))
                found.append((self._waiting.pop(0), names))
                continue
            try:
                heard = self._socket.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                heard = b""
            if not heard:
                self._close()
            self._heard += heard
        return found

    def _next(self) -> bytes | None:
        if len(self._heard) < _LENGTH.size:
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._heard)[0])
        if len(self._heard) < end:
            return None
        answer, self._heard = self._heard[_LENGTH.size : end], self._heard[end:]
        return answer

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def end(self) -> None:
        """End it, whatever it does, and wait for that."""
        import signal

        self._close()
        try:
            os.kill(self._pid, signal.SIGKILL)  # our own child, not waited for yet: the pid is still its own
            os.waitpid(self._pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass  # a caller that ignores SIGCHLD or waits for every child of the process


def start(manifest: str, source: str, omit: tuple[str, ...]) -> Scout | None:
    """Start one where that saves time: a processor is idle now, and the manifest is large."""
    from hostfork.storage.crew import idle_processors

    try:
        if not sys.executable or os.stat(manifest).st_size < LEAST or idle_processors() < 1:
            return None
        return Scout(manifest, source, omit)
    except OSError:
        return None  # no more processes for this user: the walk does it alone


def _differing(manifest: StatManifest, root: int, top: str, omit: tuple[str, ...]) -> bytes:
    """The folders from `top` down in which something is not as it was, each ended by a zero byte."""
    from hostfork.baseline.comparison import Comparison, below
    from hostfork.storage.tree import Descent, open_source

    comparison, descent, found = Comparison(manifest, omit), Descent(root, open_source), []
    levels: list[tuple[str, list[str]]] = []

    def look(relative: str) -> None:
        known = manifest.names(relative)
        changed, folders = comparison.look(descent.folder, relative, known)
        if changed or known or any(folder.changed for folder in folders):
            found.append(os.fsencode(relative) + b"\0")
        levels.append((relative, [folder.name for folder in folders if not folder.is_new]))

    try:
        try:
            for name in top.split("/"):
                descent.enter(name)
            look(top)
        except OSError:
            return os.fsencode(top) + b"\0"
        while levels and len(found) < _MOST:
            relative, folders = levels[-1]
            if not folders:
                levels.pop()
                if levels:
                    descent.leave()
                continue
            inner, depth = below(relative, folders.pop()), descent.depth
            try:
                descent.enter(inner.rpartition("/")[2])
                look(inner)
            except OSError:  # closed to this user, or gone meanwhile: the walk says so
                found.append(os.fsencode(inner) + b"\0")
                if descent.depth > depth:
                    descent.leave()
    except OSError:
        return _TOO_MUCH
    finally:
        descent.close()
    return b"".join(found) if len(found) < _MOST else _TOO_MUCH


def main(owner: int, path: str, source: str, omit: tuple[str, ...]) -> None:
    """Answer until the owner closes the socket or dies."""
    import signal
    import socket

    from hostfork.collect.manifest import StatManifest
    from hostfork.errors import CollectError
    from hostfork.helper.syscalls import prctl
    from hostfork.storage.entry import FOLDER, open_quietly

    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:
        return
    try:
        manifest, root = StatManifest.load(path), open_quietly(source, FOLDER)
    except (CollectError, OSError):
        return  # the walk meets the same, and says so
    with socket.socket(fileno=0) as channel, channel.makefile("rb") as asked:
        while len(length := asked.read(_LENGTH.size)) == _LENGTH.size:
            name = asked.read(_LENGTH.unpack(length)[0])
            answer = _differing(manifest, root, os.fsdecode(name), omit)
            channel.sendall(_LENGTH.pack(len(answer)) + answer)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], tuple(sys.argv[4:]))
