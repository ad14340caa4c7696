"""Ordinary tools in forks: package managers with the cache of the home folder, and warm build trees.

CASES 30: the cache is on another mount than the private project, so that hard links from it are impossible. CASES 28:
what was built on the host is not built again, what is edited in the fork is. What is fetched: `real_projects.py`.
"""

import os
import subprocess
import sys

import pytest

import real_projects
from real_projects import difference, picture
from real_rig import ALTERNATING, PYTHON, Spot, spots
from rigs import Bench, Person, find_program, write_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BY_BOTH = (
    "user-ext4:copy",
    "root-ext4:live",
    "root-btrfs:btrfs",
    "user-btrfs:overlay",
    "user-xfs:reflink",
    "root-xfs:live",
)
"""Each disk by both."""

# --- uv --------------------------------------------------------------------------------------------------------------

_UV = """
set -e
rm -rf .venv
"$1/bin/uv" -q venv --python "$2" .venv
"$1/bin/uv" pip install --no-index --find-links "$3" idna pytest
.venv/bin/python -m pytest --version
"""


@pytest.mark.rig("network")
@spots(*BY_BOTH)
def test_uv(spot: Spot) -> None:
    """It installs from its cache, and warns only where its setting is taken away."""
    packages = real_projects.fetched()
    spot.person.call(os.mkdir, spot.project)
    uv = f"{spot.aside}/uv"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", packages.wheels, "--target", uv]
    spot.person.run([*pip, "uv"], check=True, timeout=600)
    arguments = ("sh", uv, PYTHON, packages.wheels)
    spot.on_host("sh", "-c", _UV.replace("idna pytest", "pytest"), *arguments)
    with spot.untouched():
        said = spot.run("sh", "-c", f"exec 2>&1; {_UV}".replace("idna pytest", "pytest"), *arguments)
        assert "pytest 8" in said
        assert "warning" not in said
        said = spot.run(
            "sh", "-c", f"exec 2>&1; unset UV_LINK_MODE; {_UV}".replace("idna pytest", "pytest"), *arguments
        )
        assert "Failed to hardlink" in said


# --- pnpm ------------------------------------------------------------------------------------------------------------

_PNPM = """
exec 2>&1
"$1" install --offline --frozen-lockfile
rm -rf node_modules
"$1" install --offline --frozen-lockfile || exit 3
node -e 'console.log("odd", require("is-odd")(3), require("ms")("1s"))'
ls -d .pnpm-store node_modules/.pnpm-store
"""


@pytest.mark.rig("network", "node")
@pytest.mark.parametrize("version", real_projects.PNPM)
@spots(*BY_BOTH)
def test_pnpm(spot: Spot, version: str) -> None:
    """What was installed from the home folder's store is taken as it is, and is installed anew from that.

    By itself pnpm makes another store, and has nothing to install from.
    """
    packages = real_projects.fetched("pnpm")
    packages.unpack_pnpm(version, spot.person, spot.project)
    pnpm = packages.pnpm(version)
    spot.on_host(pnpm, "install", "--offline", "--frozen-lockfile")
    linked = f"{spot.project}/node_modules/.pnpm/ms@2.1.3/node_modules/ms/index.js"
    assert os.stat(linked).st_nlink > 1 or spot.disk.kind != "ext4"  # where pnpm can clone it does not link
    with spot.untouched():
        said = spot.run("sh", "-c", f"{_PNPM}:", "sh", pnpm)
        assert "up to date" in said.partition("odd true")[0].lower()
        assert "odd true 1000" in said
        assert "No such file" in said.partition("odd true")[2]
        without = f"unset npm_config_store_dir pnpm_config_store_dir\n{_PNPM}:"
        said = spot.run("sh", "-c", without, "sh", pnpm, check=3)
        assert "odd true" not in said


# --- Node ------------------------------------------------------------------------------------------------------------

_NPM = "npm ci --offline --no-audit --no-fund && npm test && npm run bundle"


