"""hostfork in the place of the command: in pipelines, scripts and under other wrappers (CASES 8, 18, 19, 35)."""

import ctypes
import itertools
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rigs
from hostfork import api
from rigs import Disk, Person, is_alive, wait_until

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PATIENCE = 60.0
FORK = "hostfork run -q --private ."


@pytest.fixture
def project(person: Person, ext4_disk: Disk) -> str:
    """A small project of the person's."""
    folder = os.path.join(ext4_disk.folder(person), "proj")
    person.call(make_project, folder)
    return folder


def make_project(folder: str) -> None:
    """Two files."""
    os.makedirs(folder)
    Path(folder, "a").write_text("one\ntwo\nthree\n")
    Path(folder, "b").write_text("b\n")


@pytest.fixture
def script(leaves_nothing: None, person: Person, project: str) -> Run:
    """`script(text, **options)`: a bash script in the project."""
    return lambda text, **options: person.run(
        ["bash", "-c", text], **{"cwd": project, "start_new_session": True, **options}
    )


Start = Callable[..., "subprocess.Popen[Any]"]


@pytest.fixture
def begin(leaves_nothing: None, person: Person, project: str) -> Iterator[Start]:
    """`begin(script, prefix=(), options=(), **popen)`: start hostfork with a script; returns once it made `../on`."""
    started: list[subprocess.Popen[Any]] = []

    def start(
        text: str, prefix: tuple[str, ...] = (), options: tuple[str, ...] = (), **more: Any
    ) -> "subprocess.Popen[Any]":
        text = f"echo $$ >../pid.new; mv ../pid.new ../pid; {text}"
        argv = [*prefix, "hostfork", "run", "-q", "--private", ".", *options, "--", "bash", "-c", text]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True} | more
        started.append(person.popen(argv, cwd=project, **more))
        wait_until(lambda: os.path.exists(f"{project}/../on") or started[-1].poll() is not None)
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def pid_of(project: str) -> int:
    """The command's pid."""
    return int(Path(project, "../pid").read_text())


def state_of(pid: int) -> str:
    """The state letter of a process, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def forks(person: Person) -> list[dict[str, Any]]:
    """The forks that there are."""
    document = json.loads(person.run(["hostfork", "list", "--json"], check=True).stdout)
    return list(document["forks"])


def kept(person: Person, project: str, *names: str) -> None:
    """One idle fork, which created these files, and which can be thrown away."""
    found = forks(person)
    assert [fork["activity"] for fork in found] == ["idle"], found
    shown = json.loads(person.run(["hostfork", "diff", found[0]["name"], "--json"], check=True).stdout)
    assert {entry["path"]: entry["change"] for entry in shown["entries"]} == {
        f"{project}/{name}": "created" for name in names
    }
    person.run(["hostfork", "discard", "--all", "--yes"], check=True)


# --- pipelines -------------------------------------------------------------------------------------------------------


def test_a_pipeline_through_it(script: Run, project: str) -> None:
    """Input and output are the command's, byte for byte, also much of it."""
    assert script(f"yes | {FORK} -- head -1").stdout == "y\n"
    done = script(f"head -c 3000000 /dev/zero | {FORK} -- cat | wc -c; echo ${{PIPESTATUS[@]}}")
    assert done.stdout.split() == ["3000000", "0", "0", "0"]
    Path(project, "odd").write_bytes(bytes(range(256)))
    assert script(f"{FORK} -- cat <odd", binary=True).stdout == bytes(range(256))
    assert script(f"{FORK} -- sort <<END\nb\na\nEND").stdout == "a\nb\n"


def test_sigpipe_is_the_commands(script: Run, person: Person) -> None:
    """A reader that goes ends the command by SIGPIPE (141), not hostfork."""
    done = script(f"{FORK} -- yes | head -1; echo ${{PIPESTATUS[@]}}")
    assert done.stdout.split() == ["y", "141", "0"]
    assert done.stderr == ""
    assert forks(person) == []


def test_nobody_reads_what_hostfork_says(script: Run, person: Person, project: str) -> None:
    """The closing line has no reader: the status stays, the changes are kept."""
    done = script("hostfork run --private . -- sh -c 'echo x >new; exit 3' 2> >(exec 0<&-; sleep 0); echo $?")
    assert done.stdout == "3\n"
    kept(person, project, "new")


SHOW_OPEN = """
import os, stat, sys
def is_open(number):
    try:
        return os.fstat(number) is not None
    except OSError:
        return False
os.write(7, repr([number for number in range(100) if is_open(number)]).encode())
os.close(os.open("new", os.O_CREAT | os.O_WRONLY))
sys.exit(5)
"""


