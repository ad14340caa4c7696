"""How a path that somebody wrote becomes absolute and normal, and how absolute paths compare.

Nothing is resolved here but what stands before a `..`: the kernel follows a symlink before it goes up, so a lexical
`..` would name another folder.
"""

from __future__ import annotations

import os

from hostfork.errors import Code, PolicyError


def normal(written: str, *, base: str | None, home: str, place: str) -> str:
    """The absolute, normal form of `written`. `base` None: a relative path is refused.

    `~` and `~/x` are below `home`. Raises PolicyError (`policy.bad-path`) for an empty path, a NUL, `~name`, or a
    relative path without a base.
    """
    if not written:
        raise _bad("an empty path names nothing", written, place, "write `.` for the working directory")
    if "\0" in written:
        raise _bad(f"{written!r} holds a NUL, which no path can", written, place, None)
    path = _expand(written, home, place)
    if not path.startswith("/"):
        if base is None:
            raise _bad(
                f"{written} is a relative path, and a policy file has no place to start from",
                written,
                place,
                "write it from `/` or from `~/`",
            )
        path = base + "/" + path
    return _flatten(path)


def within(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies below it; both absolute and normal."""
    return path == folder or beneath(path, folder)


def beneath(path: str, folder: str) -> bool:
    """Whether `path` lies below `folder`; both absolute and normal."""
    return path != folder and path.startswith(folder if folder == "/" else folder + "/")


def relative(path: str, folder: str) -> str:
    """`path`, which lies below `folder`, from there on."""
    return path[1:] if folder == "/" else path[len(folder) + 1 :]


def join(folder: str, name: str) -> str:
    """`name` below `folder`; an empty name is the folder itself."""
    if not name:
        return folder
    return folder + name if folder == "/" else folder + "/" + name


def components(path: str) -> tuple[str, ...]:
    """The names of an absolute, normal path: sorting by them puts outer paths before inner ones."""
    return () if path == "/" else tuple(path[1:].split("/"))


def _expand(written: str, home: str, place: str) -> str:
    if written == "~" or written.startswith("~/"):
        if not home.startswith("/"):
            raise _bad(f"{written} needs a home folder, and HOME is not set", written, place, "write the whole path")
        return home + written[1:]
    if written.startswith("~"):
        raise _bad(
            f"{written} would be another user's home, which is not expanded",
            written,
            place,
            "write the whole path; a file of that name is ./" + written,
        )
    return written


def _flatten(path: str) -> str:
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            here = "/" + "/".join(names)
            names = [part for part in os.path.dirname(os.path.realpath(here)).split("/") if part]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


def _bad(message: str, path: str, place: str, hint: str | None) -> PolicyError:
    return PolicyError(Code.POLICY_BAD_PATH, message, path=path, place=place, hint=hint)
