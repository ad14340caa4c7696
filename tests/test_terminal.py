"""Interactive programs in a real terminal, as root and as an ordinary user (CASES 20).

A pty by pexpect, a screen by pyte. Every wait is for something that shows or is so; what never comes is a failure.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest

import rigs
from rigs import Disk, Person, is_alive

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PATIENCE = 60.0
ROWS, COLUMNS = 40, 150
SHELL = ("bash", "--norc", "--noprofile", "-i")
FORK = "hostfork run --private ."
INTERRUPT, STOP, QUIT, END = "\x03", "\x1a", "\x1c", "\x04"


class Display(pyte.Screen):
    """A screen that leaves xterm's private marks alone (pyte takes one of vim's for a colour)."""

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        if not private:
            super().select_graphic_rendition(*attributes)


class Screen:
    """What one person sees of programs in one terminal, and the keys that they type."""

    def __init__(self, person: Person, argv: tuple[str, ...], cwd: str, **variables: str) -> None:
        self._screen = Display(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.process = pexpect.spawn(
            argv[0],
            list(argv[1:]),
            cwd=cwd,
            env=person.environment({"PS1": "outer>", "HISTFILE": "", **variables}),
            preexec_fn=person.enter(),
            dimensions=(ROWS, COLUMNS),
            timeout=PATIENCE,
        )
        self.process.delaybeforesend = None

    def text(self) -> str:
        """The screen as it is, without what is blank."""
        return "\n".join(line.rstrip() for line in self._screen.display).strip()

    def _pump(self, seconds: float = 0.02) -> bool:
        """Take what was written; False at the terminal's end."""
        try:
            self._stream.feed(self.process.read_nonblocking(1 << 16, timeout=seconds))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        return True

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait until something is so, while the programs' output is read."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come; the screen:\n{self.text()}")
            if not self._pump() and not true():
                raise AssertionError(f"the terminal ended before {what}; the screen:\n{self.text()}")

    def see(self, pattern: str) -> None:
        """Wait until a line of the screen matches from its beginning (so that what was typed does not)."""
        wanted = re.compile(pattern, re.MULTILINE)
        self.until(lambda: wanted.search(self.text()) is not None, repr(pattern))

    def type(self, keys: str) -> None:
        """Type keys."""
        self.process.send(keys)

    def enter(self, line: str, pattern: str) -> None:
        """Clear the screen, type a line, wait for the answer."""
        self._screen.reset()
        self.process.send(line + "\r")
        self.see(pattern)

    def enter_until(self, line: str, pattern: str) -> None:
        """Ask again and again, for one that learns of it when it likes."""
        wanted = re.compile(pattern, re.MULTILINE)

        def asked() -> bool:
            self.process.send(line + "\r")
            self._pump(0.3)
            return wanted.search(self.text()) is not None

        self.until(asked, repr(pattern))

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells the foreground group."""
        self._screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def front(self) -> int:
        """The terminal's foreground process group."""
        return os.tcgetpgrp(self.process.fileno())

    def hang_up(self) -> None:
        """Close the terminal under all that runs in it."""
        self.process.ptyproc.fileobj.close()
        self.process.ptyproc.closed = self.process.closed = True

    def end(self) -> int:
        """Wait for the first program's end; its exit status, or -N for a signal."""
        while self._pump(PATIENCE):
            continue
        self.process.wait()
        return -self.process.signalstatus if self.process.signalstatus else int(self.process.exitstatus)

    def close(self) -> None:
        """End what a failed test left."""
        if not self.process.closed:
            self.hang_up()
        if not self.process.terminated:
            os.kill(self.process.pid, signal.SIGKILL)
            os.waitpid(self.process.pid, 0)


Open = Callable[..., Screen]


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
def terminal(leaves_nothing: None, person: Person, project: str) -> Iterator[Open]:
    """`terminal(*argv, **environment)`: a terminal in which that program runs in the project."""
    opened: list[Screen] = []

    def start(*argv: str, **variables: str) -> Screen:
        opened.append(Screen(person, argv, project, **variables))
        return opened[-1]

    yield start
    for screen in opened:
        screen.close()


@pytest.fixture
def shell(terminal: Open) -> Screen:
    """An interactive bash in a terminal, at its prompt."""
    screen = terminal(*SHELL)
    screen.see("^outer>$")
    return screen


