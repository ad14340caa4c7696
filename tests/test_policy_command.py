"""Which program is meant, as execvp finds it, and which an ordinary user's fork cannot run."""

import os
import subprocess
from typing import Any

import pytest

from hostfork.errors import Code, CommandError
from hostfork.policy.command import resolve_command
from policy_rig import bind, tree, with_mounts
from rigs import Disk, Person


@pytest.fixture
def base(tmp_path: Any) -> str:
    path = os.path.realpath(tmp_path)
    tree(path, "one/", "two/tool", "one/plain", "two/folder/")
    os.chmod(f"{path}/two/tool", 0o755)
    return path


def refusal(argv0: str, cwd: str, path: str | None, user_namespace: bool = False) -> CommandError:
    with pytest.raises(CommandError) as caught:
        resolve_command(argv0, cwd, path, user_namespace=user_namespace)
    return caught.value


def resolved(argv0: str, cwd: str, path: str | None) -> str:
    return resolve_command(argv0, cwd, path, user_namespace=True)


def test_commands_are_found_where_execvp_finds_them(base: str) -> None:
    both = f"{base}/one:{base}/two"
    assert resolved("tool", "/", both) == f"{base}/two/tool"
    assert resolved("./tool", f"{base}/two", "/none") == f"{base}/two/./tool"
    assert resolved("two/tool", base, None) == f"{base}/two/tool"
    assert resolved(f"{base}/two/tool", "/", "") == f"{base}/two/tool"
    assert resolved("tool", f"{base}/two", "/none:") == f"{base}/two/tool"
    assert resolved("tool", base, "two") == f"{base}/two/tool"
    assert resolved("true", "/", None) in ("/bin/true", "/usr/bin/true")


def test_a_link_keeps_its_name(base: str) -> None:
    os.symlink("../two/tool", f"{base}/one/alias")
    assert resolved("alias", "/", f"{base}/one") == f"{base}/one/alias"


def test_one_that_cannot_run_is_passed_over_for_one_that_can(base: str) -> None:
    tree(base, "one/tool", "three/tool/")
    assert resolved("tool", "/", f"{base}/one:{base}/three:{base}/two") == f"{base}/two/tool"


@pytest.mark.parametrize(
    ("argv0", "word"),
    [("nothing", "in the folders of PATH"), ("./nothing", "./nothing"), ("", "empty"), ("a\0b", "no")],
)
def test_commands_that_are_not_there(base: str, argv0: str, word: str) -> None:
    error = refusal(argv0, base, f"{base}/one")
    assert (error.code, error.exit_status, error.errno) == (Code.COMMAND_NOT_FOUND, 127, 2)
    assert word in error.message


def test_a_file_in_the_place_of_a_folder_is_not_found(base: str) -> None:
    assert refusal("two/tool/x", base, None).code is Code.COMMAND_NOT_FOUND
    assert refusal("x", base, f"{base}/two/tool").code is Code.COMMAND_NOT_FOUND


def test_commands_that_cannot_be_executed(base: str) -> None:
    for argv0, path, word in (
        ("plain", f"{base}/one", "cannot be executed"),
        ("./plain", None, "cannot be executed"),
        ("folder", f"{base}/two", "is a folder"),
        ("../two", None, "is a folder"),
    ):
        error = refusal(argv0, f"{base}/one", path)
        assert (error.code, error.exit_status, error.errno) == (Code.COMMAND_NOT_EXECUTABLE, 126, 13)
        assert word in error.message
    tree(base, "one/both", "two/both/")
    assert refusal("both", "/", f"{base}/one:{base}/two").path == f"{base}/one/both"


def test_the_answers_are_those_of_env(base: str) -> None:
    for argv0 in ("tool", "plain", "nothing", "folder", "./two/tool", "./one"):
        variables = {"PATH": f"{base}/one:{base}/two"}
        with open(f"{base}/two/tool", "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nexit 0\n")
        status = subprocess.run(
            ["/usr/bin/env", argv0], check=False, env=variables, cwd=base, stderr=subprocess.DEVNULL
        ).returncode
        if status == 0:
            resolved(argv0, base, variables["PATH"])
        else:
            assert refusal(argv0, base, variables["PATH"]).exit_status == status


def _code_as(argv0: str) -> Code:
    return refusal(argv0, "/", None).code


def test_a_folder_that_may_not_be_entered(user: Person, root: Person, ext4_disk: Disk) -> None:
    shut = ext4_disk.folder(root)
    tree(shut, "tool")
    os.chmod(f"{shut}/tool", 0o755)
    os.chmod(shut, 0o700)
    assert user.call(_code_as, f"{shut}/tool") is Code.COMMAND_NOT_EXECUTABLE


def _privileged(argv0: str, user_namespace: bool) -> str:
    try:
        return resolve_command(argv0, "/", None, user_namespace=user_namespace)
    except CommandError as error:
        return f"{error.code.text}: {error.message}: {error.hint}"


def test_set_uid_programs_of_others_are_refused_to_users(user: Person, root: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(root)
    tree(folder, "suid", "sgid", "own")
    os.chown(f"{folder}/own", user.uid, user.gid)
    os.chmod(f"{folder}/suid", 0o4755)
    os.chmod(f"{folder}/sgid", 0o2755)
    os.chmod(f"{folder}/own", 0o6755)
    os.symlink("suid", f"{folder}/link")
    for name in ("suid", "link"):
        answer = user.call(_privileged, f"{folder}/{name}", True)
        assert answer.startswith("command.set-uid: ")
        assert "set-uid" in answer
    assert user.call(_privileged, f"{folder}/sgid", True) == f"{folder}/sgid"
    assert user.call(_privileged, f"{folder}/own", True) == f"{folder}/own"
    assert user.call(_privileged, f"{folder}/suid", False) == f"{folder}/suid"


def _snaps(base: str, place: str, user_namespace: bool) -> tuple[str, str]:
    """A snap's link as snapd makes it, and a program that lies in its folder."""
    os.makedirs(f"{base}/root/usr/bin")
    os.makedirs(f"{base}/root{place}")
    tree(base, "root/usr/bin/snap")
    os.chmod(f"{base}/root/usr/bin/snap", 0o755)
    tree(base, f"root{place}/direct")
    os.chmod(f"{base}/root{place}/direct", 0o755)
    os.symlink("/usr/bin/snap", f"{base}/root{place}/app")
    os.symlink(f"{place}/app", f"{base}/root/usr/bin/app")
    bind(f"{base}/root", f"{base}/root")
    os.chroot(f"{base}/root")
    os.chdir("/")
    return tuple(_privileged(name, user_namespace) for name in ("app", f"{place}/direct"))  # type: ignore[return-value]


@pytest.mark.parametrize("place", ["/snap/bin", "/var/lib/snapd/snap/bin"])
def test_snaps_are_refused_to_users(base: str, place: str) -> None:
    for answer in with_mounts(_snaps, base, place, True):
        assert answer.startswith("command.set-uid: ")
        assert "is a snap" in answer


def test_snaps_are_root_s_to_run(base: str) -> None:
    assert with_mounts(_snaps, base, "/snap/bin", False) == ("/usr/bin/app", "/snap/bin/direct")
