"""`hostfork completion SHELL`, and what the shell then asks at every Tab."""

import os
from typing import TYPE_CHECKING

import click

from hostfork.cli.output import Output, ReaderGone
from hostfork.cli.verb import verb

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HOSTFORK_COMPLETE"


@verb(
    "completion",
    "Print the completion script of a shell.",
    'eval "$(hostfork completion bash)"      # in ~/.bashrc',
    "hostfork completion zsh > ~/.zfunc/_hostfork",
    "hostfork completion fish > ~/.config/fish/completions/hostfork.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion_verb(output: Output, shell: str) -> int:
    """Print the script."""
    script = _engine(shell).source()
    if output.json:
        from hostfork.cli.documents import answer

        output.document(answer({"shell": shell, "script": script}))
    else:
        output.bytes(os.fsencode(script))
    return 0


def complete(instruction: str) -> int:
    """Answer a shell: `bash_complete` with the words in its variables."""
    shell, _, what = instruction.partition("_")
    if shell not in SHELLS or what != "complete":
        return 1
    try:
        Output().bytes(os.fsencode(_engine(shell).complete()) + b"\n")
    except ReaderGone:
        return 1
    return 0


def _engine(shell: str) -> "ShellComplete":
    from click.shell_completion import get_completion_class

    from hostfork.cli.group import GROUP

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(GROUP, {}, "hostfork", VARIABLE)
