"""The mechanism `overlay`: where it is refused and why, and what its upper folder starts with."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import rigs
from hostfork.errors import Code, StorageError
from hostfork.storage.contract import KeyStage, Offer, Refusal, Removal, Source
from hostfork.storage.overlay import Overlay
from rigs import Bench, Disk, Person
from storage_cases import DEFAULT, acl, enter_namespaces, mounted, sample, visible, write

STORAGE = Overlay()


def refused(person: Person, source: Source, pool: str) -> Refusal:
    answer = person.call(STORAGE.probe, source, pool)
    assert isinstance(answer, Refusal), answer
    assert os.listdir(pool) == []
    return answer


def test_a_single_file_is_refused(ext4_disk: Disk, person: Person) -> None:
    source, pool = sample(person, ext4_disk)
    assert "single file" in refused(person, Source(f"{source}/small"), pool).reason


def test_host_mounts_beneath_are_a_users_obstacle(ext4_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, ext4_disk)
    below = Source(source, mounts_beneath=(f"{source}/plain",))
    assert f"{source}/plain" in refused(user, below, pool).reason
    own = ext4_disk.folder(root, "rootpool")
    offer = root.call(STORAGE.probe, below, own)
    assert isinstance(offer, Offer)
    assert offer.guarantees.nested_mounts


@pytest.mark.rig("root")
def test_the_kernel_agrees_about_mounts_beneath(ext4_disk: Disk, user: Person) -> None:
    """Fact 3: what is refused would be EINVAL; and it is none for root."""
    source, pool = sample(user, ext4_disk)
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{source}/plain"], check=True)
    try:
        for key in ("k", "again"):
            user.call(STORAGE.prepare, key, Source(source), pool)
        with pytest.raises(OSError, match="Invalid argument"):
            user.call(visible, STORAGE, "k", pool, os.listdir)
    finally:
        rigs.unmount(f"{source}/plain")
    # Not `k`: even a mount that fails late uses up a work folder.
    assert "small" in user.call(visible, STORAGE, "again", pool, os.listdir)


@pytest.mark.parametrize("mark", ["user.overlay.opaque", "trusted.overlay.origin"])
def test_a_layer_of_an_overlay_is_refused(ext4_disk: Disk, root: Person, mark: str) -> None:
    source, pool = sample(root, ext4_disk)
    root.call(os.setxattr, source, mark, b"y")
    assert mark in refused(root, Source(source), pool).reason


def test_a_source_that_cannot_be_read(ext4_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, ext4_disk)
    root.call(lambda: (os.chown(source, 0, 0), os.chmod(source, 0o700)))
    answer = refused(user, Source(source), pool)
    assert source in answer.reason
    assert answer.errno == 13
    with pytest.raises(StorageError) as error:
        user.call(STORAGE.prepare, "k", Source(source), pool)
    assert error.value.code is Code.STORAGE_SOURCE
    assert user.call(STORAGE.keys, pool) == ()


@pytest.fixture
def ramfs(bench: Bench) -> Iterator[str]:
    """A filesystem without user attributes, and none of the usual ones."""
    place = f"{bench.folder}/ramfs"
    os.makedirs(place, exist_ok=True)
    subprocess.run(["mount", "-t", "ramfs", "none", place], check=True)
    os.chmod(place, 0o1777)
    yield place
    rigs.unmount(place)


@pytest.mark.rig("root")
def test_a_pool_without_user_attributes_is_refused(ramfs: str, ext4_disk: Disk, person: Person) -> None:
    source, _ = sample(person, ext4_disk)
    person.call(os.mkdir, f"{ramfs}/pool")
    answer = refused(person, Source(source), f"{ramfs}/pool")
    assert "(ramfs) cannot hold an upper folder: it keeps no user attributes" in answer.reason


@pytest.mark.rig("root")
def test_a_source_on_an_unusual_filesystem_is_tried(ramfs: str, ext4_disk: Disk, person: Person) -> None:
    person.call(os.mkdir, f"{ramfs}/source")
    _, pool = sample(person, ext4_disk)
    assert isinstance(person.call(STORAGE.probe, Source(f"{ramfs}/source"), pool), Offer)
    assert os.listdir(pool) == []


@pytest.mark.rig("root")
def test_where_no_namespace_can_be_made_the_trial_says_so(ramfs: str, ext4_disk: Disk, user: Person) -> None:
    user.call(os.mkdir, f"{ramfs}/source")
    _, pool = sample(user, ext4_disk)
    answer = user.call(STORAGE.probe, Source(f"{ramfs}/source"), pool, namespaces=False)
    assert isinstance(answer, Refusal)
    assert "no namespace can be made" in answer.reason
    assert answer.errno
    assert os.listdir(pool) == []


@pytest.mark.parametrize("userxattr", [True, False])
def test_a_pool_inside_an_overlay_is_refused(ext4_disk: Disk, root: Person, userxattr: bool) -> None:
    """As inside a container: overlayfs does not take an upper folder on itself."""
    source, outer = sample(root, ext4_disk)

    def inside() -> Any:
        STORAGE.prepare("outer", Source(source), outer)
        enter_namespaces()
        tree = STORAGE.mounts("outer", outer)
        if userxattr:
            place = mounted(tree)
        else:
            place = f"{outer}/mounted"
            os.mkdir(place)
            layers = f"lowerdir={source},upperdir={tree.upper},workdir={tree.work}"
            subprocess.run(["mount", "-t", "overlay", "-o", layers, "none", place], check=True)
        os.mkdir(f"{place}/pool", 0o700)
        return STORAGE.probe(Source(source), f"{place}/pool"), os.listdir(f"{place}/pool")

    answer, left = root.call(inside)
    assert isinstance(answer, Refusal), answer
    assert "overlay" in answer.reason
    assert left == []


def test_what_the_kernel_does_not_mount_is_refused_with_its_reason(ext4_disk: Disk, root: Person) -> None:
    """Overlays nest two deep (fact 4); nothing but a trial shows how deep a source is."""
    source, pool = sample(root, ext4_disk)

    def inside() -> Any:
        enter_namespaces()
        below, answers = source, []
        for level in range(3):
            answers.append(STORAGE.probe(Source(below), pool))
            if level < 2:
                STORAGE.prepare(f"{level}", Source(below), pool)
                below = mounted(STORAGE.mounts(f"{level}", pool), f"level-{level}")
        return answers

    first, second, third = root.call(inside)
    assert isinstance(first, Offer)
    assert isinstance(second, Offer)
    assert isinstance(third, Refusal)
    assert "does not mount an overlay over overlay" in third.reason
    assert third.errno
    assert os.listdir(pool) == ["overlay"]


def test_a_read_only_pool_is_refused(ext4_disk: Disk, root: Person) -> None:
    source, pool = sample(root, ext4_disk)

    def inside() -> Any:
        enter_namespaces()
        subprocess.run(["mount", "--bind", pool, pool], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", pool], check=True)
        return STORAGE.probe(Source(source), pool)

    answer = root.call(inside)
    assert isinstance(answer, Refusal)
    assert "a folder cannot be made there" in answer.reason


def test_a_missing_pool_is_refused(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk)
    answer = user.call(STORAGE.probe, Source(source), f"{pool}/nothing")
    assert isinstance(answer, Refusal)
    assert f"{pool}/nothing" in answer.reason


def test_the_top_keeps_its_rights(ext4_disk: Disk, user: Person, root: Person) -> None:
    """Root's folder stays unwritable for a user, with its ACL and times; the fork can still be written below."""
    source, pool = sample(user, ext4_disk)

    def take() -> None:
        os.setxattr(source, DEFAULT, acl(0, 5))
        os.chown(source, 0, 0)
        os.utime(source, ns=(5, 7))

    root.call(take)
    done = user.call(STORAGE.prepare, "k", Source(source), pool)
    assert done.unwritable == ("",)

    def look(tree: str) -> Any:
        write(f"{tree}/plain/new", b"n")
        try:
            write(f"{tree}/new")
        except PermissionError:
            return os.stat(tree).st_mtime_ns, stat.S_IMODE(os.stat(tree).st_mode), os.listxattr(tree)

    # As the command runs: without the capabilities that mounted it.
    def fork() -> Any:
        from hostfork.helper.privileges import drop
        from hostfork.helper.protocol import Identity

        def without(tree: str) -> Any:
            drop(Identity(os.geteuid(), os.getegid()))
            return look(tree)

        return visible(STORAGE, "k", pool, without)

    assert user.call(fork) == (7, 0o555, [DEFAULT])
    assert not os.path.exists(f"{source}/plain/new")


