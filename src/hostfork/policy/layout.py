"""Rules put on resolved paths: which are there, which can be had at all, which is nearest, what lies inside what.

The nearest rule at or above a path wins. A rule that says what its surroundings say already is dropped. hostfork's own
folders are covered by rules that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hostfork.errors import Code, HostforkError, PolicyError, StorageError
from hostfork.policy.host import HostFacts, Listener, MountEntry, MountTable, PathFacts
from hostfork.policy.load import asked, conflict, same_effect
from hostfork.policy.paths import beneath, components, relative, within
from hostfork.policy.planned import EndpointPlan, NestedMount
from hostfork.policy.repository import Repository
from hostfork.policy.rules import EndpointRule, Policy, Rule
from hostfork.values import frozen, replace
from hostfork.vocabulary import Access, EndpointKind, EntryKind

_ENDPOINTS = {EntryKind.SOCKET: EndpointKind.SOCKET, EntryKind.FIFO: EndpointKind.FIFO}
_KERNEL = {"/proc": "processes", "/sys": "devices and the kernel", "/dev": "devices"}
_COVERING = (Access.PRIVATE, Access.SCRATCH, Access.HIDDEN)


@frozen
class Placed:
    """A rule on a resolved path. `automatic`: hostfork's own, not asked for.

    `otherwise`: it was to be private, cannot be here, and is what its rule says for that.
    """

    rule: Rule
    facts: PathFacts
    automatic: bool = False
    otherwise: bool = False

    @property
    def path(self) -> str:
        return self.facts.path

    @property
    def access(self) -> Access:
        return self.rule.access


@frozen
class Layout:
    """What lies where. `named`: every rule that was asked for, `placed`: those that have an effect; outer first."""

    facts: HostFacts
    table: MountTable
    named: tuple[Placed, ...]
    placed: tuple[Placed, ...]
    nested: tuple[NestedMount, ...] = ()
    endpoints: tuple[EndpointPlan, ...] = ()

    def over(self, path: str) -> Placed | None:
        """The rule in effect at `path`: the nearest at or above it."""
        return nearest(path, self.placed)

    def mounted_over(self, path: str) -> NestedMount | None:
        """The host mount, put back, through which `path` is the host's again."""
        rule = self.over(path)
        for mount in self.nested:
            if within(path, mount.path) and rule is not None and rule.path == mount.inside:
                return mount
        return None

    def shared_git(self, path: str) -> Repository | None:
        """The repository of the work tree in which a private path lies, where its common folder is the host's."""
        found = next((one for at, one in self.facts.repositories if at == path), None)
        over = None if found is None else self.over(found.common)
        return None if over is not None and over.access is Access.PRIVATE else found

    def omit(self, placed: Placed) -> tuple[str, ...]:
        """What lies in `placed` and belongs to something else: outermost paths, relative to it."""
        inside = [other.path for other in self.placed]
        inside += [mount.path for mount in self.nested if mount.inside == placed.path]
        inside += [end.path for end in self.endpoints]
        return tuple(relative(path, placed.path) for path in outermost(inside, placed.path))


def resolve(policy: Policy, facts: HostFacts, served: Mapping[str, bool] | None = None) -> Layout:
    """Rules, nested mounts and endpoints in their places.

    `served`: whether there is a mechanism for a private path, by resolved path; one that is not there is as the one
    above it. Raises PolicyError (`policy.bad-path`, `policy.conflict`) and StorageError (`storage.source`).
    """
    known = _known(facts)
    found = (_place(rule, known[rule.path], served or {}) for rule in policy.rules)
    named = _one_each(placed for placed in found if placed is not None)
    _refuse_own_folders(named, facts)
    table = MountTable(facts.mounts)
    placed = _with_covers(_without_redundant(named, table), facts, known)
    layout = Layout(facts, table, named, placed)
    layout = replace(layout, nested=_nested_mounts(layout, known))
    return replace(layout, endpoints=_endpoints(layout, policy.endpoints, known))


