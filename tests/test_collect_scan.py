"""What counts as a change: single cases from the field, on real overlays and copies."""

import mmap
import os
import shutil
import socket
import stat

import pytest

from collect_rig import OverlayChild, copy_with_manifest, remove
from hostfork.collect.changeset import Change, Changeset
from hostfork.collect.export import export_tree
from hostfork.collect.manifest import StatManifest, StatManifestWriter
from hostfork.collect.scan import compare, full_manifest, scan_layer, scan_tree
from hostfork.errors import CollectError
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind
from rigs import Disk, Person, write_files

AT = "/data/proj"
C, M, D, P, T = (
    ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED, ChangeKind.METADATA, ChangeKind.TYPE
)  # fmt: skip


def short(changes: Changeset) -> list[tuple[str, ChangeKind]]:
    """Relative path and kind of change."""
    return [(change.path[len(AT) + 1 :], change.change) for change in changes.changes]


class Overlaid:
    """A base, an overlay over it, and what happened in it."""

    def __init__(self, folder: str, files: dict[str, str]) -> None:
        self.folder, self.base = folder, f"{folder}/base"
        os.mkdir(self.base)
        write_files(self.base, files)
        self.child = OverlayChild(folder, self.base)

    def scan(self, omit: tuple[str, ...] = ()) -> Changeset:
        """The changes, checked against the reference."""
        found = scan_layer(self.child.upper, self.base, AT, omit)
        after = full_manifest(self.child.seen, omit, True)
        assert found.changes == compare(full_manifest(self.base, omit), after, AT).changes
        return found

    def exported(self) -> list[str]:
        """The paths of the exported final content."""
        out = f"{self.folder}/out"
        export_tree(self.base, self.child.upper, self.scan(), AT, (), out, False)
        found = full_manifest(out)
        remove(out)
        return sorted(found.entries)

    def __enter__(self) -> "Overlaid":
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close()


def _recreate_folder(root: str) -> None:
    shutil.rmtree(f"{root}/d")
    os.mkdir(f"{root}/d")
    write_files(root, {"d/c": "new"})


def _case_2(folder: str) -> None:
    with Overlaid(folder, {"d/a": "a", "d/b": "b", "keep": "k"}) as fork:
        fork.child.call(_recreate_folder, fork.child.merged)
        assert short(fork.scan()) == [("d/a", D), ("d/b", D), ("d/c", C)]
        assert fork.exported() == ["", "d", "d/c", "keep"]


@pytest.mark.rig("user namespaces")
def test_case_2_a_folder_deleted_and_made_again_hides_what_was_in_it(person: Person, disk: Disk) -> None:
    person.call(_case_2, disk.folder(person))


def _replace_secret(root: str) -> None:
    shutil.rmtree(f"{root}/d/s")
    os.mkdir(f"{root}/d/s")


def _case_3(folder: str) -> None:
    with Overlaid(folder, {"d/s/key": "secret", "d/x": "x"}) as fork:
        fork.child.call(_replace_secret, fork.child.merged)
        assert short(fork.scan()) == [("d/s/key", D)]
        assert fork.exported() == ["", "d", "d/s", "d/x"]


@pytest.mark.rig("user namespaces")
def test_case_3_an_opaque_folder_publishes_nothing_of_the_base(person: Person, ext4_disk: Disk) -> None:
    person.call(_case_3, ext4_disk.folder(person))


def _rebuild_folders(root: str) -> None:
    shutil.rmtree(f"{root}/d")
    os.makedirs(f"{root}/d/e/f")
    write_files(root, {"d/new.gen": "", "d/e/new.gen": "", "d/e/f/new.gen": "", "kept/new.gen": ""})


