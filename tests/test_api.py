"""The Python API: for programs with many threads, typed, quiet, and with nothing left after an interrupt."""

import inspect
import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

import rigs
from hostfork import api
from hostfork.errors import Code, CommandError, ForkError, HostforkError, PolicyError
from hostfork.lifecycle import events
from hostfork.lifecycle.store import state_folder

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def project(person, ext4_disk):
    """A small project of the person's."""
    return rigs.make_project(person, ext4_disk.folder(person), {name: f"{name}\n" for name in ("a", "b", "d/c")})


def request(project, script, mode="", **options):
    return api.Request(("sh", "-c", script), rules=api.RuleOptions(private=(project + mode,)), cwd=project, **options)


def clean():
    """No fork and no storage is there."""
    assert api.Fork.all() == ()
    assert rigs.left_in_state(state_folder()) == []
    return True


def test_every_public_name_is_there_and_described():
    """`__all__` is what programs may use; each says what it promises."""
    for name in api.__all__:
        item = getattr(api, name)
        assert inspect.getdoc(item), name
    assert {"plan", "run", "recover", "Fork", "Request", "Outcome", "RuleOptions"} <= set(api.__all__)
    for method in ("open", "all", "diff", "export", "discard"):
        assert inspect.getdoc(getattr(api.Fork, method)), method


def test_a_run_from_start_to_end(person, project):
    """Plan, run, read, export, throw away."""
    assert person.call(_whole_life, project) == ["modified a", "deleted b", "created new"]
    assert person.call(clean)


def _whole_life(project):
    asked = request(project, "echo x >new; echo y >>a; rm b; exit 3", name="one")
    plan = api.plan(asked)
    assert [(path.path, path.access.value) for path in plan.paths if path.path == project] == [(project, "private")]
    assert api.Fork.all() == ()
    outcome = api.run(asked)
    assert (outcome.fork, outcome.status.exit, outcome.kept, outcome.released) == ("one", 3, True, False)
    assert (outcome.changes.created, outcome.changes.modified, outcome.changes.deleted) == (1, 1, 1)
    fork = api.Fork.open("on")
    assert [item.name for item in api.Fork.all()] == ["one"]
    assert (fork.name, fork.activity.value, fork.counts()) == ("one", "idle", outcome.changes)
    said = [f"{change.change.value} {os.path.basename(change.path)}" for change in fork.diff().changes]
    assert [change.path for change in fork.diff([f"{project}/a"]).changes] == [f"{project}/a"]
    assert b"+y" in b"".join(fork.patch())
    home = os.environ["HOME"]
    fork.export(f"{home}/tree", api.ExportForm.TREE)
    fork.export(f"{home}/changes", api.ExportForm.CHANGES_ONLY)
    with open(f"{home}/tar", "wb") as file:
        fork.export_tar(file)
    assert sorted(os.listdir(f"{home}/tree")) == ["a", "d", "new"]
    assert sorted(os.listdir(f"{home}/changes")) == ["a", "changes.json", "new"]
    with tarfile.open(f"{home}/tar") as archive:
        assert len([name for name in archive.getnames() if name.endswith("/c")]) == 1
    assert Path(project, "b").read_text() == "b\n"
    assert fork.discard() == ()
    return said


def test_typed_errors(person, project):
    """Every failure is a HostforkError of its branch, with a code, and leaves nothing."""
    assert person.call(_errors, project)


def _errors(project):
    cases = [
        (lambda: api.run(api.Request(())), HostforkError, None),
        (lambda: api.run(api.Request(("true",))), PolicyError, Code.POLICY_NOTHING_PRIVATE),
        (lambda: api.run(request(project + "/none", "true")), HostforkError, None),
        (lambda: api.run(request(project, "true", name="a/b")), ForkError, Code.FORK_BAD_NAME),
        (lambda: api.run(request(project, "true", mode=":btrfs")), HostforkError, Code.STORAGE_UNSUPPORTED),
        (lambda: api.run(request(project, "true", policy="none")), PolicyError, Code.POLICY_NOT_FOUND),
        (lambda: api.run(request(project, "true", descriptors=(77,))), CommandError, Code.COMMAND_CONTEXT),
        (lambda: api.run(api.Request(("no-such",), rules=api.RuleOptions(private=(project,)))), CommandError,
         Code.COMMAND_NOT_FOUND),
        (lambda: api.Fork.open("none"), ForkError, Code.FORK_NOT_FOUND),
        (lambda: api.policy("none"), PolicyError, Code.POLICY_NOT_FOUND),
    ]  # fmt: skip
    for number, (act, kind, code) in enumerate(cases):
        with pytest.raises(kind) as caught:
            act()
        assert code is None or caught.value.code is code, (number, caught.value)
        assert caught.value.message
        assert clean()
    return True


