"""Baselines of git repositories: checkouts that a fork can work in, of repositories that nobody has to trust."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostfork.baseline.git import Wanted, local_path, without_password
from hostfork.baseline.prebuilt import key_of
from rigs import Disk, Person

pytestmark = pytest.mark.rig("git")
Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
IDENTITY = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main",
            "-c", "protocol.file.allow=always")  # fmt: skip


def git(person: Person, folder: str, *arguments: str) -> str:
    return str(person.run(["git", *IDENTITY, *arguments], cwd=folder, check=True).stdout)


def commit(person: Person, folder: str, files: dict[str, str], message: str = "more") -> str:
    for name, text in files.items():
        path = f"{folder}/{name}"
        person.call(os.makedirs, os.path.dirname(path), 0o755, True)
        person.call(Path(path).write_text, text)
    git(person, folder, "add", "--all")
    git(person, folder, "commit", "--quiet", "--message", message)
    return git(person, folder, "rev-parse", "HEAD").strip()


def repository(person: Person, parent: str, name: str = "src") -> str:
    """Three commits: `main`, `side` and the tag `v1` at the first, and folders."""
    folder = f"{parent}/{name}"
    person.call(os.makedirs, folder, 0o755, True)
    git(person, folder, "init", "--quiet")
    commit(person, folder, {"a": "one\n", "lib/x": "x\n", "lib/deep/y": "y\n", "docs/z": "z\n"}, "first")
    git(person, folder, "tag", "v1")
    git(person, folder, "branch", "side")
    commit(person, folder, {"a": "two\n"}, "second")
    commit(person, folder, {"b": "b\n"}, "third")
    return folder


def made(hostfork: Run, person: Person, *arguments: str, **options: Any) -> Any:
    done = hostfork(person, "baseline", *arguments, "--json", check=0, **options)
    return json.loads(done.stdout)


def inside(hostfork: Run, person: Person, name: str, script: str, *more: str, **options: Any) -> str:
    return str(hostfork(person, "run", "--base", name, *more, "--", "sh", "-c", script, check=0, **options).stdout)


def generations(person: Person, name: str) -> list[str]:
    return sorted(path.name for path in Path(f"{person.state}/pool/baseline/{name}.0").iterdir())


@pytest.fixture(params=["ext4", "btrfs", "xfs"])
def pool_disk(request: pytest.FixtureRequest) -> Disk:
    """A disk for the state folder."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


def test_a_fork_can_work_in_a_checkout(pool_disk: Disk, hostfork: Run, person: Person) -> None:
    """At the repository's own path, clean, with its history; the first `git status` has nothing to read again."""
    env = {"XDG_STATE_HOME": pool_disk.folder(person)}
    source = repository(person, person.home)
    document = made(hostfork, person, "create", "r", "--git", source, env=env)
    head = git(person, source, "rev-parse", "HEAD").strip()
    assert document["baseline"]["commit"] == head
    assert (document["baseline"]["origin"], document["baseline"]["place"]) == ("git", source)
    commit(person, source, {"a": "the host's\n"})
    script = f"cd {source}; git status --porcelain=v2 --branch; git log --oneline | wc -l; cat a"
    said = inside(hostfork, person, "r", script, env=env)
    assert said.splitlines()[0] == f"# branch.oid {head}"
    assert said.splitlines()[1:] == [
        "# branch.head main",
        "# branch.upstream origin/main",
        "# branch.ab +0 -0",
        "3",
        "two",
    ]
    assert json.loads(hostfork(person, "list", "--json", env=env).stdout)["forks"] == []  # not even the index changed
    script = f"cd {source}; echo new >n; git add n; git -c user.name=n -c user.email=e commit -qm mine; git fsck"
    hostfork(person, "run", "--base", "r", "--name", "f", "--", "sh", "-c", script, check=0, env=env)
    assert "A  n" in hostfork(person, "diff", "f", env=env).stdout


