/* Every subcommand: name, attack lines (ATTACKS.md), arguments, who judges, function, what it tries. */
#ifndef TABLE_H
#define TABLE_H

#define PROBES(P) FILE_PROBES(P) KERNEL_PROBES(P) PROC_PROBES(P) IPC_PROBES(P) RESOURCE_PROBES(P)

#define FILE_PROBES(P) \
    P("dotdot", "1", "PATH MARKER", SELF, dotdot, "read a host file through ../ chains from the work directory, / and /tmp") \
    P("symlink", "2", "PATH MARKER", SELF, symlink_out, "read a host file through symlinks made in the work directory") \
    P("read-host-file", "1,2,8,9", "PATH MARKER", SELF, read_host_file, "read a host file by every route: direct, ../, symlink, /proc/*/root, cwd, open fds") \
    P("hardlink", "3", "[PATH]", SELF, hardlink_host, "hardlink a host file and files of the image into the work directory") \
    P("cwd", "8", "[PATH MARKER]", SELF, cwd_sane, "check that the work directory is inside the root and that ../ ends at /") \
    P("inherited-fds", "9", "", SELF, inherited_fds, "look for open descriptors beyond 0-2, and for directories, disks and host sockets among 0-2") \
    P("overwrite-exe", "10", "[PID...]", SELF, overwrite_exe, "open the guest's executable for writing through /proc/PID/exe (1 and the parent)") \
    P("remount-rw", "11", "", SELF, remount_rw, "remount read-only mounts writable: mount, mount_setattr, a bind of its own") \
    P("umount-mask", "12", "", SELF, umount_mask, "unmount what covers /proc, /sys and /dev") \
    P("setuid-binary", "13", "", SELF, setuid_binary, "gain uid 0 through setuid files of the image and through a setuid copy of itself") \
    P("mknod-disk", "14", "", SELF, mknod_disk, "make device nodes for disks and memory and open them") \
    P("open-by-handle", "15", "", SELF, open_by_handle, "open the root of the file system by file handle (Shocker)") \
    P("out-specials", "16", "DIR", OUTSIDE, out_specials, "leave a FIFO, socket, whiteout, setuid file, links and odd names in the output directory") \
    P("write-root", "11,98", "", SELF, write_root, "create files in, and open files for writing under, /usr /etc / /bin ...") \
    P("device-open", "14", "", SELF, device_open, "open memory, disk, kvm, fuse, tun and console devices") \
    P("tmp-leftovers", "93", "[NAME...]", SELF, tmp_leftovers, "look for anything left in /tmp, /var/tmp, /dev/shm and the work directory (NAMEs are expected)") \
    P("policy-write", "108", "PATH", SELF, policy_write, "open a host policy or state file for writing")