@pytest.mark.parametrize("closed", [set(c) for n in range(4) for c in itertools.combinations((0, 1, 2), n)])
def test_closed_descriptors(script: Run, person: Person, project: str, closed: set[int]) -> None:
    """The command finds closed what was closed, and nothing of hostfork's; no file of hostfork's took their place."""
    Path(project, "../show.py").write_text(SHOW_OPEN)
    close = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    command = f"hostfork run -v --fd 7 --private . -- {sys.executable} -ISE ../show.py"
    done = script(f"exec 7>../seen; {command} {close}; echo status=$?")
    assert done.stdout.endswith("status=5\n")
    assert json.loads(Path(project, "../seen").read_text()) == sorted({0, 1, 2, 7} - closed)
    kept(person, project, "new")


# --- callers ---------------------------------------------------------------------------------------------------------

IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_an_ignored_sigchld(hostfork: Run, person: Person, project: str) -> None:
    """The right status, signals included, the changes are kept, and what the command starts has it ignored too."""
    for command, status in (
        (("sh", "-c", "echo x >new; exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("grep", "SigIgn", "/proc/self/status"), 0),
    ):
        argv = [sys.executable, "-c", IGNORING, "hostfork", "run", "--private", ".", "--", *command]
        done = person.run(argv, cwd=project)
        assert done.returncode == status, done.stderr
    assert int(done.stdout.split()[-1], 16) & 1 << (signal.SIGCHLD - 1)
    kept(person, project, "new")


SPAWNS = """
import os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # hostfork gives these their default
    signal.signal(number, signal.SIG_DFL)
if sys.argv[1] == "spawn":
    os._exit(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ), 0)[1]))
for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGRTMAX):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGRTMIN})
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("how", ["spawn", "exec"])
def test_the_command_has_its_callers_signals(person: Person, leaves_nothing: None, project: str, how: str) -> None:
    """Ignored and blocked as without hostfork, bit for bit: with posix_spawn also the C library's own 32 and 33."""
    show = ("sed", "-n", "/^Sig[BI]/p", "/proc/self/status")
    plain, forked = (
        person.run([sys.executable, "-c", SPAWNS, how, *words, *show], cwd=project, check=True).stdout.split()
        for words in (("env",), (*FORK.split(), "--"))
    )
    assert forked == plain
    assert [int(word, 16) >> 31 & 3 for word in plain[1::2]] == [0, 3 if how == "spawn" else 0]


def test_under_timeout(script: Run, person: Person, project: str) -> None:
    """`timeout` ends both with TERM: its status is 124, the changes are kept."""
    done = script(f"timeout 1 {FORK} -- sh -c 'echo x >new; exec sleep 1000'; echo $?")
    assert done.stdout == "124\n"
    kept(person, project, "new")


def test_under_timeout_in_the_foreground(script: Run, person: Person, project: str) -> None:
    """`timeout --foreground` signals hostfork alone: it passes TERM on."""
    done = script(f"timeout --foreground 1 {FORK} -- sh -c 'echo x >new; exec sleep 1000'; echo $?")
    assert done.stdout == "124\n"
    kept(person, project, "new")


def test_under_timeout_with_kill(script: Run, person: Person, project: str) -> None:
    """SIGKILL to the whole group: the keeper ends the tree, `recover` puts the rest right, the changes are there."""
    Path(project, "away").write_text("setsid sh -c 'echo $$ >../pid; exec sleep 1000' & echo x >new; exec sleep 1000")
    done = script(f"timeout -s KILL 1 {FORK} -- sh away; echo $?")
    assert done.stdout == "137\n"
    wait_until(lambda: not is_alive(pid_of(project)))
    person.run(["hostfork", "recover"], check=True)
    kept(person, project, "new")


def test_under_nohup(begin: Start, project: str) -> None:
    """HUP stays ignored in hostfork and in the command, which ends by its own rules."""
    process = begin("touch ../on; read line; echo line=$line; exit 4", prefix=("nohup",), stdin=subprocess.PIPE)
    process.send_signal(signal.SIGHUP)
    os.kill(pid_of(project), signal.SIGHUP)
    assert process.communicate("words\n")[0] == "line=words\n"
    assert process.returncode == 4


def test_in_the_background_of_a_script(script: Run) -> None:
    """A shell without job control starts it with INT and QUIT ignored: so they stay, in the command too."""
    text = f"{FORK} -- sh -c 'kill -INT $$; kill -QUIT $$; kill -INT 0; exit 4' & wait $!; echo $?"
    assert script(f"trap '' INT; {text}").stdout == "4\n"


def test_xargs_in_parallel(script: Run, person: Person, project: str) -> None:
    """Four at a time, each its own fork; input, status and changes do not mix."""
    text = (
        f"seq 8 | xargs -P 4 -I N {FORK} -- sh -c 'cat >/dev/null; echo N >new-N; test ! -e new-$((N%8+1)) && echo N'"
    )
    done = script(text)
    assert sorted(done.stdout.split()) == [str(number) for number in range(1, 9)]
    assert len(forks(person)) == 8
    person.run(["hostfork", "discard", "--all", "--yes"], check=True)
    assert script(f"seq 4 | xargs -P 2 -I N {FORK} -- sh -c 'exit N'; echo $?").stdout == "123\n"


CRON = "env -i PATH=/usr/bin:/bin HOSTFORK_TEST=$HOSTFORK_TEST"


def test_like_cron(script: Run, person: Person, project: str) -> None:
    """No terminal, no HOME, no USER, a short PATH, a session of its own: it runs, and adds nothing but its marks."""
    program = f"{sys.prefix}/bin/hostfork"
    done = script(
        f"{CRON} XDG_STATE_HOME=$XDG_STATE_HOME setsid -w {program} run --private . -- sh -c 'env; echo x >new; exit 6'"
        " </dev/null 2>&1; echo status=$?"
    )
    names = {line.partition("=")[0] for line in done.stdout.splitlines() if "=" in line}
    # Where a tool's cache is there, the setting that the policy has for it.
    settings = {default.name for default in api.policy("workspace").environment.defaults}
    added = {name for name in names - {"PWD", "status"} - settings if not name.startswith("HOSTFORK")}
    assert added == {"PATH", "XDG_STATE_HOME"}
    assert done.stdout.endswith("status=6\n")
    kept(person, project, "new")


@pytest.mark.parametrize("how", ["HOME", "XDG_STATE_HOME", "account"])
def test_no_place_for_the_state(script: Run, person: Person, user: Person, ext4_disk: Disk, how: str) -> None:
    """A state folder that cannot be made is one typed error that names the variable to set; nothing was made."""
    place = "/sys/kernel"
    if how == "account":
        if person.uid == 0:
            return  # root's account has a home
        if os.path.isdir(pwd.getpwuid(person.uid).pw_dir):
            pytest.skip("rig missing: an account without a home")
        where = ""
    else:
        where = f"{how}={place}"
    program = f"{sys.prefix}/bin/hostfork"
    done = script(f"{CRON} {where} {program} run --result ../result --private . -- echo never")
    assert (done.returncode, done.stdout) == (125, "")
    assert "XDG_STATE_HOME" in done.stderr
    assert "Traceback" not in done.stderr


# --- signals ---------------------------------------------------------------------------------------------------------

COUNTS = """
import os, signal, time
def note(number, _frame):
    with open("../got", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if number == signal.SIGUSR2:
        os._exit(9)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
if os.path.exists("../owner"):
    os.kill(int(open("../owner").read()), signal.SIGTERM)
open("../on", "w")
while True:
    time.sleep(0.02)  # not pause(2): one that comes just before it would be told of with the next
"""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)


def got(project: str) -> list[str]:
    """The signals that the command got, in order."""
    path = Path(project, "../got")
    return path.read_text().split() if path.exists() else []


def test_signals_are_passed_on_once(begin: Start, project: str) -> None:
    """Each that somebody sends to hostfork reaches the command once, however often they come."""
    Path(project, "counts.py").write_text(COUNTS)
    process = begin(f"exec {sys.executable} counts.py")
    sent = []
    for number in PASSED_ON * 2:
        process.send_signal(number)
        sent.append(number.name)
        wait_until(lambda: len(got(project)) == len(sent))
    process.send_signal(signal.SIGUSR2)
    assert process.wait() == 9
    assert got(project) == [*sent, "SIGUSR2"]


@pytest.mark.parametrize("delegated", [True, False])
def test_the_forks_own_signals_do_not_come_back(begin: Start, person: Person, project: str, delegated: bool) -> None:
    """A process of the fork signals hostfork: the command does not get that, while others' signals go on."""
    Path(project, "counts.py").write_text(COUNTS)
    wait = "until test -e ../owner; do sleep 0.02; done"
    process = begin(f"touch ../on; {wait}; rm ../on; exec {sys.executable} counts.py", delegated=delegated)
    Path(project, "../owner.new").write_text(str(process.pid))
    os.rename(f"{project}/../owner.new", f"{project}/../owner")
    wait_until(lambda: not os.path.exists(f"{project}/../on"))
    wait_until(lambda: os.path.exists(f"{project}/../on"))
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "SIGUSR1" in got(project))
    process.send_signal(signal.SIGUSR2)
    assert process.wait() == 9
    assert got(project) == ["SIGUSR1", "SIGUSR2"]


