"""Applying: what reaches the host is what the fork shows, all of it or nothing, and undo gives all back exactly."""

import json
import os
import stat
import subprocess

import pytest

from apply_rig import CHANGES, Run, apply, differing, fork, make, nothing_left, picture, undo
from rigs import Disk, Person


@pytest.fixture
def project(person: Person, disk: Disk) -> str:
    """A project on each disk, as root and as a user."""
    return make(person, disk.folder(person))


def exported(hostfork: Run, person: Person, disk_folder: str) -> str:
    """The fork's content, written out."""
    target = f"{disk_folder}.out"
    hostfork(person, "export", "f", target, check=0)
    return target


@pytest.mark.parametrize("mode", ["", ":live"])
def test_the_host_becomes_what_the_fork_shows_and_undo_gives_it_back(
    hostfork: Run, person: Person, project: str, mode: str
) -> None:
    before = picture(project, inodes=True)
    done = hostfork(person, "run", "--name", "f", "--private", project + mode, "--", "sh", "-c", CHANGES, cwd=project)
    assert done.returncode == 0, done.stderr
    out = exported(hostfork, person, person.home + "/x")
    answer = apply(hostfork, person, "--dry-run")
    assert (answer["conflicts"], answer["written"], answer["apply"]) == ([], False, None)
    assert picture(project, inodes=True) == before
    answer = apply(hostfork, person)
    assert answer["written"]
    after = picture(project)
    wanted = picture(out)
    if mode:  # an overlay splits hard links at the first write
        assert {"twin1"} >= set(differing(after, wanted))
    else:
        assert differing(after, wanted) == []
        assert os.stat(f"{project}/twin1").st_ino == os.stat(f"{project}/twin2").st_ino
    nothing_left(person, project)
    again = apply(hostfork, person)
    assert (again["written"], again["counts"]["modified"], again["applied_before"] is not None) == (False, 0, True)
    assert json.loads(hostfork(person, "show", "f", "--json", check=0).stdout)["disposition"] == "applied"
    assert undo(hostfork, person)["written"]
    assert differing(picture(project, inodes=True), before) == []
    nothing_left(person, project)
    assert json.loads(hostfork(person, "show", "f", "--json", check=0).stdout)["disposition"] == "open"
    assert apply(hostfork, person)["written"]
    assert differing(picture(project), after) == []


def test_case_2_a_folder_that_was_made_anew_holds_only_the_new(hostfork: Run, person: Person, project: str) -> None:
    """CASES 2: rm -r d; mkdir d; touch d/c."""
    make(person, project, "mkdir d; echo a > d/a; echo b > d/b")
    fork(hostfork, person, project, "rm -r d; mkdir d; touch d/c; mv src moved; mkdir src; touch src/only")
    apply(hostfork, person)
    assert sorted(os.listdir(f"{project}/d")) == ["c"]
    assert sorted(os.listdir(f"{project}/src")) == ["only"]
    assert sorted(os.listdir(f"{project}/moved")) == ["a.py", "deep", "keep"]


def test_case_3_a_deleted_key_is_published_by_nobody(hostfork: Run, person: Person, project: str) -> None:
    """CASES 3: rm -r d/s; mkdir d/s; cat d/s/key."""
    make(person, project, "mkdir -p d/s; echo secret > d/s/key")
    fork(hostfork, person, project, "rm -r d/s; mkdir d/s; ! cat d/s/key; echo y > d/s/other")
    apply(hostfork, person)
    assert os.listdir(f"{project}/d/s") == ["other"]


def test_case_14_conflicts_leave_all_untouched_until_they_are_resolved(
    hostfork: Run, person: Person, project: str
) -> None:
    """CASES 14: both edit p, the fork edits q too."""
    fork(hostfork, person, project, "sed -i s/two/TWO/ src/a.py; echo q >> src/keep; rm old.txt")
    make(person, project, "sed -i s/six/SIX/ src/a.py; echo later >> old.txt")
    before = picture(project)
    answer = apply(hostfork, person, check=1)
    assert [(os.path.basename(one["path"]), one["kind"]) for one in answer["conflicts"]] == [
        ("old.txt", "base-gone" if "base-gone" in str(answer) else "fork-deleted"),
        ("a.py", "both-edited"),
    ]
    assert not answer["written"]
    assert picture(project) == before
    shown = hostfork(person, "apply", "f", check=1, cwd=project).stderr
    assert "2 of 3 changes meet changes of the host; nothing was applied" in shown
    assert "both edited" in shown
    assert "fork deleted" in shown
    kept = answer["conflicts"][1]["fork_lines"] is not None
    assert f"hostfork apply f --on-conflict {'merge · … fork' if kept else 'fork'} · … host" in shown
    assert ("no merge: no text, or what it was is not kept" in shown) is not kept
    by_path = (f"--on-conflict=fork:{project}/src", "--on-conflict=host")
    answer = apply(hostfork, person, *by_path)
    assert sorted(one["taken"] for one in answer["resolved"]) == ["fork", "host"]
    with open(f"{project}/src/a.py") as file:
        assert file.read().split() == ["one", "TWO", "three", "four", "five", "six", "seven"]
    with open(f"{project}/old.txt") as file:
        assert file.read() == "old\nlater\n"
    assert not apply(hostfork, person)["written"]


