"""Options and policy files become one policy: the grammar of paths and words, every refusal with its place."""

import dataclasses
import os
import string
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostfork.errors import Code, PolicyError
from hostfork.policy import document, load
from hostfork.policy.lines import line_of
from hostfork.policy.options import (
    PRIVATE_WORDS,
    format_size,
    join_private,
    parse_duration,
    parse_size,
    split_private,
    split_scratch,
)
from hostfork.policy.plain import read_plain
from hostfork.policy.rules import (
    Default,
    EndpointRule,
    EndpointSearch,
    Environment,
    Policy,
    Quiesce,
    Rule,
    RuleOptions,
)
from hostfork.vocabulary import Access, Guarantee, Mechanism, Prefer, Require, Unreadable

HOME = "/home/someone"


def refusal(function: Any, *args: Any, **kwargs: Any) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        function(*args, **kwargs)
    return caught.value


def parse(text: str, home: str = HOME) -> Policy:
    return document.parse(text, "p.toml", "p", home)


def wrong(text: str) -> PolicyError:
    return refusal(parse, "schema = 1\n" + text)


# --- the words of options --------------------------------------------------------------------------------------------

TEXT = st.text(st.sampled_from("ab/:~ \udcff\n"), min_size=1, max_size=8)
WORDS = st.sampled_from(sorted(PRIVATE_WORDS))
PATHS = st.lists(st.one_of(TEXT, WORDS.map(lambda word: ":" + word), st.just(":")), min_size=1).map("".join)


@given(PATHS, st.one_of(st.none(), WORDS.map(lambda word: PRIVATE_WORDS[word])))
def test_every_path_can_be_said_with_and_without_a_word(path: str, word: Mechanism | Guarantee | None) -> None:
    assert split_private(join_private(path, word)) == (path, word)


@given(PATHS)
def test_a_suffix_counts_only_if_it_is_a_word(text: str) -> None:
    path, word = split_private(text)
    if word is not None:
        assert text == f"{path}:{word.value}"
    else:
        assert path in (text, text[:-1])
        assert path == text or (text.endswith(":") and text.rstrip(":").rpartition(":")[2] in PRIVATE_WORDS)


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("/a", "/a", None),
        ("/a:copy", "/a", Mechanism.COPY),
        ("/a:live", "/a", Guarantee.LIVE),
        ("/a:btrfs", "/a", Mechanism.BTRFS),
        ("/a:copies", "/a:copies", None),
        ("/a:scratch", "/a:scratch", None),
        ("/a:", "/a:", None),
        ("/a:copy:", "/a:copy", None),
        ("/a:copy::", "/a:copy:", None),
        ("/a:copy:live", "/a:copy", Guarantee.LIVE),
        (":copy", ":copy", None),
        ("C:\\x:overlay", "C:\\x", Mechanism.OVERLAY),
    ],
)
def test_words_of_private(text: str, path: str, word: Mechanism | Guarantee | None) -> None:
    assert split_private(text) == (path, word)


@pytest.mark.parametrize(
    ("text", "path", "size"),
    [
        ("/a", "/a", None),
        ("/a:tmpfs=512M", "/a", 512 << 20),
        ("/a:tmpfs=7", "/a", 7),
        ("/a:tmpfs=512M:", "/a:tmpfs=512M", None),
        ("/a:tmpfs=x/b", "/a:tmpfs=x/b", None),
        (":tmpfs=1M", ":tmpfs=1M", None),
        ("/a:copy", "/a:copy", None),
    ],
)
def test_words_of_scratch(text: str, path: str, size: int | None) -> None:
    assert split_scratch(text) == (path, size)


def test_a_wrong_size_is_no_path() -> None:
    error = refusal(split_scratch, "/a:tmpfs=lots")
    assert (error.code, error.place) == (Code.POLICY_BAD_VALUE, "--scratch /a:tmpfs=lots")


@given(st.integers(1, 1 << 50))
def test_sizes_read_back(size: int) -> None:
    assert parse_size(format_size(size), "") == size