def test_a_group_wide_signal_of_the_fork(script: Run) -> None:
    """`kill 0` in a script ends the script's own group, hostfork lives through it."""
    done = script(f"exec setsid -w {FORK} -- sh -c 'trap \"\" TERM; kill -TERM 0; exit 4'")
    assert done.returncode == 4


def test_stopping_hostfork_alone(begin: Start, project: str) -> None:
    """SIGSTOP to hostfork leaves the command running; after SIGCONT hostfork ends as the command did."""
    process = begin("touch ../on; until test -e ../go; do sleep 0.02; done; touch ../done; exit 8")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(process.pid) == "T")
    Path(project, "../go").touch()
    wait_until(lambda: os.path.exists(f"{project}/../done"))
    wait_until(lambda: not is_alive(pid_of(project)))
    assert state_of(process.pid) == "T"
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 8


@pytest.mark.parametrize("delegated", [True, False])
def test_the_time_limit_while_all_is_stopped(begin: Start, project: str, delegated: bool) -> None:
    """The keeper has the clock: a stopped tree that ignores SIGTERM ends in time too, hostfork once it is continued."""
    child = "trap '' TERM; ( setsid sh -c 'echo $$ >../child; kill -STOP $$' & ) ; until test -s ../child; do :; done"
    process = begin(f"{child}; touch ../on; sleep 1000", options=("--timeout", "2s"), delegated=delegated)
    command, child_pid = pid_of(project), int(Path(project, "../child").read_text())
    for pid in (process.pid, command):
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not is_alive(command) and not is_alive(child_pid))
    assert state_of(process.pid) == "T"
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 124


