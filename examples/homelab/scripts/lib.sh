# Sourced by every step: how it takes its arguments and how it says what it did. POSIX sh.
# shellcheck shell=sh

step=${0##*/}

# Says why the step cannot go on, and ends it.
refuse() {
    printf '%s: %s\n' "$step" "$1" >&2
    exit 2
}

# begin "MODES" "$@": reads the arguments, refuses what the step does not know, and goes to the root of the lab.
# Afterwards $mode is `apply` or `delete` and $state the directory that stands for the cluster.
begin() {
    supported=$1
    shift
    mode=apply
    for argument in "$@"; do
        case $argument in
            --delete) mode=delete ;;
            *) refuse "unknown argument \`$argument\`; it takes --delete or nothing" ;;
        esac
    done
    case " $supported " in
        *" $mode "*) ;;
        *) refuse "it has no mode $mode, only: $supported" ;;
    esac
    if [ -n "${LAB_LOG:-}" ]; then
        printf '%s\n' "$step${1:+ $*}" >>"$LAB_LOG"
    fi
    cd "${root:?the step says where the lab is}" || exit 1
    state=${LAB_STATE:-.lab}
}

# check LEVEL KEY MESSAGE: one check, LEVEL being ok, bad or warn.
check() {
    printf '::check %s %s %s\n' "$1" "$2" "$3"
}

# changed true|false: whether the step changed something.
changed() {
    printf '::changed %s\n' "$1"
}

# ensure_marker NAME, ensure_no_marker NAME: stand for something that is installed or removed.
ensure_marker() {
    if [ -e "$state/$1" ]; then
        echo "$1 is there already"
        changed false
        return
    fi
    mkdir -p "$state"
    echo "installed by $step" >"$state/$1"
    echo "installed $1"
    changed true
}

ensure_no_marker() {
    if [ ! -e "$state/$1" ]; then
        echo "$1 is not there"
        changed false
        return
    fi
    rm -f "$state/$1"
    echo "removed $1"
    changed true
}
