"""What is observed: mounts and which of them a path lies on, paths, live sockets, FIFOs and files, limits."""

import contextlib
import os
import random
import socket
import stat
import threading
from typing import Any

import pytest

from hostfork.errors import Code, HostError
from hostfork.policy import host, sharing
from hostfork.policy.host import MountEntry, MountTable, Namespaces, look, mount_of, mounts, mounts_beneath
from hostfork.policy.mounts import parse_line
from hostfork.vocabulary import EndpointKind, EntryKind
from policy_rig import another_process, bind, facts_of, listening, policy_of, tmpfs, tree, with_mounts
from rigs import Disk, Person

# --- mounts ----------------------------------------------------------------------------------------------------------


def test_a_line_with_every_kind_of_field() -> None:
    line = rb"36 35 98:0 /mnt1/a\040b /mnt2\134\012\011x rw,noatime shared:1 master:2 - ext3 /dev/ro\043ot rw,errors=c"
    assert parse_line(line) == MountEntry(
        36, 35, "98:0", "/mnt1/a b", "/mnt2\\\n\tx", ("rw", "noatime"), True, "ext3", "/dev/ro#ot", ("rw", "errors=c")
    )
    entry = parse_line(rb"1 0 0:1 / /- ro - fuse.x s ro")
    assert (entry.point, entry.shared, entry.read_only, entry.filesystem) == ("/-", False, True, "fuse.x")
    assert not parse_line(rb"1 0 0:1 / / rw - fuse.x  rw").read_only


def test_mounts_of_this_process_agree_with_stat() -> None:
    table = MountTable(mounts())
    for path in ("/", "/proc", "/proc/self", "/dev", "/usr/bin"):
        entry = table.mount_of(os.path.realpath(path))
        assert entry is not None
        found = os.stat(path)
        assert entry.device == f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}"


def test_names_of_every_kind_are_mount_points(tmp_path: Any) -> None:
    names = ["a b", "tab\t", "new\nline", "back\\slash", "comma,colon:", "\udcff\udc80", "#"]

    def child() -> list[str]:
        for name in names:
            os.mkdir(f"{tmp_path}/{name}")
            tmpfs(f"{tmp_path}/{name}")
        return [entry.point for entry in mounts_beneath(str(tmp_path), mounts())]

    assert sorted(with_mounts(child)) == sorted(f"{tmp_path}/{name}" for name in names)


def test_shadowed_and_stacked_mounts(tmp_path: Any) -> None:
    base = str(tmp_path)
    tree(base, "a/b/c/", "a-b/", "s/")

    def child() -> tuple[list[str], list[str], Any, Any]:
        tmpfs(f"{base}/a/b/c")
        tmpfs(f"{base}/a-b")
        tmpfs(f"{base}/s")
        tmpfs(f"{base}/s")
        before = [entry.point for entry in mounts_beneath(base, mounts())]
        bind(f"{base}/a/b", f"{base}/a")
        entries = mounts()
        after = [entry.point for entry in mounts_beneath(base, entries)]
        top = mount_of(f"{base}/s", entries)
        stacked = [entry.mount_id for entry in entries if entry.point == f"{base}/s"]
        under = mount_of(f"{base}/a/b/c", entries)
        assert top is not None
        assert under is not None
        return before, after, top.mount_id == stacked[-1], under.point

    before, after, topmost, under = with_mounts(child)
    assert before == [f"{base}/a/b/c", f"{base}/a-b", f"{base}/s"]
    # the bind over `a` hides the mount below it
    assert after == [f"{base}/a", f"{base}/a-b", f"{base}/s"]
    assert topmost
    assert under == f"{base}/a"


def test_the_kernel_agrees_about_every_path(tmp_path: Any) -> None:
    base = str(tmp_path)
    folders = ["a", "a/b", "a/b/c", "a/d", "e", "e/b"]
    tree(base, *(f"{folder}/" for folder in folders))

    def child() -> list[str]:
        choose = random.Random(7)
        wrong = []
        for _ in range(40):
            target = os.path.join(base, choose.choice(folders))
            if os.path.isdir(target) and choose.random() < 0.7:
                bind(os.path.join(base, choose.choice(["a", "e"])), target)
            elif os.path.isdir(target):
                tmpfs(target)
                os.makedirs(f"{target}/b/c")
            table = MountTable(mounts())
            for path in (base, *(os.path.join(base, folder) for folder in folders)):
                entry = table.mount_of(path)
                if os.path.isdir(path) and (entry is None or entry.mount_id != _mount_id(path)):
                    wrong.append(path)
            reached = {entry.mount_id for entry in table.beneath(base)}
            if reached != {_mount_id(entry.point) for entry in table.beneath(base)}:
                wrong.append("beneath")
        return wrong

    assert with_mounts(child) == []


