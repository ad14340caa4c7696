"""From a policy's name and the options of one run to one `Policy`; and the shipped policies, to list and to show.

A name is a shipped one, or a file if it holds a `/` or ends in `.toml`. Options are added to the policy's rules; for
the same path the option wins. Two different rules for one path from one origin contradict each other.
"""

from __future__ import annotations

import os

from hostfork.errors import Code, PolicyError
from hostfork.policy.document import parse
from hostfork.policy.options import (
    check_quiesce,
    option_endpoints,
    option_rules,
    parse_prefer,
    parse_require,
    parse_unreadable,
)
from hostfork.policy.paths import normal
from hostfork.policy.rules import Default, EndpointRule, Environment, Policy, Rule, RuleOptions
from hostfork.values import frozen, replace
from hostfork.vocabulary import Access


@frozen
class Description:
    """A policy as `policy list` and `policy show` print it: its file's text, comments too."""

    name: str
    description: str
    file: str
    text: str


def load(name: str, options: RuleOptions, cwd: str, home: str) -> Policy:
    """The policy of that name with the options added. Nothing of the host is judged yet but what patterns match.

    Relative paths in options, and a relative policy file, start from `cwd`. Raises PolicyError: `policy.not-found`,
    `.syntax`, `.unknown-key`, `.bad-value`, `.bad-path`, `.conflict`, `.nothing-private`.
    """
    policy = _with_private_git(combine(read(name, cwd, home), options, cwd, home))
    demand_rules(policy, policy.rules)
    return policy


def _with_private_git(policy: Policy) -> Policy:
    """The policy with rules for repositories that lie elsewhere than the private work trees that need them.

    Each is as private as the work tree.
    """
    if not policy.private_git:
        return policy
    from hostfork.policy.paths import within
    from hostfork.policy.repository import repository_of

    private = [(os.path.realpath(rule.path), rule) for rule in policy.rules if rule.access is Access.PRIVATE]
    made: dict[str, Rule] = {}
    for path, rule in private:
        found = repository_of(path)
        if found is not None and not any(within(found.common, other) for other, _ in private):
            made[found.common] = replace(
                rule, path=found.common, written=found.common, place="--private-git", line=None
            )
    return replace(policy, rules=policy.rules + tuple(made.values()))


def read(name: str, cwd: str, home: str) -> Policy:
    """The policy as its file says it, without options; it may have no rule at all. Raises PolicyError as `load`."""
    file = _file(name, cwd, home)
    policy = parse(_text(name, file), name if "/" in name else os.path.basename(file), name, home)
    _contradictions(policy.rules)
    return policy


def shipped() -> tuple[str, ...]:
    """The names of the policies that come with hostfork."""
    names = (name[: -len(".toml")] for name in os.listdir(_folder()) if name.endswith(".toml"))
    return tuple(sorted(names))


def describe(name: str, cwd: str = "/", home: str = "/") -> Description:
    """A policy's file as it stands, its syntax and values checked. Raises PolicyError as `load`."""
    file = _file(name, cwd, home)
    return Description(name, read(name, cwd, home).description, file, _text(name, file))


def combine(policy: Policy, options: RuleOptions, cwd: str, home: str) -> Policy:
    """The policy with the options of one run. Raises PolicyError if two options contradict each other."""
    rules = option_rules(options, cwd, home) + options.made
    _contradictions(rules)
    named = {rule.path for rule in rules}
    return replace(
        policy,
        rules=tuple(rule for rule in policy.rules if rule.path not in named) + rules,
        endpoints=_once(policy.endpoints + option_endpoints(options, cwd, home)),
        requires=tuple(
            dict.fromkeys((*policy.requires, *(parse_require(word, "--require") for word in options.require)))
        ),
        environment=Environment(
            policy.environment.clear or options.environment.clear,
            policy.environment.variables + options.environment.variables,
            policy.environment.defaults,
        ),
        share_all=policy.share_all or options.share_all,
        private_git=policy.private_git or options.private_git,
        timeout=policy.timeout if options.timeout is None else options.timeout,
        storage_limit=policy.storage_limit if options.storage_limit is None else options.storage_limit,
        prefer=policy.prefer if options.prefer is None else parse_prefer(options.prefer, "--prefer"),
        unreadable=policy.unreadable
        if options.unreadable is None
        else parse_unreadable(options.unreadable, "--unreadable"),
        quiesce=check_quiesce(options.quiesce, "--unquiesce") if options.quiesce else policy.quiesce,
    )


