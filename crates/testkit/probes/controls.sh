#!/bin/sh
# Runs every probe that judges itself with no sandbox around it: the negative control. `controls.sh [user]` prints
# name, verdict and last line. Processes and network are a namespace of our own, so that PID 1 is a plain `sleep` and no
# packet leaves the machine; nothing else is taken away. With `user` the probes run as uid 65534.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
probe=${PROBE:-$here/probe}
if [ "${1:-}" != inside ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    cp "$probe" "$work/probe"
    unshare --fork --pid --net --mount-proc --kill-child \
        sh -c '"$0" inside "$1" "$2" & exec sleep 600' "$0" "$work" "${1:-root}" &
    holder=$!
    while [ ! -e "$work/done" ] && kill -0 "$holder" 2>/dev/null; do sleep 0.2; done
    kill -KILL "$holder" 2>/dev/null || true # unshare ignores SIGTERM; its child and the namespaces die with it
    wait "$holder" 2>/dev/null || true
    cat "$work/table" 2>/dev/null
    exit
fi

work=$2 who=$3
trap 'touch "$work/done"' EXIT
mkdir -m 777 "$work/cwd" "$work/out"
cd "$work/cwd"
echo marker-4711 >"$work/secret"
touch "$work/policy"
[ "$who" = root ] || chown 65534 "$work/policy"
ip link set lo up
ip link add probe0 type veth peer name probe1
ip address add 203.0.113.2/24 dev probe0
ip address add 2001:db8:1::2/64 dev probe0 nodad
ip link set probe0 up
ip link set probe1 up
ip route add default via 203.0.113.1
ip neighbour add 203.0.113.1 lladdr 02:00:00:00:00:01 dev probe0
ip address add 198.51.100.9/32 dev lo
ip address add 169.254.169.254/32 dev lo
SECRET=marker-4711 sleep 4711 &
sleeper=$!
python3 - "$work" <<'PY' &
import ctypes, os, socket, sys, threading, time
def serve(s):
    s.listen(64)
    def loop():
        while True:
            try: c, _ = s.accept(); c.sendall(b"marker-4711\n"); c.close()
            except OSError: pass
    threading.Thread(target=loop, daemon=True).start()
def dns():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("198.51.100.9", 53))
    while True:
        q, a = s.recvfrom(512); s.sendto(q[:2] + b"\x81\x83" + q[4:], a)
for ip, port in ("127.0.0.1", 4711), ("198.51.100.9", 443), ("169.254.169.254", 80):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((ip, port)); serve(s)
for name in "\0probe-host", sys.argv[1] + "/socket":
    s = socket.socket(socket.AF_UNIX); s.bind(name); serve(s)
os.chmod(sys.argv[1] + "/socket", 0o777)
threading.Thread(target=dns, daemon=True).start()
c = ctypes.CDLL(None, use_errno=True); c.shmat.restype = ctypes.c_void_p
i = c.shmget(0, 4096, 0o1666); p = c.shmat(i, None, 0); ctypes.memmove(p, b"marker-4711", 11)
c.shmctl(i, 0, None) # removed with its last attachment
q = c.mq_open(b"/probe-host", os.O_CREAT | os.O_RDWR, 0o666, None)
open(sys.argv[1] + "/shm-id", "w").write(str(i)); open(sys.argv[1] + "/ready", "w").close()
while not os.path.exists(sys.argv[1] + "/done"): time.sleep(0.1)
c.mq_unlink(b"/probe-host")
PY
while [ ! -e "$work/ready" ]; do sleep 0.05; done

run() {
    if [ "$who" = user ]; then set -- setpriv --reuid 65534 --regid 65534 --clear-groups "$work/probe" "$@"; else set -- "$work/probe" "$@"; fi
    env -i PATH=/usr/bin timeout -k 1 60 "$@" </dev/null >"$work/log" 2>&1 || true
}
"$work/probe" list | awk -F '\t' '$5 == "self" { print $1, $2 }' | while read -r name attacks; do
    case $name in
    dotdot | symlink | read-host-file | cwd) run "$name" "$work/secret" marker-4711 ;;
    hardlink | policy-write) run "$name" "$work/policy" ;;
    inherited-fds) (exec 7</; run "$name") ;;
    host-pids) run "$name" "$sleeper" 4711 ;;
    mountinfo) run "$name" devpts ;;
    environ-secret) run "$name" marker-4711 ;;
    abstract-socket) run "$name" probe-host ;;
    unix-socket) run "$name" "$work/socket" ;;
    host-loopback) run "$name" 4711 marker-4711 ;;
    neighbour-cell) run "$name" probe-host 4711 marker-4711 ;;
    tcp-out) run "$name" 198.51.100.9 443 ;;
    dns-out) run "$name" 198.51.100.9 ;;
    shm-sysv) run "$name" "$(cat "$work/shm-id")" marker-4711 ;;
    posix-mq) run "$name" /probe-host ;;
    fork-bomb | thread-bomb | zombies) run "$name" 50 ;;
    memory-bomb | memfd-fill | shm-fill | socket-buffers) run "$name" 32 ;;
    disk-fill) run "$name" "$work/out" 8 ;;
    inode-fill) run "$name" "$work/out" 500 ;;
    fd-exhaust) run "$name" 500 ;;
    cpu-spin | ignore-term) run "$name" 1 ;;
    sparse-file) run "$name" "$work/out" 16 ;;
    *) run "$name" ;;
    esac
    [ -z "${KEEP:-}" ] || cp "$work/log" "$KEEP/$name.log"
    printf '%s\t%s\t%s\n' "$name" "$attacks" "$(tail -n 1 "$work/log")" >>"$work/table"
done
