"""How a changeset looks to people, by values."""

import cli_values as values
from hostfork.cli.changes import diff_lines, expanded, folded, kind_in_words, patch_lines, stat_lines
from hostfork.cli.look import Look
from hostfork.collect.changeset import Change, Changeset
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind

ROOT = "/home/me/proj"
LOOK = Look(home="/home/me")
COUNTS = {
    f"{ROOT}/.git/hooks/pre-commit": (12, 0),
    f"{ROOT}/src/new.py": (1200, 0),
    values.ODD: (3, 1),
    f"{ROOT}/big.bin": None,
}


def test_people_see_one_line_for_an_ignored_folder():
    lines = diff_lines(folded(values.changeset()), COUNTS, [ROOT], LOOK)
    assert lines == [
        "!  .git/hooks/pre-commit   12 +     runs on your host by itself",
        "M  big.bin                 1 KiB -> 4 KiB",
        "T  data                    folder -> link to /big/data",
        "A  node_modules/           2 created, dependencies     --all lists them",
        "D  old.txt",
        "P  run.sh                  644 -> 755, xattrs",
        "A  src/",
        "A  src/new.py              1,200 +",
        "M  \\xff\\x0a:,\\             3 + 1 -     what it was before cannot be read any more     644 -> 600",
    ]


def test_all_lists_every_path():
    lines = diff_lines(expanded(values.changeset()), COUNTS, [ROOT], LOOK)
    assert "A  node_modules/a          1 B" in lines
    assert len(lines) == len(values.CHANGES)


def test_several_private_paths_are_shown_whole():
    lines = diff_lines(folded(values.changeset()), {}, [ROOT, "/x"], LOOK)
    assert lines[1].startswith("M  ~/proj/big.bin")


def test_colour_marks_the_letter_alone():
    lines = diff_lines(folded(values.changeset()), {}, [ROOT], Look(home="/home/me", colour=True))
    assert lines[4] == "\x1b[31mD\x1b[0m  old.txt"


def test_a_narrow_terminal_shortens_paths_in_the_middle():
    deep = Change(f"{ROOT}/one/two/three/four/five/six/seven/file.py", ChangeKind.CREATED, EntryKind.FILE, size=3)
    lines = diff_lines(expanded(Changeset((deep,))), {}, [ROOT], Look(width=60))
    assert lines == ["A  one/two/…/six/seven/file.py   3 B"]
    narrow = diff_lines(expanded(Changeset((deep,))), {}, [ROOT], Look(width=48))
    assert narrow[0].endswith("file.py   3 B")
    assert "…" in narrow[0]


def test_what_is_active_is_never_folded_nor_a_file_that_is_ignored_by_name():
    inside = {"ignored_by": f"{ROOT}/build", "class_": ChangeClass.GENERATED}
    shown = folded(
        Changeset(
            (
                Change(f"{ROOT}/build/a", ChangeKind.CREATED, EntryKind.FILE, **inside),
                Change(f"{ROOT}/build/b", ChangeKind.DELETED, EntryKind.FILE, **inside),
                Change(f"{ROOT}/build/hook", ChangeKind.CREATED, EntryKind.FILE, active=True, **inside),
                Change(f"{ROOT}/x.log", ChangeKind.CREATED, EntryKind.FILE, ignored_by=f"{ROOT}/x.log"),
                Change(f"{ROOT}/var", ChangeKind.CREATED, EntryKind.FOLDER, ignored_by=f"{ROOT}/var",
                       class_=ChangeClass.RUNTIME),
                Change(f"{ROOT}/odd", ChangeKind.CREATED, EntryKind.FOLDER, ignored_by=f"{ROOT}/odd"),
            )
        )
    )  # fmt: skip
    assert diff_lines(shown, {}, [ROOT], LOOK) == [
        "M  build/       1 created, 1 deleted, generated     --all lists them",
        "!  build/hook   runs on your host by itself",
        "A  x.log",
        "A  var/         1 created, runtime state     --all lists them",
        "A  odd/         1 created, ignored by the project     --all lists them",
    ]
    assert [change.path for change in shown.changeset.changes] == [f"{ROOT}/build/hook", f"{ROOT}/x.log"]


def test_kinds_in_words():
    made = (
        Change(f"{ROOT}/l", ChangeKind.CREATED, EntryKind.SYMLINK, target="a\nb"),
        Change(f"{ROOT}/f", ChangeKind.CREATED, EntryKind.FIFO),
        Change(f"{ROOT}/c", ChangeKind.DELETED, EntryKind.CHARACTER_DEVICE, EntryKind.CHARACTER_DEVICE),
        Change(f"{ROOT}/t", ChangeKind.TYPE, EntryKind.FILE, EntryKind.SYMLINK),
        Change(f"{ROOT}/d", ChangeKind.DELETED, EntryKind.FOLDER, EntryKind.FOLDER),
        Change(f"{ROOT}/n", ChangeKind.CREATED, EntryKind.FILE),
        Change(ROOT, ChangeKind.METADATA, EntryKind.FOLDER, EntryKind.FOLDER, fields=("owner",)),
    )
    assert diff_lines(expanded(Changeset(made)), {}, [ROOT], LOOK) == [
        "A  l         link to a\\x0ab",
        "A  f         FIFO",
        "D  c         character device",
        "T  t         link -> file",
        "D  d/        folder",
        "A  n",
        "P  ~/proj/   owner",
    ]
    assert kind_in_words(None) == "nothing"


def test_numbers_only():
    lines = stat_lines(values.changeset(), COUNTS, [ROOT, "/unchanged"], LOOK)
    assert lines == [
        "~/proj  5 created, 2 modified, 1 deleted, 1 metadata, 1 type",
        "  source      3 created, 2 modified, 1 deleted, 1 metadata, 1 type",
        "  dependency  2 created",
        "1,215 lines added, 1 removed",
    ]


def test_a_nested_private_path_has_its_own_numbers():
    changes = Changeset(
        (
            Change("/a/x", ChangeKind.CREATED, EntryKind.FILE),
            Change("/a/b/y", ChangeKind.DELETED, EntryKind.FILE),
        )
    )
    assert stat_lines(changes, {}, ["/a/b", "/a"], Look()) == ["/a  1 created", "/a/b  1 deleted"]


def test_a_patch_on_a_terminal_is_harmless():
    piece = b"diff --git a/x b/x\n--- a/x\n@@ -1 +1 @@\n-\ta\x1b[2J\n+b\xff\n"
    assert patch_lines(piece, Look()) == ["diff --git a/x b/x", "--- a/x", "@@ -1 +1 @@", "-\ta\\x1b[2J", "+b\\xff"]
    assert patch_lines(b"+b\n", Look(colour=True)) == ["\x1b[32m+b\x1b[0m"]
