"""An overlay over a frozen snapshot: independent of the source, nested subvolumes in it, removal, death."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.errors import Code, StorageError
from hostfork.storage.choose import choose, storage_of
from hostfork.storage.contract import KeyStage, Layer, Offer, Refusal, Removal, Source
from hostfork.storage.frozen import Frozen
from hostfork.vocabulary import BaseContent, Guarantee, Mechanism, StorageKind
from rigs import Disk, Person
from storage_cases import facts, make_subvolume, sample, visible, write

STORAGE = Frozen()


def test_it_is_what_overlay_by_name_means(btrfs_disk: Disk, ext4_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    choice = person.call(choose, Source(source), pool, Mechanism.OVERLAY)
    assert choice.offer is not None
    kept = choice.offer.guarantees
    assert (choice.offer.mechanism, kept.guarantee) == (Mechanism.OVERLAY, Guarantee.SNAPSHOT)
    assert (kept.base_content, kept.elsewhere, kept.nested_mounts) == (BaseContent.KEPT, False, True)
    assert (kept.folder_rename, kept.hard_links, kept.native_watchers) == (False, False, False)
    assert kept.foreign_owners is (person.uid == 0)
    assert choice.offer.kind is StorageKind.FROZEN
    assert isinstance(storage_of(StorageKind.FROZEN), Frozen)
    other, other_pool = sample(person, ext4_disk)
    choice = person.call(choose, Source(other), other_pool, Mechanism.OVERLAY)
    assert choice.offer is not None
    assert choice.offer.kind is StorageKind.RETAINED
    assert "nothing frozen to lie over" in choice.refused[0].reason
    assert ":live" in choice.refused[0].reason


def test_host_mounts_beneath_are_no_obstacle(btrfs_disk: Disk, user: Person) -> None:
    source, pool = sample(user, btrfs_disk)
    answer = user.call(STORAGE.probe, Source(source, mounts_beneath=(f"{source}/plain",)), pool)
    assert isinstance(answer, Offer)


def test_a_single_file_is_refused(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    answer = person.call(STORAGE.probe, Source(f"{source}/small"), pool)
    assert isinstance(answer, Refusal)
    assert "single file" in answer.reason
    assert os.listdir(pool) == []


def test_a_layer_of_an_overlay_is_refused(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    person.call(os.setxattr, source, "user.overlay.opaque", b"y")
    answer = person.call(STORAGE.probe, Source(source), pool)
    assert isinstance(answer, Refusal)
    assert "user.overlay.opaque" in answer.reason


def test_what_the_host_writes_later_does_not_show(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    before = person.call(facts, source)

    def life() -> Any:
        STORAGE.prepare("k", Source(source), pool)
        write(f"{source}/small", b"the host's")
        os.unlink(f"{source}/two")
        content = STORAGE.content("k", pool)
        return content, facts(content.lowers[0]), visible(STORAGE, "k", pool, facts)

    content, base, seen = person.call(life)
    assert content == Layer(
        os.path.realpath(f"{pool}/frozen/k/layers/upper"), (os.path.realpath(f"{pool}/frozen/k/base/source"),)
    )
    assert base == before
    assert {name: fact[:7] for name, fact in seen.items()} == {name: fact[:7] for name, fact in before.items()}


def nest(source: str) -> None:
    for path in ("plain/in", "plain/in/deep"):
        make_subvolume(f"{source}/{path}")
        write(f"{source}/{path}/file", path.encode())


def test_nested_subvolumes_are_written_through_the_overlay(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    person.call(nest, source)

    def change(tree: str) -> Any:
        with open(f"{tree}/plain/in/deep/file", "ab") as file:
            file.write(b", changed")
        os.unlink(f"{tree}/plain/in/file")
        with open(f"{tree}/plain/in/deep/file", "rb") as file:
            return file.read(), sorted(os.listdir(f"{tree}/plain/in"))

    def fork() -> Any:
        offer = STORAGE.probe(Source(source), pool)
        STORAGE.prepare("k", Source(source), pool)
        return offer, visible(STORAGE, "k", pool, change)

    offer, seen = person.call(fork)
    assert offer.guarantees.guarantee is Guarantee.INDEPENDENT
    assert seen == (b"plain/in/deep, changed", ["deep"])
    upper = f"{pool}/frozen/k/upper/plain/in"
    with open(f"{upper}/deep/file", "rb") as file:
        assert file.read() == b"plain/in/deep, changed"
    with open(f"{source}/plain/in/file", "rb") as file:
        assert file.read() == b"plain/in"
    with pytest.raises(OSError, match="Read-only"):
        write(f"{pool}/frozen/k/base/source/plain/in/deep/new")
    person.call(STORAGE.remove, "k", pool)
    assert person.call(STORAGE.keys, pool) == ()


def test_usage_is_what_changed(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)

    def life() -> Any:
        STORAGE.prepare("k", Source(source), pool)
        before = STORAGE.usage("k", pool)
        visible(STORAGE, "k", pool, lambda tree: write(f"{tree}/new", b"x" * 40960))
        return before, STORAGE.usage("k", pool), STORAGE.touched("k", pool)

    before, after, touched = person.call(life)
    assert after.bytes - before.bytes == 40960
    assert not after.upper_bound
    assert touched is None


def test_removal_says_what_the_kernel_still_does(make_disk: Callable[..., Disk], person: Person) -> None:
    source, pool = sample(person, make_disk("btrfs"))
    person.call(STORAGE.prepare, "k", Source(source), pool)
    expected = Removal.RECLAIMING if person.uid == 0 else Removal.GONE
    assert person.call(STORAGE.remove, "k", pool) is expected
    assert person.call(STORAGE.remove, "k", pool) is Removal.GONE


def test_a_source_that_went_away(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    with pytest.raises(StorageError) as error:
        person.call(STORAGE.prepare, "k", Source(f"{source}/nothing"), pool)
    assert error.value.code is Code.STORAGE_SOURCE
    answer = person.call(STORAGE.probe, Source(f"{source}/nothing"), pool)
    assert isinstance(answer, Refusal)
    assert answer.errno == 2


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["ioctl", "mkdir", "symlink", "rename"])
@pytest.mark.parametrize("when", [1, 3, 8, 12])
def test_sigkill_leaves_only_what_keys_reports(btrfs_disk: Disk, person: Person, call: str, when: int) -> None:
    source, pool = sample(person, btrfs_disk)
    person.call(nest, source)
    program = (
        "import sys\nfrom hostfork.storage.frozen import Frozen\nfrom hostfork.storage.contract import Source\n"
        "source, pool = sys.argv[1:]\nfrozen = Frozen()\nfrozen.prepare('k', Source(source), pool)\n"
        "frozen.remove('k', pool)\n"
    )
    calls = {"mkdir": "mkdir,mkdirat", "rename": "rename,renameat,renameat2", "symlink": "symlink,symlinkat"}
    names = calls.get(call, call)
    inject = f"inject={names}:signal=SIGKILL:when={when}"
    command = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={names}", "-e", inject, sys.executable, "-c", program]
    done = person.run([*command, source, pool])
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, 0), done
    states = person.call(STORAGE.keys, pool)
    assert [state.key for state in states] in ([], ["k"])
    if states and states[0].stage is KeyStage.LIVE:
        assert person.call(facts, person.call(STORAGE.content, "k", pool).lowers[0]) == person.call(facts, source)
    person.call(STORAGE.remove, "k", pool)
    assert person.call(STORAGE.keys, pool) == ()
