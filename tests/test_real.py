"""On something real: packages' own builds and test suites in forks, repositories and databases under load.

`./dev test tests/test_real.py` runs this lane alone. What is fetched for it, and where it is kept: `real_projects.py`.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import real_projects
from real_projects import Fetched, Picture, difference, is_content_of, picture
from rigs import Bench, Disk, Person, find_program, make_home, write_files
from storage_cases import make_subvolume

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
PYTHON = os.path.realpath(sys.executable)
MODES = ("ext4:copy", "ext4:live", "btrfs:btrfs", "btrfs:overlay", "btrfs:reflink", "xfs:reflink", "xfs:live")
"""What a person may ask for on which disk: each mechanism where it is most used."""
ALTERNATING = tuple(f"{'user' if index % 2 else 'root'}-{mode}" for index, mode in enumerate(MODES))
CROSSED = tuple(f"{'root' if index % 2 else 'user'}-{mode}" for index, mode in enumerate(MODES))
ONCE_EACH = (*CROSSED[:4], CROSSED[5])
"""Each mechanism by one person, """
EVERYWHERE = (*ALTERNATING[:4], ALTERNATING[5], *ONCE_EACH)
"""and by both."""


@dataclass(frozen=True)
class Spot:
    """Somebody's place on a disk, and what they ask for there."""

    person: Person
    """Their home folder is on the disk."""
    disk: Disk
    mode: str
    hostfork: Run

    @property
    def project(self) -> str:
        """Where their project lies."""
        return f"{self.person.home}/proj"

    @property
    def aside(self) -> str:
        """A shared folder beside it."""
        return f"{self.person.home}/aside"

    def on_host(self, *argv: str, **options: Any) -> str:
        """Run a program on the host in the project; what it printed."""
        options.setdefault("timeout", 600)
        done = self.person.run(argv, cwd=self.project, check=True, **options)
        return str(done.stdout)

    def command(self, *argv: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        """hostfork's arguments to run `argv` in a fork of the project."""
        return ("run", *options, "--private", f"{self.project}{self.mode}", "--", *argv)

    def run(self, *argv: str, options: tuple[str, ...] = ("--rm",), **more: Any) -> str:
        """Run it, and be content with status 0 only; what it printed."""
        more.setdefault("timeout", 600)
        done = self.hostfork(
            self.person, *self.command(*argv, options=options), cwd=self.project, **({"check": 0} | more)
        )
        return str(done.stdout)

    def offer(self) -> dict[str, Any]:
        """What the plan says of the project: the mechanism's guarantees."""
        private = f"{self.project}{self.mode}"
        plan = json.loads(self.hostfork(self.person, "plan", "--private", private, "--json", check=0).stdout)
        planned = next(path for path in plan["paths"] if path["path"] == self.project)
        return {"guarantee": planned["guarantee"]} | planned["offer"]

    def await_erased(self) -> None:
        """What was thrown away is erased in the background; then nothing is left, and the folder can be removed."""
        self.hostfork(self.person, "recover", check=0)
        while (left := json.loads(self.hostfork(self.person, "list", "--json", check=0).stdout))["reclaiming"]:
            time.sleep(0.1)
        assert left["forks"] == left["broken"] == []

    @contextlib.contextmanager
    def untouched(self) -> Iterator[Picture]:
        """The host's project is the same, byte for byte, before and after."""
        before = picture(self.project)
        yield before
        assert difference(before, picture(self.project)) == []


def spots(*names: str) -> Any:
    """Run the test at these: `person-disk:mode`."""
    return pytest.mark.parametrize("spot", names, indirect=True)


@pytest.fixture
def spot(request: pytest.FixtureRequest, hostfork: Run) -> Iterator[Spot]:
    """The place that the parameter names."""
    name, _, rest = request.param.partition("-")
    kind, _, mode = rest.partition(":")
    person, disk = request.getfixturevalue(name), request.getfixturevalue(f"{kind}_disk")
    made = _settle(person, disk, f":{mode}" if mode else "", hostfork)
    yield made
    made.await_erased()


def _settle(person: Person, disk: Disk, mode: str, hostfork: Run) -> Spot:
    """A home folder on the disk, on Btrfs in a subvolume that is theirs."""
    folder = disk.folder(person)
    if disk.kind == "btrfs":
        folder = f"{folder}/own"
        person.call(make_subvolume, folder)
    at_home = replace(person, home=make_home(folder, person.uid, person.gid))
    made = Spot(at_home, disk, mode, hostfork)
    at_home.call(os.mkdir, made.aside)
    return made


@pytest.fixture
def packages() -> Fetched:
    """The registries' packages."""
    return real_projects.fetched()


# --- Python ----------------------------------------------------------------------------------------------------------

_ENVIRONMENT = """
set -e
"$1" -m venv .venv
.venv/bin/pip --disable-pip-version-check install -q --no-index --find-links "$2" $3 pytest
.venv/bin/python -m pytest -q -p no:cacheprovider
"$4" "$5" . >"$6"
"""


@pytest.mark.rig("network", "compiler")
@pytest.mark.parametrize(
    ("spot", "name", "install", "options"),
    [
        ("user-ext4:", "idna", ".", ("--policy", "build")),
        ("root-xfs:live", "idna", "-e .", ()),
        ("user-btrfs:", "markupsafe", ".", ()),
        ("root-xfs:", "markupsafe", "-e .", ("--policy", "build")),
        ("user-btrfs:overlay", "pluggy", "-e .", ()),
        ("root-ext4:live", "pluggy", ".", ()),
    ],
    indirect=["spot"],
)
def test_a_python_package_in_an_environment_of_the_fork(
    packages: Fetched, spot: Spot, name: str, install: str, options: tuple[str, ...]
) -> None:
    """Environment, installation (one of them compiles C), their own suite; what is exported is what the command saw."""
    packages.unpack(name, spot.person, spot.project)
    spot.person.run(["mkdir", "-p", f"{spot.person.home}/.cache/pip"], check=True)
    seen = f"{spot.aside}/seen.json"
    arguments = (PYTHON, packages.wheels, install, sys.executable, real_projects.__file__, seen)
    shared = ("--shared", spot.aside) if options else ()
    with spot.untouched() as base:
        said = spot.run("sh", "-c", _ENVIRONMENT, "sh", *arguments, options=("--name", "env", *options, *shared))
        assert " passed" in said
        assert " failed" not in said
        spot.hostfork(spot.person, "export", "env", f"{spot.aside}/result", check=0)
    view = json.loads(Path(seen).read_text())
    assert ".venv/bin/pytest" in view
    # With pip's cache there are several private paths: each lies at its own path in what is exported.
    result = picture(f"{spot.aside}/result{spot.project if options else ''}")
    assert is_content_of(view, base, result) == []
    spot.hostfork(spot.person, "discard", "env", "--yes", check=0)


@pytest.mark.rig("network")
@spots("user-ext4:copy", "root-btrfs:overlay")
def test_uv_with_the_cache_of_the_home_folder(packages: Fetched, spot: Spot) -> None:
    """Its cache is on another mount than the private project, so that hard links are impossible (CASES 30)."""
    packages.unpack("idna", spot.person, spot.project)
    uv = f"{spot.aside}/uv"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", packages.wheels, "--target", uv]
    spot.person.run([*pip, "uv"], check=True, timeout=600)
    script = (
        'set -e; "$1/bin/uv" -q venv --python "$2" .venv\n'
        '"$1/bin/uv" -q pip install --no-index --find-links "$3" . pytest; .venv/bin/python -m pytest -q'
    )
    with spot.untouched():
        said = spot.run("sh", "-c", script, "sh", uv, PYTHON, packages.wheels)
    assert " passed" in said


# --- Node ------------------------------------------------------------------------------------------------------------

_NPM = "npm ci --offline --no-audit --no-fund && npm test && npm run bundle"


@pytest.mark.rig("network", "node")
@spots("user-ext4:copy", "root-btrfs:overlay")
def test_npm_installs_in_a_fork(spot: Spot) -> None:
    """A hundred and fifty packages, one with an install script, from the home folder's cache; then the suite."""
    real_projects.fetched("node").unpack_qs(spot.person, spot.project)
    cache = ("--private", f"{spot.person.home}/.npm") if spot.person.uid else ()
    kept = picture(f"{spot.person.home}/.npm")
    with spot.untouched():
        said = spot.run("sh", "-c", _NPM, options=("--rm", *cache))
    assert "# pass  736" in said
    assert not cache or difference(kept, picture(f"{spot.person.home}/.npm")) == []


@pytest.mark.rig("network", "node")
@spots("user-ext4:live", "root-btrfs:btrfs")
def test_an_installed_node_project(spot: Spot) -> None:
    """TypeScript writes nothing anew (CASES 28); npm puts all in place again over what is there (CASES 15)."""
    real_projects.fetched("node").unpack_qs(spot.person, spot.project)
    spot.on_host("sh", "-c", "npm ci --offline --no-audit --no-fund && npm run types")
    list_emitted = "node_modules/.bin/tsc --incremental --listEmittedFiles"
    with spot.untouched():
        assert spot.run("sh", "-c", list_emitted) == ""
        said = spot.run("sh", "-c", f"echo '// x' >>lib/utils.js; {list_emitted}")
        emitted = {os.path.basename(line) for line in said.split() if line.endswith(".js")}
        assert "utils.js" in emitted
        assert "formats.js" not in emitted  # which does not need it
        assert "# pass  736" in spot.run("sh", "-c", _NPM)


# --- C and Rust: a warm build tree (CASES 28) ------------------------------------------------------------------------

_MAKE = ("make", "-j2", "CFLAGS=-O0 -std=c99 -DLUA_USE_LINUX", "MYLIBS=-ldl", "MYLDFLAGS=-Wl,-E")
_NINJA = """rule cc
  command = cc -O0 -c $in -o $out -MD -MF $out.d
  depfile = $out.d
build out/lapi.o: cc lapi.c
build out/lzio.o: cc lzio.c
"""


@pytest.fixture(scope="session")
def built_lua(bench: Bench) -> str:
    """A tar file of Lua's tree, built by make and ninja; all its times are in it."""
    folder = os.path.join(bench.folder, "lua")
    builder = Person("builder", os.geteuid(), os.getegid(), bench.folder)
    real_projects.fetched().unpack("lupa", builder, folder, "third-party/lua54")
    write_files(folder, {"build.ninja": _NINJA})
    for command in (_MAKE, ("ninja",), ("tar", "-cf", f"{folder}.tar", "--format=pax", "-C", folder, ".")):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return f"{folder}.tar"


@pytest.mark.rig("network", "compiler", "make", "ninja")
@spots(*ALTERNATING)
def test_a_warm_c_build(built_lua: str, spot: Spot) -> None:
    """Lua, built on the host: make and ninja find nothing to do, one edited file is one file; the suite passes."""
    spot.person.call(os.mkdir, spot.project)
    spot.on_host("tar", "-xf", built_lua, "--no-same-owner")
    spot.on_host(*_MAKE, "--question")
    edited = "echo '/* x */' >>lapi.c"
    with spot.untouched():
        spot.run(*_MAKE, "--question")
        assert "no work to do" in spot.run("ninja")
        make = " ".join(f"'{word}'" for word in _MAKE)
        said = spot.run("sh", "-c", f"{edited}; {make} && cd testes && ../lua -e _U=true all.lua")
        assert [line.split()[-1] for line in said.splitlines() if " -c " in line] == ["lapi.c"]
        assert "final OK" in said
        assert "[1/1]" in spot.run("sh", "-c", f"{edited}; ninja")


_CARGO = """[package]
name = "app"
version = "0.1.0"
edition = "2021"
[dependencies]
itoa = "1"
libc = { version = "0.2", default-features = false }
memchr = "2"
ryu = "1"
"""
_CRATES = ("itoa-1.0.15", "libc-0.2.172", "memchr-2.7.4", "ryu-1.0.20")
_VENDORED = '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "vendor"\n'
_MAIN = """fn main() {
    let at = memchr::memchr(b'l', b"hello").unwrap();
    println!("{} {} {}", itoa::Buffer::new().format(at), ryu::Buffer::new().format(0.5), unsafe { libc::getuid() });
}
#[test]
fn finds() { assert_eq!(memchr::memchr(b'o', b"hello"), Some(4)); }
"""


@pytest.mark.rig("network", "rust", "root")
@spots("root-ext4:copy", "root-btrfs:overlay", "root-btrfs:btrfs", "root-xfs:reflink", "root-xfs:live")
def test_a_warm_rust_build(spot: Spot) -> None:
    """Crates that a Python package vendors: cargo finds them fresh, one with a build script too."""
    real_projects.fetched("rust").unpack("orjson", spot.person, f"{spot.project}/vendor", "include/cargo", _CRATES)
    files = {"Cargo.toml": _CARGO, ".cargo/config.toml": _VENDORED, "src/main.rs": _MAIN}
    spot.person.call(write_files, spot.project, files)
    cargo = _cargo()
    path = {"PATH": f"{os.path.dirname(cargo)}:{spot.person.environment()['PATH']}"}
    spot.on_host(cargo, "build", "--offline", env=path)
    script = '"$1" build --offline -v 2>&1'
    with spot.untouched():
        said = spot.run("sh", "-c", script, "sh", cargo, env=path)
        assert {line.split()[0] for line in said.splitlines()} == {"Fresh", "Finished"}
        script = f"echo '// x' >>src/main.rs; {script} && target/debug/app"
        said = spot.run("sh", "-c", script, "sh", cargo, env=path)
        assert [line.split()[1] for line in said.splitlines() if "Compiling" in line] == ["app"]
        assert "memchr v" in "".join(line for line in said.splitlines() if "Fresh" in line)
        assert f"2 0.5 {spot.person.uid}\n" in said
        assert "1 passed" in spot.run(cargo, "test", "--offline", env=path)


def _cargo() -> str:
    """The real one: a chooser of toolchains looks for its settings in the home folder."""
    rustc = find_program("rustc") or "rustc"
    root = subprocess.run([rustc, "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    return os.path.join(root, "bin", "cargo")


# --- two at once -----------------------------------------------------------------------------------------------------

_CONFLICT = """
set -e
echo "$1" >>idna/core.py
echo "$1" >new
if [ "$1" = one ]; then rm LICENSE.md; mv tests old-tests; else echo two >>LICENSE.md; echo two >>tests/__init__.py; fi
: >"$3/$1"
while [ ! -e "$3/$2" ]; do sleep 0.01; done
tail -n 1 idna/core.py new
ls
: >"$3/$1-seen"
while [ ! -e "$3/$2-seen" ]; do sleep 0.01; done
"""


@pytest.mark.rig("network")
@spots(*EVERYWHERE)
def test_two_forks_of_one_project_at_once(packages: Fetched, spot: Spot) -> None:
    """Edits that conflict: neither sees the other's, the host sees none, each has its own changes."""
    packages.unpack("idna", spot.person, spot.project)
    with spot.untouched() as before:
        pairs = (("one", "two"), ("two", "one"))
        running = [
            spot.person.popen(
                [PROGRAM, *spot.command("sh", "-c", _CONFLICT, "sh", me, other, spot.aside, options=("--name", me))],
                cwd=spot.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for me, other in pairs
        ]  # fmt: skip
        seen = [(process.communicate(timeout=300), process.returncode) for process in running]
        assert [status for _, status in seen] == [0, 0], seen
        one, two = (out.splitlines() for (out, _), _ in seen)
        assert (one.count("one"), one.count("two"), two.count("one"), two.count("two")) == (2, 0, 0, 2)
        assert {"LICENSE.md", "tests"}.isdisjoint(one)
        assert "old-tests" not in two
        of_one, of_two = (_changes(spot, name) for name in ("one", "two"))
        assert of_two == {"idna/core.py": "modified", "new": "created", "LICENSE.md": "modified",
                          "tests/__init__.py": "modified"}  # fmt: skip
        assert {path for path, change in of_one.items() if change == "deleted"} == {
            "LICENSE.md", *(path for path in before if path.split("/")[0] == "tests")
        }  # fmt: skip
    spot.hostfork(spot.person, "discard", "one", "two", "--yes", check=0)


def _changes(spot: Spot, name: str) -> dict[str, str]:
    document = json.loads(spot.hostfork(spot.person, "diff", name, "--json", "--all", check=0).stdout)
    return {os.path.relpath(entry["path"], spot.project): entry["change"] for entry in document["entries"]}


# --- a repository that the host goes on with (CASES 1) ---------------------------------------------------------------

_COMMITS = """
cd "$1"
n=0
while :; do
    while [ -e "$2/pause" ]; do : >"$2/paused"; sleep 0.01; done
    rm -f "$2/paused"
    n=$((n + 1))
    yes "round $n" | head -c 67108864 >big
    git commit -qam "$n" || exit 1
    echo "$n" >"$2/rounds.new" && mv "$2/rounds.new" "$2/rounds"
done
"""
_IN_FORK = """
rm -f .git/*.lock .git/refs/heads/*.lock
first=$(sha256sum big idna/core.py)
echo started
read -r go
[ "$first" = "$(sha256sum big idna/core.py)" ] || { echo 'other content'; exit 3; }
for n in 1 2 3; do echo "in $n" >>big && git add big && git commit -qm "in $n" || exit 4; done
git fsck --full --strict --no-dangling --no-progress && git status --porcelain
"""


@pytest.mark.rig("network", "git")
@spots(*ALTERNATING)
def test_commits_in_and_out_at_once(packages: Fetched, spot: Spot) -> None:
    """The host rewrites a file of 64 MiB and commits without end; the fork sees one content, both stay sound.

    What is not of one instant is taken while the host's loop is held. What is live promises none of it, is never taken
    by itself, and leaves the host's repository sound.
    """
    packages.unpack("idna", spot.person, spot.project)
    spot.on_host("sh", "-c", "git init -q && git config gc.auto 0 && : >big && git add -A && git commit -qm base")
    guarantee = spot.offer()["guarantee"]
    default = replace(spot, mode="").offer()
    assert default["guarantee"] != "live"
    pause = f"touch {spot.aside}/pause; while [ ! -e {spot.aside}/paused ]; do sleep 0.01; done"
    held = ("--quiesce", pause, "--unquiesce", f"rm -f {spot.aside}/pause", "--require", "stable")
    options = ("--rm", *(held if guarantee == "independent" else ()))
    loop = spot.person.popen(["sh", "-c", _COMMITS, "sh", spot.project, spot.aside], stderr=subprocess.PIPE, text=True)
    try:
        _await_rounds(spot, loop, 1)
        said, told, status = _fork_meanwhile(spot, loop, options)
    finally:
        loop.terminate()
        loop.communicate()
    spot.on_host("sh", "-c", "rm -f .git/*.lock .git/refs/heads/*.lock; git fsck --full --strict --no-progress")
    if guarantee != "live":
        assert (said, status) == ("started\n", 0), told


def _fork_meanwhile(spot: Spot, loop: "subprocess.Popen[str]", options: tuple[str, ...]) -> tuple[str, str, int]:
    """Two more commits of the host's pass while the fork is there, before it goes on."""
    fork = spot.person.popen(
        [PROGRAM, *spot.command("sh", "-c", _IN_FORK, options=options)],
        cwd=spot.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert fork.stdin is not None
    assert fork.stdout is not None
    said = fork.stdout.readline()
    if said:
        _await_rounds(spot, loop, _rounds(spot) + 2)
    rest, told = fork.communicate("go\n", timeout=300)
    return said + rest, told, fork.returncode


def _rounds(spot: Spot) -> int:
    with contextlib.suppress(FileNotFoundError):
        return int(Path(f"{spot.aside}/rounds").read_text())
    return 0


def _await_rounds(spot: Spot, loop: "subprocess.Popen[str]", wanted: int) -> None:
    while _rounds(spot) < wanted:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the host's commits ended with {loop.wait(0.02)}: {loop.communicate()[1]}")


# --- a database (CASES 24) -------------------------------------------------------------------------------------------

_MAKE_DATABASE = """
import os, sqlite3
db = sqlite3.connect("db", isolation_level=None)
for setting in ("page_size = 32768", "journal_mode = wal", "synchronous = off"):
    db.execute(f"pragma {setting}")
db.execute("create table t (n integer primary key, round integer, data blob)")
db.execute("begin")
db.executemany("insert into t values (?, 0, ?)", ((n, os.urandom(60000)) for n in range(1500)))
db.execute("commit")
db.execute("pragma wal_checkpoint(truncate)")
db.execute("update t set round = 0, data = data where n < 100")
os._exit(0)  # as killed: the log stays
"""
_REWRITE = """
import os, sqlite3, subprocess, sys
reader = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert reader.stdout.readline() == b"0\\n"
db = sqlite3.connect("db", isolation_level=None)
db.execute("pragma synchronous = off")
db.execute("pragma busy_timeout = 60000")
for round in range(1, 51):
    db.execute("update t set round = ?, data = ?", (round, bytes([round]) * 60000))
    db.execute("pragma wal_checkpoint(restart)")
reader.stdin.close()
last = reader.stdout.read().split()[-1]
assert (reader.wait(), last) == (0, b"50"), (reader.returncode, last)
assert db.execute("select count(*) from t where data = ?", (bytes([50]) * 60000,)).fetchone() == (1500,)
print(db.execute("pragma integrity_check").fetchone()[0])
"""
_READ = """
import select, sqlite3, sys, time
db = sqlite3.connect("db", isolation_level=None, timeout=60)
ended = False
while not ended:
    ended = bool(select.select([sys.stdin], [], [], 0)[0])
    rounds = db.execute("select round, count(*) from t group by round").fetchall()
    assert len(rounds) == 1 and rounds[0][1] == 1500, rounds
    print(rounds[0][0], flush=True)
    time.sleep(0.01)
"""
_CHECK = 'import sqlite3; print(sqlite3.connect("db").execute("pragma integrity_check").fetchone()[0])'


@spots(*ONCE_EACH)
def test_a_database_of_90_mb_rewritten_50_times(spot: Spot, make_disk: Callable[..., Disk]) -> None:
    """With its log, and a second process that reads all the while: sound in the fork, in what is exported, outside."""
    large = _settle(spot.person, make_disk(spot.disk.kind, 1500), spot.mode, spot.hostfork)
    large.person.call(os.mkdir, large.project)
    large.on_host(sys.executable, "-c", _MAKE_DATABASE)
    with large.untouched():
        said = large.run(sys.executable, "-c", _REWRITE, _READ, options=("--name", "db"))
        assert said == "ok\n"
        assert set(_changes(large, "db")) <= {"db", "db-wal", "db-shm", "."}
        spot.hostfork(large.person, "export", "db", f"{large.aside}/out", check=0)
    spot.hostfork(large.person, "discard", "db", "--yes", check=0)
    for place in (f"{large.aside}/out", large.project):
        assert large.person.run([sys.executable, "-c", _CHECK], cwd=place, check=True).stdout == "ok\n"
    large.await_erased()


# --- renames, watchers, open files: kept, or said in the plan --------------------------------------------------------

_RENAMES = """
import errno, os, subprocess, sys
try:
    os.rename("idna", "moved")
    os.rename("moved", "idna")
    print("renamed")
except OSError as error:
    print(errno.errorcode[error.errno])
moved = subprocess.run(["git", "mv", "idna", "renamed"], capture_output=True, text=True)
print("renamed" if moved.returncode == 0 else "EXDEV" if "cross-device" in moved.stderr.lower() else moved.stderr)
subprocess.run(["mv", "tests", "old"], check=True)
for here, folders, files in os.walk("tools"):  # as dpkg unpacks: beside, a link to the old one, over it
    for name in files:
        path = os.path.join(here, name)
        with open(path + ".dpkg-new", "w") as file:
            file.write("unpacked")
        os.link(path, path + ".dpkg-tmp")
        os.rename(path + ".dpkg-new", path)
        os.unlink(path + ".dpkg-tmp")
        assert open(path).read() == "unpacked"
"""


@pytest.mark.rig("network", "git")
@spots(*EVERYWHERE)
def test_renames(packages: Fetched, spot: Spot) -> None:
    """A folder of the base, `git mv`, `mv`, an unpacking over what is there (CASES 15)."""
    packages.unpack("idna", spot.person, spot.project)
    spot.on_host("sh", "-c", "git init -q && git add -A && git commit -qm base")
    kept = spot.offer()["folder_rename"]
    with spot.untouched() as before:
        said = spot.run(sys.executable, "-c", _RENAMES, options=("--name", "r"))
        assert said.split() == (["renamed"] * 2 if kept else ["EXDEV"] * 2)
        _require(spot, "folder-rename", kept=kept)
        found = _changes(spot, "r")
        old = {path for path in before if path.split("/")[0] in ("tests", "idna")[: 1 + kept]}
        assert {path for path, change in found.items() if change == "deleted" and not path.startswith(".git/")} == old
        assert {path for path in found if path.startswith("tools/")} == {
            path for path in before if path.startswith("tools/")
        }
    spot.hostfork(spot.person, "discard", "r", "--yes", check=0)


def _require(spot: Spot, what: str, *, kept: bool) -> None:
    """What the plan does not promise is refused where it is demanded, before anything is made."""
    done = spot.hostfork(spot.person, *spot.command("true", options=("--require", what)), cwd=spot.project)
    assert done.returncode == (0 if kept else 125), done.stderr
    assert kept or "policy.require" in done.stderr


_WATCH = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
queue = libc.inotify_init1(os.O_NONBLOCK)
IN_MODIFY = 2
watches = {libc.inotify_add_watch(queue, path, IN_MODIFY): path.decode() for path in (b"setup.cfg", b".")}
with open("setup.cfg", "a") as file:
    file.write("more")
try:
    events = os.read(queue, 4096)
except BlockingIOError:
    events = b""
while events:
    watch, _, _, length = struct.unpack_from("iIII", events)
    print(watches[watch])
    events = events[16 + length :]
"""


@spots(*EVERYWHERE)
def test_watchers_of_base_files(spot: Spot) -> None:
    """A watch on a file of the base and one on its folder both tell of a write (CASES 27)."""
    spot.person.call(write_files, spot.project, {"setup.cfg": "base\n"})
    kept = spot.offer()["native_watchers"]
    with spot.untouched():
        said = spot.run(sys.executable, "-c", _WATCH)
        _require(spot, "native-watchers", kept=kept)
    assert set(said.split()) == {"setup.cfg", "."} or not kept


_OPEN = """
import os, subprocess, time
def waited(path, text):
    deadline = time.monotonic() + 60
    while text not in open(path).read() and time.monotonic() < deadline:
        time.sleep(0.01)
    return text in open(path).read()
held = open("a")
held.read()
with open("new", "w") as file:
    file.write("new content, and longer\\n")
subprocess.run(["cp", "new", "a"], check=True)
assert (open("a").read(), os.stat("a").st_size) == ("new content, and longer\\n", 24)
held.seek(0)
print("held" if held.read() == "new content, and longer\\n" and os.fstat(held.fileno()).st_size == 24 else "stale")
with open("said", "wb") as said:
    tail = subprocess.Popen(["tail", "-f", "b"], stdout=said)
assert waited("said", "base")
with open("b", "a") as file:
    file.write("appended\\n")
assert open("b").read() == "base\\nappended\\n"
print("seen" if KEPT and waited("said", "appended") else "not waited for")
tail.kill()
"""


@spots(*EVERYWHERE)
def test_open_files_of_the_base(spot: Spot) -> None:
    """`cp` over a file that is open, `tail -f` of one that grows (CASES 29)."""
    spot.person.call(write_files, spot.project, {"a": "old\n", "b": "base\n"})
    kept = spot.offer()["native_watchers"]
    with spot.untouched():
        said = spot.run(sys.executable, "-c", _OPEN.replace("KEPT", str(kept))).split("\n")
    assert said[:2] == ["held", "seen"] or not kept
