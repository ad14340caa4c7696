"""A base that is a stack of layers: what is read of it is what an overlay over it shows."""

import contextlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable

import pytest
from blake3 import blake3
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

from collect_rig import CONTENTS, NAMES, VERBS, OverlayChild, act, content, files_only, git_view, remove
from hostfork.collect.changeset import Changeset
from hostfork.collect.diff import line_counts, patch
from hostfork.collect.export import Part, export_changes, export_tar, export_tree
from hostfork.collect.full import FullManifest
from hostfork.collect.reader import TreeReader
from hostfork.collect.scan import compare, full_manifest, scan_layer
from hostfork.errors import CollectError
from hostfork.vocabulary import ChangeKind, EntryKind
from rigs import Disk, Person, write_files

AT = "/data/proj"
NONE = Changeset(())
C, D = ChangeKind.CREATED, ChangeKind.DELETED
_TYPES = {
    tarfile.REGTYPE: EntryKind.FILE,
    tarfile.DIRTYPE: EntryKind.FOLDER,
    tarfile.SYMTYPE: EntryKind.SYMLINK,
    tarfile.FIFOTYPE: EntryKind.FIFO,
    tarfile.CHRTYPE: EntryKind.CHARACTER_DEVICE,
}
_XATTR = "SCHILY.xattr."


def shown(folder: str, stack: tuple[str, ...]) -> FullManifest:
    """What the kernel shows of a stack."""
    os.mkdir(folder)
    child = OverlayChild(folder, stack, written=False)
    try:
        return full_manifest(child.seen)
    finally:
        child.close()


def unpacked(stream: bytes) -> dict[str, object]:
    """What a tar stream holds; hard links as the files that they are."""
    found: dict[str, object] = {}
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        for member in archive:
            if member.type == tarfile.LNKTYPE:
                found[member.name] = found[member.linkname]
                continue
            data = archive.extractfile(member) if member.isreg() else None
            digest = None if data is None else blake3(data.read()).digest()
            headers = member.pax_headers.items()
            attributes = {
                key[len(_XATTR) :]: value.encode("utf-8", "surrogateescape")
                for key, value in headers
                if key.startswith(_XATTR)
            }
            target = os.fsencode(member.linkname) if member.issym() else None
            name = "" if member.name == "." else member.name
            found[name] = (_TYPES[member.type], member.mode, member.uid, member.gid, target, digest, attributes)
    return found


def packable(manifest: FullManifest) -> dict[str, object]:
    """What a tar stream can hold of a tree, in the same form."""
    found: dict[str, object] = {}
    for path, entry in manifest.entries.items():
        facts = entry.facts
        if facts.kind is not EntryKind.SOCKET:
            attributes = entry.attributes
            found[path] = (facts.kind, facts.mode, facts.uid, facts.gid, facts.target, entry.digest, attributes)
    return found


Action = tuple[str, int, int, str, bytes]
_MARKING = ["remove", "rebuild", "recreate", "type", "mkdir", "create"]
"""What makes whiteouts and opaque folders, and fills them again: more often than the rest."""
_ACTION = st.tuples(
    st.sampled_from(VERBS + 3 * _MARKING),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(NAMES),
    st.sampled_from(CONTENTS),
)
_FILES = {"a/a": "1", "a/b/c": "2", "b/dir/a": "3", "b/a": "4", "dir/a/b/c": "5", "dir/x.pyc": "6", "c": "7"}
# What is closed to a user in a base cannot be read from outside.
_OPEN = _ACTION.filter(lambda action: action[0] != "close")