def test_a_size_in_a_file_may_be_a_number() -> None:
    rule = '[[rule]]\npath = "/t"\naccess = "scratch"\ntmpfs-size = 4096\n'
    assert parse("schema = 1\n" + rule).rules[0].tmpfs_size == 4096


@pytest.mark.parametrize("text", ["", "M", "0", "0M", "-1", "1.5G", "5X", "5MB", "٣M", " 5"])
def test_what_is_no_size(text: str) -> None:
    assert refusal(parse_size, text, "here").code is Code.POLICY_BAD_VALUE


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("90", 90), ("1.5s", 1.5), ("200ms", 0.2), ("2h", 7200), ("1d", 86400)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_duration(text, "") == seconds


@pytest.mark.parametrize("text", ["", "m", "0", "0s", "-1", "5w", "1e5", "inf", "nan", "1.2.3", "²", "9" * 400])
def test_what_is_no_time(text: str) -> None:
    assert refusal(parse_duration, text, "here").code is Code.POLICY_BAD_VALUE


# --- options become rules --------------------------------------------------------------------------------------------


def loaded(cwd: str = "/w", policy: str = "workspace", **options: Any) -> Policy:
    return load.load(policy, RuleOptions(**options), cwd, HOME)


def test_default_policy_with_one_private_path() -> None:
    policy = loaded(private=(".",))
    assert policy.rules == (Rule(Access.PRIVATE, "/w", ".", "--private", from_option=True),)
    assert (policy.name, policy.share_all, policy.host_mounts_appear) == ("workspace", False, True)
    assert policy.endpoint_search is EndpointSearch.AUTOMATIC


def test_each_option_becomes_its_rule() -> None:
    policy = loaded(
        private=("a:copy", "b:snapshot"), read_only=("/",), shared=("~/x",), scratch=("/t:tmpfs=1M",), hidden=("c/",)
    )
    found = {rule.path: rule for rule in policy.rules}
    assert found["/w/a"].mechanism is Mechanism.COPY
    assert (found["/w/b"].mechanism, found["/w/b"].guarantee) == (None, Guarantee.SNAPSHOT)
    assert found["/"].access is Access.READ_ONLY
    assert found[HOME + "/x"].access is Access.SHARED
    assert found["/t"].tmpfs_size == 1 << 20
    assert (found["/w/c"].access, found["/w/c"].written) == (Access.HIDDEN, "c/")


def test_switches_of_options_win_and_add() -> None:
    policy = loaded(
        private=(".",),
        endpoint=("s", "s"),
        require=("cgroup", "cgroup"),
        environment=Environment(True, (("A", "1"),)),
        timeout=5.0,
        storage_limit=1 << 20,
    )
    assert policy.endpoints == (EndpointRule("/w/s", "s", "--endpoint"),)
    assert policy.requires == (Require.CGROUP,)
    assert dataclasses.replace(policy.environment, defaults=()) == Environment(True, (("A", "1"),))
    assert policy.timeout == 5.0
    assert policy.storage_limit == 1 << 20


def test_nothing_private_is_refused_unless_it_is_meant() -> None:
    error = refusal(loaded, shared=("/a",))
    assert error.code is Code.POLICY_NOTHING_PRIVATE
    assert "--private ." in (error.hint or "")
    assert "--share-all" in (error.hint or "")
    assert loaded(share_all=True).rules == ()


@pytest.mark.parametrize("option", ["private", "read_only", "shared", "scratch", "hidden", "endpoint"])
@pytest.mark.parametrize("path", ["", "a\0b", "~other/x"])
def test_paths_that_name_nothing(option: str, path: str) -> None:
    error = refusal(loaded, **{option: (path,)})
    assert error.code is Code.POLICY_BAD_PATH
    assert error.place == "--" + option.replace("_", "-")


def test_home_must_be_known() -> None:
    error = refusal(load.load, "workspace", RuleOptions(private=("~/x",)), "/w", "")
    assert (error.code, "HOME" in error.message) == (Code.POLICY_BAD_PATH, True)