def nearest(path: str, placed: Iterable[Placed]) -> Placed | None:
    """The deepest of these at or above `path`."""
    over = [one for one in placed if within(path, one.path)]
    return max(over, key=lambda one: len(components(one.path)), default=None)


def outermost(paths: Iterable[str], folder: str) -> list[str]:
    """Those below `folder` that lie below no other of them, outer first."""
    found: list[str] = []
    for path in sorted({path for path in paths if beneath(path, folder)}, key=components):
        if not any(within(path, outer) for outer in found):
            found.append(path)
    return found


def _known(facts: HostFacts) -> dict[str, PathFacts]:
    """Facts by the path as asked, and by the resolved one."""
    by_path = {one.path: one for one in facts.paths}
    return by_path | {one.asked: one for one in facts.paths}


def _place(rule: Rule, facts: PathFacts, served: Mapping[str, bool]) -> Placed | None:
    """The rule in its place; None where it may be absent and is. Raises where it cannot be had."""
    if facts.kind is None and rule.optional and facts.errno is not None and _absent(facts.errno):
        return None
    if facts.kind is None:
        raise _missing(rule, facts)
    _refuse_kernel_paths(rule, facts.path)
    if facts.kind not in _kinds(rule.access):
        raise _wrong_kind(rule, facts)
    if rule.otherwise is not None and not (facts.readable and _is_served(facts.path, served)):
        return Placed(replace(rule, access=rule.otherwise), facts, otherwise=True)
    if rule.access is Access.PRIVATE and not facts.readable:
        raise StorageError(
            Code.STORAGE_SOURCE,
            f"{rule.written} cannot be read by this user, so there is nothing to make a private copy from",
            path=facts.path,
            place=rule.place,
            hint=f"--scratch {rule.written} gives an empty folder at that path",
        )
    return Placed(rule, facts)


def _is_served(path: str, served: Mapping[str, bool]) -> bool:
    """Whether a mechanism serves it, as far as that is known yet."""
    over = [other for other in served if within(path, other)]
    return not over or served[max(over, key=len)]


def _absent(number: int) -> bool:
    import errno

    return number in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _missing(rule: Rule, facts: PathFacts) -> HostforkError:
    import os

    number = facts.errno or 0
    hint: str | None = None
    if not _absent(number):
        message = f"{rule.written} cannot be reached"
        if rule.access is Access.PRIVATE:
            return StorageError(Code.STORAGE_SOURCE, message, path=facts.path, place=rule.place, errno=number)
    elif facts.path != facts.asked:
        message = f"{rule.written} leads to {facts.path}, which does not exist"
        hint = "name a path that exists"
    else:
        message = f"{rule.written} does not exist"
        hint = "create it first: hostfork makes nothing in your own tree"
        if ":" in os.path.basename(rule.written):
            from hostfork.policy.options import PRIVATE_WORDS

            hint = f"after a `:` only these words count: {', '.join(PRIVATE_WORDS)}"
    return PolicyError(Code.POLICY_BAD_PATH, message, path=facts.path, place=rule.place, errno=number, hint=hint)


def _kinds(access: Access) -> tuple[EntryKind, ...]:
    if access is Access.PRIVATE:
        return (EntryKind.FOLDER, EntryKind.FILE)
    return (EntryKind.FOLDER,) if access is Access.SCRATCH else tuple(EntryKind)


def _wrong_kind(rule: Rule, facts: PathFacts) -> PolicyError:
    kind = facts.kind.value if facts.kind is not None else "nothing"
    hint = {
        EntryKind.FILE: f"--private {rule.written} gives a copy of the file",
        EntryKind.SOCKET: f"--endpoint {rule.written} keeps the host's socket at its path",
        EntryKind.FIFO: f"--endpoint {rule.written} keeps the host's FIFO at its path",
    }.get(facts.kind or EntryKind.FOLDER)
    message = f"{rule.written} is a {kind}, which cannot be {rule.access.value}"
    return PolicyError(Code.POLICY_BAD_PATH, message, path=facts.path, place=rule.place, hint=hint)


