"""Every verb but `run` from the outside: answers, documents, exit statuses, pipes."""

import io
import json
import os
import subprocess
import sys
import tarfile

import pexpect
import pytest

import rigs
from hostfork.cli.group import VERBS
from hostfork.cli.report import COMMANDS
from test_cli_documents import check as check_schema

PROGRAM = os.path.join(sys.prefix, "bin/hostfork")
CHANGE = (
    "echo x >new; echo three >>a.txt; rm old.txt; chmod 600 run.sh; ln -s a.txt link; "
    "mkdir -p node_modules/m; echo 1 >node_modules/m/x"
)


@pytest.fixture
def project(person):
    """A small git project of the person's."""
    files = {"a.txt": "one\ntwo\n", "old.txt": "old\n", "run.sh": "#!/bin/sh\n", ".gitignore": "node_modules/\n"}
    return rigs.make_project(person, person.home, files)


@pytest.fixture
def call(person, hostfork):
    """`hostfork VERB…` as the person; what is kept is thrown away at the end."""
    yield lambda *args, **options: hostfork(person, *args, **options)
    person.run([PROGRAM, "discard", "--all", "--yes"])


@pytest.fixture
def kept(call, project):
    """The name of a fork with one of most kinds of changes."""
    call("run", "--private", ".", "--name", "calm-otter", "--", "sh", "-c", CHANGE, cwd=project, check=0)
    return "calm-otter"


def document(done):
    return json.loads(done.stdout)


# --- list and show ---------------------------------------------------------------------------------------------------


def test_no_forks_are_an_empty_answer(call):
    assert call("list", check=0).stdout == ""
    assert check_schema("list", document(call("ls", "--json", check=0))) == {
        "schema": 1, "forks": [], "broken": [], "reclaiming": [],
    }  # fmt: skip


def test_a_fork_is_listed_and_shown(call, kept, project):
    head, line = call("list", check=0).stdout.splitlines()
    assert head.split() == ["NAME", "STATE", "AGE", "PATHS", "CHANGES", "SPACE", "COMMAND"]
    assert line.split()[:2] == [kept, "idle"]
    assert "sh -c" in line
    listed = check_schema("list", document(call("list", "--json", check=0)))
    shown = check_schema("show", document(call("show", "calm", "--json", check=0)))
    assert listed["forks"][0]["name"] == shown["name"] == kept
    assert shown["changes"]["deleted"] == 1
    assert shown["status"]["exit"] == 0
    lines = call("show", kept, check=0).stdout.splitlines()
    assert lines[0].split() == ["fork", kept]
    assert any(line.startswith("changes") and "1 deleted" in line for line in lines)
    assert lines[-1].endswith(f"hostfork diff {kept} · hostfork discard {kept}")


def test_a_running_fork_is_listed_as_running(call, person, project):
    with person.popen([PROGRAM, "run", "--private", ".", "--name", "busy", "--", "sh", "-c", "echo up; read x"],
                      cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "up\n"
        assert "busy  running" in " ".join(call("list", check=0).stdout.splitlines()[1].split()).replace(" ", "  ", 1)
        assert document(call("show", "busy", "--json", check=0))["pid"] > 1
        refused = call("export", "busy", "x")
        assert refused.returncode == 125
        assert "code fork.busy" in refused.stderr
        assert "running" in call("discard", "busy", "--dry-run", check=0).stdout
        assert call("discard", "busy", check=2).stderr.count("fork.confirm") == 1
        process.communicate("x\n", timeout=60)
    assert call("list", check=0).stdout == ""


@pytest.mark.parametrize("verb", [["show"], ["diff"], ["discard", "--yes"], ["export", "x"]])
def test_a_name_that_is_not_there_or_not_unique(call, kept, project, verb):
    words = [verb[0], "no-such", *verb[1:]]
    done = call(*words)
    assert done.returncode == 125
    assert "code fork.not-found · status 125" in done.stderr
    call("run", "--private", ".", "--keep", "--name", "calm-ox", "--", "true", cwd=project, check=0)
    words[1] = "calm-o"
    assert "code fork.ambiguous" in call(*words).stderr
    error = check_schema("error", document(call(*words, "--json")))
    assert error["error"]["code"] == "fork.ambiguous"
    assert error["status"] == 125


def test_a_broken_record_is_listed_explained_and_discarded(call, kept, person):
    record = f"{person.state}/forks/{kept}/record.json"
    with open(record, "w") as file:
        file.write("{")
    done = call("list", check=0)
    assert f"{kept}  broken" in done.stdout
    assert f"hostfork discard {kept}" in done.stdout
    assert "cannot be read" in done.stderr
    listed = check_schema("list", document(call("list", "--json", check=0)))
    assert listed["broken"][0]["error"]["code"] == "fork.corrupt"
    assert "code fork.corrupt" in call("show", kept).stderr
    assert call("discard", "calm").returncode == 2
    call("discard", "calm", "--yes", check=0)
    assert call("list", check=0).stdout == ""


# --- diff ------------------------------------------------------------------------------------------------------------


def test_a_diff_for_people(call, kept):
    lines = call("diff", kept, check=0).stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["M", "a.txt"],
        ["A", "link"],
        ["A", "new"],
        ["A", "node_modules/"],
        ["D", "old.txt"],
        ["P", "run.sh"],
    ]
    assert lines[0].endswith("1 +")
    assert lines[1].endswith("link to a.txt")
    assert lines[3].endswith("3 created, dependencies     --all lists them")
    assert lines[5].endswith("755 -> 600")


