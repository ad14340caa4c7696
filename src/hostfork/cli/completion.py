"""`hostfork completion SHELL`, and what the shell then asks at every Tab.

A script asks `_HOSTFORK_COMPLETE=SHELL hostfork -- WORD… BEGINNING`, with the words behind `hostfork`, and gets lines
of a kind, a value and a description, with tabs between:

    word     a whole word
    part     the same, but something follows it without a blank
    after    what stands behind the last `:` of the word, in place of what is there
    file     the shell is to complete a path
    dir      the shell is to complete a folder
    command  a command line of its own begins at the word of this number, `hostfork` being 0
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import click

from hostfork.cli.manual import Example, Manual
from hostfork.cli.output import Output, ReaderGone
from hostfork.cli.verb import verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHELLS = ("bash", "zsh", "fish")
COMMAND = "command"


@verb(
    "completion",
    "Print the completion script of a shell.",
    Example('eval "$(hostfork completion bash)"', "In bash: a line for `~/.bashrc`."),
    Example("hostfork completion zsh > ~/.zfunc/_hostfork", "In zsh: a file in a folder of `fpath`."),
    Example("hostfork completion fish > ~/.config/fish/completions/hostfork.fish", "In fish: a file that it finds."),
    manual=Manual(
        about=(
            "With the script loaded, Tab completes verbs, options, names of forks and policies, demands, paths, and "
            "after `--private PATH:` mechanisms and promises. What stands behind `run … --` is completed as a command "
            "line of its own. zsh and fish show what each word means.",
            "In zsh the folder must be in `fpath` before `compinit` runs: `fpath+=(~/.zfunc)` in `~/.zshrc`. Or put "
            '`eval "$(hostfork completion zsh)"` there.',
        ),
        files=("~/.bashrc", "~/.zfunc/_hostfork", "~/.config/fish/completions/hostfork.fish"),
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion_verb(output: Output, shell: str) -> int:
    """Print the script."""
    script = script_of(shell)
    if output.json:
        from hostfork.cli.documents import answer

        output.document(answer({"shell": shell, "script": script}))
    else:
        output.bytes(os.fsencode(script))
    return 0


def script_of(shell: str) -> str:
    """The script, from the file beside this one."""
    name = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shells", f"hostfork.{shell}")
    with open(name, encoding="utf-8") as file:
        return file.read()


def complete(shell: str, words: Sequence[str]) -> int:
    """Answer a shell; whatever is wrong, without a word: the line that is being typed is no place for one."""
    if shell not in SHELLS or words[:1] != ["--"] or len(words) < 2:
        return 1
    *before, beginning = (_unquoted(word) for word in words[1:]) if shell == "bash" else words[1:]
    try:
        lines = [_line(item) for item in answers(before, beginning)]
        Output().bytes(os.fsencode("".join(lines)))
    except (ReaderGone, Exception):
        return 1
    return 0


def _unquoted(word: str) -> str:
    """A word as bash has it on its line: quotes and backslashes go, an open quote too."""
    import shlex

    lexer = shlex.shlex(word, posix=True)
    lexer.whitespace = ""
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return "".join(lexer)
    except ValueError:  # an open quote, or a backslash at the end
        return lexer.token


def _line(item: Any) -> str:
    kind = "word" if item.type == "plain" else item.type
    text = "" if item.help is None else " ".join(item.help.split())
    return f"{kind}\t{item.value}\t{text}\n"


def answers(before: Sequence[str], beginning: str) -> Iterable[Any]:
    """What can stand where `beginning` stands, behind the words `before`."""
    from hostfork.cli.group import GROUP, find

    name, rest = find(before)
    if name is None:
        waiting = before[-1:] == ["--color"]
        return _value(GROUP, "--color", beginning) if waiting else _verbs_and_options(beginning)
    command = GROUP.get_command(None, name)
    assert command is not None
    return _of_verb(command, rest, beginning, len(before) - len(rest) + 1)


def _verbs_and_options(beginning: str) -> list[Any]:
    from hostfork.cli.group import GROUP

    context = click.Context(GROUP, info_name="hostfork", resilient_parsing=True, **GROUP.context_settings)
    return GROUP.shell_complete(context, beginning)


def _of_verb(command: click.Command, words: Sequence[str], beginning: str, first: int) -> Iterable[Any]:
    """`first` is the number of the first of `words` on the whole line."""
    from click.shell_completion import CompletionItem

    options = {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}
    seen: list[str] = []
    given: list[str] = []
    index, ended = 0, False
    while index < len(words):
        word = words[index]
        index += 1
        option = options.get(word)
        if ended or word[:1] != "-" or word == "-":
            if not command.allow_interspersed_args:
                return [CompletionItem(str(first + index - 1), type=COMMAND)]
            given.append(word)
        elif word == "--":
            ended = True
        else:
            seen.append(word.partition("=")[0])
            if option is not None and not option.is_flag:
                if index == len(words):
                    return _value(command, word, beginning)
                index += 1
    if not ended and beginning[:1] == "-":
        name, equals, content = beginning.partition("=")
        return _value(command, name, content) if equals else _options(command, seen, beginning)
    if not command.allow_interspersed_args:
        return [CompletionItem(str(first + len(words)), type=COMMAND)]
    return _argument(command, given, beginning)


def _options(command: click.Command, seen: Sequence[str], beginning: str) -> Iterator[Any]:
    """The options that begin so, without those that were given and cannot be repeated."""
    from click.shell_completion import CompletionItem

    context = _context(command)
    for option in command.get_params(context):
        if not isinstance(option, click.Option) or option.hidden:
            continue
        if option.multiple or not set(option.opts) & set(seen):
            names = sorted(option.opts, key=lambda name: name.startswith("--"))
            for name in names if beginning == "-" else reversed(names):
                if name.startswith(beginning):
                    yield CompletionItem(name, help=option.help)


def _context(command: click.Command) -> click.Context:
    """With the verb's own settings: click makes the help option once, by the first context that asks for it."""
    return click.Context(command, resilient_parsing=True, **command.context_settings)


def _value(command: click.Command, name: str, beginning: str) -> list[Any]:
    option = next((option for option in command.params if name in option.opts), None)
    if option is None:
        return []
    return option.shell_complete(_context(command), beginning)


def _argument(command: click.Command, given: Sequence[str], beginning: str) -> list[Any]:
    """What completes the argument that comes next. A verb's argument that takes many is its last."""
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    context = _context(command)
    for index, argument in enumerate(arguments):
        if argument.nargs == -1 or index == len(given):
            context.params = {argument.name or "": tuple(given[index:])}
            return argument.shell_complete(context, beginning)
    return []
