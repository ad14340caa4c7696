"""A policy as a JSON document: what is asked for, before any host is looked at."""

from __future__ import annotations

from hostfork.cli.documents import exact, text, words
from hostfork.policy.rules import Policy, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.cli.documents import Document


def policy_document(value: Policy) -> Document:
    """A policy: what is asked for, before any host is looked at."""
    return {
        "name": text(value.name),
        "description": text(value.description),
        "rules": [_rule(rule) for rule in value.rules],
        "endpoints": [
            {
                **exact("path", endpoint.path),
                **exact("written", endpoint.written),
                "place": text(endpoint.place),
                "optional": endpoint.optional,
            }
            for endpoint in value.endpoints
        ],
        "endpoint_search": value.endpoint_search.value,
        "requires": [require.value for require in value.requires],
        "prefer": value.prefer.value,
        "unreadable": value.unreadable.value,
        "environment": {
            "clear": value.environment.clear,
            "variables": [[text(name), text(content)] for name, content in value.environment.variables],
            "defaults": [
                {
                    "name": text(default.name),
                    "value": None if default.value is None else text(default.value),
                    "caches": words(default.caches),
                    "marks": words(default.marks),
                }
                for default in value.environment.defaults
            ],
        },
        "share_all": value.share_all,
        "host_mounts_appear": value.host_mounts_appear,
        "private_git": value.private_git,
        "ssh_config_copies": value.ssh_config_copies,
        "timeout": value.timeout,
        "storage_limit": value.storage_limit,
        "approval": value.approval,
        "trusted": words(value.trusted),
    }


def _rule(value: Rule) -> Document:
    return {
        "access": value.access.value,
        **exact("path", value.path),
        **exact("written", value.written),
        "place": text(value.place),
        "mechanism": value.mechanism.value if value.mechanism else None,
        "guarantee": value.guarantee.value if value.guarantee else None,
        "lesser": [word.value for word in value.lesser],
        "otherwise": value.otherwise.value if value.otherwise else None,
        "tmpfs_size": value.tmpfs_size,
        "optional": value.optional,
    }
