"""`hostfork help [VERB|CODE]`: the manual of a verb, or what is behind an error."""

from __future__ import annotations

import textwrap

import click
from click.shell_completion import CompletionItem

from hostfork.cli.group import ALIASES, VERBS, help_lines, no_such_verb
from hostfork.cli.manual import Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.pages import page_of, text_lines
from hostfork.cli.verb import verb
from hostfork.errors import Code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WIDEST = 100


def _subjects(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Verbs; codes once a verb cannot be meant any more."""
    verbs = [CompletionItem(name, help=text) for name, text in VERBS.items() if name.startswith(incomplete)]
    codes = [CompletionItem(code.text, help=code.meaning) for code in Code if code.text.startswith(incomplete)]
    return codes if incomplete and not verbs else verbs


@verb(
    "help",
    "Print the manual of a verb, or explain an error.",
    Example("hostfork help run", "All about `run`."),
    Example("hostfork help run | less", "The same, page by page."),
    Example("hostfork help storage.no-space", "Why this error happens, and what to do."),
    json="one JSON document on stdout, of a code",
    manual=Manual(
        about=(
            "Of a verb: what its `--help` says, and more. Of a code, which stands in the last line of an error: what "
            "it means, why it happens and what to do. Of nothing: the verbs.",
        ),
        see=("doctor",),
    ),
)
@click.argument("subject", required=False, metavar="[VERB|CODE]", shell_complete=_subjects)
def help_verb(output: Output, subject: str | None) -> int:
    """Print help; an unknown word is bad usage that names those that look like it."""
    code = next((code for code in Code if code.text == subject), None)
    if code is not None:
        _explain(output, code)
        return 0
    name = ALIASES.get(subject or "", subject or "")
    if output.json:
        raise click.UsageError("--json: a manual is text; of a code there is a document")
    if subject is None:
        output.lines(help_lines())
        return 0
    if name not in VERBS:
        raise no_such_verb(subject, [*VERBS, *ALIASES, *(code.text for code in Code)])
    output.lines(text_lines(page_of(name), min(output.out.width or 80, _WIDEST)))
    return 0


def _explain(output: Output, code: Code) -> None:
    from hostfork.cli.troubles import TROUBLES

    trouble = TROUBLES[code]
    if output.json:
        from hostfork.cli.documents import answer

        facts = {"code": code.text, "meaning": code.meaning, "why": trouble.why, "remedies": list(trouble.remedies)}
        output.document(answer(facts))
        return
    width = min(output.out.width or 80, _WIDEST)
    lines = [*textwrap.wrap(f"{code.text}: {code.meaning}", width), "", *textwrap.wrap(trouble.why, width), ""]
    for remedy in trouble.remedies:
        lines += textwrap.wrap(remedy, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
    output.lines(lines)