def demand_rules(policy: Policy, rules: tuple[Rule, ...]) -> None:
    """Refuse a policy in which no rule gives the command anything of its own, unless that is meant (`share_all`)."""
    if policy.share_all or any(rule.access is not Access.SHARED for rule in rules):
        return
    raise PolicyError(
        Code.POLICY_NOTHING_PRIVATE,
        "no path is private, read-only, scratch or hidden: the command would work on the host as without hostfork",
        hint="--private . gives it its own copy of the working directory; --share-all means it",
    )


def dump(policy: Policy) -> str:
    """The policy as TOML that reads back as the same rules and switches: everything resolved, nothing left to expand.

    Bytes that TOML cannot hold are written as base64. Raises PolicyError (`policy.bad-value`) for the one thing that
    cannot be written so: a variable's name.
    """
    import tomli_w

    from hostfork.policy.document import SCHEMA

    table: dict[str, object] = {"schema": SCHEMA, "description": policy.description}
    table["requires"] = [word.value for word in policy.requires]
    table["share-all"] = policy.share_all
    table["host-mounts-appear"] = policy.host_mounts_appear
    table["private-git"] = policy.private_git
    table["endpoints"] = {
        "search": policy.endpoint_search.value,
        "paths": [_dump_endpoint(endpoint) for endpoint in policy.endpoints],
    }
    environment: dict[str, object] = {"clear": policy.environment.clear}
    if policy.environment.variables:
        variables = policy.environment.variables
        environment["set"] = {_dump_name(name): _dump_text(value) for name, value in variables}
    if policy.environment.defaults:
        environment["default"] = [_dump_default(default) for default in policy.environment.defaults]
    table["environment"] = environment
    if policy.timeout is not None:
        table["process"] = {"timeout": policy.timeout}
    if policy.storage_limit is not None:
        table["storage"] = {"limit": _size(policy.storage_limit)}
    if policy.approval or policy.trusted:
        table["apply"] = {"approval": policy.approval, **({"trust": list(policy.trusted)} if policy.trusted else {})}
    table["prefer"] = policy.prefer.value
    table["unreadable"] = policy.unreadable.value
    if policy.quiesce:
        words = {"command": policy.quiesce.command, "undo": policy.quiesce.undo, "freeze": policy.quiesce.cgroup}
        table["quiesce"] = {name: _dump_text(word) for name, word in words.items() if word is not None}
    table["ssh"] = {"config-copies": policy.ssh_config_copies}
    if policy.rules:
        table["rule"] = [_dump_rule(rule) for rule in policy.rules]
    return tomli_w.dumps(table)


def _dump_rule(rule: Rule) -> dict[str, object]:
    table: dict[str, object] = {"path": _dump_pattern(rule.path), "access": rule.access.value}
    if rule.mechanism is not None:
        table["mechanism"] = rule.mechanism.value
    if rule.guarantee is not None:
        table["guarantee"] = rule.guarantee.value
    if rule.lesser:
        first = table.pop("mechanism", None) or table.pop("guarantee")
        table["first-of"] = [first, *(word.value for word in rule.lesser)]
    if rule.otherwise is not None:
        table["otherwise"] = rule.otherwise.value
    if rule.tmpfs_size is not None:
        table["tmpfs-size"] = _size(rule.tmpfs_size)
    if rule.optional:
        table["optional"] = True
    return table


def _size(size: int) -> str:
    from hostfork.policy.options import format_size

    return format_size(size)