def still_right(shell: Screen) -> None:
    """The outer shell has its terminal: it is in front, reads, and its next command reads too."""
    shell.enter("stty sane; echo ready; read -r line; echo got=$line=", "^ready$")
    shell.enter("a word", "^got=a word=$")
    assert shell.front() == shell.process.pid
    shell.type("exit 3\r")
    assert shell.end() == 3


def pid_in(path: str) -> int:
    """The pid that a program wrote, 0 as long as it did not."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return 0
    return int(text) if text.endswith("\n") else 0


def state_of(pid: int) -> str:
    """The state letter of a process, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(pid: int) -> list[int]:
    """The children of a process."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def owner_of(shell: Screen) -> int:
    """The hostfork that the shell started."""
    found = [pid for pid in children(shell.process.pid) if b"hostfork" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(found) == 1, found
    return found[0]


# --- programs that people sit in front of ----------------------------------------------------------------------------


def test_a_shell(shell: Screen) -> None:
    """A prompt, a job of its own with Ctrl-Z and fg, Ctrl-C, its status, and the outer shell reads afterwards."""
    shell.enter(f"{FORK} -- env PS1='inner>' bash --norc -i", "^inner>$")
    assert "job control" not in shell.text()
    shell.enter("echo x >new; tty; ls", "new$")
    shell.enter("cat", "^cat$|inner>cat$")
    shell.enter("hello", "^hello\nhello$")
    shell.type(STOP)
    shell.see(r"Stopped\s+cat")
    shell.enter("fg", "^cat$")
    shell.enter("again", "^again\nagain$")
    shell.type(INTERRUPT)
    shell.see("^inner>$")
    shell.enter("echo status=$?", "^status=130$")
    shell.enter("exit 7", r"(?s)1 created.*outer>$")
    shell.enter("echo status=$?; ls", "^status=7\na  b$")
    still_right(shell)


def test_three_interrupts_in_python(shell: Screen) -> None:
    """The prompt lives through three Ctrl-C, and ends by itself."""
    shell.enter(f"{FORK} -- {sys.executable} -q", "^>>>$")
    for number in range(3):
        shell.enter(f"print({number} + 10)", f"^{number + 10}\n>>>$")
        shell.type(INTERRUPT)
        shell.see("^KeyboardInterrupt\n>>>$")
    shell.enter("import time; print('slee' + 'ping', flush=True); time.sleep(1000)", "^sleeping$")
    shell.type(INTERRUPT)
    shell.see(r"(?s)^KeyboardInterrupt\n>>>$")
    shell.enter("exit(5)", "^outer>$")
    shell.enter("echo status=$?", "^status=5$")
    still_right(shell)


@pytest.mark.rig("vim")
def test_vim(shell: Screen, project: str) -> None:
    """A full screen that follows a resize, and a file that is written in the fork alone."""
    shell.enter(f"{FORK} -- vi -u NONE -N a", "^three$")
    shell.see('^"a"')
    shell.resize(20, 60)
    shell.enter_until(":set lines? columns?", r"(?s)lines=20.*columns=60")
    shell.type("\r")
    shell.type("ggOzero\x1b")
    shell.see("^zero\none\ntwo$")
    shell.type(":wq\r")
    shell.see(r"(?s)1 modified.*^outer>$")
    assert Path(project, "a").read_text() == "one\ntwo\nthree\n"
    still_right(shell)


CURSES = """
import curses
def show(window):
    rows = 0
    while True:
        window.erase()
        window.addstr(0, 0, f"size {curses.LINES} x {curses.COLS}")
        window.refresh()
        key = window.getch()
        if key == curses.KEY_RESIZE:
            curses.update_lines_cols()
            window.clear()  # a resize may cost the terminal what it showed
        elif key == ord("q"):
            return
