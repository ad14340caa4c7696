"""A program for `test_recover`: runs that are killed again and again, each followed by a recovery that is checked.

    kill_runs.py HOW PROJECT RULE ROUNDS SEED

HOW says what is killed and when: `times` a warm owner 0 to 20 ms after its start, `group` with its whole process group,
`calls` the owner at a random call of hostfork's own code, `program` the command line 0 to 20 ms after its start,
`life` the command line at any time of its life, `keeper` the helper or keeper, `command` the command, `steps` the owner
before and after each of its steps, one after the other (ROUNDS does not matter), `recover`, `discard` and `gc` likewise
what recovers the fork of a killed owner, throws a kept fork away, or lets it expire.
Prints one JSON object for each round: what was killed, whether the command had written, what was kept, what was left.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

from hostfork import api
from hostfork.lifecycle import (  # noqa: F401  (a warm owner has all of it)
    changes,
    expired,
    export,
    live,
    recover,
    run,
    uses,
)
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.storage import copy, overlay, scratch  # noqa: F401
from hostfork.storage.choose import all_keys
from hostfork.storage.keys import Keys
from hostfork.vocabulary import StorageKind
from hostfork.workload import launch
from hostfork.workload.cgroup import Group, own_folder

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
RELOCATED = "relocated"
WINDOW = 0.020
LIFE = 0.150


def main(how, project, rule, rounds, seed):
    """All rounds; a round that leaves something ends them."""
    choice = random.Random(f"{how}{rule}{seed}")
    calls = count_calls(project, rule) if how == "calls" else 0
    for number in range(rounds):
        mark = f"{project}.mark{number}"
        killed = one_round(how, project, rule, mark, choice, calls)
        found = settle(project, mark)
        print(json.dumps({"round": number, "killed": killed} | found), flush=True)
        if found["problems"]:
            sys.exit(1)


def all_steps(how, project, rule):
    """Kill at the first step, the second, and so on, until one is through."""
    number, killed = 0, True
    while killed:
        number += 1
        mark = f"{project}.mark{number}"
        if how != "steps":
            in_child(partial(own_run, project, rule, mark, 0), "collect" if how == "recover" else "")
        if how in ("discard", "gc"):
            os.unlink(mark)
        if how == "gc":
            make_old()
        own = partial(own_run, project, rule, mark, 0)
        acts = {"steps": own, "recover": api.recover, "discard": discard_all, "gc": api.gc}
        killed = in_child(acts[how], number)
        found = settle(project, mark)
        with open(f"{project}.step") as file:
            print(json.dumps({"round": number, "killed": file.read() if killed else ""} | found), flush=True)
        if found["problems"]:
            sys.exit(1)


def in_child(act, limit):
    """Do it in a child that kills itself at that step; whether it came to that."""
    pid = os.fork()
    if pid == 0:
        name_steps(limit)
        act()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def make_old():
    forks = Store(state_folder()).forks
    for name in os.listdir(forks):
        os.utime(f"{forks}/{name}/use", (0, 0))


def discard_all():
    for fork in api.Fork.all():
        fork.discard()


def name_steps(limit):
    """Count the beginnings and ends of steps; at the `limit`th, or before the one of that name, it kills itself."""
    count = 0

    def step(what):
        nonlocal count
        count += 1
        if limit in (count, what.split()[1]):
            with open(f"{sys.argv[2]}.step", "w") as file:
                file.write(what)
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(holder, name):
        function = getattr(holder, name)

        def around(*arguments, **options):
            step(f"before {name} {arguments[1:2]}")
            result = function(*arguments, **options)
            step(f"after {name} {arguments[1:2]}")
            return result

        setattr(holder, name, around)

    for name in ("save", "note", "remove"):
        counted(ForkFolder, name)
    for holder, name in ((expired, "write_down"), (uses, "is_pinned")):
        counted(holder, name)
    for name in ("begin", "commit", "set_aside", "erase"):
        counted(Keys, name)
    for name in ("start", "wait_executed", "finish"):
        counted(launch.Helper, name)
    for name in ("collect", "store_changes", "make_durable", "reduce_storage"):
        counted(changes, name)
    for name in ("kill", "remove"):
        counted(Group, name)
    counted(live, "watch")


def script(mark):
    """What the command does: it writes, says outside of the private tree that it has, and goes on for a while."""
    return f"echo x >new; rm b; echo >{mark}; sleep 0.005; echo y >>new"


def request(project, rule, mark):
    command = ("sh", "-c", script(mark))
    if rule == RELOCATED:
        return api.Request(command, rules=api.RuleOptions(private=(project,)), cwd=project, relocated=True)
    rules = api.RuleOptions(private=(project + rule,), scratch=(f"{project}/scratch",))
    return api.Request(command, rules=rules, cwd=project)


def one_round(how, project, rule, mark, choice, calls):
    """Start a run, kill it at a moment of chance, and wait for the owner's end. Says what was killed."""
    if how in ("program", "life"):
        return kill_program(project, rule, mark, choice, WINDOW if how == "program" else LIFE)
    limit = choice.randrange(1, calls + 1) if how == "calls" else 0
    delay = 0.0 if how == "calls" else choice.random() * WINDOW * (1 if how != "command" else 3)
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.read(ready, 1)
        own_run(project, rule, mark, limit)
    os.write(go, b"x")
    os.close(ready)
    os.close(go)
    time.sleep(delay)
    if how == "times":
        os.kill(pid, signal.SIGKILL)
    elif how == "group":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    elif how in ("keeper", "command"):
        kill_child(pid, how)
    os.waitpid(pid, 0)
    return f"call {limit} of {calls}" if limit else f"{how} after {delay * 1000:.2f} ms"


