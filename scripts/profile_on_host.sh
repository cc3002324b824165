#!/bin/sh
# Installs deepvm in ~/deepvm-profile on a host; scripts/profile_on_aws.py sends it there by ssh: sh -s -- ARGUMENTS
#   $1 what was copied to ~/deepvm-profile/source, $2 extras such as [train], $3 where torch for processors is,
#   $4 where torch for GPUs is, "" for PyPI. What is installed already is not installed again.
set -eu

fail() {
    echo "$*" >&2
    exit 1
}

find_python() {
    for python in python3 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
            return
        fi
    done
    fail "no Python 3.10 or newer: take Ubuntu 22.04 or newer"
}

# Ubuntu has its venv in a package of its own.
bring_venv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    command -v apt-get >/dev/null || fail "$python has no venv, and there is no apt-get"
    root=
    [ "$(id -u)" = 0 ] || root="sudo -n"
    wait="-o DPkg::Lock::Timeout=300" # a fresh VM may still be updating itself
    $root apt-get $wait -q update >&2
    $root env DEBIAN_FRONTEND=noninteractive apt-get $wait -q -y install python3-venv >&2
}

# $1 MB are needed; the fourth word of the last line of df is what is free.
look_for_room() {
    [ ! -d venv ] || return 0
    room=$1
    set -- $(df -Pm . | tail -n 1)
    [ "$4" -ge "$room" ] || fail "$room MB are needed in $PWD, $4 MB are free: give the VM a larger disk"
}

pip() {
    venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --retries 5 --timeout 60 "$@"
}

main() {
    stamp=$1 extras=$2 cpu_index=$3 gpu_index=$4
    cd ~/deepvm-profile
    # A first start that was interrupted may still be at it, on a host that has not noticed.
    exec 9>lock
    if command -v flock >/dev/null && ! flock -w 900 9; then
        fail "another start of this script has been installing here for 15 minutes"
    fi
    want="$stamp $extras $gpu_index"
    if [ "$(cat installed 2>/dev/null)" = "$want" ] && venv/bin/python -c "import deepvm"; then
        return
    fi
    kind=bare # who only receives needs no torch
    case "$extras" in *train*)
        kind=cpu
        if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null; then kind=gpu; fi
        ;;
    esac
    case "$kind" in
        gpu) look_for_room 9000 ;;
        cpu) look_for_room 3000 ;;
        *) look_for_room 1000 ;;
    esac
    find_python
    bring_venv
    venv/bin/python -m pip --version >/dev/null 2>&1 || { rm -rf venv && "$python" -m venv venv; }
    if [ "$kind" = cpu ]; then pip --index-url "$cpu_index" torch; fi
    if [ "$kind" = gpu ] && [ -n "$gpu_index" ]; then pip --index-url "$gpu_index" torch; fi
    pip "./source$extras"
    if [ "$kind" = gpu ]; then
        venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
            fail "torch does not see the GPU; if it is newer than the driver, --torch-index names another build"
    fi
    printf %s "$want" >installed
}

# All of it has been read by now: what runs in it must not take the rest of these lines for its input.
main "$@" </dev/null
