"""Names for forks: easy to say, to type and to complete."""

from __future__ import annotations

import os

from hostfork.errors import Code, ForkError

_QUALITIES = (
    "able amber apt bold brave bright brisk calm candid clear clever cool crisp deft eager early even exact fair fine "
    "firm fleet fond free fresh glad grand green happy hardy keen kind late light lively lone loyal lucid lucky mellow "
    "merry mild neat nimble noble odd open plain proud pure quick quiet rapid rare ready red ripe sage sharp shy "
    "silent silver sleek smart snug solid spare stable steady still stout sunny sure swift tame tidy true vast vivid "
    "warm wary wide wild wise witty young zesty"
)
_ANIMALS = (
    "ant auk badger bat bear bee beetle bison boar carp cat clam cod crab crane crow deer dove duck eagle eel elk emu "
    "falcon finch fox frog gecko gnu goat goose grouse gull hare hawk hen heron horse ibex ibis jay kite koala lark "
    "lemur lion lynx magpie mole moose moth mouse mule newt otter owl ox panda perch pig pike plover pony puffin quail "
    "rabbit ram raven ray robin rook seal shrew shrike skink snail snipe sole stag stoat stork swan swift tapir teal "
    "tern toad trout tuna vole wasp whale wolf wombat wren yak zebra"
)
_RESERVED = ("new-", "rm-")
"""What storage and the list of forks call things that are being made or removed."""
_LONGEST = 64


def fresh_name() -> str:
    """A random name; not necessarily free."""
    qualities, animals = _QUALITIES.split(), _ANIMALS.split()
    first, second = os.urandom(2)
    return f"{qualities[first % len(qualities)]}-{animals[second % len(animals)]}"


def check_name(name: str) -> str:
    """The name, if a fork can have it. Raises ForkError `fork.bad-name`."""
    letters = name.isascii() and name[:1].isalnum() and all(letter.isalnum() or letter in "._-" for letter in name)
    if not letters or len(name) > _LONGEST or name.startswith(_RESERVED):
        raise ForkError(
            Code.FORK_BAD_NAME,
            f"{name!r} cannot be a fork's name",
            place="--name",
            hint="letters, digits, `.`, `_` and `-`, at most 64, the first a letter or digit; not `new-…` or `rm-…`",
        )
    return name