def _mount_id(path: str) -> int:
    """The mount that the kernel finds at a path (fdinfo of an O_PATH descriptor)."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
    finally:
        os.close(descriptor)


def test_a_root_that_is_no_mount_point() -> None:
    entries = (parse_line(b"5 4 0:1 / /proc rw - proc proc rw"), parse_line(b"6 5 0:2 / /proc/x rw - tmpfs t rw"))
    assert mount_of("/etc", entries) is None
    assert mount_of("/", entries) is None
    assert mount_of("/proc/x/y", entries) is entries[1]
    assert mount_of("/proc/xy", entries) is entries[0]
    assert mounts_beneath("/", entries) == entries


def test_a_root_that_is_its_own_parent() -> None:
    entries = (parse_line(b"1 1 0:1 / / rw - rootfs r rw"), parse_line(b"6 1 0:2 / / rw - ext4 e rw"))
    assert mount_of("/x", entries) is entries[1]


# --- paths -----------------------------------------------------------------------------------------------------------


def test_every_kind_of_path(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "file", "real/inner/")
    os.symlink("real", f"{base}/link")
    os.symlink("nowhere", f"{base}/dangling")
    os.symlink("loop", f"{base}/loop")
    os.mkfifo(f"{base}/fifo")
    facts = look(f"{base}/link/inner")
    assert (facts.asked, facts.path, facts.kind) == (f"{base}/link/inner", f"{base}/real/inner", EntryKind.FOLDER)
    found = os.stat(f"{base}/real/inner")
    assert (facts.device, facts.inode, facts.mode) == (found.st_dev, found.st_ino, stat.S_IMODE(found.st_mode))
    assert facts.readable
    assert facts.writable
    assert look(f"{base}/file").kind is EntryKind.FILE
    assert look(f"{base}/fifo").kind is EntryKind.FIFO
    dangling = look(f"{base}/dangling")
    assert (dangling.path, dangling.kind, dangling.errno) == (f"{base}/nowhere", None, 2)
    assert look(f"{base}/loop").kind in (None, EntryKind.SYMLINK)
    assert look(f"{base}/file/x").errno == 20
    assert look("/dev/null").kind is EntryKind.CHARACTER_DEVICE


def test_what_a_user_may_not_do(user: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(user)
    os.mkdir(f"{folder}/shut", 0o700)
    os.mkdir(f"{folder}/shut/in", 0o755)
    os.mkdir(f"{folder}/open", 0o755)
    os.mkdir(f"{folder}/listed", 0o744)
    if user.uid != os.geteuid():
        assert not user.call(look, f"{folder}/shut").readable
        assert user.call(look, f"{folder}/shut/in").errno == 13
        assert not user.call(look, f"{folder}/listed").readable
        opened = user.call(look, f"{folder}/open")
        assert (opened.readable, opened.writable) == (True, False)


def _foreign(path: str) -> tuple[str, ...]:
    return look(path, foreign=True).foreign


def test_names_of_other_owners_are_few_and_in_order(root: Person, user: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(user)
    for name in "gfedcba":
        os.mkdir(f"{folder}/{name}")
    os.mkdir(f"{folder}/own")
    os.chown(f"{folder}/own", user.uid, user.gid)
    assert user.call(_foreign, folder) == ("a", "b", "c", "d", "e")
    for number in range(host._FOREIGN_LOOKED_AT):
        os.mkdir(f"{folder}/{number}")
    assert len(user.call(_foreign, folder)) == 5
    os.chmod(folder, 0o300)
    assert user.call(_foreign, folder) == ()


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_forbidden_user_namespace_is_named(user: Person) -> None:
    found = user.call(host.denials, namespaces=False)
    assert "user.max_user_namespaces=0 forbids them" in found


def _denials_without_capabilities() -> tuple[str, ...]:
    import subprocess
    import sys

    script = "import sys; sys.path[:] = sys.argv[1:]; from hostfork.policy.host import denials; print(denials())"
    dropped = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    done = subprocess.run(
        [*dropped, sys.executable, "-c", script, *sys.path], capture_output=True, text=True, check=True
    )
    return (done.stdout,)


@pytest.mark.rig("setpriv")
def test_root_without_its_capabilities_is_named(root: Person) -> None:
    assert "no CAP_SYS_ADMIN" in root.call(_denials_without_capabilities)[0]


SETTINGS = {
    "unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=0 forbids them to ordinary users"),
    "apparmor_restrict_unprivileged_userns": (
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=1 denies them to programs without an AppArmor profile",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("other", [False, True])
def test_settings_of_other_distributions_are_named(root: Person, name: str, other: bool) -> None:
    value, sentence = SETTINGS[name]

    def child() -> tuple[str, ...]:
        # files of the names that those kernels have, where they have them
        tmpfs("/proc/sys/kernel")
        with open(f"/proc/sys/kernel/{name}", "w", encoding="ascii") as file:
            file.write(("1" if value == "0" else "0") if other else value + "\n")
        return host.denials()

    assert (sentence in with_mounts(child)) is not other


def _denials_under_a_filter() -> tuple[str, ...]:
    import ctypes
    import struct

    allow_all = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
    program = struct.pack("HP", 1, ctypes.addressof(allow_all))
    libc = ctypes.CDLL(None, use_errno=True)
    # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP with SECCOMP_MODE_FILTER
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.create_string_buffer(program, len(program))) == 0
    return host.denials()


def test_a_filter_on_system_calls_is_named(user: Person) -> None:
    assert any("seccomp" in one for one in user.call(_denials_under_a_filter))
    assert not any("seccomp" in one for one in user.call(host.denials))


def test_namespaces_are_asked_for_last(tmp_path: Any) -> None:
    answer = Namespaces(True, True)
    policy = policy_of(private=(str(tmp_path),))
    assert facts_of(policy, str(tmp_path), namespaces=lambda: answer).namespaces is answer


def test_limits_are_looked_for_only_where_namespaces_are_denied(tmp_path: Any) -> None:
    policy = policy_of(private=(str(tmp_path),))
    assert facts_of(policy, str(tmp_path)).limits == ()
    denied = facts_of(policy, str(tmp_path), namespaces=Namespaces(False, True, "unshare", 1, "not permitted"))
    assert denied.limits == host.denials()


# --- sharing ---------------------------------------------------------------------------------------------------------


def search(*roots: str) -> tuple[Any, Any]:
    return sharing.search(roots, MountTable(mounts()))


def test_sockets_of_every_kind_and_name(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    kinds = {
        "stream": socket.SOCK_STREAM,
        "packets": socket.SOCK_SEQPACKET,
        "datagram": socket.SOCK_DGRAM,
        "new\nline 0: x": socket.SOCK_STREAM,
        " lead and trail ": socket.SOCK_STREAM,
        "\udcff": socket.SOCK_STREAM,
    }
    script = (
        "import socket, sys, os\nkeep = []\n"
        "for kind, name in zip(sys.argv[2].split(), sys.argv[3:]):\n"
        "    keep.append(socket.socket(socket.AF_UNIX, int(kind)))\n"
        "    keep[-1].bind(sys.argv[1] + '/' + name)\n"
        "    if int(kind) != socket.SOCK_DGRAM: keep[-1].listen()\n"
    )
    numbers = " ".join(str(int(kind)) for kind in kinds.values())
    with another_process(script, base, numbers, *kinds) as pid:
        listeners, _ = search(base)
    assert {one.path for one in listeners} == {f"{base}/{name}" for name in kinds}
    assert {(one.kind, one.pid) for one in listeners} == {(EndpointKind.SOCKET, pid)}
    assert all(one.process.startswith("python") for one in listeners)
    for one in listeners:
        found = os.lstat(one.path)
        assert (one.device, one.inode) == (found.st_dev, found.st_ino)


def test_sockets_that_do_not_count(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/", "other/", "pq/")
    with (
        socket.socket(socket.AF_UNIX) as not_listening,
        socket.socket(socket.AF_UNIX) as abstract,
        listening(f"{base}/pq/s"),
        listening(f"{base}/p/removed"),
        listening(f"{base}/p/replaced"),
    ):
        not_listening.bind(f"{base}/p/quiet")
        abstract.bind("\0" + f"{base}/p/abstract")
        abstract.listen()
        os.unlink(f"{base}/p/removed")
        os.unlink(f"{base}/p/replaced")
        tree(base, "p/replaced")
        with listening(f"{base}/p/dead"):
            pass
        assert search(f"{base}/p") == ((), ())


def test_a_socket_bound_through_a_link_is_found_at_its_place(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/")
    os.symlink("p", f"{base}/link")
    with listening(f"{base}/link/s"):
        assert [one.path for one in search(f"{base}/p")[0]] == [f"{base}/p/s"]


RELATIVE = (
    "import os, socket, sys\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\nos.chdir(sys.argv[2])"
)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_relative_name_is_placed_by_the_file_behind_it(disk: Disk, root: Person, leaves: bool) -> None:
    base = disk.folder(root)
    tree(base, "p/", "q/")
    # two dead sockets of the same name, so that the name alone would mislead
    for name in ("p", "q"):
        with listening(f"{base}/{name}/dead"):
            pass
    with another_process(RELATIVE, "rel", "/" if leaves else ".", cwd=f"{base}/p") as pid:
        listeners, _ = search(f"{base}/p", f"{base}/q")
        assert [(one.path, one.pid) for one in listeners] == [(f"{base}/p/rel", pid)]
        os.rename(f"{base}/p/dead", f"{base}/q/rel")
        assert [one.path for one in search(f"{base}/p", f"{base}/q")[0]] == [f"{base}/p/rel"]
    with another_process(RELATIVE, "dead2", "/", cwd=f"{base}/p"):
        os.unlink(f"{base}/p/dead2")
        os.rename(f"{base}/p/rel", f"{base}/p/dead2")
        assert search(f"{base}/p")[0] == ()


def test_two_sockets_under_one_name_are_told_apart(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    bind_it = "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    for order in range(2):
        path = f"{base}/s{order}"
        with another_process(bind_it, path) as first:
            os.rename(path, path + "-away")
            with another_process(bind_it, path) as second:
                if order:
                    os.rename(path, path + "-new")
                    os.rename(path + "-away", path)
                holder = [one.pid for one in search(base)[0] if one.path == path]
                assert holder == [first if order else second]


def test_the_kernel_is_asked_as_pyroute2_asks_it(tmp_path: Any) -> None:
    from pyroute2.netlink.diag import UDIAG_SHOW_VFS, DiagSocket

    with listening(f"{tmp_path}/s"), DiagSocket() as diag:
        diag.bind()
        expected = {}
        for message in diag.get_sock_stats(family=socket.AF_UNIX, show=UDIAG_SHOW_VFS):
            file = message.get_attr("UNIX_DIAG_VFS")
            if file is not None:
                expected[message["udiag_ino"]] = file["udiag_vfs_ino"]
        found = sharing._bound_files()
        inode = os.lstat(f"{tmp_path}/s").st_ino & 0xFFFFFFFF
    mine = [number for number, wanted in expected.items() if wanted == inode]
    assert [found[number][1] for number in mine] == [inode]


def test_open_fifos_and_files_and_working_directories(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/read", "p/written", "p/gone", "p/d/")
    os.mkfifo(f"{base}/p/fifo")
    os.mkfifo(f"{base}/p/unused")
    script = (
        "import os, sys; os.chdir(sys.argv[1])\n"
        "f = os.open('fifo', os.O_RDWR); r = open('read'); w = open('written', 'a'); g = open('gone', 'w')\n"
        "os.unlink('gone'); d = os.open('d', os.O_RDONLY); os.chdir('d')"
    )
    with another_process(script, f"{base}/p") as pid:
        listeners, files = search(f"{base}/p")
        single, _ = search(f"{base}/p/fifo")
    assert [(one.path, one.kind, one.pid) for one in listeners] == [(f"{base}/p/fifo", EndpointKind.FIFO, pid)]
    assert single == listeners
    seen = {(one.path, one.pid, one.writing) for one in files}
    assert seen == {
        (f"{base}/p/read", pid, False),
        (f"{base}/p/written", pid, True),
        (f"{base}/p/d", pid, False),
    }


def test_files_of_another_mount_namespace_do_not_count(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/")
    ready, done = os.pipe(), os.pipe()

    def child() -> None:
        tmpfs(f"{base}/p")
        with open(f"{base}/p/f", "w", encoding="ascii"):
            os.mkfifo(f"{base}/p/fifo")
            held = os.open(f"{base}/p/fifo", os.O_RDWR)
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os.close(held)

    thread = threading.Thread(target=with_mounts, args=(child,))
    thread.start()
    os.read(ready[0], 1)
    tree(base, "p/f")
    os.mkfifo(f"{base}/p/fifo")
    try:
        assert search(f"{base}/p") == ((), ())
    finally:
        os.write(done[1], b"x")
        thread.join()
        for end in (*ready, *done):
            os.close(end)


def _search_as(folder: str) -> tuple[Any, Any]:
    return search(folder)


def test_what_a_user_cannot_see_is_found_by_name_alone(user: Person, root: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(user)
    with listening(f"{folder}/s"):
        listeners, files = user.call(_search_as, folder)
    expected = 0 if user.uid != os.geteuid() else os.getpid()
    assert [(one.path, one.pid, one.process != "") for one in listeners] == [(f"{folder}/s", expected, expected != 0)]
    assert files == ()


def _search_without_a_list(base: str, listed: str) -> tuple[Any, Any]:
    tmpfs(f"/proc/{os.getpid()}/net")
    error: Any = None
    try:
        facts_of(policy_of(private=(f"{base}/p",)), base)
    except HostError as caught:
        error = (caught.code, caught.path, caught.errno, caught.hint)
    return error, facts_of(policy_of(listed, private=(f"{base}/p",)), base).listeners


def test_a_kernel_that_does_not_tell_its_sockets(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/")
    (tmp_path / "listed.toml").write_text('schema = 1\n[endpoints]\nsearch = "listed"\n')
    error, listeners = with_mounts(_search_without_a_list, base, f"{base}/listed.toml")
    assert error[:3] == (Code.HOST_MISSING, "/proc/net/unix", 2)
    assert "listed" in error[3]
    assert listeners == ()


def test_a_quick_look_leaves_sharing_out(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/")
    policy = policy_of(private=(f"{base}/p",))
    with listening(f"{base}/p/s"):
        assert [one.path for one in facts_of(policy, base).listeners] == [f"{base}/p/s"]
        assert facts_of(policy, base, search=False).listeners == ()


def test_listed_endpoints_are_not_searched_but_writers_are(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/")
    (tmp_path / "listed.toml").write_text('schema = 1\n[endpoints]\nsearch = "listed"\n')
    policy = policy_of(f"{base}/listed.toml", private=(f"{base}/p",))
    with another_process("import sys; w = open(sys.argv[1], 'w')", f"{base}/p/f"), listening(f"{base}/p/s"):
        facts = facts_of(policy, base)
    assert facts.listeners == ()
    assert [one.path for one in facts.open_files] == [f"{base}/p/f"]


# --- all together ----------------------------------------------------------------------------------------------------


def test_facts_know_every_path_of_the_policy(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    tree(base, "p/mnt/", "own-state/pool/", "q/")
    policy = policy_of(private=(f"{base}/p",), hidden=(f"{base}/gone",), endpoint=(f"{base}/s",))

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        return facts_of(policy, base)

    facts = with_mounts(child)
    kinds = {one.asked: one.kind for one in facts.paths}
    assert kinds == {
        f"{base}/p": EntryKind.FOLDER,
        f"{base}/gone": None,
        f"{base}/s": None,
        f"{base}/own-state": EntryKind.FOLDER,
        f"{base}/own-state/pool": EntryKind.FOLDER,
        f"{base}/p/mnt": EntryKind.FOLDER,
    }
    assert facts.kernel == os.uname().release
    assert len(facts.boot_id) == 36


def _neighbours() -> list[str]:
    os.makedirs(os.path.expanduser("~/.ssh"), exist_ok=True)
    os.makedirs(os.path.expanduser("~/.cache"), exist_ok=True)
    os.chmod(os.path.expanduser("~/.cache"), 0o500)
    return [one.path for one in facts_of(policy_of(), "/tmp").neighbours]


def test_neighbours_are_what_exists_and_can_be_written(user: Person) -> None:
    found = user.call(_neighbours)
    assert f"{user.home}/.ssh" in found
    assert "/tmp" in found
    assert "/dev/shm" in found
    assert f"{user.home}/.cache" not in found
    assert f"{user.home}/.codex" not in found


def test_threads_of_the_kernel_are_known_and_have_no_files() -> None:
    """Every one that is passed over is really one; a process of anybody's is none."""
    from hostfork.policy.sharing import _kernel_threads

    threads = _kernel_threads()
    assert str(os.getpid()) not in threads
    for pid in threads:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                flags = int(file.read().rpartition(b")")[2].split()[6])
        except FileNotFoundError:
            continue  # it has ended
        assert flags & 0x00200000
    with contextlib.suppress(FileNotFoundError), open("/proc/2/comm", encoding="ascii") as file:
        assert file.read() != "kthreadd\n" or len(threads) > 5
