"""Random actions on a snapshot or clone whose base is kept: every way finds exactly what two full scans differ in."""

import contextlib
import os
import subprocess
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from collect_rig import CONTENTS, NAMES, VERBS, act, content, files_only, git_view, remove
from hostfork.collect.changeset import Changeset
from hostfork.collect.diff import patch
from hostfork.collect.export import export_tree
from hostfork.collect.manifest import StatManifest
from hostfork.collect.scan import compare, full_manifest, scan_pair, scan_tree
from hostfork.collect.stamp import stamp
from hostfork.storage.btrfs import Btrfs
from hostfork.storage.contract import Source
from rigs import Disk, Person
from snapshot_rig import clone_with_manifest, snapshot, subvolume

AT = "/data/proj"
KEY = "fork.0"
Action = tuple[str, int, int, str, bytes]
ACTION = st.tuples(
    st.sampled_from(VERBS),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(NAMES),
    st.sampled_from(CONTENTS),
)


class Kept(RuleBasedStateMachine):
    """A tree that is changed, and its base, which is kept."""

    where = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=self.where)
        self.tree, self.base, self.source = (f"{self.folder}/{name}" for name in ("tree", "base", "source"))
        self.pool = f"{self.folder}/pool"
        self.ready = False

    @initialize(actions=st.lists(ACTION, max_size=25))
    def prepare(self, actions: list[Action]) -> None:
        self.make_source()
        for action in actions:
            if action[0] != "close":
                act(self.source, *action)
        self.before = full_manifest(self.source)
        self.fork()
        self.ready = True

    def make_source(self) -> None:
        os.mkdir(self.source)

    def fork(self) -> None:
        raise AssertionError

    def ways(self) -> dict[str, Changeset]:
        raise AssertionError

    @rule(action=ACTION)
    def change(self, action: Action) -> None:
        act(self.tree, *action)

    @rule(action=ACTION)
    def change_the_source(self, action: Action) -> None:
        act(self.source, *action)

    @invariant()
    def every_way_equals_the_reference(self) -> None:
        if self.ready:
            wanted = compare(self.before, full_manifest(self.tree, (), True), AT).changes
            for way, found in self.ways().items():
                assert found.changes == wanted, way

    @rule()
    def export_and_patch(self) -> None:
        wanted, changes = full_manifest(self.tree, (), True), next(iter(self.ways().values()))
        out, patched = f"{self.folder}/out", f"{self.folder}/patched"
        try:
            assert export_tree(self.base, self.tree, changes, AT, (), out, True, None, True) == ()
            assert content(full_manifest(out, (), True)) == content(wanted)
            files_only(self.base, patched)
            text = b"".join(patch(changes.changes, self.base, self.tree, AT))
            assert b"is gone" not in text
            if text:
                subprocess.run(["git", "apply", "-"], cwd=patched, input=text, check=True)
            assert git_view(full_manifest(patched, (), True)) == git_view(wanted)
        finally:
            for path in (out, patched):
                if os.path.exists(path):
                    remove(path)


class Snapshots(Kept):
    """Two snapshots of a subvolume with others nested in it."""

    storage = Btrfs()

    def make_source(self) -> None:
        for name in ("", "/dir", "/build"):
            subvolume(self.source + name)

    def fork(self) -> None:
        early = stamp(self.folder).ctime_ns
        os.mkdir(self.pool)
        self.storage.prepare(KEY, Source(self.source), self.pool)
        content = self.storage.content(KEY, self.pool)
        assert content.base is not None
        self.tree, self.base = content.tree, content.base
        self.stamps = {"early": early, "none": 1, "walk": stamp(self.folder).ctime_ns}

    def ways(self) -> dict[str, Changeset]:
        found = {way: scan_pair(self.tree, self.base, AT, since=since) for way, since in self.stamps.items()}
        found["every"] = scan_pair(self.tree, self.base, AT)
        touched = self.storage.touched(KEY, self.pool)
        if touched is not None:
            found["touched"] = scan_pair(self.tree, self.base, AT, touched=touched)
            since = self.stamps["walk"]
            found["touched since"] = scan_pair(self.tree, self.base, AT, touched=touched, since=since)
        return found

    @rule(name=st.sampled_from(NAMES), of=st.sampled_from(["", "dir", "build"]))
    def subvolume_in_the_tree(self, name: str, of: str) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            if of:
                snapshot(f"{self.tree}/{of}", f"{self.tree}/{name}")
            else:
                subvolume(f"{self.tree}/{name}")

    @rule(one=st.sampled_from(NAMES), two=st.sampled_from(NAMES))
    def swap(self, one: str, two: str) -> None:
        with contextlib.suppress(OSError):
            os.rename(f"{self.tree}/{one}", f"{self.tree}/aside")
            os.rename(f"{self.tree}/{two}", f"{self.tree}/{one}")
            os.rename(f"{self.tree}/aside", f"{self.tree}/{two}")

    def teardown(self) -> None:
        if self.ready:
            self.storage.remove(KEY, self.pool)
        remove(self.folder)


class Clones(Kept):
    """Two clones that share their blocks, and the manifest of one."""

    def fork(self) -> None:
        clone_with_manifest(self.source, self.tree, self.base, f"{self.folder}/manifest")
        self.manifest = StatManifest.load(f"{self.folder}/manifest")

    def ways(self) -> dict[str, Changeset]:
        return {"manifest": scan_tree(self.tree, self.manifest, self.base, AT)}

    def teardown(self) -> None:
        remove(self.folder)


def _random(machine: type[Kept], folder: str, examples: int) -> None:
    machine.where = folder
    with contextlib.redirect_stdout(None):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=12,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


def _examples() -> int:
    return int(os.environ.get("HOSTFORK_EXAMPLES", "12"))


@pytest.mark.rig("git")
def test_snapshots_equal_the_full_scan(person: Person, btrfs_disk: Disk) -> None:
    person.call(_random, Snapshots, btrfs_disk.folder(person), _examples())


@pytest.mark.rig("git")
@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_clones_equal_the_full_scan(person: Person, kind: str, request: pytest.FixtureRequest) -> None:
    disk: Disk = request.getfixturevalue(f"{kind}_disk")
    person.call(_random, Clones, disk.folder(person), _examples())
