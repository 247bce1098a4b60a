# shellcheck shell=bash disable=SC2016,SC2154,SC2034
# For tests that unpack a Debian into a folder and enter it by chroot; sourced. They need root, debootstrap and a mirror, and skip
# without. `top` is the source tree; the system and the builds go in `folder`.

# The mirror from which this system installs.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -m 1 'debian/*$')}
number=0 failed=0

skip_all() {
    printf '1..0 # SKIP %s\n' "$*"
    exit 0
}

need_chroot() {
    [ "$(id -u)" = 0 ] || skip_all 'not root'
    command -v debootstrap >/dev/null || skip_all 'no debootstrap'
    unshare --mount true 2>/dev/null || skip_all 'no mount namespaces here'
    [ -x "$top/configure" ] || skip_all "no $top/configure; run autoreconf -fi"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
}

# make_system RELEASE [PACKAGE...]; an existing system is reused.
make_system() {
    local release=$1 IFS=,
    shift
    [ ! -e "$folder/root.ready" ] || return 0
    rm -rf "$folder/root"
    debootstrap --variant=minbase ${1:+--include="$*"} "$release" "$folder/root" "$mirror" && touch "$folder/root.ready"
}

# Run a command in the new system, with the source tree read-only at /sherd; its mounts disappear with the command.
inside() {
    unshare --mount --pid --fork --kill-child bash -euc '
        root=$1 top=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mkdir -p "$root/sherd"
        mount --bind "$top" "$root/sherd"
        mount -o remount,bind,ro "$root/sherd"
        exec chroot "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root "$@"' - "$folder/root" "$top" "$@"
}

# step NAME COMMAND...: one line of TAP; the output of the command stands before it as comments.
step() {
    local name=$1 began=$SECONDS
    shift
    number=$((number + 1))
    if "$@" </dev/null 2>&1 | sed 's/^/# /'; then
        echo "ok $number - $name ($((SECONDS - began)) s)"
    else
        echo "not ok $number - $name ($((SECONDS - began)) s)"
        failed=1
    fi
}