@pytest.mark.parametrize("number", ["STOP", "TSTP"])
@pytest.mark.parametrize("session", [True, False])
def test_a_command_that_stops_and_is_continued(begin: Start, project: str, number: str, session: bool) -> None:
    """By its own child, where no shell does job control: hostfork follows, and does not stay stopped."""
    child = "until test T = \"$(cut -d' ' -f3 /proc/$$/stat)\"; do sleep 0.02; done; kill -CONT $$"
    child = f"trap '' TSTP; {child}" if number == "STOP" else child
    stop = "kill -STOP $$" if number == "STOP" else "kill -TSTP $$; test T = ''"
    if number == "TSTP" and session:
        child, stop = "true", "kill -TSTP $$"  # the kernel stops nobody in an orphaned group
    process = begin(f"touch ../on; ( {child} ) & {stop}; exit 5", start_new_session=session)
    assert process.wait() == 5


def test_terminated_before_the_command(hostfork: Run, person: Person, project: str) -> None:
    """While it copies, any signal that ends a program ends it tidily: 128+N, nothing left."""
    person.call(make_many, project)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        argv = ["hostfork", "run", "--private", ".:copy", "--", "echo", "never"]
        with person.popen(argv, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: os.path.isdir(f"{person.state}/forks") and bool(os.listdir(f"{person.state}/forks")))
            process.send_signal(number)
            out, err = process.communicate()
        assert (process.returncode, out) == (128 + number, ""), err
        assert forks(person) == []
        assert left_in_state(person) == []


@pytest.mark.rig("strace")
def test_an_end_that_is_seen_before_the_exec(script: Run) -> None:
    """A keeper that gets no processor while its command starts and ends tells both, in their order."""
    slow = "strace -f -o /dev/null -e trace=poll -e inject=poll:delay_exit=200000"
    assert script(f"{slow} {FORK} -- sh -c 'exit 3'").returncode == 3


