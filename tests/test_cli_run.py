"""`hostfork run` from the outside: what it prints, ends with, writes, and leaves."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import rigs
from hostfork import api
from test_cli_documents import check as check_schema

PROGRAM = os.path.join(sys.prefix, "bin/hostfork")


@pytest.fixture
def project(person):
    """A small project of the person's, below their home."""
    files = {"a.txt": "one\ntwo\n", "old.txt": "old\n", "run.sh": "#!/bin/sh\necho ran\n"}
    return rigs.make_project(person, person.home, files)


@pytest.fixture
def run(person, project, hostfork):
    """`run(*options, command=[...])` in the project, with everything kept thrown away at the end."""

    def call(*args, **options):
        options.setdefault("cwd", project)
        return hostfork(person, "run", *args, **options)

    yield call
    person.run([PROGRAM, "discard", "--all", "--yes"])


def forks(person):
    return person.call(_names)


def _names():
    return [fork.name for fork in api.Fork.all()]


@pytest.mark.rig("cgroup")
def test_a_run_that_changes_nothing_says_nothing_and_leaves_nothing(run, person):
    done = run("--private", ".", "--", "cat", "a.txt")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    assert [line for line in done.stderr.splitlines() if "subreaper" not in line] == []
    assert forks(person) == []


@pytest.mark.rig("cgroup")
def test_changes_are_kept_and_named_with_commands_that_work(run, person, project, hostfork):
    done = run("--private", ".", "--name", "calm-otter", "--", "sh", "-c", "echo x >new; echo y >>a.txt; rm old.txt")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[0].startswith("hostfork: .  1 created, 1 modified, 1 deleted   kept as calm-otter, ")
    assert lines[1].split(" · ") == [
        "          hostfork diff calm-otter",
        "hostfork apply calm-otter",
        "hostfork discard calm-otter",
    ]
    assert len(lines) == 2
    assert sorted(os.listdir(project)) == ["a.txt", "old.txt", "run.sh"]
    for hint in lines[1].split(" · "):
        words = hint.split()[1:]
        options = ["--yes"] if words[0] in ("apply", "discard") else []
        assert hostfork(person, *words, *options, cwd=person.home).returncode == 0
    assert forks(person) == []


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_the_commands_own_status(run, script, status):
    assert run("--private", ".", "--", "sh", "-c", script).returncode == status


def test_a_missing_command_is_127_and_makes_nothing(run, person):
    done = run("--private", ".", "--result", "r.json", "--", "no-such-program-at-all", cwd=person.home)
    assert done.returncode == 127
    assert "no-such-program-at-all" in done.stderr
    assert done.stderr.endswith("code command.not-found · status 127\n")
    assert forks(person) == []
    document = result(person.home + "/r.json")
    assert document["status"]["error"]["code"] == "command.not-found"


def test_a_command_that_cannot_be_executed_is_126(run, project, person):
    done = run("--private", ".", "--", "./a.txt")
    assert done.returncode == 126
    assert "code command.not-executable · status 126" in done.stderr
    assert forks(person) == []


def test_a_time_limit_ends_with_124(run):
    done = run("--private", ".", "--timeout", "200ms", "--result", "../r.json", "--", "sleep", "60")
    assert done.returncode == 124
    assert "time limit" in done.stderr


def result(path):
    return check_schema("run-result", json.loads(pathlib.Path(path).read_text()))


def test_the_result_is_the_whole_story(run, person):
    path = person.home + "/r.json"
    done = run("--private", ".", "--result", path, "--name", "n", "--", "sh", "-c", "echo x >new; exit 3")
    assert done.returncode == 3
    document = result(path)
    assert document["fork"] == "n"
    ended = {"exit": 3, "signal": None, "timed_out": False, "storage_limited": False, "error": None}
    assert document["status"] == ended
    assert document["changes"]["created"] == 1
    assert (document["kept"], document["released"]) == (True, False)
    assert document["paths"][0]["path"] == os.path.realpath(person.home + "/proj")
    assert os.listdir(person.home).count("r.json") == 1


def test_the_result_of_a_signal_and_of_a_time_limit(run, person):
    path = person.home + "/r.json"
    run("--private", ".", "--result", path, "--", "sh", "-c", "kill -9 $$")
    assert result(path)["status"]["signal"] == 9
    run("--private", ".", "--result", path, "--timeout", "0.2", "--", "sleep", "60")
    assert result(path)["status"]["timed_out"] is True


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--no-such-option"], "policy.usage"),
        (["--private"], "policy.usage"),
        (["--timeout", "x", "--", "true"], None),
        (["--private", "."], "policy.usage"),
        (["--keep", "--rm", "--private", ".", "--", "true"], "policy.usage"),
        (["-v", "-q", "--private", ".", "--", "true"], "policy.usage"),
        (["--fd", "1", "--private", ".", "--", "true"], "policy.usage"),
        (["--status-fd", "77", "--private", ".", "--", "true"], "policy.usage"),
        (["--", "true"], "policy.nothing-private"),
        (["--private", "/no/such/folder", "--", "true"], None),
        (["--private", "/", "--", "true"], None),
        (["--private", ".", "--read-only", ".", "--", "true"], "policy.conflict"),
        (["--private", "*", "--", "true"], None),
        (["--private", ".:reflink", "--", "true"], "storage.unsupported"),
        (["--private", ".", "--require", "moon", "--", "true"], None),
        (["--policy", "no-such-policy", "--", "true"], "policy.not-found"),
        (["--private", ".", "--name", "../x", "--", "true"], "fork.bad-name"),
        (["--private", ".", "--cwd", "nowhere", "--", "true"], "command.context"),
    ],
)
@pytest.mark.rig("cgroup")
def test_bad_input_is_one_typed_error_with_a_result_and_makes_nothing(run, person, options, code):
    path = person.home + "/r.json"
    done = run("--result", path, *options)
    assert done.returncode == 125
    lines = done.stderr.splitlines()
    assert lines[0].startswith("hostfork: ")
    assert sum(line.startswith("hostfork: ") for line in lines) == 1
    assert lines[-1].startswith("  code ")
    assert lines[-1].endswith("status 125")
    assert "Traceback" not in done.stderr
    document = result(path)
    assert document["fork"] is None
    assert f"code {document['status']['error']['code']} " in lines[-1]
    if code is not None:
        assert document["status"]["error"]["code"] == code
    assert forks(person) == []


def test_a_result_file_that_cannot_be_is_refused_first(run, person):
    done = run("--private", ".", "--result", "no/folder/r.json", "--", "touch", "ran")
    assert done.returncode == 125
    assert "there is no folder" in done.stderr
    assert done.stderr.count("hostfork: ") == 1
    assert forks(person) == []


def test_a_result_that_can_no_longer_be_written_is_a_failure(run, person):
    os.mkdir(person.home + "/gone", 0o755)
    os.chown(person.home + "/gone", person.uid, person.gid)
    done = run("--private", ".", "--result", person.home + "/gone/r", "--", "sh", "-c", f"rmdir {person.home}/gone")
    assert done.returncode == 125
    assert "the result was not written" in done.stderr


def test_a_name_is_taken_once(run):
    assert run("--private", ".", "--keep", "--name", "once", "--", "true").returncode == 0
    done = run("--private", ".", "--name", "once", "--", "true")
    assert done.returncode == 125
    assert "code fork.name-taken" in done.stderr


def test_arguments_are_byte_exact(run, person):
    words = [b"", b" ", b"a b", b"*", b"$HOME", b"a\nb", b"\xff\xfe", b"--", b"--private", b"-v", b"\\", b'"', b"'"]
    show = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"
    for separator in ([b"--"], []):
        done = person.run(
            [PROGRAM, "run", "--private", ".", *separator, "python3", "-c", show, *words],
            binary=True, cwd=person.home + "/proj",
        )  # fmt: skip
        assert done.stdout == b"\0".join(words), done.stderr


def test_the_first_word_that_is_no_option_begins_the_command(run):
    done = run("--private", ".", "echo", "--name", "x", "--", "-q")
    assert done.stdout == "--name x -- -q\n"


def test_paths_with_odd_bytes(run, person, hostfork):
    for name in (b"\xff", b"a\nb", b"a:b,c\\d", b"x:copy"):
        folder = os.path.join(os.fsencode(person.home), name)
        person.call(os.mkdir, folder)
        option = folder + b":" if name.endswith(b":copy") else folder
        path = person.home + "/r.json"
        done = person.run(
            [PROGRAM, "run", "--private", option, "--result", path, "--", "touch",
             folder + b"/new"], binary=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder) == []
        document = result(path)
        assert document["changes"]["created"] == 1
        diff = json.loads(hostfork(person, "diff", document["fork"], "--json", check=0).stdout)
        check_schema("diff", diff)
        (entry,) = [entry for entry in diff["entries"] if entry["change"] == "created"]
        import base64

        exact = base64.b64decode(entry["path_bytes"]) if "path_bytes" in entry else os.fsencode(entry["path"])
        assert exact == os.path.realpath(folder) + b"/new"


def test_status_lines(run, person):
    read, write = os.pipe()
    script = f"[ ! -e /proc/self/fd/{write} ] && exit 4"
    done = run("--private", ".", "--status-fd", str(write), "--", "sh", "-c", script, pass_fds=(write,))
    os.close(write)
    with os.fdopen(read) as file:
        lines = [json.loads(line) for line in file]
    assert done.returncode == 4
    assert [line["event"] for line in lines] == ["planned", "started", "ended", "result"]
    check_schema("plan", lines[0]["plan"])
    check_schema("run-result", lines[3]["result"])
    assert lines[1]["pid"] > 1
    assert (lines[2]["exit"], lines[2]["signal"]) == (4, None)


def test_a_refusal_is_told_in_the_status_lines_too(run):
    read, write = os.pipe()
    run("--status-fd", str(write), "--no-such-option", pass_fds=(write,))
    os.close(write)
    with os.fdopen(read) as file:
        (line,) = [json.loads(line) for line in file]
    assert line["result"]["status"]["error"]["code"] == "policy.usage"


def test_quiet_and_verbose(run):
    change = ["--", "sh", "-c", "echo x >new"]
    assert run("--private", ".", "-q", *change).stderr == ""
    lines = run("--private", ".:copy", "-v", "--rm", *change).stderr.splitlines()
    chosen = [line for line in lines if "  private  copy  independent  " in line]
    assert len(chosen) == 1
    assert re.match(r"hostfork: \.  private  copy  independent  \d+ files, \d+ B copied, ", chosen[0])
    assert lines.index(chosen[0]) < len(lines) - 1


def test_throw_away_keep_and_export(run, person):
    change = ["--", "sh", "-c", "echo x >new"]
    done = run("--private", ".", "--rm", *change)
    assert "1 created   thrown away" in done.stderr
    assert forks(person) == []
    done = run("--private", ".", "--keep", "--name", "empty", "--", "true")
    assert "nothing changed   kept as empty" in done.stderr
    out = person.home + "/out"
    done = run("--private", ".", "--rm", "--export", out, *change)
    assert done.returncode == 0, done.stderr
    assert f"exported to {out}" in done.stderr
    assert sorted(os.listdir(out)) == ["a.txt", "new", "old.txt", "run.sh"]


def test_dry_run_is_plan(run, person, project, hostfork):
    words = ["--private", ".", "--scratch", person.home + "/.cache", "--json"]
    dry = json.loads(run("--dry-run", *words, "--", "true").stdout)
    plan = json.loads(hostfork(person, "plan", *words, "--", "true", cwd=project, check=0).stdout)
    assert check_schema("plan", dry) == check_schema("plan", plan)
    assert forks(person) == []
    assert run("--json", "--private", ".", "--", "true").returncode == 125


def test_environment_and_folder(run, person):
    file = person.home + "/env"
    with open(file, "w") as stream:
        stream.write("# comment\nA=1\nB=x y\n")
    script = 'echo "$A|$B|$C|$HOSTFORK_OUTSIDE|$(pwd)"'
    options = ["--env-file", file, "--env", "A=2", "--env", "C=", "--cwd", ".."]
    done = run("--private", ".", *options, "--", "/bin/sh", "-c", script, env={"HOSTFORK_OUTSIDE": "o"})
    assert done.stdout == f"2|x y||o|{os.path.realpath(person.home)}\n"
    done = run("--private", ".", "--clear-env", "--env", "HOSTFORK_OUTSIDE", "--", "/bin/sh", "-c",
               "echo $HOSTFORK_OUTSIDE-$HOME-", env={"HOSTFORK_OUTSIDE": "o"})  # fmt: skip
    assert done.stdout == "o--\n"


def test_only_named_descriptors_are_open_in_the_command(run):
    read, write = os.pipe()
    other = os.dup(write)
    show = f"import os; os.write({write}, b'hello'); print(*os.listdir('/proc/self/fd'))"
    done = run("--private", ".", "--fd", str(write), "--", "python3", "-c", show, pass_fds=(write, other))
    os.close(write)
    os.close(other)
    assert os.read(read, 100) == b"hello"
    assert str(other) not in done.stdout.split()
    os.close(read)


def test_rules_do_what_they_say(run, person):
    home = person.home
    person.call(_make_rules, home)
    script = f"""
        touch {home}/ro/x 2>/dev/null && echo ro-written
        touch {home}/ro/shared/x && touch {home}/proj/shared-not
        ls -A {home}/hidden 2>/dev/null | grep -q . && echo hidden-seen
        [ -z "$(ls -A {home}/scratch)" ] && echo scratch-empty
        echo s >{home}/scratch/s
        exit 0
    """
    done = run("--private", ".", "--read-only", f"{home}/ro", "--shared", f"{home}/ro/shared", "--hidden",
               f"{home}/hidden", "--scratch", f"{home}/scratch", "--", "sh", "-c", script)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "scratch-empty\n"
    assert os.path.exists(f"{home}/ro/shared/x")
    assert os.listdir(f"{home}/scratch") == ["secret"]


def _make_rules(home):
    for name in ("ro", "ro/shared", "hidden", "scratch"):
        os.mkdir(f"{home}/{name}")
    for name in ("hidden", "scratch"):
        open(f"{home}/{name}/secret", "w").close()


def test_everything_shared_only_if_it_is_meant(run, project):
    assert run("--", "touch", "x").returncode == 125
    assert run("--share-all", "--", "touch", "x").returncode == 0
    assert os.path.exists(f"{project}/x")


def test_relocated_lies_elsewhere_and_says_so(run, person, project, hostfork):
    path = person.home + "/r.json"
    words = [
        "--relocated",
        "--result",
        path,
        "--name",
        "away",
        "--",
        "sh",
        "-c",
        "pwd; echo $HOSTFORK_ROOT; echo x >new",
    ]
    done = run("--private", ".", *words)
    assert done.returncode == 0, done.stderr
    where, root = done.stdout.splitlines()
    assert where == root != os.path.realpath(project)
    assert "new" not in os.listdir(project)
    assert result(path)["same_paths"] is False
    assert [line.split()[:2] for line in hostfork(person, "diff", "away", check=0).stdout.splitlines()] == [
        ["A", "new"]
    ]
    refused = run("--private", ".", "--require", "same-paths", *words)
    assert refused.returncode == 125
    assert "code policy.require" in refused.stderr


def test_private_storage_lies_where_it_is_told(run, person, project, hostfork):
    pool = person.home + "/pool"
    person.call(os.mkdir, pool, 0o700)
    done = run("--private", ".:copy", "--pool", pool, "--name", "n", "--keep", "--", "true")
    assert done.returncode == 0, done.stderr
    assert os.listdir(pool)
    assert json.loads(hostfork(person, "show", "n", "--json", check=0).stdout)["pool"] == os.path.realpath(pool)


def test_an_endpoint_stays_the_hosts(run, person, project):
    os.mkfifo(f"{project}/pipe")
    os.chown(f"{project}/pipe", person.uid, person.gid)
    reader = os.open(f"{project}/pipe", os.O_RDONLY | os.O_NONBLOCK)
    done = run("--private", ".", "--endpoint", "pipe", "--", "sh", "-c", "echo hello >pipe")
    assert done.returncode == 0, done.stderr
    assert os.read(reader, 100) == b"hello\n"
    os.close(reader)


def test_policies_by_name_and_file(run, person, project):
    file = person.home + "/mine.toml"
    with open(file, "w") as stream:
        stream.write('schema = 1\n[environment]\nset = { FROM_POLICY = "yes" }\n')
    os.chown(file, person.uid, person.gid)
    done = run("--private", ".", "--policy", file, "--", "sh", "-c", "echo $FROM_POLICY")
    assert done.stdout == "yes\n"
    done = run("--private", ".", "--policy", "build", "--", "sh", "-c", "touch ~/x; echo $?")
    assert done.stdout.strip() != "0"
    assert not os.path.exists(person.home + "/x")


def test_a_promise_that_cannot_be_kept_is_refused(run, person):
    done = run("--private", ".:live", "--require", "independent", "--", "true")
    assert done.returncode == 125
    assert "code policy.require" in done.stderr
    assert run("--private", ".", "--require", "independent", "--", "true").returncode == 0
    assert run("--private", ".", "--require", "cgroup", "--", "true", delegated=False).returncode == (
        0 if person.uid == 0 else 125
    )


@pytest.mark.parametrize("person", ["user"], indirect=True)
def test_what_is_weaker_is_said_in_every_run_but_not_with_quiet(run, person):
    lines = run("--private", ".", "--", "true", delegated=False).stderr.splitlines()
    assert len(lines) == 1
    assert "no cgroup owns the command's processes" in lines[0]
    assert run("--private", ".", "-q", "--", "true", delegated=False).stderr == ""


@pytest.mark.parametrize("person", ["user"], indirect=True)
def test_namespaces_denied_is_one_error_that_names_the_way_out(run, person):
    done = run("--private", ".", "--", "true", namespaces=False)
    assert done.returncode == 125
    assert "code host.namespaces · nothing was made · status 125" in done.stderr
    assert "hostfork setup" in done.stderr
    assert run("--private", ".", "--relocated", "--", "true", namespaces=False).returncode == 0


def test_a_pipeline_and_closed_streams(run, person, project):
    done = person.run(
        ["bash", "-c", f"{PROGRAM} run --private . -- yes | head -1; echo ${{PIPESTATUS[0]}}"], cwd=project
    )
    assert done.stdout == "y\n141\n"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = person.run(
            ["sh", "-c", f"{PROGRAM} run --private . -- sh -c 'echo x >new; exit 5' {closed}"], cwd=project
        )
        assert done.returncode == 5, (closed, done.stderr)


def test_help_is_not_a_run(run, person):
    done = run("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Run a command with selected independent state.\n\nUsage: hostfork run ")
    assert run("--private", ".", "--", "sh", "-c", "echo $0", "--help").stdout == "--help\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_before_the_command_is_quiet(run, person, project, number):
    policy = person.home + "/policy.toml"
    os.mkfifo(policy)
    os.chown(policy, person.uid, person.gid)
    argv = [PROGRAM, "run", "--private", ".", "--policy", policy, "--result", person.home + "/r", "--", "touch", "ran"]
    with person.popen(argv, cwd=project, stderr=subprocess.PIPE) as process, open(_open_for(process, policy), "wb"):
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == b""
    assert result(person.home + "/r")["status"]["error"]["code"] == "workload.interrupted"
    assert forks(person) == []


def _open_for(process, path):
    """The writing end of a FIFO, once the process waits for its content.

    A signal between Python's last look for one and its call to read(2) would be acted on only after the read.
    """
    descriptor = -1
    while process.poll() is None:
        try:
            # its being opened wakes the process; asleep again, it is in the read
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK) if descriptor < 0 else descriptor
            if _state(process.pid) == "S":
                return descriptor
        except OSError:
            pass
        time.sleep(0.01)
    raise ChildProcessError(process.stderr.read())


def _state(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
