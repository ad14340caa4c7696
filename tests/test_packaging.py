"""What people install: the wheel and the source archive hold all that hostfork needs, and need no compiler."""

import email
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
from hostfork import __version__
from rigs import Bench, Disk, Person

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HELPER = "hostfork/helper/hostfork-helper"


@dataclass(frozen=True)
class Built:
    """The two files that are published."""

    wheel: str
    sdist: str


def names_in(sdist: str) -> set[str]:
    """What a source archive holds, below its one folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def files_below(folder: str) -> set[str]:
    """Files below a folder of the project, relative to it, without what Python leaves."""
    place = os.path.join(ROOT, folder)
    return {
        os.path.relpath(os.path.join(inner, name), place)
        for inner, _, files in os.walk(place)
        for name in files
        if not name.endswith(".pyc")
    }


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


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, built: Built, bench: Bench) -> Iterator[str]:
    """A bare environment with the wheel in it, or what pip makes of the source archive; no compiler is on PATH."""
    folder = os.path.join(bench.folder, f"installed-{request.param}")
    base = os.path.realpath(sys.executable)
    subprocess.run([base, "-I", "-m", "venv", folder], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC")}
    environment["PATH"] = os.path.join(folder, "bin")
    assert shutil.which("cc", path=environment["PATH"]) is None
    done = subprocess.run(
        [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", getattr(built, request.param)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    yield folder
    rigs.remove_tree(folder)


def test_the_wheel_holds_everything_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
        mode = archive.getinfo(HELPER).external_attr >> 16
    stem = f"hostfork-{__version__}"
    expected = {f"hostfork/{name}" for name in files_below("src/hostfork")}
    expected |= {f"hostfork/policies/{name}" for name in files_below("policies")}
    expected |= {f"hostfork/schemas/{name}" for name in files_below("docs/schemas")}
    expected |= {f"{stem}.data/data/share/man/man1/{name}" for name in files_below("man")}
    expected |= {f"{stem}.dist-info/{name}" for name in
                 ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}  # fmt: skip
    assert names == expected
    for name in ("py.typed", "policies/workspace.toml", "schemas/run-result.json", "cli/shells/hostfork.bash"):
        assert f"hostfork/{name}" in names
    assert f"{stem}.data/data/share/man/man1/hostfork-run.1" in names
    assert mode & 0o111 == 0o111


def test_metadata(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        told = email.message_from_bytes(archive.read(f"hostfork-{__version__}.dist-info/METADATA"))
    assert (told["Name"], told["Version"], told["Requires-Python"]) == ("hostfork", __version__, ">=3.11")
    assert (told["License-Expression"], told["License-File"]) == ("Apache-2.0", "LICENSE")
    assert told["Description-Content-Type"] == "text/markdown"
    assert set(told.get_all("Classifier", [])) >= {
        "Environment :: Console", "Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3.11",
        "Typing :: Typed",
    }  # fmt: skip
    # No place is named that nobody else has.
    assert told.get_all("Project-URL", []) == []
    assert told["Author"] is told["Author-email"] is told["Home-page"] is None
    needed = [line for line in told.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {line.partition(">")[0] for line in needed} == {
        "blake3", "click", "msgspec", "pathspec", "psutil", "tomli-w",
    }  # fmt: skip


def test_the_source_archive_is_the_whole_project(built: Built) -> None:
    names = names_in(built.sdist)
    for folder in ("src", "policies", "man", "docs", "tests", "benchmarks", "demo", "spikes"):
        assert {f"{folder}/{name}" for name in files_below(folder)} <= names, folder
    assert {"README.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "dev", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "dist/")) or name.endswith(".pyc")]
    with tarfile.open(built.sdist) as archive:
        helper = next(member for member in archive if member.name.endswith(HELPER))
        assert helper.mode & 0o111 == 0o111


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
    assert __version__ in person.run([program, "--version"], check=True).stdout
    listed = person.run([program, "policy", "list"], check=True).stdout
    assert "workspace" in listed
    assert "build" in listed
    assert "compdef" in person.run([program, "completion", "zsh"], check=True).stdout
    assert person.run([program, "help", "run"], check=True).stdout.startswith("Run a command")
    listing = "import importlib.resources as r; print(*[x.name for x in (r.files('hostfork') / 'schemas').iterdir()])"
    python = os.path.join(installed, "bin", "python")
    assert "run-result.json" in person.run([python, "-c", listing], check=True).stdout.split()


@pytest.mark.rig("man")
def test_installed_man_pages_are_found(installed: str, person: Person) -> None:
    """man(1) looks in share/man beside the bin folders of PATH."""
    path = f"{installed}/bin:/usr/bin:/bin"
    for words in (["hostfork"], ["hostfork-run"], ["hostfork", "diff"]):
        told = person.run(["man", *words], env={"PATH": path}, check=True).stdout
        assert "hostfork manual" in told.splitlines()[0]


def test_nothing_of_the_tests_is_installed(installed: str) -> None:
    found = {name for _, folders, _ in os.walk(os.path.join(installed, "lib")) for name in folders}
    assert not found & {"benchmarks", "spikes", "demo"}
    (packages,) = [folder for folder, _, _ in os.walk(installed) if folder.endswith("site-packages")]
    assert not {"tests", "docs", "man", "policies"} & set(os.listdir(packages))


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
