"""Which lines differ between two texts, in bounded time: exact for what people edit, coarse for huge rewrites."""

from __future__ import annotations

from hostfork.helper.shapes import NamedTuple

_CONTEXT = 3
_MOST_WORK = 4_000_000
"""Pairs of lines that difflib may have to look at; above it a whole region counts as replaced."""


class Block(NamedTuple):
    """Lines `old` to `old_end` of the first text became `new` to `new_end` of the second."""

    old: int
    old_end: int
    new: int
    new_end: int


class Hunk(NamedTuple):
    """Neighbouring blocks with the lines around them, each line with b" ", b"-" or b"+"."""

    old: int
    old_count: int
    new: int
    new_count: int
    lines: list[tuple[bytes, bytes]]


def split_lines(content: bytes) -> list[bytes]:
    """Lines with their newline; only a newline ends one."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def compare_lines(one: list[bytes], two: list[bytes]) -> list[Block]:
    """The blocks that differ, in order."""
    start, most = 0, min(len(one), len(two))
    while start < most and one[start] == two[start]:
        start += 1
    end = 0
    while end < most - start and one[-1 - end] == two[-1 - end]:
        end += 1
    old, new = one[start : len(one) - end], two[start : len(two) - end]
    if not old and not new:
        return []
    if not old or not new or len(old) * len(new) > _MOST_WORK:
        return [Block(start, start + len(old), start, start + len(new))]
    from difflib import SequenceMatcher

    found = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [Block(start + a, start + b, start + c, start + d) for tag, a, b, c, d in found if tag != "equal"]


def hunks(one: list[bytes], two: list[bytes]) -> list[Hunk]:
    """The differences with three lines of context."""
    groups: list[list[Block]] = []
    for block in compare_lines(one, two):
        if groups and block.old - groups[-1][-1].old_end <= 2 * _CONTEXT:
            groups[-1].append(block)
        else:
            groups.append([block])
    return [_hunk(group, one, two) for group in groups]


def _hunk(group: list[Block], one: list[bytes], two: list[bytes]) -> Hunk:
    before = min(_CONTEXT, group[0].old)
    old, new = group[0].old - before, group[0].new - before
    lines = []
    place = old
    for block in group:
        lines += [(b" ", line) for line in one[place : block.old]]
        lines += [(b"-", line) for line in one[block.old : block.old_end]]
        lines += [(b"+", line) for line in two[block.new : block.new_end]]
        place = block.old_end
    end = min(place + _CONTEXT, len(one))
    lines += [(b" ", line) for line in one[place:end]]
    return Hunk(old, end - old, new, group[-1].new_end + (end - place) - new, lines)