@pytest.mark.parametrize(
    ("written", "path"),
    [("a//b/./c/", "/w/a/b/c"), ("//x", "/x"), ("~", HOME), ("./~", "/w/~"), ("a\nb:,\\\udcff", "/w/a\nb:,\\\udcff")],
)
def test_paths_become_normal(written: str, path: str) -> None:
    assert loaded(private=(written,)).rules[0].path == path


def test_going_up_follows_links_as_the_kernel_does(tmp_path: Any) -> None:
    base = os.path.realpath(tmp_path)
    os.makedirs(f"{base}/far/inner")
    os.symlink("far/inner", f"{base}/link")
    assert loaded(cwd=base, private=("link/../x",)).rules[0].path == f"{base}/far/x"
    assert loaded(cwd=f"{base}/link", private=("..",)).rules[0].path == f"{base}/far"
    assert loaded(private=("/../../x",)).rules[0].path == "/x"


def test_patterns_are_refused_but_names_with_their_characters_are_not(tmp_path: Any) -> None:
    error = refusal(loaded, cwd=str(tmp_path), private=("a*",))
    assert error.code is Code.POLICY_BAD_PATH
    assert "patterns" in error.message
    (tmp_path / "a[1]*").mkdir()
    assert loaded(cwd=str(tmp_path), private=("a[1]*",)).rules[0].path == f"{tmp_path}/a[1]*"


def test_two_options_for_one_path() -> None:
    error = refusal(loaded, private=("/a",), read_only=("/a/",))
    assert error.code is Code.POLICY_CONFLICT
    assert error.details == ("--private says private for /a", "--read-only says read-only for /a/")
    assert refusal(loaded, private=("/a:copy", "/a:live")).details == (
        "--private says private (copy) for /a",
        "--private says private (live) for /a",
    )
    assert refusal(loaded, scratch=("/a:tmpfs=1M", "/a")).details[0] == "--scratch says scratch (tmpfs) for /a"
    assert len(loaded(private=("/a", "/a/.")).rules) == 2


def test_unknown_promise_is_refused_with_the_known_ones() -> None:
    error = refusal(loaded, private=(".",), require=("speed",))
    assert error.code is Code.POLICY_BAD_VALUE
    assert all(word.value in (error.hint or "") for word in Require)


# --- policy files ----------------------------------------------------------------------------------------------------

FULL = """
schema = 1
description = "all of it"
requires = ["independent", "cgroup"]
share-all = true
host-mounts-appear = false

[[rule]]
path = "~/proj"
access = "private"
mechanism = "reflink"

[[rule]]
path = "~"
access = "read-only"

[[rule]]
path = "/var/cache/x"
access = "private"
guarantee = "live"
optional = true

[[rule]]
path = "/tmp"
access = "scratch"
tmpfs-size = "512M"

[[rule]]
path = "/opt"
access = "private"
first-of = ["btrfs", "snapshot", "live"]
otherwise = "read-only"

[endpoints]
search = "listed"
paths = ["/run/a.sock", { path = "$HF_TEST_SOCK/b", optional = true }]

[environment]
clear = true
set = { CI = "1", B = { base64 = "/w==" } }

[process]
timeout = "10m"

[storage]
limit = "2G"

[ssh]
config-copies = false
"""


def test_a_file_with_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TEST_SOCK", "/run/user")
    policy = parse(FULL)
    assert policy == Policy(
        name="p",
        description="all of it",
        rules=(
            Rule(Access.PRIVATE, HOME + "/proj", "~/proj", "p.toml: rule[0]", Mechanism.REFLINK),
            Rule(Access.READ_ONLY, HOME, "~", "p.toml: rule[1]"),
            Rule(
                Access.PRIVATE, "/var/cache/x", "/var/cache/x", "p.toml: rule[2]", None, Guarantee.LIVE, optional=True
            ),
            Rule(Access.SCRATCH, "/tmp", "/tmp", "p.toml: rule[3]", tmpfs_size=512 << 20),
            Rule(
                Access.PRIVATE,
                "/opt",
                "/opt",
                "p.toml: rule[4]",
                Mechanism.BTRFS,
                lesser=(Guarantee.SNAPSHOT, Guarantee.LIVE),
                otherwise=Access.READ_ONLY,
            ),
        ),
        endpoints=(
            EndpointRule("/run/a.sock", "/run/a.sock", "p.toml: endpoints.paths[0]"),
            EndpointRule("/run/user/b", "$HF_TEST_SOCK/b", "p.toml: endpoints.paths[1]", optional=True),
        ),
        endpoint_search=EndpointSearch.LISTED,
        requires=(Require.INDEPENDENT, Require.CGROUP),
        environment=Environment(True, (("CI", "1"), ("B", "\udcff"))),
        share_all=True,
        host_mounts_appear=False,
        ssh_config_copies=False,
        timeout=600.0,
        storage_limit=2 << 30,
    )