class Stack(RuleBasedStateMachine):
    """A tree, layers that were written by overlays over it, and a fork over all of them."""

    where = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=self.where)
        self.overlay: OverlayChild | None = None

    @initialize(
        bottom=st.lists(_OPEN, max_size=10), layers=st.lists(st.lists(_OPEN, max_size=12), min_size=2, max_size=4)
    )
    def prepare(self, bottom: list[Action], layers: list[list[Action]]) -> None:
        base = f"{self.folder}/base"
        write_files(base, _FILES)
        for action in bottom:
            act(base, *action)
        self.stack: tuple[str, ...] = (base,)
        for number, actions in enumerate(layers):
            os.mkdir(f"{self.folder}/{number}")
            child = OverlayChild(f"{self.folder}/{number}", self.stack)
            for action in actions:
                child.call(act, child.merged, *action)
            child.close()
            self.stack = (child.upper, *self.stack)
        os.mkdir(f"{self.folder}/view")
        view = OverlayChild(f"{self.folder}/view", self.stack, written=False)
        try:
            self.before = full_manifest(view.seen)
            self.plain = f"{self.folder}/plain"
            subprocess.run(["cp", "-a", "--", view.seen, self.plain], check=True)
        finally:
            view.close()
        self.overlay = OverlayChild(self.folder, self.stack)

    @rule(action=_ACTION)
    def change(self, action: Action) -> None:
        assert self.overlay is not None
        self.overlay.call(act, self.overlay.merged, *action)

    @invariant()
    def the_changes_are_those_of_the_merged_view(self) -> None:
        if self.overlay is not None:
            changes, wanted = self.changes(), compare(self.before, self.after(), AT)
            assert changes == wanted

    @precondition(lambda self: self.overlay is not None)
    @rule()
    def export(self) -> None:
        assert self.overlay is not None
        upper, changes, after = self.overlay.upper, self.changes(), self.after()
        tree = self.written(lambda to: export_tree(self.stack, upper, changes, AT, (), to, False, None, True))
        assert content(tree) == content(after)
        stream = io.BytesIO()
        part = Part(self.stack, upper, changes, AT, (), False)
        left_out = export_tar([part], stream, True)
        assert {after.entries[path].facts.kind for path in left_out} <= {EntryKind.SOCKET}
        assert unpacked(stream.getvalue()) == packable(after)
        if not any(change.path == f"{AT}/changes.json" for change in changes.changes):
            alone = self.written(lambda to: export_changes(upper, changes, AT, to, True))
            kept = {change.path[len(AT) + 1 :] for change in changes.changes if change.change is not D}
            found = content(alone)
            assert {path: found[path] for path in kept} == {path: content(after)[path] for path in kept}

    @precondition(lambda self: self.overlay is not None)
    @rule()
    def read_as_text(self) -> None:
        assert self.overlay is not None
        upper, changes, place = self.overlay.upper, self.changes(), f"{self.folder}/patched"
        text = b"".join(patch(changes.changes, self.stack, upper, AT))
        assert text == b"".join(patch(changes.changes, self.plain, upper, AT))
        for change in changes.changes:
            assert line_counts(change, self.stack, upper, AT) == line_counts(change, self.plain, upper, AT)
        try:
            files_only(self.plain, place)
            if text:
                subprocess.run(["git", "apply", "-"], cwd=place, input=text, check=True)
            assert git_view(full_manifest(place, (), True)) == git_view(self.after())
        finally:
            remove(place)

    def changes(self) -> Changeset:
        assert self.overlay is not None
        return scan_layer(self.overlay.upper, self.stack, AT)

    def after(self) -> FullManifest:
        assert self.overlay is not None
        return full_manifest(self.overlay.seen, (), True)

    def written(self, write: Callable[[str], tuple[str, ...]]) -> FullManifest:
        place = f"{self.folder}/out/there"
        try:
            assert write(place) == ()
            return full_manifest(place, (), True)
        finally:
            remove(f"{self.folder}/out")

    def teardown(self) -> None:
        if self.overlay is not None:
            self.overlay.close()
        remove(self.folder)