@pytest.mark.rig("git")
def test_both_edits_of_a_text_are_merged_where_the_base_is_kept(hostfork: Run, root: Person, btrfs_disk: Disk) -> None:
    project = make(root, btrfs_disk.folder(root))
    fork(hostfork, root, project + ":btrfs", "sed -i s/two/TWO/ src/a.py; printf 'a\\n' > both/n")
    make(root, project, "sed -i s/six/SIX/ src/a.py; chmod 600 src/a.py")
    answer = apply(hostfork, root, check=1)
    assert [(one["kind"], one["fork_lines"], one["host_lines"]) for one in answer["conflicts"]] == [
        ("both-edited", [1, 1], [1, 1])
    ]
    assert apply(hostfork, root, "--on-conflict", "merge")["written"]
    with open(f"{project}/src/a.py") as file:
        assert file.read().split() == ["one", "TWO", "three", "four", "five", "SIX", "seven"]
    assert stat.S_IMODE(os.stat(f"{project}/src/a.py").st_mode) == 0o600
    undo(hostfork, root)
    make(root, project, "sed -i s/two/zwei/ src/a.py")
    answer = apply(hostfork, root, "--on-conflict", "merge", check=1)
    assert [one["kind"] for one in answer["conflicts"]] == ["both-edited"]


def test_what_only_the_host_changed_stays_and_equal_changes_are_none(
    hostfork: Run, root: Person, btrfs_disk: Disk
) -> None:
    project = make(root, btrfs_disk.folder(root))
    script = "echo x >> src/keep; echo same > same; mkdir shared; echo 1 > shared/fork; rm gone/g; chmod 600 run.sh"
    fork(hostfork, root, project + ":btrfs", script)
    make(root, project, "chmod 600 src/keep; echo same > same; mkdir shared; echo 2 > shared/host; rm gone/g; "
         "echo y >> run.sh")  # fmt: skip
    answer = apply(hostfork, root)
    assert (answer["equal"], answer["conflicts"]) == (3, [])
    assert stat.S_IMODE(os.stat(f"{project}/src/keep").st_mode) == 0o600
    assert sorted(os.listdir(f"{project}/shared")) == ["fork", "host"]
    assert stat.S_IMODE(os.stat(f"{project}/run.sh").st_mode) == 0o600
    with open(f"{project}/run.sh") as file:
        assert file.read() == "run\ny\n"


CONFLICTS = [
    ("echo f > n", "echo h > n", "both-created", "n"),
    ("echo f >> src/keep", "rm src/keep", "host-deleted", "src/keep"),
    ("echo f > src/deep/n", "rm -r src/deep", "host-deleted", "src/deep/n"),
    ("echo f > src/deep/n", "rm -r src/deep; ln -s /etc src/deep", "type", "src/deep/n"),
    ("rm -r gone", "echo new > gone/inner/new", "folder", "gone/inner"),
    ("rm src/keep; ln -s a src/keep", "echo h >> src/keep", "type", "src/keep"),
    ("rm src/keep", "rm src/keep; mkdir src/keep", "type", "src/keep"),
    ("chmod 700 src/keep", "chmod 711 src/keep", "both-metadata", "src/keep"),
    ("mkdir n", "echo > n", "both-created", "n"),
]


@pytest.mark.parametrize(("in_fork", "on_host", "kind", "path"), CONFLICTS)
@pytest.mark.parametrize("how", ["btrfs", "copy"])
def test_each_kind_of_conflict_is_named_and_resolved_both_ways(
    hostfork: Run, root: Person, btrfs_disk: Disk, in_fork: str, on_host: str, kind: str, path: str, how: str
) -> None:
    project = make(root, btrfs_disk.folder(root))
    fork(hostfork, root, f"{project}:{how}", in_fork + "; echo more > more")
    make(root, project, on_host)
    before = picture(project, inodes=True)
    answer = apply(hostfork, root, check=1)
    assert [(one["kind"], os.path.relpath(one["path"], project)) for one in answer["conflicts"]] == [(kind, path)]
    assert picture(project, inodes=True) == before
    apply(hostfork, root, "--on-conflict", "fork")
    after = picture(project)
    out = picture(exported(hostfork, root, root.home + "/x")) if how == "btrfs" else after
    assert differing(after, out) == []
    assert undo(hostfork, root)["written"]
    assert differing(picture(project, inodes=True), before) == []
    apply(hostfork, root, "--on-conflict", "host")
    after = picture(project, inodes=True)
    left = ["gone/g", "gone/inner/f", "more"] if kind == "folder" else ["more"]
    assert differing(after, before) == left


