"""A policy and facts become a plan: places, nesting, covers, mounts, endpoints, aliases, demands, notices."""

import dataclasses
import enum
import json
import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostfork.errors import Code, HostError, HostforkError, PolicyError, StorageError
from hostfork.policy.host import CgroupFacts, HostFacts, Namespaces, OpenFile, PathFacts
from hostfork.policy.plan import NoticeKind, PathPlan, Plan, make_plan, sources
from hostfork.policy.rules import Policy, Quiesce, Rule
from hostfork.storage.choose import Choice
from hostfork.storage.contract import Guarantees, Offer, Refusal
from hostfork.vocabulary import Access, EndpointKind, EntryKind, Guarantee, Mechanism, Ownership, StorageKind
from policy_rig import (
    COPIES,
    OVERLAYS,
    OWNED,
    SNAPSHOTS,
    USER_NAMESPACES,
    another_process,
    bind,
    facts_of,
    listening,
    plan_of,
    policy_of,
    tmpfs,
    tree,
    with_mounts,
)
from rigs import Person


@pytest.fixture
def base(tmp_path: Any) -> str:
    path = os.path.realpath(tmp_path)
    tree(path, "p/file", "p/inner/deep/", "p/mnt/", "q/", "own-state/pool/")
    return path


def planned(base: str, choice: Choice = COPIES, facts: dict[str, Any] | None = None, **options: Any) -> Plan:
    policy = policy_of(**options)
    return plan_of(policy, facts_of(policy, base, **(facts or {})), choice)


def refused(base: str, choice: Choice = COPIES, facts: dict[str, Any] | None = None, **options: Any) -> HostforkError:
    with pytest.raises(HostforkError) as caught:
        planned(base, choice, facts, **options)
    return caught.value


def asked(plan: Plan) -> list[tuple[str, Access]]:
    return [(path.path, path.access) for path in plan.paths if not path.automatic]


def at(plan: Plan, path: str) -> PathPlan:
    return next(one for one in plan.paths if one.path == path)


def kinds(plan: Plan) -> list[NoticeKind]:
    return [notice.kind for notice in plan.notices]


def sentence(plan: Plan, kind: NoticeKind) -> str:
    return next(notice.sentence for notice in plan.notices if notice.kind is kind)


# --- one path --------------------------------------------------------------------------------------------------------


def test_a_private_folder(base: str) -> None:
    plan = planned(base, private=(f"{base}/p",))
    found = os.stat(f"{base}/p")
    path = at(plan, f"{base}/p")
    assert (path.access, path.written, path.place, path.folder) == (Access.PRIVATE, f"{base}/p", "--private", True)
    assert (path.device, path.inode) == (found.st_dev, found.st_ino)
    assert path.filesystem
    assert path.offer == COPIES.offer
    assert path.reason == "38 MB are copied"
    assert (plan.same_paths, plan.slave, plan.read_only_root, plan.user_namespace) == (True, True, False, False)
    assert (plan.ownership, plan.cgroup_parent) == (Ownership.CGROUP, "/a/cgroup")
    assert (plan.nested_mounts, plan.endpoints, plan.config_copies) == ((), (), ())