def test_a_lower_file_that_is_gone(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk)
    user.call(STORAGE.prepare, "k", Source(source), pool)
    os.unlink(f"{pool}/overlay/k/lower")
    with pytest.raises(StorageError) as error:
        user.call(STORAGE.mounts, "k", pool)
    assert error.value.code is Code.STORAGE_FAILED
    assert [state.stage for state in user.call(STORAGE.keys, pool)] == [KeyStage.LIVE]
    assert user.call(STORAGE.remove, "k", pool) is Removal.GONE


def test_a_used_volatile_overlay_is_removed(disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)

    def fork() -> Any:
        STORAGE.prepare("k", Source(source), pool)
        visible(STORAGE, "k", pool, lambda tree: os.unlink(f"{tree}/small"))
        return os.path.isdir(f"{pool}/overlay/k/work/work"), STORAGE.usage("k", pool).inodes

    assert person.call(fork) == (True, 2)
    assert person.call(STORAGE.remove, "k", pool) is Removal.GONE
    assert os.listdir(f"{pool}/overlay") == []


@pytest.mark.parametrize("what", ["no-space", "failed"])
@pytest.mark.rig("strace")
def test_errors_of_prepare(ext4_disk: Disk, user: Person, what: str) -> None:
    source, pool = sample(user, ext4_disk)
    program = (
        "import sys\nfrom hostfork.errors import HostforkError\nfrom hostfork.storage.overlay import Overlay\n"
        "from hostfork.storage.contract import Source\ntry:\n Overlay()"
        ".prepare('k', Source(sys.argv[1]), sys.argv[2])\n"
        "except HostforkError as error:\n print(error.code.text)\n"
    )
    number = "ENOSPC" if what == "no-space" else "EIO"
    inject = ["-e", "trace=mkdirat", "-e", f"inject=mkdirat:error={number}"]
    done = user.run(["strace", "-o", "/dev/null", *inject, sys.executable, "-c", program, source, pool])
    assert done.stdout.strip() == f"storage.{what}", done
    assert user.call(STORAGE.keys, pool) == ()