#define KERNEL_PROBES(P) \
    P("unshare-user", "17", "", SELF, unshare_user, "unshare(CLONE_NEWUSER)") \
    P("unshare-all", "17", "", SELF, unshare_all, "unshare every other namespace, alone and together with a user namespace") \
    P("clone-newns", "18", "", SELF, clone_newns, "clone(2) with each CLONE_NEW* flag") \
    P("clone3", "18", "", SELF, clone3_call, "clone3, whose flags a filter cannot see") \
    P("keyctl", "22", "", SELF, keyctl_call, "keyctl, add_key and request_key") \
    P("io-uring", "23", "", SELF, io_uring, "set up an io_uring") \
    P("bpf", "24", "", SELF, bpf_call, "create a BPF map and load a BPF program") \
    P("perf", "25", "", SELF, perf_open, "perf_event_open on itself and on the kernel") \
    P("userfaultfd", "26", "", SELF, userfaultfd_open, "userfaultfd, with and without kernel faults, and its device") \
    P("tiocsti", "27", "", SELF, tiocsti, "TIOCSTI and TIOCLINUX on a pty and on a pipe, also with the high 32 bits set") \
    P("x32", "29", "", SELF, x32_call, "a system call through the x32 table") \
    P("int80", "29", "", SELF, int80_call, "a system call through int 0x80") \
    P("modules", "30", "", SELF, modules, "init_module, finit_module and delete_module with arguments that cannot work") \
    P("kexec", "30", "", SELF, kexec, "kexec_load and kexec_file_load with arguments that cannot work") \
    P("reboot", "30", "", SELF, reboot_call, "reboot with a wrong magic number") \
    P("swap", "30", "", SELF, swap_calls, "swapon and swapoff of a path that does not exist") \
    P("seccomp-weaken", "31", "", SELF, seccomp_weaken, "install an allow-everything filter and try the forbidden calls again") \
    P("cgroup-mount", "32", "", SELF, cgroup_mount, "mount cgroup file systems, open release_agent and cgroup.procs for writing") \
    P("devices-allow", "33", "", SELF, devices_allow, "open devices.allow of any visible cgroup for writing") \
    P("core-pattern", "34", "", SELF, core_pattern, "open core_pattern, modprobe and other sysctls for writing") \
    P("binfmt", "35", "", SELF, binfmt, "mount binfmt_misc and open its register file") \
    P("mount", "11", "", SELF, mount_new, "mount tmpfs, proc and overlay through the old and the new mount API") \
    P("chroot", "8", "", SELF, chroot_call, "chroot and pivot_root") \
    P("clock", "30", "", SELF, clock_set, "pass the permission checks of settimeofday and adjtimex without changing anything") \
    P("raw-io", "30", "", SELF, raw_io, "iopl, ioperm, acct, the kernel log and fanotify") \
    P("hostname", "30", "", SELF, hostname_set, "set the host and domain name to what they are")

#define PROC_PROBES(P) \
    P("setns", "19", "[PID...]", SELF, setns_call, "enter the namespaces of the guest (1), of itself and of PIDs, by file and by pidfd") \
    P("ptrace-parent", "20", "[PID...]", SELF, ptrace_parent, "ptrace the parent (or PIDs)") \
    P("ptrace-traceme-thread", "21", "[MODE]", SELF, traceme_thread, "PTRACE_TRACEME from a non-leader thread, then exit; MODE exit or hang does it to the guest") \
    P("process-vm", "20", "[PID...]", SELF, process_vm, "process_vm_readv and process_vm_writev on the parent (or PIDs)") \
    P("signal-guest", "20", "[PID [really]]", SELF, signal_guest, "signal the guest (1): kill, tgkill, sigqueue, pidfd; `really` sends TERM, STOP, KILL even if allowed") \
    P("guest-fds", "20", "[PID]", SELF, guest_fds, "read the guest's (1) fds, memory, environment, maps and take its descriptors") \
    P("host-pids", "36", "HOSTPID MARKER", SELF, host_pids, "find a host process by its pid and by a marker in its command line") \
    P("masked-proc", "37", "", SELF, masked_proc, "read kcore, keys, timer_list and other kernel files in /proc") \
    P("kallsyms", "38", "", SELF, kallsyms, "read kernel addresses") \
    P("sysrq", "39", "", SELF, sysrq, "open sysrq-trigger and its sysctl for writing") \
    P("mountinfo", "40", "SUBSTRING...", SELF, mountinfo, "look for host paths in mountinfo, mounts and mountstats") \
    P("sysfs", "41", "", SELF, sysfs, "read firmware, efivars, powercap and other parts of /sys") \
    P("environ-secret", "42", "MARKER", SELF, environ_secret, "search the environment of every visible process") \
    P("core-dump", "34", "", SELF, core_dump, "crash with the largest core limit it can get") \
    P("prlimit", "70", "[PID]", SELF, prlimit_raise, "raise hard limits, its own and the parent's (or PID's)") \
    P("nice", "71", "", SELF, nice_raise, "raise its priority: nice, real-time scheduling, real-time I/O") \
    P("oom-score", "66", "", SELF, oom_score, "lower its oom_score_adj")

