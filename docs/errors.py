"""Writes docs/errors.md to stdout from the table of codes: `python docs/errors.py > docs/errors.md`."""

from hostfork.cli.report import exit_status
from hostfork.errors import Code, HostforkError

HELPS = {
    Code.POLICY_USAGE: "`hostfork VERB --help`",
    Code.POLICY_NOT_FOUND: "`hostfork policy list`; a file's name holds a `/` or ends in `.toml`",
    Code.POLICY_SYNTAX: "the place that is named has file and line",
    Code.POLICY_UNKNOWN_KEY: "the message lists the known keys; [all of them](guide.md#policies)",
    Code.POLICY_BAD_VALUE: "the hint says which values there are",
    Code.POLICY_BAD_PATH: "create the path first, or correct it; `optional = true` in a policy file",
    Code.POLICY_CONFLICT: "keep one of the two rules that are named",
    Code.POLICY_NOTHING_PRIVATE: "`--private .`, or `--share-all` if that is meant",
    Code.POLICY_REQUIRE: "the hint names a mechanism that keeps it, or leave the `--require` out",
    Code.HOST_NAMESPACES: "`hostfork setup --print`; `--relocated` needs none",
    Code.HOST_MISSING: "`hostfork doctor`; of `setup`: the message names what is missing",
    Code.STORAGE_UNSUPPORTED: "`:copy` works on every filesystem, `:live` copies nothing",
    Code.STORAGE_SOURCE: "make it readable, or leave it out: `--hidden PATH`, `--shared PATH`",
    Code.STORAGE_UNSTABLE: "stop what writes there, or leave it out: `--shared PATH`",
    Code.STORAGE_NO_SPACE: "free space, another `--pool DIR`, or `:live`",
    Code.STORAGE_POOL: "a folder of yours with mode 0700 on a disk: `--pool DIR`",
    Code.STORAGE_EXISTS: "`hostfork recover`",
    Code.STORAGE_BUSY: "end what uses it, then `hostfork recover`",
    Code.STORAGE_FAILED: "the line with the step has the kernel's reason; then `hostfork recover`",
    Code.VIEW_FAILED: "`hostfork doctor`; the step and the kernel's reason are named",
    Code.VIEW_VERIFY: "something changed the path while the view was built: run it again",
    Code.VIEW_HELPER: "`hostfork doctor`",
    Code.COMMAND_NOT_FOUND: "check the name and PATH",
    Code.COMMAND_NOT_EXECUTABLE: "`chmod +x`, or name its interpreter",
    Code.COMMAND_SET_UID: "run it outside of the fork, or as root",
    Code.COMMAND_CONTEXT: "`--cwd DIR` with a folder that is there; `--fd` with an open descriptor",
    Code.WORKLOAD_CGROUP: "`hostfork recover` removes a group that a crash left; `hostfork doctor`",
    Code.WORKLOAD_KEEPER: "the changes are kept: `hostfork list`, `hostfork recover`",
    Code.WORKLOAD_SURVIVORS: "`hostfork recover` later; `ps` shows what they wait for",
    Code.WORKLOAD_TIMEOUT: "a longer `--timeout`",
    Code.WORKLOAD_INTERRUPTED: "run it again; if the command had ended, its changes are kept: `hostfork list`",
    Code.COLLECT_FAILED: "the message names the path; the fork is still there",
    Code.COLLECT_BASE_GONE: "`hostfork export FORK DEST --changes-only`, or `run --export`",
    Code.COLLECT_DESTINATION: "a new or empty folder, or a new file for `--tar`",
    Code.FORK_NOT_FOUND: "`hostfork list`",
    Code.FORK_AMBIGUOUS: "more of the name",
    Code.FORK_NAME_TAKEN: "another `--name`, or discard that fork",
    Code.FORK_BAD_NAME: "letters, digits, `.`, `_`, `-`, at most 64",
    Code.FORK_BUSY: "end its command first; `hostfork show FORK`",
    Code.FORK_CORRUPT: "`hostfork discard FORK` removes it and its storage",
    Code.FORK_LOST: "`hostfork discard FORK`",
    Code.FORK_STATE: "`XDG_STATE_HOME=DIR` names another state folder",
    Code.FORK_CONFIRM: "`--yes`",
    Code.INTERNAL_FAULT: "a fault of hostfork: the same command with `--debug` shows where",
}
"""What usually helps; the hint of the error itself is more exact."""

SPECIAL = {Code.WORKLOAD_INTERRUPTED: "128+N"}
"""Where `run` does not end as the table of the errors says: signal N ended it."""

HEAD = """\
# Errors

<!-- written by docs/errors.py from hostfork.errors.Code -->

An error of hostfork has a code that stays the same. It stands in the last line of the message, as `code` in JSON
([json.md](json.md)), and as `error.code` in Python. An error of the command is none of hostfork's.

    hostfork: nope does not exist                               what, with the path
      in --private                                              where: the option, or file and line
      No such file or directory                                 why: further lines, and the kernel's words
      create it first: hostfork makes nothing in your own tree  what helps
      code policy.bad-path · nothing was made · status 125

| code | meaning | `run` | other verbs | what usually helps |
| --- | --- | --- | --- | --- |
"""


def text() -> str:
    """The whole page."""
    return HEAD + "".join(_row(code) for code in Code)


def _row(code: Code) -> str:
    error = HostforkError(code, "")
    run = SPECIAL.get(code, str(exit_status(error, "run")))
    return f"| `{code.text}` | {code.meaning} | {run} | {exit_status(error, 'list')} | {HELPS[code]} |\n"


if __name__ == "__main__":
    print(text(), end="")