def _rebuilt(folder: str) -> None:
    rules = dict.fromkeys(("d/e/f/.gitignore", "d/.gitignore", "kept/.ignore"), "*.gen\n")
    files = {"d/e/f/g": "", "d/e/h": "", **rules}
    with Overlaid(folder, files) as fork:
        fork.child.call(_rebuild_folders, fork.child.merged)
        changes = fork.scan()
        assert short(changes) == [
            ("d/.gitignore", D),
            ("d/e/f/.gitignore", D),
            ("d/e/f/g", D),
            ("d/e/f/new.gen", C),
            ("d/e/h", D),
            ("d/e/new.gen", C),
            ("d/new.gen", C),
            ("kept/new.gen", C),
        ]
        generated = [c.path[len(AT) + 1 :] for c in changes.changes if c.class_ is ChangeClass.GENERATED]
        assert generated == ["kept/new.gen"]  # the other ignore files do not show through any more
        assert fork.exported() == [
            "", "d", "d/e", "d/e/f", "d/e/f/new.gen", "d/e/new.gen", "d/new.gen", "kept", "kept/.ignore",
            "kept/new.gen",
        ]  # fmt: skip


@pytest.mark.rig("user namespaces")
def test_folders_inside_an_opaque_folder_hide_the_base_too(person: Person, ext4_disk: Disk) -> None:
    person.call(_rebuilt, ext4_disk.folder(person))


def _remove_folder(root: str) -> None:
    shutil.rmtree(f"{root}/d")


def _whole_folder(folder: str) -> None:
    with Overlaid(folder, {"d/a": "a", "d/e/f": "f", "x": ""}) as fork:
        fork.child.call(_remove_folder, fork.child.merged)
        assert short(fork.scan()) == [("d", D), ("d/a", D), ("d/e", D), ("d/e/f", D)]
        assert short(fork.scan(("d/e",))) == [("d", D), ("d/a", D)]


@pytest.mark.rig("user namespaces")
def test_a_deleted_folder_gives_everything_in_it(person: Person, ext4_disk: Disk) -> None:
    person.call(_whole_folder, ext4_disk.folder(person))


def test_a_folder_that_is_gone_or_another_kind(tmp_path: os.PathLike[str]) -> None:
    fork = Copied(str(tmp_path), {"d/a": "", "d/e/f": "", "t/a/b": ""})
    shutil.rmtree(f"{fork.copy}/d")
    shutil.rmtree(f"{fork.copy}/t")
    write_files(fork.copy, {"t": "a file"})
    wanted = [("d", D), ("d/a", D), ("d/e", D), ("d/e/f", D), ("t", T), ("t/a", D), ("t/a/b", D)]
    assert short(fork.scan()) == wanted
    write_files(str(tmp_path), {"upper/t": "a file"})
    assert short(scan_layer(f"{tmp_path}/upper", fork.base, AT)) == wanted[4:]


def test_whiteouts_as_marked_files_delete(tmp_path: os.PathLike[str]) -> None:
    base, upper = f"{tmp_path}/base", f"{tmp_path}/upper"
    write_files(base, {"gone": "g", "kept": "", "sub/x": ""})
    write_files(upper, {"gone": "", "kept": "", "sub/x": ""})
    os.setxattr(upper, "user.overlay.opaque", b"x")
    os.setxattr(f"{upper}/gone", "user.overlay.whiteout", b"")
    os.setxattr(f"{upper}/sub/x", "user.overlay.whiteout", b"")  # its folder is not marked: an ordinary empty file
    assert short(scan_layer(upper, base, AT)) == [("gone", D)]


def test_an_overlay_with_other_options_is_refused(tmp_path: os.PathLike[str]) -> None:
    base, upper = f"{tmp_path}/base", f"{tmp_path}/upper"
    write_files(base, {"d/": ""})
    write_files(upper, {"d/": ""})
    os.setxattr(f"{upper}/d", "user.overlay.redirect", b"/e")
    with pytest.raises(CollectError, match="other options") as caught:
        scan_layer(upper, base, AT)
    assert caught.value.path == f"{AT}/d"


class Copied:
    """A base and a copy of it with its manifest."""

    def __init__(self, folder: str, files: dict[str, str]) -> None:
        self.base, self.copy = f"{folder}/base", f"{folder}/copy"
        os.mkdir(self.base)
        write_files(self.base, files)
        copy_with_manifest(self.base, self.copy, f"{folder}/manifest")
        self.manifest = StatManifest.load(f"{folder}/manifest")

    def scan(self, omit: tuple[str, ...] = ()) -> Changeset:
        """The changes."""
        return scan_tree(self.copy, self.manifest, self.base, AT, omit)