#define IPC_PROBES(P) \
    P("af-alg", "28", "", SELF, af_alg, "open an AF_ALG socket") \
    P("af-vsock", "28", "", SELF, af_vsock, "open an AF_VSOCK socket") \
    P("af-packet", "28", "", SELF, af_packet, "open AF_PACKET sockets") \
    P("af-netlink", "28", "", SELF, af_netlink, "open AF_NETLINK sockets") \
    P("af-others", "28", "", SELF, af_others, "open a socket of every other family") \
    P("abstract-socket", "43", "NAME", SELF, abstract_socket, "connect to an abstract unix socket of the host") \
    P("unix-socket", "44", "[PATH...]", SELF, unix_socket, "connect to host sockets: PATHs, docker, containerd, dbus, systemd") \
    P("host-loopback", "45", "PORT MARKER", SELF, host_loopback, "reach a host listener that greets with MARKER: 127.0.0.1, ::1, 0.0.0.0, fast open") \
    P("neighbour-cell", "46", "NAME PORT MARKER", SELF, neighbour_cell, "reach another cell by abstract name and by port") \
    P("tcp-out", "47", "[IP PORT]", SELF, tcp_out, "connect to an address outside, also with fast open") \
    P("udp-out", "48", "[IP PORT]", SELF, udp_out, "send a datagram to an address outside") \
    P("raw-icmp", "48", "", SELF, raw_icmp, "open raw and ping sockets and send an echo request") \
    P("dns-out", "48", "[IP]", SELF, dns_out, "ask the configured resolver (or IP) for a name") \
    P("metadata", "47,50", "", SELF, metadata, "connect to the cloud metadata addresses") \
    P("interfaces", "47", "", SELF, interfaces, "look for interfaces other than lo and for routes") \
    P("shm-sysv", "43", "ID MARKER", SELF, shm_sysv, "attach a SysV segment of the host") \
    P("posix-mq", "43", "NAME", SELF, posix_mq, "open a POSIX message queue of the host")

#define RESOURCE_PROBES(P) \
    P("fork-bomb", "65", "COUNT", SELF, fork_bomb, "keep COUNT processes alive") \
    P("thread-bomb", "65", "COUNT", SELF, thread_bomb, "keep COUNT threads alive") \
    P("memory-bomb", "66", "MIB", SELF, memory_bomb, "touch MIB of anonymous memory") \
    P("disk-fill", "67", "DIR MIB", SELF, disk_fill, "write MIB of random bytes into DIR") \
    P("inode-fill", "68", "DIR COUNT", SELF, inode_fill, "create COUNT files in DIR") \
    P("memfd-fill", "69", "MIB", SELF, memfd_fill, "write MIB into a memfd") \
    P("shm-fill", "69", "MIB", SELF, shm_fill, "touch MIB of SysV and /dev/shm memory") \
    P("fd-exhaust", "70", "COUNT", SELF, fd_exhaust, "open COUNT descriptors") \
    P("cpu-spin", "71", "SECONDS [THREADS]", SELF, cpu_spin, "burn CPU time and expect to be killed before SECONDS are over") \
    P("ignore-term", "72", "SECONDS", SELF, ignore_term, "sleep with every signal blocked and expect to be killed before SECONDS are over") \
    P("daemon", "73", "SECONDS [FILE]", OUTSIDE, daemonise, "leave a setsid daemon behind that touches FILE until SECONDS are over") \
    P("zombies", "74", "COUNT", SELF, zombies, "orphan COUNT children and count those that nobody reaps") \
    P("signal-storm", "75", "SECONDS", OUTSIDE, signal_storm, "flood its own process group with signals and fill the signal queue") \
    P("output-flood", "76", "MIB [err]", OUTSIDE, output_flood, "write MIB to stdout (or stderr)") \
    P("hold-stdout", "77", "SECONDS", OUTSIDE, hold_stdout, "exit at once while a child keeps stdout open") \
    P("out-bomb", "78", "DIR GIB", OUTSIDE, out_bomb, "leave sparse files and a deep tree in DIR that unpack to far more than they occupy") \
    P("sparse-file", "79", "DIR GIB", SELF, sparse_file, "make a sparse file of GIB") \
    P("socket-buffers", "80", "MIB", SELF, socket_buffers, "park MIB in socket and pipe buffers") \
    P("forged-result", "100", "", OUTSIDE, forged_result, "print a result object, frames and an exit status, then exit 7") \
    P("hostile-output", "102", "", OUTSIDE, hostile_output, "print escape sequences, NUL, invalid UTF-8 and lone controls")

#endif