def _dump_endpoint(endpoint: EndpointRule) -> object:
    path = _dump_text(endpoint.path)
    return {"path": path, "optional": True} if endpoint.optional else path


def _dump_pattern(path: str) -> object:
    import glob

    text = _dump_text(path)
    return glob.escape(text) if isinstance(text, str) else text


def _dump_default(default: Default) -> dict[str, object]:
    value = {} if default.value is None else {"value": _dump_text(default.value)}
    marks = {"marks": list(default.marks)} if default.marks else {}
    return {"name": default.name, **value, "cache": list(default.caches), **marks}


def _dump_name(name: str) -> str:
    if _dump_text(name) is not name:
        message = f"the variable {os.fsencode(name)!r} cannot be written to a policy file, which is UTF-8"
        raise PolicyError(Code.POLICY_BAD_VALUE, message, place="environment.set")
    return name


def _dump_text(text: str) -> object:
    """Plain where TOML can hold it, else `{ base64 = "…" }`."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        import base64

        return {"base64": base64.b64encode(os.fsencode(text)).decode("ascii")}
    return text


def _file(name: str, cwd: str, home: str) -> str:
    if "/" in name or name.endswith(".toml"):
        return normal(name, base=cwd, home=home, place="--policy")
    return os.path.join(_folder(), name + ".toml")


def _folder() -> str:
    """The shipped policies: inside the package in a wheel, beside `src` in an editable install."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "policies")
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(os.path.dirname(package)), "policies")


def _text(name: str, file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return stream.read().decode("utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            message = f"{name} is not UTF-8 text, which TOML must be"
            raise PolicyError(Code.POLICY_SYNTAX, message, path=file, place="--policy") from error
        message = f"there is no policy {name}"
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            message = f"the policy file {name} cannot be read"
        hint = f"shipped: {', '.join(shipped())}; a file's name holds a `/` or ends in .toml"
        raise PolicyError(
            Code.POLICY_NOT_FOUND, message, path=file, place="--policy", errno=number, hint=hint
        ) from error


def _contradictions(rules: tuple[Rule, ...]) -> None:
    seen: dict[str, Rule] = {}
    for rule in rules:
        other = seen.setdefault(rule.path, rule)
        if not same_effect(rule, other):
            raise conflict(other, rule, rule.path)


def same_effect(one: Rule, other: Rule) -> bool:
    """Whether two rules ask for the same, whatever their paths."""
    return _effect(one) == _effect(other)


def _effect(rule: Rule) -> tuple[object, ...]:
    return rule.access, rule.mechanism, rule.guarantee, rule.lesser, rule.otherwise, rule.tmpfs_size, rule.line


def conflict(first: Rule, second: Rule, path: str) -> PolicyError:
    """The error of two rules that contradict each other about one path."""
    words = (f"{rule.place} says {asked(rule)} for {rule.written}" for rule in (first, second))
    return PolicyError(
        Code.POLICY_CONFLICT,
        f"two rules contradict each other about {path}",
        path=path,
        place=second.place,
        details=tuple(words),
        hint="keep one of them",
    )


def asked(rule: Rule) -> str:
    """A rule in a few words: `private (reflink)`."""
    if rule.tmpfs_size is not None:
        return f"{rule.access.value} (tmpfs)"
    words = [word.value for word in (rule.mechanism, rule.guarantee, *rule.lesser) if word is not None]
    if rule.otherwise is not None:
        words.append(rule.otherwise.value)
    return f"{rule.access.value} ({' or '.join(words)})" if words else rule.access.value


def _once(endpoints: tuple[EndpointRule, ...]) -> tuple[EndpointRule, ...]:
    """One endpoint a path; it must be there if one of its rules says so."""
    found: dict[str, EndpointRule] = {}
    for endpoint in endpoints:
        known = found.get(endpoint.path)
        if known is None or (known.optional and not endpoint.optional):
            found[endpoint.path] = endpoint
    return tuple(found.values())
