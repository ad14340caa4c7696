"""The shape of the source: what may import what, what stands where, how long things get, what a run loads."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hostfork.errors import Code
from rigs import Disk, Person

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = os.path.join(ROOT, "src", "hostfork")

# Part -> the parts that it may import, itself always. The parts are packages, and the modules beside them.
BASIC = {"errors", "vocabulary", "values"}
HELPER_DOOR = {"helper.protocol", "helper.syscalls", "helper.shapes", "helper.lean"}
# The frozen values that the API takes and returns, and the grammar of options; what acts on them stays behind the API.
VALUES = {
    "apply.values", "collect.changeset", "lifecycle.doctor", "lifecycle.events", "lifecycle.record",
    "lifecycle.request",
    "lifecycle.setup", "lifecycle.timer", "policy.host", "policy.options", "policy.plan", "policy.rules",
    "storage.contract", "workload.watch",
}  # fmt: skip
MAY_IMPORT: dict[str, set[str]] = {
    "": set(),
    "vocabulary": set(),
    "values": set(),
    "errors": {"vocabulary"},
    "helper": set(),
    "storage": BASIC | HELPER_DOOR,
    "workload": BASIC | HELPER_DOOR,
    "collect": BASIC | HELPER_DOOR,
    # A plan is made of offers, so policy sees storage's contract; it never sees a mechanism.
    "policy": BASIC | HELPER_DOOR | {"storage.contract", "storage.choose"},
    # A baseline is storage that is compared with its source: neither of both packages can make one alone.
    "baseline": BASIC | HELPER_DOOR | {"storage", "collect"},
    "checkpoint": BASIC | HELPER_DOOR | {"storage", "collect"},
    "apply": BASIC | HELPER_DOOR | {"storage", "collect"},
    "lifecycle": BASIC | HELPER_DOOR | {"policy", "storage", "workload", "collect", "baseline", "checkpoint", "apply"},
    "api": BASIC | {"lifecycle", "policy", "storage", "workload", "collect", "baseline", "checkpoint", "apply"},
    # Only the command line touches signals, and ctypes stand in helper.syscalls.
    "cli": BASIC | {"api"} | VALUES | HELPER_DOOR,
    # The helper gets ready on a second core while the command line is imported.
    "__main__": BASIC | {"cli", "workload.launch", "workload.spawn"},
}

HELPER_MODULES = {
    "os", "sys", "errno", "signal", "select", "ctypes", "time", "stat", "fcntl", "struct",
    "typing", "_socket", "collections.abc", "encodings", "__future__", "_json", "_signal",
    "_operator",
}  # fmt: skip

# Loading one of these costs more than a fork.
NOT_ON_THE_RUN_PATH = {
    "subprocess", "asyncio", "pyroute2", "psutil", "msgspec", "blake3", "rich", "urllib", "http", "email", "tempfile",
    "shutil", "pathlib", "logging", "concurrent", "multiprocessing", "typing", "re",
    "json", "threading",
}  # fmt: skip

# The helper gets ready while its owner imports: it must not be the one that is waited for.
NOT_IN_THE_HELPER = NOT_ON_THE_RUN_PATH | {"enum", "functools", "collections", "contextlib", "signal", "operator"}

MAX_FILE_LINES = 420
MAX_FUNCTION_LINES = 65


class Module:
    """One source file, parsed."""

    def __init__(self, path: str) -> None:
        self.path = path
        name = os.path.relpath(path, SOURCE)[: -len(".py")].replace(os.sep, ".")
        self.name = "" if name == "__init__" else name.removesuffix(".__init__")
        self.part = self.name.split(".")[0]
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        self.tree = ast.parse(self.text, path)

    def place(self, node: ast.AST) -> str:
        """File and line, for a message."""
        return f"{os.path.relpath(self.path, ROOT)}:{getattr(node, 'lineno', 0)}"

    def imports(self) -> Iterator[tuple[str, ast.stmt]]:
        """Every imported module, also inside functions; `from a import b` gives a.b."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.place(node)}: relative import"
                for alias in node.names:
                    yield f"{node.module}.{alias.name}", node