@pytest.mark.rig("strace")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment(script: Run, person: Person, project: str, number: signal.Signals) -> None:
    """At a call's return, from the fork's making to the end: 128+N or done; what was changed is kept, nothing else.

    Which calls there are is seen in one run; then each of some runs gets the signal at another one.
    """
    run = "hostfork run -q --private . -- sh -c 'echo x >new; : >../ran'"
    ran = Path(project, "../ran")
    assert script(f"strace -o ../trace {run}").returncode == 0
    ran.unlink()
    person.run(["hostfork", "discard", "--all", "--yes"], check=True)
    calls = calls_of_fork(Path(project, "../trace").read_text())
    begin, step = (number % 2) * len(calls) // 14, len(calls) // 7
    for name, index in calls[begin::step]:
        done = script(f"exec strace -o /dev/null -e inject={name}:signal={number.name}:when={index} {run}")
        # killed by it, where hostfork has done all and only its exit is left
        assert done.returncode in (0, 128 + number, -number), (name, index, done.stderr)
        assert "Traceback" not in done.stderr
        if ran.exists():
            ran.unlink()
            kept(person, project, "new")
        elif forks(person):
            person.run(["hostfork", "discard", "--all", "--yes"], check=True)
        # What the signal kept from being erased is erased in the background.
        deadline = time.monotonic() + 20
        while (left := left_in_state(person)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == [], (name, index)


def calls_of_fork(trace: str) -> list[tuple[str, int]]:
    """The system calls of a trace from the making of the fork's folder: name, and the how many-th of that name."""
    seen: Counter[str] = Counter()
    found, begun = [], False
    for line in trace.splitlines():
        name = line.partition("(")[0]
        if name.isidentifier():
            seen[name] += 1
            begun = begun or (name == "mkdir" and "/hostfork/forks/" in line)
            if begun and name not in ("exit_group", "rt_sigreturn"):
                found.append((name, seen[name]))
    return found


def left_in_state(person: Person) -> list[str]:
    """Every file in the state folder, and every fork and key."""
    return rigs.left_in_state(person.state)


def make_many(folder: str) -> None:
    """Enough files that a copy of them takes a while."""
    for number in range(8000):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))


# --- what a command leaves running -----------------------------------------------------------------------------------


def test_nothing_lives_on(script: Run, person: Person, project: str) -> None:
    """Daemons and a storm of double forks end with the command; what they wrote is whole and grows no more."""
    storm = "f() { ( ( sleep 0.01; echo x >>storm; f ) & ) ; }; for n in 1 2 3 4; do f; done"
    daemon = "setsid sh -c 'while :; do date >>daemon; done' &"
    Path(project, "run.sh").write_text(
        f"{storm}\n{daemon}\nuntil test -s daemon && test -s storm; do :; done\nexit 0\n"
    )
    assert script(f"{FORK} -- bash run.sh").returncode == 0
    name = forks(person)[0]["name"]
    sizes = [json.loads(person.run(["hostfork", "diff", name, "--json"], check=True).stdout) for _ in range(2)]
    assert sizes[0] == sizes[1]
    person.run(["hostfork", "export", name, f"{project}/../out"], check=True)
    assert Path(project, "../out/daemon").read_text().endswith("\n")
    person.run(["hostfork", "discard", "--all", "--yes"], check=True)


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


def hang(keeper: int) -> None:
    """Let it do nothing although it is not stopped: this process traces it and never lets it go on."""
    library = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        assert library.ptrace(ctypes.c_long(request), ctypes.c_long(keeper), None, None) == 0
    os.waitpid(keeper, os.WUNTRACED)
    assert state_of(keeper) == "t"


@pytest.mark.parametrize("delegated", [True, False])
@pytest.mark.parametrize("how", ["stopped", pytest.param("hung", marks=pytest.mark.rig("root"))])
def test_a_keeper_that_does_nothing(begin: Start, person: Person, project: str, delegated: bool, how: str) -> None:
    """`recover` does not wait for it: it is killed, the tree is ended without it, and the changes are kept."""
    process = begin("echo x >new; touch ../on; exec sleep 1000", delegated=delegated)
    command = pid_of(project)
    keeper = int(Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[1])
    if how == "stopped":
        os.kill(keeper, signal.SIGSTOP)
    else:
        hang(keeper)
    process.kill()
    process.wait()
    assert is_alive(keeper)
    person.run(["hostfork", "recover"], check=True, delegated=delegated)
    wait_until(lambda: not is_alive(command) and not is_alive(keeper))
    if how == "hung":
        os.waitpid(keeper, 0)
    kept(person, project, "new")


def test_arguments_through_other_wrappers(script: Run) -> None:
    """A shell's words, and xargs with any bytes, arrive as they were."""
    show = f"{sys.executable} -c 'import os,sys; print(*map(os.fsencode, sys.argv[1:]), sep=chr(10))'"
    words = "'a b' '*' '' $'new\\nline' $'\\xff\\xfe' '\"' --rm -- \\\\"
    plain = script(f"{show} {words}").stdout
    assert "xff" in plain
    assert script(f"{FORK} -- {show} {words}").stdout == plain
    assert script(f"printf '%s\\0' {words} | xargs -0 {FORK} -- {show}").stdout == plain
    assert script(f'{FORK} -- bash -c "echo a"').stdout == "a\n"
