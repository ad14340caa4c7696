"""An ordinary user on a machine that systemd runs, whose own cgroup is root's: the user's manager gives a scope."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import _or_skip
from rigs import Bench
from systemd_rig import APP, UID, Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.rig("root", "cgroup", "systemd")]

RUN = "hostfork run --rm --private . -- tail -n 1 /proc/self/cgroup"
SCOPE = f"0::{APP.removeprefix('/sys/fs/cgroup')}/hostfork-"


@pytest.fixture(scope="module")
def machine(bench: Bench) -> Iterator[Machine]:
    with _or_skip(lambda: Machine(bench), "systemd") as booted:
        yield booted


def test_a_login_has_its_forks_in_a_scope(machine: Machine) -> None:
    """The login's own cgroup is root's, and yet a cgroup owns the fork, daemons and all; the scope goes with it."""
    done = machine.login(
        "tail -n 1 /proc/self/cgroup; hostfork run --require cgroup --private . --result ~/result -- "
        "sh -c 'tail -n 1 /proc/self/cgroup; setsid sleep 1000 & (sleep 1000 &); echo b >b'"
    )
    assert done.returncode == 0, done
    own, fork = done.stdout.splitlines()
    assert own.startswith(f"0::/user.slice/user-{UID}.slice/session-")
    assert fork.startswith(SCOPE)
    result = json.loads(machine.unit("cat ~/result").stdout)
    assert (result["ownership"], result["kept"]) == ("cgroup", True)
    assert fork.endswith(f".scope/hostfork-{result['fork']}")
    assert "no cgroup owns" not in done.stderr
    assert [(found["name"], found["activity"]) for found in machine.forks()] == [(result["fork"], "idle")]
    assert machine.root("pgrep", "sleep", check=False).stdout == ""
    assert machine.unit(f"hostfork discard --yes {result['fork']}").returncode == 0
    assert machine.scopes() == []


def test_doctor_and_setup_know_of_the_scope(machine: Machine) -> None:
    done = machine.login("hostfork doctor --json && hostfork setup --print")
    assert "a group was made in a scope of this user's systemd manager" in done.stdout
    assert "processes are not owned by a cgroup" not in done.stdout
    assert machine.scopes() == []


def test_many_at_once(machine: Machine) -> None:
    """Each has a scope of its own."""
    one = "hostfork run --rm --require cgroup --private . -- tail -n 1 /proc/self/cgroup"
    done = machine.login(f"for i in $(seq 20); do {one} & done; wait")
    lines = done.stdout.splitlines()
    assert (len(set(lines)), all(line.startswith(SCOPE) for line in lines)) == (20, True), done
    assert machine.scopes() == []


def test_what_the_command_inherits_is_the_same(machine: Machine) -> None:
    """Closed descriptors are closed, no signal is blocked, the status is the command's."""
    look = "ls /proc/self/fd | wc -l >looked; grep SigBlk /proc/self/status >>looked; exit 7"
    closed = f"sh -c '{look}' <&- >&- 2>&-"
    done = machine.login(
        f"hostfork run --private . --name looks -- {closed}; echo $?; "
        f"hostfork export looks out >log; cat out/looked; {closed}; cat looked; hostfork discard --yes looks >log"
    )
    status, *lines = done.stdout.splitlines()
    assert (status, len(lines)) == ("7", 4), done
    assert lines[:2] == lines[2:]


@pytest.mark.parametrize("killed", ["$O", "$O $K"], ids=["owner", "owner and keeper"])
def test_recovery_after_kills(machine: Machine, killed: str) -> None:
    """systemd removes an empty scope with the fork's group in it, at any moment of the recovery."""
    done = machine.login(
        "hostfork run --private . --name hurt -- sh -c 'echo b >b; setsid sleep 30 & echo >../on; sleep 30' & "
        "O=$!; until [ -e ../on ]; do sleep 0.05; done; rm ../on; K=$(pgrep -f '[h]elper/program.py'); "
        f"kill -KILL {killed}; wait $O; hostfork recover; hostfork diff hurt; hostfork discard --yes hurt"
    )
    assert "its command was ended; 1 change is kept" in done.stdout, done
    assert "A  b  " in done.stdout, done
    assert done.returncode == 0, done
    assert machine.root("pgrep", "sleep", check=False).stdout == ""
    assert machine.forks() == []
    assert machine.scopes() == []