def test_a_command_that_vanishes_before_its_exec(person, project):
    """Resolved on the host, gone in the fork: 127, and nothing is kept."""
    assert person.call(_vanished, project)


def _vanished(project):
    program = f"{project}/program"
    Path(program).write_text("#!/no/such/interpreter\n")
    os.chmod(program, 0o755)
    with pytest.raises(CommandError) as caught:
        api.run(api.Request((program,), rules=api.RuleOptions(private=(project,))))
    assert (caught.value.code, caught.value.exit_status) == (Code.COMMAND_NOT_FOUND, 127)
    return clean()


def test_events_come_in_order(person, project):
    """Each step once, in the thread of the caller, with what a program needs to follow it."""
    told, threads, here = person.call(_events, project)
    kinds = [kind for kind in told if kind not in ("Progress", "Warned")]
    assert kinds == ["Planned", "PreparedPath", "StartedCommand", "EndedCommand", "Stopping", "Collecting"]
    assert threads == {here}


def _events(project):
    told = []
    api.run(request(project, "exit 0"), on_event=lambda event: told.append((event, threading.get_ident())))
    by_kind = {type(event): event for event, _ in told}
    assert by_kind[events.StartedCommand].pid > 1
    assert by_kind[events.EndedCommand].status.exit == 0
    assert by_kind[events.PreparedPath].path == project
    assert clean()
    return [type(event).__name__ for event, _ in told], {thread for _, thread in told}, threading.get_ident()


def test_a_listener_that_fails_ends_the_run(person, project):
    """Its own error comes out, and what the command had written is kept, or nothing is left."""
    assert person.call(_failing_listeners, project) == ["released"] * 3 + ["kept"] * 3


def _failing_listeners(project):
    kinds = (events.Planned, events.PreparedPath, events.Progress, events.EndedCommand, events.Stopping,
             events.Collecting)  # fmt: skip
    found = []
    for kind in kinds:
        met = []

        def listen(event, kind=kind, met=met):
            if isinstance(event, kind):
                met.append(event)
                raise LookupError("mine")

        try:
            api.run(request(project, "echo x >new"), on_event=listen)
        except LookupError:
            assert met
        else:
            assert kind is events.Progress
        forks = api.Fork.all()
        if kind is events.Progress and not met:
            found.append("released")
        else:
            found.append("kept" if forks else "released")
        for fork in forks:
            assert [os.path.basename(change.path) for change in fork.diff().changes] == ["new"]
            fork.discard()
        assert clean()
    return found


PARALLEL = """
import json, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from hostfork import api

project, runs = sys.argv[1], int(sys.argv[2])
stop = threading.Event()

def busy():
    number = 0
    while not stop.is_set():
        number = sum(range(200))
        stop.wait(0.001)

threads = [threading.Thread(target=busy, daemon=True) for _ in range(32)]
for thread in threads:
    thread.start()

def one(number):
    mode = "" if number % 2 else ":live"
    rules = api.RuleOptions(private=(project + mode,))
    script = f"echo {number} >own; cat a >/dev/null; exit {number % 200}"
    outcome = api.run(api.Request(("sh", "-c", script), rules=rules, cwd=project))
    fork = api.Fork.open(outcome.fork)
    changed = [os.path.basename(change.path) for change in fork.diff().changes]
    left = fork.discard()
    return outcome.status.exit == number % 200 and changed == ["own"] and left == () and outcome.leftovers == ()

before = len(os.listdir("/proc/self/fd"))
with ThreadPoolExecutor(8) as pool:
    good = list(pool.map(one, range(runs)))
after = len(os.listdir("/proc/self/fd"))
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
stop.set()
print(json.dumps({"good": sum(good), "descriptors": after - before, "children": children,
                  "forks": len(api.Fork.all())}))
"""


