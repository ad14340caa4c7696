"""Eight forks of one baseline that each read the same 500 MB: by how much the page cache grows.

    python benchmarks/page_cache.py [--forks 8] [--megabytes 500] [--folder DIR]

Whole commands, `run --base NAME -- cat FILE`, all at once. The cache is counted by `Cached` of /proc/meminfo, so that
nothing else should read much meanwhile. The bar: it grows once.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

HOSTFORK = os.path.join(os.path.dirname(sys.executable), "hostfork")
BAR, SETTLING = 1.2, 5.0


def cached() -> int:
    """Bytes in the page cache."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Cached:")) * 1024


def drop(folder: str) -> None:
    """Let the kernel forget the files below a folder, once they are on disk."""
    os.sync()
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if os.path.isfile(path):
                opened = os.open(path, os.O_RDONLY)
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(opened)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; status 1 where the cache grows by more than the file once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forks", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--folder", default="/var/tmp")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(
        dir=options.folder, prefix="hostfork-bench-", ignore_cleanup_errors=True
    ) as scratch:
        project, size = f"{scratch}/project", options.megabytes << 20
        os.mkdir(project)
        with open(f"{project}/file", "wb") as file:
            for _ in range(options.megabytes):
                file.write(os.urandom(1 << 20))
        os.environ["XDG_STATE_HOME"] = f"{scratch}/state"
        subprocess.run([HOSTFORK, "baseline", "create", "one", "--from", project], check=True, stdout=sys.stderr)
        time.sleep(SETTLING)  # it is read once more in the background, for its sums
        drop(scratch)
        before = cached()
        command = [HOSTFORK, "run", "--base", "one", "--", "cat", f"{project}/file"]
        forks = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(options.forks)]
        statuses = [fork.wait() for fork in forks]
        if any(statuses):
            raise SystemExit("a run failed")
        grown = cached() - before
    print(f"{options.forks} forks read {size >> 20} MiB each; the page cache grew by {grown >> 20} MiB", end="   ")
    print(f"{grown / size:.2f} x the file, bar {BAR}")
    return 0 if grown <= BAR * size else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
