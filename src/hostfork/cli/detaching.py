"""`--detach`: a command in the background, by `run` and by `exec`."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.asking import usage
from hostfork.cli.look import harmless
from hostfork.cli.output import Output
from hostfork.lifecycle.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NOT_WITH = {
    "export": "hostfork export NAME DIR, when it has ended",
    "result": "hostfork wait NAME --json",
    "status_fd": "hostfork wait NAME --json",
    "fd": "a file below a shared path",
}


def run_detached(output: Output, request: Request, options: dict[str, Any]) -> int:
    """A run in the background: prints the fork's name."""
    _check(options)
    done = api.run_detached(request)
    return _tell(output, done, done.fork, f"running in the background as {harmless(done.fork)}")


def enter_detached(output: Output, name: str, request: Request, options: dict[str, Any]) -> int:
    """A command of a kept fork in the background: prints its number."""
    _check(options)
    done = api.enter_detached(name, request)
    return _tell(output, done, str(done.number), f"running in the background in {harmless(done.fork)}")


def _check(options: dict[str, Any]) -> None:
    for name, hint in _NOT_WITH.items():
        if options.get(name):
            option = f"--{name.replace('_', '-')}"
            raise usage(f"{option} and --detach contradict each other", option, hint)


def _tell(output: Output, done: api.Detached, printed: str, sentence: str) -> int:
    if output.json:
        from hostfork.cli.documents import answer, exact, text

        output.document(
            answer({
                "fork": text(done.fork), "number": done.number, "pid": done.pid, **exact("log", done.log),
                "survives_logout": done.survives, "why": done.why,
            })
        )  # fmt: skip
        return 0
    output.lines([harmless(printed)])
    name = harmless(done.fork)
    after = "goes on after you log out" if done.survives else "ends when you log out"
    hints = [f"hostfork logs {name} --follow", f"hostfork wait {name}", f"hostfork stop {name}"]
    output.say(f"{sentence}   it {after}: {done.why}", " · ".join(hints))
    return 0
