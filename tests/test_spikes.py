"""Each fact of the kernel that hostfork relies on, tried on the kernel that the tests run on."""

import ast
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from rigs import Person

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "spikes")
SPIKES = sorted(glob.glob(f"{FOLDER}/[0-9]*.py"))
FACTS = range(1, 32)

# Facts that need another system than most machines are; elsewhere they say how they can be tried.
NEEDS_ANOTHER_SYSTEM = {"10_apparmor_userns.py", "29_core_limit.py"}

# What was taken for a fact and is none: the file, and the answer that this kernel gives in truth.
FALSE = {
    # Only a mapping misses the first write; read() of an old descriptor and a watch see it (a watch is lost later, once
    # the kernel has dropped the name from its cache, and only in a user namespace).
    "04_overlay_stale.py": r"in a user namespace: read: no, mapping: yes, watch: no, watch once ",
}

LINES = re.compile(
    r"question  (?P<question>[^\n]+\?)\n"
    r"answer    (?P<answer>[^\n]+)\n"
    r"kernel    (?P<kernel>\S+)  date \d{4}-\d\d-\d\d\n"
    r"holds     (?P<holds>yes|no|not tried: [^\n]+)\n"
)


@pytest.fixture
def place() -> Iterator[str]:
    """A folder for temporary folders that an ordinary user may pass; nothing may be left in it."""
    folder = tempfile.mkdtemp(prefix="hf-spikes-", dir="/tmp")
    os.chmod(folder, 0o1777)
    yield folder
    left = os.listdir(folder)
    shutil.rmtree(folder)
    assert left == []


def loops(place: str) -> list[str]:
    """Loop devices whose file lies below the place."""
    found = []
    for name in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            with open(name, encoding="utf-8", errors="surrogateescape") as file:
                found += [name] if place in file.read() else []
        except FileNotFoundError:  # detached just now
            continue
    return found


def said(output: str) -> re.Match[str]:
    """The four lines, and nothing else."""
    match = LINES.fullmatch(output)
    assert match, output
    assert match["kernel"] == os.uname().release
    return match


def kernel() -> tuple[int, int]:
    """The first two numbers of the running kernel."""
    first, second = os.uname().release.split(".")[:2]
    return int(first), int(second)


def run(path: str, place: str) -> subprocess.CompletedProcess[str]:
    """Run a spike as whoever runs the tests, with its temporary folder in the place."""
    env = {**os.environ, "TMPDIR": place}
    return subprocess.run([sys.executable, path], capture_output=True, text=True, env=env, timeout=180, check=False)


def is_timed(path: str) -> bool:
    """Whether a spike judges by a clock."""
    with open(path, encoding="utf-8") as file:
        return re.search(r"spike\.milliseconds|time\.monotonic", file.read()) is not None


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("path", SPIKES, ids=os.path.basename)
def test_the_fact_holds(path: str, place: str, pytestconfig: pytest.Config) -> None:
    name = os.path.basename(path)
    # What compares times gets another try: a busy machine can spoil one.
    for _ in range(5 if is_timed(path) else 1):
        done = run(path, place)
        assert (done.returncode, done.stderr) == (0, "")
        found = said(done.stdout)
        if found["holds"] != "no":
            break
    if found["holds"].startswith("not tried: "):
        newer = re.match(r"not tried: it needs Linux (\d+)\.(\d+),", found["holds"])
        if newer:
            assert kernel() < (int(newer[1]), int(newer[2]))
        elif found["holds"] == "not tried: it needs root":
            assert os.geteuid() != 0
            pytest.skip("rig missing: root")
        elif name in NEEDS_ANOTHER_SYSTEM:
            assert "run this file" in found["holds"]
        else:  # with --require-all a skip is a failure
            pytest.skip(f"rig missing: {found['holds']}")
    elif name in FALSE:
        assert found["holds"] == "no"
        assert re.search(FALSE[name], found["answer"])
    else:
        assert found["holds"] == "yes", found["answer"]
    patience = time.monotonic() + 10  # the kernel detaches a loop device a moment after its last mount is gone
    while loops(place) and time.monotonic() < patience:
        time.sleep(0.05)
    assert loops(place) == []


def test_as_an_ordinary_user(user: Person) -> None:
    for path in SPIKES:
        with open(path, encoding="utf-8") as file:
            needs_root = "root=False" not in file.read()
        if needs_root and not path.endswith("03_mounts_beneath.py"):
            continue
        for _ in range(5 if is_timed(path) else 1):
            done = user.run([sys.executable, path])
            assert done.returncode == 0, done.stderr
            if said(done.stdout)["holds"] != "no":
                break
        assert said(done.stdout)["holds"] == ("not tried: it needs root" if needs_root else "yes"), done.stdout


def test_every_fact_has_a_spike() -> None:
    assert {int(os.path.basename(path)[:2]) for path in SPIKES} == set(FACTS)


def test_the_page_names_every_spike_with_its_question() -> None:
    with open(f"{FOLDER}/README.md", encoding="utf-8") as file:
        page = file.read()
    for path in SPIKES:
        name = os.path.basename(path)
        with open(path, encoding="utf-8") as file:
            asked = re.search(r'^QUESTION = "(.+)"$', file.read(), re.MULTILINE)
        assert asked, name
        assert f"| [{name}]({name}) | {asked[1]} | " in page
    assert page.count("\n| [") == len(SPIKES)


def imported(path: str) -> set[str]:
    """The first names of all modules that a file imports, also inside functions."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_a_spike_imports_nothing_but_the_standard_library() -> None:
    for path in glob.glob(f"{FOLDER}/*.py"):
        assert imported(path) <= {*sys.stdlib_module_names, "spike"}, path


def test_nothing_imports_a_spike() -> None:
    sources = glob.glob(f"{ROOT}/src/**/*.py", recursive=True) + glob.glob(f"{ROOT}/tests/*.py")
    assert len(sources) > 10
    for path in sources:
        assert not imported(path) & {"spike", "spikes"}, path


OWN = """
import sys
sys.path.insert(0, {folder!r})
import spike

def trial(folder):
    spike.put(folder + "/file", "x")
    {body}

if __name__ == "__main__":
    spike.main("is it so?", trial, root=False)
"""


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ('return spike.Finding("it is", True)', "yes"),
        ('return spike.Finding("it is not", False)', "no"),
        ('raise spike.Missing("nobody knows | a rig is missing")', "not tried: a rig is missing"),
        ('spike.child(spike.put, "/proc/version", "x")', None),
        ("raise ValueError", None),
    ],
)
def test_a_spike_says_what_it_found(body: str, holds: str | None, place: str, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "own.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(OWN.format(folder=FOLDER, body=body))
    done = run(path, place)
    if holds is None:
        assert done.returncode == 1
        assert done.stdout == ""
        assert "Traceback" in done.stderr
    else:
        assert said(done.stdout)["holds"] == holds
