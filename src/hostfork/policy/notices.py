"""What a plan says besides what it does: each thing that is weaker than one may think, in a sentence.

Sentences name paths as the user wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hostfork.policy.demands import writers
from hostfork.policy.host import HostFacts
from hostfork.policy.layout import Layout, Placed
from hostfork.policy.paths import beneath, relative
from hostfork.policy.planned import Notice, NoticeKind, PathPlan, Plan
from hostfork.storage.contract import Guarantees
from hostfork.values import replace
from hostfork.vocabulary import Access, Guarantee, Ownership

_NAMED = 3


def notices(plan: Plan, layout: Layout) -> Plan:
    """The plan with its notices: those about the whole first, then path by path."""
    found = [*_of_the_run(plan, layout.facts), *_of_relocation(plan, layout)]
    by_path = {placed.path: placed for placed in layout.placed}
    for path in plan.paths:
        if not path.automatic:
            found += _of_path(path, by_path[path.path], plan, layout)
    return replace(plan, notices=tuple(found))


def _of_the_run(plan: Plan, facts: HostFacts) -> Iterator[Notice]:
    if plan.ownership is Ownership.SUBREAPER:
        why = f" ({facts.cgroup.reason})" if facts.cgroup.reason else ""
        yield Notice(
            NoticeKind.SUBREAPER,
            f"no cgroup owns the command's processes{why}, a weaker hold on those that leave their parents; "
            "`hostfork setup --print` shows how one is had",
        )
    if plan.user_namespace:
        yield Notice(
            NoticeKind.SET_UID, "sudo and other set-uid programs do not work inside: this user has a user namespace"
        )
    if plan.config_copies:
        names = ", ".join(copy.path for copy in plan.config_copies)
        yield Notice(NoticeKind.SSH_CONFIG, f"ssh sees private copies of {names}, whose owner would show as nobody")
    yield Notice(
        NoticeKind.NETWORK_SHARED,
        "network, localhost and abstract sockets are the host's, shared with it and with other forks",
    )
    private = [path for path in plan.paths if path.access is Access.PRIVATE and not path.automatic]
    if len(private) > 1:
        sentence = f"the {len(private)} private paths are taken one after the other, not as of one instant"
        yield Notice(NoticeKind.SEVERAL_INSTANTS, sentence)
    yield from _of_quiescing(plan)
    if plan.slave:
        yield Notice(
            NoticeKind.HOST_MOUNTS_APPEAR, "mounts that the host makes later appear inside; none made inside leaves"
        )


def _of_quiescing(plan: Plan) -> Iterator[Notice]:
    quiesce = plan.quiesce
    if quiesce.command is not None:
        undo = f", `{quiesce.undo}` afterwards" if quiesce.undo is not None else ""
        yield Notice(NoticeKind.QUIESCED, f"while the private paths are taken: `{quiesce.command}` before{undo}")
    if quiesce.cgroup is not None:
        yield Notice(NoticeKind.QUIESCED, f"the cgroup {quiesce.cgroup} is frozen while the private paths are taken")


def _of_relocation(plan: Plan, layout: Layout) -> Iterator[Notice]:
    if plan.same_paths:
        return
    yield Notice(
        NoticeKind.RELOCATED,
        "no namespaces: the private copy lies at another path (HOSTFORK_ROOT), and the original can still be written",
    )
    for mount in layout.nested:
        sentence = f"{mount.path} is a mount of the host's beneath {mount.inside} and is empty in the copy"
        yield Notice(NoticeKind.RELOCATED, sentence, mount.path)
    for end in layout.endpoints:
        holder = f" of {end.process} (pid {end.pid})" if end.pid else ""
        sentence = f"the {end.kind.value} {end.path}{holder} is not in the copy; it stays at the original path"
        yield Notice(NoticeKind.ENDPOINT_NOT_KEPT, sentence, end.path)


def _of_path(path: PathPlan, placed: Placed, plan: Plan, layout: Layout) -> Iterator[Notice]:
    if placed.facts.path != placed.facts.asked:
        sentence = f"{path.written} leads to {path.path}: that is what is {path.access.value}"
        yield Notice(NoticeKind.RESOLVED, sentence, path.path)
    if placed.otherwise:
        sentence = f"{path.written}: {path.access.value} {path.reason}"
        yield Notice(NoticeKind.NOT_PRIVATE, sentence, path.path)
    if path.access is Access.SCRATCH:
        sentence = f"{path.written} starts empty and is dropped at the end, never collected"
        yield Notice(NoticeKind.SCRATCH_DROPPED, sentence, path.path)
    if path.offer is None:
        return
    yield from _of_guarantees(path, path.offer.guarantees)
    git = layout.shared_git(path.path)
    if git is not None:
        kind = NoticeKind.GIT_SHARED if git.linked else NoticeKind.GIT_ABOVE
        sentence = (
            f"git in {path.written} writes to {git.common}, which stays the host's: --private-git makes it private"
        )
        yield Notice(kind, sentence, git.common)
    if path.offer.unreadable:
        sentence = f"left out of {path.written}, which this user cannot read all of: {_some(path.offer.unreadable)}"
        yield Notice(NoticeKind.UNREADABLE, sentence, path.path)
    if not path.folder:
        linked = ", and its hard links elsewhere stay the host's" if placed.facts.links > 1 else ""
        sentence = f"{path.written} is a single file: it can be written, not replaced by rename or removed{linked}"
        yield Notice(NoticeKind.FILE_NOT_REPLACEABLE, sentence, path.path)
    if beneath(plan.pool, path.path):
        sentence = f"{path.written} holds the pool {plan.pool}, which is left out of it"
        yield Notice(NoticeKind.POOL_INSIDE, sentence, path.path)
    if plan.user_namespace and (placed.facts.foreign or placed.facts.uid != layout.facts.uid):
        what = f" ({_some(placed.facts.foreign)})" if placed.facts.foreign else ""
        sentence = f"files of other users in {path.written}{what} show as nobody's; what could not be written cannot be"
        if not path.offer.guarantees.foreign_owners:
            sentence += (
                ", and on an overlay they can neither be written nor renamed"
                " (`Value too large for defined data type`), group and mode regardless: a copy has no such limit"
            )
        yield Notice(NoticeKind.FOREIGN_OWNERS, sentence, path.path)
    writing = writers(path.path, layout)
    if writing:
        which = _some(
            tuple(f"{relative(file.path, path.path) or 'itself'} ({file.process}, pid {file.pid})" for file in writing)
        )
        sentence = f"host processes have files in {path.written} open for writing: {which}"
        yield Notice(NoticeKind.WRITERS, sentence, path.path)


def _of_guarantees(path: PathPlan, kept: Guarantees) -> Iterator[Notice]:
    if kept.guarantee is Guarantee.LIVE:
        sentence = f"what the host writes in {path.written} shows through until the command writes there itself"
        yield Notice(NoticeKind.LIVE_SOURCE, sentence, path.path)
    if not kept.native_watchers:
        sentence = f"watchers and mappings of files of {path.written} may miss writes after the first one to the file"
        yield Notice(NoticeKind.NO_WATCHERS, sentence, path.path)
    if not kept.folder_rename:
        sentence = f"a folder of the base in {path.written} cannot be renamed in one step (EXDEV)"
        yield Notice(NoticeKind.FOLDER_RENAME, sentence, path.path)
    if not kept.hard_links:
        sentence = f"hard links of the base in {path.written} come apart at the first write"
        yield Notice(NoticeKind.HARD_LINKS, sentence, path.path)
    if not kept.unique_inodes:
        sentence = (
            f"files in {path.written} can have one inode number (Btrfs numbers by subvolume, and an overlay shows one "
            "device): `mv` to another folder, `cp -a`, `tar` and `rsync -H` may take them for hard links of one"
        )
        yield Notice(NoticeKind.INODE_NUMBERS, sentence, path.path)
    if not kept.layers:
        sentence = (
            f"layers of other overlays in {path.written} would show deleted files; where container engines keep "
            "theirs there are none, and only a walk would find others"
        )
        yield Notice(NoticeKind.LAYERS, sentence, path.path)


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