def test_touched_and_rewritten_files_are_no_change(tmp_path: os.PathLike[str]) -> None:
    fork = Copied(str(tmp_path), {"a": "one", "b": "two", "c": "three"})
    os.utime(f"{fork.copy}/a")
    write_files(fork.copy, {"b": "two"})
    os.unlink(f"{fork.copy}/c")
    write_files(fork.copy, {"c": "three"})
    assert fork.scan().changes == ()


def test_a_write_in_the_tick_of_the_copy_is_found(tmp_path: os.PathLike[str]) -> None:
    base, copy = f"{tmp_path}/base", f"{tmp_path}/copy"
    write_files(base, {"a": "one"})
    shutil.copytree(base, copy)
    source = os.lstat(f"{base}/a")
    with StatManifestWriter(f"{tmp_path}/manifest") as writer:
        writer.witness(b"", os.lstat(base), os.lstat(copy))
        # The stat that a write in the same tick would leave behind: nothing in it differs.
        write_files(copy, {"a": "two"})
        writer.witness(b"a", source, os.lstat(f"{copy}/a"))
    found = scan_tree(copy, StatManifest.load(f"{tmp_path}/manifest"), base, AT)
    assert short(found) == [("a", M)]
    os.utime(f"{base}/a")  # nothing left to compare with: the stat is believed
    assert short(scan_tree(copy, StatManifest.load(f"{tmp_path}/manifest"), base, AT)) == []


def test_a_source_that_changed_leaves_no_base(tmp_path: os.PathLike[str]) -> None:
    fork = Copied(str(tmp_path), {"a": "one", "b": "two", "c": "c", "d": "d", "same": "s", "dir/x": ""})
    os.symlink("here", f"{fork.base}/dir/new-on-the-host")
    for name in ("a", "b"):
        write_files(fork.base, {name: "host"})
    os.unlink(f"{fork.base}/c")
    os.utime(f"{fork.copy}/a")
    os.unlink(f"{fork.copy}/b")
    os.chmod(f"{fork.copy}/c", 0o700)
    write_files(fork.copy, {"d": "fork", "dir/y": ""})
    found = {change.path: change for change in fork.scan().changes}
    gone = {path: (change.change, change.base_gone) for path, change in found.items()}
    assert gone == {
        f"{AT}/a": (M, True),
        f"{AT}/b": (D, True),
        f"{AT}/c": (M, True),
        f"{AT}/d": (M, False),
        f"{AT}/dir/y": (C, False),
    }
    assert found[f"{AT}/c"].fields == ("mode",)


def test_a_folder_whose_source_changed_is_compared_by_what_is_known(tmp_path: os.PathLike[str]) -> None:
    fork = Copied(str(tmp_path), {"d/x": "", "e/x": "", "f/x": ""})
    for name in ("d", "e"):
        write_files(fork.base, {f"{name}/host": ""})
    os.chmod(f"{fork.copy}/d", 0o700)
    os.setxattr(f"{fork.copy}/e", "user.test", b"1")
    shutil.rmtree(f"{fork.base}/f")
    os.utime(f"{fork.copy}/f")
    changes = fork.scan().changes
    assert [(change.path, change.change, change.fields) for change in changes] == [
        (f"{AT}/d", P, ("mode",)),
        (f"{AT}/e", P, ("xattrs",)),
    ]


