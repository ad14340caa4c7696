"""Whatever is in a tree comes out of a fork as it went in: through the command line, on every mechanism."""

import base64
import contextlib
import json
import os
import pickle
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rigs import Disk, Person, make_home
from storage_cases import IMMUTABLE, build, facts, make_subvolume, sample, set_flags, write
from test_run import changed, make_project, names

Run = Callable[..., Any]
HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = (
    ("ext4", ":copy"),
    ("ext4", ":live"),
    ("ext4", ":overlay"),
    ("tmpfs", ":copy"),
    ("xfs", ":reflink"),
    ("btrfs", ":btrfs"),
    ("btrfs", ":overlay"),
    ("btrfs", ":reflink"),
)


@pytest.fixture(params=WAYS, ids=["".join(way) for way in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[Disk, str]:
    """A disk, and a mechanism that works on it."""
    kind, mode = request.param
    return request.getfixturevalue(f"{kind}_disk"), mode


def seen(hostfork: Run, person: Person, source: str, pool: str, mode: str, *options: str) -> Any:
    """What a command in a fork reads there, by `facts` in a Python of its own."""
    script = (
        f"import pickle, sys; sys.path.insert(0, {HERE!r}); from storage_cases import facts;"
        "sys.stdout.buffer.write(pickle.dumps(facts('.')))"
    )
    done = hostfork(
        person, "run", "--pool", pool, *options, "--private", source + mode, "--", sys.executable, "-c", script,
        cwd=source, binary=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return pickle.loads(done.stdout)


def as_inside(facts_of: dict[bytes, tuple[Any, ...]], person: Person, links: bool) -> dict[bytes, tuple[Any, ...]]:
    """What an ordinary user's namespace shows: other groups as nobody's; without the names of one file on overlays."""
    return {name: fact if links or len(fact) <= 7 else fact[:-1] for name, fact in facts_of.items()}


def test_a_command_sees_what_the_host_holds(hostfork: Run, person: Person, way: tuple[Disk, str]) -> None:
    """Every kind of entry with all that it has; looking changes nothing on either side."""
    disk, mode = way
    source, pool = sample(person, disk)
    before = person.call(facts, source)
    links = mode not in (":live", ":overlay")
    there = seen(hostfork, person, source, pool, mode)
    assert as_inside(there, person, links) == as_inside(before, person, links)
    assert names(hostfork, person) == []
    assert person.call(facts, source) == before


def test_what_comes_out_is_what_went_in(hostfork: Run, person: Person, way: tuple[Disk, str]) -> None:
    """A whole export of a fork, in which one thing changed, equals the source but for that and what is said."""
    disk, mode = way
    source, pool = sample(person, disk)
    target = os.path.join(os.path.dirname(source), "exported")
    hostfork(person, "run", "--pool", pool, "--name", "e", "--private", source + mode, "--",
             "sh", "-c", "echo new >new", cwd=source, check=0)  # fmt: skip
    assert changed(hostfork, person, "e", source) == {"new": "created"}
    done = hostfork(person, "export", "e", target, check=0)
    before, after = person.call(facts, source), person.call(facts, target)
    left_out = {name for name, fact in before.items() if stat.S_IFMT(fact[0]) in
                (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK)}  # fmt: skip
    assert set(before) - set(after) == left_out
    assert set(after) - set(before) == {b"new"}
    for name in left_out:
        assert os.fsdecode(name) in done.stdout + done.stderr
    wrong = {
        name: (_exported(fact), _exported(after[name]))
        for name, fact in before.items()
        if name and name not in left_out and _exported(fact) != _exported(after[name])
    }
    assert wrong == {}
    assert os.lstat(f"{target}/holes").st_blocks * 512 < 1 << 20
    hostfork(person, "discard", "e", "--yes", check=0)


def _exported(fact: tuple[Any, ...]) -> tuple[Any, ...]:
    """What an export keeps of an entry: not set-uid bits, flags, nor what security modules and overlays add."""
    mode, uid, gid, size, content, attributes, when = fact[:7]
    special = stat.S_ISUID | stat.S_ISGID if stat.S_ISREG(mode) else 0
    kept = {name: value for name, value in attributes.items() if name.startswith(("user.", "system."))}
    return mode & ~special, uid, gid, size, content, kept, when


# --- what cannot be read ----------------------------------------------------------------------------------------------


def private_of(shown: dict[str, Any]) -> dict[str, Any]:
    """The private path of `show --json`."""
    found: dict[str, Any] = next(path for path in shown["paths"] if path["access"] == "private")
    return found


def _closed(source: str) -> None:
    """As a container leaves a project: folders and files of root's."""
    write(f"{source}/secret", b"s", 0o600)
    os.mkdir(f"{source}/data", 0o700)
    write(f"{source}/data/inside", b"d")


@pytest.mark.rig("root")
@pytest.mark.parametrize(("kind", "mode"), [("ext4", ":copy"), ("xfs", ":reflink")])
def test_what_cannot_be_read_is_refused_by_name_or_left_out(
    request: pytest.FixtureRequest, hostfork: Run, user: Person, kind: str, mode: str
) -> None:
    source, pool = sample(user, request.getfixturevalue(f"{kind}_disk"), lambda path: write(f"{path}/mine", b"m"))
    _closed(source)
    private = ["--pool", pool, "--private", source + mode]
    refused = hostfork(user, "run", *private, "--", "true", check=125).stderr
    assert f"{source}/secret" in refused
    assert f"{source}/data" in refused
    assert "--unreadable skip" in refused
    plan = hostfork(user, "plan", *private, "--unreadable", "skip", check=0).stdout
    assert f"left out of {source}" in plan
    script = "echo more >mine; cat secret; ls data; ls -A | sort; rm -f secret"
    result = f"{user.home}/result.json"
    done = hostfork(user, "run", "--name", "s", "--result", result, *private, "--unreadable", "skip", "--",
                    "sh", "-c", script, cwd=source)  # fmt: skip
    assert done.stdout.split() == ["data", "mine", "secret"]
    assert done.stderr.count("Permission denied") == 2
    assert f"left out of {source}, since this user cannot read it: data, secret" in done.stderr
    assert changed(hostfork, user, "s", source) == {"mine": "modified"}
    shown = json.loads(hostfork(user, "show", "s", "--json", check=0).stdout)
    assert private_of(shown)["skipped"] == ["data", "secret"]
    assert json.loads(Path(result).read_text())["paths"][0]["skipped"] == ["data", "secret"]
    assert "left out, not readable: data, secret" in hostfork(user, "show", "s", check=0).stdout
    target = os.path.join(os.path.dirname(source), "exported")
    hostfork(user, "export", "s", target, check=0)
    assert os.listdir(target) == ["mine"]
    hostfork(user, "discard", "s", "--yes", check=0)
    assert os.stat(f"{source}/secret").st_size == 1


@pytest.mark.rig("root")
def test_a_policy_says_what_becomes_of_what_cannot_be_read(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    """The option wins over the policy; a word that is none is refused."""
    source, _ = sample(user, ext4_disk, lambda path: write(f"{path}/mine", b"m"))
    _closed(source)
    policy = f"{user.home}/skip.toml"
    user.call(Path(policy).write_text, 'schema = 1\nunreadable = "skip"\n')
    given = ["--policy", policy, "--private", source + ":copy"]
    hostfork(user, "run", *given, "--", "true", check=0)
    hostfork(user, "run", *given, "--unreadable", "refuse", "--", "true", check=125)
    user.call(Path(policy).write_text, 'schema = 1\nunreadable = "drop"\n')
    assert "policy.bad-value" in hostfork(user, "run", *given, "--", "true", check=125).stderr
    wrong = hostfork(user, "run", "--private", source, "--unreadable", "drop", "--", "true", check=125).stderr
    assert "skip" in wrong


def test_what_a_copy_could_not_keep_is_named(hostfork: Run, person: Person, btrfs_disk: Disk, ext4_disk: Disk) -> None:
    """Flags that the pool's filesystem does not have: in the record, and with -v."""
    source, _ = sample(person, btrfs_disk, build)
    pool = os.path.join(ext4_disk.folder(person), "pool")
    person.call(os.mkdir, pool, 0o700)
    done = hostfork(person, "run", "-v", "--keep", "--name", "l", "--pool", pool, "--private", source + ":copy",
                    "--", "true", check=0)  # fmt: skip
    assert "not kept in the copy: flagged (no-copy-on-write), flagged-folder (no-copy-on-write)" in done.stderr
    shown = json.loads(hostfork(person, "show", "l", "--json", check=0).stdout)
    assert {"path": "flagged", "what": ["no-copy-on-write"]} in private_of(shown)["lost"]
    hostfork(person, "discard", "l", "--yes", check=0)


# --- mounts of the host beneath a private path -----------------------------------------------------------------------


@pytest.fixture
def mounted(way: tuple[Disk, str], person: Person, root: Person) -> Iterator[tuple[str, str]]:
    """A project and a pool: a tmpfs, a bind, a bound file and the person's own FUSE filesystem lie in the project."""
    source, pool = sample(person, way[0], _with_places)
    places = [f"{source}/{name}" for name in ("memory", "bind", "file", "fuse")]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0777", "tmpfs", places[0]], check=True)
    subprocess.run(["mount", "--bind", f"{source}/other", places[1]], check=True)
    subprocess.run(["mount", "--bind", f"{source}/other/file", places[2]], check=True)
    with fuse(places[3], person):
        yield source, pool
    for place in reversed(places[:3]):
        subprocess.run(["umount", place], check=True)


def _with_places(path: str) -> None:
    for name in ("memory", "bind", "fuse", "other"):
        os.mkdir(f"{path}/{name}")
    write(f"{path}/file", b"hidden\n")
    write(f"{path}/bind/hidden", b"hidden\n")
    write(f"{path}/other/file", b"bound\n")


@contextlib.contextmanager
def fuse(place: str, owner: Person) -> Iterator[None]:
    """A FUSE filesystem of somebody's, which shows nothing to others."""
    program = os.path.join(HERE, "fuse_rig.py")
    command = [sys.executable, "-I", "-S", program, place, str(owner.uid), str(owner.gid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            subprocess.run(["umount", place], check=True)


@pytest.mark.rig("root")
def test_mounts_beneath_stay_the_hosts(
    hostfork: Run, person: Person, way: tuple[Disk, str], mounted: tuple[str, str]
) -> None:
    """Each is put back and listed, on every mechanism; where one cannot serve, it says so by a mount's name (CASES 5).

    An ordinary user's overlay would uncover what a mount hides; and what it hides in a snapshot they could not remove.
    """
    source, pool = mounted
    private = ["--pool", pool, "--private", source + way[1]]
    if way[1] in (":live", ":btrfs") and person.uid != 0:
        refused = hostfork(person, "run", *private, "--", "true", check=125).stderr
        assert "storage.unsupported" in refused
        assert any(f"{source}/{name}" in refused for name in ("memory", "bind", "file", "fuse"))
        # Not asked for by name, another mechanism serves.
        private = ["--pool", pool, "--private", source]
    plan = json.loads(hostfork(person, "plan", *private, "--json", check=0).stdout)
    places = {f"{source}/{name}" for name in ("memory", "bind", "file", "fuse")}
    assert {mount["path"] for mount in plan["nested_mounts"]} == places
    script = "cat file bind/file fuse/hello; ls -A bind; echo x >memory/x; echo y >bind/y; echo z >z; rm other/file"
    done = hostfork(person, "run", "--name", "m", *private, "--", "sh", "-c", script, cwd=source)
    assert done.stdout == "bound\nbound\nfrom a fuse filesystem\nfile\n", done.stderr
    assert os.path.exists(f"{source}/memory/x")
    assert os.path.exists(f"{source}/other/y")
    assert changed(hostfork, person, "m", source) == {"z": "created", "other/file": "deleted"}
    target = os.path.join(os.path.dirname(source), "exported")
    hostfork(person, "export", "m", target, check=0)
    assert not os.path.exists(f"{target}/bind/hidden")
    hostfork(person, "discard", "m", "--yes", check=0)
    assert os.listdir(f"{source}/other") != []
    os.unlink(f"{source}/memory/x")


@pytest.mark.rig("root")
@pytest.mark.parametrize("mode", [":copy", ":reflink"])
def test_a_fuse_mount_of_somebody_elses_is_no_obstacle(
    hostfork: Run, user: Person, root: Person, xfs_disk: Disk, mode: str
) -> None:
    """Nobody but its owner may look at it, not even root: it is put back unseen."""
    source, pool = sample(user, xfs_disk, _with_places)
    with fuse(f"{source}/fuse", root):
        done = hostfork(user, "run", "--name", "f", "--pool", pool, "--private", source + mode, "--",
                        "sh", "-c", "ls fuse; echo z >z", cwd=source)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Permission denied" in done.stderr
        assert changed(hostfork, user, "f", source) == {"z": "created"}
        hostfork(user, "discard", "f", "--yes", check=0)
    pool = f"{root.home}/pool"
    root.call(os.mkdir, pool, 0o700)
    with fuse(f"{source}/fuse", user):
        hostfork(root, "run", "--rm", "--pool", pool, "--private", source + ":copy", "--", "touch", "z", cwd=source,
                 check=0)  # fmt: skip


# --- where home and pool lie ------------------------------------------------------------------------------------------


@pytest.mark.rig("root")
def test_a_home_in_a_subvolume_of_roots(hostfork: Run, user: Person, btrfs_disk: Disk) -> None:
    """A snapshot needs the subvolume's ownership (`@home` is root's): a clone serves, and says why (fact 6)."""
    top = f"{btrfs_disk.folder(user)}/@home"
    make_subvolume(top)
    os.chmod(top, 0o755)
    home = make_home(top, user.uid, user.gid)
    user = replace(user, home=home)
    project = f"{home}/proj"
    user.call(os.mkdir, project)
    user.call(build, project)
    before = user.call(facts, project)
    plan = json.loads(hostfork(user, "plan", "--private", project, "--json", check=0).stdout)
    path = next(one for one in plan["paths"] if one["path"] == project)
    assert (path["mechanism"], path["guarantee"]) == ("reflink", "independent")
    assert any(one["mechanism"] == "btrfs" and "belongs to user 0" in one["reason"] for one in path["refused"])
    refused = hostfork(user, "run", "--private", project + ":btrfs", "--", "true", check=125).stderr
    assert "belongs to user 0" in refused
    done = hostfork(user, "run", "--name", "h", "--private", project, "--", "sh", "-c", "echo x >>small", cwd=project)
    assert done.returncode == 0, done.stderr
    assert changed(hostfork, user, "h", project) == {"small": "modified"}
    hostfork(user, "discard", "h", "--yes", check=0)
    assert user.call(facts, project) == before
    # The whole home, which holds the pool.
    done = hostfork(user, "run", "--name", "h", "--private", home, "--", "sh", "-c", "echo x >x", cwd=home)
    assert done.returncode == 0, done.stderr
    assert changed(hostfork, user, "h", home) == {"x": "created"}
    hostfork(user, "discard", "h", "--yes", check=0)


POOLS = ("btrfs", "xfs", "tmpfs", "overlay")


@pytest.fixture(params=POOLS)
def elsewhere(request: pytest.FixtureRequest, person: Person, ext4_disk: Disk) -> Iterator[str]:
    """A pool of the person's on another filesystem than the project's, an overlay as inside a container too."""
    if request.param != "overlay":
        disk: Disk = request.getfixturevalue(f"{request.param}_disk")
        pool = os.path.join(disk.folder(person), "pool")
        person.call(os.mkdir, pool, 0o700)
        yield pool
        return
    with overlay(ext4_disk.folder(person), person) as place:
        pool = f"{place}/pool"
        person.call(os.mkdir, pool, 0o700)
        yield pool


@contextlib.contextmanager
def overlay(folder: str, person: Person) -> Iterator[str]:
    """An overlay that belongs to somebody, mounted by root as a container engine does it."""
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(f"{folder}/{name}", 0o755)
        os.chown(f"{folder}/{name}", person.uid, person.gid)
    layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    subprocess.run(["mount", "-t", "overlay", "none", f"{folder}/merged", "-o", layers], check=True)
    try:
        yield f"{folder}/merged"
    finally:
        subprocess.run(["umount", f"{folder}/merged"], check=True)


@pytest.mark.rig("root")
def test_a_pool_on_another_filesystem(hostfork: Run, person: Person, ext4_disk: Disk, elsewhere: str) -> None:
    """A copy lies there, whole; what needs the source's filesystem is refused by name and copies nothing (CASES 12)."""
    source, _ = sample(person, ext4_disk)
    before = person.call(facts, source)
    there = seen(hostfork, person, source, elsewhere, ":copy")
    flags_lost = {name for name, fact in before.items() if name in there and there[name][5] != fact[5]}
    assert flags_lost <= {b"flagged", b"flagged-folder"}
    for name in before:
        if name not in flags_lost:
            assert there[name] == before[name]
    assert set(there) == set(before)
    for mode in (":reflink", ":btrfs", ":snapshot"):
        refused = hostfork(person, "run", "--pool", elsewhere, "--private", source + mode, "--", "true", check=125)
        assert "code storage.unsupported" in refused.stderr
    assert [files for _, _, files in os.walk(elsewhere) if files] == []
    assert person.call(facts, source) == before
    assert names(hostfork, person) == []


@pytest.mark.rig("root")
def test_inside_a_containers_overlay(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """Home, project and pool on one overlay: a copy by itself; `:live` is refused with the reason, or works."""
    with overlay(ext4_disk.folder(person), person) as place:
        someone = replace(person, home=make_home(place, person.uid, person.gid))
        project = f"{someone.home}/proj"
        someone.call(os.mkdir, project)
        someone.call(build, project)
        before = someone.call(facts, project)
        done = hostfork(someone, "run", "--name", "c", "--private", project, "--", "sh", "-c", "echo x >>small",
                        cwd=project)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert changed(hostfork, someone, "c", project) == {"small": "modified"}
        hostfork(someone, "discard", "c", "--yes", check=0)
        live = hostfork(someone, "run", "--rm", "--private", project + ":live", "--", "cat", "small")
        assert live.stdout == "small\n" if live.returncode == 0 else "cannot hold an upper folder" in live.stderr
        assert someone.call(facts, project) == before


def test_a_home_with_a_container_store(hostfork: Run, person: Person) -> None:
    """An overlay would hide files of its images: refused, and the rule that is named helps (DESIGN fact 23)."""
    store, home = f"{person.home}/.local/share/containers", person.home

    def make() -> None:
        os.makedirs(f"{store}/storage/overlay/two/diff")
        os.mknod(f"{store}/storage/overlay/two/diff/gone", stat.S_IFCHR, os.makedev(0, 0))

    person.call(make)
    refused = hostfork(person, "run", "--private", f"{home}:live", "--", "true", check=125).stderr
    assert f"--shared {store}" in refused
    look = ["stat", "-c", "%t:%T", f"{store}/storage/overlay/two/diff/gone"]
    done = hostfork(person, "run", "--rm", "--private", f"{home}:live", "--shared", store, "--", *look, check=0)
    assert done.stdout == "0:0\n"
    assert hostfork(person, "run", "--rm", "--private", f"{home}:copy", "--", *look, check=0).stdout == "0:0\n"
    plan = hostfork(person, "plan", "--private", f"{home}:live", "--shared", store, check=0).stdout
    assert "layers of other overlays" in plan


# --- the rest of the cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["a:b,c\\d", "new\nline \udcff", "x:live"])
def test_odd_names_on_every_mechanism(hostfork: Run, person: Person, way: tuple[Disk, str], odd: str) -> None:
    """Source, pool and entries with such names (CASES 6)."""
    disk, mode = way
    top = os.path.dirname(sample(person, disk, lambda _: None)[0])
    source, pool = os.path.join(top, odd), os.path.join(top, "p" * 200, odd)

    def make() -> None:
        os.makedirs(pool, 0o700)
        make_project(source)

    person.call(make)
    script = 'echo x >"$1"; mkdir "d$1"; echo y >"d$1/$1"; rm a'
    done = hostfork(person, "run", "--name", "o", "--pool", pool, "--private", source + mode, "--",
                    "sh", "-c", script, "sh", odd, cwd=source)  # fmt: skip
    assert done.returncode == 0, done.stderr
    entries = json.loads(hostfork(person, "diff", "o", "--json", check=0).stdout)["entries"]
    paths = {base64.b64decode(one["path_bytes"]) if "path_bytes" in one else one["path"].encode() for one in entries}
    assert paths == {os.fsencode(f"{source}/{name}") for name in ("a", odd, f"d{odd}", f"d{odd}/{odd}")}
    hostfork(person, "discard", "o", "--yes", check=0)


def _read_only(path: str) -> None:
    os.makedirs(f"{path}/closed/inner")
    write(f"{path}/closed/inner/file", b"f")
    write(f"{path}/file", b"f")
    os.chmod(f"{path}/closed/inner", 0o555)
    os.chmod(f"{path}/closed", 0o555)


def test_all_storage_goes_whatever_its_modes(hostfork: Run, person: Person, way: tuple[Disk, str]) -> None:
    """Folders of mode 0555, of 0000 made inside, a base file deleted, a used work folder (CASES 22)."""
    disk, mode = way
    source, pool = sample(person, disk, _read_only)
    script = "rm file; mkdir -p new/dark/deep; echo x >new/dark/deep/x; chmod 0 new/dark; chmod 700 closed; >closed/y"
    for keep in ("--keep", "--rm"):
        hostfork(person, "run", keep, "--name", "g", "--pool", pool, "--private", source + mode, "--",
                 "sh", "-c", script, cwd=source, check=0)  # fmt: skip
        if keep == "--keep":
            hostfork(person, "discard", "g", "--yes", check=0)
    hostfork(person, "recover", check=0)
    kinds = [kind for kind in os.scandir(pool) if not kind.is_symlink() and kind.name != "baseline"]
    assert [name for kind in kinds for name in os.listdir(kind)] == []
    assert names(hostfork, person) == []


@pytest.mark.rig("root")
def test_a_users_subvolumes_inside_a_fork_go_with_it(
    hostfork: Run, user: Person, make_disk: Callable[..., Disk]
) -> None:
    """Without `user_subvol_rm_allowed`; afterwards the list of subvolumes is as before (CASES 11)."""
    disk = make_disk("btrfs")
    source, pool = sample(user, disk, lambda path: write(f"{path}/file", b"f"))

    def listed() -> str:
        return subprocess.run(
            ["btrfs", "subvolume", "list", disk.path], check=True, capture_output=True, text=True
        ).stdout

    hostfork(user, "run", "--rm", "--pool", pool, "--private", source + ":btrfs", "--", "true", check=0)
    before = {line.split(" path ")[1] for line in listed().splitlines()}
    script = "btrfs subvolume create x && echo y >x/y && btrfs subvolume create x/inner && echo z >x/inner/z"
    for keep in ("--keep", "--rm"):
        hostfork(user, "run", keep, "--name", "s", "--pool", pool, "--private", source + ":btrfs", "--",
                 "sh", "-c", script, cwd=source, check=0)  # fmt: skip
        if keep == "--keep":
            assert changed(hostfork, user, "s", source)["x/inner/z"] == "created"
            hostfork(user, "discard", "s", "--yes", check=0)
    hostfork(user, "recover", check=0)
    assert {line.split(" path ")[1] for line in listed().splitlines()} == before


@pytest.mark.rig("root")
@pytest.mark.parametrize("mode", [":copy", ":reflink", ":live"])
def test_files_of_other_users_and_of_a_group_that_one_is_in(
    hostfork: Run, user: Person, xfs_disk: Disk, mode: str
) -> None:
    """Rewritten, appended to, a file beside, packed: what the plan says of them holds (CASES 13)."""
    source, pool = sample(user, xfs_disk, make_project)
    os.chown(f"{source}/a", 4321, user.gid)
    os.chmod(f"{source}/a", 0o664)
    os.chown(f"{source}/b", 4321, 7001)
    os.chmod(f"{source}/b", 0o664)
    plan = hostfork(user, "plan", "--pool", pool, "--private", source + mode, check=0).stdout
    assert "show as nobody's" in plan
    script = "tar -cf /dev/null . && echo beside >beside; echo more >>a; echo new >a; echo more >>b"
    done = hostfork(user, "run", "--name", "g", "--pool", pool, "--private", source + mode, "--",
                    "sh", "-c", script, cwd=source)  # fmt: skip
    found = changed(hostfork, user, "g", source)
    assert found.pop("beside") == "created"
    # The group's file can be written as on the host, but for an overlay, of which the plan says so; the other's not.
    assert found == ({} if mode == ":live" else {"a": "modified"})
    assert ("too large for defined data type" in done.stderr) == ("too large for defined data type" in plan)
    assert ("too large for defined data type" in plan) == (mode == ":live")
    assert "Permission denied" in done.stderr
    hostfork(user, "discard", "g", "--yes", check=0)


@pytest.mark.rig("root", "attr tools")
def test_what_root_locks_inside(hostfork: Run, root: Person, way: tuple[Disk, str]) -> None:
    """Immutable and append-only files and folders in a fork: kept, shown, exported, and gone with it."""
    disk, mode = way
    if disk.kind == "tmpfs":
        mode = ":live"  # an overlay whose upper folder lies in memory
    source, pool = sample(root, disk, make_project)
    script = "echo x >>a; echo x >src/x; mkdir n; echo y >n/y; chattr +i a src n/y; chattr +a n cache"
    hostfork(root, "run", "--name", "i", "--pool", pool, "--private", source + mode, "--", "sh", "-c", script,
             cwd=source, check=0)  # fmt: skip
    assert changed(hostfork, root, "i", source) == {
        "a": "modified", "src/x": "created", "n": "created", "n/y": "created",
    }  # fmt: skip
    target = os.path.join(os.path.dirname(source), "exported")
    hostfork(root, "export", "i", target, check=0)
    assert Path(f"{target}/n/y").read_text() == "y\n"
    assert Path(f"{target}/src/deep/d").read_text() == "src/deep/d\n" * 3
    hostfork(root, "discard", "i", "--yes", check=0)
    hostfork(root, "recover", check=0)
    assert names(hostfork, root) == []
    assert [name for name in os.listdir(pool) if name.startswith("rm-")] == []


@pytest.mark.rig("root")
def test_a_locked_file_in_a_users_snapshot(hostfork: Run, user: Person, make_disk: Callable[..., Disk]) -> None:
    """The one thing that is not looked for: what stays is named, and goes once root has unlocked it."""
    source, pool = sample(user, make_disk("btrfs"), lambda path: write(f"{path}/file", b"f"))
    set_flags(f"{source}/file", IMMUTABLE)
    hostfork(
        user, "run", "--keep", "--name", "f", "--pool", pool, "--private", source + ":btrfs", "--", "true", check=0
    )
    set_flags(f"{source}/file", 0)
    hostfork(user, "discard", "f", "--yes")
    for _ in range(2):  # the second time the base, which is a snapshot too
        said = hostfork(user, "recover").stderr
        found = re.search(r"immutable or append-only: as root `(chattr [^`]*)`, then `hostfork recover`", said)
        assert found is not None, said
        subprocess.run(found[1], shell=True, check=True)
    hostfork(user, "recover", check=0)
    assert names(hostfork, user) == []
    assert os.listdir(f"{pool}/btrfs") == []


# --- deeper than a path can say ---------------------------------------------------------------------------------------

LEVELS, NAME = 300, "twenty-letters-long-"


def _down(top: str, make: bool) -> None:
    """Go down to the bottom of a chain of folders, step by step: its path is longer than PATH_MAX."""
    os.chdir(top)
    for _ in range(LEVELS):
        if make:
            os.mkdir(NAME)
        os.chdir(NAME)


def _deep(top: str) -> None:
    _down(top, make=True)
    write("bottom", b"b\n")


def _at_the_bottom(top: str) -> dict[str, bytes]:
    _down(top, make=False)
    return {name: Path(name).read_bytes() for name in os.listdir(".")}


@pytest.fixture
def deep(way: tuple[Disk, str], person: Person) -> Iterator[tuple[str, str]]:
    """A tree of 300 folders in each other, and a pool."""
    source, pool = sample(person, way[0], _deep)
    yield source, pool
    # What removes the disk's folders cannot. A baseline stays in the pool; and an eraser may still be at work there.
    top = os.path.dirname(source)
    command = ["rm", "-rf", *(f"{top}/{name}" for name in ("source", "pool", "whole", "part"))]
    assert any(subprocess.run(command, check=False).returncode == 0 for _ in range(20))


def test_a_tree_deeper_than_a_path(hostfork: Run, person: Person, way: tuple[Disk, str], deep: tuple[str, str]) -> None:
    """Taken, worked in, compared, exported, released: nothing of hostfork's needs a whole path."""
    source, pool = deep
    script = (
        f"import os\nfor _ in range({LEVELS}): os.chdir({NAME!r})\n"
        "print(open('bottom').read(), end='')\nopen('bottom', 'a').write('more\\n')\nopen('new', 'w').write('n')"
    )
    done = hostfork(person, "run", "--name", "d", "--pool", pool, "--private", source + way[1], "--",
                    sys.executable, "-c", script, cwd=source)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "b\n"), done.stderr
    bottom = "/".join([source, *[NAME] * LEVELS])
    assert len(bottom) > 4096
    entries = json.loads(hostfork(person, "diff", "d", "--json", check=0).stdout)["entries"]
    assert {entry["path"]: entry["change"] for entry in entries} == {
        f"{bottom}/bottom": "modified", f"{bottom}/new": "created",
    }  # fmt: skip
    top = os.path.dirname(source)
    hostfork(person, "export", "d", f"{top}/whole", check=0)
    hostfork(person, "export", "d", f"{top}/part", "--changes-only", check=0)
    for target in ("whole", "part"):
        assert person.call(_at_the_bottom, f"{top}/{target}") == {"bottom": b"b\nmore\n", "new": b"n"}
    assert person.call(_at_the_bottom, source) == {"bottom": b"b\n"}
    assert "+more" in hostfork(person, "diff", "d", "--patch", check=0).stdout
    hostfork(person, "export", "d", "--tar", f"{top}/d.tar", check=0)
    with tarfile.open(f"{top}/d.tar") as archive:
        inside = archive.extractfile("/".join([*[NAME] * LEVELS, "bottom"]))
        assert inside is not None
        assert inside.read() == b"b\nmore\n"
    hostfork(person, "show", "d", check=0)
    hostfork(person, "list", check=0)
    hostfork(person, "discard", "d", "--yes", check=0)
    assert names(hostfork, person) == []


# --- the page that says so --------------------------------------------------------------------------------------------

TRIED = {
    "content, holes in files, empty files and folders": "test_a_command_sees_what_the_host_holds",
    "symlinks, FIFOs, sockets": "test_a_command_sees_what_the_host_holds",
    "hard links": "test_guarantees_say_what_a_fork_can_do",
    "names of any bytes, of 255 bytes, that differ by case alone": "test_odd_names_on_every_mechanism",
    "folders deeper than a path can say (4,096 bytes)": "test_a_tree_deeper_than_a_path",
    "permission bits, set-uid, set-gid, sticky": "test_what_a_user_cannot_give_is_named",
    "owners and groups": "test_own_files_with_a_foreign_group",
    "times in nanoseconds, of folders too": "test_what_comes_out_is_what_went_in",
    "extended attributes, ACLs": "test_what_a_user_cannot_give_is_named",
    "devices": "test_devices_are_there_and_opened_by_root",
    "flags of `chattr`: `A`, `S`, `d`, `C`, `c`": "test_flags_after_a_write",
    "immutable and append-only files and folders": "test_what_root_locked_is_taken_unlocked_and_named",
    "what the user cannot read": "test_what_cannot_be_read_is_refused_by_name_or_left_out",
    "files that change meanwhile": "test_a_file_that_keeps_changing_is_unstable",
    "mounts of the host beneath it": "test_mounts_beneath_stay_the_hosts",
    "layers of other overlays": "test_layers_are_kept_but_by_overlays",
    "a home in a Btrfs subvolume of root's (`@home`)": "test_a_home_in_a_subvolume_of_roots",
    "PATH on another disk than the state folder": "test_it_is_a_closed_folder_on_the_sources_disk",
    "a pool on another filesystem than PATH": "test_a_pool_on_another_filesystem",
    "a pool in memory": "test_a_pool_on_another_filesystem",
    "home, PATH and pool on an overlay, as inside a container": "test_inside_a_containers_overlay",
}
"""Each line of docs/fidelity.md, and the test of the storage suites or of this one that tries most of it."""


def test_every_line_of_the_page_is_tried() -> None:
    page = Path(HERE).parent / "docs/fidelity.md"
    lines = [line.strip("| ").split(" | ")[0] for line in page.read_text().splitlines() if line.startswith("| ")]
    assert [line for line in lines if line not in ("in the tree", "place") and not line.startswith("---")] == list(
        TRIED
    )
    suites = "".join((Path(HERE) / name).read_text() for name in os.listdir(HERE) if name.startswith("test_"))
    assert [name for name in TRIED.values() if f"def {name}(" not in suites] == []
