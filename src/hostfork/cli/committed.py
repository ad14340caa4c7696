"""`hostfork apply --as-commit`: what was committed, and what to do with it."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.asking import tags_from
from hostfork.cli.look import harmless
from hostfork.cli.output import Output
from hostfork.errors import Code, PolicyError


def write_commit(
    output: Output, fork: api.Fork, message: str | None, branch: str | None, paths: tuple[str, ...],
    tag: tuple[str, ...], others: list[str],
) -> int:  # fmt: skip
    """Make the commit and say so; `others` are options that mean nothing here."""
    if message is None or not message.strip() or others:
        what = f"--as-commit and {others[0]} contradict each other" if message and others else (
            "--branch needs --as-commit MESSAGE" if message is None else "the message of --as-commit is empty"
        )  # fmt: skip
        raise PolicyError(
            Code.POLICY_USAGE, what, place="--as-commit", step="options",
            hint=f"hostfork apply {fork.name} --as-commit MESSAGE",
        )  # fmt: skip
    done = api.commit(fork.name, message, branch, paths, tags_from(tag))
    if output.json:
        from hostfork.cli.documents import answer, exact, text

        output.document(answer({
            "fork": done.fork, **exact("repository", done.repository), "branch": text(done.branch),
            "base": done.base, "commit": done.commit, "receipt": done.receipt,
        }))  # fmt: skip
    elif done.commit is None:
        output.lines([f"{harmless(done.fork)} holds what its commit {(done.base or '')[:12]} holds; none was made"])
    else:
        where = output.out.path(done.repository)
        output.lines([
            f"{done.commit[:12]} on the new branch {harmless(done.branch)} of {where}; nothing else was touched",
            f"git -C {where} log -p {harmless(done.branch)} -1",
        ])  # fmt: skip
    return 0
