"""Checkpoints below forks: manifests, objects, capturing a tree and making it again, damage, what nobody needs."""

import os
import stat
from collections.abc import Callable

import pytest

from hostfork.checkpoint.capture import Held, Moved, capture
from hostfork.checkpoint.conform import conform
from hostfork.checkpoint.known import Known
from hostfork.checkpoint.objects import Intake, Objects
from hostfork.checkpoint.store import Checkpoints, Fault
from hostfork.checkpoint.tree import Row, Tree, TreeManifest, deleted, in_order
from hostfork.collect.changeset import Changeset
from hostfork.errors import CheckpointError, Code
from rigs import Disk, Person, write_files
from storage_cases import build, facts

NOTHING = Changeset(())


def seen(path: str) -> dict[bytes, tuple[object, ...]]:
    """All that a manifest holds of a tree, read by other code: everything but the flags of chattr(1)."""
    return {name: tuple(_without_flags(fact) for fact in found) for name, found in facts(path).items()}


def _without_flags(fact: object) -> object:
    return {name: value for name, value in fact.items() if name != "flags"} if isinstance(fact, dict) else fact


def captured(pool: str, held: Held, changes: Changeset = NOTHING, known: Known | None = None) -> Tree:
    with Intake(Objects(pool)) as intake:
        return capture(held, changes, intake, known or Known(0))


def made(pool: str, tree: Tree, place: str, omit: tuple[str, ...] = (), layer: bool = False) -> None:
    folder = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = conform(folder, os.path.basename(place), tree.rows, Objects(pool), Known(0), omit, layer)
        assert done.incomplete == ()
    finally:
        os.close(folder)


def test_a_manifest_of_any_names_comes_back_as_it_was_and_is_the_same_for_the_same_content() -> None:
    rows = in_order(
        [
            Row("a-b", stat.S_IFLNK | 0o777, 1, 2, -5, 3, 0, None, True, False, None, b"x\ny", ()),
            Row("a/\udcff\n", stat.S_IFREG | 0o644, 0, 0, 1 << 62, 9, 0, bytes(32), False, False, None, b"", ()),
            Row("a", stat.S_IFDIR | 0o2755, 0, 0, 7, 0, 0, None, False, True, None, b"",
                (("user.\udcfe=,", b"\0, "), ("user.a", b""))),
            Row("a/z", stat.S_IFREG | 0o644, 0, 0, 1, 9, 0, None, True, False, "a/\udcff\n", b"", ()),
            Row("dev", stat.S_IFCHR | 0o600, 0, 0, 1, 0, 259, None, True, False, None, b"", ()),
            deleted("old\0"[:-1]),
        ]
    )  # fmt: skip
    assert [row.path for row in rows] == ["a", "a/z", "a/\udcff\n", "a-b", "dev", "old"]
    one = TreeManifest((Tree("/p", "base", False, ("x\n",), rows), Tree("/q", "", True, (), ())))
    assert TreeManifest.parse(one.dump()) == one
    assert TreeManifest.parse(TreeManifest(()).dump()) == TreeManifest(())
    content = one.dump()
    for broken in (b"", content[1:], content[:-1], content.replace(b"T whole", b"T other")):
        with pytest.raises(ValueError, match=r"."):
            TreeManifest.parse(broken)


def _made_again(folder: str) -> None:
    pool, tree, copy = f"{folder}/pool", f"{folder}/tree", f"{folder}/copy"
    os.mkdir(pool)
    os.mkdir(tree)
    build(tree)
    before = seen(tree)
    taken = captured(pool, Held("/p", tree, "", whole=True))
    assert seen(tree) == before
    made(pool, taken, copy)
    assert seen(copy) == before
    assert captured(pool, Held("/p", copy, "", whole=True)) == taken
    # Over what is there, whatever that is; what is equal is not touched.
    untouched = os.stat(f"{copy}/plain").st_ctime_ns if os.path.exists(f"{copy}/plain") else None
    write_files(copy, {"new/file": "x"})
    made(pool, taken, copy)
    assert seen(copy) == before
    if untouched is not None:
        assert os.stat(f"{copy}/plain").st_ctime_ns == untouched


def test_a_tree_of_everything_is_made_again_as_it_was(person: Person, disk: Disk) -> None:
    person.call(_made_again, disk.folder(person))