def test_every_kind_and_type(tmp_path: os.PathLike[str]) -> None:
    fork = Copied(str(tmp_path), {"file": "f", "folder/in": "", "other": "o", "hard": "h"})
    os.mkfifo(f"{fork.copy}/fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{fork.copy}/server")
    os.link(f"{fork.copy}/hard", f"{fork.copy}/hard2")
    os.unlink(f"{fork.copy}/file")
    os.symlink("nowhere", f"{fork.copy}/file")
    shutil.rmtree(f"{fork.copy}/folder")
    write_files(fork.copy, {"folder": "now a file"})
    os.unlink(f"{fork.copy}/other")
    write_files(fork.copy, {"other/in": ""})
    changes = fork.scan().changes
    assert [(c.path[len(AT) + 1 :], c.change, c.was, c.kind, c.size) for c in changes] == [
        ("fifo", C, None, EntryKind.FIFO, None),
        ("file", T, EntryKind.FILE, EntryKind.SYMLINK, 7),
        ("folder", T, EntryKind.FOLDER, EntryKind.FILE, 10),
        ("folder/in", D, EntryKind.FILE, EntryKind.FILE, None),
        ("hard2", C, None, EntryKind.FILE, 1),
        ("other", T, EntryKind.FILE, EntryKind.FOLDER, None),
        ("other/in", C, None, EntryKind.FILE, 0),
        ("server", C, None, EntryKind.SOCKET, None),
    ]
    assert changes[1].target == "nowhere"
    assert changes[-1].class_ is ChangeClass.RUNTIME


