"""Writes man/*.1 and docs/reference.md from what `--help` is made of: `python docs/manpages.py`."""

import os
import re
import textwrap

from hostfork import __version__
from hostfork.cli.manual import RELEASED
from hostfork.cli.pages import Item, Page, Section, pages, see_also

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

REFERENCE = """\
# Reference

<!-- written by docs/manpages.py from the verbs themselves -->

Every verb with all of its options, as `hostfork help VERB` and `man hostfork-VERB` have it. After `pip install` the man
pages lie in `share/man/man1` of the environment. The [guide](guide.md) shows the options at work.

"""


# --- man(7) ----------------------------------------------------------------------------------------------------------


def man(page: Page) -> str:
    """A page in roff, with the man macros."""
    title = escaped(page.name.upper())
    lines = [
        '.\\" written by docs/manpages.py',
        f'.TH {title} 1 {RELEASED} "hostfork {__version__}" "hostfork manual"',
        # no hyphens in names that are copied, no wide gaps
        ".nh",
        ".ad l",
        ".SH NAME",
        *_filled(f"{escaped(page.name)} \\- {prose(_name_line(page.sentence))}"),
        ".SH SYNOPSIS",
        *_filled(_synopsis(page.synopsis)),
    ]
    for section in page.sections:
        lines += _section(section)
    lines.append(".SH EXAMPLES")
    for index, example in enumerate(page.examples):
        lines += [".PP"] if index else []
        lines += [*_filled(prose(example.why)), ".PP", ".RS 4", ".nf", literal(example.line), ".fi", ".RE"]
    lines.append(".SH SEE ALSO")
    names = see_also(page).split(", ")
    for name in names:
        word, _, number = name.rstrip(")").partition("(")
        lines.append(f".BR {escaped(word)} ({number}){',' if name != names[-1] else ''}")
    return "\n".join(lines) + "\n"


def _section(section: Section) -> list[str]:
    lines = [f".SH {section.title}" if " " not in section.title else f'.SH "{section.title}"']
    for index, paragraph in enumerate(section.paragraphs):
        lines += [".PP"] if index else []
        lines += _filled(prose(paragraph))
    for item in section.items:
        lines += [".TP", _term(item), *_filled(prose(item.text))]
    return lines


def _name_line(sentence: str) -> str:
    """A sentence as whatis(1) shows it."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _term(item: Item) -> str:
    """Options bold, the words for their values in italics; other terms bold."""
    if not item.term.startswith("-"):
        return f"\\fB{escaped(item.term)}\\fR"
    names, blank, value = item.term.rpartition(" ") if re.search(r" [^- ]\S*$", item.term) else (item.term, "", "")
    shown = ", ".join(f"\\fB{escaped(name)}\\fR" for name in names.split(", "))
    return shown + (f" \\fI{escaped(value)}\\fR" if blank else "")


def _synopsis(usage: str) -> str:
    words = usage.split(" ")
    count = 2 if words[1][:1].isalpha() and words[1].islower() else 1
    return f"\\fB{escaped(' '.join(words[:count]))}\\fR {escaped(' '.join(words[count:]))}"


def escaped(text: str) -> str:
    """Text that roff prints as it is: `-` is the sign that can be copied to a shell."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("^", "\\(ha").replace("~", "\\(ti")
    return "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in text)


def literal(line: str) -> str:
    """A line of its own, whatever it begins with."""
    return ("\\&" if line[:1] in (".", "'") else "") + escaped(line)


def prose(text: str) -> str:
    """Sentences; words in backquotes are bold."""
    parts = text.split("`")
    return "".join(f"\\fB{escaped(part)}\\fR" if index % 2 else _plain(part) for index, part in enumerate(parts))


def _plain(text: str) -> str:
    """Words: a hyphen is a hyphen, an option is an option."""
    pieces = re.split(r"((?<!\w)--?\w[\w-]*|~/[\w./-]*)", text)
    return "".join(escaped(piece) if index % 2 else _words(piece) for index, piece in enumerate(pieces))


def _words(text: str) -> str:
    text = text.replace("\\", "\\e").replace("~", "\\(ti")
    return "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in text)


def _filled(text: str) -> list[str]:
    """Source lines: a sentence begins a line, none is long, none begins with a control sign."""
    lines: list[str] = []
    for sentence in re.split(r"(?<=[a-z)R][.:?!]) (?=[A-Z\\])", text):
        lines += textwrap.wrap(sentence, 78, break_long_words=False, break_on_hyphens=False)
    return [("\\&" if line[:1] in (".", "'") else "") + line for line in lines]


# --- Markdown --------------------------------------------------------------------------------------------------------


def reference() -> str:
    """docs/reference.md."""
    chapters = [_chapter(page) for page in pages()]
    return REFERENCE + "\n".join(chapters)


def _chapter(page: Page) -> str:
    lines = [f"## {page.name.replace('-', ' ', 1)}", "", page.sentence, "", f"    {page.synopsis}", ""]
    for section in page.sections:
        if section.title in ("ENVIRONMENT", "FILES") and page.name != "hostfork":
            continue
        lines += [] if section.title == "DESCRIPTION" else [f"**{section.title.capitalize()}**", ""]
        for paragraph in section.paragraphs:
            lines += [*textwrap.wrap(paragraph, 120, break_long_words=False, break_on_hyphens=False), ""]
        if section.items:
            lines += ["| | |", "| --- | --- |"]
            lines += [f"| `{_cell(item.term)}` | {_cell(item.text)} |" for item in section.items]
            lines.append("")
    lines += ["**Examples**", ""]
    for example in page.examples:
        lines += [example.why, "", f"    {example.line}", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def written() -> dict[str, str]:
    """Every file that is written, by its path in the project."""
    files = {f"man/{page.name}.1": man(page) for page in pages()}
    return {**files, "docs/reference.md": reference().rstrip("\n") + "\n"}


if __name__ == "__main__":
    os.makedirs(os.path.join(ROOT, "man"), exist_ok=True)
    for path, text in written().items():
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(text)
