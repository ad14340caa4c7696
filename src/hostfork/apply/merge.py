"""Two changes of one text in one, by git's own three-way merge."""

from __future__ import annotations

import os

from hostfork.errors import ApplyError, Code


def merge_text(host: bytes, base: bytes, fork: bytes) -> bytes | None:
    """Both changes of `base`; None where they touch the same lines. Raises ApplyError where there is no git."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hostfork-merge-") as folder:
        names = []
        for name, content in (("host", host), ("base", base), ("fork", fork)):
            names.append(os.path.join(folder, name))
            with open(names[-1], "wb") as file:
                file.write(content)
        try:
            done = subprocess.run(
                ["git", "merge-file", "-p", "-q", *names], check=False, capture_output=True, cwd=folder,
                env={**os.environ, "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull},
            )  # fmt: skip
        except FileNotFoundError as error:
            raise ApplyError(
                Code.HOST_MISSING, "there is no git, which merges text", step="merge", place="--on-conflict",
                hint="install git · --on-conflict fork · --on-conflict host",
            ) from error  # fmt: skip
    return done.stdout if done.returncode == 0 else None