@pytest.mark.parametrize(
    ("text", "code", "place", "word"),
    [
        ("[speed]\nx = 1", Code.POLICY_UNKNOWN_KEY, "p.toml:2: speed", "speed"),
        ("speed = 1", Code.POLICY_UNKNOWN_KEY, "p.toml:2: speed", "speed"),
        ("share-all = 1", Code.POLICY_BAD_VALUE, "p.toml:2: share-all", "true or false"),
        ("description = 5", Code.POLICY_BAD_VALUE, "p.toml:2: description", "a string"),
        ("description = 1979-05-27", Code.POLICY_BAD_VALUE, "p.toml:2: description", "a date or time"),
        ("requires = 'x'", Code.POLICY_BAD_VALUE, "p.toml:2: requires", "a list"),
        ("requires = ['x']", Code.POLICY_BAD_VALUE, "p.toml:2: requires[0]", "'x'"),
        ("requires = [[]]", Code.POLICY_BAD_VALUE, "p.toml:2: requires[0]", "[]"),
        ("rule = [5]", Code.POLICY_BAD_VALUE, "p.toml:2: rule[0]", "a table"),
        ("rule = 5", Code.POLICY_BAD_VALUE, "p.toml:2: rule", "a list"),
        ("[[rule]]\naccess = 'private'", Code.POLICY_BAD_VALUE, "p.toml:2: rule[0]", "no path"),
        ("[[rule]]\npath = '/a'", Code.POLICY_BAD_VALUE, "p.toml:2: rule[0]", "no access"),
        ("[[rule]]\npath = '/a'\naccess = 'open'", Code.POLICY_BAD_VALUE, "p.toml:4: rule[0].access", "'open'"),
        ("[[rule]]\npath = 5\naccess = 'private'", Code.POLICY_BAD_VALUE, "p.toml:3: rule[0].path", "a whole number"),
        ("[[rule]]\npath = 'a'\naccess = 'shared'", Code.POLICY_BAD_PATH, "p.toml:3: rule[0].path", "relative"),
        ("[[rule]]\npath = ''\naccess = 'shared'", Code.POLICY_BAD_PATH, "p.toml:3: rule[0].path", "empty"),
        ("[[rule]]\npath = '~u/a'\naccess = 'shared'", Code.POLICY_BAD_PATH, "p.toml:3: rule[0].path", "~u/a"),
        ("[[rule]]\npath = '$HOME/a'\naccess = 'shared'", Code.POLICY_BAD_PATH, "p.toml:3: rule[0].path", "variable"),
        ("[[rule]]\npath = '/a/**'\naccess = 'shared'", Code.POLICY_BAD_PATH, "p.toml:3: rule[0].path", "whole trees"),
        ("[[rule]]\npath = '/no*ne'\naccess = 'shared'", Code.POLICY_BAD_PATH, "p.toml:3: rule[0].path", "nothing"),
        (
            "[[rule]]\npath = {base64 = '!'}\naccess = 'shared'",
            Code.POLICY_BAD_VALUE,
            "p.toml:3: rule[0].path",
            "base64",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'shared'\nmechanism = 'copy'",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].mechanism",
            "only for private",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'shared'\notherwise = 'read-only'",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].otherwise",
            "only for private",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\notherwise = 'shared'",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].otherwise",
            "'shared'",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\nfirst-of = []",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].first-of",
            "is empty",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\nfirst-of = ['live', 'live']",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].first-of",
            "twice",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\nfirst-of = ['live', 'lives']",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].first-of[1]",
            "'lives'",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\nfirst-of = ['live']\nmechanism = 'copy'",
            Code.POLICY_CONFLICT,
            "p.toml:2: rule[0]",
            "not both",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\ntmpfs-size = 5",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].tmpfs-size",
            "only for scratch",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\nmechanism = 'copy'\nguarantee = 'live'",
            Code.POLICY_CONFLICT,
            "p.toml:2: rule[0]",
            "not both",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'private'\n[[rule]]\npath = '/b'\naccess = 'private'\nmechanism = 'zfs'",
            Code.POLICY_BAD_VALUE,
            "p.toml:8: rule[1].mechanism",
            "'zfs'",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'scratch'\ntmpfs-size = 0",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].tmpfs-size",
            "512M",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'scratch'\ntmpfs-size = 'big'",
            Code.POLICY_BAD_VALUE,
            "p.toml:5: rule[0].tmpfs-size",
            "'big'",
        ),
        (
            "[[rule]]\npath = '/a'\naccess = 'shared'\nx = 1",
            Code.POLICY_UNKNOWN_KEY,
            "p.toml:5: rule[0].x",
            "rule[0].x",
        ),
        ("[endpoints]\nseek = 1", Code.POLICY_UNKNOWN_KEY, "p.toml:3: endpoints.seek", "seek"),
        ("[endpoints]\nsearch = 'never'", Code.POLICY_BAD_VALUE, "p.toml:3: endpoints.search", "'never'"),
        ("[endpoints]\npaths = ['$HF_NOT_SET']", Code.POLICY_BAD_PATH, "p.toml:3: endpoints.paths[0]", "HF_NOT_SET"),
        ("[endpoints]\npaths = ['$']", Code.POLICY_BAD_PATH, "p.toml:3: endpoints.paths[0]", "not set"),
        ("[endpoints]\npaths = ['run']", Code.POLICY_BAD_PATH, "p.toml:3: endpoints.paths[0]", "relative"),
        ("[endpoints]\npaths = [{}]", Code.POLICY_BAD_VALUE, "p.toml:3: endpoints.paths[0]", "missing"),
        ("[environment]\nset = { 'A=B' = 'x' }", Code.POLICY_BAD_VALUE, "p.toml:3: environment.set.A=B", "A=B"),
        ("[environment]\nset = { A = 1 }", Code.POLICY_BAD_VALUE, "p.toml:3: environment.set.A", "a string"),
        ("[environment]\nunset = []", Code.POLICY_UNKNOWN_KEY, "p.toml:3: environment.unset", "unset"),
        ("[process]\ntimeout = 'soon'", Code.POLICY_BAD_VALUE, "p.toml:3: process.timeout", "'soon'"),
        ("[process]\ntimeout = true", Code.POLICY_BAD_VALUE, "p.toml:3: process.timeout", "true or false"),
        ("[process]\ntimeout = nan", Code.POLICY_BAD_VALUE, "p.toml:3: process.timeout", "above zero"),
        ("[process]\nnice = 5", Code.POLICY_UNKNOWN_KEY, "p.toml:3: process.nice", "nice"),
        ("[storage]\nlimit = 'much'", Code.POLICY_BAD_VALUE, "p.toml:3: storage.limit", "'much'"),
        ("[storage]\nlimit = 0", Code.POLICY_BAD_VALUE, "p.toml:3: storage.limit", "a size"),
        ("[storage]\nsize = 5", Code.POLICY_UNKNOWN_KEY, "p.toml:3: storage.size", "size"),
        ("storage = 5", Code.POLICY_BAD_VALUE, "p.toml:2: storage", "a table"),
        ("[ssh]\nconfig = 5", Code.POLICY_UNKNOWN_KEY, "p.toml:3: ssh.config", "config"),
        ("ssh = 5", Code.POLICY_BAD_VALUE, "p.toml:2: ssh", "a table"),
    ],
)
def test_refusals_name_file_line_and_key(text: str, code: Code, place: str, word: str) -> None:
    error = wrong(text)
    assert (error.code, error.place) == (code, place)
    assert word in error.message


