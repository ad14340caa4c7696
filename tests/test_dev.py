"""The script that everybody starts with, and the demo that it runs."""

import ensurepip
import os
import shutil
import subprocess
import sys

import pytest

from rigs import Disk, Person

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def checkout(folder: str) -> str:
    """What `dev` needs of a clone."""
    for name in ("src", "policies", "man", "docs/schemas", "demo"):
        shutil.copytree(os.path.join(ROOT, name), os.path.join(folder, name), ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("dev", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(os.path.join(ROOT, name), os.path.join(folder, name))
    return folder


def without_ensurepip(folder: str, path: str) -> "subprocess.CompletedProcess[str]":
    """`./dev demo` where Python has no ensurepip: Debian without python3-venv. Seen by this program alone."""
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$1" && cd "$2" && exec ./dev demo', "sh",
         os.path.dirname(ensurepip.__file__), folder],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path},
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip


def test_help_and_bad_usage(root: Person) -> None:
    dev = os.path.join(ROOT, "dev")
    told = root.run([dev, "help"], check=True).stdout
    assert [line.split()[0] for line in told.splitlines() if line.startswith("  ")] == [
        "demo", "test", "lint", "bench", "docs", "help",
    ]  # fmt: skip
    assert root.run([dev], check=True).stdout == told
    wrong = root.run([dev, "no-such-command"])
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", told)


def test_missing_venv_is_said_with_the_line_to_type(root: Person, ext4_disk: Disk) -> None:
    folder = checkout(ext4_disk.folder(root))
    done = without_ensurepip(folder, SYSTEM_PATH)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.endswith("type: apt-get install python3-venv\n")
    assert done.stderr.count("\n") == 1
    assert not os.path.exists(os.path.join(folder, ".venv"))


@pytest.mark.slow
@pytest.mark.rig("user namespaces")
@pytest.mark.timeout(300)
def test_virtualenv_serves_where_venv_is_missing(root: Person, ext4_disk: Disk) -> None:
    folder = checkout(ext4_disk.folder(root))
    tools = os.path.join(ext4_disk.folder(root), "tools")
    subprocess.run([os.path.realpath(sys.executable), "-I", "-m", "venv", tools], check=True)
    subprocess.run([os.path.join(tools, "bin", "pip"), "install", "--quiet", "virtualenv"], check=True)
    only = ext4_disk.folder(root)
    os.symlink(os.path.join(tools, "bin", "virtualenv"), os.path.join(only, "virtualenv"))
    done = without_ensurepip(folder, f"{SYSTEM_PATH}:{only}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "byte for byte what it was" in done.stdout
    again = without_ensurepip(folder, SYSTEM_PATH)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "installing" not in again.stderr


def demo(person: Person, *, namespaces: bool) -> str:
    done = person.run(
        [os.path.join(ROOT, "demo", "demo.sh"), os.path.join(sys.prefix, "bin", "hostfork")],
        env={"TMPDIR": person.home},
        namespaces=namespaces,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in os.listdir(person.home) if "demo" in name] == []
    told: str = done.stdout + done.stderr
    assert "built dist/wordcount.pyz" in told
    assert "byte for byte what it was" in told
    lines = [line.split() for line in told.splitlines()]
    for change, path in (("A", "README.md"), ("M", "src/wordcount/__init__.py"), ("D", "notes/old.txt")):
        assert [line for line in lines if line[:1] == [change] and line[1].endswith(path)], (change, path)
    return told


@pytest.mark.rig("user namespaces", "git")
def test_demo_does_the_main_job(person: Person, leaves_nothing: None) -> None:
    told = demo(person, namespaces=True)
    assert f"working in {person.home}/hostfork-demo." in told
    assert "--relocated" not in told


@pytest.mark.rig("user namespaces", "git")
def test_demo_where_namespaces_are_denied(user: Person, leaves_nothing: None) -> None:
    told = demo(user, namespaces=False)
    assert "host.namespaces" in told
    assert "hostfork run -v --name demo --relocated --private" in told