curses.wrapper(show)
"""


def test_a_curses_program(shell: Screen, project: str) -> None:
    """It sees the size, its change, and keys; the screen is given back."""
    Path(project, "show.py").write_text(CURSES)
    shell.enter(f"{FORK} -- {sys.executable} show.py", f"^size {ROWS} x {COLUMNS}$")
    shell.resize(30, 100)
    shell.see("^size 30 x 100$")
    shell.type("q")
    shell.see("^outer>$")
    still_right(shell)


@pytest.mark.rig("less")
def test_less(shell: Screen, project: str) -> None:
    """A pager that reads its file from a pipe and its keys from the terminal."""
    Path(project, "long").write_text("".join(f"line {number}\n" for number in range(1000)))
    shell.enter(f"cat long | {FORK} -- less", "^line 0$")
    shell.type("G")
    shell.see(r"^line 999\n.*\(END\)")
    shell.type(STOP)
    shell.see(r"Stopped")
    shell.enter("fg", r"^line 999$")
    shell.type("q")
    shell.see("outer>$")
    still_right(shell)


@pytest.mark.rig("git", "vim")
def test_an_interactive_rebase(shell: Screen, project: str, person: Person) -> None:
    """`git rebase -i` opens its editor; the fork's history changes, the host's does not."""
    script = (
        "git init -q; for n in 1 2 3; do echo $n >f; git add f; git commit -q -m commit-$n; done; git log --oneline"
    )
    before = person.run(["sh", "-c", script], cwd=project, check=True).stdout
    shell.enter(f"GIT_EDITOR='vi -u NONE -N' {FORK} -- git rebase -i HEAD~2", "^pick .* commit-2$")
    shell.enter(":2s/pick/fixup/", "^(fixup|f) .* commit-3$")
    shell.type(":wq\r")
    shell.see(r"(?s)Successfully rebased.*^outer>$")
    after = person.run(["git", "log", "--oneline"], cwd=project, check=True).stdout
    assert after == before
    name = person.run(["hostfork", "list", "--json"], check=True).stdout
    assert '"idle"' in name
    still_right(shell)


# --- size ------------------------------------------------------------------------------------------------------------


def test_a_resize_reaches_the_command(shell: Screen) -> None:
    """`stty size` follows, and a handler of SIGWINCH is called once the size changes."""
    script = 'trap "stty size; exit 4" WINCH; stty size; while :; do sleep 0.05; done'
    shell.enter(f"{FORK} -- bash -c '{script}'", f"^{ROWS} {COLUMNS}$")
    shell.resize(33, 99)
    shell.see(r"(?s)^33 99\n.*outer>$")
    shell.enter("echo status=$?", "^status=4$")
    still_right(shell)


# --- keys that send signals ------------------------------------------------------------------------------------------


def test_interrupt_on_a_long_job(shell: Screen) -> None:
    """Ctrl-C ends the command as it would without hostfork: 130, and the shell's own loop sees it."""
    shell.enter(f"{FORK} -- sh -c 'echo on; exec sleep 1000'", "^on$")
    shell.type(INTERRUPT)
    shell.see(r"outer>$")
    shell.enter("echo status=$?", "^status=130$")
    still_right(shell)


def test_interrupt_that_the_command_ignores(shell: Screen) -> None:
    """Ctrl-C and Ctrl-\\ do nothing to it nor to hostfork; the command goes on and ends by its own rules."""
    script = 'trap "" INT QUIT; echo on; read line; echo "line=$line"; exit 6'
    shell.enter(f"{FORK} -- sh -c '{script}'", "^on$")
    shell.type(INTERRUPT)
    shell.type(QUIT)
    shell.type(INTERRUPT)
    shell.enter("words", "^line=words$")
    shell.see("^outer>$")
    shell.enter("echo status=$?", "^status=6$")
    still_right(shell)


# Waits for signals that it blocks: a handler that runs just before a call that sleeps would be told of much later.
COUNTS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGQUIT})
number = 0
print("on", flush=True)
while signal.sigwait({signal.SIGINT, signal.SIGQUIT}) == signal.SIGINT:
    number += 1
    print(f"n={number}", flush=True)
print(f"in all {number}")
"""


def counts_to_three(shell: Screen, person: Person, project: str, prefix: str = "") -> None:
    """Three Ctrl-C are three for a command that handles them, also when hostfork is done with launching it."""
    Path(project, "counts.py").write_text(COUNTS)
    shell.enter(f"{prefix}{FORK} -- {sys.executable} counts.py", "^on$")
    for number in (1, 2, 3):
        shell.type(INTERRUPT)
        shell.see(f"n={number}$")
    shell.until(lambda: '"started"' in journals(person), "the end of the launch")
    shell.type(QUIT)
    shell.see(r"in all 3$")
    shell.see("outer>$")
    still_right(shell)


def test_interrupt_that_the_command_handles_comes_once(shell: Screen, person: Person, project: str) -> None:
    """The terminal sent it to the whole group, so hostfork does not send it again."""
    counts_to_three(shell, person, project)


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["signalfd4", "setsid", "sendmsg"])
def test_interrupt_while_the_keeper_gets_no_processor(shell: Screen, person: Person, project: str, call: str) -> None:
    """A keeper that is still in the terminal's group has it too, and does not send it to a command that has it."""
    counts_to_three(
        shell, person, project, f"strace -f -o /dev/null -e trace={call} -e inject={call}:delay_enter=500000 "
    )


