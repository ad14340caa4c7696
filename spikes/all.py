"""Run every spike on this host and print the text of spikes/README.md."""

import glob
import os
import subprocess
import sys
import time

HEAD = """# Spikes

One small program per fact of the Linux kernel that hostfork relies on. The number in a file's name is the number of the
fact; a fact with two halves has two files. Each tries its fact on the kernel that it runs on and prints the question,
the answer, the kernel with the date, and whether the fact holds. `not tried` says why and where it can be tried; `no`
means that what was taken for a fact is none, and that the answer beside it is what the kernel does.

    python spikes/09_recursive_read_only.py    one fact (most need root)
    python spikes/all.py                       all of them, as this page

A spike works in a temporary folder and a mount namespace of its own, and leaves nothing: no file, mount, loop device,
process or setting. Nothing imports a spike, and a spike imports nothing of hostfork. Times are measured, and only
orders of magnitude are judged.
"""


def lines(path: str) -> dict[str, str]:
    """What one spike prints, by the first word of each line."""
    done = subprocess.run([sys.executable, path], check=True, stdout=subprocess.PIPE, text=True)
    return {line[:10].strip(): line[10:] for line in done.stdout.splitlines()}


def main() -> None:
    """Run them one after the other, as times are measured."""
    here = os.path.dirname(os.path.abspath(__file__))
    started = time.perf_counter()
    found = [(os.path.basename(path), lines(path)) for path in sorted(glob.glob(f"{here}/[0-9]*.py"))]
    print(HEAD)
    print(f"Kernel {found[0][1]['kernel'].replace('  date', ',')}, in {time.perf_counter() - started:.0f} s:\n")
    print("| file | question | answer on this kernel | holds |\n| --- | --- | --- | --- |")
    for name, said in found:
        cells = [f"[{name}]({name})", said["question"], said["answer"], said["holds"]]
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")


if __name__ == "__main__":
    main()
