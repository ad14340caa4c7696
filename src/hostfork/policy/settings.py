"""Settings for tools that would link files from a cache of theirs, where a mount lies between cache and private path.

A hard link across mounts fails (EXDEV), also where both are of one filesystem: some tools then warn, some look for
another place for their cache. The policy says which variables to set for them, and nothing of it is done unsaid.
"""

from __future__ import annotations

from hostfork.policy.host import Setting
from hostfork.policy.layout import Layout
from hostfork.policy.planned import Notice, NoticeKind, Plan
from hostfork.values import replace
from hostfork.vocabulary import Access


def with_settings(plan: Plan, layout: Layout) -> Plan:
    """The plan with the variables of those settings that count in it, and a notice for each cache."""
    by_cache: dict[str, list[Setting]] = {}
    path: dict[str, str] = {}
    for setting in layout.facts.settings:
        apart = _apart(setting, layout)
        if apart:
            by_cache.setdefault(setting.cache, []).append(setting)
            path.setdefault(setting.cache, apart[0])
    if not by_cache:
        return plan
    written = {one.path: one.written for one in plan.paths}
    said = [
        Notice(NoticeKind.SETTING, _sentence(settings, written[path[cache]]), cache)
        for cache, settings in by_cache.items()
    ]
    variables = [(setting.name, setting.value) for settings in by_cache.values() for setting in settings]
    environment = replace(plan.environment, variables=(*variables, *plan.environment.variables))
    return replace(plan, environment=environment, notices=(*plan.notices, *said))


def _apart(setting: Setting, layout: Layout) -> list[str]:
    """The private paths of the setting's that have the tool's cache, as the command will see it, on another mount."""
    cache = layout.over(setting.cache)
    if cache is not None and cache.access not in (Access.PRIVATE, Access.SHARED):
        return []  # nothing can be written there, or it is not the host's
    found = (layout.over(folder) for folder in setting.folders)
    private = [one.path for one in found if one is not None and one.access is Access.PRIVATE]
    together = cache is not None and layout.mounted_over(setting.cache) is None
    return [path for path in private if cache is None or cache.path != path or not together]


def _sentence(settings: list[Setting], path: str) -> str:
    words = " and ".join(f"{setting.name}={setting.value}" for setting in settings)
    are = "is" if len(settings) == 1 else "are"
    return (
        f"{words} {are} set: {path} can have no hard links from {settings[0].written}, another mount; "
        f"--env {settings[0].name}=… says otherwise"
    )