def _over_anything(folder: str) -> None:
    pool, one, other = f"{folder}/pool", f"{folder}/one", f"{folder}/other"
    os.mkdir(pool)
    write_files(one, {"a/f": "1", "b": "2", "c/d/e": "3", "same": "s", "x": "linked"})
    os.link(f"{one}/x", f"{one}/y")
    os.symlink("b", f"{one}/link")
    os.chmod(f"{one}/a", 0o555)
    write_files(other, {"a": "file", "b/deep/f": "folder", "link/f": "x", "c/gone": "", "same": "s", "y": "apart"})
    os.link(f"{other}/same", f"{other}/extra")
    os.mkdir(f"{other}/x")
    taken = {name: captured(pool, Held("/p", f"{folder}/{name}", "", whole=True)) for name in ("one", "other")}
    for name in ("one", "other", "one"):
        made(pool, taken[name], f"{folder}/work")
        assert captured(pool, Held("/p", f"{folder}/work", "", whole=True)) == taken[name]
        assert seen(f"{folder}/work") == seen(f"{folder}/{name}")
    os.chmod(f"{one}/a", 0o755)
    made(pool, Tree("/p", "", True, (), ()), f"{folder}/work")
    assert not os.path.lexists(f"{folder}/work")


def test_anything_is_made_of_anything_else(person: Person, ext4_disk: Disk) -> None:
    person.call(_over_anything, ext4_disk.folder(person))


def _left_out(folder: str) -> None:
    pool, tree = f"{folder}/pool", f"{folder}/tree"
    os.mkdir(pool)
    write_files(tree, {"kept/secret/f": "1", "kept/other": "2", "f": "3"})
    taken = captured(pool, Held("/p", tree, "", ("kept/secret",), whole=True))
    assert [row.path for row in taken.rows] == ["", "f", "kept", "kept/other"]
    assert taken.omit == ("kept/secret",)
    write_files(tree, {"kept/more": "x", "f": "changed"})
    made(pool, taken, tree, taken.omit)
    assert sorted(os.listdir(f"{tree}/kept")) == ["other", "secret"]
    assert os.stat(f"{tree}/kept/secret/f").st_size == 1
    gone = Tree("/p", "", True, taken.omit, tuple(row for row in taken.rows if not row.path.startswith("kept")))
    made(pool, gone, tree, taken.omit)
    assert os.listdir(f"{tree}/kept") == ["secret"]


def test_what_capture_left_out_no_restore_removes(person: Person, ext4_disk: Disk) -> None:
    person.call(_left_out, ext4_disk.folder(person))


def _stored_once(folder: str) -> None:
    pool, tree = f"{folder}/pool", f"{folder}/tree"
    os.mkdir(pool)
    write_files(tree, {"a": "same" * 5000, "b": "same" * 5000, "c": "other"})
    with Intake(Objects(pool)) as intake:
        first = capture(Held("/p", tree, "", whole=True), NOTHING, intake, Known(0))
        assert intake.new == 2
    known = Known(1 << 62)
    with Intake(Objects(pool)) as intake:
        assert capture(Held("/p", tree, "", whole=True), NOTHING, intake, known) == first
        assert intake.new == 0
    assert len(known.found) == 3
    # What is known is not read again, only looked for.
    os.unlink(Objects(pool).path(first.rows[3].digest or b""))
    with Intake(Objects(pool)) as intake:
        assert capture(Held("/p", tree, "", whole=True), NOTHING, intake, Known(0, known.found)) == first
        assert intake.new == 1
    # Too young to be known: a later write may leave the same stamps.
    assert Known(0).found == {}
    assert {len(name) for _, name in Objects(pool).all()} == {64}


def test_each_content_is_stored_once_and_what_is_known_is_not_read(person: Person, ext4_disk: Disk) -> None:
    person.call(_stored_once, ext4_disk.folder(person))


