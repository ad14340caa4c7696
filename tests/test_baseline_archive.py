"""Baselines of archives: what they hold comes out as it went in, and nothing is written outside."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostfork.baseline.archive import unpack
from hostfork.errors import BaselineError, Code
from rigs import Disk, Person

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
TIME = 1_600_000_000


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.mtime = kind, 0o644, TIME
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def tar(path: str, entries: list[tuple[tarfile.TarInfo, bytes]], mode: Any = "w") -> str:
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as archive:
        for made, content in entries:
            made.size = len(content)
            archive.addfile(made, io.BytesIO(content))
    return path


def facts(tree: str) -> dict[str, Any]:
    """Kind, mode, time, content and names of everything."""
    found, links = {}, dict[int, str]()
    for path in [Path(tree), *sorted(Path(tree).rglob("*"))]:
        seen = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        first = links.setdefault(seen.st_ino, str(path.relative_to(tree)))
        found[str(path.relative_to(tree))] = (
            stat.S_IFMT(seen.st_mode),
            seen.st_mode & 0o7777,
            seen.st_mtime_ns,
            content,
            first,
        )
    return found


def sample(folder: str) -> None:
    os.makedirs(f"{folder}/src/deep/er")
    os.mkdir(f"{folder}/empty")
    os.mkdir(f"{folder}/closed")
    for name, text in {"a": "a\n", "src/b": "", "src/deep/er/c": "c" * 200_000, "closed/d": "d", "ünï\n": "x"}.items():
        Path(f"{folder}/{name}").write_text(text)
    os.symlink("/etc/nowhere", f"{folder}/out")
    os.symlink("a", f"{folder}/in")
    os.link(f"{folder}/src/deep/er/c", f"{folder}/second")
    os.chmod(f"{folder}/a", 0o755)
    os.chmod(f"{folder}/src/b", 0o400)
    for number, path in enumerate(sorted(Path(folder).rglob("*"), reverse=True)):
        os.utime(path, ns=(0, TIME * 10**9 + number * 1001), follow_symlinks=False)
    os.utime(f"{folder}/closed", ns=(0, TIME * 10**9))
    os.chmod(f"{folder}/closed", 0o500)
    os.utime(folder, ns=(0, TIME * 10**9 + 7))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_tar_comes_out_as_it_went_in(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Modes, links, times to the nanosecond, names of any kind, folders too."""
    sample(str(tmp_path / "one"))
    command = ["tar", "--format=posix", "-C", str(tmp_path / "one"), "-cf", "-", "."]
    (tmp_path / "x").write_bytes(compress(subprocess.run(command, check=True, capture_output=True).stdout))
    unpack(str(tmp_path / "x"), str(tmp_path / "two"))
    assert facts(str(tmp_path / "two")) == facts(str(tmp_path / "one"))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_other_tars(format: int, tmp_path: Path) -> None:
    """To the second; long names."""
    sample(str(tmp_path / "one"))
    (tmp_path / "one" / ("n" * 90)).mkdir()
    (tmp_path / "one" / ("n" * 90) / ("m" * 90)).write_text("long")
    with tarfile.open(tmp_path / "x", "w", format=format) as archive:
        archive.add(tmp_path / "one", "top")
    unpack(str(tmp_path / "x"), str(tmp_path / "two"))
    one, two = facts(str(tmp_path / "one")), facts(str(tmp_path / "two" / "top"))
    assert {name: (*value[:2], value[2] // 10**9, value[3]) for name, value in one.items()} == {
        name: (*value[:2], value[2] // 10**9, value[3]) for name, value in two.items()
    }


def test_bytes_that_are_no_utf8_and_holes(tmp_path: Path) -> None:
    """As the system's own tar writes them."""
    one = tmp_path / "one"
    one.mkdir()
    Path(os.fsdecode(bytes(one) + b"/\xff\xfe")).write_text("bytes")
    with open(one / "sparse", "wb") as file:
        file.truncate(50_000_000)
        file.seek(20_000_000)
        file.write(b"data")
    subprocess.run(["tar", "--sparse", "-C", one, "-cf", tmp_path / "x", "."], check=True)
    unpack(str(tmp_path / "x"), str(tmp_path / "two"))
    assert sorted(os.listdir(os.fsencode(tmp_path / "two"))) == sorted(os.listdir(os.fsencode(one)))
    found = (tmp_path / "two" / "sparse").stat()
    assert (found.st_size, found.st_blocks * 512 < 1_000_000) == (50_000_000, True)
    assert (tmp_path / "two" / "sparse").read_bytes()[20_000_000:20_000_004] == b"data"


def test_a_zip_comes_out_as_it_went_in(tmp_path: Path) -> None:
    """Modes and symlinks that a Unix zip holds; without them what is usual."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("plain", "p")
        for name, mode, text in (
            ("run", stat.S_IFREG | 0o755, "r"),
            ("link", stat.S_IFLNK | 0o777, "run"),
            ("d/", stat.S_IFDIR | 0o700, ""),
        ):
            made = zipfile.ZipInfo(name, (2020, 9, 13, 12, 26, 40))
            made.external_attr, made.create_system = mode << 16, 3
            archive.writestr(made, text)
        archive.writestr("e/f", "f")
    unpack(str(tmp_path / "x.zip"), str(tmp_path / "t"))
    found = facts(str(tmp_path / "t"))
    assert {name: (value[1], value[3]) for name, value in found.items() if name not in (".", "link")} == {
        "plain": (0o600, b"p"), "run": (0o755, b"r"), "d": (0o700, None), "e": (0o755, None), "e/f": (0o600, b"f"),
    }  # fmt: skip
    assert os.readlink(tmp_path / "t" / "link") == "run"


HOSTILE: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "absolute": [(entry("/VICTIM/new"), b"x")],
    "dots": [(entry("a/../../VICTIM/new"), b"x")],
    "only dots": [(entry(".."), b"x")],
    "through a symlink": [(entry("out", tarfile.SYMTYPE, linkname="VICTIM"), b""), (entry("out/new"), b"x")],
    "through two": [
        (entry("d", tarfile.DIRTYPE), b""), (entry("d/up", tarfile.SYMTYPE, linkname=".."), b""),
        (entry("d/up/out", tarfile.SYMTYPE, linkname="VICTIM"), b""), (entry("out/new"), b"x"),
    ],
    "a folder through a symlink": [
        (entry("out", tarfile.SYMTYPE, linkname="VICTIM"), b""), (entry("out/new", tarfile.DIRTYPE), b"")],
    "the mode of a folder elsewhere": [
        (entry("out", tarfile.SYMTYPE, linkname="VICTIM"), b""), (entry("out", tarfile.DIRTYPE, mode=0o777), b"")],
    "a link to the outside": [(entry("l", tarfile.LNKTYPE, linkname="VICTIM/old"), b""), (entry("l"), b"x")],
    "a link with dots": [(entry("l", tarfile.LNKTYPE, linkname="../victim/old"), b"")],
    "a link through a symlink": [
        (entry("out", tarfile.SYMTYPE, linkname="VICTIM"), b""),
        (entry("l", tarfile.LNKTYPE, linkname="out/old"), b""),
    ],
    "a link to nothing": [(entry("l", tarfile.LNKTYPE, linkname="nothing"), b"")],
    "a character device": [(entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3), b"")],
    "a whiteout": [(entry("null", tarfile.CHRTYPE, devmajor=0, devminor=0), b"")],
    "a block device": [(entry("disk", tarfile.BLKTYPE, devmajor=8, devminor=0), b"")],
    "a file where a folder was": [(entry("d/x"), b"x"), (entry("d"), b"y")],
    "a folder where a file was": [(entry("d"), b"y"), (entry("d/x"), b"x")],
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tar_is_refused_by_the_name_of_its_entry(name: str, hostfork: Run, person: Person) -> None:
    victim, path = f"{person.home}/victim", f"{person.home}/x.tar"
    person.call(os.mkdir, victim, 0o755)
    person.call(Path(f"{victim}/old").write_text, "old\n")
    entries = []
    for made, content in HOSTILE[name]:
        changed = entry(made.name.replace("VICTIM", victim[1:] if made.name[0] == "/" else victim), made.type,
                        linkname=made.linkname.replace("VICTIM", victim), mode=made.mode, devmajor=made.devmajor,
                        devminor=made.devminor)  # fmt: skip
        entries.append((changed, content))
    tar(path, entries)
    before = facts(victim)
    done = hostfork(person, "baseline", "create", "x", "--archive", path, check=125)
    assert "code baseline.origin" in done.stderr
    assert any(made.name in done.stderr for made, _ in entries)
    assert facts(victim) == before
    hostfork(person, "recover", check=0)
    assert os.listdir(f"{person.state}/pool/baseline") == []


def test_set_uid_bits_and_owners_are_not_taken(root: Person, tmp_path: Path) -> None:
    tar(
        str(tmp_path / "x"),
        [(entry("s", mode=0o6755, uid=1234, gid=1234), b"x"), (entry("d", tarfile.DIRTYPE, mode=0o3777), b"")],
    )
    unpack(str(tmp_path / "x"), str(tmp_path / "t"))
    assert [(tmp_path / "t" / name).stat().st_mode & 0o7777 for name in ("s", "d")] == [0o755, 0o777]
    assert (tmp_path / "t" / "s").stat().st_uid == 0


@pytest.mark.parametrize(
    ("name", "mode", "system"), [("../x", 0o644, 3), ("/etc/x", 0o644, 3), ("a/../../x", 0, 0),
                                 ("dev", stat.S_IFCHR | 0o644, 3), ("fifo", stat.S_IFIFO | 0o644, 3)],
)  # fmt: skip
def test_a_hostile_zip(name: str, mode: int, system: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        made = zipfile.ZipInfo(name)
        made.external_attr, made.create_system = mode << 16, system
        archive.writestr(made, "x")
    with pytest.raises(BaselineError) as caught:
        unpack(str(tmp_path / "x.zip"), str(tmp_path / "t"))
    assert name in caught.value.message
    assert os.listdir(tmp_path / "t") == []


def test_a_zip_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        made = zipfile.ZipInfo("out")
        made.external_attr, made.create_system = (stat.S_IFLNK | 0o777) << 16, 3
        archive.writestr(made, str(tmp_path / "victim"))
        archive.writestr("out/new", "x")
    with pytest.raises(BaselineError):
        unpack(str(tmp_path / "x.zip"), str(tmp_path / "t"))
    assert os.listdir(tmp_path / "victim") == []


@pytest.mark.parametrize("kind", ["tar", "gz", "bz2", "xz", "zip"])
def test_what_is_damaged_is_told(kind: str, tmp_path: Path) -> None:
    """Whichever bytes are wrong: unpacked as they stand, or one typed error."""
    path = tmp_path / "x"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(5):
                archive.writestr(f"d/{number}", os.urandom(3000))
    else:
        content = [(entry(f"d/{number}"), os.urandom(3000)) for number in range(5)]
        tar(str(path), content, "w" if kind == "tar" else f"w:{kind}")
    whole, choice, refused = path.read_bytes(), random.Random(kind), 0
    unpacked = 0
    for number in range(150):
        broken = bytearray(whole)
        for _ in range(choice.randrange(1, 6)):
            broken[choice.randrange(len(broken))] = choice.randrange(256)
        path.write_bytes(broken[: choice.randrange(len(broken))] if number % 3 == 0 else broken)
        try:
            unpack(str(path), str(tmp_path / f"t{number}"))
        except BaselineError as error:
            refused += error.code is Code.BASELINE_ORIGIN
            continue
        unpacked += 1
    assert refused + unpacked == 150
    assert refused > 20


@pytest.fixture(params=["ext4", "btrfs", "xfs"])
def pool_disk(request: pytest.FixtureRequest) -> Disk:
    """A disk for the state folder."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


def test_made_used_and_brought_up_to_date(pool_disk: Disk, hostfork: Run, person: Person) -> None:
    """A fork over the old state stays; what is equal is stored once."""
    env = {"XDG_STATE_HOME": pool_disk.folder(person)}
    path, place = f"{person.home}/x.tar.gz", f"{person.home}/place"
    person.call(os.mkdir, place)
    big = (entry("p/big"), b"0123456789" * 50_000)
    tar(path, [(entry("p/a"), b"one\n"), big, (entry("p/gone"), b"g\n")], "w:gz")
    done = hostfork(person, "baseline", "create", "x", "--archive", path, "--at", place, check=0, env=env)
    assert done.stdout.startswith("x  kept   ")
    run = ("run", "--base", "x", "--cwd", place, "--")
    hostfork(
        person, "run", "--base", "x", "--name", "f", "--", "sh", "-c", f"echo mine >>{place}/p/a", check=0, env=env
    )
    tar(path, [(entry("p/a"), b"two\n"), big, (entry("p/new"), b"n\n")], "w:gz")
    document = json.loads(hostfork(person, "baseline", "refresh", "x", "--json", check=0, env=env).stdout)
    assert document["bytes_copied"] < 1000
    assert (document["baseline"]["origin"], document["baseline"]["place"]) == ("archive", path)
    assert hostfork(person, *run, "sh", "-c", "cat p/a p/new; ls p", check=0, env=env).stdout == "two\nn\na\nbig\nnew\n"
    assert "-one" not in hostfork(person, "diff", "f", "--patch", env=env).stdout
    assert (
        json.loads(hostfork(person, "baseline", "refresh", "x", "--json", check=0, env=env).stdout)["files_copied"] == 0
    )
    hostfork(person, "discard", "f", "--yes", check=0, env=env)
    hostfork(person, "baseline", "refresh", "x", check=0, env=env)
    assert hostfork(person, *run, "sh", "-c", "cat p/a p/new; ls p", check=0, env=env).stdout == "two\nn\na\nbig\nnew\n"
    os.unlink(path)
    assert "code baseline.origin" in hostfork(person, "baseline", "refresh", "x", check=125, env=env).stderr
    hostfork(person, "baseline", "remove", "x", check=0, env=env)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), (b"no archive at all\n" * 100, "tar"), (gzip.compress(b"text"), "tar"), (b"", "tar")],
)
def test_what_is_no_archive(content: bytes | None, words: str, hostfork: Run, user: Person) -> None:
    path = f"{user.home}/x"
    if content is not None:
        user.call(Path(path).write_bytes, content)
    done = hostfork(user, "baseline", "create", "x", "--archive", path, check=125)
    assert "code baseline.origin" in done.stderr
    assert words in done.stderr
    hostfork(user, "recover", check=0)
    assert os.listdir(f"{user.state}/pool/baseline") == []