def test_a_delegated_cgroup_and_root_need_no_scope(machine: Machine) -> None:
    assert machine.unit(RUN, "Delegate=yes").stdout.startswith("0::/system.slice/run-")
    done = machine.unit(f"HOME=/root TMPDIR=/root {RUN}", user="root")
    assert done.stdout.startswith("0::/system.slice/run-"), done
    assert "/hostfork-" in done.stdout
    assert machine.unit(RUN).stdout.startswith(SCOPE)


def test_a_command_in_the_background_outlives_its_session(machine: Machine) -> None:
    """It is in a scope of the manager's, not of the session; what is said of a logout is what lingering says."""
    run = "hostfork run --detach --name bg --private . -- sh -c 'tail -n 1 /proc/self/cgroup; exec sleep 35'"
    lingers = "/var/lib/systemd/linger/ana"
    machine.root("mv", lingers, "/root/ana")
    try:
        done = machine.login(run)
    finally:
        machine.root("mv", "/root/ana", lingers)
    assert (done.returncode, done.stdout) == (0, "bg\n"), done
    assert "ends when you log out" in done.stderr
    assert "enable-linger" in done.stderr
    assert [(found["name"], found["activity"]) for found in machine.forks()] == [("bg", "running")]
    assert machine.unit("hostfork logs bg").stdout.startswith(SCOPE)
    assert machine.unit("hostfork exec bg -- cat a").stdout == "a\n"
    assert machine.unit("hostfork stop bg && hostfork wait bg").returncode == 143
    assert "goes on after you log out" in machine.login(run.replace("bg", "two")).stderr
    assert machine.unit("hostfork discard --yes bg two").returncode == 0
    assert machine.scopes() == []


def test_a_view_does_not_belong_to_who_came_first(machine: Machine) -> None:
    """Its holder has a scope of its own, also where the caller's cgroup is delegated and would do."""
    one = "hostfork create k --private . && hostfork exec k -- tail -n 1 /proc/self/cgroup"
    assert machine.unit(one, "Delegate=yes").stdout.startswith(f"k\n{SCOPE}")
    assert machine.unit("hostfork discard --yes k").returncode == 0
    assert machine.scopes() == []


def test_a_manager_that_ends_meanwhile_ends_the_command(machine: Machine) -> None:
    """Its changes are kept."""
    with ThreadPoolExecutor() as beside:
        running = beside.submit(
            machine.unit, "hostfork run --private . --name m -- sh -c 'echo m >m; exec sleep 30'; echo $?"
        )
        while not running.done() and [fork["activity"] for fork in machine.forks()] != ["running"]:
            continue
        machine.root("systemctl", "stop", f"user@{UID}")
        done = running.result()
    assert done.stdout == "143\n", done
    assert "kept as m" in done.stderr
    machine.root("systemctl", "start", f"user@{UID}")
    assert machine.unit("hostfork discard --yes m").returncode == 0


def test_without_a_manager_it_is_said(machine: Machine) -> None:
    machine.root("systemctl", "stop", f"user@{UID}")
    try:
        _is_weaker(machine, "and no systemd manager of theirs runs")
        assert f"sudo loginctl enable-linger {UID}" in machine.unit("hostfork setup --print").stdout
    finally:
        machine.root("systemctl", "start", f"user@{UID}")


def test_a_manager_that_hangs_is_not_waited_for(machine: Machine) -> None:
    pid = machine.root("systemctl", "show", "--value", "--property=MainPID", f"user@{UID}").stdout.strip()
    machine.root("kill", "-STOP", pid)
    try:
        _is_weaker(machine, "and this user's systemd manager cannot be asked: it is stopped")
    finally:
        machine.root("kill", "-CONT", pid)


def test_a_manager_that_cannot_give_a_scope_is_said(machine: Machine) -> None:
    """It has lost the system bus, over which it asks PID 1 to move the process."""
    machine.root("systemctl", "stop", "dbus.socket", "dbus.service")
    machine.root("systemctl", "start", "dbus.socket")
    try:
        _is_weaker(machine, "and this user's systemd manager gives no scope: its job failed")
    finally:
        machine.root("systemctl", "restart", f"user@{UID}")


def _is_weaker(machine: Machine, why: str) -> None:
    done = machine.unit(RUN)
    assert (done.returncode, done.stdout.startswith("0::/system.slice/run-")) == (0, True), done
    assert "/hostfork-" not in done.stdout
    assert "no cgroup owns the command's processes" in done.stderr
    assert why in done.stderr
    refused = machine.unit(RUN.replace("--rm", "--require cgroup"))
    assert refused.returncode == 125
    assert "policy.require" in refused.stderr
    assert why in refused.stderr