def test_a_diff_in_all_its_forms(call, kept, project):
    everything = call("diff", kept, "--all", check=0).stdout.splitlines()
    assert len(everything) == 8
    entries = check_schema("diff", document(call("diff", kept, "--json", check=0)))["entries"]
    assert len(entries) == 8
    stat = call("diff", kept, "--stat", check=0).stdout
    assert "5 created, 1 modified, 1 deleted, 1 metadata" in stat
    assert "dependency" in stat
    some = call("diff", kept, "node_modules", cwd=project, check=0).stdout.splitlines()
    assert [line.split()[:2] for line in some] == [["A", "node_modules/"], ["A", "node_modules/m/"],
                                                   ["A", "node_modules/m/x"]]  # fmt: skip
    assert call("diff", kept, "nowhere", cwd=project, check=0).stdout == ""


def test_exit_code_says_whether_something_changed(call, kept, project):
    assert call("diff", kept, "--exit-code").returncode == 1
    assert call("diff", kept, "--exit-code", "--json").returncode == 1
    assert call("diff", kept, "--exit-code", "--patch").returncode == 1
    assert call("diff", kept, "nowhere", "--exit-code", cwd=project).returncode == 0
    assert call("diff", kept, "nowhere", "--exit-code", "--patch", cwd=project).returncode == 0


@pytest.mark.rig("git")
def test_a_patch_is_what_git_applies(call, kept, person, project):
    patch = call("diff", kept, "--patch", check=0).stdout
    assert "+three" in patch
    copy = f"{person.home}/copy"
    person.run(["cp", "-a", project, copy], check=True)
    person.run(["git", "init", "-q"], cwd=copy, check=True)
    person.run(["git", "apply", "-"], cwd=copy, input=patch, check=True)
    with open(f"{copy}/a.txt") as file:
        assert file.read() == "one\ntwo\nthree\n"
    assert not os.path.exists(f"{copy}/old.txt")


@pytest.mark.parametrize("options", [["--patch", "--json"], ["--patch", "--stat"]])
def test_what_contradicts_itself_is_bad_usage(call, kept, options):
    done = call("diff", kept, *options)
    assert done.returncode == 2
    assert "policy.usage" in done.stdout + done.stderr


# --- export ----------------------------------------------------------------------------------------------------------


def test_exports(call, kept, person, project):
    out = f"{person.home}/out"
    done = call("export", kept, out, check=0)
    assert done.stdout == f"exported {kept} to ~/out\n"
    assert sorted(os.listdir(out)) == [".gitignore", "a.txt", "link", "new", "node_modules", "run.sh"]
    refused = call("export", kept, out)
    assert refused.returncode == 125
    assert "code collect.destination" in refused.stderr
    call("export", kept, "changes", "--changes-only", cwd=person.home, check=0)
    with open(f"{person.home}/changes/changes.json") as file:
        listed = json.load(file)
    assert "deleted" in json.dumps(listed)
    answer = document(call("export", kept, "third", "--json", cwd=person.home, check=0))
    assert answer == {"schema": 1, "fork": kept, "destination": f"{person.home}/third", "left_out": []}


def test_exports_as_tar(call, kept, person):
    for words in (["--tar"], ["--tar", "-"], ["-", "--tar"]):
        done = call("export", kept, *words, binary=True, check=0)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            names = archive.getnames()
        assert any(name.endswith("a.txt") for name in names)
        assert not any(name.endswith("old.txt") for name in names)
        assert done.stderr == b""
    call("export", kept, "--tar", "x.tar", cwd=person.home, check=0)
    with tarfile.open(f"{person.home}/x.tar") as archive:
        assert archive.getnames() == names
    refused = call("export", kept, "--tar", "x.tar", cwd=person.home)
    assert refused.returncode == 125
    assert "x.tar cannot be made" in refused.stderr
    assert "File exists" in refused.stderr


@pytest.mark.parametrize("words", [[], ["--tar", "--changes-only"], ["--tar", "--json"]])
def test_bad_usage_of_export(call, kept, words):
    assert call("export", kept, *words).returncode == 2


def test_what_was_left_out_is_said(call, person, project):
    script = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'"
    call("run", "--private", ".", "--name", "odd", "--", "sh", "-c", script, cwd=project, check=0)
    done = call("export", "odd", f"{person.home}/o", check=0)
    assert "not written" in done.stderr
    assert "  s\n" in done.stderr
    assert document(call("export", "odd", f"{person.home}/o2", "--json", check=0))["left_out"] == ["s"]


def test_a_tar_file_is_not_for_a_terminal(call, kept, person):
    with Terminal(person, "export", kept, "--tar") as terminal:
        assert "a tar file is not for a terminal" in terminal.rest()
        assert terminal.status == 2


# --- discard ---------------------------------------------------------------------------------------------------------


class Terminal:
    """hostfork on a terminal."""

    def __init__(self, person, *args, env=None):
        self._child = pexpect.spawn(PROGRAM, list(args), env=person.environment(env), cwd=person.home, timeout=60,
                                    preexec_fn=person.enter(), encoding="utf-8", dimensions=(24, 80))  # fmt: skip
        self.status = None

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._child.close(force=True)

    def expect(self, text):
        self._child.expect_exact(text)
        return self._child.before

    def type(self, text):
        self._child.sendline(text)

    def press(self, key):
        self._child.send(key)

    def rest(self):
        text = self._child.read()
        self._child.wait()
        self.status = self._child.exitstatus
        return text


@pytest.mark.parametrize(("typed", "status", "left"), [("y", 0, 0), ("n", 1, 1), ("", 1, 1), ("yes", 0, 0)])
def test_discard_says_what_is_lost_and_asks(call, kept, person, typed, status, left):
    with Terminal(person, "discard", kept) as terminal:
        said = terminal.expect("go on? [y/N] ")
        assert "this is lost for good" in said
        assert "1 deleted" in said
        terminal.type(typed)
        terminal.rest()
        assert terminal.status == status
    assert len(document(call("list", "--json"))["forks"]) == left


def test_discard_without_a_terminal_refuses(call, kept):
    done = call("discard", kept)
    assert done.returncode == 2
    assert "code fork.confirm · status 2" in done.stderr
    assert "--yes" in done.stderr
    assert len(document(call("list", "--json"))["forks"]) == 1


def test_discard_needs_no_question_where_nothing_is_lost(call, project):
    call("run", "--private", ".", "--keep", "--name", "empty", "--", "true", cwd=project, check=0)
    assert call("discard", "empty", check=0).stdout == "discarded empty\n"


def test_discard_several_and_all(call, kept, project):
    call("run", "--private", ".", "--keep", "--name", "two", "--", "true", cwd=project, check=0)
    call("run", "--private", ".", "--keep", "--name", "three", "--", "true", cwd=project, check=0)
    assert document(call("discard", "--all", "--dry-run", "--json", check=0))["would_discard"] == [kept, "three", "two"]
    assert "calm-otter" in call("discard", kept, "--dry-run", check=0).stdout
    refused = call("discard", "two", "no-such", "--yes")
    assert refused.returncode == 125
    assert len(document(call("list", "--json"))["forks"]) == 3
    done = document(call("discard", "two", "three", "two", "--yes", "--json", check=0))
    assert done == {"schema": 1, "discarded": ["two", "three"], "leftovers": [], "reclaiming": []}
    assert call("discard", "--all", "--yes", check=0).stdout == f"discarded {kept}\n"
    assert call("discard", "--all", "--yes", check=0).stdout == ""


@pytest.mark.parametrize("words", [[], ["--all", "x"]])
def test_bad_usage_of_discard(call, words):
    assert call("discard", *words).returncode == 2


# --- recover, policy -------------------------------------------------------------------------------------------------


