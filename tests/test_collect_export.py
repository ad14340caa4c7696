"""Exports: whole or not at all, with all metadata, and never anywhere but in the destination."""

import ctypes
import io
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tarfile
import time
from collections.abc import Callable

import pytest

from collect_rig import content, copy_with_manifest, reduced
from hostfork.collect.changeset import Changeset
from hostfork.collect.copying import _copy_range
from hostfork.collect.export import Part, export_changes, export_tar, export_tree
from hostfork.collect.manifest import StatManifest
from hostfork.collect.scan import full_manifest, scan_layer, scan_tree
from hostfork.errors import Code, CollectError
from rigs import Disk, Person, write_files

AT = "/data/proj"
NONE = Changeset(())


class Fork:
    """A copied fork; `delta` is what is left of it when it was reduced."""

    def __init__(self, folder: str, files: dict[str, str], change: Callable[[str], None]) -> None:
        self.folder, self.base, self.copy, self.delta = folder, f"{folder}/base", f"{folder}/copy", f"{folder}/delta"
        write_files(self.base, files)
        copy_with_manifest(self.base, self.copy, f"{folder}/manifest")
        self.manifest = StatManifest.load(f"{folder}/manifest")
        change(self.copy)
        self.changes = scan_tree(self.copy, self.manifest, self.base, AT)
        reduced(self.copy, self.changes, AT, self.delta)
        self.out = f"{folder}/out"

    def export(self, omit: tuple[str, ...] = (), special: bool = False) -> tuple[str, ...]:
        """The reduced fork's final content."""
        return export_tree(
            self.base, self.delta, self.changes, AT, omit, self.out, False, self.manifest, special=special
        )

    def part(self, prefix: str = "") -> Part:
        """The same for a tar stream."""
        return Part(self.base, self.delta, self.changes, AT, (), False, self.manifest, prefix)

    def tar(self, special: bool = False) -> tuple[bytes, tuple[str, ...]]:
        """The same as a tar stream."""
        stream = io.BytesIO()
        left_out = export_tar([self.part()], stream, special)
        return stream.getvalue(), left_out


def _few(copy: str) -> None:
    write_files(copy, {"a": "changed", "d/new": "new"})
    os.unlink(f"{copy}/gone")


FILES = {"a": "a", "gone": "", "d/x": "x", "d/e/y": "y", "same": "s"}


def refused(fork: Fork, match: str, code: Code = Code.COLLECT_DESTINATION) -> CollectError:
    """The error of an export that must leave nothing but what was there."""
    before = sorted(os.listdir(fork.folder))
    with pytest.raises(CollectError, match=match) as caught:
        fork.export()
    assert caught.value.code is code
    assert sorted(os.listdir(fork.folder)) == before
    return caught.value


@pytest.mark.rig("root")
def test_all_metadata_is_kept(tmp_path: os.PathLike[str]) -> None:
    def change(copy: str) -> None:
        os.link(f"{copy}/a", f"{copy}/d/hard")
        os.setxattr(f"{copy}/d", "user.test", b"\0\xff")
        subprocess.run(["setfacl", "-m", "u:12345:r", f"{copy}/a"], check=True)
        with open(f"{copy}/sparse", "wb") as file:
            file.truncate(8 << 20)
            file.seek(4 << 20)
            file.write(b"x" * 5000)
        os.utime(f"{copy}/sparse", ns=(1_111_111_111, 2_222_222_222))
        os.symlink("\udcff:,\n", f"{copy}/link")
        os.utime(f"{copy}/link", ns=(5, 1_234_567_890_123_456_789), follow_symlinks=False)
        os.mkfifo(f"{copy}/fifo", 0o640)
        os.chmod(f"{copy}/d/e", 0o555)
        os.utime(f"{copy}/d", ns=(7, 7))

    fork = Fork(str(tmp_path), FILES, change)
    assert fork.export() == ()
    wanted, found = full_manifest(fork.copy), full_manifest(fork.out)
    assert content(found) == content(wanted)
    assert found.hard_links() == wanted.hard_links() == (("a", "d/hard"),)
    assert os.stat(f"{fork.out}/sparse").st_blocks * 512 < 1 << 20
    export_tree("/nowhere", fork.copy, NONE, AT, (), f"{tmp_path}/whole", True)
    for name in ("sparse", "link", "d", "same", ""):
        assert os.lstat(f"{tmp_path}/whole/{name}").st_mtime_ns == os.lstat(f"{fork.copy}/{name}").st_mtime_ns


