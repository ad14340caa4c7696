"""On which terms a kept fork is entered: what its plan said, so that its view can be built again as it was.

    STATE/forks/NAME/terms      JSON, written before the fork is kept

Mechanisms and rules stay what they were; the host is looked at anew each time the view is built, for its mounts,
sockets and inodes may be others by then.
"""

from __future__ import annotations

import os

from hostfork.errors import Code, ForkError
from hostfork.helper.lean import dumps
from hostfork.lifecycle.record import Record
from hostfork.lifecycle.store import ForkFolder, as_fork_error, plain
from hostfork.policy.plan import Plan
from hostfork.policy.rules import EndpointRule, EndpointSearch, Environment, Policy, Rule
from hostfork.storage.choose import Choice
from hostfork.storage.contract import Guarantees, Offer
from hostfork.values import frozen
from hostfork.vocabulary import Access

FILE = "terms"
_SCHEMA = 1


@frozen
class PathTerms:
    """The rule of one path, resolved."""

    access: Access
    path: str
    written: str
    place: str
    tmpfs_size: int | None = None


@frozen
class Terms:
    """What of a plan counts for every view of the fork, and for every command in it."""

    policy: str
    paths: tuple[PathTerms, ...]
    endpoints: tuple[str, ...]
    endpoint_search: EndpointSearch
    environment: Environment
    timeout: float | None
    storage_limit: int | None
    host_mounts_appear: bool
    ssh_config_copies: bool
    user_namespace: bool
    schema: int = _SCHEMA

    @classmethod
    def of(cls, plan: Plan) -> Terms:
        """Those of a plan; what hostfork added by itself is added again."""
        return cls(
            policy=plan.policy,
            paths=tuple(
                PathTerms(path.access, path.path, path.written, path.place, path.tmpfs_size)
                for path in plan.paths
                if not path.automatic
            ),
            endpoints=tuple(end.path for end in plan.endpoints if end.asked),
            endpoint_search=plan.endpoint_search,
            environment=Environment(plan.environment.clear, plan.environment.variables),
            timeout=plan.timeout,
            storage_limit=plan.storage_limit,
            host_mounts_appear=plan.slave,
            ssh_config_copies=plan.ssh_config_copies,
            user_namespace=plan.user_namespace,
        )

    def asked(self) -> Policy:
        """A policy that says the same. An endpoint that is not there now is passed over."""
        return Policy(
            name=self.policy,
            rules=tuple(
                Rule(path.access, path.path, path.written, path.place, tmpfs_size=path.tmpfs_size, from_option=True)
                for path in self.paths
            ),
            endpoints=tuple(EndpointRule(path, path, "--endpoint", optional=True) for path in self.endpoints),
            endpoint_search=self.endpoint_search,
            environment=self.environment,
            share_all=True,
            host_mounts_appear=self.host_mounts_appear,
            ssh_config_copies=self.ssh_config_copies,
            timeout=self.timeout,
            storage_limit=self.storage_limit,
        )

    def save(self, folder: ForkFolder) -> None:
        """Write them down, in one step."""
        with as_fork_error("on which terms the fork is entered cannot be written", folder.path):
            new = folder.file(FILE + ".new")
            with open(new, "wb", opener=_private) as file:
                file.write(dumps(plain(self)).encode("ascii"))
            os.rename(new, folder.file(FILE))

    @classmethod
    def load(cls, folder: ForkFolder) -> Terms:
        """Those of a fork. Raises ForkError `fork.corrupt`, or `fork.lost` where there are none."""
        import json

        import msgspec

        try:
            with open(folder.file(FILE), "rb") as file:
                content = json.load(file)
            if isinstance(content, dict) and content.get("schema") != _SCHEMA:
                raise ValueError(f"schema {content.get('schema')!r}; this version of hostfork reads {_SCHEMA}")
            return msgspec.convert(content, type=cls)
        except FileNotFoundError:
            raise ForkError(
                Code.FORK_LOST, f"{folder.name} cannot be entered: on which terms it was made is not known",
                path=folder.file(FILE), details=("its run was killed before it could write them down",),
                hint=f"hostfork export {folder.name} DEST writes what it holds",
            ) from None  # fmt: skip
        except (OSError, ValueError) as error:
            raise ForkError(
                Code.FORK_CORRUPT, f"on which terms {folder.name} is entered cannot be read",
                path=folder.file(FILE), details=(str(error),),
                hint=f"hostfork export {folder.name} DEST writes what it holds",
            ) from error  # fmt: skip


def choices_of(record: Record) -> dict[str, Choice]:
    """The mechanisms that the fork's storage has."""
    return {
        path.path: Choice(
            Offer(path.storage, Guarantees(path.guarantee, base_content=path.base_content), "as it was made"), ()
        )
        for path in record.paths
        if path.access is Access.PRIVATE and path.guarantee is not None
    }


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
