"""Random actions on a real overlay and on a copy: the fast ways find exactly what two full scans differ in."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from collect_rig import (
    CONTENTS,
    NAMES,
    VERBS,
    OverlayChild,
    act,
    content,
    copy_with_manifest,
    files_only,
    git_view,
    reduced,
    remove,
)
from hostfork.collect.changeset import Changeset
from hostfork.collect.diff import patch
from hostfork.collect.export import export_tree
from hostfork.collect.full import FullManifest
from hostfork.collect.manifest import StatManifest
from hostfork.collect.scan import compare, full_manifest, scan_layer, scan_tree
from rigs import Disk, Person

AT = "/data/proj"
ACTION = st.tuples(
    st.sampled_from(VERBS),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(NAMES),
    st.sampled_from(CONTENTS),
)


class Fork(RuleBasedStateMachine):
    """One base, an overlay over it and a copy of it, the same actions in both."""

    where = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=self.where)
        self.base, self.copy = f"{self.folder}/base", f"{self.folder}/copy"
        self.overlay: OverlayChild | None = None

    @initialize(actions=st.lists(ACTION, max_size=25))
    def prepare(self, actions: list[tuple[str, int, int, str, bytes]]) -> None:
        os.mkdir(self.base)
        for action in actions:
            if action[0] != "close":  # a user could not copy a base that is closed to them
                act(self.base, *action)
        copy_with_manifest(self.base, self.copy, f"{self.folder}/manifest")
        self.before = full_manifest(self.base)
        self.manifest = StatManifest.load(f"{self.folder}/manifest")
        self.overlay = OverlayChild(self.folder, self.base)

    @rule(action=ACTION)
    def change(self, action: tuple[str, int, int, str, bytes]) -> None:
        assert self.overlay is not None
        self.overlay.call(act, self.overlay.merged, *action)
        act(self.copy, *action)

    @invariant()
    def the_layer_equals_the_reference(self) -> None:
        if self.overlay is not None:
            after = full_manifest(self.overlay.seen, (), True)
            wanted = compare(self.before, after, AT)
            assert scan_layer(self.overlay.upper, self.base, AT).changes == wanted.changes

    @invariant()
    def the_copy_equals_the_reference(self) -> None:
        if self.overlay is not None:
            wanted = compare(self.before, full_manifest(self.copy, (), True), AT)
            assert scan_tree(self.copy, self.manifest, self.base, AT).changes == wanted.changes

    @precondition(lambda self: self.overlay is not None)
    @rule()
    def export(self) -> None:
        assert self.overlay is not None
        after = full_manifest(self.overlay.seen, (), True)
        changes = scan_layer(self.overlay.upper, self.base, AT)
        self.exported(
            after, lambda to: export_tree(self.base, self.overlay.upper, changes, AT, (), to, False, None, True)
        )
        after = full_manifest(self.copy, (), True)
        changes = scan_tree(self.copy, self.manifest, self.base, AT)
        self.exported(after, lambda to: export_tree("/nowhere", self.copy, changes, AT, (), to, True, None, True))
        delta = f"{self.folder}/delta"
        reduced(self.copy, changes, AT, delta)
        try:
            self.exported(
                after, lambda to: export_tree(self.base, delta, changes, AT, (), to, False, self.manifest, True)
            )
            self.patched(after, changes, delta)
        finally:
            remove(delta)

    def exported(self, wanted: FullManifest, write: Callable[[str], tuple[str, ...]]) -> None:
        destination = f"{self.folder}/out/there"
        try:
            assert write(destination) == ()
            found = full_manifest(destination, (), True)
            assert content(found) == content(wanted)
            assert os.listdir(f"{self.folder}/out") == ["there"]
        finally:
            remove(f"{self.folder}/out")

    def patched(self, wanted: FullManifest, changes: Changeset, delta: str) -> None:
        place = f"{self.folder}/patched"
        try:
            files_only(self.base, place)
            text = b"".join(patch(changes.changes, self.base, delta, AT, self.manifest))
            if text:
                subprocess.run(["git", "apply", "-"], cwd=place, input=text, check=True)
            assert git_view(full_manifest(place, (), True)) == git_view(wanted)
        finally:
            remove(place)

    def teardown(self) -> None:
        if self.overlay is not None:
            self.overlay.close()
        remove(self.folder)


def _random(folder: str, examples: int) -> None:
    Fork.where = folder
    with contextlib.redirect_stdout(None):
        run_state_machine_as_test(
            Fork,
            settings=settings(
                max_examples=examples,
                stateful_step_count=12,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.rig("user namespaces")
def test_fast_ways_equal_the_full_scan(person: Person, disk: Disk) -> None:
    person.call(_random, disk.folder(person), int(os.environ.get("HOSTFORK_EXAMPLES", "12")))