def test_schema_is_demanded() -> None:
    assert refusal(parse, "").place == "p.toml: schema"
    error = refusal(parse, "schema = 2")
    assert (error.place, "schema 2" in error.message) == ("p.toml:1: schema", True)
    assert refusal(parse, "schema = '1'").code is Code.POLICY_BAD_VALUE


def test_a_text_that_is_no_toml() -> None:
    error = refusal(parse, "schema = 1\n[rule\n")
    assert (error.code, error.place) == (Code.POLICY_SYNTAX, "p.toml:2")
    assert error.__cause__ is not None


def test_two_rules_of_a_file_for_one_path(tmp_path: Any) -> None:
    file = tmp_path / "x.toml"
    rule = '[[rule]]\npath = "/a"\naccess = "%s"\n'
    file.write_text("schema = 1\n" + rule % "private" + rule % "hidden")
    error = refusal(load.read, str(file), "/", HOME)
    assert error.code is Code.POLICY_CONFLICT
    assert error.details == (
        f"{file}: rule[0] says private for /a",
        f"{file}: rule[1] says hidden for /a",
    )


def test_patterns_in_a_file_are_expanded_once_and_in_order(tmp_path: Any) -> None:
    for name in ("b1", "a1", "c", "x[1]"):
        (tmp_path / name).mkdir()
    rule = f'[[rule]]\npath = "{tmp_path}/%s"\naccess = "private"\noptional = true\n'
    paths = [one.path for one in parse("schema = 1\n" + rule % "?1").rules]
    assert paths == [f"{tmp_path}/a1", f"{tmp_path}/b1"]
    assert [one.path for one in parse("schema = 1\n" + rule % "x[[]1]").rules] == [f"{tmp_path}/x[1]"]
    assert [one.path for one in parse("schema = 1\n" + rule % "gone[*]").rules] == [f"{tmp_path}/gone*"]
    assert parse("schema = 1\n" + rule % "none*").rules == ()