def _written_meanwhile(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, tree = f"{folder}/pool", f"{folder}/tree"
    os.mkdir(pool)
    write_files(tree, {"a": "1", "b": "2"})
    taking = Intake.take
    acts: dict[str, Callable[[], object]] = {
        "a": lambda: write_files(tree, {"a": "more"}),
        "": lambda: write_files(tree, {"new": ""}),
        "b": lambda: os.chmod(f"{tree}/b", 0o600),
    }
    for path, act in acts.items():
        done: list[int] = []

        def take(self: Intake, file: int, act: Callable[[], object] = act, done: list[int] = done) -> bytes:
            digest = taking(self, file)
            done.append(1)
            if len(done) == 2:  # the first was read already
                act()
            return digest

        monkeypatch.setattr(Intake, "take", take)
        with pytest.raises(Moved) as raised:
            captured(pool, Held("/p", tree, "", whole=True))
        assert raised.value.path == (f"/p/{path}" if path else "/p")
        monkeypatch.setattr(Intake, "take", taking)
        captured(pool, Held("/p", tree, "", whole=True))


def test_what_is_written_while_it_is_looked_at_is_named(
    user: Person, ext4_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.call(_written_meanwhile, ext4_disk.folder(user), monkeypatch)


def _verified(folder: str) -> None:
    pool, tree = f"{folder}/pool", f"{folder}/tree"
    os.mkdir(pool)
    write_files(tree, {f"f{number}": f"content {number}" for number in range(8)})
    store, ids = Checkpoints(pool), []
    with store.held():
        for number in range(2):
            write_files(tree, {"f0": f"new {number}"})
            taken = captured(pool, Held("/p", tree, "", whole=True))
            ids.append(store.put(TreeManifest((taken,)), NOTHING))
            assert store.put(TreeManifest((taken,)), NOTHING) == ids[-1]
    objects, _, damage = store.verify(ids)
    assert (objects, damage) == (9, ())
    rows = {row.path: row for row in store.manifest(ids[0]).of("/p").rows}
    changed, missing = (store.objects.path(rows[name].digest or b"") for name in ("f1", "f2"))
    os.chmod(changed, 0o600)
    with open(changed, "r+b") as file:
        file.write(b"X")
    os.unlink(missing)
    damage = store.verify(ids)[2]
    assert {(one.path, one.fault) for one in damage} == {(changed, Fault.CONTENT), (missing, Fault.MISSING)}
    assert all(one.checkpoints == tuple(ids) for one in damage)
    assert sorted(one.files for one in damage) == [("/p/f1",), ("/p/f2",)]
    with pytest.raises(CheckpointError) as raised:
        made(pool, store.manifest(ids[0]).of("/p"), f"{folder}/again")
    assert raised.value.code is Code.CHECKPOINT_DAMAGED
    manifest = f"{pool}/checkpoints/trees/{ids[1]}/manifest"
    with open(manifest, "ab") as file:
        file.write(b"x")
    assert Fault.CONTENT in [one.fault for one in store.verify(ids)[2] if one.path == manifest]


def test_every_damaged_or_missing_piece_is_found(person: Person, ext4_disk: Disk) -> None:
    person.call(_verified, ext4_disk.folder(person))


def _collected(folder: str) -> None:
    pool, tree = f"{folder}/pool", f"{folder}/tree"
    os.mkdir(pool)
    store, ids = Checkpoints(pool), []
    assert store.gc(lambda: ()).objects == 0
    for number in range(2):
        write_files(tree, {"f": f"{number}", "same": "s"})
        with store.held():
            ids.append(store.put(TreeManifest((captured(pool, Held("/p", tree, "", whole=True)),)), NOTHING))
            assert Checkpoints(pool).gc(lambda: ()).busy
    write_files(pool, {"checkpoints/objects/new-1-ab-0": "left", "checkpoints/trees/new-1-ab/manifest": "left"})
    done = store.gc(lambda: ids[1:])
    assert (done.trees, done.objects, done.busy) == (1, 2, False)
    assert os.listdir(f"{pool}/checkpoints/trees") == ids[1:]
    assert Checkpoints(pool).verify(ids[1:])[2] == ()
    # What a damaged manifest needs is not known: nothing goes.
    open(f"{pool}/checkpoints/trees/{ids[1]}/manifest", "w").close()
    assert store.gc(lambda: ids[1:]).objects == 0
    assert store.gc(lambda: ()).objects == 2
    assert list(store.objects.all()) == []


def test_what_no_checkpoint_needs_is_removed_and_never_beside_a_writer(person: Person, ext4_disk: Disk) -> None:
    person.call(_collected, ext4_disk.folder(person))
