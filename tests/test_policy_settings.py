"""Defaults of a policy for tools with a cache: when they count, whose word wins, and that each is named."""

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.errors import Code, PolicyError
from hostfork.policy.document import parse
from hostfork.policy.load import combine
from hostfork.policy.plan import NoticeKind, Plan
from hostfork.policy.rules import Default, Environment, Policy, RuleOptions
from policy_rig import COPIES, OVERLAYS, bind, facts_of, plan_of, policy_of, tree, with_mounts
from rigs import Disk, Person, make_project

COPY = Default("LINK", "copy", ("$CACHE", "$DATA/c", "~/cache"))
STORE = Default("STORE", None, ("~/cache",))
CHECKED = ("LINK", "CACHE", "DATA", "STORE", "link")


@pytest.fixture
def base(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(os.path.realpath(tmp_path))
    tree(path, "home/cache/x", "home/p/sub/deep/", "home/p/mnt/", "home/q/", "own-state/pool/")
    for name in CHECKED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", f"{path}/home")
    return path


def planned(base: str, *defaults: Default, cwd: str = "/", relocated: bool = False, **options: Any) -> Plan:
    policy = policy_of(home=f"{base}/home", **options)
    environment = dataclasses.replace(policy.environment, defaults=defaults or (COPY,))
    policy = dataclasses.replace(policy, environment=environment)
    live = {"q": OVERLAYS, "cache": OVERLAYS}
    return plan_of(policy, facts_of(policy, base, cwd=cwd), COPIES, relocated=relocated, **live)


def given(plan: Plan) -> dict[str, str]:
    """The variables of the plan. Each is named once, with its value."""
    variables = dict(plan.environment.variables)
    said = [notice.sentence for notice in plan.notices if notice.kind is NoticeKind.SETTING]
    named = [word for sentence in said for word in re.split(" (?:is|are) set: ", sentence)[0].split(" and ")]
    assert sorted(named) == sorted(f"{name}={value}" for name, value in variables.items())
    return variables


# --- when they count -------------------------------------------------------------------------------------------------


def test_where_cache_and_private_path_are_two_mounts(base: str) -> None:
    plan = planned(base, COPY, STORE, private=(f"{base}/home/p",))
    assert given(plan) == {"LINK": "copy", "STORE": f"{base}/home/cache"}
    notice = plan.notices[-1]
    assert notice.path == f"{base}/home/cache"
    assert notice.sentence == (
        f"LINK=copy and STORE={base}/home/cache are set: {base}/home/p can have no hard links from ~/cache, another "
        "mount; --env LINK=… says otherwise"
    )
    assert not notice.kind.weaker


@pytest.mark.parametrize(
    ("options", "cwd"),
    [
        ({"private": ("home",)}, "/"),
        ({"private": ("home", "home/q")}, "home/p"),
        ({"private": ("home/cache",)}, "/"),
        ({"private": ("home/p",), "hidden": ("home/cache",)}, "/"),
        ({"private": ("home/p",), "scratch": ("home/cache",)}, "/"),
        ({"private": ("home/p",), "read_only": ("home",)}, "/"),
        ({"read_only": ("home",)}, "/"),
        ({"scratch": ("home/p",)}, "/"),
        ({"share_all": True}, "/"),
    ],
)
def test_nowhere_else(base: str, options: dict[str, Any], cwd: str) -> None:
    """One mount holds both, or the cache cannot be written or is not the host's, or nothing is private."""
    paths: dict[str, Any] = {
        name: tuple(f"{base}/{one}" for one in value) if isinstance(value, tuple) else value
        for name, value in options.items()
    }
    assert given(planned(base, COPY, STORE, cwd=f"{base}/{cwd}", **paths)) == {}


@pytest.mark.parametrize(
    ("private", "cwd"),
    [
        (("home", "home/q:live"), "home/q"),
        (("home/p", "home/cache"), "home/p"),
        (("home/cache", "home/p", "home/q"), "/"),
        (("home/p",), "home/q"),
    ],
)
def test_the_private_path_of_the_working_folder_decides_or_any(base: str, private: tuple[str, ...], cwd: str) -> None:
    plan = planned(base, cwd=f"{base}/{cwd}", private=tuple(f"{base}/{path}" for path in private))
    assert given(plan) == {"LINK": "copy"}


def _host_mount_in_a_private_home(base: str) -> list[dict[str, str]]:
    bind(f"{base}/home/q", f"{base}/home/cache")
    return [given(planned(base, cwd=f"{base}/home/p", private=(f"{base}/{path}",))) for path in ("home", "home/p")]


def test_a_cache_that_is_a_mount_beneath_the_private_path(base: str) -> None:
    assert with_mounts(_host_mount_in_a_private_home, base) == [{"LINK": "copy"}] * 2


def test_not_without_namespaces(base: str) -> None:
    """The copy lies in the pool then, and may be on the cache's own mount."""
    assert given(planned(base, private=(f"{base}/home/p",), relocated=True)) == {}


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({}, "home/cache"),
        ({"DATA": "{base}/home"}, None),
        ({"DATA": "{base}"}, "c"),
        ({"CACHE": "{base}/c", "DATA": "/nowhere"}, "c"),
        ({"CACHE": "", "DATA": ""}, "home/cache"),
        ({"CACHE": "c"}, "c"),
        ({"CACHE": "{base}/home/cache/x"}, None),
    ],
)
def test_the_first_cache_of_which_the_variable_is_set(
    base: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cache: str | None
) -> None:
    """It must be a folder; another is not taken in its place, for the tool would not either."""
    os.mkdir(f"{base}/c")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(base=base))
    plan = planned(base, dataclasses.replace(COPY, value=None), cwd=base, private=(f"{base}/home/p",))
    assert given(plan) == ({} if cache is None else {"LINK": f"{base}/{cache}"})