def test_quit(shell: Screen) -> None:
    """Ctrl-\\ ends the command with 131."""
    shell.enter(f"{FORK} -- sh -c 'ulimit -c 0; echo on; exec sleep 1000'", "^on$")
    shell.type(QUIT)
    shell.see("outer>$")
    shell.enter("echo status=$?", "^status=131$")
    still_right(shell)


# --- stop and go on --------------------------------------------------------------------------------------------------


def start(shell: Screen, project: str, script: str, options: str = "", after: str = "", first: str = ":") -> int:
    """Start a script in the foreground of the shell, and in a fork; its pid once it said `on`."""
    shell.enter(f"{FORK} {options} -- sh -c 'echo $$ >../pid; {first}; echo on; {script}' {after}", "^on$")
    return int(Path(project, "../pid").read_text())


def running(shell: Screen, *pids: int) -> None:
    """Wait until they go on and have settled."""
    shell.until(lambda: all(state_of(pid) == "S" for pid in pids), "going on")


def stopped(shell: Screen, *pids: int) -> None:
    """Wait until all of them are stopped."""
    shell.until(lambda: all(state_of(pid) == "T" for pid in pids), "the stop")


def stop(shell: Screen) -> None:
    """Ctrl-Z, and wait for the shell's prompt: before that it may still learn, tell and forget what became of a job."""
    shell.type(STOP)
    shell.see(r"(?s)Stopped\s+hostfork.*^outer>$")


@pytest.mark.parametrize("program", ["sleep 1000", "cat"])
def test_stop_and_foreground(shell: Screen, program: str, project: str) -> None:
    """Ctrl-Z stops hostfork and command as one job, fg continues both, twice; then Ctrl-C ends it."""
    command = start(shell, project, f"exec {program}")
    owner = owner_of(shell)
    for _ in range(2):
        stop(shell)
        assert (state_of(owner), state_of(command)) == ("T", "T")
        assert shell.front() == shell.process.pid
        shell.enter("fg", "^hostfork run")
        running(shell, owner, command)
        assert shell.front() == owner
    if program == "cat":
        shell.enter("hello", "^hello\nhello$")
    shell.type(INTERRUPT)
    shell.see("outer>$")
    shell.enter("echo status=$?", "^status=130$")
    still_right(shell)


def test_a_stopped_job_is_killed(shell: Screen, project: str) -> None:
    """`kill %1` sends SIGTERM and SIGCONT, as for any job: both end."""
    command = start(shell, project, "exec sleep 1000")
    owner = owner_of(shell)
    stop(shell)
    # In one line: at its next prompt the shell would tell, and forget, a job that has ended by then.
    shell.enter("kill %1; wait -f %1; echo status=$?", "status=143$")
    assert [pid for pid in (owner, command) if is_alive(pid)] == []
    still_right(shell)


def sleeps(shell: int) -> bool:
    """Whether it is `sleep`, or its child is.

    dash starts programs by vfork: a Ctrl-Z before the exec stops the child alone, whatever the shell is run by, and the
    shell waits for it where no stop reaches it.
    """
    try:
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return "sleep\n" in [Path(f"/proc/{pid}/comm").read_text() for pid in (shell, *children)]
    except FileNotFoundError:
        return False


LIMIT = "--timeout 4s"  # long enough to stop it before, on a busy machine too


@pytest.mark.parametrize("script", ["exec sleep 1000", "trap '' TERM; while :; do sleep 1000; done"])
def test_the_time_limit_of_a_stopped_job(shell: Screen, project: str, script: str) -> None:
    """It ends a job that Ctrl-Z has stopped, in time and without fg; the shell at its prompt stays in front."""
    Path(project, "job").write_text(f"echo $$ >../pid; echo on; {script}\n")
    shell.enter(f"{FORK} {LIMIT} -- sh job", "^on$")
    command, owner = pid_in(f"{project}/../pid"), owner_of(shell)
    shell.until(lambda: sleeps(command), "sleep")
    stop(shell)
    shell.until(lambda: not is_alive(command) and not is_alive(owner), "the end")
    assert shell.front() == shell.process.pid
    shell.enter("wait %1; echo status=$?", "status=124$")
    still_right(shell)


