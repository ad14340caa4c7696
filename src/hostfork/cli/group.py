"""The verbs of `hostfork`, by name; a verb's module is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from hostfork import __version__
from hostfork.cli.manual import GROUP_EXAMPLES
from hostfork.cli.verb import COLOURS, names_of, plain_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERBS = {
    "run": "Run a command with selected independent state.",
    "create": "Make a fork that is there to be entered.",
    "exec": "Run a command in a kept fork.",
    "shell": "Open a shell in a kept fork.",
    "ps": "Show the commands in a fork and their processes.",
    "logs": "Print what a command in the background wrote.",
    "wait": "Wait for a fork's command, and end as it did.",
    "stop": "End what runs in a fork.",
    "suspend": "Hold all processes of a fork still.",
    "resume": "Let a suspended fork go on.",
    "plan": "Show what a run would do; nothing is made.",
    "list": "Show the forks that there are.",
    "show": "Show all that is known about a fork.",
    "diff": "Show what a fork changed, or what differs between two moments.",
    "export": "Write a fork's final content to a folder or tar file.",
    "checkpoint": "Keep what a fork holds now, to go back to.",
    "checkpoints": "Show a fork's checkpoints, or verify them.",
    "restore": "Make a fork what it was at a checkpoint.",
    "branch": "Make a new fork that begins as another one is now.",
    "apply": "Bring a fork's changes to the host, all of them or none.",
    "undo": "Take back what an apply did to the host.",
    "discard": "Throw forks and their changes away.",
    "overlap": "Show what two forks, or a fork and the host, both changed.",
    "log": "Show what happened to a fork, also to one that is gone.",
    "seal": "Let nothing more be written in forks.",
    "unseal": "Open forks again that were sealed or wait for approval.",
    "approve": "Approve a fork's changes, so that they may be applied.",
    "baseline": "Keep trees that forks start from: create, refresh, remove.",
    "usage": "Show what is kept takes, and how long it is kept.",
    "gc": "Let kept forks go that have expired.",
    "pin": "Keep forks until they are discarded: they never expire.",
    "unpin": "Let pinned forks expire as others do.",
    "timer": "Run gc once a day by systemd: install, remove.",
    "recover": "Put right what a crash or kill left behind; changes are kept.",
    "policy": "Show and check policies: list, show NAME, check FILE.",
    "doctor": "Show what this host can do, and how that was found.",
    "setup": "Install what this host lacks, or show it.",
    "completion": "Print the completion script of a shell.",
    "help": "Print the manual of a verb, or explain an error.",
}
ALIASES = {"ls": "list"}


class Verbs(click.Group):
    """The group of all verbs."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return plain_help(super().get_help_option(ctx))

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context | None, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in VERBS:
            return None
        return getattr(import_module(f"hostfork.cli.{name}"), f"{name}_verb")  # type: ignore[no-any-return]

    def resolve_command(
        self, ctx: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb. An unknown one is an error that names those that look like it."""
        name = arguments[0]
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            raise no_such_verb(name, [*VERBS, *ALIASES], ctx)
        return (command.name if command else None), command, arguments[1:]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("".join(f"{line}\n" for line in help_lines()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Verbs with their sentences, without importing any."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(name, help=text) for name, text in VERBS.items() if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]


def no_such_verb(name: str, known: Sequence[str], ctx: click.Context | None = None) -> click.UsageError:
    """The error of an unknown verb: it names those that look like it."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 2)
    more = f": did you mean {' or '.join(near)}?" if near else ""
    return click.UsageError(f"there is no verb {name!r}{more}", ctx)


def all_verbs() -> click.Context:
    """A context of hostfork without a verb."""
    return click.Context(GROUP, info_name="hostfork", **GROUP.context_settings)


def help_lines() -> list[str]:
    """The help of hostfork itself."""
    options = [option for option in GROUP.get_params(all_verbs()) if isinstance(option, click.Option)]
    return [
        "Run commands in your usual environment, with selected state of their own.",
        "",
        "Usage: hostfork [OPTIONS] VERB …",
        "",
        "Examples:",
        *(f"  {example.line}" for example in GROUP_EXAMPLES),
        "",
        "Verbs:",
        *(f"  {name:<11} {sentence}" for name, sentence in VERBS.items()),
        "",
        "Options:",
        *(f"  {names_of(option):<28}  {option.help}" for option in options),
        "",
        "`hostfork VERB --help` is one screen about a verb, `hostfork help VERB` all.",
    ]


def _without_verb(color: str | None, debug: bool) -> int:
    """No verb at all: the help, on stderr, as bad usage."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
    return 2


def _show_version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(f"hostfork {__version__}")
        ctx.exit()


GROUP = Verbs(
    "hostfork",
    params=[
        click.Option(["--color"], type=click.Choice(COLOURS), help="colours; auto: on a terminal without NO_COLOR"),
        click.Option(["--debug"], is_flag=True, help="show where in hostfork an error comes from"),
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
                     help="show the version"),
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    invoke_without_command=True,
    callback=_without_verb,
)  # fmt: skip


def find(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The verb in a command line, by its real name, and what follows it."""
    index = 0
    while index < len(arguments) and arguments[index][:1] == "-":
        index += 2 if arguments[index] == "--color" else 1
    if index >= len(arguments):
        return None, ()
    name = ALIASES.get(arguments[index], arguments[index])
    return (name, arguments[index + 1 :]) if name in VERBS else (None, ())