def own_run(project, rule, mark, limit):
    """The owner in a warm child. With a limit it kills itself at that call of hostfork's code."""
    count = 0

    def counting(frame, _event, _argument):
        nonlocal count
        if "/hostfork/" in frame.f_code.co_filename:
            count += 1
            if count == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    status = 0
    try:
        if limit:
            sys.setprofile(counting)
        api.run(request(project, rule, mark))
        sys.setprofile(None)
        if limit < 0:
            print(count, flush=True)
    except Exception:
        import traceback

        sys.setprofile(None)
        with open(f"{mark}.error", "w") as file:
            traceback.print_exc(file=file)
        status = 1
    finally:
        os._exit(status)


def count_calls(project, rule):
    """How many calls and returns of hostfork's code one whole run has."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        own_run(project, rule, f"{project}.mark", -1)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    settle(project, f"{project}.mark")
    return int(said)


def kill_child(owner, how):
    """Kill the owner's helper or keeper, or the command, if there is one by now."""
    for pid in children(owner):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            helper = b"hostfork-helper" in (line := file.read()) or b"program.py" in line
            if how == "keeper" and helper:
                os.kill(pid, signal.SIGKILL)
            elif how == "command" and helper:
                for command in children(pid):
                    os.kill(command, signal.SIGKILL)


def children(parent):
    """The children of a process. They are not waited for by anybody but their parent."""
    with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{parent}/children") as file:
        return [int(word) for word in file.read().split()]
    return []


def kill_program(project, rule, mark, choice, window):
    delay = choice.random() * window
    command = [PROGRAM, "run", "-q", "--private", project + rule, "--scratch", f"{project}/scratch"]
    process = subprocess.Popen([*command, "--", "sh", "-c", script(mark)], cwd=project, start_new_session=True)
    time.sleep(delay)
    if choice.random() < 0.5:
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return f"program after {delay * 1000:.2f} ms"


def settle(project, mark):
    """Recover, look at what is there, give back what was kept, and look again."""
    wrote = os.path.exists(mark)
    recovered = [f"{item.name}: {item.what} {item.leftovers}" for item in api.recover()]
    problems = [f"still there after recovery: {line}" for line in left_running()]
    again = api.recover()
    if again:
        problems.append(f"a second recovery did something: {again}")
    kept = []
    for fork in api.Fork.all():
        if isinstance(fork, api.BrokenFork):
            problems.append(f"broken: {fork.name} {fork.error} {fork.error.details}")
            continue
        kept.append({change.path[len(project) + 1 :]: change.change.value for change in fork.diff().changes})
        if fork.activity.value != "idle":
            problems.append(f"{fork.name} is {fork.activity.value}")
        target = f"{mark}.out"
        fork.export(target, api.ExportForm.CHANGES_ONLY)
        if wrote and not os.path.exists(f"{target}/new"):
            problems.append(f"the export of {fork.name} has not what was written")
        subprocess.run(["rm", "-rf", target], check=True)
        problems += [f"discard of {fork.name}: {line}" for line in fork.discard()]
    if wrote and (len(kept) != 1 or kept[0].get("new") != "created" or kept[0].get("b") != "deleted"):
        problems.append(f"the command had written, and this is kept: {kept}")
    problems += [f"left: {line}" for line in left_behind(project)]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(mark)
    error = ""
    with contextlib.suppress(FileNotFoundError):
        with open(f"{mark}.error") as file:
            error = file.read()
        os.unlink(f"{mark}.error")
    return {"wrote": wrote, "kept": kept, "recovered": recovered, "problems": problems, "error": error}


def left_running():
    """Groups and processes, after those that just end had a moment."""
    deadline = time.monotonic() + 5
    while True:
        found = running()
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.001)


def running():
    own = own_folder()
    found = [name for name in os.listdir(own) if name.startswith("hostfork-")] if own else []
    here = os.stat("/proc/self/ns/mnt").st_ino
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                inside = b"HOSTFORK_FORK=" in file.read()
            with open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode(errors="replace")
            with open(f"/proc/{name}/stat") as file:
                words = file.read().rpartition(")")[2].split()
            mine = os.stat(f"/proc/{name}").st_uid == os.geteuid() and own_folder(int(name)) == own
            helper = "hostfork-helper" in line or "program.py" in line
            other = os.stat(f"/proc/{name}/ns/mnt").st_ino != here
            if mine and words[0] not in "ZX" and (inside or helper or other):
                found.append(f"{name} {line}")
    return found


def left_behind(project):
    """What is in state folder, pool and project that should not be."""
    store = Store(state_folder())
    pool = os.path.join(store.root, "pool")
    found = [f"fork folder {name}" for name in os.listdir(store.forks)] if os.path.isdir(store.forks) else []
    if os.path.isdir(pool):
        found += [f"storage {type(owner).__name__} {state}" for owner, state in all_keys(pool)]
        found += [f"pool entry {name}" for name in os.listdir(pool) if name not in {kind.value for kind in StorageKind}]
    found += [f"in the project: {name}" for name in os.listdir(project) if name not in ("a", "b", "d", "scratch")]
    return found


if __name__ == "__main__":
    if sys.argv[1] in ("steps", "recover", "discard", "gc"):
        all_steps(*sys.argv[1:4])
    else:
        main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]))
