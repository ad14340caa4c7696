"""Commands in a kept fork in a real terminal: job control, signals and the terminal are those of `run`."""

import os
from pathlib import Path

import pytest

import rigs
from rigs import Person
from test_terminal import (  # the fixtures are found by their names
    INTERRUPT,
    STOP,
    Open,
    Screen,
    owner_of,
    pid_in,
    project,
    running,
    shell,
    state_of,
    still_right,
    terminal,
)

__all__ = ["project", "shell", "terminal"]

SHELL = ("bash", "--norc", "--noprofile", "-i")


@pytest.fixture
def fork(shell: Screen) -> Screen:
    """The shell, with a fork of the project called `k`; thrown away at the end."""
    shell.enter("hostfork create k --private .", "^k\nouter>$")
    return shell


def throw_away(shell: Screen) -> None:
    shell.enter("hostfork discard k --yes", "^discarded k$")


def test_stop_and_foreground(fork: Screen, project: str) -> None:
    """Ctrl-Z stops hostfork and command as one job, fg continues both, twice; then Ctrl-C ends it."""
    fork.enter("hostfork exec k -- sh -c 'echo $$ >../pid; echo on; exec sleep 1000'", "^on$")
    command, owner = pid_in(os.path.join(project, "../pid")), owner_of(fork)
    for _ in range(2):
        fork.type(STOP)
        fork.see(r"(?s)Stopped\s+hostfork.*^outer>$")
        assert (state_of(owner), state_of(command)) == ("T", "T")
        assert fork.front() == fork.process.pid
        fork.enter("fg", "^hostfork exec")
        running(fork, owner, command)
        assert fork.front() == owner
    fork.type(INTERRUPT)
    fork.see("outer>$")
    fork.enter("echo status=$?", "^status=130$")
    throw_away(fork)
    still_right(fork)


def test_a_shell_in_the_fork(fork: Screen) -> None:
    """The caller's shell, with jobs of its own; what it writes is the fork's; its status is the verb's."""
    fork.enter("PS1='inner>' SHELL=/bin/sh hostfork shell k", "^inner>$")
    fork.enter("echo x >new; tty; ls; echo $HOSTFORK_FORK", "new\nk$")
    fork.enter("echo on; cat", "^on$")
    fork.type(INTERRUPT)
    fork.see("^inner>$")
    fork.enter("exit 7", "^outer>$")
    fork.enter("echo status=$?; ls", "^status=7\na  b$")
    throw_away(fork)
    still_right(fork)


def test_a_terminal_that_goes_takes_its_command_alone(person: Person, terminal: Open, project: str) -> None:
    """The first one built the view; a second terminal's command goes on in it."""
    first, second = terminal(*SHELL), terminal(*SHELL)
    for screen in (first, second):
        screen.see("^outer>$")
    first.enter("hostfork create k --private .", "^k\nouter>$")
    first.enter("hostfork exec k -- sh -c 'echo $$ >../one; echo on; exec sleep 1000'", "^on$")
    second.enter("hostfork exec k -- sh -c 'echo $$ >../two; echo on; exec cat'", "^on$")
    one, two = (pid_in(os.path.join(project, "..", name)) for name in ("one", "two"))
    assert Path(f"/proc/{one}/ns/mnt").samefile(f"/proc/{two}/ns/mnt")
    first.hang_up()
    rigs.wait_until(lambda: not rigs.is_alive(one))
    second.enter("hello", "^hello\nhello$")
    second.type(INTERRUPT)
    second.see("outer>$")
    throw_away(second)
    still_right(second)
