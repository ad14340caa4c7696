"""Doctor and setup: what is missing is found, installed and taken back exactly, in places of the test's own."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from hostfork.cli import setup as verb
from hostfork.cli.doctor import doctor_lines
from hostfork.cli.look import Look
from hostfork.cli.main import main
from hostfork.cli.setup import root_command, setup_lines
from hostfork.errors import HostError
from hostfork.lifecycle import doctor, setup
from hostfork.lifecycle.doctor import Capability
from hostfork.lifecycle.setup import Machine, Trial
from hostfork.workload.spawn import helper_path
from storage_cases import make_subvolume


@pytest.fixture
def machine(tmp_path):
    """A machine of the test's own; its programs write down how they were called."""
    for folder in ("proc/sys/user", "proc/sys/kernel", "etc/apparmor.d", "etc/sysctl.d", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    for program in ("apparmor_parser", "sysctl"):
        file = tmp_path / "bin" / program
        file.write_text(
            f'#!/bin/sh\necho "${{0##*/}} $@" >>{tmp_path}/calls\n[ ! -e {tmp_path}/fail ] || '
            "{ echo broken line >&2; exit 3; }\n"
        )
        file.chmod(0o755)
    made = Machine(str(tmp_path / "proc"), str(tmp_path / "etc"), f"{tmp_path}/bin:/bin:/usr/bin")
    setting(made, "user/max_user_namespaces", "30000")
    return made


def setting(machine, name, value):
    with open(f"{machine.proc}/sys/{name}", "w") as file:
        file.write(value + "\n")


def calls(machine):
    try:
        with open(os.path.dirname(machine.proc) + "/calls") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def files(machine):
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(machine.etc) for name in names)


def test_where_nothing_is_missing_nothing_is_done(machine):
    assert setup.missing(machine) == ()
    assert setup.installed(machine) == ()
    setup.install(machine, ())
    assert files(machine) == []
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "0")
    setting(machine, "kernel/unprivileged_userns_clone", "1")
    assert setup.missing(machine) == ()


