"""`usage`, `gc`, `pin`, `unpin`, `list --expired` and the closing line from the outside."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rigs
from hostfork.cli.look import size
from hostfork.cli.telling import total_lines
from hostfork.cli.usage import goes_in_words
from test_cli_documents import check as check_schema

PROGRAM = os.path.join(sys.prefix, "bin/hostfork")
DAY = 86400


@pytest.fixture
def project(person):
    return rigs.make_project(person, person.home, {"a": "one\n", ".gitignore": "out/\n"})


@pytest.fixture
def call(person, hostfork):
    """`hostfork VERB…` as the person; what is kept is thrown away at the end."""
    yield lambda *args, **options: hostfork(person, *args, **options)
    person.run([PROGRAM, "discard", "--all", "--yes"])


@pytest.fixture
def keep(call, person, project):
    """Keep a fork of that name, not used for so many days."""

    def make(name, script="echo x >new", days=0):
        done = call("run", "--private", ".", "--name", name, "--", "sh", "-c", script, cwd=project, check=0)
        moment = time.time() - days * DAY
        os.utime(f"{person.state}/forks/{name}/use", (moment, moment))
        return done

    return make


def unsecond(text):
    """Without the number of seconds."""
    return re.sub(r"\b\d+ s\b", "N s", text)


def document(done):
    return json.loads(done.stdout)


def test_usage_of_nothing(call):
    view = check_schema("usage", document(call("usage", "--json", check=0)))
    assert view["holders"] == []
    assert view["pools"][0]["problem"] is not None
    lines = call("usage", check=0).stdout.splitlines()
    assert lines[0].startswith("pool ~/.local/state/hostfork/pool")
    assert lines[-1] == "set in    ~/.config/hostfork/config.toml, which is not there: these are the defaults"


def test_usage_shows_what_is_kept(call, keep, person):
    keep("small", "mkdir out; echo x >out/x")
    keep("large", "head -c 1000000 /dev/urandom >new", days=2)
    keep("old", days=30)
    call("pin", "old", check=0)
    lines = call("usage", check=0).stdout.splitlines()
    assert re.split(r"\s\s+", lines[0]) == ["NAME", "STATE", "EXCLUSIVE", "SHARED", "APPARENT", "LAST USE", "GOES"]
    rows = [re.split(r"\s\s+", line) for line in lines[1:4]]
    assert [(row[0], row[1], row[3], unsecond(row[5]), row[6]) for row in rows] == [
        ("large", "idle", "0 B", "2 d ago", "in 12 d"),
        ("small", "idle", "0 B", "N s ago", "in 1 d"),
        ("old", "idle", "0 B", "30 d ago", "pinned"),
    ]
    assert rows[0][4] == "977 KiB"
    view = check_schema("usage", document(call("usage", "--json", check=0)))
    large, small, old = view["holders"]
    assert large["space"]["exclusive"] > 1000000 > small["space"]["exclusive"]
    assert (large["kind"], large["kept"], large["pinned"], old["pinned"], old["goes"]) == (
        "fork",
        True,
        False,
        True,
        None,
    )
    (pool,) = view["pools"]
    assert pool["kept"] == pool["exclusive"] == sum(one["space"]["exclusive"] for one in view["holders"])
    listed = {one["name"]: one for one in document(call("list", "--json", check=0))["forks"]}
    for one in view["holders"]:
        assert listed[one["name"]]["space"]["bytes"] == one["space"]["exclusive"]
        assert (listed[one["name"]]["pinned"], listed[one["name"]]["last_use"]) == (one["pinned"], one["last_use"])
    assert pool["most"] == pool["total"] // 10
    assert f"\n  kept          {size(pool['kept'])} of at most {size(pool['most'])}\n" in call("usage").stdout


def test_usage_counts_a_running_fork_and_what_is_being_erased(call, person, project):
    person.call(os.mkdir, f"{project}/s")
    with person.popen([PROGRAM, "run", "--private", ".", "--scratch", "s", "--name", "busy", "--", "sh", "-c",
                       "head -c 300000 /dev/urandom >s/x; echo up; read x"], cwd=project, stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "up\n"
        (one,) = check_schema("usage", document(call("usage", "--json", check=0)))["holders"]
        assert (one["state"], one["kept"], one["last_use"], one["goes"]) == ("running", False, None, None)
        assert one["space"]["exclusive"] > 300000
        assert "in use" in call("usage", check=0).stdout
        process.communicate("x\n", timeout=60)
    aside = Path(person.state, "pool/copy/rm-gone.0")
    person.call(lambda: (aside.mkdir(), (aside / "x").write_bytes(b"x" * 100000)))
    (pool,) = document(call("usage", "--json", check=0))["pools"]
    assert (pool["erasing"], pool["erasing_bytes"] > 100000) == (1, True)
    assert "being erased  1 piece, " in call("usage", check=0).stdout
    call("recover", check=0)


def test_gc_says_what_goes_and_why(call, keep, person):
    keep("young")
    keep("old", days=20)
    keep("ignored", "mkdir out; echo x >out/x", days=3)
    would = call("gc", "--dry-run", check=0).stdout.splitlines()
    assert [re.split(r"\s\s+", line)[::2] for line in would[:2]] == [
        ["old", "not used for 20 d (keep-days 14)"],
        ["ignored", "not used for 3 d, and every change is in ignored folders (keep-days-ignored 1)"],
    ]
    assert would[2].startswith("2 forks would go, ")
    assert would[-1].startswith("set in")
    planned = check_schema("gc", document(call("gc", "--dry-run", "--json", check=0)))
    done = check_schema("gc", document(call("gc", "--json", check=0)))
    assert [one["name"] for one in done["expired"]] == [one["name"] for one in planned["expired"]] == ["old", "ignored"]
    assert (planned["dry_run"], done["dry_run"], done["rules"]["max_percent"]) == (True, False, 10)
    assert call("gc", check=0).stdout == "nothing has expired\n"
    listed = call("list", check=0)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NAME", "young"]
    assert listed.stderr == "hostfork: 2 forks expired in the last 7 days: hostfork list --expired\n"
    head, *lines = call("list", "--expired", check=0).stdout.splitlines()
    assert head.split() == ["NAME", "EXPIRED", "PATHS", "CHANGES", "SPACE", "WHY"]
    assert [line.split()[0] for line in lines] == ["ignored", "old"]
    assert [one["name"] for one in document(call("list", "--expired", "--json", check=0))["expired"]] == [
        "ignored",
        "old",
    ]
    assert "there is no fork called old" in call("diff", "old").stderr


def test_gc_names_what_is_in_its_way(call, keep, person):
    keep("one", days=3)
    keep("two", days=3)
    call("pin", "one", check=0)
    journal = Path(person.state, "forks/two/journal.jsonl")
    journal.write_text("".join(line for line in journal.read_text().splitlines(True) if '"kept"' not in line))
    person.call(lambda: Path(person.home, ".config/hostfork").mkdir(parents=True))
    Path(person.home, ".config/hostfork/config.toml").write_text("[keep]\nmax-bytes = 1000\n")
    done = call("gc", check=0)
    assert done.stdout == "nothing has expired\n"
    over, waiting = done.stderr.splitlines()
    assert "(max-bytes 1000 B), and those that are left are pinned or were used within a day" in over
    assert waiting == "hostfork: a crash left two: hostfork recover"


def test_pins(call, keep, person):
    keep("calm-otter")
    keep("calm-ox")
    assert call("pin", "calm-ot", "calm-ox", "calm-ox", check=0).stdout == "pinned calm-otter\npinned calm-ox\n"
    assert call("pin", "calm-ox", check=0).stdout == "pinned calm-ox   it was already\n"
    assert document(call("pin", "calm-ox", "--json", check=0)) == {"schema": 1, "pinned": ["calm-ox"], "changed": []}
    assert all(line.endswith("  pinned") for line in call("list", check=0).stdout.splitlines()[1:])
    assert "kept        used N s ago, pinned: it never expires\n" in unsecond(call("show", "calm-ox", check=0).stdout)
    failed = call("unpin", "calm-ox", "no-such")
    assert (failed.returncode, "fork.not-found" in failed.stderr) == (125, True)
    assert os.path.exists(f"{person.state}/forks/calm-ox/pinned")
    assert call("unpin", "calm-ox", check=0).stdout == "unpinned calm-ox\n"
    assert call("unpin", "calm-ox", check=0).stdout == "unpinned calm-ox   it was not pinned\n"
    assert "kept        used N s ago, expires in 14 d\n" in unsecond(call("show", "calm-ox", check=0).stdout)
    shown = check_schema("show", document(call("show", "calm-ox", "--json", check=0)))
    assert (shown["pinned"], shown["goes"] > shown["last_use"]) == (False, True)
    assert call("pin").returncode == 2


def test_a_running_fork_can_be_pinned(call, person, project):
    argv = [PROGRAM, "run", "--private", ".", "--name", "busy", "--", "sh", "-c", "echo x >new; echo up; read x"]
    with person.popen(argv, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        call("pin", "busy", check=0)
        process.communicate("x\n", timeout=60)
    assert call("list", check=0).stdout.splitlines()[1].endswith("  pinned")


def test_show_without_a_good_configuration(call, keep, person):
    keep("one")
    person.call(lambda: Path(person.home, ".config/hostfork").mkdir(parents=True))
    Path(person.home, ".config/hostfork/config.toml").write_text("[keeep]\n")
    done = call("show", "one", check=0)
    assert "kept        used N s ago\n" in unsecond(done.stdout)
    assert "when one expires is not known: keeep is no key of the configuration file" in done.stderr


def test_the_closing_line_names_the_total_where_it_is_much(call, keep, person, project):
    assert "kept in all" not in keep("one").stderr
    Path(person.state, "forks/one/use").write_text(str(3 << 30))
    assert keep("two").stderr.splitlines()[-1] == "          2 forks kept in all, 3 GiB   hostfork usage"
    assert call("run", "--private", ".", "--", "true", cwd=project, check=0).stderr == ""
    assert total_lines(3, 1 << 30) == []


def test_verbs_begin_expiry_in_the_background(call, keep, person):
    keep("one", days=20)
    os.utime(f"{person.state}/expiry", (0, 0))
    call("list", check=0)
    deadline = time.monotonic() + 60
    while os.path.exists(f"{person.state}/forks/one") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert call("list", check=0).stderr == "hostfork: 1 fork expired in the last 7 days: hostfork list --expired\n"


def test_when_it_goes_in_words():
    assert [goes_in_words(seconds) for seconds in (-5, 0, 30, 3600, 14 * DAY - 3)] == [
        "now", "now", "in 1 m", "in 1 h", "in 14 d",
    ]  # fmt: skip