@pytest.mark.rig("root")
def test_devices_and_owners(tmp_path: os.PathLike[str]) -> None:
    fork = Copied(str(tmp_path), {"a": "one"})
    os.chown(f"{fork.copy}/a", 1234, 1234)
    os.mknod(f"{fork.copy}/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(f"{fork.copy}/disk", 0o666 | stat.S_IFBLK, os.makedev(7, 200))
    assert [(c.path[len(AT) + 1 :], c.change, c.kind, c.fields) for c in fork.scan().changes] == [
        ("a", P, EntryKind.FILE, ("owner",)),
        ("disk", C, EntryKind.BLOCK_DEVICE, ()),
        ("null", C, EntryKind.CHARACTER_DEVICE, ()),
    ]


def test_a_private_file(tmp_path: os.PathLike[str]) -> None:
    write_files(str(tmp_path), {"one": "1"})
    copy_with_manifest(f"{tmp_path}/one", f"{tmp_path}/copy", f"{tmp_path}/manifest")
    manifest = StatManifest.load(f"{tmp_path}/manifest")
    assert scan_tree(f"{tmp_path}/copy", manifest, f"{tmp_path}/one", AT).changes == ()
    write_files(str(tmp_path), {"copy": "2"})
    found = scan_tree(f"{tmp_path}/copy", manifest, f"{tmp_path}/one", AT)
    assert found.changes == (
        Change(AT, M, EntryKind.FILE, EntryKind.FILE, 1, 1, 0o644, 0o644, None),
    )  # fmt: skip
    before, after = full_manifest(f"{tmp_path}/one"), full_manifest(f"{tmp_path}/copy")
    assert compare(before, after, AT) == found


def test_what_is_left_out_by_name(tmp_path: os.PathLike[str]) -> None:
    fork = Copied(str(tmp_path), {"a": "1", "d/cover/in": "1", "d/e": "1"})
    write_files(fork.copy, {"a": "2", "d/cover/in": "2", "d/cover/new": "", "d/e": "2", "sock": ""})
    assert short(fork.scan(("d/cover", "sock"))) == [("a", M), ("d/e", M)]
    shutil.rmtree(f"{fork.copy}/d/cover")
    assert short(fork.scan(("d/cover", "sock"))) == [("a", M), ("d/e", M)]


def test_a_write_through_a_mapping_is_found(root: Person, disk: Disk) -> None:
    fork = Copied(disk.folder(root), {"a": "one", "b": "two"})
    with open(f"{fork.copy}/a", "r+b") as file, mmap.mmap(file.fileno(), 3) as mapped:
        mapped[0:3] = b"new"
    assert short(fork.scan()) == [("a", M)]


def test_hard_links_are_known_but_no_change(tmp_path: os.PathLike[str]) -> None:
    write_files(str(tmp_path), {"t/a": "1", "t/c": "2"})
    os.link(f"{tmp_path}/t/a", f"{tmp_path}/t/b")
    before = full_manifest(f"{tmp_path}/t")
    assert before.hard_links() == (("a", "b"),)
    os.unlink(f"{tmp_path}/t/b")
    write_files(str(tmp_path), {"t/b": "1"})
    after = full_manifest(f"{tmp_path}/t")
    assert after.hard_links() == ()
    assert compare(before, after, AT).changes == ()


def test_missing_trees_are_typed_errors(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(CollectError, match="cannot be opened") as caught:
        full_manifest(f"{tmp_path}/nothing")
    assert caught.value.errno == 2
    with pytest.raises(CollectError):
        scan_layer(f"{tmp_path}/upper", f"{tmp_path}", AT)


def _closed(folder: str) -> None:
    fork = Copied(folder, {"a": "one", "d/x": "1", "e/y": "1"})
    write_files(fork.copy, {"a": "two", "d/x": "2", "e/z": "new"})
    os.chmod(f"{fork.copy}/a", 0)
    os.chmod(f"{fork.copy}/d", 0)
    os.chmod(f"{fork.copy}/e", 0o400)
    assert short(fork.scan()) == [("a", M), ("d", P), ("d/x", M), ("e", P), ("e/z", C)]
    modes = [stat.S_IMODE(os.lstat(f"{fork.copy}/{name}").st_mode) for name in ("a", "d", "e")]
    assert modes == [0, 0, 0o400]
    with pytest.raises(CollectError) as caught:
        full_manifest(fork.copy)  # somebody else's tree is never opened by force
    assert caught.value.errno == 13


def _closed_root(folder: str) -> None:
    fork = Copied(folder, {".gitignore": "*.gen\n", "a": "one"})
    os.setxattr(f"{fork.base}/a", "user.test", b"1")
    write_files(fork.copy, {"a": "two", "b.gen": ""})
    write_files(folder, {"upper/b.gen": "", "upper/a": "two"})
    os.setxattr(f"{folder}/upper/a", "user.test", b"1")
    for name in ("copy/a", "copy", "upper/a", "upper"):
        os.chmod(f"{folder}/{name}", 0)
    for changes in (fork.scan().changes, scan_layer(f"{folder}/upper", fork.base, AT).changes):
        found = [(c.path[len(AT) + 1 :], c.change, c.mode, c.class_) for c in changes]
        assert found == [
            ("", P, 0, ChangeClass.SOURCE),
            ("a", M, 0, ChangeClass.SOURCE),
            ("b.gen", C, 0o644, ChangeClass.GENERATED),
        ]
    assert changes[1].fields == ("mode",)  # the attribute behind the closed mode is the base's
    assert stat.S_IMODE(os.lstat(fork.copy).st_mode) == 0


def test_a_private_folder_that_the_fork_closed(user: Person, ext4_disk: Disk) -> None:
    user.call(_closed_root, ext4_disk.folder(user))


def test_what_the_fork_closed_to_its_owner_is_read_and_left_so(user: Person, ext4_disk: Disk) -> None:
    user.call(_closed, ext4_disk.folder(user))


@pytest.mark.rig("root")
def test_a_base_that_cannot_be_read_is_said_to_be_gone(user: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(user)
    write_files(folder, {"base/secret": "abc", "upper/secret": "xyz", "base/closed/in": "", "upper/closed/": ""})
    os.chown(f"{folder}/upper/secret", user.uid, user.gid)
    os.chown(f"{folder}/base/secret", user.uid + 1, user.gid)
    os.chmod(f"{folder}/base/secret", 0o600)
    os.chmod(f"{folder}/base/closed", 0o700)
    os.chmod(f"{folder}/upper/closed", 0o700)
    os.chown(f"{folder}/base/closed", user.uid, user.gid)
    os.chown(f"{folder}/upper/closed", user.uid, user.gid)
    os.chmod(f"{folder}/upper/secret", 0o600)
    os.chown(f"{folder}/upper/secret", user.uid, user.gid)
    found = user.call(scan_layer, f"{folder}/upper", f"{folder}/base", AT)
    secret = [c for c in found.changes if c.path.endswith("secret")]
    assert [(c.change, c.base_gone) for c in secret] == [(M, True)]
    assert len(found.changes) == 1
