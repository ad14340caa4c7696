"""What is behind each error, and what to do: `hostfork help CODE` and docs/troubleshooting.md are made from this.

Words in backquotes are typed. A message of an error is more exact than what stands here: it has the path.
"""

from __future__ import annotations

from hostfork.errors import Code
from hostfork.values import frozen


@frozen
class Trouble:
    """`why` it happens, in sentences; `remedies`, what to do, the likeliest first."""

    why: str
    remedies: tuple[str, ...]


def _trouble(why: str, *remedies: str) -> Trouble:
    return Trouble(why, remedies)


TROUBLES = {
    Code.POLICY_USAGE: _trouble(
        "A word of the command line is not known, misses its value, or contradicts another one.",
        "read the line with the place, then `hostfork VERB --help`",
        "put `--` before the command: what follows it is never read as an option of hostfork",
    ),
    Code.POLICY_NOT_FOUND: _trouble(
        "A word without `/` that does not end in `.toml` is the name of a shipped policy; everything else is a file.",
        "`hostfork policy list` shows the names",
        "write a file of yours with a `/`: `--policy ./mine.toml`",
    ),
    Code.POLICY_SYNTAX: _trouble(
        "The file could not be read as TOML, so none of it was used.",
        "correct the line that is named; `hostfork policy check FILE` tells when it is good",
    ),
    Code.POLICY_UNKNOWN_KEY: _trouble(
        "A key that is passed over in silence would be a rule that does not hold. So each must be known.",
        "the message lists the keys that are known at that place; a newer key needs a newer hostfork",
    ),
    Code.POLICY_BAD_VALUE: _trouble(
        "The key is known, its value is not of the type or not one of the words that it takes.",
        "the hint says which values there are; `hostfork policy check FILE` tries again",
    ),
    Code.POLICY_BAD_PATH: _trouble(
        "The path does not exist, is of a kind that the rule cannot serve (a socket cannot be private), cannot be "
        "reached by you, belongs to the kernel (`/proc`), or is a pattern where none is expanded. hostfork creates "
        "nothing in your own folders, so a path must be there first.",
        "create the path, or correct it",
        "in a policy file `optional = true` passes over a path that is not there",
    ),
    Code.POLICY_CONFLICT: _trouble(
        "Two rules say different things about one path. Two names of one folder (a symlink) are one path.",
        "keep one of the two that are named; an option counts over a policy file's rule for the same path",
    ),
    Code.POLICY_NOTHING_PRIVATE: _trouble(
        "No rule makes a path private, read-only, scratch or hidden: the command would work on the host as without "
        "hostfork, which is seldom what was meant.",
        "`--private .` gives it a copy of the working directory",
        "`--share-all` says that it is meant: then the processes alone are the fork's own",
    ),
    Code.POLICY_REQUIRE: _trouble(
        "`--require`, or `requires` of the policy, demands a promise that this host, this filesystem or the chosen "
        "mechanism cannot keep. hostfork refuses before anything is made, and never runs with less.",
        "take the mechanism that the hint names; `hostfork plan` shows what each path gets and why",
        "leave the demand out, if the weaker promise is enough",
    ),
    Code.CONFIG_INVALID: _trouble(
        "`~/.config/hostfork/config.toml` (or that in `$XDG_CONFIG_HOME/hostfork`) has a key that hostfork does not "
        "know, or a value that it does not take. Until it is put right no fork expires; runs do not read it.",
        "correct the line that is named; the hint says what stands there",
        "move the file away: the defaults hold without it",
    ),
    Code.HOST_NAMESPACES: _trouble(
        "An ordinary user's view needs a user namespace. A limit of 0, an AppArmor rule (Ubuntu 24.04), or a container "
        "around you forbids it. The message names what was tried and the setting.",
        "`hostfork setup --print` shows what would help, `sudo hostfork setup` installs it",
        "`--relocated` works without: the copy then lies at another path",
    ),
    Code.HOST_MISSING: _trouble(
        "Something is not there that the kernel or the system usually has, such as `/proc`, or a program of `setup`.",
        "`hostfork doctor` tries each capability and names the remedy",
        "of `setup`: install the program that is named, or move the file away that is in its place",
    ),
    Code.HOST_QUIESCE: _trouble(
        "The command of `--quiesce` or `--unquiesce` failed, or the cgroup of `--freeze-cgroup` is not there, not "
        "yours, holds hostfork itself, or did not come to rest. No private path was taken.",
        "run the command by itself until it ends with 0; its output is above the message",
        "leave the option out: files that change while they are taken are still found",
    ),
    Code.STORAGE_UNSUPPORTED: _trouble(
        "A mechanism that was asked for by name needs a filesystem, a kernel or rights that this path does not have. "
        "It never turns into another one.",
        "leave the word away: hostfork then takes the best that keeps the promise",
        "`:copy` works on every filesystem; `:live` is instant, and host changes show through",
        "`--pool DIR` on the source's own filesystem, where the reason is that the two differ",
    ),
    Code.STORAGE_SOURCE: _trouble(
        "A file below the private path cannot be read by you, so no private copy of it can be made.",
        "make it readable, or leave it out: `--unreadable skip`, `--hidden PATH`, `--shared PATH`",
    ),
    Code.STORAGE_UNSTABLE: _trouble(
        "Another program kept writing to the files that are named while they were copied, three times over. A torn "
        "copy is not given out.",
        "stop what writes there, or run again",
        "leave the files out: `--shared PATH`, `--scratch FOLDER`",
    ),
    Code.STORAGE_NO_SPACE: _trouble(
        "The filesystem of the pool has too little room, or too few inodes, for the private copy, or filled up on the "
        "way. What was made so far was removed.",
        "`hostfork list` shows the space of each fork, `hostfork discard FORK` gives it back",
        "`--pool DIR` on a larger disk; `:live` copies nothing; leave out what is not needed with `--scratch FOLDER`",
    ),
    Code.STORAGE_LIMIT: _trouble(
        "The private copies alone, or the command with what it wrote, take more than `--storage-limit` or the policy "
        "allows. Before the command nothing was made or all of it was removed; while it ran everything was ended, and "
        "its changes are kept.",
        "a larger `--storage-limit`",
        "`:live` copies nothing; leave out what is not needed with `--scratch FOLDER` or `--shared PATH`",
        "`hostfork diff FORK` shows what was written",
    ),
    Code.STORAGE_POOL: _trouble(
        "The folder for private storage must be yours, closed to others (mode 0700), writable, and on a disk.",
        "name such a folder: `--pool DIR`",
        "`chmod 700 DIR`, if it is yours and open to others",
    ),
    Code.STORAGE_EXISTS: _trouble(
        "Storage under this name is left from a run that was killed.",
        "`hostfork recover`",
    ),
    Code.STORAGE_BUSY: _trouble(
        "A process still has the private storage open or mounted, often a shell whose working directory is there.",
        "end that process, then `hostfork recover`",
    ),
    Code.STORAGE_FAILED: _trouble(
        "The kernel refused a step. The line with the step has its reason; a disk error, a quota or a security module "
        "are the usual ones.",
        "put the reason right, then `hostfork recover`, which removes what is half made",
        "another mechanism or another `--pool DIR`",
    ),
    Code.VIEW_FAILED: _trouble(
        "The kernel refused a mount or another step of building the view. The command was not started.",
        "`hostfork doctor` tries each step by itself",
        "if the path that is named is an unusual mount (FUSE, autofs), leave it out: `--shared PATH`",
    ),
    Code.VIEW_VERIFY: _trouble(
        "After the view was built, a path in it was not what the plan says. Something on the host was moved or mounted "
        "in between. The command was not started.",
        "run it again, once the host is quiet",
    ),
    Code.VIEW_HELPER: _trouble(
        "The program that builds the view, `hostfork-helper`, could not be started or was killed: no memory, a "
        "security module, a filesystem mounted `noexec`, or a damaged installation.",
        "`hostfork doctor`; the journal of the system has more if the kernel killed it",
        "install hostfork again, on a filesystem whose programs may be executed",
    ),
    Code.COMMAND_NOT_FOUND: _trouble(
        "The name is in no folder of PATH, as the command sees it: a private, scratch or hidden path may cover it.",
        "check the name and PATH; `hostfork run … -- sh -c 'echo $PATH'` shows what it is inside",
    ),
    Code.COMMAND_NOT_EXECUTABLE: _trouble(
        "The file is there, without permission to execute it, on a filesystem mounted `noexec`, or its first line "
        "names an interpreter that is not there.",
        "`chmod +x FILE`, or name its interpreter: `-- sh FILE`",
    ),
    Code.COMMAND_SET_UID: _trouble(
        "In a user namespace a set-uid program gets no rights; `sudo` and `su` would fail in their own words.",
        "run it outside of the fork, or run hostfork as root",
    ),
    Code.COMMAND_CONTEXT: _trouble(
        "The working directory is covered or gone in the view, or a descriptor of `--fd` is not open.",
        "`--cwd DIR` with a folder that is there in the view",
        "`--fd` with a descriptor that your shell has open: `exec 7<FILE`",
    ),
    Code.WORKLOAD_CGROUP: _trouble(
        "The fork's cgroup could not be made or entered; often one of the same name was left by a crash.",
        "`hostfork recover` removes such a group",
        "`hostfork doctor` says whether this user may make any",
    ),
    Code.WORKLOAD_KEEPER: _trouble(
        "The keeper, the process that ends the tree, was killed: by hand, or because memory ran out. The tree was "
        "ended, and the command's own exit status is not known.",
        "the changes are kept: `hostfork list`, `hostfork recover`",
    ),
    Code.WORKLOAD_SURVIVORS: _trouble(
        "A process does not end although it was killed: it waits in the kernel, for a dead disk or network server.",
        "put right what it waits for (`ps -eo pid,stat,wchan,cmd`), then `hostfork recover`",
    ),
    Code.WORKLOAD_METER: _trouble(
        "A fork with a storage limit is measured by a process of its own. Without it nothing holds the fork to its "
        "limit, so that everything is ended with it: it was killed, by hand or because memory ran out.",
        "the changes are kept: `hostfork list`; run it again",
    ),
    Code.WORKLOAD_TIMEOUT: _trouble(
        "The limit of `--timeout`, or of the policy, was reached. Everything was ended; the changes are kept.",
        "a longer `--timeout`",
    ),
    Code.WORKLOAD_INTERRUPTED: _trouble(
        "Ctrl-C or another signal came before the command began, or while its changes were read.",
        "run it again; if the command had ended, its changes are kept: `hostfork list`",
    ),
    Code.COLLECT_FAILED: _trouble(
        "A path of the fork could not be read. Nothing of it was thrown away.",
        "put right what the message names; the fork is still there: `hostfork show FORK`",
    ),
    Code.COLLECT_BASE_GONE: _trouble(
        "A patch, or a whole export, needs what the path was when the fork was made. The fork does not hold that "
        "(`base_content: while-source-unchanged`), and the host has changed it since. It is never made against the "
        "later file.",
        "`hostfork export FORK DEST --changes-only` needs no base, and `hostfork diff FORK` neither",
        "next time `run --export DIR`, which writes the whole tree at the end of the run",
    ),
    Code.COLLECT_DESTINATION: _trouble(
        "An export is written to a new or empty place only, so that nothing of yours is mixed with it or lost.",
        "name a new or empty folder, or with `--tar` a file that is not there yet; or the disk is full",
    ),
    Code.FORK_NOT_FOUND: _trouble(
        "No fork of yours has this name or begins so. A run without changes keeps none, and each user has their own.",
        "`hostfork list` shows the names, `hostfork list --expired` those that were not used for long and went",
    ),
    Code.FORK_AMBIGUOUS: _trouble(
        "Several names begin like this.",
        "type more of the name; Tab completes it",
    ),
    Code.FORK_NAME_TAKEN: _trouble(
        "Names are unique among your forks.",
        "another `--name`, or `hostfork discard FORK` for the one that has it",
    ),
    Code.FORK_BAD_NAME: _trouble(
        "A name is a folder's name and a word in a shell.",
        "letters, digits, `.`, `_`, `-`, at most 64, the first a letter or digit",
    ),
    Code.FORK_BUSY: _trouble(
        "Its command, or another hostfork, is working with it.",
        "`hostfork show FORK` names the processes; end its command first",
    ),
    Code.FORK_CORRUPT: _trouble(
        "The fork's record was damaged or was written by a newer hostfork. The other forks are not touched by that.",
        "`hostfork discard FORK` removes it and its storage",
        "before that, whatever its storage holds can be copied from the pool: `~/.local/state/hostfork/pool`",
    ),
    Code.FORK_LOST: _trouble(
        "The record is there, the private storage is not: it was removed by hand, or its disk is not mounted.",
        "mount the disk of the pool, or `hostfork discard FORK`",
    ),
    Code.FORK_STATE: _trouble(
        "The folder with the records, `$XDG_STATE_HOME/hostfork` or `~/.local/state/hostfork`, cannot be made, read or "
        "written, or belongs to somebody else.",
        "put its owner and mode right, or name another one: `XDG_STATE_HOME=DIR`",
    ),
    Code.FORK_APPROVAL: _trouble(
        "The fork's policy says `approval = true` in `[apply]`: its changes are applied only once somebody outside "
        "the fork has approved them. Asking to apply it made it wait; an approval counts for the changes of that "
        "moment.",
        "read them with `hostfork diff FORK`, then `hostfork approve FORK`",
        "`hostfork unseal FORK` opens it again, for more work in it",
    ),
    Code.FORK_INSIDE: _trouble(
        "Nobody approves their own changes: `approve` was called by a process of a fork.",
        "call it in a shell that no fork started",
    ),
    Code.FORK_DECIDED: _trouble(
        "A fork that is sealed, or that waits for approval, is not written any more: what was read is what is applied. "
        "One that was discarded or expired is on its way out.",
        "`hostfork unseal FORK` opens it again, and an approval is void then",
        "`hostfork show FORK` says what was decided, `hostfork log FORK` by whom",
    ),
    Code.FORK_CONFIRM: _trouble(
        "The verb would throw changes away and asks first; without a terminal nobody can answer.",
        "`--yes` says it beforehand; `--dry-run` shows what would be lost",
    ),
    Code.BASELINE_NOT_FOUND: _trouble(
        "No baseline of yours has this name or begins so, or several do.",
        "`hostfork baseline list` shows the names; `hostfork baseline create NAME --from PATH` makes one",
    ),
    Code.BASELINE_NAME_TAKEN: _trouble(
        "A baseline is never replaced by another of its name: forks may lie over it.",
        "`hostfork baseline refresh NAME` brings it up to date, `hostfork baseline remove NAME` makes the name free",
    ),
    Code.BASELINE_IN_USE: _trouble(
        "Forks hold only what they changed; all else they show is the baseline's.",
        "`hostfork discard FORK` for the forks that are named, or `hostfork export FORK DIR` first",
    ),
    Code.BASELINE_CORRUPT: _trouble(
        "The record of the baseline was damaged or was written by a newer hostfork.",
        "`hostfork baseline remove NAME` takes it off the list; then `hostfork recover`",
    ),
    Code.BASELINE_LOST: _trouble(
        "The record is there, the retained tree is not: it was removed by hand, its disk is not mounted, or the "
        "machine went down before it was on disk.",
        "mount the disk of the pool, or `hostfork baseline remove NAME` and make it again",
    ),
    Code.BASELINE_DAMAGED: _trouble(
        "Something in the retained tree was changed behind hostfork's back, or the disk has lost it.",
        "`hostfork baseline refresh NAME` where its source is there, else remove it and make it again",
    ),
    Code.BASELINE_ORIGIN: _trouble(
        "What the baseline is to be made of could not be had; the lines below are what git or the archive said.",
        "correct the URL, the reference or the file; nothing was made",
    ),
    Code.CHECKPOINT_NOT_FOUND: _trouble(
        "A checkpoint belongs to its fork and goes with it. Its id, or a beginning that no other has, names it.",
        "`hostfork checkpoints FORK` lists those of a fork",
        "`hostfork export FORK@ID DIR` keeps one beyond its fork, and so does `hostfork baseline create`",
    ),
    Code.CHECKPOINT_AMBIGUOUS: _trouble(
        "Several ids begin with what was typed.",
        "type more of the id",
    ),
    Code.CHECKPOINT_BUSY: _trouble(
        "A checkpoint is of one moment. Either a process of the fork did not stop for it, which a large write in the "
        "kernel can cause, or something that is no process of the fork writes to its private storage.",
        "the pid or the path is named: try again when that is done",
        "end what writes there, `hostfork show FORK` has the processes",
    ),
    Code.CHECKPOINT_DAMAGED: _trouble(
        "The disk, or somebody in the pool, changed or removed what a checkpoint is made of. It was found by its "
        "digest, and nothing was taken from it.",
        "`hostfork checkpoints --verify` lists all that is damaged or missing",
        "another checkpoint of the fork may be whole: `hostfork checkpoints FORK`",
    ),
    Code.CHECKPOINT_NO_SPACE: _trouble(
        "The contents of changed files lie once in the pool for all checkpoints, and there was no room for a new one. "
        "The fork and its earlier checkpoints are as they were.",
        "`hostfork usage` shows what takes space; `hostfork discard` and `hostfork gc` give some back",
    ),
    Code.CHECKPOINT_FAILED: _trouble(
        "The kernel refused something in the pool or in the fork's private storage; the message has the path.",
        "a restore that could not be finished is finished by `hostfork recover`",
        "`hostfork doctor` shows what this host can do",
    ),
    Code.APPLY_BLOCKED: _trouble(
        "Something that the fork changed cannot be replaced on the host: it is immutable, a mount point, in a folder "
        "that you may not write, or belongs to somebody whose owner only root can keep. It was found before anything "
        "was written.",
        "put right what is named with each path, then apply again",
        "apply the rest by path: `hostfork apply FORK PATH`; `hostfork export FORK DEST` writes it elsewhere",
    ),
    Code.APPLY_FAILED: _trouble(
        "The kernel refused a step of an apply or undo, most often because a disk is full. What was done so far was "
        "put back: the host is as it was.",
        "make room on the disk that is named, then the same command again",
    ),
    Code.APPLY_STUCK: _trouble(
        "An apply was killed, and the file that says what it did cannot be read. What it displaced is kept where the "
        "message says.",
        "look at what is kept there, and put it where it belongs by hand",
    ),
    Code.APPLY_COMMIT: _trouble(
        "A branch of that name is there, no private path lies in a git work tree or several do, the commit that the "
        "fork started from is gone, or git refused; its words are below the message. The repository is as it was.",
        "`--branch NAME` names another branch",
        "`hostfork apply FORK` needs no git, and `hostfork diff FORK --patch` is a patch for `git apply`",
    ),
    Code.APPLY_NOT_FOUND: _trouble(
        "Nothing was applied of that fork, it was undone already, or the days are over for which what an apply "
        "displaced is kept.",
        "`hostfork log FORK` tells when it was applied, and under which id",
        "`undo-days` of the configuration says how long an apply can be undone",
    ),
    Code.INTERNAL_FAULT: _trouble(
        "This is a fault of hostfork. What was made is kept or given back as after a kill.",
        "the same command with `--debug` shows where; `hostfork recover` puts right what is left",
    ),
}
"""Every code."""