def test_the_time_limit_of_a_group_that_somebody_stopped(shell: Screen, project: str) -> None:
    """SIGSTOP to hostfork itself: the command ends in time, hostfork when it is continued."""
    command = start(shell, project, "exec sleep 1000", LIMIT)
    owner = owner_of(shell)
    os.kill(-owner, signal.SIGSTOP)
    shell.see(r"(?s)Stopped\s+hostfork.*^outer>$")
    shell.until(lambda: not is_alive(command), "the end of the command")
    assert state_of(owner) == "T"
    shell.enter("fg; echo status=$?", "^status=124$")
    still_right(shell)


def test_a_shell_that_suspends_itself(shell: Screen) -> None:
    """`suspend` in the inner shell stops the whole job; fg brings its prompt back."""
    shell.enter(f"{FORK} -- env PS1='inner>' bash --norc -i", "^inner>$")
    for _ in range(2):
        shell.enter("suspend", r"(?s)Stopped.*^outer>$")
        shell.enter("echo out$((1))", "^out1$")
        shell.enter("fg", "inner>$")
        shell.enter("echo in$((1))", "^in1$")
    shell.enter("exit 4", "^outer>$")
    shell.enter("echo status=$?", "^status=4$")
    still_right(shell)


def test_an_end_in_the_background_leaves_the_shell_its_terminal(shell: Screen, project: str) -> None:
    """Ctrl-Z, bg, the command ends: the shell at its prompt stays in front."""
    os.mkfifo(f"{project}/../go")
    os.chmod(f"{project}/../go", 0o666)
    command = start(shell, project, "read line <../go; exit 5")  # no child: see `sleeps`
    owner = owner_of(shell)
    stop(shell)
    shell.enter("bg", "outer>$")
    running(shell, owner, command)
    Path(project, "../go").write_text("now\n")
    shell.until(lambda: not is_alive(owner), "the end of hostfork")
    assert shell.front() == shell.process.pid
    shell.enter("wait %1; echo status=$?", "status=5$")
    still_right(shell)


def test_a_background_job(shell: Screen, project: str) -> None:
    """One that does not read runs and ends; the shell learns its status."""
    shell.enter(f"{FORK} -- sh -c 'until test -e ../go; do sleep 0.05; done; echo done; exit 4' & sleep 0.1", "outer>$")
    Path(project, "../go").touch()
    shell.see("done$")
    shell.enter("wait %1; echo status=$?", "status=4$")
    still_right(shell)


def test_a_background_job_that_reads(shell: Screen) -> None:
    """It stops as any other would (SIGTTIN), and reads once it is in the foreground."""
    shell.enter(f"{FORK} -- sh -c 'read line; echo line=$line' &", "outer>$")
    owner = owner_of(shell)
    stopped(shell, owner)
    shell.enter("jobs", r"Stopped \(tty input\)\s+hostfork|Stopped\s+hostfork")
    shell.enter("fg", "^hostfork run")
    running(shell, owner)
    shell.enter("words", "^line=words$")
    shell.see("outer>$")
    still_right(shell)


def test_a_background_job_that_is_brought_to_the_front(shell: Screen, project: str) -> None:
    """Started with &, running, then fg: Ctrl-Z and Ctrl-C work on it."""
    shell.enter(f"{FORK} -- sh -c 'echo $$ >../pid; exec sleep 1000' &", "outer>$")
    owner = owner_of(shell)
    shell.until(lambda: pid_in(f"{project}/../pid") != 0, "the command")
    shell.enter("fg", "^hostfork run")
    shell.until(lambda: shell.front() == owner, "the job in front")
    stop(shell)
    assert state_of(pid_in(f"{project}/../pid")) == "T"
    shell.enter("fg", "^hostfork run")
    shell.until(lambda: shell.front() == owner, "the job in front")
    shell.type(INTERRUPT)
    shell.see("outer>$")
    shell.enter("echo status=$?", "status=130$")
    still_right(shell)


