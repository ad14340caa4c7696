"""What people install: the wheel and the source archive hold all that hostfork needs, and need no compiler."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import rigs
from rigs import Bench, Disk, Person

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HELPER = "hostfork/helper/hostfork-helper"


@dataclass(frozen=True)
class Built:
    """The two files that are published."""

    wheel: str
    sdist: str


def build(what: str, source: str, target: str) -> str:
    """Build "wheel" or "sdist" from a source folder with the project's own build backend; the file."""
    script = f"import sys, hatchling.build as b; print(b.build_{what}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, target], cwd=source, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return os.path.join(target, done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    target = str(tmp_path_factory.mktemp("dist"))
    return Built(build("wheel", ROOT, target), build("sdist", ROOT, target))


@pytest.fixture(scope="module")
def installed(built: Built, bench: Bench) -> Iterator[str]:
    """A bare environment with the wheel in it, made where no compiler is on PATH."""
    folder = os.path.join(bench.folder, "installed")
    base = os.path.realpath(sys.executable)
    subprocess.run([base, "-I", "-m", "venv", folder], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC")}
    environment["PATH"] = os.path.join(folder, "bin")
    assert shutil.which("cc", path=environment["PATH"]) is None
    done = subprocess.run(
        [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", built.wheel],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    yield folder
    rigs.remove_tree(folder)


def test_wheel_holds_everything(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
        mode = archive.getinfo(HELPER).external_attr >> 16
    sources = {
        os.path.relpath(os.path.join(folder, name), os.path.join(ROOT, "src"))
        for folder, _, files in os.walk(os.path.join(ROOT, "src", "hostfork"))
        for name in files
        if not name.endswith(".pyc")
    }
    policies = {f"hostfork/policies/{name}" for name in os.listdir(os.path.join(ROOT, "policies"))}
    assert {"hostfork/policies/workspace.toml", "hostfork/policies/build.toml"} <= policies
    assert sources | policies <= names
    assert "hostfork/py.typed" in names
    assert mode & 0o111 == 0o111
    assert not [name for name in names if name.startswith(("tests", "spikes", "demo"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_source_archive_builds_the_same_wheel(built: Built, tmp_path: os.PathLike[str]) -> None:
    place = os.fspath(tmp_path)
    with tarfile.open(built.sdist) as archive:
        archive.extractall(place)
    (source,) = os.listdir(place)
    again = build("wheel", os.path.join(place, source), place)
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(built.wheel) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_installed_command_works_for_everybody(installed: str, person: Person) -> None:
    program = os.path.join(installed, "bin", "hostfork")
    from hostfork import __version__

    assert __version__ in person.run([program, "--version"], check=True).stdout
    listed = person.run([program, "policy", "list"], check=True).stdout
    assert "workspace" in listed
    assert "build" in listed


@pytest.mark.rig("user namespaces")
def test_installed_helper_can_be_executed(
    installed: str, person: Person, ext4_disk: Disk, leaves_nothing: None
) -> None:
    source = ext4_disk.folder(person)
    program = os.path.join(installed, "bin", "hostfork")
    done = person.run(
        [program, "run", "--private", source, "--rm", "--", "sh", "-c", "touch inside; ls; exit 7"], cwd=source
    )
    assert (done.returncode, done.stdout) == (7, "inside\n"), done.stderr
    assert os.listdir(source) == []