@pytest.mark.slow
def test_two_hundred_runs_from_a_busy_program(person, project):
    """Thirty-two busy threads and eight that run: every run succeeds, nothing hangs, nothing leaks (CASES 7)."""
    done = person.run([sys.executable, "-c", PARALLEL, project, "200"], timeout=110)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"good": 200, "descriptors": 0, "children": [], "forks": 0}
    assert person.call(clean)


def test_from_another_thread(person, project):
    """Not only the main thread; signals and dispositions of the program stay as they are."""
    assert person.call(_in_a_thread, project) == 5


def _in_a_thread(project):
    import signal

    before = (
        [signal.getsignal(number) for number in signal.valid_signals()],
        signal.pthread_sigmask(signal.SIG_BLOCK, []),
    )
    results = []
    thread = threading.Thread(target=lambda: results.append(api.run(request(project, "exit 5"))))
    thread.start()
    thread.join(60)
    after = (
        [signal.getsignal(number) for number in signal.valid_signals()],
        signal.pthread_sigmask(signal.SIG_BLOCK, []),
    )
    assert before == after
    assert clean()
    return results[0].status.exit


INTERRUPTED = """
import os, signal, sys, threading
from hostfork import api
main = threading.main_thread().ident
project, when, script = sys.argv[1:4]
def listen(event):
    if type(event).__name__ == when:
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
rules = api.RuleOptions(private=(project,))
try:
    api.run(api.Request(("sh", "-c", script), rules=rules, cwd=project, name="one"), on_event=listen)
except KeyboardInterrupt as error:
    print("interrupted", *getattr(error, "__notes__", ()), sep="|")
forks = api.Fork.all()
for fork in forks:
    print(fork.name, fork.activity.value, *[os.path.basename(change.path) for change in fork.diff().changes])
    fork.discard()
"""


@pytest.mark.parametrize(("script", "kept"), [("echo x >new; sleep 1000", True), ("sleep 1000", False)])
def test_an_interrupt_in_the_main_thread(person, project, script, kept):
    """KeyboardInterrupt while the command runs: no process is left; what was changed is kept and said to be."""
    done = person.run([sys.executable, "-c", INTERRUPTED, project, "StartedCommand", script], timeout=60)
    assert done.returncode == 0, done.stderr
    first, *forks = done.stdout.splitlines()
    assert first.startswith("interrupted")
    assert forks == (["one idle new"] if kept else [])
    assert ("kept as one" in first) == kept
    assert person.call(clean)


def test_an_interrupt_while_a_tree_is_copied(person, project):
    """Nothing was started, nothing is left."""
    person.call(_many_files, project)
    done = person.run([sys.executable, "-c", INTERRUPTED, project, "Planned", "sleep 1000"], timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("interrupted")
    assert len(done.stdout.splitlines()) == 1
    assert person.call(clean)


def _many_files(project):
    for number in range(8000):
        Path(project, f"file{number}").write_text("x" * 100)


def test_a_program_that_is_no_interpreter_has_no_threads_of_ours(person, project):
    """After a run the program has the threads that it had, and no child."""
    assert person.call(_counted, project)


def _counted(project):
    before = len(os.listdir("/proc/self/task"))
    api.run(request(project, "exit 0", mode=":live"))
    assert len(os.listdir("/proc/self/task")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    return clean()


def test_importing_the_api_does_nothing(user):
    """No process, no file, no thread; and little time: the heavy modules come when they are used."""
    program = (
        "import sys, os, threading; from hostfork import api;"
        "print(threading.active_count(), sorted(n for n in ('asyncio', 'click', 'msgspec', 'psutil', 'subprocess')"
        " if n in sys.modules))"
    )
    done = user.run([sys.executable, "-I", "-c", program])
    assert done.stdout == "1 []\n", done.stderr
    assert not os.path.exists(user.state)


def test_output_of_the_command_is_the_programs(person, project):
    """The API prints nothing of its own; the command has the program's descriptors."""
    program = (
        "import sys; from hostfork import api;"
        "api.run(api.Request(('sh', '-c', 'cat; echo err >&2'), rules=api.RuleOptions(private=(sys.argv[1],))))"
    )
    done = person.run([sys.executable, "-c", program, project], input="typed\n")
    assert (done.stdout, done.stderr, done.returncode) == ("typed\n", "err\n", 0)
    assert subprocess.run(["ls", project], capture_output=True, text=True, check=True).stdout == "a\nb\nd\n"
