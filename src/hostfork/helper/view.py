"""Builds the view: every tree is made detached first, then `/` is made read-only if asked, then all are attached.

The order matters (an overlay whose upper folder lies on a read-only mount is EINVAL, a covered path can no longer be
cloned). Nothing is created in a tree of the host's; a target that is not there is an error.
"""

from __future__ import annotations

import errno
import os

from hostfork.helper import syscalls
from hostfork.helper.protocol import Attach, Bind, Keep, Overlay, StandIn, Tmpfs

_NO_LINKS = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS


class NotAsPlanned(OSError):
    """The view does not hold what the plan says."""


def make_trees(attaches: tuple[Attach, ...]) -> list[int]:
    """A detached mount for each, none visible yet."""
    return [_make_tree(attach) for attach in attaches]


def attach_trees(attaches: tuple[Attach, ...], trees: list[int]) -> tuple[Attach, ...]:
    """Attach in the plan's order, outer paths first, each where the path leads now, through no symlink.

    Those that were attached.
    """
    attached = []
    for attach, tree in zip(attaches, trees, strict=True):
        try:
            target = syscalls.openat2(syscalls.AT_FDCWD, attach.target, os.O_PATH, resolve=_NO_LINKS)
        except OSError as error:
            if attach.optional and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                os.close(tree)
                continue
            raise
        attached.append(attach)
        try:
            syscalls.move_mount(tree, target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, attach.target) from None
        finally:
            os.close(target)
        os.close(tree)
    return tuple(attached)


def make_root_read_only() -> None:
    """Everything that the view has now, in one call. Needs no privilege over the mounts' own flags."""
    syscalls.mount_read_only(syscalls.AT_FDCWD, "/", recursive=True)


def verify(attaches: tuple[Attach, ...]) -> None:
    """What is shared or put back is the host's inode; what is private is not, and can be written unless planned so."""
    for attach in attaches:
        if attach.inode == 0:
            continue  # this user may not look at it: another user's FUSE mount, put back as it is
        found = os.stat(attach.target, follow_symlinks=False)
        is_hosts = (found.st_dev, found.st_ino) == (attach.device, attach.inode)
        if is_hosts != attach.same:
            said = "is not the host's own" if attach.same else "is still the host's own"
            raise NotAsPlanned(0, f"{attach.target} {said}", attach.target)
        read_only = bool(os.statvfs(attach.target).f_flag & os.ST_RDONLY)
        if attach.read_only and not read_only:
            raise NotAsPlanned(0, f"{attach.target} can still be written", attach.target)
        if read_only and not attach.read_only and not attach.same:
            raise NotAsPlanned(0, f"{attach.target} lies on a read-only mount", attach.target)


def _make_tree(attach: Attach) -> int:
    tree = attach.tree
    if isinstance(tree, Bind):
        descriptor = syscalls.open_tree(tree.source)
    elif isinstance(tree, Keep):
        descriptor = syscalls.open_tree(tree.source, recursive=True)
    elif isinstance(tree, Overlay):
        descriptor = _overlay(tree)
    else:
        descriptor = _tmpfs(tree, attach.stand_ins)
    if attach.read_only:
        syscalls.mount_read_only(descriptor, "", recursive=True)
    return descriptor


def _overlay(tree: Overlay) -> int:
    """The layers are given as descriptors: a path may be longer than a string of fsconfig or hold `:` and `,`.

    By their numbers, from the folder that has them as names: a string of many longer names would be too long as well.
    """
    folders = (*tree.lowers, tree.upper, tree.work)
    layers = [os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for folder in folders]
    *lowers, upper, work = map(str, layers)
    context = syscalls.fsopen("overlay")
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/proc/self/fd")
        # The name by which recovery tells this view from others.
        key = os.path.basename(os.path.dirname(tree.upper))
        syscalls.fsconfig_string(context, "source", f"hostfork:{key}{tree.mark}")
        syscalls.fsconfig_string(context, "lowerdir", ":".join(lowers))
        syscalls.fsconfig_string(context, "upperdir", upper)
        syscalls.fsconfig_string(context, "workdir", work)
        # Root too: marks of the other kind would show deleted files again without any error.
        syscalls.fsconfig_flag(context, "userxattr")
        if tree.volatile:
            syscalls.fsconfig_flag(context, "volatile")
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context)
    except OSError as error:
        said = _kernel_words(context)
        raise OSError(error.errno, said or error.strerror, tree.lowers[0]) from None
    finally:
        os.fchdir(here)
        for descriptor in (here, context, *layers):
            os.close(descriptor)


def _kernel_words(context: int) -> str:
    """What the kernel wrote about a failed fsconfig (fsopen(2)): its last message without the level."""
    words = ""
    while True:
        try:
            words = os.read(context, 1024).decode("utf-8", "replace").strip()[2:]
        except OSError:
            return words


def _tmpfs(tree: Tmpfs, stand_ins: tuple[StandIn, ...]) -> int:
    context = syscalls.fsopen("tmpfs")
    try:
        if tree.size:
            syscalls.fsconfig_string(context, "size", str(tree.size))
        syscalls.fsconfig_string(context, "mode", f"{tree.mode:o}")
        syscalls.fsconfig_create(context)
        mount = syscalls.fsmount(context)
    finally:
        os.close(context)
    for stand_in in stand_ins:
        if stand_in.folder:
            os.mkdir(stand_in.path, stand_in.mode, dir_fd=mount)
        else:
            os.close(os.open(stand_in.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, stand_in.mode, dir_fd=mount))
    return mount