def test_the_same_policy_and_facts_give_the_same_plan_and_it_is_json(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",), scratch=(f"{base}/q",))
    facts = facts_of(policy, base)
    first, second = plan_of(policy, facts), plan_of(policy, facts)
    assert first == second

    def plain(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.name
        raise TypeError(type(value))

    assert json.loads(json.dumps(dataclasses.asdict(first), default=plain))["pool"] == f"{base}/own-state/pool"
    json.dumps(dataclasses.asdict(facts), default=plain)


def test_a_single_file_cannot_be_replaced(base: str) -> None:
    os.link(f"{base}/p/file", f"{base}/q/other")
    plan = planned(base, private=(f"{base}/p/file",))
    assert not at(plan, f"{base}/p/file").folder
    assert "hard links elsewhere" in sentence(plan, NoticeKind.FILE_NOT_REPLACEABLE)
    os.unlink(f"{base}/q/other")
    alone = planned(base, private=(f"{base}/p/file",))
    assert "hard links" not in sentence(alone, NoticeKind.FILE_NOT_REPLACEABLE)


def test_a_link_is_followed_once_and_said(base: str) -> None:
    os.symlink("p", f"{base}/link")
    plan = planned(base, private=(f"{base}/link/inner",))
    path = at(plan, f"{base}/p/inner")
    assert path.written == f"{base}/link/inner"
    assert sentence(plan, NoticeKind.RESOLVED) == f"{base}/link/inner leads to {base}/p/inner: that is what is private"
    assert NoticeKind.RESOLVED not in kinds(planned(base, private=(f"{base}/p",)))


# --- what cannot be had ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["private", "read_only", "shared", "scratch", "hidden"])
def test_a_missing_path(base: str, option: str) -> None:
    error = refused(base, share_all=True, **{option: (f"{base}/gone",)})
    assert (error.code, error.path, error.errno) == (Code.POLICY_BAD_PATH, f"{base}/gone", 2)
    assert error.place == "--" + option.replace("_", "-")


def test_a_missing_path_with_what_looks_like_a_word(base: str) -> None:
    assert "reflink" in (refused(base, private=(f"{base}/p:scratch",)).hint or "")


def test_a_dangling_link_names_both_ends(base: str) -> None:
    os.symlink("gone", f"{base}/link")
    error = refused(base, private=(f"{base}/link",))
    assert error.message == f"{base}/link leads to {base}/gone, which does not exist"


@pytest.mark.parametrize(
    ("option", "path", "word"),
    [
        ("private", "/", "/ as a whole"),
        ("scratch", "/", "/ as a whole"),
        ("hidden", "/", "/ as a whole"),
        ("private", "/proc", "processes"),
        ("private", "/proc/self/fd", "processes"),
        ("private", "/sys/kernel", "kernel"),
        ("private", "/dev/shm", "devices"),
        ("scratch", "/proc", "do not work without"),
        ("hidden", "/dev", "do not work without"),
    ],
)
def test_paths_of_the_kernel(base: str, option: str, path: str, word: str) -> None:
    error = refused(base, **{option: (path,)})
    assert error.code is Code.POLICY_BAD_PATH
    assert word in error.message
    if path == "/":
        assert "--read-only /" in (error.hint or "")
    if path == "/dev/shm":
        assert error.hint == "--scratch /dev/shm"


def test_scratch_below_dev_is_possible(base: str) -> None:
    assert asked(planned(base, scratch=("/dev/shm",))) == [(os.path.realpath("/dev/shm"), Access.SCRATCH)]


def test_kinds_that_do_not_fit(base: str) -> None:
    os.mkfifo(f"{base}/fifo")
    with listening(f"{base}/sock"):
        for option, name, hint in (
            ("private", "sock", "--endpoint"),
            ("private", "fifo", "--endpoint"),
            ("scratch", "p/file", "--private"),
        ):
            error = refused(base, **{option: (f"{base}/{name}",)})
            assert error.code is Code.POLICY_BAD_PATH
            assert hint in (error.hint or "")
        assert asked(planned(base, hidden=(f"{base}/sock", f"{base}/fifo"))) == [
            (f"{base}/fifo", Access.HIDDEN),
            (f"{base}/sock", Access.HIDDEN),
        ]
    assert refused(base, private=("/etc/../dev/null",)).code is Code.POLICY_BAD_PATH


def _refused_as(base: str, path: str, option: str) -> tuple[Code, int | None]:
    error = refused(base, **{option: (path,)})
    return error.code, error.errno


def test_what_a_user_cannot_read(user: Person, ext4_disk: Any) -> None:
    if user.uid == os.geteuid():
        shut = ext4_disk.folder(user)
        os.mkdir(f"{shut}/in", 0o000)
    else:
        shut = ext4_disk.folder(user)
        os.mkdir(f"{shut}/in", 0o700)
        os.mkdir(f"{shut}/in/deep")
    assert user.call(_refused_as, user.home, f"{shut}/in", "private") == (Code.STORAGE_SOURCE, None)
    assert user.call(_refused_as, user.home, f"{shut}/in/deep", "private") == (Code.STORAGE_SOURCE, 13)
    assert user.call(_refused_as, user.home, f"{shut}/in/deep", "hidden") == (Code.POLICY_BAD_PATH, 13)


def test_an_optional_path_that_cannot_be_reached_is_not_passed_over(base: str) -> None:
    rule = Rule(Access.HIDDEN, f"{base}/p", f"{base}/p", "here", optional=True)
    policy = dataclasses.replace(policy_of(share_all=True), rules=(rule,))
    facts = facts_of(policy, base)
    for number, word in ((13, "cannot be reached"), (5, "cannot be reached"), (2, None), (20, None), (40, None)):
        paths = (PathFacts(rule.path, rule.path, errno=number), *facts.paths[1:])
        if word is None:
            assert asked(plan_of(policy, dataclasses.replace(facts, paths=paths))) == []
        else:
            with pytest.raises(PolicyError, match=word):
                plan_of(policy, dataclasses.replace(facts, paths=paths))


def test_optional_paths_are_passed_over_and_may_leave_nothing(base: str, tmp_path: Any) -> None:
    file = f"{base}/optional.toml"
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(f'schema = 1\n[[rule]]\npath = "{base}/gone"\naccess = "private"\noptional = true\n')
    policy = policy_of(file, private=(f"{base}/p",))
    assert asked(plan_of(policy, facts_of(policy, base))) == [(f"{base}/p", Access.PRIVATE)]
    alone = policy_of(file)
    with pytest.raises(PolicyError) as caught:
        plan_of(alone, facts_of(alone, base))
    assert caught.value.code is Code.POLICY_NOTHING_PRIVATE


# --- rules and rules -------------------------------------------------------------------------------------------------


def test_two_ways_to_one_path(base: str) -> None:
    os.symlink("p", f"{base}/link")
    error = refused(base, private=(f"{base}/p",), hidden=(f"{base}/link",))
    assert (error.code, error.path) == (Code.POLICY_CONFLICT, f"{base}/p")
    assert asked(planned(base, private=(f"{base}/p", f"{base}/link"))) == [(f"{base}/p", Access.PRIVATE)]


def test_an_option_wins_over_a_file_by_resolved_path_too(base: str) -> None:
    os.symlink("p", f"{base}/link")
    file = f"{base}/x.toml"
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(f'schema = 1\n[[rule]]\npath = "{base}/p"\naccess = "hidden"\n')
    policy = policy_of(file, private=(f"{base}/link",))
    assert asked(plan_of(policy, facts_of(policy, base))) == [(f"{base}/p", Access.PRIVATE)]


def test_nested_rules_nearest_wins_outer_first(base: str) -> None:
    plan = planned(
        base,
        read_only=(base,),
        private=(f"{base}/p",),
        shared=(f"{base}/p/inner",),
        hidden=(f"{base}/p/inner/deep",),
        scratch=(f"{base}/q",),
    )
    assert asked(plan) == [
        (base, Access.READ_ONLY),
        (f"{base}/p", Access.PRIVATE),
        (f"{base}/p/inner", Access.SHARED),
        (f"{base}/p/inner/deep", Access.HIDDEN),
        (f"{base}/q", Access.SCRATCH),
    ]
    assert at(plan, f"{base}/p").omit == ("inner",)
    assert at(plan, base).omit == ()


def test_names_that_begin_alike_are_not_nested(base: str) -> None:
    tree(base, "p-2/", "p/inner-2/")
    plan = planned(base, private=(f"{base}/p", f"{base}/p-2", f"{base}/p/inner"), hidden=(f"{base}/p/inner-2",))
    assert asked(plan) == [
        (f"{base}/p", Access.PRIVATE),
        (f"{base}/p/inner-2", Access.HIDDEN),
        (f"{base}/p-2", Access.PRIVATE),
    ]


def test_redundant_rules_are_dropped(base: str) -> None:
    inner = f"{base}/p/inner"
    assert asked(planned(base, private=(f"{base}/p", inner))) == [(f"{base}/p", Access.PRIVATE)]
    assert len(asked(planned(base, private=(f"{base}/p", inner + ":copy")))) == 2
    assert asked(planned(base, read_only=(f"{base}/p", inner))) == [(f"{base}/p", Access.READ_ONLY)]
    assert asked(planned(base, hidden=(f"{base}/p", inner))) == [(f"{base}/p", Access.HIDDEN)]
    assert asked(planned(base, scratch=(f"{base}/p", inner))) == [(f"{base}/p", Access.SCRATCH)]
    assert len(asked(planned(base, scratch=(f"{base}/p", inner + ":tmpfs=1M")))) == 2
    assert asked(planned(base, shared=(f"{base}/p",), private=(f"{base}/q",))) == [(f"{base}/q", Access.PRIVATE)]
    # a private rule between makes the inner one count again
    between = planned(base, read_only=(base, f"{inner}/deep"), private=(inner,))
    assert [path for path, _ in asked(between)] == [base, inner, f"{inner}/deep"]


def test_a_read_only_root(base: str) -> None:
    plan = planned(base, read_only=("/",), private=(f"{base}/p",))
    assert (plan.read_only_root, plan.slave) == (True, False)
    assert NoticeKind.HOST_MOUNTS_APPEAR not in kinds(plan)
    assert plan.paths[0].path == "/"


FOLDERS = ("a", "a/b", "a/b/c", "a/b/c/d", "a-b", "a/b-c")
ACCESSES = st.sampled_from([None, *Access])


@given(st.tuples(*[ACCESSES] * len(FOLDERS)))
def test_what_is_dropped_changes_nothing(accesses: tuple[Access | None, ...]) -> None:
    rules = {f"/{folder}": access for folder, access in zip(FOLDERS, accesses, strict=True) if access is not None}
    policy = Policy(
        "p", rules=tuple(Rule(access, path, path, "here") for path, access in rules.items()), share_all=True
    )
    facts = dataclasses.replace(
        EMPTY, paths=tuple(PathFacts(path, path, EntryKind.FOLDER, readable=True) for path in (*rules, "/s", "/s/pool"))
    )
    plan = plan_of(policy, facts)
    kept = {path.path: path.access for path in plan.paths if not path.automatic}
    for folder in FOLDERS:
        assert nearest_access(f"/{folder}", kept) is nearest_access(f"/{folder}", rules)
    for path in plan.paths:
        inside = {other.path for other in plan.paths if other.path.startswith(path.path + "/")}
        if path.access in (Access.PRIVATE, Access.SCRATCH):
            covered = {one for one in inside for name in path.omit if f"{one}/".startswith(f"{path.path}/{name}/")}
            assert covered == inside


EMPTY = HostFacts("6", "boot", 0, 0, "/h", "/s", "/s/pool", (), Namespaces(True, False), OWNED)


def nearest_access(path: str, rules: dict[str, Access]) -> Access:
    """By the definition: from the path upwards."""
    while path:
        if path in rules:
            return rules[path]
        path = path.rpartition("/")[0]
    return Access.SHARED


# --- hostfork's own folders ------------------------------------------------------------------------------------------


def test_the_state_folder_is_covered_and_left_out(base: str) -> None:
    plan = planned(base, private=(base,))
    cover = at(plan, f"{base}/own-state")
    assert (cover.access, cover.automatic, cover.place) == (Access.SCRATCH, True, "hostfork")
    assert at(plan, base).omit == ("own-state",)
    assert NoticeKind.POOL_INSIDE in kinds(plan)
    # the pool lies below the state folder, which nobody sees
    assert [path.path for path in plan.paths if path.automatic] == [f"{base}/own-state"]
    assert NoticeKind.SCRATCH_DROPPED not in kinds(plan)


def test_covers_need_no_storage_of_their_own(base: str) -> None:
    policy = policy_of(private=(base,), scratch=(f"{base}/q",))
    assert [source.path for _, source in sources(policy, facts_of(policy, base))] == [base, f"{base}/q"]


def test_a_pool_elsewhere_is_hidden(base: str) -> None:
    tree(base, "p/pool/")
    plan = planned(base, facts={"pool": f"{base}/p/pool"}, private=(f"{base}/p",))
    assert at(plan, f"{base}/p/pool").access is Access.HIDDEN
    assert at(plan, f"{base}/p/pool").automatic
    assert at(plan, f"{base}/p").omit == ("pool",)


def test_own_folders_that_are_not_there_yet_are_covered_all_the_same(base: str) -> None:
    plan = planned(base, facts={"pool": f"{base}/p/pool", "state": f"{base}/later"}, private=(f"{base}/p",))
    assert at(plan, f"{base}/p").omit == ("pool",)
    covers = {path.path: (path.access, path.folder, path.inode) for path in plan.paths if path.automatic}
    assert covers == {f"{base}/later": (Access.SCRATCH, True, 0), f"{base}/p/pool": (Access.HIDDEN, True, 0)}


@pytest.mark.parametrize("option", ["scratch", "hidden"])
def test_no_cover_where_nothing_shows(base: str, option: str) -> None:
    for path in (base, f"{base}/own-state"):
        assert [one.path for one in planned(base, **{option: (path,)}).paths] == [path]


def test_a_cover_also_below_read_only(base: str) -> None:
    assert [one.path for one in planned(base, read_only=(base,)).paths] == [base, f"{base}/own-state"]


@pytest.mark.parametrize("option", ["private", "shared", "read_only"])
def test_own_folders_cannot_be_given(base: str, option: str) -> None:
    for path, word in ((f"{base}/own-state", "state folder"), (f"{base}/own-state/pool", "state folder")):
        error = refused(base, share_all=True, **{option: (path,)})
        assert (error.code, error.path) == (Code.POLICY_BAD_PATH, path)
        assert word in error.message
    tree(base, "q/pool/x/")
    error = refused(base, facts={"pool": f"{base}/q/pool"}, hidden=(f"{base}/q/pool/x",))
    assert "pool" in error.message


# --- host mounts beneath ---------------------------------------------------------------------------------------------


def test_host_mounts_beneath_are_put_back(base: str) -> None:
    tree(base, "p/file-mount", "p/inner/mnt/", "source", "q/mnt/", "r/mnt/")
    policy = policy_of(private=(f"{base}/p", f"{base}/p/inner:copy"), scratch=(f"{base}/q",), read_only=(f"{base}/r",))

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        os.mkdir(f"{base}/p/mnt/deeper")
        tmpfs(f"{base}/p/mnt/deeper")
        bind(f"{base}/source", f"{base}/p/file-mount")
        tmpfs(f"{base}/p/inner/mnt")
        tmpfs(f"{base}/q/mnt")
        tmpfs(f"{base}/r/mnt")
        facts = facts_of(policy, base)
        return plan_of(policy, facts), sources(policy, facts), os.stat(f"{base}/p/mnt").st_dev

    plan, found, device = with_mounts(child)
    nested = {mount.path: mount for mount in plan.nested_mounts}
    assert set(nested) == {f"{base}/p/mnt", f"{base}/p/file-mount", f"{base}/p/inner/mnt"}
    mount = nested[f"{base}/p/mnt"]
    assert (mount.filesystem, mount.folder, mount.device, mount.inside) == ("tmpfs", True, device, f"{base}/p")
    assert not nested[f"{base}/p/file-mount"].folder
    assert not any(one.read_only for one in nested.values())
    assert nested[f"{base}/p/inner/mnt"].inside == f"{base}/p/inner"
    by_path = {source.path: source for _, source in found}
    assert by_path[f"{base}/p"].omit == ("file-mount", "inner", "mnt")
    assert by_path[f"{base}/p"].mounts_beneath == tuple(
        f"{base}/p/{name}" for name in ("file-mount", "inner/mnt", "mnt", "mnt/deeper")
    )
    assert by_path[f"{base}/p/inner"].omit == ("mnt",)
    assert by_path[f"{base}/q"].omit == ()
    assert all(one.omit == by_path[one.path].omit for one in plan.paths if one.path in by_path)


def test_where_all_else_is_read_only_host_mounts_are_too(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",), read_only=("/",))

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        return plan_of(policy, facts_of(policy, base))

    (mount,) = with_mounts(child).nested_mounts
    assert (mount.path, mount.read_only) == (f"{base}/p/mnt", True)


def test_a_private_path_on_a_host_mount_below_another_counts(base: str) -> None:
    policy = policy_of(private=(f"{base}/p", f"{base}/p/mnt", f"{base}/p/mnt/x"))

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        os.mkdir(f"{base}/p/mnt/x")
        return plan_of(policy, facts_of(policy, base))

    plan = with_mounts(child)
    assert asked(plan) == [(f"{base}/p", Access.PRIVATE), (f"{base}/p/mnt", Access.PRIVATE)]
    assert plan.nested_mounts == ()


def test_a_mount_that_cannot_be_looked_at_is_put_back_as_it_is(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",))

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        return facts_of(policy, base)

    facts = with_mounts(child)
    shut = PathFacts(f"{base}/p/mnt", f"{base}/p/mnt", errno=13)
    facts = dataclasses.replace(facts, paths=tuple(shut if one.path == f"{base}/p/mnt" else one for one in facts.paths))
    mount = plan_of(policy, facts).nested_mounts[0]
    assert (mount.path, mount.folder, mount.device, mount.inode) == (f"{base}/p/mnt", True, 0, 0)


# --- endpoints -------------------------------------------------------------------------------------------------------


def test_live_listeners_below_private_paths_stay(base: str) -> None:
    os.mkfifo(f"{base}/p/fifo")
    tree(base, "p/shared/")
    policy = policy_of(private=(f"{base}/p",), scratch=(f"{base}/q",), shared=(f"{base}/p/shared",))

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        with (
            listening(f"{base}/p/s"),
            listening(f"{base}/q/s"),
            listening(f"{base}/p/mnt/s"),
            listening(f"{base}/p/shared/s"),
            another_process("import os, sys; f = os.open(sys.argv[1], os.O_RDWR)", f"{base}/p/fifo") as pid,
        ):
            return plan_of(policy, facts_of(policy, base)), pid, os.stat(f"{base}/p/s").st_ino

    plan, pid, inode = with_mounts(child)
    found = {end.path: end for end in plan.endpoints}
    assert set(found) == {f"{base}/p/s", f"{base}/p/fifo"}
    fifo = found[f"{base}/p/fifo"]
    assert (fifo.kind, fifo.pid, fifo.asked) == (EndpointKind.FIFO, pid, False)
    assert found[f"{base}/p/s"].inode == inode
    assert at(plan, f"{base}/p").omit == ("fifo", "mnt", "s", "shared")
    assert at(plan, f"{base}/q").omit == ()


def test_asked_endpoints(base: str) -> None:
    os.symlink("s", f"{base}/q/link")
    with listening(f"{base}/q/s"):
        scratch = planned(base, scratch=(f"{base}/q",), endpoint=(f"{base}/q/link",))
        assert [(end.path, end.asked, end.kind) for end in scratch.endpoints] == [
            (f"{base}/q/s", True, EndpointKind.SOCKET)
        ]
        assert at(scratch, f"{base}/q").omit == ("s",)
        hidden = planned(base, hidden=(f"{base}/q",), endpoint=(f"{base}/q/s",))
        assert [end.path for end in hidden.endpoints] == [f"{base}/q/s"]
        private = planned(base, private=(f"{base}/q",), endpoint=(f"{base}/q/s",))
        assert [end.asked for end in private.endpoints] == [True]
        for options in ({"read_only": (f"{base}/q",)}, {"private": (f"{base}/p",)}):
            assert planned(base, endpoint=(f"{base}/q/s",), **options).endpoints == ()
        error = refused(base, hidden=(f"{base}/q/s",), endpoint=(f"{base}/q/s",))
        assert error.code is Code.POLICY_CONFLICT
    for name, word in (("q/gone", "does not exist"), ("p/file", "is a file"), ("p", "is a folder")):
        error = refused(base, private=(f"{base}/p",), endpoint=(f"{base}/{name}",))
        assert (error.code, error.place) == (Code.POLICY_BAD_PATH, "--endpoint")
        assert word in error.message


def test_an_asked_endpoint_on_a_mount_that_is_put_back_needs_nothing(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",), endpoint=(f"{base}/p/mnt/s",))

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        with listening(f"{base}/p/mnt/s"):
            return plan_of(policy, facts_of(policy, base))

    assert with_mounts(child).endpoints == ()


def test_an_optional_endpoint_may_be_absent(base: str) -> None:
    file = f"{base}/x.toml"
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(f'schema = 1\n[endpoints]\npaths = [{{ path = "{base}/p/gone", optional = true }}]\n')
    policy = policy_of(file, private=(f"{base}/p",))
    assert plan_of(policy, facts_of(policy, base)).endpoints == ()


# --- aliases ---------------------------------------------------------------------------------------------------------


def test_other_ways_to_the_original(base: str) -> None:
    tree(base, "whole/", "part/", "up/", "hidden/", "p/inside/", "ro/")
    policy = policy_of(private=(f"{base}/p",), hidden=(f"{base}/hidden",), read_only=(f"{base}/ro",))

    def child() -> Any:
        bind(f"{base}/p", f"{base}/whole")
        bind(f"{base}/p/inner", f"{base}/part")
        bind(base, f"{base}/up")
        bind(f"{base}/p", f"{base}/hidden")
        bind(f"{base}/p", f"{base}/ro")
        bind(f"{base}/p/inner", f"{base}/p/inside")
        tmpfs(f"{base}/q")
        return plan_of(policy, facts_of(policy, base))

    plan = with_mounts(child)
    found = {alias.path: alias.of for alias in plan.aliases}
    assert found == {
        f"{base}/whole": f"{base}/p",
        f"{base}/part": f"{base}/p/inner",
        f"{base}/up/p": f"{base}/p",
        f"{base}/p/inside": f"{base}/p/inner",
    }
    assert {alias.how for alias in plan.aliases} == {"a bind of the same folder"}


def test_a_second_mount_and_a_bind_that_is_private_itself(base: str) -> None:
    tree(base, "m1/", "m2/")
    policy = policy_of(private=(f"{base}/m1/x",))

    def child() -> Any:
        tmpfs(f"{base}/m1")
        os.mkdir(f"{base}/m1/x")
        bind(f"{base}/m1", f"{base}/m2")
        bind(f"{base}/m1/x", f"{base}/q")
        first = plan_of(policy, facts_of(policy, base))
        reverse = policy_of(private=(f"{base}/q",))
        second = plan_of(reverse, facts_of(reverse, base))
        # what is shadowed is no way to anything
        tmpfs(f"{base}/m2")
        return first, second, plan_of(policy, facts_of(policy, base))

    first, second, third = with_mounts(child)
    assert {alias.path: alias.how for alias in first.aliases} == {
        f"{base}/m2/x": "another mount of none",
        f"{base}/q": "a bind of the same folder",
    }
    assert {alias.path for alias in second.aliases} == {f"{base}/m1/x", f"{base}/m2/x"}
    assert {alias.path for alias in third.aliases} == {f"{base}/q"}


# --- what is demanded ------------------------------------------------------------------------------------------------

LIMITED = Choice(Offer(StorageKind.COPY, Guarantees(Guarantee.INDEPENDENT, hard_links=False), "r"), ())


@pytest.mark.parametrize(
    ("require", "choice", "word"),
    [
        ("snapshot", COPIES, "copy gives `independent`"),
        ("independent", OVERLAYS, "overlay gives `live`"),
        ("stable", OVERLAYS, "shows through"),
        ("native-watchers", OVERLAYS, "watchers"),
        ("folder-rename", OVERLAYS, "EXDEV"),
        ("hard-links", LIMITED, "come apart"),
    ],
)
def test_promises_that_a_path_does_not_keep(base: str, require: str, choice: Choice, word: str) -> None:
    error = refused(base, choice, private=(f"{base}/p",), require=(require,))
    assert (error.code, error.path, error.place) == (Code.POLICY_REQUIRE, f"{base}/p", f"--require {require}")
    assert word in error.message
    others = tuple(f"{one.mechanism.value}: {one.reason}" for one in choice.refused)
    assert error.details == (() if require == "stable" else others)
    assert error.hint


def test_promises_that_are_kept(base: str) -> None:
    every = ("snapshot", "independent", "stable", "same-paths", "native-watchers", "folder-rename", "hard-links")
    plan = planned(base, SNAPSHOTS, private=(f"{base}/p",), require=(*every, "cgroup"))
    assert asked(plan) == [(f"{base}/p", Access.PRIVATE)]
    assert planned(base, hidden=(f"{base}/p",), require=every).paths


def test_a_writer_breaks_stable_and_is_said(base: str) -> None:
    with another_process("import sys; f = open(sys.argv[1], 'a')", f"{base}/p/file") as pid:
        error = refused(base, private=(f"{base}/p",), require=("stable",))
        assert f"(pid {pid}) has {base}/p/file open for writing" in error.message
        assert planned(base, SNAPSHOTS, private=(f"{base}/p",), require=("stable",))
        plan = planned(base, private=(f"{base}/p",))
        assert re.search(rf"file \(python\S*, pid {pid}\)", sentence(plan, NoticeKind.WRITERS))
        assert NoticeKind.WRITERS not in kinds(planned(base, private=(f"{base}/q",)))


def test_writers_of_what_is_left_out_do_not_count(base: str) -> None:
    policy = policy_of(private=(base,), shared=(f"{base}/q",), require=("stable",))
    script = "import sys; keep = [open(path, 'a') for path in sys.argv[1:]]"

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        files = (f"{base}/own-state/pool/f", f"{base}/q/f", f"{base}/p/mnt/f")
        with another_process(script, *files):
            facts = facts_of(policy, base)
            assert sorted(one.path for one in facts.open_files if one.writing) == sorted(files)
            return plan_of(policy, facts)

    assert NoticeKind.WRITERS not in kinds(with_mounts(child))


def test_subreaper_is_weaker_and_said_and_refused_on_demand(base: str) -> None:
    facts = {"cgroup": CgroupFacts(Ownership.SUBREAPER, None, "no delegated folder")}
    plan = planned(base, facts=facts, private=(f"{base}/p",))
    assert "no delegated folder" in sentence(plan, NoticeKind.SUBREAPER)
    assert "hostfork setup --print" in sentence(plan, NoticeKind.SUBREAPER)
    assert NoticeKind.SUBREAPER.weaker
    error = refused(base, facts=facts, private=(f"{base}/p",), require=("cgroup",))
    assert (error.code, "no delegated folder" in error.message) == (Code.POLICY_REQUIRE, True)
    assert NoticeKind.SUBREAPER not in kinds(planned(base, private=(f"{base}/p",)))


# --- what storage refuses --------------------------------------------------------------------------------------------


def test_a_mechanism_that_cannot_be_had(base: str) -> None:
    none = Choice(None, (Refusal(Mechanism.REFLINK, "ext4 on /dev/vda2 does not share blocks", 95),))
    error = refused(base, none, private=(f"{base}/p:reflink",))
    assert isinstance(error, StorageError)
    assert error.code is Code.STORAGE_UNSUPPORTED
    assert error.message == f"{base}/p cannot be cloned by reflink"
    assert (error.details, error.errno) == (("ext4 on /dev/vda2 does not share blocks",), 95)
    assert f"--private {base}/p:copy copies it once" in (error.hint or "")
    assert f"--private {base}/p:live is instant" in (error.hint or "")


def test_a_guarantee_that_cannot_be_had(base: str) -> None:
    everything = Choice(None, tuple(Refusal(mechanism, "no") for mechanism in Mechanism))
    error = refused(base, everything, private=(f"{base}/p:snapshot",))
    assert error.message == f"{base}/p cannot be taken as of one instant"
    assert error.details[0] == "btrfs: no"
    assert (error.hint or "").startswith("--pool DIR")
    assert refused(base, everything, private=(f"{base}/p",)).message.endswith("independent of the host's")
    live = refused(base, Choice(None, (Refusal(Mechanism.OVERLAY, "no"),)), private=(f"{base}/p:live",))
    assert live.hint == f"--private {base}/p:copy copies it once"


NOTHING = Choice(None, (Refusal(Mechanism.BTRFS, "no"), Refusal(Mechanism.OVERLAY, "no")))


def either(path: str, **more: Any) -> Rule:
    """A snapshot or a live overlay of it, and read-only where neither can be had."""
    return Rule(Access.PRIVATE, path, path, "p.toml: rule[0]", guarantee=Guarantee.SNAPSHOT, lesser=(Guarantee.LIVE,),
                otherwise=Access.READ_ONLY, **more)  # fmt: skip


def planned_rules(base: str, *rules: Rule, choice: Choice = COPIES, **choices: Choice) -> Plan:
    policy = Policy("p", rules=rules)
    return plan_of(policy, facts_of(policy, base), choice, **choices)


def test_what_cannot_be_private_is_what_its_rule_says_otherwise(base: str) -> None:
    plan = planned_rules(base, either(f"{base}/p"), either(f"{base}/q"), p=NOTHING)
    p, q = (path for path in plan.paths if not path.automatic)
    assert (p.access, p.offer, p.refused) == (Access.READ_ONLY, None, NOTHING.refused)
    assert (q.access, q.offer) == (Access.PRIVATE, COPIES.offer)
    said = [notice.sentence for notice in plan.notices if notice.kind is NoticeKind.NOT_PRIVATE]
    assert said == [f"{base}/p: read-only {p.reason}"]
    assert "instead of private" in p.reason


def test_what_lies_in_it_follows_or_stays_private(base: str) -> None:
    # A rule that said the same as the one around it has no choice of its own; one that says another thing has.
    inner = Rule(Access.PRIVATE, f"{base}/p/inner", "inner", "p.toml: rule[2]", guarantee=Guarantee.LIVE)
    rules = either(f"{base}/p"), either(f"{base}/p/mnt"), inner, either(f"{base}/q")
    plan = planned_rules(base, *rules, p=NOTHING, inner=OVERLAYS)
    assert asked(plan) == [
        (f"{base}/p", Access.READ_ONLY),
        (f"{base}/p/inner", Access.PRIVATE),
        (f"{base}/q", Access.PRIVATE),
    ]


def test_a_rule_that_says_nothing_for_that_is_refused(base: str) -> None:
    plain = Rule(Access.PRIVATE, f"{base}/p", "p", "p.toml: rule[0]", guarantee=Guarantee.SNAPSHOT,
                 lesser=(Guarantee.LIVE,))  # fmt: skip
    with pytest.raises(StorageError) as caught:
        planned_rules(base, plain, either(f"{base}/q"), p=NOTHING)
    assert caught.value.message == "p cannot be laid over the host's"
    assert caught.value.hint == "--private p:copy copies it once"


def test_nothing_left_private_is_refused(base: str) -> None:
    with pytest.raises(StorageError) as caught:
        planned_rules(base, either(f"{base}/p"), either(f"{base}/q"), choice=NOTHING)
    assert caught.value.code is Code.STORAGE_UNSUPPORTED
    assert caught.value.path == f"{base}/p"
    assert caught.value.details == ("btrfs: no", "overlay: no")


def test_what_a_user_cannot_read_is_what_its_rule_says_otherwise(user: Person, ext4_disk: Any) -> None:
    place = ext4_disk.folder(user)
    tree(place, "p/", "q/")
    for name in ("p", "q"):
        os.chown(f"{place}/{name}", user.uid, user.gid)
    os.chmod(f"{place}/p", 0)
    plan: Plan = user.call(planned_rules, place, either(f"{place}/p"), either(f"{place}/q"))
    by_path = {path.path: path for path in plan.paths}
    assert by_path[f"{place}/p"].access is Access.READ_ONLY
    assert "cannot read it" in by_path[f"{place}/p"].reason
    assert by_path[f"{place}/q"].access is Access.PRIVATE


# --- where namespaces are denied -------------------------------------------------------------------------------------

DENIED = Namespaces(False, True, "unshare", 1, "Operation not permitted")


def test_denied_namespaces_name_the_setting_and_what_still_works(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",))
    facts = dataclasses.replace(
        facts_of(policy, base, namespaces=DENIED), limits=("user.max_user_namespaces=0 forbids them",)
    )
    with pytest.raises(HostError) as caught:
        plan_of(policy, facts)
    error = caught.value
    assert (error.code, error.step, error.errno) == (Code.HOST_NAMESPACES, "unshare", 1)
    assert error.details == ("unshare: Operation not permitted", "user.max_user_namespaces=0 forbids them")
    assert "--relocated" in (error.hint or "")
    assert (error.hint or "").endswith("hostfork setup")


def relocated(base: str, choice: Choice = COPIES, **options: Any) -> Plan:
    policy = policy_of(**options)
    return plan_of(policy, facts_of(policy, base, namespaces=DENIED), choice, relocated=True)


def test_the_relocated_mode_says_what_is_weaker(base: str) -> None:
    tree(base, "p/inner/mnt/")

    def child() -> Any:
        tmpfs(f"{base}/p/mnt")
        with listening(f"{base}/p/s"):
            return relocated(base, private=(f"{base}/p",), shared=(f"{base}/q",))

    plan = with_mounts(child)
    assert asked(plan) == [(f"{base}/p", Access.PRIVATE)]
    assert len(plan.paths) == 1
    assert (plan.same_paths, plan.slave, plan.user_namespace) == (False, False, False)
    assert (plan.nested_mounts, plan.endpoints, plan.aliases) == ((), (), ())
    assert kinds(plan)[:4] == [
        NoticeKind.NETWORK_SHARED,
        NoticeKind.RELOCATED,
        NoticeKind.RELOCATED,
        NoticeKind.ENDPOINT_NOT_KEPT,
    ]
    assert f"{base}/p/mnt" in plan.notices[2].sentence
    assert f"{base}/p/s" in plan.notices[3].sentence
    assert at(plan, f"{base}/p").omit == ("mnt", "s")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"read_only": ("{}/p",)}, "read-only"),
        ({"hidden": ("{}/p",)}, "hidden"),
        ({"scratch": ("{}/p",)}, "scratch"),
        ({"private": ("{}/p",), "shared": ("{}/p/inner",)}, "shared"),
        ({"private": ("{}/p/file",)}, "only folders"),
    ],
)
def test_the_relocated_mode_cannot_do_the_rest(base: str, options: dict[str, tuple[str]], word: str) -> None:
    filled = {option: tuple(path.format(base) for path in paths) for option, paths in options.items()}
    with pytest.raises(PolicyError) as caught:
        relocated(base, **filled)
    assert caught.value.code is Code.POLICY_USAGE
    assert word in caught.value.message


def test_the_relocated_mode_copies_and_breaks_same_paths(base: str) -> None:
    with pytest.raises(PolicyError, match="needs a mount"):
        relocated(base, OVERLAYS, private=(f"{base}/p",))
    with pytest.raises(PolicyError, match="same-paths"):
        relocated(base, private=(f"{base}/p",), require=("same-paths",))


# --- what is said ----------------------------------------------------------------------------------------------------


def test_what_a_user_namespace_changes(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",))
    facts = facts_of(policy, base, namespaces=USER_NAMESPACES)
    foreign = tuple(
        dataclasses.replace(one, foreign=("a", "b", "c", "d")) if one.path == f"{base}/p" else one
        for one in facts.paths
    )
    plan = plan_of(policy, dataclasses.replace(facts, paths=foreign))
    assert plan.user_namespace
    assert "set-uid" in sentence(plan, NoticeKind.SET_UID)
    assert "(a, b, c and 1 more)" in sentence(plan, NoticeKind.FOREIGN_OWNERS)
    other = tuple(
        dataclasses.replace(one, uid=facts.uid + 1) if one.path == f"{base}/p" else one for one in facts.paths
    )
    assert NoticeKind.FOREIGN_OWNERS in kinds(plan_of(policy, dataclasses.replace(facts, paths=other)))
    assert not {NoticeKind.SET_UID, NoticeKind.FOREIGN_OWNERS} & set(kinds(planned(base, private=(f"{base}/p",))))


def test_what_a_mechanism_does_not_keep(base: str) -> None:
    found = kinds(planned(base, OVERLAYS, private=(f"{base}/p",)))
    limits = {NoticeKind.LIVE_SOURCE, NoticeKind.NO_WATCHERS, NoticeKind.FOLDER_RENAME, NoticeKind.HARD_LINKS}
    assert limits <= set(found)
    assert not limits & set(kinds(planned(base, private=(f"{base}/p",))))


def test_scratch_and_host_mounts_and_network(base: str) -> None:
    plan = planned(base, scratch=(f"{base}/q:tmpfs=1M",))
    assert at(plan, f"{base}/q").tmpfs_size == 1 << 20
    assert kinds(plan) == [NoticeKind.NETWORK_SHARED, NoticeKind.HOST_MOUNTS_APPEAR, NoticeKind.SCRATCH_DROPPED]
    assert not any(kind.weaker for kind in kinds(plan))


def test_host_mounts_that_are_not_to_appear(base: str) -> None:
    file = f"{base}/x.toml"
    with open(file, "w", encoding="utf-8") as stream:
        stream.write("schema = 1\nhost-mounts-appear = false\n")
    policy = policy_of(file, private=(f"{base}/p",))
    plan = plan_of(policy, facts_of(policy, base))
    assert not plan.slave
    assert NoticeKind.HOST_MOUNTS_APPEAR not in kinds(plan)


def test_share_all_needs_no_rule(base: str) -> None:
    plan = planned(base, share_all=True)
    assert [path.path for path in plan.paths] == [f"{base}/own-state"]


def test_neighbours_that_no_rule_speaks_of(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",), read_only=(f"{base}/q",), hidden=(f"{base}/own-state",))
    facts = dataclasses.replace(
        facts_of(policy, base),
        neighbours=(
            PathFacts("/n", "/n", EntryKind.FOLDER),
            PathFacts(f"{base}/p/x", f"{base}/p/x", EntryKind.FOLDER),
            PathFacts(f"{base}/q/x", f"{base}/q/x", EntryKind.FOLDER),
            PathFacts(f"{base}/q/s", f"{base}/q/s", EntryKind.SOCKET),
            PathFacts(f"{base}/own-state/s", f"{base}/own-state/s", EntryKind.SOCKET),
        ),
    )
    assert plan_of(policy, facts).neighbours == ("/n", f"{base}/q/s")


def _ssh_facts(folder: str) -> tuple[Any, Any, Any]:
    bind(f"{folder}/ssh", "/etc/ssh/ssh_config.d")
    policy = policy_of(private=(f"{folder}/p",))
    hidden = policy_of(hidden=("/etc/ssh",))
    off = policy_of(f"{folder}/off.toml", private=(f"{folder}/p",))
    return tuple(plan_of(one, facts_of(one, folder, namespaces=USER_NAMESPACES)) for one in (policy, hidden, off))  # type: ignore[return-value]


@pytest.mark.rig("ssh")
def test_root_s_ssh_files_are_copied_for_a_user(base: str, root: Person) -> None:
    tree(base, "ssh/a.conf", "ssh/b.txt", "ssh/.c.conf", "ssh/user.conf", "real.conf", "ssh/folder.conf/")
    os.chown(f"{base}/ssh/user.conf", 12345, 12345)
    os.symlink(f"{base}/real.conf", f"{base}/ssh/link.conf")
    os.symlink("nowhere", f"{base}/ssh/dangling.conf")
    with open(f"{base}/off.toml", "w", encoding="utf-8") as file:
        file.write("schema = 1\n[ssh]\nconfig-copies = false\n")
    plan, hidden, off = with_mounts(_ssh_facts, base)
    found = os.stat(f"{base}/ssh/a.conf")
    assert {copy.path for copy in plan.config_copies} == {"/etc/ssh/ssh_config.d/a.conf", f"{base}/real.conf"}
    copy = next(one for one in plan.config_copies if one.path.endswith("a.conf"))
    assert (copy.mode, copy.device, copy.inode) == (0o444, found.st_dev, found.st_ino)
    assert "/etc/ssh/ssh_config.d/a.conf" in sentence(plan, NoticeKind.SSH_CONFIG)
    assert [one.path for one in hidden.config_copies] == [f"{base}/real.conf"]
    assert off.config_copies == ()


def test_root_needs_no_ssh_copies(base: str) -> None:
    assert planned(base, private=(f"{base}/p",)).config_copies == ()


def test_choices_are_demanded_for_every_private_path(base: str) -> None:
    policy = policy_of(private=(f"{base}/p",))
    with pytest.raises(KeyError):
        make_plan(policy, facts_of(policy, base), {})


def test_several_private_paths_are_never_one_instant(base: str) -> None:
    os.mkdir(f"{base}/another")
    one = planned(base, private=(f"{base}/p",))
    two = planned(base, private=(f"{base}/p", f"{base}/another"))
    assert NoticeKind.SEVERAL_INSTANTS not in kinds(one)
    assert "not as of one instant" in sentence(two, NoticeKind.SEVERAL_INSTANTS)
    assert "2 private paths" in sentence(two, NoticeKind.SEVERAL_INSTANTS)


def test_what_holds_writers_still_is_said_and_stable_waits_for_it(base: str) -> None:
    """With a chance to stop, writers are looked for once they had it, not when the plan is made."""
    writing = OpenFile(f"{base}/p/file", 812, "postgres", True)
    for quiesce, said in (
        (Quiesce("stop", "go"), "`stop` before, `go` afterwards"),
        (Quiesce(cgroup="db"), "cgroup db"),
    ):
        policy = policy_of(private=(f"{base}/p",), require=("stable",), quiesce=quiesce)
        plan = plan_of(policy, dataclasses.replace(facts_of(policy, base), open_files=(writing,)))
        assert plan.stable
        assert said in sentence(plan, NoticeKind.QUIESCED)
    policy = policy_of(private=(f"{base}/p",), require=("stable",))
    with pytest.raises(PolicyError, match=r"postgres \(pid 812\)") as caught:
        plan_of(policy, dataclasses.replace(facts_of(policy, base), open_files=(writing,)))
    assert "--freeze-cgroup" in (caught.value.hint or "")
