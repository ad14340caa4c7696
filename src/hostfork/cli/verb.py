"""The shape of every verb: its help on one screen, its common options, what its function gets and gives.

A verb's function gets an `Output` and its own options, and gives the exit status. Its help is one sentence, the usage,
three examples, and the options in the order of use.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from hostfork.cli.options import Completes, Option
from hostfork.cli.output import Output

COLOURS = ("auto", "always", "never")


class Verb(click.Command):
    """One verb. `examples` are whole command lines."""

    examples: tuple[str, ...] = ()

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"{self.help}\n\nUsage: {usage(ctx)}\n\nExamples:\n")
        for example in self.examples:
            formatter.write(f"  {example}\n")
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        records = [record for option in options if (record := option.get_help_record(ctx))]
        formatter.write("\nOptions:\n")
        room = max(len(names) for names, _ in records)
        for names, meaning in records:
            formatter.write(f"  {names:<{room}}  {meaning}\n")

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


def plain_help(option: click.Option | None) -> click.Option | None:
    """Click's own `--help`, in our words."""
    if option is not None:
        option.help = "show this"
    return option


def usage(ctx: click.Context) -> str:
    """The usage of a verb in one line."""
    return " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)]).replace("...", "…")


def verb(
    name: str, sentence: str, *examples: str, json: str = "one JSON document on stdout", **settings: Any
) -> Callable[[Callable[..., int]], Verb]:
    """Make a function a verb: `@verb("list", "Show …", "hostfork list", …)`, above its options."""

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
        return command

    return make


def _common_options(json: str) -> list[click.Parameter]:
    return [
        click.Option(["--json"], is_flag=True, help=json),
        click.Option(["--debug"], is_flag=True, help="show where in hostfork an error comes from"),
        click.Option(["--color"], type=click.Choice(COLOURS), hidden=True),
    ]


def flag(*names: str, help: str, **settings: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """An option without a value."""
    return click.option(*names, is_flag=True, help=help, **settings)


def value(*names: str, help: str, metavar: str, **settings: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """An option with one value."""
    return click.option(*names, help=help, metavar=metavar, **settings)


def values(*names: str, help: str, metavar: str, **settings: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """An option that may be repeated."""
    return click.option(*names, help=help, metavar=metavar, multiple=True, default=(), **settings)


def options(*table: Option) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The options of a table, in its order."""

    def add(function: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(table):
            settings: dict[str, Any] = {"help": option.help}
            if option.metavar is None:
                settings["is_flag"] = True
            else:
                settings |= {"metavar": option.metavar, "shell_complete": _COMPLETERS[option.completes]}
            if option.many:
                settings |= {"multiple": True, "default": ()}
            function = click.option(*option.names, **settings)(function)
        return function

    return add


def fork_argument(**settings: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A fork's name, completed from those that there are."""
    names = {"metavar": "FORK", "shell_complete": _complete_forks}
    return click.argument("fork", **{**names, **settings})


def _complete_forks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from hostfork import api
    from hostfork.cli.look import command_in_words
    from hostfork.errors import HostforkError

    try:
        forks = api.Fork.all()
    except HostforkError:
        return []  # a shell asks at every Tab: no place for an error
    taken = ctx.params.get(parameter.name or "") or ()
    return [
        CompletionItem(fork.name, help=command_in_words(fork.record.command) if isinstance(fork, api.Fork) else None)
        for fork in forks
        if fork.name.startswith(incomplete) and fork.name not in taken
    ]


def complete_files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Let the shell complete a path."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_folders(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Let the shell complete a folder."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def complete_policies(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The shipped policies, or a file."""
    from click.shell_completion import CompletionItem

    from hostfork import api

    names = [CompletionItem(name) for name in api.policies() if name.startswith(incomplete)]
    return names or complete_files(ctx, parameter, incomplete)


def _complete_requires(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from hostfork.vocabulary import Require

    return [CompletionItem(item.value) for item in Require if item.value.startswith(incomplete)]


_COMPLETERS = {
    Completes.NOTHING: None,
    Completes.FILES: complete_files,
    Completes.FOLDERS: complete_folders,
    Completes.POLICIES: complete_policies,
    Completes.REQUIRES: _complete_requires,
}


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