def modules() -> list[Module]:
    found = [
        Module(os.path.join(folder, name))
        for folder, _, names in os.walk(SOURCE)
        for name in names
        if name.endswith(".py")
    ]
    return sorted(found, key=lambda module: module.name)


MODULES = modules()
EVERY = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name or "hostfork")


def without_docstring(module: Module) -> list[ast.stmt]:
    body = module.tree.body
    return body[1:] if ast.get_docstring(module.tree) is not None else body


def is_within(name: str, allowed: set[str]) -> bool:
    return any(name == one or name.startswith(one + ".") for one in allowed)


def is_program_part(statement: ast.stmt) -> bool:
    """Whether it runs only where the file is started as a program."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def test_every_part_is_in_the_table() -> None:
    assert {module.part for module in MODULES} == set(MAY_IMPORT)


@EVERY
def test_imports_point_one_way(module: Module) -> None:
    allowed = MAY_IMPORT[module.part] | ({module.part} if module.part else set())
    for name, node in module.imports():
        if name.split(".")[0] != "hostfork":
            continue
        inner = name.partition(".")[2]
        # `from hostfork import api, errors` and the version are as good as naming the module.
        if inner == "__version__":
            continue
        assert is_within(inner, allowed), f"{module.place(node)}: {module.name} imports {name}"


def test_import_check_sees_a_wrong_import() -> None:
    assert not is_within("lifecycle.record", MAY_IMPORT["storage"])
    assert not is_within("helper.view", MAY_IMPORT["workload"])
    assert is_within("helper.protocol.Bind", MAY_IMPORT["storage"])


def test_package_itself_imports_nothing() -> None:
    package = next(module for module in MODULES if module.name == "")
    assert list(package.imports()) == []


@EVERY
def test_helper_needs_the_small_standard_library_alone(module: Module) -> None:
    if module.part != "helper":
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name in HELPER_MODULES or name.startswith("hostfork.helper"), f"{module.place(node)}: {name}"


@EVERY
def test_ctypes_is_in_one_file(module: Module) -> None:
    users = [name for name, _ in module.imports() if name.split(".")[0] in ("ctypes", "_ctypes", "cffi")]
    assert not users or module.name == "helper.syscalls"


@EVERY
def test_only_the_command_line_prints_and_exits(module: Module) -> None:
    if module.part in ("cli", "__main__"):
        return
    # A program that storage starts answers its parent on its standard output.
    body = [node for node in module.tree.body if not is_program_part(node)]
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "sys.exit", "exit", "quit", "click.echo", "sys.stdout.write"), module.place(
                node
            )
        if isinstance(node, ast.Raise) and node.exc is not None:
            assert "SystemExit" not in ast.unparse(node.exc), module.place(node)
    assert not any(name.split(".")[0] in ("click", "rich") for name, _ in module.imports())


@EVERY
def test_files_and_functions_stay_short(module: Module) -> None:
    lines = module.text.count("\n")
    assert lines <= MAX_FILE_LINES, f"{module.path} has {lines} lines"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{module.place(node)}: {node.name} has {length} lines"


def test_no_drawers() -> None:
    drawers = {"utils", "util", "helpers", "common", "manager", "managers", "misc", "tools", "lib", "base"}
    assert [module.name for module in MODULES if drawers & set(module.name.split("."))] == []


# What a module may call while it is imported: it makes values and touches nothing outside.
PURE_CALLS = {
    "frozenset", "set", "dict", "tuple", "list", "object", "range", "TypeVar", "NewType", "ParamSpec", "auto", "field",
    "dataclass", "dataclass_transform", "namedtuple", "NamedTuple", "ContextVar", "re.compile", "struct.calcsize",
    "struct.Struct", "Struct",
    "MappingProxyType", "ctypes.CDLL", "ctypes.CFUNCTYPE", "ctypes.sizeof", "ctypes.POINTER", "sorted", "len", "int",
    "min", "max", "sum", "array", "bytes", "str", "os.strerror", "os.sysconf",
}  # fmt: skip


def calls_at_import(statements: list[ast.stmt]) -> Iterator[ast.Call]:
    """The calls that run when a module is imported: not those inside functions; decorators and defaults are."""
    for statement in statements:
        if not is_program_part(statement):
            yield from _calls(statement)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        for inner in [*defaults, *decorators]:
            yield from _calls(inner)
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


@EVERY
def test_no_import_does_work(module: Module) -> None:
    if module.name in ("helper.program",):
        return
    own = {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
    for call in calls_at_import(without_docstring(module)):
        called = ast.unparse(call.func)
        last = called.rpartition(".")[2]
        # Click's decorators only describe the commands; a value of a class of the project only holds values.
        allowed = (
            called in PURE_CALLS
            or called.startswith("click.")
            or module.part == "cli"
            or last in own
            or last[:1].isupper()
            or (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant))
        )
        assert allowed, f"{module.place(call)}: {called}() runs at import"


@EVERY
def test_nothing_unfinished_and_no_machine_in_the_source(module: Module) -> None:
    for word in ("TODO", "FIXME", "XXX", "NotImplementedError", "HACK"):
        assert word not in module.text, f"{module.path}: {word}"
    assert not re.search(r"/(home|work|Users|root)/\w", module.text), f"{module.path} names a path of a machine"


@EVERY
def test_everything_public_says_what_it_promises(module: Module) -> None:
    assert ast.get_docstring(module.tree) is not None, module.path


def test_codes_are_used_and_unique() -> None:
    texts = [code.text for code in Code]
    assert len(texts) == len(set(texts))
    source = "".join(module.text for module in MODULES if module.name != "errors")
    assert [code.name for code in Code if not re.search(rf"\bCode\.{code.name}\b", source)] == []


def test_contracts_do_no_work_when_imported(user: Person) -> None:
    """Importing the API opens no file of the user's and starts nothing: only modules are read."""
    script = (
        "import sys\n"
        "seen = []\n"
        "def hook(event, args):\n"
        "    if event in ('subprocess.Popen', 'os.fork', 'os.posix_spawn', 'socket.connect', 'os.mkdir', 'os.exec'):\n"
        "        seen.append(event)\n"
        "sys.addaudithook(hook)\n"
        "import hostfork.api, hostfork.cli.main\n"
        "print(seen)\n"
    )
    done = user.run([os.path.join(os.path.dirname(sys.executable), "python"), "-c", script], check=True)
    assert done.stdout == "[]\n"


def modules_loaded(importtime: str) -> set[str]:
    """The top names of what `-X importtime` reports."""
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().split(".")[0] for line in lines if "[us]" not in line}


def test_a_run_loads_little(person: Person, ext4_disk: Disk, leaves_nothing: None) -> None:
    source = ext4_disk.folder(person)
    python = os.path.join(os.path.dirname(sys.executable), "python")
    for rules in (["--share-all"], ["--private", f"{source}:live"]):
        done: Any = person.run([python, "-X", "importtime", "-m", "hostfork", "run", *rules, "--", "true"], cwd=source)
        assert done.returncode == 0, done.stderr
        loaded = modules_loaded(done.stderr)
        assert "hostfork" in loaded
        assert loaded & NOT_ON_THE_RUN_PATH == set(), rules


def test_the_helper_loads_less() -> None:
    script = f"import sys; sys.path.append({os.path.dirname(SOURCE)!r}); import hostfork.helper.steps"
    python = os.path.join(os.path.dirname(sys.executable), "python")
    done = subprocess.run([python, "-I", "-S", "-X", "importtime", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = modules_loaded(done.stderr)
    assert "hostfork" in loaded
    assert loaded & NOT_IN_THE_HELPER == set()