@pytest.mark.rig("network", "node")
@spots("user-ext4:copy", "root-btrfs:overlay", "user-xfs:reflink")
def test_npm_installs_in_a_fork(spot: Spot) -> None:
    """A hundred and fifty packages, one with an install script, from the home folder's cache; then the suite.

    No setting for another tool makes npm warn, though that tool's store is there.
    """
    real_projects.fetched("node").unpack_qs(spot.person, spot.project)
    spot.person.run(["mkdir", "-p", f"{spot.person.home}/.local/share/pnpm/store"], check=True)
    cache = ("--private", f"{spot.person.home}/.npm") if spot.person.uid else ()
    kept = picture(f"{spot.person.home}/.npm")
    with spot.untouched():
        said = spot.run("sh", "-c", f"{{ {_NPM}; }} 2>&1", options=("--rm", *cache))
    assert "# pass  736" in said
    assert "env config" not in said
    assert not cache or difference(kept, picture(f"{spot.person.home}/.npm")) == []


@pytest.mark.rig("network", "node")
@spots("root-ext4:copy", "user-ext4:live", "root-btrfs:btrfs", "user-btrfs:overlay", "root-xfs:reflink")
def test_an_installed_node_project(spot: Spot) -> None:
    """TypeScript writes nothing anew (CASES 28); npm puts all in place again over what is there (CASES 15)."""
    real_projects.fetched("node").unpack_qs(spot.person, spot.project)
    spot.on_host("sh", "-c", "npm ci --offline --no-audit --no-fund && npm run types")
    list_emitted = "node_modules/.bin/tsc --incremental --listEmittedFiles"
    with spot.untouched():
        assert spot.run("sh", "-c", list_emitted) == ""
        said = spot.run("sh", "-c", f"echo '// x' >>lib/utils.js; {list_emitted}")
        emitted = {os.path.basename(line) for line in said.split() if line.endswith(".js")}
        assert "utils.js" in emitted
        assert "formats.js" not in emitted  # which does not need it
        assert "# pass  736" in spot.run("sh", "-c", _NPM)


# --- C and Rust: a warm build tree (CASES 28) ------------------------------------------------------------------------

_MAKE = ("make", "-j2", "CFLAGS=-O0 -std=c99 -DLUA_USE_LINUX", "MYLIBS=-ldl", "MYLDFLAGS=-Wl,-E")
_NINJA = """rule cc
  command = cc -O0 -c $in -o $out -MD -MF $out.d
  depfile = $out.d
build out/lapi.o: cc lapi.c
build out/lzio.o: cc lzio.c
"""


@pytest.fixture(scope="session")
def built_lua(bench: Bench) -> str:
    """A tar file of Lua's tree, built by make and ninja; all its times are in it."""
    folder = os.path.join(bench.folder, "lua")
    builder = Person("builder", os.geteuid(), os.getegid(), bench.folder)
    real_projects.fetched().unpack("lupa", builder, folder, "third-party/lua54")
    write_files(folder, {"build.ninja": _NINJA})
    for command in (_MAKE, ("ninja",), ("tar", "-cf", f"{folder}.tar", "--format=pax", "-C", folder, ".")):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return f"{folder}.tar"


@pytest.mark.rig("network", "compiler", "make", "ninja")
@spots(*ALTERNATING)
def test_a_warm_c_build(built_lua: str, spot: Spot) -> None:
    """Lua, built on the host: make and ninja find nothing to do, one edited file is one file; the suite passes."""
    spot.person.call(os.mkdir, spot.project)
    spot.on_host("tar", "-xf", built_lua, "--no-same-owner")
    spot.on_host(*_MAKE, "--question")
    edited = "echo '/* x */' >>lapi.c"
    with spot.untouched():
        spot.run(*_MAKE, "--question")
        assert "no work to do" in spot.run("ninja")
        make = " ".join(f"'{word}'" for word in _MAKE)
        said = spot.run("sh", "-c", f"{edited}; {make} && cd testes && ../lua -e _U=true all.lua")
        assert [line.split()[-1] for line in said.splitlines() if " -c " in line] == ["lapi.c"]
        assert "final OK" in said
        assert "[1/1]" in spot.run("sh", "-c", f"{edited}; ninja")


