"""The manual as pages: one of hostfork and one of each verb, made from the verbs themselves; and as plain text.

docs/manpages.py makes man pages and docs/reference.md of the same pages.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import click

from hostfork.cli.group import GROUP, VERBS, all_verbs, help_lines
from hostfork.cli.manual import ENVIRONMENT, FILES, GROUP_EXAMPLES, STATUSES, Example, Manual
from hostfork.cli.report import COMMANDS
from hostfork.cli.verb import Verb, names_of, usage
from hostfork.values import frozen

ALWAYS = ("hostfork",)


@frozen
class Item:
    """A literal term and what is said of it."""

    term: str
    text: str


@frozen
class Section:
    """One section: paragraphs, then items."""

    title: str
    paragraphs: tuple[str, ...] = ()
    items: tuple[Item, ...] = ()


@frozen
class Page:
    """One page; `name` is that of its man page."""

    name: str
    sentence: str
    synopsis: str
    sections: tuple[Section, ...]
    examples: tuple[Example, ...]
    see: tuple[str, ...]


def pages() -> tuple[Page, ...]:
    """Every page."""
    return (page_of(None), *(page_of(name) for name in VERBS))


def page_of(name: str | None) -> Page:
    """The page of a verb, None for hostfork itself."""
    if name is None:
        return _page_of_all()
    command = GROUP.get_command(None, name)
    assert isinstance(command, Verb)
    context = command.context()
    manual = command.manual
    own = () if name in COMMANDS else STATUSES
    return Page(
        f"hostfork-{name}",
        command.help or "",
        usage(context),
        (
            Section("DESCRIPTION", manual.about),
            Section("OPTIONS", items=tuple(_options(command))),
            Section("EXIT STATUS", items=_statuses(manual, own)),
            *_environment(manual),
            *_files(manual),
        ),
        command.examples,
        tuple(f"hostfork-{other}" for other in manual.see),
    )


def _page_of_all() -> Page:
    from hostfork.cli.manual import GROUP as manual

    verbs = tuple(Item(name, _sentence(text)) for name, text in VERBS.items())
    options = tuple(Item(names_of(option), _sentence(option.help or "")) for option in _shown(GROUP, all_verbs()))
    return Page(
        "hostfork",
        help_lines()[0],
        "hostfork [OPTIONS] VERB …",
        (
            Section("DESCRIPTION", manual.about),
            Section("VERBS", items=verbs),
            Section("OPTIONS", items=options),
            Section("EXIT STATUS", items=_statuses(manual, ())),
            *_environment(manual),
            *_files(manual),
        ),
        GROUP_EXAMPLES,
        tuple(f"hostfork-{name}" for name in VERBS),
    )


def _shown(command: click.Command, context: click.Context) -> Iterator[click.Option]:
    for option in command.get_params(context):
        if isinstance(option, click.Option) and not option.hidden:
            yield option


def _options(command: Verb) -> Iterator[Item]:
    for option in _shown(command, command.context()):
        words = [_sentence(option.help or ""), getattr(option, "more", "")]
        if option.multiple:
            words.append("It can be repeated.")
        yield Item(names_of(option), " ".join(filter(None, words)))


def _sentence(text: str) -> str:
    """A line of help as a sentence."""
    if not text:
        return ""
    first = text if text.startswith("hostfork") else text[:1].upper() + text[1:]
    return first if first.endswith((".", "…")) else f"{first}."


def _statuses(manual: Manual, common: tuple[tuple[str, str], ...]) -> tuple[Item, ...]:
    both = sorted((*manual.statuses, *common), key=lambda pair: int(pair[0])) if common else manual.statuses
    return tuple(Item(status, _sentence(meaning)) for status, meaning in both)


def _environment(manual: Manual) -> tuple[Section, ...]:
    items = tuple(Item(name, text) for name, text in ENVIRONMENT.items() if name in manual.environment)
    return (Section("ENVIRONMENT", items=items),) if items else ()


def _files(manual: Manual) -> tuple[Section, ...]:
    items = tuple(Item(name, text) for name, text in FILES.items() if name in manual.files)
    return (Section("FILES", items=items),) if items else ()


def text_lines(page: Page, width: int) -> list[str]:
    """A page for a terminal."""
    lines = [page.sentence, "", f"Usage: {page.synopsis}"]
    for section in page.sections:
        lines += ["", section.title]
        for index, paragraph in enumerate(section.paragraphs):
            lines += [""] if index else []
            lines += _wrapped(paragraph, width, 2)
        for item in section.items:
            lines += _item(item, width)
    lines += ["", "EXAMPLES"]
    for example in page.examples:
        lines += [*_wrapped(example.why, width, 2), f"    {example.line}"]
    return [*lines, "", "SEE ALSO", *_wrapped(see_also(page), width, 2)]


def see_also(page: Page) -> str:
    """The pages that belong to it."""
    return ", ".join(f"{name}(1)" for name in [*(ALWAYS if page.name != "hostfork" else ()), *page.see])


def _item(item: Item, width: int) -> list[str]:
    text = _wrapped(item.text, width, 10)
    if len(item.term) <= 6:
        return [f"  {item.term:<8}{text[0].lstrip()}", *text[1:]]
    return [f"  {item.term}", *text]


def _wrapped(text: str, width: int, indent: int) -> Sequence[str]:
    space = " " * indent
    return textwrap.wrap(text, width, initial_indent=space, subsequent_indent=space, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip
