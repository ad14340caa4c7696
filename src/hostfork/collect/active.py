"""What the host runs or obeys by itself: one table of paths, and the folder that git's own configuration names.

In it is what starts without anybody asking for that file: at a commit, a checkout, a login, on entering or opening a
folder, at a push, when a service manager, a debugger, a mail or an agent comes along. Not in it is what somebody
runs by its name (`make`, a test suite, a package manager's install).
"""

from __future__ import annotations

from functools import cache
from re import Pattern, compile, escape

from hostfork.collect.ignores import Final
from hostfork.vocabulary import EntryKind

ACTIVE_FILES = (
    # git and its helpers, other version control
    ".git",
    ".git/hooks",
    ".git/hooks/*",
    ".git/config",
    ".git/config.worktree",
    ".git/worktrees/*/config.worktree",
    ".git/info/attributes",
    ".git/modules/**/config",
    ".git/modules/**/hooks/*",
    ".gitconfig",
    ".config/git/config",
    ".config/git/hooks/*",
    ".husky/**",
    ".githooks/*",
    "lefthook.yml",
    "lefthook.yaml",
    "lefthook.toml",
    "lefthook-local.yml",
    ".lefthook.yml",
    ".lefthook.yaml",
    ".pre-commit-config.yaml",
    ".overcommit.yml",
    ".hg/hgrc",
    ".hgrc",
    ".jj/repo/config.toml",
    ".config/jj/config.toml",
    # shells, terminals
    ".profile",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".bash_completion",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".oh-my-zsh/custom/**",
    ".kshrc",
    ".mkshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".logout",
    ".inputrc",
    ".config/fish/config.fish",
    ".config/fish/conf.d/*",
    ".config/fish/functions/*",
    ".config/fish/completions/*",
    ".config/nushell/*",
    ".config/powershell/*",
    ".local/share/bash-completion/completions/*",
    ".local/bin/*",
    ".tmux.conf",
    ".config/tmux/tmux.conf",
    ".screenrc",
    ".lessfilter",
    ".mailcap",
    # tools that read a folder when one enters it
    ".envrc",
    ".direnvrc",
    ".config/direnv/**",
    "mise.toml",
    ".mise.toml",
    "mise.local.toml",
    ".mise/config.toml",
    ".config/mise.toml",
    ".config/mise/config.toml",
    ".autoenv",
    ".autoenv.zsh",
    # editors
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".vscode/launch.json",
    ".vscode/mcp.json",
    "*.code-workspace",
    ".devcontainer/**",
    ".devcontainer.json",
    ".idea/workspace.xml",
    ".idea/runConfigurations/*",
    ".idea/watcherTasks.xml",
    ".idea/startup.xml",
    ".zed/settings.json",
    ".zed/tasks.json",
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
    ".vimrc",
    ".lvimrc",
    ".vim/plugin/*",
    ".vim/autoload/*",
    ".config/nvim/**",
    ".emacs",
    ".emacs.d/init.el",
    ".emacs.d/early-init.el",
    ".config/emacs/**",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".config/helix/*",
    ".helix/*",
    # agents
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/hooks/*",
    ".claude.json",
    ".mcp.json",
    ".cursor/mcp.json",
    ".cursor/hooks.json",
    ".codex/config.toml",
    ".codex/hooks.json",
    ".gemini/settings.json",
    ".kiro/hooks/*",
    ".aider.conf.yml",
    "opencode.json",
    ".opencode/plugin/*",
    # continuous integration
    ".github/workflows/*",
    ".github/actions/**",
    ".gitlab-ci.yml",
    ".gitlab/ci/**",
    ".circleci/**",
    ".forgejo/workflows/*",
    ".gitea/workflows/*",
    ".woodpecker.yml",
    ".woodpecker.yaml",
    ".woodpecker/*",
    ".drone.yml",
    ".drone.star",
    ".travis.yml",
    ".cirrus.yml",
    ".cirrus.star",
    ".build.yml",
    ".builds/*",
    ".buildkite/**",
    ".semaphore/*",
    ".tekton/**",
    ".teamcity/**",
    "Jenkinsfile",
    "appveyor.yml",
    ".appveyor.yml",
    "azure-pipelines.yml",
    ".azure-pipelines/**",
    "bitbucket-pipelines.yml",
    "cloudbuild.yaml",
    "netlify.toml",
    # logging in, sessions, services, clocks
    ".ssh/authorized_keys",
    ".ssh/authorized_keys2",
    ".ssh/config",
    ".ssh/config.d/*",
    ".ssh/environment",
    ".ssh/rc",
    ".pam_environment",
    ".xinitrc",
    ".xsession",
    ".xprofile",
    ".xsessionrc",
    ".config/autostart/*",
    ".config/systemd/user/**",
    ".config/environment.d/*",
    ".config/user-tmpfiles.d/*",
    ".config/containers/systemd/**",
    ".config/plasma-workspace/**",
    ".config/sway/config",
    ".config/i3/config",
    ".config/hypr/hyprland.conf",
    ".local/share/systemd/user/**",
    ".local/share/dbus-1/services/*",
    ".local/share/applications/*",
    ".forward",
    ".procmailrc",
    "etc/crontab",
    "etc/cron.d/*",
    "etc/cron.hourly/*",
    "etc/cron.daily/*",
    "etc/cron.weekly/*",
    "etc/cron.monthly/*",
    "etc/profile",
    "etc/profile.d/*",
    "etc/ld.so.preload",
    "etc/systemd/system/**",
    "etc/udev/rules.d/*",
    "spool/cron/**",
    # programs that other programs call without being asked
    ".gnupg/gpg.conf",
    ".gnupg/gpg-agent.conf",
    ".gnupg/scdaemon.conf",
    ".docker/config.json",
    ".kube/config",
    ".aws/config",
    ".cargo/config",
    ".cargo/config.toml",
    ".yarnrc.yml",
    # debuggers and prompts that read the folder they start in; Python at every start
    ".gdbinit",
    ".lldbinit",
    ".pdbrc",
    ".psqlrc",
    ".sqliterc",
    ".Rprofile",
    ".irbrc",
    ".pryrc",
    ".ghci",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
)
"""Ends of paths: `*` is any part of one name, `**` any number of names."""


def is_active(path: str) -> bool:
    """Whether the host may run or obey a file with this path by itself."""
    if path.startswith("/") and "/.git/hooks/" in path and path.endswith(".sample"):
        return False
    return _may_be(path) and _files().search(path) is not None


def leads_to_active(path: str) -> bool:
    """Whether what lies below a folder with this path may be active: a symlink in its place names other files."""
    return _may_be(path) and _folders().search(path) is not None


class Hooks:
    """The folders of a private path from which git runs hooks because `core.hooksPath` says so."""

    def __init__(self, final: Final) -> None:
        self._folders = tuple(
            folder for name in (".git/config", ".git/config.worktree") for folder in _named(final.read(name) or b"")
        )

    def hold(self, relative: str) -> bool:
        """Whether a path, relative to the private one, lies in such a folder or is it."""
        return any(relative == folder or relative.startswith(folder + "/") for folder in self._folders)


def active(path: str, relative: str, kind: EntryKind, hooks: Hooks) -> bool:
    """Whether something that is no folder is active: by its path, by git's configuration, or as a way to such files."""
    if kind is EntryKind.SYMLINK and leads_to_active(path):
        return True
    return is_active(path) or hooks.hold(relative)


def _named(config: bytes) -> list[str]:
    """The folders that `core.hooksPath` names in a configuration, relative to the work tree (git-config(1))."""
    found, core = [], False
    for line in config.decode("utf-8", "surrogateescape").splitlines():
        line = line.strip()
        if line.startswith("["):
            core = line[1:].partition("]")[0].strip().lower() == "core"
            line = line.partition("]")[2].strip()
        name, equals, value = line.partition("=")
        folder = value.strip().strip('"').removeprefix("./").rstrip("/")
        if core and equals and name.strip().lower() == "hookspath" and folder and not folder.startswith(("/", "~")):
            found.append(folder)
    return found


_ENDINGS = (".pth", ".code-workspace")
"""Of the patterns that begin with `*`."""


def _may_be(path: str) -> bool:
    """Whether a part of the path is one with which an active one begins: cheap, for a fork may change many."""
    if "/.git/objects/" in path:
        return False
    return not _first_parts().isdisjoint(path.split("/")) or path.endswith(_ENDINGS)


@cache
def _first_parts() -> frozenset[str]:
    return frozenset(pattern.partition("/")[0] for pattern in ACTIVE_FILES)


@cache
def _files() -> Pattern[str]:
    return _ends(ACTIVE_FILES)


@cache
def _folders() -> Pattern[str]:
    parts = (pattern.split("/") for pattern in ACTIVE_FILES)
    around = {"/".join(names[:count]) for names in parts for count in range(1, len(names))}
    return _ends(sorted(one for one in around if one not in _PLACES))


_PLACES = frozenset({".config", ".local", ".local/share", ".local/share/bash-completion", "etc", "spool"})
"""Folders that hold so much else that a symlink in their place says nothing."""


def _ends(patterns: tuple[str, ...] | list[str]) -> Pattern[str]:
    ends = "|".join("/".join(_part(part) for part in pattern.split("/")) for pattern in patterns)
    return compile(rf"(?s)(?:^|/)(?:{ends})\Z")


def _part(part: str) -> str:
    return ".+" if part == "**" else "[^/]*".join(escape(piece) for piece in part.split("*"))
