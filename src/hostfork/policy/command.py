"""Which program a command name means, found as execvp(3) does on the host, and whether a fork can run it."""

from __future__ import annotations

import os
import stat

from hostfork.errors import Code, CommandError

_DEFAULT_PATH = "/bin:/usr/bin"
_SNAP_FOLDERS = ("/snap/bin", "/var/lib/snapd/snap/bin")
_SNAP = "/usr/bin/snap"


def resolve_command(argv0: str, cwd: str, path_variable: str | None, *, user_namespace: bool) -> str:
    """The program's path; symlinks in it are not followed, since some programs look at their name.

    A name with a `/` starts from `cwd`, as do empty and relative folders of PATH; None is PATH not set. Raises
    CommandError: `command.not-found`, `command.not-executable` (a folder too), and, with an own user namespace,
    `command.set-uid`.
    """
    path = _found(argv0, cwd, path_variable)
    if user_namespace:
        _refuse_privileged(argv0, path)
    return path


def _found(argv0: str, cwd: str, path_variable: str | None) -> str:
    import errno

    denied: tuple[str, int] | None = None
    candidates = _candidates(argv0, cwd, _DEFAULT_PATH if path_variable is None else path_variable)
    for candidate in candidates:
        number = _refusal(candidate)
        if number == 0:
            return candidate
        # as execvp: go on looking, and tell of the first that was there
        if number not in (errno.ENOENT, errno.ENOTDIR) and denied is None:
            denied = (candidate, number)
    if denied is not None:
        path, number = denied
        what = "is a folder" if os.path.isdir(path) else "cannot be executed"
        hint = None if what == "is a folder" else f"chmod +x {path}, or name its interpreter"
        raise CommandError(
            Code.COMMAND_NOT_EXECUTABLE, f"{argv0} {what}", path=path, step="command", errno=number, hint=hint
        )
    where = "" if "/" in argv0 else " in the folders of PATH"
    raise CommandError(
        Code.COMMAND_NOT_FOUND,
        f"there is no command {argv0}{where}" if argv0 else "the command's name is empty",
        path=candidates[0] if "/" in argv0 else None,
        step="command",
        errno=errno.ENOENT,
    )


def _candidates(argv0: str, cwd: str, path_variable: str) -> list[str]:
    if not argv0 or "\0" in argv0:
        return []
    if "/" in argv0:
        return [os.path.join(cwd, argv0)]
    return [os.path.join(cwd, folder, argv0) for folder in path_variable.split(":")]


def _refusal(path: str) -> int:
    """The errno with which execve would refuse this file, as far as its permissions say; 0 if it would not."""
    import errno

    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno or errno.EIO
    if not stat.S_ISREG(found.st_mode):
        return errno.EACCES
    # the kernel says no for a mount with noexec, too (access(2))
    return 0 if os.access(path, os.X_OK, effective_ids=True) else errno.EACCES


def _refuse_privileged(argv0: str, path: str) -> None:
    found = os.stat(path)
    # Not set-gid ones: those run without their group and mostly do their work, as ssh-agent does.
    if found.st_mode & stat.S_ISUID and found.st_uid != os.geteuid():
        raise _needs_privileges(
            argv0,
            path,
            f"{argv0} is a set-uid program, and an ordinary user's fork gives no such privileges",
            f"run it outside of the fork, or without its privileges: sh -c 'exec {argv0} …'",
        )
    target = os.path.realpath(path)
    folders = {os.path.dirname(path), os.path.realpath(os.path.dirname(path)), os.path.dirname(target)}
    if target == _SNAP or folders & set(_SNAP_FOLDERS):
        raise _needs_privileges(
            argv0,
            path,
            f"{argv0} is a snap, which starts through the set-uid program snap-confine",
            "use a build of the program that is not a snap",
        )


def _needs_privileges(argv0: str, path: str, message: str, hint: str) -> CommandError:
    return CommandError(Code.COMMAND_SET_UID, message, path=path, step="command", hint=hint)