def test_a_refresh_stores_what_changed_and_leaves_forks_alone(pool_disk: Disk, hostfork: Run, person: Person) -> None:
    env = {"XDG_STATE_HOME": pool_disk.folder(person)}
    source = repository(person, person.home)
    big = "".join(f"line {number}\n" for number in range(20_000))
    commit(person, source, {"big": big})
    made(hostfork, person, "create", "r", "--git", source, env=env)
    script = f"echo ready; read x; cd {source}; cat a; git status -s"
    command = [PROGRAM, "run", "--base", "r", "--", "sh", "-c", script]
    old = person.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    assert old.stdout is not None
    assert old.stdout.readline() == "ready\n"
    git(person, source, "rm", "-q", "-r", "docs")
    head = commit(person, source, {"a": "three\n"})
    document = made(hostfork, person, "refresh", "r", env=env)
    assert document["baseline"]["commit"] == head
    assert document["bytes_copied"] < len(big)  # it is there once
    script = f"cd {source}; cat a; ls; git status --porcelain; git log --oneline | head -n1"
    assert inside(hostfork, person, "r", script, env=env).split() == ["three", "a", "b", "big", "lib", head[:7], "more"]
    out, _ = old.communicate("\n")
    assert out == "two\n"
    assert made(hostfork, person, "refresh", "r", env=env)["files_copied"] < 10  # git writes its own index and logs
    assert "docs" not in inside(hostfork, person, "r", f"ls {source}", env=env)


@pytest.mark.parametrize(
    ("reference", "text", "branch"), [("side", "one", "side"), ("refs/heads/side", "one", "side"), ("v1", "one", ""),
                                      ("main", "two", "main"), ("COMMIT", "one", ""), ("SHORT", "one", "")],
)  # fmt: skip
def test_references(reference: str, text: str, branch: str, hostfork: Run, user: Person) -> None:
    source = repository(user, user.home)
    first = git(user, source, "rev-parse", "v1").strip()
    reference = {"COMMIT": first, "SHORT": first[:9]}.get(reference, reference)
    made(hostfork, user, "create", "r", "--git", source, "--ref", reference)
    script = f"cd {source}; cat a; git branch --show-current; git branch | wc -l"
    assert inside(hostfork, user, "r", script).split() == [text, *([branch] if branch else []), "1"]


def test_a_branch_that_moved_back_and_a_tag_that_moved(hostfork: Run, user: Person) -> None:
    source = repository(user, user.home)
    made(hostfork, user, "create", "r", "--git", source)
    made(hostfork, user, "create", "t", "--git", source, "--ref", "v1")
    git(user, source, "reset", "--quiet", "--hard", "HEAD~1")
    git(user, source, "tag", "--force", "v1", "HEAD")
    for name in ("r", "t"):
        made(hostfork, user, "refresh", name)
        assert (
            inside(hostfork, user, name, f"cd {source}; cat a; ls -d b 2>/dev/null; git status --porcelain") == "two\n"
        )


def test_some_folders_of_an_address(hostfork: Run, person: Person) -> None:
    """An address has no path of its own: `--at` gives it one, once and for all or for a run."""
    source = repository(person, person.home)
    git(person, source, "config", "uploadpack.allowFilter", "true")
    place = f"{person.home}/place"
    person.call(os.mkdir, place)
    done = hostfork(person, "baseline", "create", "r", "--git", f"file://{source}", "--sparse", "lib/deep", check=0)
    assert "run --base r --at PATH" in done.stdout
    done = hostfork(person, "run", "--base", "r", "--", "true", check=125)
    assert "--at PATH" in done.stderr
    assert inside(hostfork, person, "r", f"cd {place}; find . -name .git -prune -o -type f -print | sort", "--at", place
                  ) == "./a\n./b\n./lib/deep/y\n./lib/x\n"  # fmt: skip
    commit(person, source, {"lib/deep/y": "new\n", "docs/z": "new\n"})
    made(hostfork, person, "refresh", "r")
    script = f"cd {place}; cat lib/deep/y; ls; git status --porcelain; git log --oneline | wc -l"
    assert inside(hostfork, person, "r", script, "--at", place).split() == ["new", "a", "b", "lib", "4"]
    made(hostfork, person, "create", "there", "--git", f"file://{source}", "--at", place)
    assert inside(hostfork, person, "there", f"ls {place}").split() == ["a", "b", "docs", "lib"]