def test_an_endpoint_of_a_variable_that_is_not_set_may_be_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_NOT_SET", raising=False)
    assert parse('schema = 1\n[endpoints]\npaths = [{ path = "$HF_NOT_SET", optional = true }]').endpoints == ()


def test_an_option_wins_over_the_file(tmp_path: Any) -> None:
    file = tmp_path / "x.toml"
    file.write_text('schema = 1\n[process]\ntimeout = 5\n[[rule]]\npath = "/a"\naccess = "read-only"\n')
    policy = load.load("./x.toml", RuleOptions(shared=("/a",), private=("/b",)), str(tmp_path), HOME)
    assert [(rule.path, rule.access) for rule in policy.rules] == [("/b", Access.PRIVATE), ("/a", Access.SHARED)]
    assert (policy.timeout, policy.name) == (5.0, "./x.toml")


# --- finding policies ------------------------------------------------------------------------------------------------


def test_shipped_policies_can_be_read() -> None:
    assert {"build", "workspace"} <= set(load.shipped())
    for name in load.shipped():
        described = load.describe(name, "/", HOME)
        assert described.description
        with open(described.file, encoding="utf-8") as file:
            assert described.text == file.read()


def test_the_build_policy() -> None:
    policy = load.read("build", "/", HOME)
    found = {rule.path: rule for rule in policy.rules}
    assert found[HOME].access is Access.READ_ONLY
    assert found["/tmp"].access is Access.SCRATCH
    caches = [rule for rule in policy.rules if rule.access is Access.PRIVATE]
    assert all(rule.optional and rule.path.startswith(HOME + "/") for rule in caches)
    assert f"{HOME}/.cargo/registry" in found


