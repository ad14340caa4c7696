"""What is refused before anything is made, and how it is said: promises that were demanded, mechanisms, namespaces."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from hostfork.errors import Code, HostError, PolicyError, StorageError
from hostfork.policy.host import HostFacts, OpenFile
from hostfork.policy.layout import Layout, Placed
from hostfork.policy.options import join_private
from hostfork.policy.paths import within
from hostfork.policy.planned import PathPlan
from hostfork.policy.rules import Policy, Rule
from hostfork.storage.choose import Choice
from hostfork.storage.contract import Guarantees
from hostfork.vocabulary import Access, Guarantee, Mechanism, Ownership, Require

_DONE_BY = {
    Mechanism.BTRFS: "cannot be snapshotted by Btrfs",
    Mechanism.REFLINK: "cannot be cloned by reflink",
    Mechanism.OVERLAY: "cannot be overlaid",
    Mechanism.COPY: "cannot be copied",
}
_PROMISED = {
    Guarantee.SNAPSHOT: "cannot be taken as of one instant",
    Guarantee.INDEPENDENT: "cannot be made independent of the host's",
    Guarantee.LIVE: "cannot be laid over the host's",
}


def check_requires(policy: Policy, layout: Layout, paths: tuple[PathPlan, ...], *, same_paths: bool) -> None:
    """Raise PolicyError (`policy.require`) for the first demanded promise that this plan does not keep."""
    cgroup = layout.facts.cgroup
    for require in policy.requires:
        if require is Require.SAME_PATHS and not same_paths:
            raise _broken(require, None, "the private copy lies at another path in relocated mode")
        if require is Require.CGROUP and cgroup.ownership is not Ownership.CGROUP:
            hint = "hostfork setup --print shows how one is had"
            raise _broken(require, None, cgroup.reason or "no cgroup can own the process tree", hint)
        for path in paths:
            why = _why_not(require, path, layout, quiesced=bool(policy.quiesce))
            if why is not None:
                raise _broken(require, path, *why)


def _broken(require: Require, path: PathPlan | None, why: str, hint: str | None = None) -> PolicyError:
    subject = "this host" if path is None else path.written
    return PolicyError(
        Code.POLICY_REQUIRE,
        f"{subject} cannot keep `{require.value}`: {why}",
        path=None if path is None else path.path,
        place=f"--require {require.value}",
        details=() if path is None or require is Require.STABLE else _reasons(path),
        hint=hint or f"without --require {require.value} it runs, and says what is weaker",
    )


def _reasons(path: PathPlan) -> tuple[str, ...]:
    return tuple(f"{one.mechanism.value}: {one.reason}" for one in path.refused)


def _why_not(require: Require, path: PathPlan, layout: Layout, *, quiesced: bool) -> tuple[str, str | None] | None:
    """Why this private path does not keep the promise, and what helps; None if it does.

    `quiesced`: writers are looked for once they had the chance to stop.
    """
    if path.offer is None:
        return None
    kept = path.offer.guarantees
    name = path.offer.mechanism.value
    asked = {Require.SNAPSHOT: Guarantee.SNAPSHOT, Require.INDEPENDENT: Guarantee.INDEPENDENT}.get(require)
    if asked is not None and not kept.guarantee.keeps(asked):
        return f"{name} gives `{kept.guarantee.value}`", f"--private {join_private(path.written, asked)}"
    lost = _lost(require, kept)
    if lost is not None:
        return f"with {name} {lost}", f"--private {join_private(path.written, Mechanism.COPY)}"
    if require is Require.PRIVATE_GIT:
        git = layout.shared_git(path.path)
        return None if git is None else (f"its repository {git.common} stays the host's", "--private-git")
    if require is Require.STABLE:
        return _unstable(path, kept, layout, quiesced=quiesced)
    return None


def _lost(require: Require, kept: Guarantees) -> str | None:
    if require is Require.NATIVE_WATCHERS and not kept.native_watchers:
        return "watchers and mappings of a file may miss writes after the first one to it"
    if require is Require.FOLDER_RENAME and not kept.folder_rename:
        return "a folder of the base cannot be renamed (EXDEV)"
    if require is Require.HARD_LINKS and not kept.hard_links:
        return "hard links of the base come apart at the first write"
    return None


def _unstable(path: PathPlan, kept: Guarantees, layout: Layout, *, quiesced: bool) -> tuple[str, str | None] | None:
    if kept.guarantee is Guarantee.LIVE:
        return "what the host writes shows through", f"--private {join_private(path.written, Guarantee.INDEPENDENT)}"
    if kept.guarantee is Guarantee.SNAPSHOT or quiesced:
        return None
    for file in writers(path.path, layout):
        return is_writing(file), WRITER_HINT
    return None


WRITER_HINT = "end that process first, or hold it still with --freeze-cgroup or --quiesce"


def is_writing(file: OpenFile) -> str:
    """Which process has which file open, as a clause."""
    return f"{file.process} (pid {file.pid}) has {file.path} open for writing"


def writers(path: str, layout: Layout) -> tuple[OpenFile, ...]:
    """Host processes that have a file of this private path open for writing; what lies in it but is left out is not."""
    return tuple(file for file in layout.facts.open_files if file.writing and _belongs(file.path, path, layout))


def _belongs(file: str, path: str, layout: Layout) -> bool:
    if not within(file, path):
        return False  # of what may be thousands; the rest is not cheap
    over = layout.over(file)
    return over is not None and over.path == path and layout.mounted_over(file) is None


def unsupported(rule: Rule, path: str, choice: Choice) -> StorageError:
    """The error of a private path that no mechanism can serve as asked, with the reasons and the nearest choices."""
    wanted = (rule.mechanism or rule.guarantee or Guarantee.INDEPENDENT, *rule.lesser)
    what = _DONE_BY[wanted[-1]] if isinstance(wanted[-1], Mechanism) else _PROMISED[wanted[-1]]
    refused = {one.mechanism for one in choice.refused}
    nearest = []
    if Mechanism.COPY not in refused and rule.mechanism is not Mechanism.COPY:
        nearest.append(f"--private {join_private(rule.written, Mechanism.COPY)} copies it once")
    if Mechanism.OVERLAY not in refused and Guarantee.LIVE not in wanted:
        live = join_private(rule.written, Guarantee.LIVE)
        nearest.append(f"--private {live} is instant, host changes show through")
    if any(one.skippable for one in choice.refused):
        nearest.append("--unreadable skip leaves out what this user cannot read")
    if any(one.of_pool for one in choice.refused):
        nearest.append(f"--pool DIR names a folder on the disk of {rule.written}")
    return StorageError(
        Code.STORAGE_UNSUPPORTED,
        f"{rule.written} {what}",
        path=path,
        place=rule.place,
        errno=next((one.errno for one in choice.refused if one.errno is not None), None),
        details=tuple(_reason(one.mechanism, one.reason, rule) for one in choice.refused),
        hint=" · ".join(nearest) or "--pool DIR names a folder on another filesystem for private storage",
    )


def _reason(mechanism: Mechanism, reason: str, rule: Rule) -> str:
    return reason if mechanism is rule.mechanism else f"{mechanism.value}: {reason}"


def namespaces_denied(facts: HostFacts) -> HostError:
    """The error of a host that does not let this user make a view."""
    denied = facts.namespaces
    tried = f"{denied.step}: {denied.reason}" if denied.step else denied.reason
    limits = (limit for limit in facts.limits if limit.partition("=")[0] not in denied.reason)
    return HostError(
        Code.HOST_NAMESPACES,
        "this host does not let this user make the namespaces that a view needs",
        step=denied.step or None,
        # A limit of 0 gives ENOSPC, whose words would send people to look for room on a disk.
        errno=None if denied.errno == errno.ENOSPC else denied.errno,
        details=tuple(text for text in (tried, *limits) if text),
        hint="--relocated works without them, with the private copy at another path · "
        "what is missing shows, and root installs: hostfork setup",
    )


def refuse_relocated(layout: Layout, choices: Mapping[str, Choice]) -> None:
    """Raise where the relocated mode, a plain copy at another path, cannot give what a rule says."""
    for placed in layout.placed:
        if placed.automatic:
            continue
        if placed.access is not Access.PRIVATE:
            raise _relocated(placed, f"cannot be {placed.access.value}: without namespaces the host's own path stays")
        if not placed.facts.folder:
            raise _relocated(placed, "is a file; only folders can be private there")
        offer = choices[placed.path].offer
        if offer is not None and not offer.guarantees.elsewhere:
            raise _relocated(placed, f"cannot be made by {offer.mechanism.value}, which needs a mount")


def _relocated(placed: Placed, why: str) -> PolicyError:
    return PolicyError(
        Code.POLICY_USAGE,
        f"{placed.rule.written} {why} (--relocated)",
        path=placed.path,
        place=placed.rule.place,
        hint="--relocated serves `--private FOLDER` alone, by any mechanism but overlay",
    )
