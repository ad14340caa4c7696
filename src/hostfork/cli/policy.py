"""`hostfork policy list | show NAME [--resolved] | check FILE…`."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.look import columns, harmless, pad, plural
from hostfork.cli.manual import LOOK, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import flag, verb
from hostfork.errors import Code, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ACTIONS = ("list", "show", "check")


@verb(
    "policy",
    "Show and check policies: list, show NAME, check FILE.",
    Example("hostfork policy list", "The policies that come with hostfork."),
    Example("hostfork policy show build --resolved", "One of them, with `~`, variables and patterns opened."),
    Example("hostfork policy check ./mine.toml", "Whether a file of yours is good."),
    manual=Manual(
        about=(
            "A policy is a TOML file with rules for paths, endpoints, environment and a time limit, for `--policy` of "
            "`run` and `plan`. `workspace`, the default, shares everything that is not named; `build` makes the home "
            "folder read-only, known caches private and `/tmp` empty.",
            "`list` shows those that come with hostfork, `show` prints one, `check` reads files and names the first "
            "mistake with its file, line and key. A file's name holds a `/` or ends in `.toml`.",
        ),
        statuses=(("1", "`check` found a mistake"),),
        environment=LOOK,
        see=("run", "plan"),
    ),
)
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("name", nargs=-1, metavar="[NAME|FILE]…", shell_complete=candidates.policies)
@flag("--resolved", help="show: `~`, variables and patterns opened")
def policy_verb(output: Output, action: str, name: tuple[str, ...], resolved: bool) -> int:
    """Do one of the three."""
    if resolved and action != "show":
        raise _usage(f"--resolved means nothing to policy {action}", "hostfork policy show NAME --resolved")
    if action == "list":
        if name:
            raise _usage("policy list takes no name", "hostfork policy show NAME")
        return _list(output)
    if not name or (action == "show" and len(name) > 1):
        raise _usage(f"policy {action} takes {'one name' if action == 'show' else 'names'}", "hostfork policy list")
    return _show(output, name[0], resolved) if action == "show" else _check(output, name)


def _usage(message: str, hint: str) -> PolicyError:
    return PolicyError(Code.POLICY_USAGE, message, place="policy", step="options", hint=hint)


def _list(output: Output) -> int:
    policies = [(name, api.policy(name)) for name in api.policies()]
    if output.json:
        from hostfork.cli import documents
        from hostfork.cli.policy_document import policy_document

        output.document(documents.answer({"policies": [policy_document(policy) for _, policy in policies]}))
    else:
        room = max((columns(name) for name, _ in policies), default=0)
        output.lines(f"{pad(harmless(name), room)}  {harmless(policy.description)}" for name, policy in policies)
    return 0


def _show(output: Output, name: str, resolved: bool) -> int:
    policy = api.policy(name)
    if output.json:
        from hostfork.cli import documents
        from hostfork.cli.policy_document import policy_document

        document: dict[str, Any] = {"policy": policy_document(policy)}
        output.document(documents.answer(document))
        return 0
    text = api.policy_text(name, resolved=resolved)
    output.lines(_printable(line) for line in text.rstrip("\n").split("\n"))
    return 0


def _printable(line: str) -> str:
    return "\t".join(harmless(part) for part in line.split("\t"))


def _check(output: Output, names: tuple[str, ...]) -> int:
    """The answer is yes or no; the first no is told as the error that a run would end with."""
    good = []
    for name in names:
        try:
            good.append(api.policy(name))
        except PolicyError as error:
            from hostfork.cli.report import report

            return report(error, output, "policy", status=1)
    if output.json:
        from hostfork.cli import documents
        from hostfork.cli.policy_document import policy_document

        output.document(documents.answer({"policies": [policy_document(policy) for policy in good]}))
    else:
        output.lines(
            f"{harmless(name)}  good, {plural(len(policy.rules), 'rule')}"
            for name, policy in zip(names, good, strict=True)
        )
    return 0
