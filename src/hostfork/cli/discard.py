"""`hostfork discard`: says what will be lost, asks, and throws forks away."""

from __future__ import annotations

import os
import sys

from hostfork import api
from hostfork.cli.look import columns, counts_in_words, harmless, pad, plural, size
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.verb import flag, fork_argument, verb
from hostfork.errors import Code, ForkError, HostforkError, PolicyError
from hostfork.vocabulary import Activity

AnyFork = api.Fork | api.BrokenFork
_LATER = "   its space comes back in the background"


@verb(
    "discard",
    "Throw forks and their changes away.",
    Example("hostfork discard --all --dry-run", "What would be lost."),
    Example("hostfork discard calm-otter", "One fork. A terminal is asked; without one it is refused.", status=2),
    Example("hostfork discard calm-otter odd-heron --yes", "Two forks, without a question."),
    manual=Manual(
        about=(
            "Removes forks with their changes, private storage and records. It says what will be lost and asks; "
            "without a terminal it refuses, unless `--yes` says it beforehand. What runs in "
            "a fork is ended first, as `stop` does. If one of the names is not there, nothing is done.",
        ),
        statuses=(("1", "the answer to the question was no"),),
        environment=LOOK,
        files=STATE,
        see=("list", "export", "recover"),
    ),
)
@fork_argument(nargs=-1, metavar="[FORK]…")
@flag("--all", "every", help="every fork of yours")
@flag("--yes", "-y", help="do not ask")
@flag("--dry-run", help="show what would be lost, and lose nothing")
def discard_verb(output: Output, fork: tuple[str, ...], every: bool, yes: bool, dry_run: bool) -> int:
    """Discard; 1 if the answer was no."""
    if every == bool(fork):
        raise PolicyError(
            Code.POLICY_USAGE, "--all and names contradict each other" if every else "no fork is named",
            place="FORK", step="options", hint="hostfork list shows the forks; --all means all of them",
        )  # fmt: skip
    forks = _chosen(fork, every)
    lines = loss_lines(forks, output)
    if dry_run:
        _tell_dry_run(output, forks, lines)
        return 0
    if not yes and any(_loses(item) for item in forks) and not _confirmed(output, forks, lines):
        return 1
    return _discard(output, forks)


def _chosen(names: tuple[str, ...], every: bool) -> list[AnyFork]:
    """The forks by name, each once, broken ones too. Nothing is done if one of them is not there."""
    if every:
        return list(api.Fork.all())
    found: dict[str, AnyFork] = {}
    for name in names:
        item = _open(name)
        found[item.name] = item
    return list(found.values())


def _open(name: str) -> AnyFork:
    try:
        return api.Fork.open(name)
    except ForkError as error:
        if error.code is not Code.FORK_CORRUPT:
            raise
        broken = [item for item in api.Fork.all() if isinstance(item, api.BrokenFork) and item.name.startswith(name)]
        exact = [item for item in broken if item.name == name] or broken
        if len(exact) != 1:
            raise
        return exact[0]


def _loses(fork: AnyFork) -> bool:
    """Whether changes, or what may be some, go with it."""
    if isinstance(fork, api.BrokenFork):
        return True
    counts = fork.counts()
    return counts is None or counts.total > 0 or _runs(fork)


def _runs(fork: api.Fork) -> bool:
    """Whether commands are in it, which end with it."""
    return fork.activity in (Activity.RUNNING, Activity.FROZEN)


def loss_lines(forks: list[AnyFork], output: Output) -> list[str]:
    """What goes with each fork."""
    room = max((columns(fork.name) for fork in forks), default=0)
    return [f"{pad(harmless(fork.name), room)}  {_loss(fork, output)}" for fork in forks]


def _loss(fork: AnyFork, output: Output) -> str:
    if isinstance(fork, api.BrokenFork):
        return "its record cannot be read: whatever it holds"
    counts, space = fork.counts(), fork.space()
    paths = ", ".join(output.err.path(path.written, 32) for path in fork.record.paths if path.mechanism)
    words = "changes that are not counted yet" if counts is None else counts_in_words(counts)
    runs = f"{fork.activity.value}, " if _runs(fork) else ""
    return f"{paths}{'  ' if paths else ''}{runs}{words}, {size(space.bytes)}"


def _tell_dry_run(output: Output, forks: list[AnyFork], lines: list[str]) -> None:
    if output.json:
        from hostfork.cli.documents import answer, words

        output.document(answer({"would_discard": words(fork.name for fork in forks)}))
    else:
        output.lines(lines)


def _confirmed(output: Output, forks: list[AnyFork], lines: list[str]) -> bool:
    """Ask at the terminal. Raises ForkError `fork.confirm` where there is none."""
    if output.json or not (os.isatty(0) and os.isatty(2)):
        raise ForkError(
            Code.FORK_CONFIRM, f"{plural(len(forks), 'fork')} would be lost, and nobody is there to ask",
            step="confirm", details=tuple(lines), hint="--yes does it without asking",
        )  # fmt: skip
    output.complain([f"{PREFIX}this is lost for good:", *("  " + line for line in lines)])
    output.tell(f"{PREFIX}go on? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _discard(output: Output, forks: list[AnyFork]) -> int:
    """Discard all that can be; the first error is raised at the end, after the others had their turn."""
    done: list[str] = []
    leftovers: list[str] = []
    failed: HostforkError | None = None
    for fork in forks:
        try:
            running = not isinstance(fork, api.BrokenFork) and _runs(fork)
            leftovers.extend(api.discard_running(fork.name) if running else fork.discard())
            done.append(fork.name)
        except HostforkError as error:
            if failed is not None:
                output.complain([f"{PREFIX}{harmless(failed.message)}"])
            failed = error
    api.gc_in_background()
    gone = {one.fork for one in api.reclaiming() if one.problem is None}
    later = [name for name in done if name in gone]
    if output.json and failed is None:
        from hostfork.cli.documents import answer, words

        output.document(answer({"discarded": words(done), "leftovers": words(leftovers), "reclaiming": words(later)}))
    elif not output.json:
        output.lines(f"discarded {harmless(name)}{_LATER if name in gone else ''}" for name in done)
    for sentence in leftovers:
        output.complain([f"{PREFIX}{harmless(sentence)}"])
    if failed is not None:
        raise failed
    return 0