def _refuse_kernel_paths(rule: Rule, path: str) -> None:
    if path == "/" and rule.access in _COVERING:
        hint = "--read-only / makes everything read-only; name the folders to work in: --private ."
        raise _unusable(rule, path, f"/ as a whole cannot be {rule.access.value}", hint)
    for root, what in _KERNEL.items():
        # Below /dev/shm there are ordinary files.
        if rule.access is Access.PRIVATE and within(path, root) and not path.startswith("/dev/shm/"):
            message = f"{rule.written} cannot be private: {root} shows {what}, not files that can be copied"
            raise _unusable(rule, path, message, f"--scratch {rule.written}" if path == "/dev/shm" else None)
        if rule.access in _COVERING and path == root:
            message = f"{rule.written} cannot be {rule.access.value}: programs do not work without {root}"
            raise _unusable(rule, path, message, None)


def _unusable(rule: Rule, path: str, message: str, hint: str | None) -> PolicyError:
    return PolicyError(Code.POLICY_BAD_PATH, message, path=path, place=rule.place, hint=hint)


def _one_each(found: Iterable[Placed]) -> tuple[Placed, ...]:
    """One rule a resolved path: an option's over a policy file's; two that differ contradict each other."""
    by_path: dict[str, Placed] = {}
    for placed in found:
        other = by_path.setdefault(placed.path, placed)
        if placed.rule.from_option and not other.rule.from_option:
            by_path[placed.path] = placed
        elif placed.rule.from_option == other.rule.from_option and not same_effect(placed.rule, other.rule):
            raise conflict(other.rule, placed.rule, placed.path)
    return tuple(sorted(by_path.values(), key=lambda placed: components(placed.path)))


def _refuse_own_folders(named: tuple[Placed, ...], facts: HostFacts) -> None:
    for placed in named:
        for own in (facts.state, facts.pool, *facts.other_pools):
            what = "state folder" if own == facts.state else "pool"
            covers = placed.path == own and placed.access in (Access.SCRATCH, Access.HIDDEN)
            if within(placed.path, own) and not covers:
                message = f"{placed.rule.written} lies in hostfork's own {what} and cannot be {placed.access.value}"
                hint = f"the {what} is {own}: name another path, or another {'pool' if what == 'pool' else 'state'}"
                raise _unusable(placed.rule, placed.path, message, hint)


def _without_redundant(named: tuple[Placed, ...], table: MountTable) -> tuple[Placed, ...]:
    """Rules that change something. A private path on a host mount below another one does: the mount is put back."""
    kept: list[Placed] = []
    for placed in named:
        outer = nearest(placed.path, kept)
        if outer is None and placed.access is Access.SHARED:
            continue
        if outer is None or not same_effect(outer.rule, placed.rule) or _separate(outer, placed, table):
            kept.append(placed)
    return tuple(kept)


def _separate(outer: Placed, inner: Placed, table: MountTable) -> bool:
    return inner.access is Access.PRIVATE and table.mount_of(outer.path) is not table.mount_of(inner.path)


def _with_covers(placed: tuple[Placed, ...], facts: HostFacts, known: dict[str, PathFacts]) -> tuple[Placed, ...]:
    """Rules over hostfork's own folders where something of them would show: an empty state, no pool of any fork.

    Also where they are not there yet: a first run makes them before its view is built.
    """
    kept = list(placed)
    pools = ((pool, Access.HIDDEN) for pool in (facts.pool, *facts.other_pools))
    for own, access in ((facts.state, Access.SCRATCH), *pools):
        outer = nearest(own, kept)
        if outer is None or outer.access not in (Access.SCRATCH, Access.HIDDEN):
            folder = replace(known[own], kind=EntryKind.FOLDER)
            kept.append(Placed(Rule(access, own, own, "hostfork"), folder, automatic=True))
    return tuple(sorted(kept, key=lambda one: components(one.path)))