def test_the_policy_of_a_whole_system() -> None:
    policy = load.read("private-files", "/", HOME)
    found = {rule.path: rule for rule in policy.rules}
    assert found["/"].access is Access.READ_ONLY
    private = {path for path, rule in found.items() if rule.access is Access.PRIVATE}
    assert {"/etc", "/home", "/opt", "/root", "/srv", "/usr", "/var", "/tmp", "/boot", "/run", HOME} <= private
    assert all(rule.optional for path, rule in found.items() if path != "/")
    assert {(found[path].mechanism, *found[path].lesser) for path in private} == {(Mechanism.BTRFS, Guarantee.LIVE)}
    # A mechanism that cannot be had never lets the host's own files be written.
    assert {found[path].otherwise for path in private} == {None, Access.READ_ONLY}
    hidden = {path for path, rule in found.items() if rule.access is Access.HIDDEN}
    assert {"/run/systemd/private", "/run/dbus/system_bus_socket"} <= hidden
    assert policy.environment.variables == (("SYSTEMD_OFFLINE", "1"),)
    assert bare(dataclasses.replace(parse(load.dump(policy)), name="private-files")) == bare(policy)


def test_policies_that_are_not_there(tmp_path: Any) -> None:
    error = refusal(loaded, policy="nonsense", private=(".",))
    assert error.code is Code.POLICY_NOT_FOUND
    assert "workspace" in (error.hint or "")
    assert refusal(loaded, policy="/no/such.toml", private=(".",)).code is Code.POLICY_NOT_FOUND
    assert refusal(loaded, policy="a\0b", private=(".",)).code is Code.POLICY_NOT_FOUND
    error = refusal(loaded, policy=f"{tmp_path}/", private=(".",))
    assert (error.code, "cannot be read" in error.message) == (Code.POLICY_NOT_FOUND, True)
    (tmp_path / "latin.toml").write_bytes(b"schema = 1\ndescription = '\xff'\n")
    assert refusal(loaded, policy=f"{tmp_path}/latin.toml", private=(".",)).code is Code.POLICY_SYNTAX


def test_a_policy_file_by_its_ending_and_by_home(tmp_path: Any) -> None:
    (tmp_path / "p.toml").write_text("schema = 1\nshare-all = true\n")
    assert load.load("p.toml", RuleOptions(), str(tmp_path), HOME).share_all
    assert load.load("~/p.toml", RuleOptions(), "/", str(tmp_path)).share_all


# --- what is read without the parser is TOML --------------------------------------------------------------------------

LINES = st.lists(
    st.sampled_from(
        [
            "",
            "# x",
            "#x",
            "# \x01",
            "schema = 1",
            "schema = 01",
            "schema=1",
            "schema = 1 ",
            'description = "x"',
            'description = ""',
            'description = "a\\"',
            'description = "a"b"',
            "[x]",
            "description = 'x'",
            "\t",
            "[[a.b]]",
            "[[a.c]]",
            "[[a]]",
            "[[a.b.c]]",
            "[[.b]]",
            "[[a.b] ]",
            "[[a.b]] # x",
            "a = 1",
            "b = 1",
            'c-d = ["x"]',
            'c = ["x", "y"]',
            'c = ["x","y"]',
            "c = []",
            'c = ["x", 1]',
            'c = ["x, y", "]"]',
            'c."d" = 1',
            "c = true",
        ]
    ),
    max_size=6,
)


@given(LINES)
def test_the_plain_reader_agrees_with_the_parser(lines: list[str]) -> None:
    text = "\n".join(lines)
    table = read_plain(text)
    if table is not None:
        assert table == tomllib.loads(text)


def test_the_default_policy_needs_no_parser() -> None:
    text = load.describe("workspace").text
    assert read_plain(text) == tomllib.loads(text)


# --- lines -----------------------------------------------------------------------------------------------------------


def test_no_line_is_named_where_it_is_not_sure() -> None:
    assert line_of("schema = 1\ndescription = '''\nspeed = 1\n'''\nspeed = 2", ("speed",)) is None
    assert line_of("schema = 1", ("nothing",)) is None
    assert line_of("[[rule]]\n[[rule]]\npath = 1", ("rule", 1, "path")) == 3
    assert line_of("[a]\nschema = 2\n", ("schema",)) is None


# --- what is written reads back --------------------------------------------------------------------------------------

