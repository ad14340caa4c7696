"""The shape of every verb: its help on one screen, its common options, what its function gets and gives.

A verb's function gets an `Output` and its own options, and gives the exit status. Its help is one sentence, the usage,
three examples, and the options in the order of use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from hostfork.cli import candidates
from hostfork.cli.look import wrapped
from hostfork.cli.manual import Example, Manual
from hostfork.cli.options import Option
from hostfork.cli.output import Output
from hostfork.errors import Code, CollectError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

COLOURS = ("auto", "always", "never")


SCREEN = 24
"""Lines of the smallest terminal that is thought of."""


class TableOption(click.Option):
    """An option with what the table says beyond click: `more` for the manual, `rare` as in `Option`."""

    def __init__(self, *words: Any, more: str = "", rare: bool = False, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.more = more
        self.rare = rare


class Verb(click.Command):
    """One verb. `examples` are whole command lines; `manual` is what its man page says beyond its help."""

    examples: tuple[Example, ...]
    manual: Manual

    def context(self) -> click.Context:
        """A context as if it was called without arguments."""
        from hostfork.cli.group import GROUP

        above = click.Context(GROUP, info_name="hostfork")
        return click.Context(self, info_name=self.name, parent=above, **self.context_settings)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        head = f"{self.help}\n\nUsage: {usage(ctx)}\n\nExamples:\n"
        head += "".join(f"  {example.line}\n" for example in self.examples)
        shown = [option for option in self.get_params(ctx) if isinstance(option, click.Option) and not option.hidden]
        fits = head.count("\n") + 2 + len(shown) <= SCREEN
        rare = [] if fits else [option for option in shown if getattr(option, "rare", False)]
        shown = [option for option in shown if option not in rare]
        room = max(len(names_of(option)) for option in shown)
        lines = [f"  {names_of(option):<{room}}  {option.help}\n" for option in shown]
        formatter.write(f"{head}\nOptions:\n{''.join(lines)}{_rare_lines(rare, ctx)}")

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return plain_help(super().get_help_option(ctx))

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function with its output in front."""
        options = dict(ctx.params)
        above = ctx.find_root().params if ctx.parent else {}
        output = Output(
            colour=options.pop("color") or above.get("color") or "auto",
            json=options.pop("json"),
            debug=options.pop("debug") or above.get("debug", False),
        )
        assert self.callback is not None
        return self.callback(output, **options)


def _rare_lines(options: Sequence[click.Option], ctx: click.Context) -> str:
    """Options that are only named, and where they are explained."""
    if not options:
        return ""
    lines = wrapped([names_of(option) for option in options], 2, 78, ", ")
    return f"\nMore options, explained by `hostfork help {ctx.command.name}`:\n" + "".join(f"{x}\n" for x in lines)


def names_of(option: click.Option) -> str:
    """An option as it is written, with the word for its value: `-p, --patch`, `--cwd DIR`."""
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    if option.is_flag:
        return names
    metavar = option.metavar or f"[{'|'.join(getattr(option.type, 'choices', ()))}]"
    return f"{names} {metavar}"


def plain_help(option: click.Option | None) -> click.Option | None:
    """Click's own `--help`, in our words."""
    if option is not None:
        option.help = "show this"
    return option


def usage(ctx: click.Context) -> str:
    """The usage of a verb in one line."""
    return " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)]).replace("...", "…")


def verb(
    name: str,
    sentence: str,
    *examples: Example,
    manual: Manual,
    json: str = "one JSON document on stdout",
    **settings: Any,
) -> Callable[[Callable[..., int]], Verb]:
    """Make a function a verb: `@verb("list", "Show …", Example("hostfork list", "…"), …)`, above its options."""

    def make(function: Callable[..., int]) -> Verb:
        parameters = list(reversed(getattr(function, "__click_params__", ())))
        command = Verb(
            name,
            callback=function,
            params=[*parameters, *_common_options(json)],
            help=sentence,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
            options_metavar="[OPTIONS]",
            **settings,
        )
        command.examples = examples
        command.manual = manual
        return command

    return make


def _common_options(json: str) -> list[click.Parameter]:
    return [
        TableOption(["--json"], is_flag=True, help=json),
        TableOption(["--debug"], is_flag=True, help="show where in hostfork an error comes from", rare=True),
        TableOption(["--color"], type=click.Choice(COLOURS), hidden=True),
    ]


def flag(*names: str, help: str, **settings: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """An option without a value; `more` is for the manual."""
    return click.option(*names, cls=TableOption, is_flag=True, help=help, **settings)


def options(*table: Option) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The options of a table, in its order."""

    def add(function: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(table):
            settings: dict[str, Any] = {"help": option.help, "more": option.more, "rare": option.rare}
            if option.metavar is None:
                settings["is_flag"] = True
            else:
                settings |= {"metavar": option.metavar, "shell_complete": candidates.completer(option)}
            if option.many:
                settings |= {"multiple": True, "default": ()}
            function = click.option(*option.names, cls=TableOption, **settings)(function)
        return function

    return add


def fork_argument(**settings: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A fork's name, completed from those that there are."""
    names = {"metavar": "FORK", "shell_complete": candidates.forks}
    return click.argument("fork", **{**names, **settings})


def seen(command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    """The options that stand in arguments which could not be parsed: `{"json": True, "result": "FILE"}`.

    Only to know where an error about the rest is to go; stops where the verb's own options stop.
    """
    by_name = {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}
    found: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if word == "--" or (word[:1] != "-" and not command.allow_interspersed_args):
            break
        name, equals, content = word.partition("=")
        option = by_name.get(name)
        if option is None:
            continue
        found[option.name or name] = True if option.is_flag else content if equals else next(words, None)
    return found


def absolute(path: str) -> str:
    """A path of the command line, from the working directory, `~` opened; symlinks stay."""
    return os.path.abspath(os.path.expanduser(path))


@contextmanager
def new_file(name: str, step: str) -> Iterator[BinaryIO]:
    """A new file to be written, whole or not there. Raises CollectError `collect.destination`."""
    path = absolute(name)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CollectError(
            Code.COLLECT_DESTINATION, f"{name} cannot be made", path=path, step=step, errno=error.errno,
            hint="name a file that is not there yet",
        ) from error  # fmt: skip
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except BaseException:
        os.unlink(path)
        raise