def test_the_first_of_a_name_that_fits(base: str) -> None:
    one, other = Default("LINK", "one", ("~/no",)), Default("LINK", "other", ("~/cache",))
    assert given(planned(base, one, other, COPY, private=(f"{base}/home/p",))) == {"LINK": "other"}


# --- who has set it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LINK", "link"])
def test_what_the_caller_has_set_counts(base: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    plan = planned(base, COPY, STORE, private=(f"{base}/home/p",))
    assert given(plan) == {"STORE": f"{base}/home/cache"}


def test_an_option_counts(base: str) -> None:
    plan = planned(base, environment=Environment(variables=(("LINK", "hard"),)), private=(f"{base}/home/p",))
    assert plan.environment.variables == (("LINK", "hard"),)
    assert NoticeKind.SETTING not in [notice.kind for notice in plan.notices]


def test_in_a_cleared_environment_the_callers_variables_say_nothing(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINK", "hard")
    monkeypatch.setenv("CACHE", "/nowhere")
    assert given(planned(base, environment=Environment(clear=True), private=(f"{base}/home/p",))) == {"LINK": "copy"}


# --- marks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "cwd", "counts"),
    [
        ("home/p/lock", "/", True),
        ("home/p/lock", "home/p/sub/deep", True),
        ("home/p/sub/lock", "home/p/sub/deep", True),
        ("home/p/sub/.m/x", "home/p/sub", True),
        ("home/p/sub/lock", "home/p", False),
        ("home/lock", "home/p/sub", False),
        ("home/q/lock", "home/p", False),
        ("home/q/lock", "home", True),
    ],
)
def test_marks(base: str, mark: str, cwd: str, counts: bool) -> None:
    """From the working folder up to the private path; else in each private path."""
    tree(base, mark)
    default = dataclasses.replace(COPY, marks=("lock", ".m/x"))
    plan = planned(base, default, cwd=f"{base}/{cwd}", private=(f"{base}/home/p", f"{base}/home/q"))
    assert given(plan) == ({"LINK": "copy"} if counts else {})


# --- the file --------------------------------------------------------------------------------------------------------

HEAD = "schema = 1\n[[environment.default]]\n"


def read(text: str) -> Policy:
    return parse(HEAD + text, "p.toml", "p", "/home/nobody")


def test_a_default_in_a_file() -> None:
    policy = read('name = "A"\nvalue = { base64 = "/w==" }\ncache = "~/a"\nmarks = "m"\n')
    assert policy.environment.defaults == (Default("A", "\udcff", ("~/a",), ("m",)),)
    options = RuleOptions(environment=Environment(variables=(("B", "1"),)))
    assert combine(policy, options, "/", "/").environment == Environment(
        False, (("B", "1"),), policy.environment.defaults
    )


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ('cache = "~/a"\n', Code.POLICY_BAD_VALUE, ":2: environment.default[0].name"),
        ('name = "A=B"\ncache = "~/a"\n', Code.POLICY_BAD_VALUE, ":3: environment.default[0].name"),
        ('name = "A"\n', Code.POLICY_BAD_VALUE, ":2: environment.default[0].cache"),
        ('name = "A"\ncache = []\n', Code.POLICY_BAD_VALUE, ":4: environment.default[0].cache"),
        ('name = "A"\ncache = ["~/a", ""]\n', Code.POLICY_BAD_VALUE, ":4: environment.default[0].cache"),
        ('name = "A"\ncache = "a"\n', Code.POLICY_BAD_PATH, ":4: environment.default[0].cache"),
        ('name = "A"\ncache = "~bob/a"\n', Code.POLICY_BAD_PATH, ":4: environment.default[0].cache"),
        ('name = "A"\ncache = "/a"\nmarks = 1\n', Code.POLICY_BAD_VALUE, ":5: environment.default[0].marks"),
        ('name = "A"\ncache = "/a"\nmark = "x"\n', Code.POLICY_UNKNOWN_KEY, ":5: environment.default[0].mark"),
        ('name = "A"\ncache = "/a"\nvalue = 1\n', Code.POLICY_BAD_VALUE, ":5: environment.default[0].value"),
        ('name = "A"\ncache = "/a"\nvalue = "\\u0000"\n', Code.POLICY_BAD_VALUE, ":3: environment.default[0].name"),
    ],
)
def test_mistakes_in_a_default(text: str, code: Code, place: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(text)
    assert caught.value.code is code
    assert caught.value.place == "p.toml" + place


@pytest.mark.parametrize("name", ["workspace", "build"])
def test_the_shipped_policies_have_the_same(name: str) -> None:
    assert policy_of(name=name).environment.defaults == policy_of().environment.defaults != ()


def test_where_no_cache_is_there_the_plan_is_as_without(base: str) -> None:
    bare = planned(base, Default("A", "b", ("~/no",)), private=(f"{base}/home/p",))
    assert bare.environment == Environment(defaults=(Default("A", "b", ("~/no",)),))
    assert NoticeKind.SETTING not in [notice.kind for notice in bare.notices]


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_has_it_and_says_it_when_asked(
    hostfork: Callable[..., "subprocess.CompletedProcess[str]"], user: Person, ext4_disk: Disk
) -> None:
    folder = make_project(user, ext4_disk.folder(user), {"a": "x"})
    user.call(os.makedirs, f"{user.home}/.cache/uv")
    private = ("--private", folder)
    plan = json.loads(hostfork(user, "plan", *private, "--json", check=0).stdout)
    assert plan["environment"]["variables"] == [["UV_LINK_MODE", "copy"]]
    (notice,) = (notice for notice in plan["notices"] if notice["kind"] == "setting")
    assert notice["sentence"] in " ".join(hostfork(user, "plan", *private, check=0).stdout.split())
    for options, word in (((), "copy"), (("--env", "UV_LINK_MODE=clone"), "clone")):
        done = hostfork(user, "run", "-v", *options, *private, "--", "printenv", "UV_LINK_MODE", check=0)
        assert done.stdout == f"{word}\n"
        assert (notice["sentence"] in done.stderr) == (not options)
    assert hostfork(user, "run", *private, "--", "true", check=0).stderr == ""