NAMES = st.text(st.sampled_from(string.ascii_letters + " :,\\\n*?[]~$\"'é\udc80\udcff"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)
ABSOLUTE = st.lists(NAMES, max_size=4).map(lambda names: "/" + "/".join(names))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    access = draw(st.sampled_from(Access))
    path = draw(ABSOLUTE)
    word = draw(st.sampled_from([None, *Mechanism, *Guarantee])) if access is Access.PRIVATE else None
    others = [other for other in (*Mechanism, *Guarantee) if other is not word] if word is not None else []
    return Rule(
        access,
        path,
        "",
        "",
        mechanism=word if isinstance(word, Mechanism) else None,
        guarantee=word if isinstance(word, Guarantee) else None,
        tmpfs_size=draw(st.one_of(st.none(), st.integers(1, 1 << 40))) if access is Access.SCRATCH else None,
        optional=draw(st.booleans()),
        lesser=tuple(draw(st.lists(st.sampled_from(others), unique=True))) if others else (),
        otherwise=draw(st.sampled_from([None, Access.READ_ONLY])) if access is Access.PRIVATE else None,
    )


VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
CACHES = st.lists(VALUES.map(lambda name: "$" + name), min_size=1, max_size=2).map(tuple)
DEFAULTS = st.builds(
    Default,
    VALUES.filter(lambda name: name and "=" not in name),
    st.one_of(st.none(), VALUES, NAMES),
    CACHES,
    st.lists(VALUES.filter(bool), max_size=2).map(tuple),
)
POLICIES = st.builds(
    Policy,
    name=st.just("p"),
    description=VALUES,
    rules=st.lists(rules(), max_size=4).map(tuple),
    endpoints=st.lists(st.builds(EndpointRule, ABSOLUTE, st.just(""), st.just(""), st.booleans()), max_size=3).map(
        tuple
    ),
    endpoint_search=st.sampled_from(EndpointSearch),
    requires=st.lists(st.sampled_from(Require), unique=True).map(tuple),
    environment=st.builds(
        Environment,
        st.booleans(),
        st.dictionaries(VALUES.filter(lambda name: name and "=" not in name), st.one_of(VALUES, NAMES), max_size=3).map(
            lambda table: tuple(table.items())
        ),
        st.lists(DEFAULTS, max_size=2).map(tuple),
    ),
    share_all=st.booleans(),
    host_mounts_appear=st.booleans(),
    ssh_config_copies=st.booleans(),
    timeout=st.one_of(st.none(), st.floats(0.001, 1e9)),
    storage_limit=st.one_of(st.none(), st.integers(1, 1 << 50)),
    prefer=st.sampled_from(Prefer),
    unreadable=st.sampled_from(Unreadable),
    private_git=st.booleans(),
    approval=st.booleans(),
    trusted=st.lists(NAMES.filter(bool), max_size=2).map(tuple),
    quiesce=st.one_of(
        st.builds(Quiesce, VALUES, st.one_of(st.none(), VALUES), st.one_of(st.none(), VALUES)),
        st.builds(Quiesce, st.none(), st.none(), st.one_of(st.none(), VALUES)),
    ),
)


def bare(policy: Policy) -> Policy:
    """Without what only tells where it was written, and without the order of variables, which are of distinct names."""
    environment = policy.environment
    return dataclasses.replace(
        policy,
        environment=dataclasses.replace(environment, variables=tuple(sorted(environment.variables))),
        rules=tuple(dataclasses.replace(rule, written="", place="") for rule in policy.rules),
        endpoints=tuple(dataclasses.replace(rule, written="", place="") for rule in policy.endpoints),
    )


@given(POLICIES)
def test_a_dumped_policy_reads_back(policy: Policy) -> None:
    assert bare(parse(load.dump(policy))) == bare(policy)


def test_a_variable_of_other_bytes_cannot_be_dumped() -> None:
    policy = Policy("p", environment=Environment(variables=(("\udcff", ""),)))
    assert refusal(load.dump, policy).code is Code.POLICY_BAD_VALUE


def test_a_dump_holds_no_empty_tables() -> None:
    text = load.dump(load.read("workspace", "/", HOME))
    assert "[process]" not in text
    assert "[environment.set]" not in text


def test_a_resolved_shipped_policy_reads_back() -> None:
    policy = load.read("build", "/", HOME)
    assert bare(dataclasses.replace(parse(load.dump(policy)), name="build")) == bare(policy)