def test_stopped_and_continued_by_others(shell: Screen, project: str) -> None:
    """SIGSTOP from another terminal, to the group, to the command, to hostfork: one job each time, and fg goes on."""
    command = start(shell, project, "exec sleep 1000")
    owner = owner_of(shell)
    for target, also in ((-owner, command), (command, command), (owner, owner)):
        os.kill(target, signal.SIGSTOP)
        stopped(shell, owner, also)
        shell.see(r"Stopped.*hostfork")
        shell.enter("fg", "^hostfork run")
        running(shell, owner, command)
    shell.type(INTERRUPT)
    shell.see("outer>$")
    still_right(shell)


def test_the_owner_goes_on_with_its_command(shell: Screen, project: str) -> None:
    """Continued by another program, or ended while it is stopped: hostfork is not left stopped."""
    command = start(shell, project, "exec sleep 1000")
    owner = owner_of(shell)
    os.kill(command, signal.SIGSTOP)
    stopped(shell, owner, command)
    os.kill(command, signal.SIGCONT)
    running(shell, owner, command)
    os.kill(command, signal.SIGSTOP)
    stopped(shell, owner, command)
    shell.enter("echo there", "(?s)^there$.*^outer>$")
    os.kill(command, signal.SIGKILL)
    shell.until(lambda: not is_alive(owner), "the end of hostfork")
    shell.enter("wait %1; echo status=$?", "status=137$")
    still_right(shell)


@pytest.mark.rig("strace")
def test_a_stop_before_the_exec(shell: Screen, person: Person) -> None:
    """Ctrl-Z while the command is being made: it is there, it is stopped, and it can be continued."""
    if person.cgroup is None:
        pytest.skip("rig missing: cgroup")
    slow = "strace -f -o /dev/null -e trace=close_range -e inject=close_range:delay_enter=700000"
    shell.type(f"{slow} {FORK} -- cat\r")
    shell.until(lambda: bool(pids_of_fork(person)), "the command")
    command = pids_of_fork(person)[0]
    shell.type(STOP)
    shell.see("Stopped")
    os.kill(owner_of(shell), signal.SIGCONT)  # strace alone, which the shell takes for the job
    shell.until(lambda: state_of(command) in ("T", "t") and name_of(command) == "cat", "the stop")
    owner = next(pid for pid in children(owner_of(shell)) if os.getpgid(pid) == os.getpgid(command))
    shell.until(lambda: state_of(owner) in ("T", "t"), "the stop of hostfork")
    shell.enter("fg", "^strace")
    os.kill(owner, signal.SIGCONT)  # the shell thinks that the job runs
    running(shell, owner, command)
    shell.type("hello\r")
    shell.see("^hello\nhello$")
    shell.type(END)
    shell.see("^outer>$")
    still_right(shell)


def pids_of_fork(person: Person) -> list[int]:
    """The processes in the group of this person's one fork."""
    assert person.cgroup is not None
    return [
        int(pid) for group in Path(person.cgroup).glob("hostfork-*/cgroup.procs") for pid in group.read_text().split()
    ]


def name_of(pid: int) -> str:
    """The name of a process's program."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["clone,clone3", "setsid"])
def test_an_interrupt_before_the_command_exists(shell: Screen, person: Person, call: str) -> None:
    """Ctrl-C when the keeper is about to fork the command, or has just done so, is the command's."""
    slow = f"strace -f -o /dev/null -e trace={call} -e inject={call}:delay_enter=400000"
    shell.type(f"{slow} {FORK} -- cat\r")
    shell.until(lambda: "launching" in journals(person), "the launch")
    shell.until(lambda: shell.front() != shell.process.pid, "the job in front")
    if call == "setsid" and person.cgroup is not None:
        shell.until(lambda: bool(pids_of_fork(person)), "the command at its gate")
    shell.type(INTERRUPT)
    shell.see("outer>$")
    shell.enter("echo status=$?", "^status=130$")
    assert left_in_state(person) == []
    still_right(shell)


def journals(person: Person) -> str:
    """What this person's forks went through."""
    return "".join(path.read_text() for path in Path(person.state, "forks").glob("*/journal.jsonl"))


# --- closed terminals ------------------------------------------------------------------------------------------------


def only_fork(person: Person, project: str) -> dict[str, Any]:
    """The one fork that there is."""
    forks = json.loads(person.run(["hostfork", "list", "--json"], check=True).stdout)["forks"]
    assert len(forks) == 1, (forks, [path.read_text() for path in Path(project).parent.glob("result")])
    return dict(forks[0])


