"""On something real: packages' own test suites in forks, repositories and databases under load.

`./dev test tests/test_real.py tests/test_tools.py` runs this lane alone. What is fetched for it, and where it is kept:
`real_projects.py`.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import real_projects
from real_projects import Fetched, is_content_of, picture
from real_rig import ALTERNATING, EVERYWHERE, ONCE_EACH, PROGRAM, PYTHON, Spot, settle, spots
from rigs import Disk, write_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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
    large = settle(spot.person, make_disk(spot.disk.kind, 1500), spot.mode, spot.hostfork)
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