def test_links_outside_are_a_conflict_and_inside_all_are_replaced(
    hostfork: Run, person: Person, ext4_disk: Disk
) -> None:
    above = ext4_disk.folder(person)
    project = f"{above}/p"
    person.call(os.mkdir, project)
    make(person, project)
    make(person, project, "echo out > out; ln out ../outside; echo in > in1; ln in1 src/in2; echo mode > m; ln m ../m")
    fork(hostfork, person, project, "echo 1 >> out; echo 2 >> in1; chmod 600 m")
    answer = apply(hostfork, person, check=1)
    names = [(os.path.basename(one["path"]), one["kind"]) for one in answer["conflicts"]]
    assert sorted(names) == [("m", "hard-link"), ("out", "hard-link")]
    apply(hostfork, person, "--on-conflict", f"fork:{project}/out", "--on-conflict", f"host:{project}/m")
    with open(f"{above}/outside") as file:
        assert file.read() == "out\n"
    assert os.stat(f"{project}/in1").st_ino == os.stat(f"{project}/src/in2").st_ino
    assert stat.S_IMODE(os.stat(f"{project}/m").st_mode) == 0o644


def test_case_17_nothing_outside_the_target_and_no_devices_or_set_uid_unless_asked(
    hostfork: Run, person: Person, ext4_disk: Disk
) -> None:
    """CASES 17: links that lead out, devices, sockets, set-uid files."""
    above = ext4_disk.folder(person)
    project, victim = f"{above}/p", f"{above}/victim"
    person.call(os.mkdir, project)
    person.call(os.mkdir, victim)
    make(person, project)
    make(person, project, "ln -s ../victim cache; echo v > ../victim/v")
    device = "mknod null c 1 3; " if person.uid == 0 else ""
    script = (
        f"{device}rm cache; mkdir cache; echo c > cache/v; ln -s /etc out; ln -s .. up; cp /bin/true su; "
        "chmod 4755 su; "
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'"
    )
    fork(hostfork, person, project, script)
    answer = apply(hostfork, person)
    why = {os.path.basename(one["path"]): one["why"] for one in answer["left_out"]}
    assert why == {"sock": "socket", "su": "set-uid"} | ({"null": "device"} if device else {})
    assert os.listdir(victim) == ["v"]
    with open(f"{victim}/v") as file:
        assert file.read() == "v\n"
    assert (os.readlink(f"{project}/out"), os.readlink(f"{project}/up")) == ("/etc", "..")
    assert stat.S_IMODE(os.stat(f"{project}/su").st_mode) == 0o755
    assert not os.path.lexists(f"{project}/sock")
    undo(hostfork, person)
    answer = apply(hostfork, person, "--special")
    assert answer["left_out"] == []
    assert stat.S_ISSOCK(os.stat(f"{project}/sock").st_mode)
    assert stat.S_IMODE(os.stat(f"{project}/su").st_mode) == 0o4755
    assert os.path.lexists(f"{project}/null") is bool(device)


