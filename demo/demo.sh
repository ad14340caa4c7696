#!/bin/sh
# The main job of hostfork, on a small project in a temporary folder. Nothing of it stays.
# usage: demo.sh HOSTFORK
set -eu
hostfork=$1
here=$(cd "$(dirname "$0")" && pwd -P)

# Not /tmp, which may lie in memory: private storage belongs on a disk.
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/hostfork-demo.XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP PIPE
project=$folder/project
# A state folder of its own: the demo does not mix with forks that you have.
export XDG_STATE_HOME="$folder/state"
mkdir "$XDG_STATE_HOME"

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || step() { printf '\n== %s\n' "$*"; }
show() {
    printf '$ hostfork %s\n' "$*"
    (cd "$project" && "$hostfork" "$@")
}

# One number for names, kinds, modes, owners, times, link targets and contents of everything below the project.
sum_of_tree() {
    (
        cd "$project"
        find . -printf '%y %m %U:%G %n %s %T@ %p -> %l\0' | sort -z
        find . -type f -print0 | sort -z | xargs -0 sha256sum
    ) | sha256sum | cut -d' ' -f1
}

step "A small project"
"$here/project.sh" "$project"
(cd "$project" && find . -name .git -prune -o -type f -print | sort)
before=$(sum_of_tree)

step "Build, test and edit it in a private copy, at its own path"
run() {
    printf '$ hostfork run -v --name demo %s -- %s\n' "$*" "$here/work.sh"
    (cd "$project" && "$hostfork" run -v --name demo --result "$folder/result.json" "$@" -- "$here/work.sh")
}
printf '$ cd %s\n' "$project"
status=0
run --private . || status=$?
if [ "$status" = 125 ] && grep -q '"host.namespaces"' "$folder/result.json"; then
    step "This host lets you make no namespaces: the copy lies at another path"
    status=0
    run --relocated --private . || status=$?
fi
if [ "$status" != 0 ]; then
    echo "demo: the run ended with status $status" >&2
    exit 1
fi

step "What changed in the fork"
show diff demo
show diff demo --patch src/wordcount/__init__.py

step "The project on the host"
after=$(sum_of_tree)
printf 'before  %s\nafter   %s\n' "$before" "$after"
if [ "$before" != "$after" ]; then
    echo "demo: the project on the host changed" >&2
    exit 1
fi
echo "byte for byte what it was"

step "Throw the fork away"
show discard demo --yes
show list