def changes_are_kept(person: Person, project: str) -> None:
    """The one fork is idle and has the change; it can be thrown away."""
    fork = only_fork(person, project)
    assert fork["activity"] == "idle", fork
    shown = json.loads(person.run(["hostfork", "diff", fork["name"], "--json"], check=True).stdout)
    assert [(entry["path"], entry["change"]) for entry in shown["entries"]] == [(f"{project}/new", "created")]
    person.run(["hostfork", "discard", fork["name"], "--yes"], check=True)


@pytest.mark.parametrize("program", ["sleep 1000", "cat", "bash --norc -i"])
def test_a_closed_terminal(shell: Screen, person: Person, project: str, program: str) -> None:
    """SIGHUP: everything ends, hostfork puts things right without a terminal, the changes are kept."""
    command = start(shell, project, f"exec {program}", "--result ../result", first="echo x >new")
    owner = owner_of(shell)
    shell.hang_up()
    wait_for_end(shell.process.pid, owner, command)
    changes_are_kept(person, project)


def test_a_closed_terminal_with_a_stopped_job(shell: Screen, person: Person, project: str) -> None:
    """The shell ends its stopped jobs with SIGHUP and SIGCONT."""
    command = start(shell, project, "exec cat", first="echo x >new")
    owner = owner_of(shell)
    stop(shell)
    shell.hang_up()
    wait_for_end(shell.process.pid, owner, command)
    changes_are_kept(person, project)


@pytest.mark.parametrize("program", ["sleep 1000", "cat"])
def test_a_closed_terminal_with_no_shell(terminal: Open, person: Person, project: str, program: str) -> None:
    """hostfork as the terminal's first program (`ssh -t`, `tmux new`): the kernel tells only that."""
    script = f"echo $$ >../pid; echo x >new; echo on; exec {program}"
    screen = terminal("hostfork", "run", "--private", ".", "--", "sh", "-c", script)
    screen.see("^on$")
    screen.hang_up()
    wait_for_end(screen.process.pid, pid_in(f"{project}/../pid"))
    changes_are_kept(person, project)


def wait_for_end(*pids: int) -> None:
    """Wait until all have ended; one is our child."""
    deadline = time.monotonic() + PATIENCE
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if is_alive(pid)]
        time.sleep(0.02)


# --- who is in front -------------------------------------------------------------------------------------------------

LEAVES_A_GROUP_IN_FRONT = """
import os, signal, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(os.open("/dev/tty", os.O_RDWR), os.getpid())
    open("../pid", "w").write(f"{os.getpid()}\\n")
    time.sleep(1000)
while not os.path.exists("../pid"):
    time.sleep(0.01)
if sys.argv[1:]:
    time.sleep(1000)
sys.exit(6)
"""


@pytest.mark.parametrize("redirected", ["", "</dev/null >/dev/null 2>&1"])
def test_a_group_left_in_front(terminal: Open, project: str, redirected: str) -> None:
    """A script's next command can read although the last one left another group in front of the terminal."""
    Path(project, "leave.py").write_text(LEAVES_A_GROUP_IN_FRONT)
    script = f"{FORK} -- {sys.executable} leave.py {redirected}; echo status=$?; read -r line; echo got=$line="
    screen = terminal("bash", "--norc", "-c", script)
    screen.see("^status=6$")
    assert screen.front() == screen.process.pid
    screen.enter("words", "^got=words=$")
    assert screen.end() == 0


def test_a_group_left_in_front_of_a_shell(shell: Screen, project: str) -> None:
    """The same in an interactive shell."""
    Path(project, "leave.py").write_text(LEAVES_A_GROUP_IN_FRONT)
    shell.enter(f"{FORK} -- {sys.executable} leave.py", "outer>$")
    shell.enter("echo status=$?", "^status=6$")
    still_right(shell)


def test_the_shell_of_a_killed_fork_is_left(terminal: Open, project: str) -> None:
    """An inner shell, in front with its own group, is killed: the script that started it reads on."""
    inner = f"{FORK} -- sh -c 'echo $$ >../pid; exec env PS1=inner: bash --norc -i'"
    script = f"{inner}; echo status=$?; read -r line; echo got=$line="
    screen = terminal("bash", "--norc", "-c", script)
    screen.see("^inner:$")
    os.kill(pid_in(f"{project}/../pid"), signal.SIGKILL)
    screen.see("status=137$")
    screen.type("words\n")  # a line's end, not Return: the shell could not put the terminal's modes right
    screen.see("got=words=$")
    assert screen.end() == 0