def test_blocks_are_shared_where_they_can_be(root: Person, xfs_disk: Disk) -> None:
    folder = xfs_disk.folder(root)
    write_files(folder, {"tree/big": "x" * (8 << 20)})
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize
    export_tree("/nowhere", f"{folder}/tree", NONE, AT, (), f"{folder}/out", True)
    os.sync()
    assert free - os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize < 1 << 20
    with open(f"{folder}/out/big", encoding="ascii") as file:
        assert file.read() == "x" * (8 << 20)


def test_across_filesystems(root: Person, ext4_disk: Disk, tmpfs_disk: Disk) -> None:
    folder = ext4_disk.folder(root)
    write_files(folder, {"tree/a": "a" * 100_000, "tree/empty": ""})
    out = f"{tmpfs_disk.folder(root)}/out"
    assert export_tree("/nowhere", f"{folder}/tree", NONE, AT, (), out, True) == ()
    assert content(full_manifest(out)) == content(full_manifest(f"{folder}/tree"))


def test_an_empty_folder_is_taken_and_parents_are_made(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    os.mkdir(fork.out)
    fork.export()
    assert sorted(os.listdir(fork.out)) == ["a", "d", "same"]
    fork.out = f"{tmp_path}/new/parents/out"
    fork.export()
    assert os.listdir(f"{tmp_path}/new/parents") == ["out"]


def test_a_destination_in_use_is_refused(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    write_files(fork.out, {"mine": "keep"})
    assert "not empty" in refused(fork, "is not empty").message
    fork.out = f"{fork.out}/mine"
    refused(fork, "is not a folder")
    fork.out = f"{tmp_path}/link"
    os.symlink(f"{tmp_path}/base", fork.out)
    refused(fork, "is not a folder")
    fork.out = f"{tmp_path}/base/a/out"
    refused(fork, "cannot be made")


def test_a_base_that_changed_publishes_nothing(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    write_files(fork.base, {"same": "host", "new-on-the-host": "", "d/e/host": ""})
    os.unlink(f"{fork.base}/d/x")
    fork.out = f"{tmp_path}/new/out"
    error = refused(fork, "the host changed 2 files", Code.COLLECT_BASE_GONE)
    assert error.details == (f"{AT}/d/x", f"{AT}/same")
    stream = io.BytesIO()
    with pytest.raises(CollectError):
        export_tar([fork.part()], stream)
    assert stream.getvalue() == b""


def test_what_the_host_made_later_is_not_exported(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    write_files(fork.base, {"new-on-the-host": "", "d/e/host": ""})
    fork.export()
    assert sorted(full_manifest(fork.out).entries) == ["", "a", "d", "d/e", "d/e/y", "d/new", "d/x", "same"]


def test_many_lost_files_are_counted(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), {f"f{number}": "" for number in range(15)}, lambda copy: None)
    shutil.rmtree(fork.base)
    os.mkdir(fork.base)
    error = refused(fork, "the host changed 15 files", Code.COLLECT_BASE_GONE)
    assert len(error.details) == 11
    assert error.details[-1] == "and 5 more"


def test_a_folder_with_changes_that_the_host_replaced(tmp_path: os.PathLike[str]) -> None:
    base, upper = f"{tmp_path}/base", f"{tmp_path}/upper"
    write_files(base, {"d/x": "", "e/x": ""})
    write_files(upper, {"d/new": "", "e/new": ""})
    changes = scan_layer(upper, base, AT)
    shutil.rmtree(f"{base}/d")
    os.symlink("/etc", f"{base}/d")
    shutil.rmtree(f"{base}/e")
    with pytest.raises(CollectError) as caught:
        export_tree(base, upper, changes, AT, (), f"{tmp_path}/out", False)
    assert (caught.value.code, caught.value.details) == (Code.COLLECT_BASE_GONE, (f"{AT}/d", f"{AT}/e"))


def test_storage_that_lost_an_entry_is_an_error(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    os.unlink(f"{fork.delta}/a")
    refused(fork, "missing in the fork's storage", Code.COLLECT_FAILED)
    with pytest.raises(CollectError):
        export_changes(fork.delta, fork.changes, AT, fork.out)
    assert not os.path.lexists(fork.out)


def test_omitted_paths_are_left_out(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    fork.export(omit=("d/e", "same"))
    assert sorted(full_manifest(fork.out).entries) == ["", "a", "d", "d/new", "d/x"]


def test_a_destination_inside_the_base_does_not_hold_itself(tmp_path: os.PathLike[str]) -> None:
    base, upper = f"{tmp_path}/base", f"{tmp_path}/upper"
    write_files(base, {"a": "", "z": ""})
    os.mkdir(upper)
    export_tree(base, upper, NONE, AT, (), f"{base}/out", False)
    assert sorted(os.listdir(f"{base}/out")) == ["a", "z"]
    assert sorted(os.listdir(base)) == ["a", "out", "z"]


def _hostile(copy: str) -> None:
    """What a fork may plant to get an export to write or read elsewhere."""
    outside = os.path.join(os.path.dirname(copy), "victim")
    shutil.rmtree(f"{copy}/out")
    os.symlink(outside, f"{copy}/out")
    os.symlink(outside, f"{copy}/d/e")
    os.symlink("..", f"{copy}/up")
    write_files(copy, {"suid": "#!"})
    os.chmod(f"{copy}/suid", 0o6755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{copy}/sock")
    if os.geteuid() == 0:
        os.mknod(f"{copy}/mem", 0o666 | stat.S_IFCHR, os.makedev(1, 1))
        # struct vfs_cap_data, revision 2 (linux/capability.h): cap_net_raw, effective at once
        os.setxattr(f"{copy}/d/cap", "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))


HOSTILE = {"cache-of": "", "out/a": "a", "out/passwd": "mine", "d/x": "x", "d/cap": "c"}


@pytest.fixture
def victim(tmp_path: os.PathLike[str]) -> str:
    """A folder beside the fork that nothing may write to."""
    path = f"{tmp_path}/victim"
    write_files(path, {"passwd": "root"})
    return path


@pytest.mark.rig("root")
def test_case_17_nothing_outside_changes(tmp_path: os.PathLike[str], victim: str) -> None:
    fork = Fork(str(tmp_path), HOSTILE, _hostile)
    before = content(full_manifest(victim))
    left = ("d/cap", "mem", "sock", "suid")
    assert tuple(sorted(fork.export())) == left
    assert tuple(sorted(fork.tar()[1])) == left
    changed = f"{tmp_path}/changes"
    assert tuple(sorted(export_changes(fork.delta, fork.changes, AT, changed))) == left
    assert content(full_manifest(victim)) == before
    for place in (fork.out, changed):
        assert os.readlink(f"{place}/out") == victim
        assert os.readlink(f"{place}/d/e") == victim
        assert stat.S_IMODE(os.lstat(f"{place}/suid").st_mode) == 0o755
        assert not {"mem", "sock"} & set(os.listdir(place))
        assert "security.capability" not in os.listxattr(f"{place}/d/cap")


@pytest.mark.rig("root")
def test_special_entries_when_asked_for(tmp_path: os.PathLike[str], victim: str) -> None:
    fork = Fork(str(tmp_path), HOSTILE, _hostile)
    assert fork.export(special=True) == ()
    assert content(full_manifest(fork.out)) == content(full_manifest(fork.copy))
    stream, left_out = fork.tar(special=True)
    assert left_out == ("sock",)
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        assert archive.getmember("suid").mode == 0o6755
        memory = archive.getmember("mem")
        assert (memory.type, memory.devmajor, memory.devminor) == (tarfile.CHRTYPE, 1, 1)
        assert "SCHILY.xattr.security.capability" in archive.getmember("d/cap").pax_headers


def test_the_changes_alone(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    assert export_changes(fork.delta, fork.changes, AT, fork.out) == ()
    assert sorted(full_manifest(fork.out).entries) == ["", "a", "changes.json", "d", "d/new"]
    with open(f"{fork.out}/changes.json", encoding="utf-8") as file:
        told = json.load(file)
    assert told["schema"] == 1
    assert [(entry["path"], entry["change"]) for entry in told["entries"]] == [
        (f"{AT}/a", "modified"),
        (f"{AT}/d/new", "created"),
        (f"{AT}/gone", "deleted"),
    ]


def test_changes_lie_in_their_own_folders_whatever_their_neighbours_are_called(tmp_path) -> None:
    """In the order of bytes `a-b` and `a.d` stand between `a` and `a/x`."""
    new = {"a/x": "1", "a-b": "2", "a.d/q": "3", "a/y": "4", "a/b-c": "5", "a/b/z": "6"}
    fork = Fork(str(tmp_path), {"kept": "kept"}, lambda copy: write_files(copy, new))
    assert export_changes(fork.delta, fork.changes, AT, fork.out) == ()
    os.unlink(f"{fork.out}/changes.json")
    assert content(full_manifest(fork.out)) == content(full_manifest(fork.delta))
    assert sorted(new) == sorted(
        path for path in full_manifest(fork.out).entries if os.path.isfile(f"{fork.out}/{path}")
    )


def test_a_changed_file_of_the_lists_name(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, lambda copy: write_files(copy, {"changes.json": "mine"}))
    with pytest.raises(CollectError, match="cover") as caught:
        export_changes(fork.delta, fork.changes, AT, fork.out)
    assert caught.value.code is Code.COLLECT_DESTINATION
    assert not os.path.lexists(fork.out)


def test_tar_is_deterministic_and_complete(tmp_path: os.PathLike[str]) -> None:
    def change(copy: str) -> None:
        write_files(copy, {"new/deep/file": "n" * 20_000})
        with open(f"{copy}/raw\udcff\n", "w", encoding="ascii") as file:
            file.write("raw")
        os.link(f"{copy}/a", f"{copy}/d/hard")
        os.symlink("\udcfe", f"{copy}/link")
        os.mkfifo(f"{copy}/fifo")
        os.setxattr(f"{copy}/a", "user.test", b"\0\xff=\n")

    fork = Fork(str(tmp_path), FILES, change)
    stream, left_out = fork.tar()
    assert left_out == ()
    assert fork.tar()[0] == stream
    os.mkdir(fork.out)
    done = subprocess.run(
        ["tar", "-x", "--xattrs", "-f", "-"], cwd=fork.out, input=stream, capture_output=True, check=False
    )
    assert done.returncode == 0
    # GNU tar takes the raw bytes and says that it does not know the keyword which announces them.
    assert {line for line in done.stderr.splitlines() if b"hdrcharset" not in line} == set()
    assert content(full_manifest(fork.out)) == content(full_manifest(fork.copy))
    assert full_manifest(fork.out).hard_links() == (("a", "d/hard"),)
    assert os.stat(f"{fork.out}/same").st_mtime_ns == os.stat(f"{fork.copy}/same").st_mtime_ns


def test_several_paths_in_one_stream(tmp_path: os.PathLike[str]) -> None:
    one, two = (Fork(f"{tmp_path}/{name}", FILES, _few) for name in ("one", "two"))
    stream = io.BytesIO()
    export_tar([one.part("home/one"), two.part("home/two")], stream)
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as archive:
        names = archive.getnames()
    inside = ["", "/a", "/d", "/d/e", "/d/e/y", "/d/new", "/d/x", "/same"]
    assert names == [f"home/{name}{path}" for name in ("one", "two") for path in inside]


def test_a_tar_stream_into_a_raw_pipe(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, lambda copy: write_files(copy, {"big": "x" * 500_000}))
    reader, writer = os.pipe()
    os.set_blocking(writer, True)
    child = os.fork()
    if child == 0:
        os.close(reader)
        with open(writer, "wb", buffering=0) as pipe:
            export_tar([fork.part()], pipe)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read() == fork.tar()[0]
    assert os.waitpid(child, 0)[1] == 0


def test_a_tar_stream_into_a_full_device(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    with pytest.raises(CollectError) as caught, open("/dev/full", "wb", buffering=0) as full:
        export_tar([fork.part()], full)
    assert caught.value.errno == 28


def test_a_private_file(tmp_path: os.PathLike[str]) -> None:
    write_files(str(tmp_path), {"copy": "content"})
    export_tree("/nowhere", f"{tmp_path}/copy", NONE, "/etc/conf", (), f"{tmp_path}/out", True)
    assert os.listdir(f"{tmp_path}/out") == ["conf"]
    stream = io.BytesIO()
    export_tar([Part("/nowhere", f"{tmp_path}/copy", NONE, "/etc/conf", (), True)], stream)
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as archive:
        assert archive.getnames() == ["conf"]


def test_a_full_disk_leaves_nothing(tmp_path: os.PathLike[str], make_disk: Callable[..., Disk], root: Person) -> None:
    small = make_disk("ext4", megabytes=16)
    fork = Fork(str(tmp_path), {"big": "x" * (40 << 20)}, lambda copy: None)
    folder = small.folder(root)
    fork.out = f"{folder}/new/out"
    with pytest.raises(CollectError) as caught:
        fork.export()
    assert (caught.value.code, caught.value.errno) == (Code.COLLECT_DESTINATION, 28)
    assert os.listdir(folder) == []


def test_an_interrupt_leaves_nothing(tmp_path: os.PathLike[str]) -> None:
    write_files(f"{tmp_path}/tree", {f"d{number % 40}/f{number}": "x" * 2000 for number in range(4000)})
    where = f"{tmp_path}/where"
    os.mkdir(where)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            export_tree("/nowhere", f"{tmp_path}/tree", NONE, AT, (), f"{where}/new/out", True)
        except KeyboardInterrupt:
            os._exit(3)
        os._exit(0)
    while not os.path.isdir(f"{where}/new") or not os.listdir(f"{where}/new"):
        time.sleep(0.001)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert os.listdir(where) == []


def test_a_destination_that_comes_into_use_is_left_alone(tmp_path: os.PathLike[str]) -> None:
    write_files(f"{tmp_path}/tree", {f"d{number % 40}/f{number}": "x" * 2000 for number in range(4000)})
    where = f"{tmp_path}/where"
    os.makedirs(f"{where}/out")
    child = os.fork()
    if child == 0:
        while len(os.listdir(where)) == 1:
            time.sleep(0.0005)
        write_files(where, {"out/mine": "keep"})
        os._exit(0)
    with pytest.raises(CollectError, match="came into use"):
        export_tree("/nowhere", f"{tmp_path}/tree", NONE, AT, (), f"{where}/out", True)
    assert os.waitpid(child, 0)[1] == 0
    assert os.listdir(where) == ["out"]
    assert os.listdir(f"{where}/out") == ["mine"]


@pytest.mark.rig("root")
def test_a_destination_without_attributes_is_said(tmp_path: os.PathLike[str]) -> None:
    write_files(f"{tmp_path}/tree", {"a": "", "b": ""})
    os.setxattr(f"{tmp_path}/tree/a", "user.test", b"1")
    place = f"{tmp_path}/ramfs"
    os.mkdir(place)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", place.encode(), b"ramfs", 0, None) == 0
    try:
        assert export_tree("/nowhere", f"{tmp_path}/tree", NONE, AT, (), f"{place}/out", True) == ("a",)
        assert sorted(os.listdir(f"{place}/out")) == ["a", "b"]
    finally:
        assert libc.umount2(place.encode(), 0) == 0


def test_a_file_that_gets_shorter_while_it_is_copied(tmp_path: os.PathLike[str]) -> None:
    write_files(str(tmp_path), {"a": "12345"})
    with open(f"{tmp_path}/a", "rb") as source, open(f"{tmp_path}/b", "wb") as target:
        _copy_range(source.fileno(), target.fileno(), 0, 100)
    assert os.path.getsize(f"{tmp_path}/b") == 5


def _links_and_nodes(folder: str) -> None:
    write_files(folder, {"tree/a/one": "1", "tree/b/": ""})
    os.link(f"{folder}/tree/a/one", f"{folder}/tree/b/two")
    os.chmod(f"{folder}/tree/a", 0)
    left_out = export_tree("/nowhere", f"{folder}/tree", NONE, AT, (), f"{folder}/out", True, special=True)
    assert left_out == ("null",)  # devices are root's
    found = full_manifest(f"{folder}/out", ours=True)
    assert sorted(found.entries) == ["", "a", "a/one", "b", "b/two"]
    assert found.entries["a/one"].digest == found.entries["b/two"].digest


@pytest.mark.rig("root")
def test_a_hard_link_out_of_a_closed_folder_is_a_file_of_its_own(user: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(user)
    os.mkdir(f"{folder}/tree")
    os.mknod(f"{folder}/tree/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.chown(f"{folder}/tree", user.uid, user.gid)
    user.call(_links_and_nodes, folder)


def _as_user(folder: str) -> tuple[str, ...]:
    write_files(folder, {"delta/closed/in": "in", "delta/plain": ""})
    os.chmod(f"{folder}/delta/closed/in", 0)
    os.chmod(f"{folder}/delta/closed", 0)
    changes = scan_layer(f"{folder}/delta", f"{folder}/base", AT)
    left_out = export_tree(f"{folder}/base", f"{folder}/delta", changes, AT, (), f"{folder}/out", False)
    assert stat.S_IMODE(os.lstat(f"{folder}/out/closed").st_mode) == 0
    assert stat.S_IMODE(os.lstat(f"{folder}/delta/closed").st_mode) == 0
    stream = io.BytesIO()
    part = Part(f"{folder}/base", f"{folder}/delta", changes, AT, (), False, None, "p")
    assert export_tar([part], stream) == ("p/secret", "p/secrets")
    found = full_manifest(f"{folder}/out", ours=True)
    assert sorted(found.entries) == ["", "closed", "closed/in", "foreign", "plain", "secrets"]
    return left_out


@pytest.mark.rig("root")
def test_a_user_exports_what_a_user_can(user: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(user)
    write_files(folder, {"base/foreign": "f", "base/secret": "s", "base/secrets/one": "1"})
    os.chmod(f"{folder}/base/secret", 0o600)
    os.chmod(f"{folder}/base/secrets", 0o700)
    os.chown(f"{folder}/base", user.uid, user.gid)
    left_out = user.call(_as_user, folder)
    assert sorted(left_out) == ["foreign", "secret", "secrets", "secrets"]
    os.chown(f"{folder}/base/secret", user.uid, user.gid)


def _interrupted_closed(folder: str) -> None:
    write_files(folder, {"tree/a/x": "", "tree/b": ""})
    os.chmod(f"{folder}/tree/a", 0)
    write_files(folder, {"base/gone": ""})
    copy_with_manifest(f"{folder}/base", f"{folder}/copy", f"{folder}/manifest")
    manifest = StatManifest.load(f"{folder}/manifest")
    changes = scan_layer(f"{folder}/tree", f"{folder}/base", AT)
    os.unlink(f"{folder}/base/gone")
    with pytest.raises(CollectError):
        export_tree(f"{folder}/base", f"{folder}/tree", changes, AT, (), f"{folder}/new/out", False, manifest)
    assert not os.path.lexists(f"{folder}/new")


def test_a_half_made_closed_folder_is_removed_too(user: Person, ext4_disk: Disk) -> None:
    user.call(_interrupted_closed, ext4_disk.folder(user))


@pytest.mark.rig("acl tools")
def test_acls_of_the_destinations_parent_are_not_inherited(tmp_path: os.PathLike[str]) -> None:
    fork = Fork(str(tmp_path), FILES, _few)
    os.mkdir(f"{tmp_path}/shared")
    subprocess.run(["setfacl", "-d", "-m", "u:12345:rwx", f"{tmp_path}/shared"], check=True)
    fork.out = f"{tmp_path}/shared/out"
    fork.export()
    assert content(full_manifest(fork.out)) == content(full_manifest(fork.copy))