def _nested_mounts(layout: Layout, known: dict[str, PathFacts]) -> tuple[NestedMount, ...]:
    """The host's mounts beneath private paths. Where all but what is named is read-only, so are they."""
    found: list[NestedMount] = []
    over = layout.over("/")
    read_only = over is not None and over.access is Access.READ_ONLY
    for placed in layout.placed:
        if placed.access is not Access.PRIVATE:
            continue
        entries = {entry.point: entry for entry in layout.table.beneath(placed.path)}
        own = [point for point in entries if layout.over(point) is placed]
        for point in outermost(own, placed.path):
            found.append(_nested(entries[point], known[point], placed.path, read_only))
    return tuple(found)


def _nested(entry: MountEntry, facts: PathFacts, inside: str, read_only: bool) -> NestedMount:
    # where it cannot be looked at, only a folder can be a FUSE filesystem's root
    folder = facts.kind is None or facts.folder
    return NestedMount(entry.point, entry.filesystem, folder, facts.device, facts.inode, inside, read_only)


def _endpoints(
    layout: Layout, rules: tuple[EndpointRule, ...], known: dict[str, PathFacts]
) -> tuple[EndpointPlan, ...]:
    alive = {listener.path: listener for listener in layout.facts.listeners}
    found: dict[str, EndpointPlan] = {}
    for listener in alive.values():
        over = layout.over(listener.path)
        if over is not None and over.access is Access.PRIVATE and layout.mounted_over(listener.path) is None:
            found[listener.path] = _endpoint_plan(listener, asked_for=False)
    for rule in rules:
        facts = known[rule.path]
        if facts.kind is None and rule.optional:
            continue
        kind = _endpoint_kind(rule, facts)
        over = layout.over(facts.path)
        if over is not None and over.path == facts.path and over.access in _COVERING:
            raise _endpoint_conflict(rule, over)
        if over is None or over.access not in _COVERING or layout.mounted_over(facts.path) is not None:
            continue
        seen = alive.get(facts.path) or Listener(facts.path, kind, 0, "", facts.device, facts.inode)
        found[facts.path] = _endpoint_plan(seen, asked_for=True)
    return tuple(found[path] for path in sorted(found, key=components))


def _endpoint_kind(rule: EndpointRule, facts: PathFacts) -> EndpointKind:
    kind = _ENDPOINTS.get(facts.kind) if facts.kind is not None else None
    if kind is None:
        what = "does not exist" if facts.kind is None else f"is a {facts.kind.value}, not a socket or FIFO"
        where = rule.written if facts.path == facts.asked else f"{rule.written} leads to {facts.path}, which"
        raise PolicyError(
            Code.POLICY_BAD_PATH,
            f"{where} {what}",
            path=facts.path,
            place=rule.place,
            errno=facts.errno,
            hint="an endpoint is a socket or FIFO of the host's that is there before the run",
        )
    return kind


def _endpoint_plan(listener: Listener, *, asked_for: bool) -> EndpointPlan:
    return EndpointPlan(
        listener.path,
        listener.kind,
        asked_for,
        listener.pid,
        listener.process,
        listener.device,
        listener.inode,
    )


def _endpoint_conflict(rule: EndpointRule, over: Placed) -> PolicyError:
    return PolicyError(
        Code.POLICY_CONFLICT,
        f"two rules contradict each other about {over.path}",
        path=over.path,
        place=rule.place,
        details=(
            f"{over.rule.place} says {asked(over.rule)} for {over.rule.written}",
            f"{rule.place} says endpoint for {rule.written}",
        ),
        hint="keep one of them",
    )
