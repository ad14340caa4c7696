"""What the options of `run` and `plan` mean, as a `Request`."""

from __future__ import annotations

import os

from hostfork.errors import Code, PolicyError
from hostfork.lifecycle.request import Keep, Request
from hostfork.policy.options import parse_duration, parse_size
from hostfork.policy.rules import Environment, Quiesce, RuleOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def request_from(options: dict[str, Any], command: tuple[str, ...]) -> Request:
    """The request that the options say. Raises PolicyError `policy.usage`."""
    base = os.getcwd() if options["cwd"] is not None else None

    def paths(name: str) -> tuple[str, ...]:
        return tuple(_from_caller(word, base) for word in options[name])

    if options["at"] and not options["base"]:
        raise usage("--at says where a baseline's folder is to be, and there is no --base", "--at", "--base NAME")
    return Request(
        command=command,
        policy=options["policy"] or "workspace",
        rules=RuleOptions(
            private=paths("private"),
            read_only=paths("read_only"),
            shared=paths("shared"),
            scratch=paths("scratch"),
            hidden=paths("hidden"),
            endpoint=paths("endpoint"),
            require=options["require"],
            environment=environment(options["clear_env"], options["env_file"], options["env"]),
            share_all=options["share_all"],
            timeout=None if options["timeout"] is None else parse_duration(options["timeout"], "--timeout"),
            storage_limit=_size(options["storage_limit"], "--storage-limit"),
            prefer=options["prefer"],
            unreadable=options["unreadable"],
            private_git=options["private_git"],
            quiesce=Quiesce(options["quiesce"], options["unquiesce"], options["freeze_cgroup"]),
        ),
        name=options.get("name"),
        keep=_keep(options.get("keep", False), options.get("rm", False)),
        export=_from_caller(options["export"], base) if options.get("export") else None,
        cwd=None if options["cwd"] is None else os.path.join(base or "/", os.path.expanduser(options["cwd"])),
        descriptors=tuple(descriptor("--fd", word) for word in options["fd"]),
        pool=_from_caller(options["pool"], base) if options["pool"] else None,
        relocated=options["relocated"],
        base=options["base"],
        at=_from_caller(options["at"], base) if options["at"] else None,
        tags=tags_from(options.get("tag", ())),
        ports=options["port"],
    )


def tags_from(words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """What `--tag K=V` says, in order."""
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise usage(f"--tag {name}: a tag is a name and a value", "--tag", "write it as --tag NAME=VALUE")
    return tuple((name, content) for name, _, content in pairs)


def _size(text: str | None, option: str) -> int | None:
    return None if text is None else parse_size(text, option)


def _from_caller(word: str, base: str | None) -> str:
    """A path as the caller's shell means it, also where the command gets another working directory."""
    if base is None or word.startswith(("/", "~")):
        return word
    return os.path.join(base, word)


def _keep(keep: bool, remove: bool) -> Keep:
    if keep and remove:
        raise usage("--keep and --rm contradict each other", "--rm", "give one of them")
    return Keep.ALWAYS if keep else Keep.NEVER if remove else Keep.CHANGES


def usage(message: str, place: str, hint: str | None = None) -> PolicyError:
    """Bad usage of an option."""
    return PolicyError(Code.POLICY_USAGE, message, place=place, step="options", hint=hint)


def descriptor(option: str, word: str) -> int:
    """A descriptor's number above 2: the first three are the command's anyway."""
    if not (word.isascii() and word.isdecimal()) or int(word) < 3:
        raise usage(f"{option} {word}: not the number of a descriptor above 2", option,
                    "0, 1 and 2 are the command's without it")  # fmt: skip
    return int(word)


def environment(clear: bool, files: tuple[str, ...], words: tuple[str, ...]) -> Environment:
    """The changes to the environment: first the files, then the options, each in order."""
    variables = [pair for path in files for pair in _read_environment(path)]
    for word in words:
        name, equals, content = word.partition("=")
        if not name:
            raise usage(f"--env {word}: a variable has a name", "--env", "write it as --env NAME=VALUE")
        if not equals:
            if name not in os.environ:
                raise usage(f"--env {name}: the variable is not set here", "--env", f"give it a value: --env {name}=…")
            content = os.environ[name]
        variables.append((name, content))
    return Environment(clear, tuple(variables))


def _read_environment(path: str) -> list[tuple[str, str]]:
    """`K=V` lines; empty lines and lines that begin with `#` are passed over, quotes mean nothing."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise PolicyError(
            Code.POLICY_USAGE, f"--env-file {path} cannot be read", path=path, place="--env-file", step="read",
            errno=error.errno,
        ) from error  # fmt: skip
    variables = []
    for number, line in enumerate(lines, 1):
        text = os.fsdecode(line.rstrip(b"\r"))
        if not text.strip() or text.startswith("#"):
            continue
        name, equals, content = text.partition("=")
        if not equals or not name or name != name.strip() or "\0" in text:
            raise usage(f"--env-file {path}: line {number} is not K=V", f"{path}: line {number}",
                        "one NAME=VALUE in a line, without blanks around the name")  # fmt: skip
        variables.append((name, content))
    return variables
