"""Which baseline is the nearest to a repository that is to be taken: the index of those that are exactly a commit.

    STATE/prebuilt/KEY.json     the current one of an owner, a repository and a reference; written aside and renamed

An owner is a server and all of a path but the repository's name, as one user reaches it: what one owner's repository
holds is never the beginning of another's. An entry is a hint; whoever uses it looks again whether all of it is true.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b

from hostfork.baseline.git import Wanted, local_path
from hostfork.helper.lean import dumps, loads
from hostfork.values import frozen

SCHEMA = 1
_FOLDER, _ENDING = "prebuilt", ".json"
_DEFAULT_PORTS = {"https": "443", "ssh": "22", "http": "80", "git": "9418"}
_ONE_SERVER = ("https", "ssh", "git+ssh", "ssh+git")
"""Ways to one server that prove who it is: what comes by one of them is what would come by the others."""


@frozen
class Key:
    """A repository at a reference, as it was asked for; "" is the repository's HEAD."""

    owner: str
    repository: str
    reference: str

    @property
    def name(self) -> str:
        """The name of its file."""
        text = "\0".join((str(os.geteuid()), self.owner, self.repository, self.reference))
        return blake2b(os.fsencode(text), digest_size=16).hexdigest()


@frozen
class Prebuilt:
    """A baseline that was exactly that commit when it was made. `partial`: of some folders alone."""

    key: Key
    baseline: str
    commit: str
    partial: bool
    made: float


def key_of(wanted: Wanted) -> Key:
    """The key under which a checkout is found again."""
    owner, _, repository = _server_path(wanted.place).rpartition("/")
    return Key(owner, repository.removesuffix(".git"), wanted.reference)


class Index:
    """Those of one user."""

    def __init__(self, state: str) -> None:
        self._folder = os.path.join(state, _FOLDER)

    def put(self, one: Prebuilt) -> None:
        """Make it the current one of its key. Raises OSError."""
        os.makedirs(self._folder, 0o700, exist_ok=True)
        text = dumps({
            "schema": SCHEMA, "uid": os.geteuid(), "owner": one.key.owner, "repository": one.key.repository,
            "reference": one.key.reference, "baseline": one.baseline, "commit": one.commit,
            "partial": one.partial, "made": one.made,
        })  # fmt: skip
        fresh = os.path.join(self._folder, f".{one.key.name}-{os.getpid()}-{time.monotonic_ns()}")
        with open(fresh, "w", encoding="ascii") as file:
            file.write(text)
        os.rename(fresh, self._path(one.key))

    def drop(self, key: Key) -> None:
        """There is none of that key any more."""
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            return

    def nearest(self, key: Key) -> tuple[Prebuilt, ...]:
        """Those of the same owner and repository, the nearest first: of the same reference, then the latest."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return ()
        found = [one for name in names if name.endswith(_ENDING) and (one := self._read(name)) is not None]
        same = [one for one in found if (one.key.owner, one.key.repository) == (key.owner, key.repository)]
        return tuple(sorted(same, key=lambda one: (one.key.reference != key.reference, -one.made)))

    def _read(self, name: str) -> Prebuilt | None:
        """An entry; one that cannot be read is none, and the next checkout replaces it."""
        try:
            with open(os.path.join(self._folder, name), encoding="ascii") as file:
                found = loads(file.read())
            if (found["schema"], found["uid"]) != (SCHEMA, os.geteuid()):
                return None
            key = Key(found["owner"], found["repository"], found["reference"])
            return Prebuilt(key, found["baseline"], found["commit"], found["partial"], found["made"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, key: Key) -> str:
        return os.path.join(self._folder, key.name + _ENDING)


def _server_path(place: str) -> str:
    """The server and the path there, in one form for all ways to write them."""
    local = local_path(place)
    if local is not None:
        path = os.path.realpath(local)
        return "file:" + (path.removesuffix("/.git") or "/")
    scheme, mark, rest = place.partition("://")
    if not mark:
        scheme, rest = "ssh", "/".join(place.split(":", 1))  # user@server:path
    host, _, path = rest.partition("/")
    user, _, address = host.rpartition("@")
    server, _, port = address.lower().partition(":")
    scheme = scheme.lower()
    default = port in ("", _DEFAULT_PORTS.get(scheme.rpartition("+")[2]))
    way = "" if scheme in _ONE_SERVER and default else f"{scheme}:"
    if "ssh" in scheme and user not in ("", "git"):
        way += f"{user}@"  # whose paths may be below that user's home
    return f"{way}{server}{'' if default else ':' + port}/{path.strip('/')}"