def test_recover_puts_a_killed_run_right(call, person, project):
    argv = [PROGRAM, "run", "--private", ".", "--name", "killed", "--", "sh", "-c", "echo x >new; echo up; read x"]
    pipe = subprocess.PIPE
    with person.popen(argv, cwd=project, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.kill()
    assert "hostfork recover" in call("list", check=0).stdout
    done = document(call("recover", "--json", check=0))
    assert [item["name"] for item in done["recovered"]] == ["killed"]
    assert document(call("show", "killed", "--json"))["activity"] == "idle"
    assert call("recover", check=0).stdout == ""
    assert "new" in call("diff", "killed", check=0).stdout


def test_policies(call, person):
    lines = call("policy", "list", check=0).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["build", "private-files", "workspace"]
    assert {policy["name"] for policy in document(call("policy", "list", "--json", check=0))["policies"]} == {
        "build", "private-files", "workspace",
    }  # fmt: skip
    assert "[[rule]]" in call("policy", "show", "build", check=0).stdout
    resolved = call("policy", "show", "build", "--resolved", check=0).stdout
    assert person.home in resolved
    assert document(call("policy", "show", "build", "--json", check=0))["policy"]["name"] == "build"
    assert call("policy", "check", "build", "workspace", check=0).stdout.count("good") == 2
    assert len(document(call("policy", "check", "build", "--json", check=0))["policies"]) == 1


def test_a_bad_policy_is_a_no_with_the_place(call, person):
    file = f"{person.home}/mine.toml"
    with open(file, "w") as stream:
        stream.write('schema = 1\nwrong = "x"\n')
    os.chown(file, person.uid, person.gid)
    done = call("policy", "check", file)
    assert done.returncode == 1
    assert "code policy.unknown-key" in done.stderr
    assert "mine.toml" in done.stderr
    assert document(call("policy", "check", file, "--json"))["error"]["code"] == "policy.unknown-key"
    assert call("policy", "show", file).returncode == 125


@pytest.mark.parametrize("words", [
    [], ["bogus"], ["list", "x"], ["show"], ["show", "a", "b"], ["check"], ["list", "--resolved"],
])  # fmt: skip
def test_bad_usage_of_policy(call, words):
    assert call("policy", *words).returncode == 2


# --- every verb ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "run"])
def test_an_unknown_option_is_bad_usage_in_every_verb(root, verb):
    done = root.run([PROGRAM, verb, "--no-such-option"])
    status = 125 if verb in COMMANDS else 2
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.startswith("hostfork: no such option")
    assert f"hostfork {verb} --help" in done.stderr
    error = check_schema("error", json.loads(root.run([PROGRAM, verb, "--json", "--no-such-option"]).stdout))
    assert error["error"]["code"] == "policy.usage"
    assert error["status"] == status


def test_no_verb_an_unknown_verb_and_the_version(root):
    done = root.run([PROGRAM])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Run commands in your usual environment")
    done = root.run([PROGRAM, "lsit"])
    assert done.returncode == 2
    assert "did you mean list" in done.stderr
    assert root.run([PROGRAM, "--version"]).stdout.startswith("hostfork 0.")
    assert root.run([sys.executable, "-m", "hostfork", "--version"]).stdout.startswith("hostfork 0.")


def test_a_reader_that_goes_away_ends_a_verb_quietly(call, kept, person):
    for words in (["list"], ["diff", kept, "--patch"], ["export", kept, "--tar"], ["--help"], ["doctor", "--json"]):
        read, write = os.pipe()
        os.close(read)
        done = person.run([PROGRAM, *words], stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, ""), words


def test_an_answer_that_cannot_be_written_is_an_error(call, kept, person):
    with open("/dev/full", "w") as full:
        done = person.run([PROGRAM, "list"], stdout=full)
    assert done.returncode == 125
    assert "No space left on device" in done.stderr
    done = person.run(["sh", "-c", f"exec {PROGRAM} list >&-"])
    assert done.returncode == 125
    assert "Traceback" not in done.stderr


def test_colours_are_for_terminals_unless_asked_for(call, kept, person):
    assert "\x1b[" not in call("list").stdout
    assert "\x1b[" in call("--color", "always", "list").stdout
    assert "\x1b[" in call("list", "--color=always").stdout
    assert "\x1b[" in call("diff", kept, env={"FORCE_COLOR": "1"}).stdout
    for env, args, coloured in (({}, [], True), ({"NO_COLOR": "1"}, [], False), ({"TERM": "dumb"}, [], False),
                                ({}, ["--color", "never"], False)):  # fmt: skip
        with Terminal(person, *args, "diff", kept, env=env) as terminal:
            assert ("\x1b[" in terminal.rest()) is coloured


def test_a_patch_on_a_terminal_is_harmless(call, person, project):
    call(
        "run",
        "--private",
        ".",
        "--name",
        "evil",
        "--",
        "sh",
        "-c",
        "printf 'a\\033[2Jb\\n' >evil",
        cwd=project,
        check=0,
    )
    with Terminal(person, "--color", "never", "diff", "evil", "--patch") as terminal:
        text = terminal.rest()
    assert "\x1b" not in text
    assert "+a\\x1b[2Jb" in text
    assert "\x1b[2J" in call("diff", "evil", "--patch").stdout


def test_an_odd_locale_breaks_nothing(call, person, project):
    name = b"\xc3\xa9\xff\n"
    person.run([PROGRAM, "run", "--private", ".", "--name", "odd", "--", "touch", name], cwd=project, check=True)
    for locale in ({"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"}):
        lines = call("diff", "odd", env=locale, check=0).stdout.splitlines()
        assert len(lines) == 1
        assert "\\xff\\x0a" in lines[0]
        document(call("diff", "odd", "--json", env=locale, check=0))


def test_debug_shows_where_an_error_comes_from(call):
    for words in (["--debug", "show", "no-such"], ["show", "no-such", "--debug"]):
        done = call(*words)
        assert done.returncode == 125
        assert done.stderr.startswith("Traceback")
        assert done.stderr.endswith("code fork.not-found · status 125\n")


def test_a_plan_for_people(call, person, project):
    done = call("plan", "--private", ".", "--scratch", f"{person.home}/.cache:tmpfs=1M", "--timeout", "5", cwd=project,
                check=0)  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["~/.cache", "scratch", "tmpfs"], [".", "private", "copy"]]
    assert any(line.startswith("owned by") for line in lines)
    assert any(line.startswith("refused") for line in lines)
    check_schema("plan", document(call("plan", "--private", ".", "--json", "--", "true", cwd=project, check=0)))
    refused = call("plan", "--private", "/no/such", cwd=project)
    assert refused.returncode == 125
    assert "nothing was made" not in refused.stderr


