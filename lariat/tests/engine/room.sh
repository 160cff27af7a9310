# A room for an engine: a directory, and namespaces of its own for everything but users.
#
#   sh room.sh keep DIR NAME engine args…
#
# It is told by lines on stdin: `start`, `stop` and `kill` the engine; it answers `up` once, and
# `left` when the engine has. When stdin ends, for whatever reason, the room ends: its first process
# leaves, the kernel kills everybody else in it, and what they had mounted goes with them. What the
# kernel does not remove is removed here: control groups called NAME and the directory.
set -u
stage=$1 dir=$2 name=$3

# every COMMAND…: for each hierarchy of control groups, with its kind and where it is mounted.
every() {
    while read -r kind place; do
        "$@" "$kind" "$place"
    done <"$dir/hierarchies"
}

# A group starts without processors in the first version.
enter() {
    mkdir "$2/$name"
    if [ "$1" = cgroup ] && [ -e "$2/cpuset.cpus" ]; then
        cat "$2/cpuset.cpus" >"$2/$name/cpuset.cpus"
        cat "$2/cpuset.mems" >"$2/$name/cpuset.mems"
    fi
    echo $$ >"$2/$name/cgroup.procs"
}

# In the second version a group with processes in it has no members with limits.
step_aside() {
    [ "$1" = cgroup2 ] || return
    mkdir "$2/$name/aside"
    echo $$ >"$2/$name/aside/cgroup.procs"
}

# The groups of the room are the only ones to be seen in it.
hide_others() { mount --bind "$2/$name" "$2"; }

leave() { [ ! -d "$2/$name" ] || find "$2/$name" -depth -type d -exec rmdir {} +; }

case $stage in
keep)
    shift
    awk '$3 ~ /^cgroup/ { print $3, $2 }' /proc/mounts >"$dir/hierarchies"
    sh "$0" enter "$@"
    every leave
    rm -rf "$dir"
    ;;
enter)
    shift
    every enter
    exec unshare --cgroup sh "$0" aside "$@"
    ;;
aside)
    shift
    every step_aside
    exec unshare --net --mount --pid --fork --kill-child --mount-proc sh "$0" inside "$@"
    ;;
inside)
    shift 3
    every hide_others
    # Engines write to these whatever their options say. What they write must not stay.
    mount -t tmpfs none "$dir/scratch"
    mount -t tmpfs none /run
    mkdir "$dir/scratch/tmp"
    export TMPDIR="$dir/scratch/tmp"
    for shared in /etc /var/lib; do
        layers=$dir/scratch$shared
        mkdir -p "$layers/up" "$layers/work"
        mount -t overlay -o "lowerdir=$shared,upperdir=$layers/up,workdir=$layers/work" none $shared
    done
    ip link set lo up
    echo up
    while read -r word; do
        case $word in
        start)
            "$@" >>"$dir/log" 2>&1 </dev/null &
            engine=$!
            ;;
        stop | kill)
            if [ "$word" = stop ]; then kill -TERM $engine; else kill -KILL $engine; fi
            wait $engine
            # Its own helper dies with it, a moment later, and must be buried: the next engine takes
            # one that has not been for one that works.
            helper=$(cat "$dir/exec/containerd/containerd.pid" 2>/dev/null) &&
                while kill -0 "$helper" 2>/dev/null; do sleep 0.02; done
            echo left
            ;;
        esac
    done
    ;;
esac