def test_a_link_that_the_host_puts_in_the_way_is_not_followed(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    above = ext4_disk.folder(user)
    project = f"{above}/p"
    user.call(os.mkdir, project)
    make(user, project)
    fork(hostfork, user, project, "echo f >> src/keep; echo n > src/n")
    make(user, above, "mkdir victim; cp p/src/keep victim; mv p/src src; ln -s ../victim p/src")
    answer = apply(hostfork, user, check=1)
    assert {one["kind"] for one in answer["conflicts"]} <= {"host-deleted", "type"}
    make(user, above, "rm p/src; mv src p/src; mv p real; ln -s real p")
    done = hostfork(user, "apply", "f", "--yes")
    assert done.returncode == 125
    assert "apply.blocked" in done.stderr
    assert os.listdir(f"{above}/victim") == ["keep"]


@pytest.mark.rig("root")
def test_what_cannot_be_replaced_is_named_before_anything_is_written(
    hostfork: Run, user: Person, ext4_disk: Disk
) -> None:
    project = make(user, ext4_disk.folder(user))
    fork(hostfork, user, project, "echo x >> src/keep; echo y >> run.sh; echo z > both/z; rm old.txt")
    os.chown(f"{project}/both", 0, 0)
    subprocess.run(["chattr", "+i", f"{project}/run.sh"], check=True)
    try:
        before = picture(project, inodes=True)
        done = hostfork(user, "apply", "f", "--yes", "--on-conflict", "fork")
        assert done.returncode == 125
        assert "apply.blocked" in done.stderr
        assert "run.sh: it is immutable or append-only" in done.stderr
        assert "both/z: its folder belongs to user 0" in done.stderr
        assert picture(project, inodes=True) == before
        nothing_left(user, project)
    finally:
        subprocess.run(["chattr", "-i", f"{project}/run.sh"], check=True)
    assert apply(hostfork, user, f"{project}/src", f"{project}/old.txt")["written"]


def test_several_private_paths_are_one_transaction(hostfork: Run, person: Person, disk: Disk) -> None:
    one, two = make(person, disk.folder(person)), make(person, disk.folder(person))
    single = f"{disk.folder(person)}/file"
    person.run(["sh", "-c", f"echo single > {single}"], check=True)
    script = f"echo 1 >> {one}/src/keep; echo 2 >> {two}/src/keep; echo 3 >> {single}"
    options = [word for path in (one, two, single) for word in ("--private", path)]
    hostfork(person, "run", "--name", "f", *options, "--", "sh", "-c", script, check=0)
    before = [picture(os.path.dirname(single)), picture(one), picture(two)]
    make(person, two, "echo host >> src/keep")
    apply(hostfork, person, check=1)
    assert [picture(os.path.dirname(single)), picture(one)] == before[:2]
    apply(hostfork, person, "--on-conflict", "fork")
    with open(single) as file:
        assert file.read() == "single\n3\n"
    nothing_left(person, one, two, os.path.dirname(single))
    undo(hostfork, person)
    assert [picture(os.path.dirname(single)), picture(one)] == before[:2]


def test_ignored_stays_out_and_active_files_must_be_allowed(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    make(
        user,
        project,
        "printf 'out/\\n*.tmp\\n' > .gitignore; mkdir out; echo 1 > out/1; mkdir -p lib/out; echo 2 > lib/out/2",
    )
    fork(hostfork, user, project, "echo 2 > out/2; echo t > out/t; rm -r lib; echo e > .envrc; echo x > x")
    answer = apply(hostfork, user, check=1)
    assert [os.path.basename(one["path"]) for one in answer["active"]] == [".envrc"]
    shown = hostfork(user, "apply", "f", "--yes", check=1, cwd=project).stderr
    assert "run by your host by itself; nothing was applied" in shown
    assert not os.path.exists(f"{project}/x")
    answer = apply(hostfork, user, "--allow-active")
    assert answer["ignored"] == 2
    assert os.listdir(f"{project}/out") == ["1"]
    assert not os.path.exists(f"{project}/lib")
    assert apply(hostfork, user, "--ignored", "--allow-active")["counts"]["created"] == 2
    assert sorted(os.listdir(f"{project}/out")) == ["1", "2", "t"]


def test_chosen_paths_one_after_the_other(hostfork: Run, person: Person, project: str) -> None:
    fork(hostfork, person, project, "echo 1 >> src/keep; echo 2 > src/new; rm -r gone; mkdir -p n/m; echo 3 > n/m/f")
    before = picture(project, inodes=True)
    assert apply(hostfork, person, f"{project}/src/new", f"{project}/n/m/f")["counts"]["created"] == 2
    assert apply(hostfork, person, f"{project}/gone")["counts"]["deleted"] == 4
    answer = apply(hostfork, person)
    assert (answer["equal"], answer["counts"]["modified"], answer["conflicts"]) == (8, 1, [])
    for _ in range(3):
        assert undo(hostfork, person)["written"]
    assert differing(picture(project, inodes=True), before) == []
    assert hostfork(person, "undo", "f", "--yes").returncode == 125


def test_undo_refuses_where_somebody_changed_it_since(hostfork: Run, person: Person, project: str) -> None:
    fork(hostfork, person, project)
    number = apply(hostfork, person)["apply"]
    make(person, project, "echo mine >> src/a.py; echo beside > new/beside; chmod 711 run.sh; echo back > old.txt")
    before = picture(project, inodes=True)
    answer = undo(hostfork, person, check=1)
    names = {os.path.relpath(one["path"], project) for one in answer["conflicts"]}
    assert names == {"src/a.py", "new", "run.sh", "old.txt"}
    assert picture(project, inodes=True) == before
    hostfork(person, "discard", "f", "--yes", check=0)
    assert undo(hostfork, person, name=number[:6], check=1)["conflicts"]


def test_undo_by_id_after_the_fork_is_gone(hostfork: Run, person: Person, project: str) -> None:
    before = picture(project, inodes=True)
    fork(hostfork, person, project)
    number = apply(hostfork, person)["apply"]
    hostfork(person, "discard", "f", "--yes", check=0)
    assert undo(hostfork, person, name=number[:6])["written"]
    assert differing(picture(project, inodes=True), before) == []


@pytest.mark.rig("root")
def test_a_nested_subvolume_as_target_is_staged_at_its_top(hostfork: Run, person: Person, btrfs_disk: Disk) -> None:
    project = f"{btrfs_disk.folder(person)}/sub"
    subprocess.run(["btrfs", "subvolume", "create", project], check=True, capture_output=True)
    os.chown(project, person.uid, person.gid)
    make(person, project, "mkdir src gone; echo k > src/keep; echo g > gone/g; chmod 700 gone")
    os.chmod(project, 0o555)
    before = picture(project, inodes=True)
    fork(hostfork, person, project, "echo 1 >> src/keep; chmod 755 .; rm -r gone; mkdir n; echo n > n/n; chmod 555 .")
    apply(hostfork, person)
    nothing_left(person, project)
    assert sorted(os.listdir(project)) == ["n", "src"]
    assert stat.S_IMODE(os.stat(project).st_mode) == 0o555
    undo(hostfork, person)
    assert {path: row[:-1] for path, row in picture(project, inodes=True).items()} == {
        path: row[:-1] for path, row in before.items()
    }
    os.chmod(project, 0o755)


def test_attributes_and_acls_are_kept(hostfork: Run, user: Person, xfs_disk: Disk) -> None:
    project = make(user, xfs_disk.folder(user))
    make(
        user, project, "setfattr -n user.host -v 1 src/keep; setfacl -m u:0:r src/keep; setfattr -n user.a -v 1 run.sh"
    )
    before = picture(project, inodes=True)
    fork(hostfork, user, project, "echo x >> src/keep; setfattr -n user.b -v 2 run.sh; setfattr -x user.a run.sh")
    apply(hostfork, user)
    assert os.getxattr(f"{project}/src/keep", "user.host") == b"1"
    assert "system.posix_acl_access" in os.listxattr(f"{project}/src/keep")
    assert os.listxattr(f"{project}/run.sh") == ["user.b"]
    undo(hostfork, user)
    assert differing(picture(project, inodes=True), before) == []


def test_a_patch_only_writes_no_more(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    before = picture(project, inodes=True)
    fork(hostfork, user, project, "echo x >> src/keep")
    hostfork(user, "apply", "f", "--patch-only", f"{user.home}/p.patch", check=0)
    with open(f"{user.home}/p.patch") as file:
        assert "+x\n" in file.read()
    assert picture(project, inodes=True) == before
    assert hostfork(user, "apply", "f", "--patch-only", f"{user.home}/p.patch").returncode == 125


def test_without_a_terminal_and_yes_it_refuses(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    before = picture(project, inodes=True)
    fork(hostfork, user, project)
    done = hostfork(user, "apply", "f")
    assert (done.returncode, "fork.confirm" in done.stderr) == (2, True)
    assert picture(project, inodes=True) == before
    assert hostfork(user, "apply", "f", "--on-conflict", "theirs").returncode == 2
    for words in (["no-such"], ["--on-conflict", "fork:no-such"]):
        done = hostfork(user, "apply", "f", "--yes", *words, cwd=project)
        assert (done.returncode, "changed nothing at no-such" in done.stderr) == (2, True)
    assert picture(project, inodes=True) == before
    assert hostfork(user, "undo", "f").returncode == 125


def test_gc_forgets_what_is_too_old_to_be_undone(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    fork(hostfork, user, project)
    number = apply(hostfork, user)["apply"]
    hostfork(user, "gc", check=0)
    header = os.path.join(user.state, "applies", number, "apply.json")
    with open(header) as file:
        content = json.load(file)
    with open(header, "w") as file:
        json.dump(content | {"moment": content["moment"] - 15 * 86400}, file)
    stage = os.path.join(content["pool"], "applies", number)
    assert os.listdir(stage)
    hostfork(user, "gc", check=0)
    assert (os.path.exists(stage), os.path.exists(os.path.dirname(header))) == (False, False)
    assert "apply.not-found" in hostfork(user, "undo", "f", "--yes", check=125).stderr
    assert not apply(hostfork, user)["written"]
