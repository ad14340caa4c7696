"""Fixtures for all tests: disks, people, the command line, and a check that nothing is left behind."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import rigs
from rigs import Bench, Disk, Leftovers, Missing, Person

_RIGS = pytest.StashKey[dict[str, str | None]]()
_BENCH = pytest.StashKey[Bench]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--require-all`."""
    parser.addoption(
        "--require-all", action="store_true", help="a missing test rig, and any other skip, is a failure (CI)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and look once at what this machine has."""
    config.addinivalue_line("markers", "slow: takes longer than a few seconds")
    config.addinivalue_line("markers", "rig(*names): needs these rigs of the header, such as strace or tmux")
    if not hasattr(config, "workerinput"):
        rigs.make_user()
    config.stash[_RIGS] = rigs.missing_rigs()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name every rig, and why one is missing."""
    known = config.stash[_RIGS]
    there = ", ".join(name for name, reason in known.items() if reason is None)
    missing = [f"rig missing: {name}: {reason}" for name, reason in known.items() if reason is not None]
    kernel = os.uname()
    return [f"kernel: {kernel.release} {kernel.machine}", f"rigs: {there}", *missing]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Give each process that runs tests a folder, a mount namespace and a cgroup of its own."""
    config = session.config
    only_schedules = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
    if not only_schedules and not config.option.collectonly:
        config.stash[_BENCH] = Bench.open()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Undo it, after an interrupt too."""
    bench = config.stash.get(_BENCH, None)
    if bench is not None:
        del config.stash[_BENCH]
        bench.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Any:
    """Skip a test whose rigs are missing, also where a fixture finds that out now, or did before: pytest keeps it."""
    known = item.config.stash[_RIGS]
    for mark in item.iter_markers("rig"):
        for name in mark.args:
            if known[name] is not None:
                pytest.skip(f"rig missing: {name}: {known[name]}")
    try:
        return (yield)
    except Missing as reason:
        pytest.skip(f"rig missing: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Any:
    """Also where the test itself asks for it."""
    try:
        return (yield)
    except Missing as reason:
        pytest.skip(f"rig missing: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """With --require-all a skip is a failure."""
    report = yield
    if item.config.getoption("--require-all") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but --require-all: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """With --require-all a skipped module is a failure."""
    report = yield
    if collector.config.getoption("--require-all") and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"skipped, but --require-all: {report.longrepr}"
    return report


def _or_skip(make: Callable[[], Any], what: str) -> Any:
    try:
        return make()
    except Missing as reason:
        pytest.skip(f"rig missing: {what}: {reason}")


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Bench:
    """What this test process has of its own."""
    return request.config.stash[_BENCH]


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _disks() -> dict[str, Disk]:
    return {}


def _disk(kind: str, disks: dict[str, Disk], bench: Bench) -> Iterator[Disk]:
    if kind not in disks:
        disks[kind] = _or_skip(lambda: rigs.make_disk(bench, kind), kind)
    mounted = disks[kind]
    lent = Disk(mounted.kind, mounted.path)
    yield lent
    pools = [one.path for one in os.scandir(mounted.path) if one.name.startswith(".hostfork-")]
    for folder in (*lent._made, *pools):
        rigs.remove_tree(folder)


@pytest.fixture
def ext4_disk(_disks: dict[str, Disk], bench: Bench) -> Iterator[Disk]:
    """A mounted ext4."""
    yield from _disk("ext4", _disks, bench)


@pytest.fixture
def btrfs_disk(_disks: dict[str, Disk], bench: Bench) -> Iterator[Disk]:
    """A mounted Btrfs."""
    yield from _disk("btrfs", _disks, bench)


@pytest.fixture
def xfs_disk(_disks: dict[str, Disk], bench: Bench) -> Iterator[Disk]:
    """A mounted XFS that shares blocks."""
    yield from _disk("xfs", _disks, bench)


@pytest.fixture
def tmpfs_disk(_disks: dict[str, Disk], bench: Bench) -> Iterator[Disk]:
    """A mounted tmpfs."""
    yield from _disk("tmpfs", _disks, bench)


@pytest.fixture(params=rigs.DISK_KINDS)
def disk(request: pytest.FixtureRequest, _disks: dict[str, Disk], bench: Bench) -> Iterator[Disk]:
    """Each kind of disk in turn."""
    yield from _disk(request.param, _disks, bench)


@pytest.fixture
def one_disk(request: pytest.FixtureRequest, _disks: dict[str, Disk], bench: Bench) -> Iterator[Disk]:
    """One kind of disk, which the test's parameters name."""
    yield from _disk(request.param, _disks, bench)


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Any:
    """An implementation of private storage, a row of `storage_cases`, which the test's parameters name."""
    return request.param


@pytest.fixture
def storage(row: Any) -> Any:
    """The implementation itself."""
    return row.storage


@pytest.fixture
def make_disk(bench: Bench) -> Iterator[Callable[..., Disk]]:
    """`make_disk(kind, megabytes=600)`: one more disk for this test alone, such as one to fill up."""
    made: list[Disk] = []

    def make(kind: str, megabytes: int = 600) -> Disk:
        made.append(_or_skip(lambda: rigs.make_disk(bench, kind, megabytes), kind))
        return made[-1]

    yield make
    # Only its own: a disk of the whole session may have been mounted meanwhile.
    for one in reversed(made):
        rigs.unmount(one.path)
        bench.mounted.remove(one.path)


# --- people ----------------------------------------------------------------------------------------------------------


def _place_for_homes(bench: Bench, disks: dict[str, Disk]) -> str:
    """On ext4, or on the machine's own disk where none can be mounted."""
    try:
        if "ext4" not in disks:
            disks["ext4"] = rigs.make_disk(bench, "ext4")
    except Missing:
        return bench.folder
    return disks["ext4"].path


def _person(name: str, bench: Bench, disks: dict[str, Disk]) -> Iterator[Person]:
    login, uid, gid = _or_skip(lambda: rigs.find_person(name), name)
    someone = Person(login, uid, gid, bench.folder, bench.person_cgroup(name, uid, gid))
    lent = Disk("home", _place_for_homes(bench, disks))
    someone = replace(someone, home=rigs.make_home(lent.folder(someone, name), uid, gid))
    yield someone
    for folder in lent._made:
        rigs.remove_tree(folder)


@pytest.fixture
def root(bench: Bench, _disks: dict[str, Disk]) -> Iterator[Person]:
    """Root, with a fresh home."""
    yield from _person("root", bench, _disks)


@pytest.fixture
def user(bench: Bench, _disks: dict[str, Disk]) -> Iterator[Person]:
    """An ordinary user, with a fresh home."""
    yield from _person("user", bench, _disks)


@pytest.fixture(params=["root", "user"])
def person(request: pytest.FixtureRequest, bench: Bench, _disks: dict[str, Disk]) -> Iterator[Person]:
    """Root and an ordinary user in turn."""
    yield from _person(request.param, bench, _disks)


@pytest.fixture
def delegated_cgroup(user: Person) -> str:
    """The cgroup folder that belongs to the ordinary user and in which their programs start."""
    if user.cgroup is None:
        pytest.skip("rig missing: cgroup")
    return user.cgroup


# --- hostfork --------------------------------------------------------------------------------------------------------


@pytest.fixture
def leaves_nothing(bench: Bench) -> Iterator[None]:
    """Fail the test if a mount, a cgroup or a process of it is still there afterwards."""
    before = Leftovers.look(bench)
    yield
    left = rigs.settle(bench, before)
    if left:
        story = left.describe()
        left.remove()
        pytest.fail("left behind:\n" + story)


@pytest.fixture
def hostfork(leaves_nothing: None) -> Callable[..., Any]:
    """`hostfork(person, *args, cwd=None, input=None, check=None, env=None)`: run the command line as somebody.

    `check` is the status that it must end with. Further options are those of `Person.run`.
    """
    program = os.path.join(sys.prefix, "bin", "hostfork")

    def run(someone: Person, *args: str, check: int | None = None, **options: Any) -> Any:
        done = someone.run([program, *args], **options)
        if check is not None and done.returncode != check:
            raise AssertionError(
                f"hostfork {args} ended with {done.returncode}, not {check}\n{done.stdout}\n{done.stderr}"
            )
        return done

    return run


@pytest.fixture
def spot(request: pytest.FixtureRequest, hostfork: Callable[..., Any]) -> Iterator[Any]:
    """The place of a test on a real project that its parameter (`real_rig.spots`) names."""
    import real_rig

    name, _, rest = request.param.partition("-")
    kind, _, mode = rest.partition(":")
    someone, disk = request.getfixturevalue(name), request.getfixturevalue(f"{kind}_disk")
    made = real_rig.settle(someone, disk, f":{mode}" if mode else "", hostfork)
    yield made
    made.await_erased()
