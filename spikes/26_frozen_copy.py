"""Fact 26, second half: the upper folder of a frozen overlay, copied, is consistent."""

import mmap
import os
import sqlite3
import time

import spike

QUESTION = "is the upper folder of an overlay whose writers are frozen consistent when it is copied?"
ROUNDS, SIZE = 8, 1 << 20


def write_database(path: str) -> None:
    """Rows in a SQLite database with a write-ahead log, for ever."""
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("create table t (n integer, text text)")
    number = 0
    while True:
        number += 1
        base.execute("begin")
        base.executemany("insert into t values (?, ?)", [(number, "x" * 400)] * 10)
        base.execute("commit")


def write_mapping(path: str) -> None:
    """Write a counter to the end and then to the start of a mapping, for ever: the end is never behind the start."""
    spike.put(path, "")
    os.truncate(path, SIZE)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), SIZE) as memory:
        number = 0
        while True:
            number += 1
            memory[SIZE - 8 :] = memory[:8] = number.to_bytes(8, "little")


def sound(copy: str) -> bool:
    """Whether the copied database is whole with complete transactions, and the copied mapping in its order."""
    base = sqlite3.connect(f"{copy}/base")
    whole = base.execute("pragma integrity_check").fetchone() == ("ok",)
    torn = base.execute("select count(*) from (select n from t group by n having count(*) != 10)").fetchone()[0]
    rows = base.execute("select count(*) from t").fetchone()[0]
    base.close()
    with open(f"{copy}/mapping", "rb") as file:
        data = file.read()
    ahead = int.from_bytes(data[-8:], "little") - int.from_bytes(data[:8], "little")
    return bool(whole and torn == 0 and rows > 0 and ahead in (0, 1))


def trial(folder: str) -> spike.Finding:
    """Freeze, copy, thaw, check."""
    os.mkdir(f"{folder}/base")
    spike.overlay(f"{folder}/base", f"{folder}/store", f"{folder}/over")
    good = 0
    with spike.cgroup() as group:
        for work, name in ((write_database, "base"), (write_mapping, "mapping")):
            if os.fork() == 0:
                try:
                    spike.libc.prctl(1, 9)
                    spike.put(f"{group}/cgroup.procs", "0")
                    work(f"{folder}/over/{name}")
                finally:
                    os._exit(1)
        while not (os.path.exists(f"{folder}/over/base-wal") and os.path.exists(f"{folder}/over/mapping")):
            time.sleep(0.01)
        time.sleep(0.1)
        for number in range(ROUNDS):
            spike.put(f"{group}/cgroup.freeze", "1")
            while "frozen 1" not in spike.get(f"{group}/cgroup.events"):
                time.sleep(0.001)
            spike.run("cp", "-a", f"{folder}/store/upper", f"{folder}/copy{number}")
            spike.put(f"{group}/cgroup.freeze", "0")
            good += sound(f"{folder}/copy{number}")
            time.sleep(0.02)
    return spike.Finding(f"yes: {good} of {ROUNDS} copies are whole (SQLite with WAL, an mmap writer)", good == ROUNDS)


if __name__ == "__main__":
    spike.main(QUESTION, trial)