_CMAKE = {
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.18)\nproject(app C)\n"
    "file(GLOB sources CONFIGURE_DEPENDS src/*.c)\nadd_executable(app ${sources})\n",
    "src/one.c": "int two(void);\nint main(void) { return two(); }\n",
    "src/two.c": "int two(void) { return 0; }\n",
}


@pytest.mark.rig("compiler", "cmake", "ninja", "make")
@pytest.mark.parametrize(
    ("spot", "generator"),
    [
        ("user-ext4:copy", "Ninja"),
        ("root-btrfs:btrfs", "Unix Makefiles"),
        ("user-btrfs:overlay", "Unix Makefiles"),
        ("root-xfs:reflink", "Ninja"),
    ],
    indirect=["spot"],
)
def test_a_warm_cmake_build(spot: Spot, generator: str) -> None:
    """Neither configured nor built again: times of folders count, too, where a list of files is globbed."""
    spot.person.call(write_files, spot.project, _CMAKE)
    spot.on_host("sh", "-c", f"cmake -S . -B build -G '{generator}' && cmake --build build")
    build = "cmake --build build -- -v" if generator == "Ninja" else "cmake --build build"
    with spot.untouched():
        said = spot.run("sh", "-c", f"{build} && build/app")
        assert "Building" not in said
        assert " -c " not in said
        assert "Configuring" not in said
        said = spot.run("sh", "-c", "echo '/* x */' >>src/two.c; cmake --build build && build/app")
        assert [line.split()[-1] for line in said.splitlines() if "Building" in line] == [
            "CMakeFiles/app.dir/src/two.c.o"
        ]
        said = spot.run("sh", "-c", "echo 'int three;' >src/three.c; cmake --build build")
        assert [line.split("/")[-1] for line in said.splitlines() if "Building" in line] == ["three.c.o"]


_CARGO = """[package]
name = "app"
version = "0.1.0"
edition = "2021"
[dependencies]
itoa = "1"
libc = { version = "0.2", default-features = false }
memchr = "2"
ryu = "1"
"""
_CRATES = ("itoa-1.0.15", "libc-0.2.172", "memchr-2.7.4", "ryu-1.0.20")
_VENDORED = '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "vendor"\n'
_MAIN = """fn main() {
    let at = memchr::memchr(b'l', b"hello").unwrap();
    println!("{} {} {}", itoa::Buffer::new().format(at), ryu::Buffer::new().format(0.5), unsafe { libc::getuid() });
}
#[test]
fn finds() { assert_eq!(memchr::memchr(b'o', b"hello"), Some(4)); }
"""


@pytest.mark.rig("network", "rust", "root")
@spots("root-ext4:copy", "root-btrfs:overlay", "root-btrfs:btrfs", "root-xfs:reflink", "root-xfs:live")
def test_a_warm_rust_build(spot: Spot) -> None:
    """Crates that a Python package vendors: cargo finds them fresh, one with a build script too."""
    real_projects.fetched("rust").unpack("orjson", spot.person, f"{spot.project}/vendor", "include/cargo", _CRATES)
    files = {"Cargo.toml": _CARGO, ".cargo/config.toml": _VENDORED, "src/main.rs": _MAIN}
    spot.person.call(write_files, spot.project, files)
    cargo = _cargo()
    path = {"PATH": f"{os.path.dirname(cargo)}:{spot.person.environment()['PATH']}"}
    spot.on_host(cargo, "build", "--offline", env=path)
    script = '"$1" build --offline -v 2>&1'
    with spot.untouched():
        said = spot.run("sh", "-c", script, "sh", cargo, env=path)
        assert {line.split()[0] for line in said.splitlines()} == {"Fresh", "Finished"}
        script = f"echo '// x' >>src/main.rs; {script} && target/debug/app"
        said = spot.run("sh", "-c", script, "sh", cargo, env=path)
        assert [line.split()[1] for line in said.splitlines() if "Compiling" in line] == ["app"]
        assert "memchr v" in "".join(line for line in said.splitlines() if "Fresh" in line)
        assert f"2 0.5 {spot.person.uid}\n" in said
        assert "1 passed" in spot.run(cargo, "test", "--offline", env=path)


def _cargo() -> str:
    """The real one: a chooser of toolchains looks for its settings in the home folder."""
    rustc = find_program("rustc") or "rustc"
    root = subprocess.run([rustc, "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    return os.path.join(root, "bin", "cargo")


# --- Go --------------------------------------------------------------------------------------------------------------

_GO_FILES = {
    "go.mod": "module example.org/app\ngo 1.20\n",
    "main.go": 'package main\nimport ("example.org/app/lib"; "example.org/app/other")\n'
    "func main() { println(lib.F() + other.F()) }\n",
    "lib/lib.go": "package lib\nfunc F() int { return 7 }\n",
    "other/other.go": "package other\nfunc F() int { return 1 }\n",
}
_GO = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOTELEMETRY": "off", "GOFLAGS": "-buildvcs=false"}


@pytest.fixture(scope="session")
def go_cache(bench: Bench) -> str:
    """Go's cache after it built the project once."""
    folder = os.path.join(bench.folder, "go")
    write_files(f"{folder}/app", _GO_FILES)
    environment = os.environ | _GO | {"GOCACHE": f"{folder}/cache", "GOPATH": f"{folder}/path", "HOME": folder}
    subprocess.run([_go(), "build", "-o", "app"], cwd=f"{folder}/app", env=environment, check=True, capture_output=True)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    return f"{folder}/cache"


def _go() -> str:
    return f"{real_projects.fetched('go').folder}/go/go/bin/go"


@pytest.mark.rig("network")
@spots(*BY_BOTH)
def test_a_warm_go_build(go_cache: str, spot: Spot) -> None:
    """With its cache in the home folder: only what was edited is built, and what was built can be installed."""
    spot.person.call(write_files, spot.project, _GO_FILES)
    spot.person.run(["cp", "-r", go_cache, f"{spot.person.home}/.cache/go-build"], check=True)
    spot.on_host(_go(), "build", "-o", "app", env=_GO)
    with spot.untouched():
        said = spot.run("sh", "-c", 'exec 2>&1; "$1" build -v -o app && ./app', "sh", _go(), env=_GO)
        assert said == "8\n"
        edited = "sed -i s/7/8/ lib/lib.go"
        said = spot.run("sh", "-c", f'exec 2>&1; {edited}; "$1" build -v -o app && ./app', "sh", _go(), env=_GO)
        assert said == "example.org/app/lib\nexample.org/app\n9\n"
        said = spot.run("sh", "-c", '"$1" install && ~/go/bin/app 2>&1', "sh", _go(), env=_GO)
        assert said == "8\n"


# --- pytest ----------------------------------------------------------------------------------------------------------

_SUITE = {
    "test_a.py": "import helper\ndef test_good(): assert helper.ONE == 1\ndef test_bad(): assert helper.ONE == 2\n",
    "helper.py": "ONE = 1\n",
}


@spots("user-ext4:copy", "root-btrfs:btrfs", "user-btrfs:overlay", "root-xfs:reflink")
def test_what_pytest_keeps(spot: Spot) -> None:
    """It knows what failed last, and no module is compiled again."""
    spot.person.call(write_files, spot.project, _SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist"]
    cached = {"PYTHONDONTWRITEBYTECODE": ""}
    spot.person.run(command, cwd=spot.project, env=cached)
    assert os.path.isdir(f"{spot.project}/__pycache__")
    find = "find . -name '*.pyc' -newer mark"
    with spot.untouched():
        said = spot.run("sh", "-c", f'touch mark; "$@" --last-failed; {find}', "sh", *command, env=cached)
        assert "1 failed" in said
        assert "passed" not in said
        assert ".pyc" not in said
        said = spot.run("sh", "-c", f'touch mark; echo >>helper.py; "$@"; {find}', "sh", *command, env=cached)
        assert [line for line in said.splitlines() if line.endswith(".pyc")] == [
            f"./__pycache__/helper.{sys.implementation.cache_tag}.pyc"
        ]