def test_ctrl_c_and_the_end_of_input_at_a_question_lose_nothing(call, kept, person):
    for key, status in (("\x03", 130), ("\x04", 1)):
        with Terminal(person, "discard", kept) as terminal:
            terminal.expect("go on? [y/N] ")
            terminal.press(key)
            assert "Traceback" not in terminal.rest()
            assert terminal.status == status
    assert len(document(call("list", "--json"))["forks"]) == 1


def test_every_fork_that_cannot_be_discarded_is_told(call, person, project):
    for name in ("one", "two"):
        call("create", name, "--private", ".", cwd=project, check=0)
    locks = f"flock {person.state}/forks/one flock {person.state}/forks/two sh -c 'echo up; read x'"
    with person.popen(["sh", "-c", locks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "up\n"
        done = call("discard", "one", "two", "--yes")
        assert done.returncode == 125
        assert "one is held" in done.stderr
        assert "two is held" in done.stderr
        other.communicate("x\n", timeout=60)


def test_a_tar_file_is_whole_or_not_there(call, kept, person):
    person.run(["sh", "-c", f"rm -rf {person.state}/pool/*/*"], check=True)
    for words in (["--tar", "x.tar"], ["--tar"]):
        done = call("export", kept, *words, cwd=person.home)
        assert done.returncode == 125
        assert done.stderr.startswith("hostfork: ")
        assert "Traceback" not in done.stderr
    assert not os.path.exists(f"{person.home}/x.tar")


def test_what_was_left_out_is_told_in_a_few_lines():
    from hostfork.cli.export import left_out_lines

    assert left_out_lines(()) == []
    lines = left_out_lines(tuple(f"a\n{number}" for number in range(8)))
    assert lines[1] == "  a\\x0a0"
    assert lines[-1] == "  and 3 more paths; --json lists them"


@pytest.mark.parametrize(("verb", "module"), [("list", "list"), ("run", "running")])
def test_a_fault_of_hostforks_own_is_one_error(root, verb, module):
    code = f"import sys; sys.modules['hostfork.cli.{module}'] = None; sys.argv = ['hostfork', '{verb}', '--', 'true']; "
    done = root.run([sys.executable, "-c", code + "from hostfork.__main__ import main; main()"])
    assert done.returncode == 125
    assert done.stderr.startswith("hostfork: an error that hostfork does not handle: ")
    assert done.stderr.endswith("code internal.fault · status 125\n")
    assert "Traceback" not in done.stderr
