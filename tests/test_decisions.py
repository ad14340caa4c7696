"""What is decided about a fork: sealed, waiting, approved; the verbs `log`, `seal`, `unseal`, `approve`; receipts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.errors import Code, ForkError
from hostfork.lifecycle import audit, decisions
from hostfork.lifecycle.contents import changes_id
from hostfork.lifecycle.record import Record
from hostfork.lifecycle.store import Store, state_folder
from hostfork.vocabulary import Disposition
from rigs import Disk, Person, wait_until

Run = Callable[..., Any]
POLICY = "schema = 1\n[apply]\napproval = true\n"


@pytest.fixture
def project(person: Person, ext4_disk: Disk) -> str:
    source = ext4_disk.folder(person)
    person.run(["sh", "-c", "echo a >a; echo b >b"], cwd=source, check=True)
    return source


def keep(hostfork: Run, person: Person, project: str, *more: str, script: str = "echo x >a; rm b; mkdir c") -> None:
    """A kept fork `f`."""
    run = ["run", "--name", "f", "--private", project, "--cwd", project, *more, "--", "sh", "-c", script]
    hostfork(person, *run, check=0)


def by_policy(person: Person, project: str) -> str:
    """A file of a policy that demands approval."""
    place = os.path.join(person.home, "policy.toml")
    person.run(["sh", "-c", 'printf %s "$1" >"$2"', "-", POLICY, place], check=True)
    return place


def disposition(hostfork: Run, person: Person) -> str:
    return str(json.loads(hostfork(person, "show", "f", "--json", check=0).stdout)["disposition"])


def events(hostfork: Run, person: Person, *more: str) -> list[dict[str, Any]]:
    done = hostfork(person, "log", "f", "--json", *more, check=0)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_fork_is_sealed_and_opened_again(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project, "--tag", "task=7", "--tag", "agent=a b")
    assert hostfork(person, "seal", "f", "--tag", "review=42", check=0).stdout == "f is sealed\n"
    assert hostfork(person, "seal", "f", check=0).stdout == "f is sealed   it was already\n"
    assert disposition(hostfork, person) == "sealed"
    assert hostfork(person, "diff", "f", check=0).stdout
    assert json.loads(hostfork(person, "unseal", "f", "--json", check=0).stdout)["changed"] == ["f"]
    assert disposition(hostfork, person) == "open"
    hostfork(person, "seal", "f", check=0)
    hostfork(person, "discard", "f", "--yes", check=0)
    told = events(hostfork, person)
    assert [one["event"] for one in told] == [
        "created", "ended", "kept", "sealed", "unsealed", "sealed", "discarded",
    ]  # fmt: skip
    assert told[0]["by"]["tags"] == {"task": "7", "agent": "a b"}
    assert told[3]["by"]["tags"] == {"review": "42"}
    assert told[3]["after"] == told[5]["after"]
    shown = hostfork(person, "log", "f", check=0).stdout
    assert "task=7 agent=a b" in shown
    assert "sh -c" in shown


def test_what_is_applied_and_undone_is_told_of_the_fork_that_it_was_of(
    hostfork: Run, person: Person, project: str
) -> None:
    keep(hostfork, person, project)
    hostfork(person, "apply", "f", "--yes", "--tag", "ticket=9", check=0)
    hostfork(person, "discard", "f", "--yes", check=0)
    (log,) = audit.find(Store(person.state), "f")
    keep(hostfork, person, project, script="echo later >later")
    applied = next(one for one in audit.read(log)[0] if one.event == "applied")
    assert applied.by["tags"] == {"ticket": "9"}
    assert applied.facts["changes"] == 3
    hostfork(person, "undo", str(applied.after), "--yes", check=0)
    told = [json.loads(line) for line in hostfork(person, "log", log.words, "--json", check=0).stdout.splitlines()]
    assert [one["event"] for one in told[-3:]] == ["applied", "discarded", "undone"]
    assert told[-1]["before"] == applied.after
    assert "undone" not in [one["event"] for one in events(hostfork, person)]
    hostfork(person, "discard", "f", "--yes", check=0)


def test_a_tag_is_a_name_and_a_value(hostfork: Run, person: Person, project: str) -> None:
    done = hostfork(person, "run", "--private", project, "--tag", "x", "--", "true", check=125)
    assert "--tag x" in done.stderr


def test_a_running_fork_is_not_sealed(hostfork: Run, person: Person, project: str) -> None:
    program = os.path.join(sys.prefix, "bin", "hostfork")
    run = [program, "run", "--name", "f", "--private", project, "--", "sh", "-c", "echo; read x"]
    running = person.popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        running.stdout.readline()
        assert "fork.busy" in hostfork(person, "seal", "f", check=125).stderr
    finally:
        running.stdin.close()
        running.wait()
        running.stdout.close()


def test_the_log_of_a_fork_that_is_not_there(hostfork: Run, person: Person) -> None:
    assert "fork.not-found" in hostfork(person, "log", "f", check=125).stderr


def test_damage_is_told_with_status_1(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project)
    (log,) = audit.find(Store(person.state), "f")
    with open(log.path, "r+b") as file:
        file.seek(5)
        file.write(b"7")
    done = hostfork(person, "log", "f", check=1)
    assert "the log of f@" in done.stderr
    assert "is damaged" in done.stderr
    assert "kept" in done.stdout
    hostfork(person, "discard", "f", "--yes", check=0)


def test_forks_of_one_name_are_told_apart(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project)
    hostfork(person, "discard", "f", "--yes", check=0)
    keep(hostfork, person, project)
    done = hostfork(person, "log", "f", check=0)
    assert "discarded" not in done.stdout
    assert "1 earlier fork had this name: f@" in done.stderr
    earlier = done.stderr.split()[-1]
    assert "discarded" in hostfork(person, "log", earlier, check=0).stdout
    hostfork(person, "discard", "f", "--yes", check=0)


def test_following_a_log_ends_with_the_fork(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project)
    out = os.path.join(person.home, "followed")
    program = os.path.join(sys.prefix, "bin", "hostfork")
    following = person.popen(["sh", "-c", f"{program} log f --follow --json >{out}"])
    try:
        wait_until(lambda: os.path.exists(out) and os.path.getsize(out) > 0)
        hostfork(person, "seal", "f", check=0)
        hostfork(person, "discard", "f", "--yes", check=0)
        assert following.wait(60) == 0
    finally:
        following.kill()
        following.wait()
    with open(out) as file:
        assert [json.loads(line)["event"] for line in file][-2:] == ["sealed", "discarded"]


def _ask() -> Code | None:
    """What an apply asks first."""
    store = Store(state_folder())
    with store.open("f") as folder:
        assert folder.lock()
        try:
            decisions.must_be_approved(store, folder, folder.load())
        except ForkError as error:
            return error.code
    return None


def test_what_a_policy_says_is_applied_once_it_is_approved(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project, "--policy", by_policy(person, project))
    assert person.call(_ask) is Code.FORK_APPROVAL
    assert disposition(hostfork, person) == "awaiting-approval"
    assert "awaiting-approval   hostfork approve f\n" in hostfork(person, "list", check=0).stdout
    assert hostfork(person, "approve", "f", "--tag", "by=ann", check=0).stdout == "f is approved\n"
    assert disposition(hostfork, person) == "sealed"
    assert person.call(_ask) is None
    assert "approved" in hostfork(person, "show", "f", check=0).stdout
    hostfork(person, "unseal", "f", check=0)
    assert person.call(_ask) is Code.FORK_APPROVAL
    hostfork(person, "approve", "f", check=0)
    person.call(_tamper)
    assert person.call(_ask) is Code.FORK_APPROVAL
    hostfork(person, "discard", "f", "--yes", check=0)
    told = [one["event"] for one in events(hostfork, person)]
    assert told == ["created", "ended", "kept", "requested", "approved", "unsealed", "requested", "approved",
                    "requested", "discarded"]  # fmt: skip


def _tamper() -> None:
    """Change the storage of a fork behind its back."""
    for here, _, files in os.walk(os.path.join(state_folder(), "pool")):
        if "a" in files:
            with open(os.path.join(here, "a"), "a") as file:
                file.write("more\n")


def test_without_the_policy_nothing_waits(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project)
    assert person.call(_ask) is None
    assert disposition(hostfork, person) == "open"
    hostfork(person, "discard", "f", "--yes", check=0)


INSIDE = {
    "as it is": "exec {0} approve f",
    "without its environment": "exec env -u HOSTFORK_FORK {0} approve f",
    "in a session of its own": "exec env -u HOSTFORK_FORK setsid -w {0} approve f",
}


@pytest.mark.parametrize("how", INSIDE)
def test_nobody_approves_from_inside(hostfork: Run, person: Person, project: str, how: str) -> None:
    """In a view the forks are not even seen; without one (`--relocated`) the cgroup tells."""
    keep(hostfork, person, project, "--policy", by_policy(person, project))
    program = os.path.join(sys.prefix, "bin", "hostfork")
    script = INSIDE[how].format(program)
    for mode, said in ((["--share-all"], ("fork.inside", "fork.not-found")), (["--relocated"], ("fork.inside",))):
        run = ["run", *mode, "--private", project, "--rm", "--name", "g", "--cwd", project]
        done = hostfork(person, *run, "--", "sh", "-c", script)
        assert done.returncode == 125, done.stderr
        assert any(word in done.stderr for word in said), done.stderr
    assert disposition(hostfork, person) == "open"
    hostfork(person, "discard", "f", "--yes", check=0)


def _id() -> str:
    with Store(state_folder()).open("f") as folder:
        return changes_id(folder, folder.load())


def test_equal_changes_have_equal_ids_and_others_have_not(hostfork: Run, person: Person, project: str) -> None:
    seen = []
    for script in ("echo x >a", "echo x >a", "echo y >a", "echo x >a; chmod 600 a", "ln -sf x a", "ln -sf y a", "rm a"):
        keep(hostfork, person, project, script=script)
        seen.append(person.call(_id))
        hostfork(person, "discard", "f", "--yes", check=0)
    assert seen[0] == seen[1]
    assert len(set(seen)) == len(seen) - 1


def test_a_receipt_says_the_same_whenever_it_is_asked_for(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project, "--require", "same-paths", "--tag", "task=7")
    first = hostfork(person, "show", "f", "--receipt", check=0).stdout
    hostfork(person, "seal", "f", check=0)
    assert hostfork(person, "show", "f", "--receipt", check=0, env={"COLUMNS": "30"}, cwd="/").stdout == first
    told = json.loads(hostfork(person, "show", "f", "--receipt", "--json", check=0).stdout)
    assert told["receipt"] in first
    assert told["content"] == person.call(_id)
    assert told["content"] in first
    assert told["requires"] == ["same-paths"]
    assert "required and kept: same-paths" in told["verified"]
    assert told["counts"] == {"created": 1, "modified": 1, "deleted": 1, "metadata": 0, "type": 0}
    assert told["by"]["tags"] == {"task": "7"}
    assert told["policy"]["digest"]
    assert told["host"]["kernel"] == os.uname().release
    assert f"D        {project}/b" in first
    hostfork(person, "discard", "f", "--yes", check=0)
    keep(hostfork, person, project, script="echo other >a")
    other = json.loads(hostfork(person, "show", "f", "--receipt", "--json", check=0).stdout)
    assert other["receipt"] != told["receipt"]
    assert other["policy"]["digest"] != told["policy"]["digest"]
    hostfork(person, "discard", "f", "--yes", check=0)


def _record() -> Record:
    with Store(state_folder()).open("f") as folder:
        return folder.load()


def test_a_decision_that_cannot_be_made_names_what_helps(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project)
    record = person.call(_record)
    assert record.disposition is Disposition.OPEN
    assert record.id
    assert record.made_on.name == os.uname().nodename
    hostfork(person, "unseal", "f", check=0)
    hostfork(person, "discard", "f", "--yes", check=0)