@pytest.mark.rig("strace")
@pytest.mark.parametrize(
    "call", ["mkdir,mkdirat", "rename,renameat,renameat2", "symlink,symlinkat", "openat2", "utimensat"]
)
@pytest.mark.parametrize("verb", ["create", "refresh"])
def test_killed_at_any_step(verb: str, call: str, hostfork: Run, user: Person) -> None:
    path, place = f"{user.home}/x.tar", f"{user.home}/place"
    user.call(os.mkdir, place)
    for when in (1, 2, 5, 9):
        tar(path, [(entry(f"d/{number}/f"), b"old\n") for number in range(4)])
        if verb == "refresh":
            hostfork(user, "baseline", "create", "x", "--archive", path, "--at", place, check=0)
        tar(path, [(entry(f"d/{number}/f"), b"new\n") for number in range(4)])
        arguments = ("create", "x", "--archive", path, "--at", place) if verb == "create" else ("refresh", "x")
        user.run(["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}",
                  PROGRAM, "baseline", *arguments])  # fmt: skip
        hostfork(user, "recover", check=0)
        listed = json.loads(hostfork(user, "baseline", "list", "--json", check=0).stdout)["baselines"]
        folder = Path(f"{user.state}/pool/baseline")
        left = [found.name for found in folder.iterdir()] if folder.is_dir() else []
        assert left == ["x.0" for _ in listed]
        if verb == "refresh":
            assert len(listed) == 1
        if listed:
            done = hostfork(user, "run", "--base", "x", "--", "sh", "-c", f"cat {place}/d/*/f", check=0)
            assert done.stdout in ("new\n" * 4, "old\n" * 4)
            assert len([name for name in os.listdir(folder / "x.0") if name[0] == "t" and name[1:].isdigit()]) == 1
            hostfork(user, "baseline", "remove", "x", check=0)
