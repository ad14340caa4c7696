#!/bin/sh
# Prove the two commands of the README on a fresh Debian: `./dev demo` and `./dev test`, as root and as a user without
# sudo, also without python3-venv and where user namespaces are denied. Needs root, mmdebstrap and a Debian mirror.
#
# usage: fresh_machine.sh [CASE...]     all cases, in this order: no-venv user-demo denied-demo root-demo user-test root-test
#
# HOSTFORK_FRESH_SUITE   bookworm, or another one
# HOSTFORK_FRESH_MIRROR  a Debian mirror; mmdebstrap's own choice where it is not named
# HOSTFORK_FRESH_BINDS   paths of this machine that are put into the tree read-only, separated by `:`, such as
#                        certificates and pip's configuration
# HOSTFORK_FRESH_CACHE   a tar file: the bare tree is kept there and used again
# HOSTFORK_FRESH_TESTS   what `./dev test` gets: a quick selection, or `tests` for all
# PIP_* and SSL_* variables of the caller are passed on.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd -P)
suite=${HOSTFORK_FRESH_SUITE-bookworm}
mirror=${HOSTFORK_FRESH_MIRROR-}
tests=${HOSTFORK_FRESH_TESTS-tests/test_rigs.py tests/test_packaging.py tests/test_dev.py}
cases=${*:-no-venv user-demo denied-demo root-demo user-test root-test}
[ "$(id -u)" = 0 ] || {
    echo "fresh_machine.sh: only root can make a machine" >&2
    exit 1
}

base=$(mktemp -d /var/tmp/hostfork-fresh.XXXXXX)
tree=$base/tree
# All mounts are made in namespaces that end with their programs, so deleting is safe.
trap 'rm -rf --one-file-system "$base"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 755 "$base"

say() { printf '\n### %s\n' "$*"; }

make_tree() {
    if [ -n "${HOSTFORK_FRESH_CACHE-}" ] && [ -f "$HOSTFORK_FRESH_CACHE" ]; then
        mkdir "$tree"
        tar -C "$tree" -xpf "$HOSTFORK_FRESH_CACHE"
        return
    fi
    # A mirror may be a frozen one, whose lists have expired.
    mmdebstrap --quiet --mode=root --variant=apt --include=mount,python3,git,ca-certificates \
        --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$tree" ${mirror:+"$mirror"}
    if [ -n "${HOSTFORK_FRESH_CACHE-}" ]; then
        tar -C "$tree" --one-file-system -cpf "$HOSTFORK_FRESH_CACHE" .
    fi
}

# inside PROGRAM...: run it as the tree's root, with /proc, /sys and /dev of its own. pivot_root, not chroot: in a
# chroot the kernel refuses user namespaces to ordinary users.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --propagation private --pid --fork --kill-child sh -euc '
        tree=$1 binds=$2
        shift 2
        mount --bind "$tree" "$tree"
        mount -t proc proc "$tree/proc"
        mount --rbind /sys "$tree/sys"
        mount --rbind /dev "$tree/dev"
        mount -t tmpfs -o mode=755 tmpfs "$tree/run"
        cat /etc/resolv.conf >"$tree/etc/resolv.conf"
        IFS=:
        for path in $binds; do
            if [ -d "$path" ]; then
                mkdir -p "$tree$path"
            elif [ -e "$path" ]; then
                mkdir -p "$tree${path%/*}"
                [ -e "$tree$path" ] || : >"$tree$path"
            else
                continue
            fi
            mount --bind "$path" "$tree$path"
            mount -o remount,bind,ro "$tree$path"
        done
        unset IFS
        cd "$tree"
        pivot_root . mnt
        umount -l /mnt
        exec chroot . "$@"
    ' sh "$tree" "${HOSTFORK_FRESH_BINDS-}" "$@" </dev/null
}

# as NAME PROGRAM...: the same with an environment like after a login.
as() {
    name=$1
    shift
    home=/root
    [ "$name" = root ] || home=/home/$name
    set -- HOME="$home" USER="$name" LOGNAME="$name" LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
    # These hold no spaces where they are used: paths, numbers, addresses.
    passed=$(env | grep -E '^(PIP|SSL)_[A-Z_]*=[^[:space:]]*$' || true)
    # shellcheck disable=SC2086
    inside setpriv --reuid="$name" --regid="$name" --init-groups --inh-caps=-all env -i $passed "$@"
}

in_clone() {
    name=$1
    shift
    place=/root/hostfork
    [ "$name" = root ] || place=/home/$name/hostfork
    # shellcheck disable=SC2016
    as "$name" sh -c 'cd "$1" && shift && exec "$@"' sh "$place" "$@"
}

clone_for() {
    git -c safe.directory='*' clone --quiet --no-local "$here" "$tree$1"
    chown -R --reference="$tree${1%/*}" "$tree$1"
}

case_no_venv() {
    say "a user, python3-venv missing: ./dev demo stops with the line to type"
    start=$(date +%s%N)
    status=0
    in_clone dev ./dev demo >"$base/out" 2>&1 || status=$?
    took=$((($(date +%s%N) - start) / 1000000))
    cat "$base/out"
    echo "status $status after $took ms"
    [ "$status" -ne 0 ]
    [ "$took" -lt 1000 ]
    grep -q 'apt-get install python3-venv$' "$base/out"
}

with_venv() {
    inside sh -c 'command -v python3 >/dev/null && python3 -c "import ensurepip"' 2>/dev/null ||
        inside env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -q && apt-get install -q -y python3-venv' >"$base/apt" 2>&1 || {
        cat "$base/apt"
        return 1
    }
}

case_user_demo() {
    say "a user without sudo: ./dev demo"
    with_venv
    in_clone dev ./dev demo
}

case_denied_demo() {
    say "a user who is denied user namespaces: ./dev demo"
    with_venv
    # A limit of 0 in a user namespace that holds only this program; all capabilities in it go with setpriv.
    in_clone dev unshare --user --map-current-user --keep-caps sh -c \
        'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all --inh-caps=-all ./dev demo'
}

case_root_demo() {
    say "root: ./dev demo"
    with_venv
    in_clone root ./dev demo
}

case_user_test() {
    say "a user without sudo: ./dev test $tests"
    with_venv
    # shellcheck disable=SC2086
    in_clone dev ./dev test $tests
}

case_root_test() {
    say "root: ./dev test --require-all $tests"
    # shellcheck disable=SC2086
    in_clone root ./dev test --require-all $tests
}

make_tree
inside useradd --create-home --shell /bin/bash dev
clone_for /home/dev/hostfork
clone_for /root/hostfork
failed=
for name in $cases; do
    status=0
    # Not in a condition: there `set -e` would not hold inside.
    set +e
    (
        set -e
        "case_$(printf %s "$name" | tr - _)"
    )
    status=$?
    set -e
    [ "$status" = 0 ] || failed="$failed $name"
done
if [ -n "$failed" ]; then
    say "failed:$failed"
    exit 1
fi
say "passed: $cases"