@pytest.mark.rig("strace")
def test_the_terminal_is_taken_back_before_the_changes_are_read(terminal: Open, person: Person, project: str) -> None:
    """A Ctrl-C while hostfork keeps the changes reaches it, whoever was left in front."""
    Path(project, "leave.py").write_text(LEAVES_A_GROUP_IN_FRONT)
    slow = "strace -o /dev/null -e trace=fsync -e inject=fsync:delay_enter=3000000:when=1"  # the keeping, not the run
    program = f"sh -c 'echo x >new; exec {sys.executable} leave.py'"
    screen = terminal("bash", "--norc", "-c", f"trap : INT; {slow} {FORK} -- {program}; echo status=$?")
    screen.until(lambda: pid_in(f"{project}/../pid") != 0, "the other group")
    screen.until(lambda: screen.front() == screen.process.pid, "the terminal's return")
    screen.type(INTERRUPT)
    screen.see("status=130$")
    assert screen.end() == 0
    changes_are_kept(person, project)


# --- before and after the command ------------------------------------------------------------------------------------


def make_many(folder: str) -> None:
    """Enough files that a copy of them takes a while."""
    for number in range(8000):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))


def test_interrupt_while_it_copies(shell: Screen, person: Person, project: str) -> None:
    """Before the command exists Ctrl-C ends with 130, and nothing is left."""
    person.call(make_many, project)
    shell.type(f"{FORK}:copy -- echo never\r")
    forks = f"{person.state}/forks"
    shell.until(lambda: os.path.isdir(forks) and bool(os.listdir(forks)), "the fork")
    shell.type(INTERRUPT)
    shell.see("outer>$")
    shell.enter("echo status=$?", "^status=130$")
    assert left_in_state(person) == []
    still_right(shell)


def test_stop_while_it_copies(shell: Screen, person: Person, project: str) -> None:
    """Before the command exists Ctrl-Z waits for it: then both stop, and fg goes on with both."""
    person.call(make_many, project)
    shell.type(f"{FORK}:copy -- cat\r")
    forks = f"{person.state}/forks"
    shell.until(lambda: os.path.isdir(forks) and bool(os.listdir(forks)), "the fork")
    stop(shell)
    shell.enter("fg", "^hostfork run")
    running(shell, owner_of(shell))
    shell.enter("hello", "^hello\nhello$")
    shell.type(END)
    shell.see("^outer>$")
    still_right(shell)


def left_in_state(person: Person) -> list[str]:
    """Every file in the state folder, and every fork and key."""
    return rigs.left_in_state(person.state)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_interrupts_while_it_collects(shell: Screen, person: Person, project: str, times: int) -> None:
    """After the command Ctrl-C ends hostfork early; however often it comes, the changes are kept."""
    fifo = f"{project}/../fifo"
    os.mkfifo(fifo, 0o666)
    os.chmod(fifo, 0o666)
    lines = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        start(shell, project, "read line", "--status-fd 3", "3<>../fifo", "echo x >new")
        wait_for_line(lines, b'"started"')
        fill(lines)  # so that hostfork waits there once the command has ended
        shell.type("go\r")
        command, owner = pid_in(f"{project}/../pid"), owner_of(shell)
        shell.until(lambda: not is_alive(command) and is_writing(owner), "the end of the command")
        for _ in range(times):
            shell.type(INTERRUPT)
        shell.until(lambda: empty(lines) and shell.text().endswith("outer>"), "the prompt")
        shell.see("its changes are kept as")
        shell.enter("echo status=$?", "^status=130$")
        changes_are_kept(person, project)
        still_right(shell)
    finally:
        os.close(lines)


def is_writing(pid: int) -> bool:
    """Whether a process waits for room in a pipe."""
    try:
        return "pipe_write" in Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False


def wait_for_line(descriptor: int, wanted: bytes) -> None:
    """Read until that was there."""
    content, deadline = b"", time.monotonic() + PATIENCE
    while wanted not in content:
        assert time.monotonic() < deadline, content
        try:
            content += os.read(descriptor, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)


def fill(descriptor: int) -> None:
    """Write to a pipe until it is full, to the last byte."""
    for size in (1 << 12, 1):
        try:
            while True:
                os.write(descriptor, b"\n" * size)
        except BlockingIOError:
            continue


def empty(descriptor: int) -> bool:
    """Read all that is in a pipe."""
    try:
        while True:
            os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return True
