"""From options to a request, by values; and where a run's result goes."""

import json
import os
import stat

import pytest

import cli_values as values
from hostfork.cli import report, result
from hostfork.cli.asking import descriptor, environment, request_from
from hostfork.cli.output import Output
from hostfork.errors import Code, CommandError, HostError, HostforkError, PolicyError, StorageError
from hostfork.lifecycle.request import Keep, Request
from hostfork.policy.rules import Environment, Quiesce, RuleOptions

NONE = {
    "private": (), "read_only": (), "shared": (), "scratch": (), "hidden": (), "endpoint": (), "policy": None,
    "require": (), "share_all": False, "relocated": False, "cwd": None, "env": (), "env_file": (),
    "clear_env": False, "fd": (), "timeout": None, "storage_limit": None, "pool": None,
    "prefer": None, "quiesce": None, "unquiesce": None, "freeze_cgroup": None, "unreadable": None, "base": None,
    "at": None, "port": (), "private_git": False,
}  # fmt: skip


def request(command=("true",), **options):
    return request_from({**NONE, **options}, command)


def test_no_options_are_the_default_request():
    assert request() == Request(("true",))


def test_every_option_has_its_place():
    asked = request(
        private=("a:copy",), read_only=("b",), shared=("c",), scratch=("d:tmpfs=1M",), hidden=("e",),
        endpoint=("f",), policy="build", require=("cgroup",), share_all=True, relocated=True, env=("K=V",),
        clear_env=True, fd=("5", "7"), timeout="5m", storage_limit="2G", pool="p", name="n", keep=True, export="out",
        prefer="memory", quiesce="stop", unquiesce="start", freeze_cgroup="/g",
        base="mono", at="there", port=("P", "Q"),
    )  # fmt: skip
    assert asked == Request(
        ("true",),
        "build",
        RuleOptions(("a:copy",), ("b",), ("c",), ("d:tmpfs=1M",), ("e",), ("f",), ("cgroup",),
                    Environment(True, (("K", "V"),)), True, 300.0, "memory",
                    quiesce=Quiesce("stop", "start", "/g"), storage_limit=2 << 30),
        "n", Keep.ALWAYS, "out", None, (5, 7), "p", True, "mono", "there", ports=("P", "Q"),
    )  # fmt: skip
    assert request(rm=True).keep is Keep.NEVER


def test_paths_are_the_shells_own_also_with_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    asked = request(private=(".", "x:copy", "/y", "~/z"), cwd="sub", pool="p", export="out")
    here = str(tmp_path)
    assert asked.rules.private == (f"{here}/.", f"{here}/x:copy", "/y", "~/z")
    assert (asked.cwd, asked.pool, asked.export) == (f"{here}/sub", f"{here}/p", f"{here}/out")
    assert request(cwd="~/a").cwd == "/home/me/a"


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"keep": True, "rm": True}, "--rm"),
        ({"timeout": "soon"}, "--timeout"),
        ({"timeout": "0"}, "--timeout"),
        ({"timeout": "-1s"}, "--timeout"),
        ({"storage_limit": "much"}, "--storage-limit"),
        ({"storage_limit": "0"}, "--storage-limit"),
        ({"fd": ("2",)}, "--fd"),
        ({"fd": ("x",)}, "--fd"),
        ({"fd": ("٣",)}, "--fd"),
        ({"env": ("=x",)}, "--env"),
        ({"env": ("HOSTFORK_NOT_SET",)}, "--env"),
        ({"env_file": ("/nonexistent/file",)}, "--env-file"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(options, place):
    with pytest.raises(PolicyError) as caught:
        request(**options)
    assert caught.value.place == place
    assert caught.value.hint or caught.value.errno


def test_the_environment_comes_from_files_then_options(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTFORK_KEPT", "k\udcff")
    file = tmp_path / "env"
    file.write_bytes(b"# no\n\nA=1\r\nB=x=y z\nC=\xff\nD=\n")
    assert environment(False, (str(file),), ("A=2", "HOSTFORK_KEPT")) == Environment(
        False,
        (("A", "1"), ("B", "x=y z"), ("C", "\udcff"), ("D", ""), ("A", "2"), ("HOSTFORK_KEPT", "k\udcff")),
    )


@pytest.mark.parametrize("line", [b"novalue", b"=x", b" A=1", b"A =1", b"A=\0"])
def test_a_line_of_an_environment_file_that_is_none_is_named(tmp_path, line):
    file = tmp_path / "env"
    file.write_bytes(b"OK=1\n" + line + b"\n")
    with pytest.raises(PolicyError) as caught:
        environment(False, (str(file),), ())
    assert "line 2" in caught.value.message


def test_descriptors_are_above_two():
    assert descriptor("--fd", "3") == 3


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_result_replaces_the_file_whole(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    inode = path.stat().st_ino
    result.write_result(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_ino != inode
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_result_through_a_link_replaces_what_it_names(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    result.write_result(str(tmp_path / "link"), {})
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text()) == {}


def test_a_result_into_a_pipe_is_written_into_it(tmp_path):
    read, write = os.pipe()
    result.write_result(f"/dev/fd/{write}", {"a": 1})
    os.close(write)
    assert json.loads(os.read(read, 1000)) == {"a": 1}
    os.close(read)


def test_a_result_that_cannot_be_written_leaves_nothing(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "x").write_text("")
    with pytest.raises(OSError, match=r"."):
        result.write_result(str(target), {})
    assert sorted(os.listdir(tmp_path)) == ["folder"]


def test_a_result_file_is_judged_before_anything_is_made(tmp_path, root, user):
    result.check_result(str(tmp_path / "new"))
    result.check_result("/dev/null")
    for path in (tmp_path, tmp_path / "no/file"):
        with pytest.raises(PolicyError) as caught:
            result.check_result(str(path))
        assert caught.value.place == "--result"
    os.chmod(tmp_path, stat.S_IRWXU)
    with pytest.raises(PolicyError, match="cannot be written"):
        user.call(result.check_result, "/usr/new-result-of-hostfork")


def test_status_lines_end_quietly_when_nobody_reads():
    read, write = os.pipe()
    lines = result.open_status(write)
    assert not os.get_inheritable(write)
    lines.write("started", pid=7)
    assert json.loads(os.read(read, 1000)) == {"event": "started", "pid": 7}
    os.close(read)
    assert lines.wanted
    lines.write("ended")
    assert not lines.wanted
    lines.write("ended")
    os.close(write)


def test_a_status_descriptor_must_be_open_above_two_and_not_the_commands():
    assert not result.open_status(None).wanted
    with open("/dev/null") as file:
        closed = file.fileno()
    for number, passed in ((closed, ()), (2, ()), (closed, (closed,))):
        with pytest.raises(PolicyError) as caught:
            result.open_status(number, passed)
        assert caught.value.place == "--status-fd"


def test_a_failure_is_told_wherever_it_was_asked_for(tmp_path, capfd):
    path = tmp_path / "r.json"
    read, write = os.pipe()
    result.write_failure(values.error(), {"result": str(path), "status_fd": str(write)}, Output())
    os.close(write)
    written = json.loads(path.read_text())
    assert written["status"]["error"]["code"] == "fork.corrupt"
    assert json.loads(os.read(read, 10000)) == {"event": "result", "result": written}
    os.close(read)
    result.write_failure(values.error(), {}, Output())
    result.write_failure(values.error(), {"status_fd": "x"}, Output())
    result.write_failure(values.error(), {"status_fd": "999"}, Output())
    assert capfd.readouterr().err == ""
    result.write_failure(values.error(), {"result": "/nonexistent/r"}, Output())
    assert "the result was not written to /nonexistent/r: No such file" in capfd.readouterr().err


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "verb", "status"),
    [
        (Code.COMMAND_NOT_FOUND, "run", 127),
        (Code.COMMAND_NOT_EXECUTABLE, "run", 126),
        (Code.WORKLOAD_TIMEOUT, "run", 124),
        (Code.POLICY_USAGE, "run", 125),
        (Code.POLICY_USAGE, "diff", 2),
        (Code.POLICY_USAGE, None, 2),
        (Code.FORK_CONFIRM, "discard", 2),
        (Code.FORK_NOT_FOUND, "diff", 125),
        (Code.COMMAND_NOT_FOUND, "plan", 125),
    ],
)
def test_exit_statuses_of_errors(code, verb, status):
    assert report.exit_status(HostforkError(code, "x"), verb) == status


def test_an_error_says_what_why_and_what_helps():
    error = StorageError(
        Code.STORAGE_UNSUPPORTED, "~/proj cannot be cloned by reflink", path="/home/me/proj", place="--private",
        step="probe", errno=95, details=("ext4 on /dev/vda2 does not share blocks",),
        hint="--private ~/proj copies 38 MB once",
    )  # fmt: skip
    assert report.error_lines(error, 125, "run") == [
        "hostfork: ~/proj cannot be cloned by reflink",
        "  in --private",
        "  ext4 on /dev/vda2 does not share blocks",
        "  probe: Operation not supported",
        "  --private ~/proj copies 38 MB once",
        "  code storage.unsupported · nothing was made · status 125",
    ]


def test_an_error_repeats_nothing_and_claims_nothing():
    error = CommandError(Code.COMMAND_NOT_FOUND, "--cwd x: no such file or directory", place="--cwd", errno=2)
    assert report.error_lines(error, 127, "run") == [
        "hostfork: --cwd x: no such file or directory",
        "  code command.not-found · status 127",
    ]
    host = HostError(Code.HOST_MISSING, "a\x1b[2J", errno=1)
    assert report.error_lines(host, 125, "doctor") == [
        "hostfork: a\\x1b[2J",
        "  Operation not permitted",
        "  code host.missing · status 125",
    ]


def test_an_exception_that_nobody_foresaw_is_an_error_too():
    try:
        os.open(b"/nonexistent/\xff", os.O_RDONLY)
    except OSError as error:
        wrapped = report.fault(error)
    assert (wrapped.code, wrapped.errno, wrapped.path) == (Code.INTERNAL_FAULT, 2, "/nonexistent/\udcff")
    assert report.fault(ValueError("x")).path is None
