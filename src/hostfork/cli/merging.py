"""What a plan says of several paths in the same words, said once with all their names."""

from __future__ import annotations

import re

from hostfork.policy.plan import Plan


def merged_notices(plan: Plan, *, weaker: bool) -> dict[str, list[str]]:
    """The sentences to print, each with those of the plan that it stands for."""
    written = {path.path: path.written for path in plan.paths}
    said: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for notice in plan.notices:
        if notice.kind.weaker == weaker:
            name = written.get(notice.path or "", "")
            parts = _around(rf"(?<![^ ]){re.escape(name)}(?=[ ,:]|$)", notice.sentence) if name else (notice.sentence,)
            said.setdefault(parts, []).append((name, notice.sentence))
    return {joined([name for name, _ in of]).join(parts): [words for _, words in of] for parts, of in said.items()}


def merged_refusals(plan: Plan) -> list[tuple[list[str], str, str]]:
    """What was refused: the resolved paths, the mechanism and the reason, in which `each` stands for several paths."""
    said: dict[tuple[str, ...], list[str]] = {}
    for path in plan.paths:
        for refusal in path.refused:
            parts = _around(rf"(?:^|(?<=: )){re.escape(path.path)}(?= )", refusal.reason)
            said.setdefault((refusal.mechanism.value, *parts), []).append(path.path)
    return [
        (paths, kind, (paths[0] if len(paths) == 1 else "each").join(parts)) for (kind, *parts), paths in said.items()
    ]


def joined(names: list[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _around(pattern: str, sentence: str) -> tuple[str, ...]:
    return tuple(re.split(pattern, sentence))