def _random(folder: str, examples: int) -> None:
    Stack.where = folder
    with contextlib.redirect_stdout(None):
        run_state_machine_as_test(
            Stack,
            settings=settings(
                max_examples=examples,
                stateful_step_count=10,
                deadline=None,
                phases=(Phase.generate,),
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.rig("user namespaces")
def test_a_stack_is_read_as_the_kernel_shows_it(person: Person, disk: Disk) -> None:
    person.call(_random, disk.folder(person), int(os.environ.get("HOSTFORK_EXAMPLES", "10")))


# --- single cases ----------------------------------------------------------------------------------------------------


def whiteout(path: str) -> None:
    """Delete by hand."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mknod(path, stat.S_IFCHR, 0)


def by_hand(folder: str) -> tuple[str, ...]:
    """Three layers with every mark, and with what no mark is needed for."""
    top, middle, bottom = stack = (f"{folder}/top", f"{folder}/middle", f"{folder}/bottom")
    write_files(
        bottom, dict.fromkeys(("w/x", "w/y", "o/x", "o/y/z", "f/x", "l/x", "p/x", "a/b/c/d", "was", "kept"), "1")
    )
    write_files(middle, {"w/z": "2", "o/new": "2", "f": "a file", "was/": "", "only/one": "2"})
    os.setxattr(f"{middle}/o", "user.overlay.opaque", b"y")
    os.symlink("w", f"{middle}/l")
    os.mkfifo(f"{middle}/p")
    whiteout(f"{middle}/w/x")
    whiteout(f"{middle}/a/b")
    # Folders without a mark over what is no folder: nothing below that shows.
    write_files(top, dict.fromkeys(("w/top", "o/top", "f/top", "l/top", "p/top", "a/b/c/top", "was/top", "new/"), "3"))
    os.chmod(f"{top}/w", 0o750)
    os.setxattr(f"{top}/w", "user.test", b"3")
    os.setxattr(f"{top}/w", "user.overlay.opaque", b"n")
    for path in ("w/y", "only/one", "nothing"):
        whiteout(f"{top}/{path}")
    return stack


def _by_hand(folder: str) -> None:
    stack = by_hand(folder)
    os.mkdir(f"{folder}/empty")
    for number, part in enumerate((stack, stack[1:])):
        wanted = shown(f"{folder}/{number}", part)
        out = f"{folder}/out{number}"
        assert export_tree(part, f"{folder}/empty", NONE, AT, (), out, False) == ()
        assert content(full_manifest(out)) == content(wanted)
        everywhere = {path for layer in stack for path in full_manifest(layer).entries}
        with TreeReader(part) as reader:
            assert {path for path in everywhere if reader.place(path) is not None} == set(wanted.entries)


@pytest.mark.rig("user namespaces")
def test_marks_that_were_made_by_hand(person: Person, disk: Disk) -> None:
    person.call(_by_hand, disk.folder(person))


def _fill_again(root: str) -> None:
    write_files(root, {"w/x": "again", "w/y": "again", "o/x": "again", "nothing": "something", "a/b/c/d": "again"})
    os.unlink(f"{root}/w/z")
    os.unlink(f"{root}/f/top")
    os.unlink(f"{root}/kept")


def _names_again(folder: str) -> None:
    stack = by_hand(folder)
    before = shown(f"{folder}/view", stack)
    child = OverlayChild(folder, stack)
    try:
        child.call(_fill_again, child.merged)
        changes = scan_layer(child.upper, stack, AT)
        assert changes == compare(before, full_manifest(child.seen), AT)
    finally:
        child.close()
    assert [(change.path[len(AT) + 1 :], change.change) for change in changes.changes] == [
        ("a/b/c/d", C), ("f/top", D), ("kept", D), ("nothing", C), ("o/x", C), ("w/x", C), ("w/y", C), ("w/z", D)
    ]  # fmt: skip


@pytest.mark.rig("user namespaces")
def test_a_hidden_name_that_a_fork_makes_again_is_new(person: Person, ext4_disk: Disk) -> None:
    person.call(_names_again, ext4_disk.folder(person))


def test_a_mark_that_hides_nothing_does_not_show(tmp_path: os.PathLike[str]) -> None:
    layers = top, middle, bottom = tuple(f"{tmp_path}/{name}" for name in ("top", "middle", "bottom"))
    write_files(bottom, {"d/x": "", "keep": ""})
    write_files(middle, {"d/y": ""})
    os.setxattr(f"{middle}/d", "user.overlay.opaque", b"y")
    for path in (f"{top}/new/nothing", f"{middle}/d/nothing", f"{middle}/d/x"):  # the kernel lists these names
        whiteout(path)
    os.mkdir(f"{tmp_path}/upper")
    assert export_tree(layers, f"{tmp_path}/upper", NONE, AT, (), f"{tmp_path}/out", False) == ()
    assert sorted(full_manifest(f"{tmp_path}/out").entries) == ["", "d", "d/y", "keep", "new"]


def test_a_stack_of_one_has_no_marks(tmp_path: os.PathLike[str]) -> None:
    base, upper, out = f"{tmp_path}/base", f"{tmp_path}/upper", f"{tmp_path}/out"
    write_files(base, {"d/x": "", "keep": ""})
    os.setxattr(f"{base}/d", "user.overlay.opaque", b"y")
    whiteout(f"{base}/device")
    os.mkdir(upper)
    assert scan_layer(upper, (base,), AT) == NONE
    assert export_tree((base,), upper, NONE, AT, (), out, False) == ("device",)
    assert sorted(full_manifest(out).entries) == ["", "d", "d/x", "keep"]


def test_hard_links_of_a_layer_stay_one_file(tmp_path: os.PathLike[str]) -> None:
    top, bottom, upper, out = (f"{tmp_path}/{name}" for name in ("top", "bottom", "upper", "out"))
    write_files(bottom, {"a": "1", "d/x": "2"})
    os.link(f"{bottom}/a", f"{bottom}/d/b")
    os.link(f"{bottom}/a", f"{bottom}/d/c")
    write_files(top, {"d/x": "3", "a": "4"})
    os.link(f"{top}/d/x", f"{top}/y")
    os.mkdir(upper)
    assert export_tree((top, bottom), upper, NONE, AT, (), out, False) == ()
    assert sorted(full_manifest(out).hard_links()) == [("d/b", "d/c"), ("d/x", "y")]


def _closed(folder: str) -> None:
    layers = top, middle, _ = tuple(f"{folder}/{name}" for name in ("top", "middle", "bottom"))
    for layer in layers:
        write_files(layer, {f"d/{os.path.basename(layer)}": "", "closed/x": ""})
    os.chmod(f"{middle}/d", 0)
    os.chmod(f"{top}/closed", 0)
    os.mkdir(f"{folder}/upper")
    left_out = export_tree(layers, f"{folder}/upper", NONE, AT, (), f"{folder}/out", False)
    assert sorted(left_out) == ["closed", "d"]
    assert sorted(full_manifest(f"{folder}/out", (), True).entries) == ["", "closed", "d", "d/top"]
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (f"{middle}/d", f"{top}/closed")] == [0, 0]


def test_what_is_closed_in_a_layer_stays_so_and_is_named(user: Person, ext4_disk: Disk) -> None:
    user.call(_closed, ext4_disk.folder(user))


def test_a_missing_layer_is_an_error(tmp_path: os.PathLike[str]) -> None:
    write_files(str(tmp_path), {"top/a": "", "upper/a": "1"})
    stack = (f"{tmp_path}/top", f"{tmp_path}/gone")
    changes = scan_layer(f"{tmp_path}/upper", f"{tmp_path}/top", AT)
    uses: list[Callable[[], object]] = [
        lambda: scan_layer(f"{tmp_path}/upper", stack, AT),
        lambda: export_tree(stack, f"{tmp_path}/upper", changes, AT, (), f"{tmp_path}/out", False),
        lambda: list(patch(changes.changes, stack, f"{tmp_path}/upper", AT)),
        lambda: line_counts(changes.changes[0], stack, f"{tmp_path}/upper", AT),
    ]
    for use in uses:
        with pytest.raises(CollectError, match="gone cannot be opened"):
            use()