def test_the_profile_names_exactly_the_helper_and_is_taken_back(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    (measure,) = setup.missing(machine)
    assert measure.file == f"{machine.etc}/apparmor.d/hostfork"
    assert f'profile hostfork "{helper_path()}" flags=(unconfined) {{\n  userns,\n}}' in measure.content
    assert helper_path() in measure.grants
    setup.install(machine, (measure,))
    assert files(machine) == [measure.file]
    assert os.stat(measure.file).st_mode & 0o777 == 0o644
    assert calls(machine) == [f"apparmor_parser --replace {measure.file}"]
    assert setup.missing(machine) == ()
    assert setup.installed(machine) == (measure,)
    setup.undo(machine, setup.installed(machine))
    assert files(machine) == []
    assert calls(machine)[-1] == f"apparmor_parser --remove {measure.file}"
    assert setup.missing(machine) == (measure,)


def test_a_profile_of_another_installation_is_replaced(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    (measure,) = setup.missing(machine)
    with open(measure.file, "w") as file:
        file.write(measure.content.replace(helper_path(), "/old/hostfork-helper"))
    assert setup.missing(machine) == (measure,)
    setup.install(machine, (measure,))
    with open(measure.file) as file:
        assert file.read() == measure.content


def test_limits_are_raised_and_the_former_values_come_back(machine):
    setting(machine, "user/max_user_namespaces", "0")
    setting(machine, "kernel/unprivileged_userns_clone", "0")
    (measure,) = setup.missing(machine)
    assert measure.file == f"{machine.etc}/sysctl.d/90-hostfork.conf"
    setup.install(machine, (measure,))
    with open(measure.file) as file:
        assert file.read().splitlines()[-2:] == [
            "user.max_user_namespaces = 15000",
            "kernel.unprivileged_userns_clone = 1",
        ]
    setting(machine, "user/max_user_namespaces", "15000")
    setting(machine, "kernel/unprivileged_userns_clone", "1")
    setup.undo(machine, setup.installed(machine))
    assert calls(machine) == [
        f"sysctl --quiet --load={measure.file}",
        "sysctl --quiet --write user.max_user_namespaces=0",
        "sysctl --quiet --write kernel.unprivileged_userns_clone=0",
    ]
    assert files(machine) == []


def test_a_file_that_is_not_hostforks_is_left_alone(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    (measure,) = setup.missing(machine)
    with open(measure.file, "w") as file:
        file.write("theirs")
    with pytest.raises(HostError, match="was not made by hostfork"):
        setup.install(machine, (measure,))
    with open(measure.file) as file:
        assert file.read() == "theirs"
    assert setup.installed(machine) == ()
    assert calls(machine) == []


def test_a_program_that_fails_is_told_with_its_words(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    open(os.path.dirname(machine.proc) + "/fail", "w").close()
    with pytest.raises(HostError) as caught:
        setup.install(machine, setup.missing(machine))
    assert caught.value.details == ("broken line",)
    assert "ended with 3" in caught.value.message


def test_a_program_that_is_not_there_is_named(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    bare = Machine(machine.proc, machine.etc, "/nonexistent")
    with pytest.raises(HostError, match="apparmor_parser is not installed"):
        setup.install(bare, setup.missing(bare))


def test_a_place_that_cannot_be_written_is_an_error(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    (measure,) = setup.missing(machine)
    shutil.rmtree(f"{machine.etc}/apparmor.d")
    with pytest.raises(HostError, match="cannot be written"):
        setup.install(machine, (measure,))
    with pytest.raises(HostError, match="cannot be removed"):
        setup.undo(machine, (measure,))


def test_the_profile_escapes_what_apparmor_takes_for_patterns():
    content = setup._profile('/opt/a*b?[c]{d}^"e@f\\')
    assert '"/opt/a\\*b\\?\\[c\\]\\{d\\}\\^\\"e\\@f\\\\"' in content


@pytest.mark.rig("apparmor")
def test_the_profile_is_good_apparmor(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    (measure,) = setup.missing(machine)
    parser = shutil.which("apparmor_parser", path="/usr/sbin:/sbin:/usr/bin")
    assert parser is not None
    content = measure.content
    if not os.path.exists("/etc/apparmor.d/abi/4.0"):  # an older parser knows neither the ABI nor the permission
        content = content.replace("abi <abi/4.0>,\n", "").replace("  userns,\n", "")
    done = subprocess.run(
        [parser, "--skip-kernel-load", "--skip-cache", "--quiet"], input=content, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_people_see_what_is_missing_what_it_grants_and_how_root_does_it(machine):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    measures = setup.missing(machine)
    trial = Trial(False, "tried: no")
    lines = setup_lines(measures, trial, undo=False, acted=False)
    assert lines[0] == f"missing: AppArmor profile {machine.etc}/apparmor.d/hostfork"
    assert any(line.startswith("  it grants: ") for line in lines)
    assert f"  then: apparmor_parser --replace {machine.profile}" in lines
    assert setup_lines(measures, trial, undo=False, acted=True)[0].startswith("installed: AppArmor profile")
    assert setup_lines(measures, trial, undo=True, acted=True) == [
        f"removed: AppArmor profile {machine.profile}",
        "tried: no",
    ]
    assert setup_lines(measures, trial, undo=True, acted=False)[0].startswith("would be removed")
    assert setup_lines((), trial, undo=False, acted=False)[0] == "nothing is missing that setup could install"
    assert setup_lines((), trial, undo=True, acted=False)[0] == "setup has installed nothing here"


def test_root_installs_and_takes_back(machine, monkeypatch, capfd, root):
    monkeypatch.setattr(verb, "Machine", lambda: machine)
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    assert main(["setup", "--print"]) == 0
    assert files(machine) == []
    assert capfd.readouterr().out.startswith("missing: AppArmor profile")
    assert main(["setup", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["done"], document["undo"], document["namespaces"]) == (True, False, True)
    assert document["measures"][0]["commands"] == [["apparmor_parser", "--replace", machine.profile]]
    assert files(machine) == [machine.profile]
    assert main(["setup"]) == 0
    assert capfd.readouterr().out.startswith("nothing is missing")
    assert main(["setup", "--undo"]) == 0
    assert capfd.readouterr().out.startswith("removed: AppArmor profile")
    assert files(machine) == []


def test_an_ordinary_user_installs_nothing(machine, user):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    (measure,) = setup.missing(machine)
    assert user.call(_setup_as_user, (measure,), ()) == (1, 0)
    setup.install(machine, (measure,))
    assert user.call(_setup_as_user, (), (measure,)) == (0, 1)


def _setup_as_user(missing, installed):
    """What `setup` and `setup --undo` end with where a user finds this."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)
    setup.missing, setup.installed = lambda _machine: missing, lambda _machine: installed
    return main(["setup"]), main(["setup", "--undo"])


def test_an_ordinary_user_is_told_what_root_types(machine, user):
    setting(machine, "kernel/apparmor_restrict_unprivileged_userns", "1")
    measures = setup.missing(machine)
    lines = user.call(_lines_as_user, measures)
    assert lines[-1].startswith("to install it: sudo ")
    assert root_command().endswith("setup")


def _lines_as_user(measures):
    return setup_lines(measures, Trial(True, "t"), undo=False, acted=False)


def test_the_trial_is_made_as_an_ordinary_user(root, user):
    assert user.call(setup.try_as_user).available is True
    tried = root.call(setup.try_as_user)
    assert tried.available is True
    assert "user 65534" in tried.sentence


def test_the_trial_says_where_namespaces_are_denied(user, hostfork):
    done = hostfork(user, "setup", "--json", namespaces=False, check=1)
    document = json.loads(done.stdout)
    assert document["namespaces"] is False
    assert "step namespaces" in document["trial"]


def test_setup_says_that_nothing_is_missing_here(person, hostfork):
    done = hostfork(person, "setup", check=0)
    assert done.stdout.startswith("nothing is missing that setup could install\ntried: ")
    assert hostfork(person, "setup", "--undo", check=0).stdout.startswith("setup has installed nothing here\n")
    assert json.loads(hostfork(person, "setup", "--print", "--json", check=0).stdout)["measures"] == []
    assert hostfork(person, "setup", "--print", "--undo", check=2).stdout == ""


@pytest.mark.rig("cgroup")
def test_a_user_without_a_cgroup_is_told_the_exact_commands(user, hostfork):
    done = hostfork(user, "setup", "--print", delegated=False, check=0)
    assert "sudo mkdir /sys/fs/cgroup" in done.stdout or "sudo loginctl enable-linger" in done.stdout
    assert user.call(setup.delegation) == ()


def test_delegation_goes_through_systemd_where_it_runs(user, hostfork):
    code = "from hostfork.lifecycle.setup import delegation; print(delegation('/'))"

    done = user.run([sys.executable, "-c", code], delegated=False)
    assert f"sudo loginctl enable-linger {user.uid}" in done.stdout


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_tries_everything_and_leaves_nothing(person, hostfork):
    before = os.listdir(person.home)
    done = hostfork(person, "doctor", check=0)
    assert os.listdir(person.home) == before
    assert "yes namespaces" in done.stdout
    for line in done.stdout.splitlines():
        assert line.isprintable()


def test_doctor_leaves_a_state_folder_that_was_there(person, hostfork):
    made = person.run(["mkdir", "-p", person.state + "/forks"])
    assert made.returncode == 0
    hostfork(person, "doctor", check=0)
    assert os.listdir(person.state) == ["forks"]


def test_doctor_says_that_namespaces_are_denied_and_what_helps(user, hostfork):
    done = hostfork(user, "doctor", namespaces=False, check=1)
    assert "no  namespaces" in done.stdout
    assert "hostfork setup --print" in done.stdout
    assert "user.max_user_namespaces" in done.stdout


@pytest.mark.rig("cgroup")
def test_doctor_says_that_no_cgroup_is_delegated(user, hostfork):
    document = json.loads(hostfork(user, "doctor", "--json", delegated=False, check=0).stdout)
    facts = {capability["name"]: capability for capability in document["capabilities"]}
    assert facts["cgroup ownership"]["available"] is False
    assert "is not delegated to this user" in facts["cgroup ownership"]["follows"]
    document = json.loads(hostfork(user, "doctor", "--json", check=0).stdout)
    facts = {capability["name"]: capability for capability in document["capabilities"]}
    assert facts["cgroup ownership"]["available"] is True


def test_doctor_says_that_the_state_folder_cannot_be_made(user, hostfork):
    done = hostfork(user, "doctor", env={"XDG_STATE_HOME": "/proc/none"}, check=1)
    assert "no fork can be recorded there" in done.stdout


def test_doctor_looks_at_the_filesystem_of_the_state_folder(disk, user, hostfork):
    done = hostfork(user, "doctor", "--json", env={"XDG_STATE_HOME": disk.folder(user)}, check=0)
    facts = {capability["name"]: capability for capability in json.loads(done.stdout)["capabilities"]}
    assert facts["shared blocks"]["available"] is (disk.kind in ("btrfs", "xfs"))
    assert ("belongs to user 0" in facts["btrfs"]["follows"]) is (disk.kind == "btrfs")
    assert facts["pool"]["available"] is (disk.kind != "tmpfs")
    assert disk.kind in facts["pool"]["follows"]


def doctor_of(hostfork, person, state, cwd=None):
    done = hostfork(person, "doctor", "--json", env={"XDG_STATE_HOME": state}, cwd=cwd, check=0)
    return {capability["name"]: capability for capability in json.loads(done.stdout)["capabilities"]}


def test_doctor_tries_snapshots(btrfs_disk, person, hostfork):
    """In a subvolume of the person's own, and in one of root's."""
    top = btrfs_disk.folder(person)
    person.call(make_subvolume, f"{top}/own")
    facts = doctor_of(hostfork, person, f"{top}/own")
    assert facts["btrfs"]["follows"] == "gives snapshot private paths"
    assert "folders of the base cannot be renamed" in facts["frozen overlay"]["follows"]
    assert "no quota groups" not in facts
    assert os.listdir(f"{top}/own") == []
    facts = doctor_of(hostfork, person, top)
    for name in ("btrfs", "frozen overlay"):
        assert facts[name]["available"] is (person.uid == 0)
        if person.uid != 0:
            assert "user_subvol_rm_allowed" in facts[name]["remedy"]


def test_doctor_finds_quota_groups(make_disk, ext4_disk, person, hostfork):
    """On the state folder's Btrfs, and on the working directory's."""
    disk = make_disk("btrfs")
    subprocess.run(["btrfs", "quota", "enable", disk.path], check=True)
    folder, elsewhere = disk.folder(person), ext4_disk.folder(person)
    for state, cwd in ((folder, elsewhere), (elsewhere, folder)):
        fact = doctor_of(hostfork, person, state, cwd)["no quota groups"]
        assert not fact["available"]
        assert "slower" in fact["follows"]
        assert fact["remedy"].startswith(f"btrfs quota disable {folder}")
    assert "no quota groups" not in doctor_of(hostfork, person, elsewhere, elsewhere)


def test_doctor_knows_ssh_files_that_a_user_namespace_spoils(user, root):
    folder = pathlib.Path(user.home, "ssh")
    folder.mkdir(0o755)
    empty = user.call(doctor._ssh_configuration, str(folder))
    assert empty.available
    (folder / "x.conf").write_text("")
    (folder / "x.txt").write_text("")
    assert "private copies of 1 files" in user.call(doctor._ssh_configuration, str(folder)).follows
    assert root.call(doctor._ssh_configuration, str(folder)).follows == "ssh works in forks as on the host"
    (folder / "x.conf").chmod(0o600)
    closed = user.call(doctor._ssh_configuration, str(folder))
    assert not closed.available
    assert "x.conf cannot be read" in closed.follows
    assert user.call(doctor._ssh_configuration, "/nonexistent").available


def test_doctor_for_people_wraps_and_marks():
    capabilities = [
        Capability("a", True, "how", "follows " * 12 + "end"),
        Capability("b", False, "how", "x", "remedy", needed=True),
        Capability("c", False, "how", "x"),
    ]
    lines = doctor_lines(capabilities, Look(width=80))
    assert max(len(line) for line in lines) <= 80
    assert lines[-5:-2] == [
        "no  b                    x",
        " " * 25 + "tried: how",
        " " * 25 + "remedy: remedy",
    ]
    assert "\x1b[31mno \x1b[0m" in doctor_lines(capabilities, Look(colour=True))[2]
    assert "\x1b[33mno \x1b[0m" in doctor_lines(capabilities, Look(colour=True))[5]


def test_a_helper_that_cannot_be_started_is_told(root):
    found = root.call(_without_interpreter)
    assert not found.available
    assert "no fork can be made: this program does not know its Python interpreter" in found.follows


def _without_interpreter():
    sys.executable = ""
    return doctor._namespaces()


def test_a_group_that_cannot_be_made_is_told(root):
    found, folder = root.call(_with_a_group_in_the_way)
    os.rmdir(folder)
    assert not found.available
    assert "File exists" in found.follows


def _with_a_group_in_the_way():
    from hostfork.workload.cgroup import find_place

    folder = f"{find_place().parent}/hostfork-doctor-{os.getpid()}"
    os.mkdir(folder)
    return doctor._ownership(), folder


def test_a_host_without_cgroups_is_told(root):
    version, ownership, commands = root.call(_without_cgroup_mount)
    assert not version.available
    assert "mount -t cgroup2" in version.remedy
    assert "no cgroup2 filesystem is mounted" in ownership.follows
    assert commands == ()


def _without_cgroup_mount():
    from hostfork.helper import syscalls
    from hostfork.workload.cgroup import mount_point

    point = mount_point()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.set_propagation("/", syscalls.MS_REC | syscalls.MS_PRIVATE)
    subprocess.run(["umount", "--lazy", point], check=True)
    return doctor._cgroup_kill(), doctor._ownership(), setup.delegation()


def test_privileges_are_told_with_and_without_python_prctl(root, user):
    assert "may mount by itself" in root.call(_privileges_without_prctl).follows
    assert "may not mount by itself" in user.call(_privileges_without_prctl).follows
    assert user.call(_privileges_without_prctl).how == "/proc/self/status"
    if importlib.util.find_spec("prctl") is not None:
        found = user.call(doctor._privileges)
        assert found.how == "python-prctl"
        assert found.follows == user.call(_privileges_without_prctl).follows
        assert root.call(doctor._privileges).follows == root.call(_privileges_without_prctl).follows
    assert "set-uid programs do not work at all" in user.call(_privileges_sealed).follows


def _privileges_without_prctl():
    sys.modules["prctl"] = None  # importing it is an ImportError
    return doctor._privileges()


def _privileges_sealed():
    from hostfork.helper import syscalls

    syscalls.prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    return doctor._privileges()


def test_host_mounts_appear_only_where_the_root_is_shared(root):
    assert root.call(doctor._mount_table).available
    assert not root.call(_mount_table_of_a_private_root).available


def _mount_table_of_a_private_root():
    from hostfork.helper import syscalls

    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.set_propagation("/", syscalls.MS_REC | syscalls.MS_PRIVATE)
    return doctor._mount_table()
