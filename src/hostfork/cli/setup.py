"""`hostfork setup`: shows what this machine lacks for ordinary users; root installs it and can take it back."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from hostfork.cli.look import harmless
from hostfork.cli.manual import FILES, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import flag, verb
from hostfork.errors import Code, PolicyError
from hostfork.lifecycle import setup
from hostfork.lifecycle.setup import Machine, Measure, Trial


@verb(
    "setup",
    "Install what this host lacks, or show it.",
    Example("hostfork setup --print", "What is missing, what would be installed, and what that grants."),
    Example("sudo hostfork setup", "Install it."),
    Example("sudo hostfork setup --undo", "Take exactly that back."),
    manual=Manual(
        about=(
            "Finds what this machine denies to ordinary users and hostfork needs: user namespaces, forbidden by a "
            "limit of 0 or by AppArmor. As root it installs what is missing, one file each, and tries again as an "
            "ordinary user; as anybody else it shows what root would do. It also shows how a cgroup is had, which it "
            "does not install.",
        ),
        statuses=(("1", "something is missing that was not installed, or it did not help"),),
        files=tuple(name for name in FILES if name.startswith("/etc/")),
        see=("doctor",),
    ),
)
@flag("--print", "show", help="show what would be installed, and what it grants")
@flag("--undo", help="remove exactly what setup installed")
def setup_verb(output: Output, show: bool, undo: bool) -> int:
    """0 where nothing is missing afterwards, else 1."""
    if show and undo:
        raise PolicyError(Code.POLICY_USAGE, "--print and --undo contradict each other", place="--undo",
                          step="options", hint="give one of them")  # fmt: skip
    machine = Machine()
    measures = setup.installed(machine) if undo else setup.missing(machine)
    root = os.geteuid() == 0
    acted = bool(measures) and root and not show
    if acted and undo:
        setup.undo(machine, measures)
    elif acted:
        setup.install(machine, measures)
    trial = setup.try_as_user()
    lacks = bool(measures) and not acted and not undo
    if output.json:
        _document(output, machine, measures, trial, undo=undo, acted=acted)
    else:
        output.lines(setup_lines(measures, trial, undo=undo, acted=acted))
        if not undo:
            output.lines(delegation_lines())
    if show or undo:
        return int(undo and bool(measures) and not acted)
    return int(lacks or trial.available is False)


def setup_lines(measures: tuple[Measure, ...], trial: Trial, *, undo: bool, acted: bool) -> list[str]:
    """What is missing or was done, for people."""
    lines: list[str] = []
    for measure in measures:
        did = "removed" if undo else "installed"
        would = "would be removed" if undo else "missing"
        lines.append(f"{did if acted else would}: {measure.name} {harmless(measure.file)}")
        if undo:
            continue
        lines += [f"  because {measure.why}", f"  it grants: {harmless(measure.grants)}"]
        if not acted:
            lines += [f"    {harmless(line)}" for line in measure.content.splitlines()]
            lines += [f"  then: {harmless(shlex.join(command))}" for command in measure.apply]
    if not measures:
        lines.append("setup has installed nothing here" if undo else "nothing is missing that setup could install")
    lines.append(harmless(trial.sentence))
    if measures and not acted and os.geteuid() != 0:
        lines.append(f"{'to remove it' if undo else 'to install it'}: {root_command()}{' --undo' if undo else ''}")
    return lines


def root_command() -> str:
    """The command that does it as root: sudo may not look where this hostfork is."""
    program = shutil.which("hostfork")
    return f"sudo {shlex.quote(program)} setup" if program else f"sudo {shlex.quote(sys.executable)} -m hostfork setup"


def delegation_lines() -> list[str]:
    """How an ordinary user gets a cgroup, where there is none."""
    commands = setup.delegation()
    if not commands:
        return []
    return ["processes are not owned by a cgroup: no folder is delegated to this user; it can be had with",
            *(f"  {harmless(command)}" for command in commands)]  # fmt: skip


def _document(output: Output, machine: Machine, measures: tuple[Measure, ...], trial: Trial, *,
              undo: bool, acted: bool) -> None:  # fmt: skip
    from hostfork.cli.documents import answer, exact, text, words

    listed = [
        {
            "name": measure.name,
            "why": text(measure.why),
            **exact("file", measure.file),
            "content": text(measure.content),
            "grants": text(measure.grants),
            "commands": [words(command) for command in (measure.undo if undo else measure.apply)],
        }
        for measure in measures
    ]
    output.document(
        answer(
            {
                "undo": undo,
                "done": acted,
                "measures": listed,
                "namespaces": trial.available,
                "trial": text(trial.sentence),
                "cgroup_commands": [] if undo else words(setup.delegation()),
            }
        )
    )