EVIL = "#!/bin/sh\necho evil >>{mark}\ncat\n"


@pytest.mark.parametrize("verb", ["create", "refresh"])
def test_a_hostile_repository_runs_nothing(verb: str, hostfork: Run, user: Person) -> None:
    """Neither by hooks, nor filters, monitors and helpers of its configuration, nor by what it has checked in."""
    source, mark = repository(user, user.home), f"{user.home}/mark"
    if verb == "refresh":
        made(hostfork, user, "create", "r", "--git", source)
    program = f"{user.home}/evil"
    user.call(Path(program).write_text, EVIL.format(mark=mark))
    user.call(os.chmod, program, 0o755)
    modules = f'[submodule "s"]\npath = s\nurl = ext::{program}\nupdate = !{program}\n'
    commit(user, source, {".gitattributes": "* filter=evil diff=evil merge=evil\n", ".gitmodules": modules})
    for name in ("post-checkout", "post-update", "pre-receive", "reference-transaction", "post-index-change",
                 "fsmonitor-watchman", "pre-auto-gc"):  # fmt: skip
        user.call(os.symlink, program, f"{source}/.git/hooks/{name}")
    for key in ("filter.evil.smudge", "filter.evil.clean", "filter.evil.process", "core.fsmonitor", "core.pager",
                "core.sshCommand", "core.alternateRefsCommand", "uploadpack.packObjectsHook", "diff.evil.textconv",
                "credential.helper", "core.askPass", "remote.origin.uploadpack"):  # fmt: skip
        git(user, source, "config", key, program)
    git(user, source, "config", "core.hooksPath", ".git/hooks")
    git(user, source, "config", "submodule.recurse", "true")
    head = git(user, source, "rev-parse", "HEAD").strip()
    for path in (mark,):
        Path(path).unlink(missing_ok=True)
    arguments = ("create", "r", "--git", source) if verb == "create" else ("refresh", "r")
    assert made(hostfork, user, *arguments)["baseline"]["commit"] == head
    assert not os.path.exists(mark)
    config = Path(inside(hostfork, user, "r", f"cp {source}/.git/config {user.home}/config; ls -A {source}/.git/hooks"))
    assert str(config) == "."
    assert "evil" not in Path(f"{user.home}/config").read_text()


def test_templates_and_variables_of_the_caller_do_nothing(hostfork: Run, user: Person) -> None:
    """A template's hooks run in no checkout, and variables that lead git elsewhere are not passed on."""
    source, mark = repository(user, user.home), f"{user.home}/mark"
    hooks = f"{user.home}/template/hooks"
    user.call(os.makedirs, hooks)
    user.call(Path(f"{hooks}/post-checkout").write_text, EVIL.format(mark=mark))
    user.call(os.chmod, f"{hooks}/post-checkout", 0o755)
    git(user, user.home, "config", "--global", "init.templateDir", f"{user.home}/template")
    other = repository(user, f"{user.home}/other")
    env = {"GIT_DIR": f"{other}/.git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": f"{other}/.git/index",
           "GIT_TEMPLATE_DIR": f"{user.home}/template", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath",
           "GIT_CONFIG_VALUE_0": hooks, "GIT_EXEC_PATH": hooks, "GIT_TRACE": f"{user.home}/trace"}  # fmt: skip
    before = git(user, other, "status", "--porcelain=v2", "--branch")
    made(hostfork, user, "create", "r", "--git", source, env=env)
    made(hostfork, user, "refresh", "r", env=env)
    assert not os.path.exists(mark)
    assert not os.path.exists(f"{user.home}/trace")
    assert git(user, other, "status", "--porcelain=v2", "--branch") == before


def test_a_work_tree_of_another_repository(hostfork: Run, person: Person) -> None:
    """Its `.git` is a file; what is taken is a repository of its own."""
    source, tree = repository(person, person.home), f"{person.home}/tree"
    git(person, source, "worktree", "add", "--quiet", tree, "side")
    made(hostfork, person, "create", "r", "--git", tree)
    assert (
        inside(hostfork, person, "r", f"cd {tree}; cat a; test -d .git && git branch --show-current") == "one\nside\n"
    )


def test_submodules_are_named_and_not_taken(hostfork: Run, user: Person) -> None:
    source, other = repository(user, user.home), repository(user, f"{user.home}/other")
    git(user, source, "submodule", "--quiet", "add", other, "vendor/sub")
    git(user, source, "commit", "--quiet", "--message", "sub")
    document = made(hostfork, user, "create", "r", "--git", source)
    assert document["left_out"] == ["vendor/sub"]
    assert inside(hostfork, user, "r", f"cd {source}; ls vendor/sub; git status --porcelain") == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--git", "nowhere"), "baseline.origin", "does not exist"),
        (("--git", "ext::sh -c true"), "baseline.origin", "not allowed"),
        (("--git", "empty"), "baseline.origin", "HEAD"),
        (("--git", "src", "--ref", "nothing"), "baseline.origin", "no branch, tag or commit nothing"),
        (("--git", "src", "--ref", "HEAD~1"), "baseline.origin", "no branch, tag or commit"),
        (("--git", "src", "--ref", "deadbeef"), "baseline.origin", "no branch, tag or commit"),
        (("--git", "src", "--ref", "--upload-pack=x"), "policy.usage", "--ref"),
        (("--git", "src", "--sparse", "a"), "baseline.origin", "no folder a"),
        (("--git", "src", "--sparse", "link"), "baseline.origin", "no folder link"),
        (("--git", "src", "--sparse", "nothing"), "baseline.origin", "no folder nothing"),
        (("--git", "src", "--sparse", "../x"), "policy.usage", "--sparse"),
        (("--git", "src", "--from", "src"), "policy.usage", "two baselines"),
        (("--git", "src", "--archive", "x.tar"), "policy.usage", "two baselines"),
        (("--ref", "main", "--from", "src"), "policy.usage", "--git"),
        (("--git", "http://127.0.0.1:9/o/r"), "baseline.origin", "127.0.0.1"),
        (("--git", "https://who:secret@127.0.0.1:9/o/r"), "baseline.origin", "who:***@127.0.0.1"),
    ],
)  # fmt: skip
def test_what_cannot_be_had(arguments: tuple[str, ...], code: str, words: str, hostfork: Run, user: Person) -> None:
    """One error with git's own words; nothing is left."""
    source = repository(user, user.home)
    user.call(os.symlink, "/etc", f"{source}/link")
    commit(user, source, {})
    git(user, user.home, "init", "--quiet", "empty")
    done = hostfork(user, "baseline", "create", "x", *arguments)
    assert done.returncode in (2, 125)
    assert f"code {code}" in done.stderr, done.stderr
    assert words in done.stderr
    assert "secret" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    folder = Path(f"{user.state}/pool/baseline")
    assert not folder.is_dir() or [path.name for path in folder.iterdir() if not path.name.startswith("rm-")] == []


def test_a_repository_that_is_gone_leaves_the_baseline_as_it_was(hostfork: Run, user: Person) -> None:
    source = repository(user, user.home)
    made(hostfork, user, "create", "r", "--git", source)
    user.call(os.rename, source, f"{source}2")
    done = hostfork(user, "baseline", "refresh", "r", check=125)
    assert "code baseline.origin" in done.stderr
    user.call(os.mkdir, source)
    assert inside(hostfork, user, "r", f"cat {source}/a") == "two\n"


# --- the nearest one -------------------------------------------------------------------------------------------------


def entries(person: Person) -> list[Any]:
    return [json.loads(path.read_text()) for path in Path(f"{person.state}/prebuilt").iterdir()]


def test_another_baseline_of_a_repository_begins_as_the_nearest(hostfork: Run, person: Person) -> None:
    """One entry per key, replaced; never one of another owner; one that was removed is none."""
    source = repository(person, f"{person.home}/owner")
    foreign = repository(person, f"{person.home}/foreign")
    assert made(hostfork, person, "create", "one", "--git", source)["started_from"] is None
    assert made(hostfork, person, "create", "strange", "--git", foreign)["started_from"] is None
    assert made(hostfork, person, "create", "side", "--git", source, "--ref", "side")["started_from"] == "one"
    assert (
        made(hostfork, person, "create", "tag", "--git", source, "--ref", "v1")["started_from"] == "side"
    )  # the latest
    document = made(hostfork, person, "create", "same", "--git", source)
    assert document["started_from"] == "one"  # of the same reference
    assert sorted((one["reference"], one["baseline"]) for one in entries(person)) == [
        ("", "same"), ("", "strange"), ("side", "side"), ("v1", "tag"),
    ]  # fmt: skip
    script = f"cd {source}; cat a; git branch; git status --porcelain"
    assert inside(hostfork, person, "side", script) == "one\n* side\n"
    assert inside(hostfork, person, "same", script) == "two\n* main\n"
    for name in ("same", "side", "tag"):
        hostfork(person, "baseline", "remove", name, check=0)
    assert made(hostfork, person, "create", "last", "--git", source)["started_from"] is None
    assert sorted(one["baseline"] for one in entries(person)) == ["last", "strange"]


def test_only_what_is_clean_is_a_beginning(hostfork: Run, user: Person) -> None:
    """Looked at when it is made, and again before it is used."""
    source = repository(user, user.home)
    commit(user, source, {".gitattributes": "c text eol=crlf\n"})
    git(user, source, "-c", "core.attributesFile=/dev/null", "rm", "--cached", "--quiet", ".gitattributes")
    blob = git(user, source, "hash-object", "-w", "--no-filters", "a").strip()
    git(user, source, "update-index", "--add", "--cacheinfo", f"100644,{blob},c")
    git(user, source, "commit", "--quiet", "--message", "clean")
    made(hostfork, user, "create", "one", "--git", source)
    tree = Path(f"{user.state}/pool/baseline/one.0/t1/tree")
    (tree / "a").write_text("tampered\n")
    document = made(hostfork, user, "create", "two", "--git", source)
    assert document["started_from"] is None
    assert inside(hostfork, user, "two", f"cat {source}/a") == "two\n"


def test_a_partial_one_is_no_beginning(hostfork: Run, user: Person) -> None:
    source = repository(user, user.home)
    made(hostfork, user, "create", "one", "--git", f"file://{source}", "--sparse", "lib")
    assert made(hostfork, user, "create", "two", "--git", f"file://{source}")["started_from"] is None
    assert (
        made(hostfork, user, "create", "three", "--git", f"file://{source}", "--sparse", "docs")["started_from"]
        == "two"
    )
    place = f"{user.home}/p"
    user.call(os.mkdir, place)
    assert inside(hostfork, user, "three", f"ls {place}", "--at", place).split() == ["a", "b", "docs"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://example.org/o/r.git", "https://example.org/o/r", True),
        ("https://example.org/o/r", "git@example.org:o/r.git", True),
        ("https://who:word@Example.org:443/o/r/", "ssh://git@example.org/o/r", True),
        ("https://example.org/o/r", "https://example.org/p/r", False),
        ("https://example.org/o/r", "https://example.com/o/r", False),
        ("https://example.org/o/r", "http://example.org/o/r", False),
        ("https://example.org/o/r", "https://example.org:8443/o/r", False),
        ("alice@example.org:r", "bob@example.org:r", False),
        ("https://example.org/o/r", "https://example.org/o/r/s", False),
        ("/srv/o/r", "file:///srv/o/r", True),
        ("/srv/o/r", "/srv/o/r/.git", True),
        ("/srv/o/r", "/srv/p/r", False),
    ],
)
def test_who_owns_a_repository(one: str, other: str, same: bool) -> None:
    first, second = key_of(Wanted(one)), key_of(Wanted(other))
    assert (first == second) is same
    assert (first.name == second.name) is same


def test_addresses() -> None:
    assert local_path("https://example.org/o/r") is None
    assert local_path("git@example.org:o/r") is None
    assert local_path("./a:b") == os.path.abspath("a:b")
    assert without_password("https://who:word@example.org/o") == "https://who:***@example.org/o"
    for shown in ("https://who@example.org/o", "git@example.org:o/r", "/a/b@c:d"):
        assert without_password(shown) == shown


# --- killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["mkdir,mkdirat", "rename,renameat,renameat2", "link,linkat", "execve", "wait4"])
@pytest.mark.parametrize("verb", ["create", "refresh"])
def test_killed_at_any_step(verb: str, call: str, hostfork: Run, user: Person) -> None:
    """Then `recover` leaves nothing of it; one that was there is what it was, or what it was to be."""
    source = repository(user, user.home)
    for when in (1, 2, 4, 7, 11):
        if verb == "refresh":
            made(hostfork, user, "create", "x", "--git", source, "--ref", "main")
            git(user, source, "commit", "--quiet", "--allow-empty", "--message", str(when))
        arguments = ("create", "x", "--git", source, "--ref", "main") if verb == "create" else ("refresh", "x")
        user.run(["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}",
                  PROGRAM, "baseline", *arguments])  # fmt: skip
        hostfork(user, "recover", check=0)
        listed = json.loads(hostfork(user, "baseline", "list", "--json", check=0).stdout)["baselines"]
        folder = Path(f"{user.state}/pool/baseline")
        left = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        assert left == ["x.0" for _ in listed]
        if verb == "refresh":
            (known,) = listed
            said = inside(hostfork, user, "x", f"cd {source}; git rev-parse HEAD; git status --porcelain")
            assert json.loads(hostfork(user, "list", "--json").stdout)["forks"] == []  # the index is as it was
            assert said == known["commit"] + "\n"
            named = [name for name in generations(user, "x") if name[0] in "gt" and name[1:].isdigit()]
            assert len(named) == 2, named  # one generation of one tree
        if listed:
            hostfork(user, "baseline", "remove", "x", check=0)


def test_a_git_that_is_left_alone_ends(hostfork: Run, user: Person) -> None:
    """SIGKILL of hostfork ends the git that it waits for."""
    source = repository(user, user.home)
    slow = f"{user.home}/slow"
    user.call(Path(slow).write_text, f"#!/bin/sh\necho $$ >{user.home}/pid\nexec sleep 1000\n")
    user.call(os.chmod, slow, 0o755)
    env = {"GIT_SSH_COMMAND": slow}
    process = user.popen([PROGRAM, "baseline", "create", "x", "--git", f"ssh://git@example.org{source}"], env=env,
                         stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # fmt: skip
    wait(lambda: Path(f"{user.home}/pid").is_file() and Path(f"{user.home}/pid").read_text().endswith("\n"))
    clones = [pid for pid in os.listdir("/proc") if pid.isdigit() and "--no-checkout" in command(pid)]
    assert clones
    process.kill()
    process.wait()
    wait(lambda: not any("--no-checkout" in command(pid) for pid in clones))
    os.kill(int(Path(f"{user.home}/pid").read_text()), 9)
    hostfork(user, "recover", check=0)
    assert os.listdir(f"{user.state}/pool/baseline") == []


def command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait(condition: Callable[[], bool]) -> None:
    import time

    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
