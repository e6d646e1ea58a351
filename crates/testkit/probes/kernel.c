/* Attacks 17, 18, 22-27, 29-35: the system call surface. Every call is chosen so that success on a bare host is harmless:
 * most carry an argument that fails just behind the permission check. */
#include "probe.h"

#include <dirent.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>

static const struct { const char *name; unsigned long flag; } spaces[] = {
    {"NEWUSER", CLONE_NEWUSER}, {"NEWNS", CLONE_NEWNS}, {"NEWPID", CLONE_NEWPID}, {"NEWNET", CLONE_NEWNET},
    {"NEWIPC", CLONE_NEWIPC}, {"NEWUTS", CLONE_NEWUTS}, {"NEWCGROUP", CLONE_NEWCGROUP}, {"NEWTIME", CLONE_NEWTIME}};

/* ENOSPC is the answer of user.max_*_namespaces = 0, a wall of its own */
#define NO_NAMESPACE ERRNOS(EPERM, EACCES, ENOSYS, ENOSPC)

static void unshare_flags(void *flags) {
    char what[64];
    snprintf(what, sizeof what, "unshare(0x%lx)", *(unsigned long *)flags);
    judge(what, syscall(SYS_unshare, *(unsigned long *)flags), NO_NAMESPACE, ERRNOS(EINVAL));
}

void unshare_user(int argc, char **argv) {
    (void)argc, (void)argv;
    unsigned long flags = CLONE_NEWUSER;
    in_child(unshare_flags, &flags);
}

void unshare_all(int argc, char **argv) {
    (void)argc, (void)argv;
    for (size_t i = 1; i < COUNT(spaces); i++) {
        unsigned long alone = spaces[i].flag, with_user = spaces[i].flag | CLONE_NEWUSER;
        in_child(unshare_flags, &alone);
        in_child(unshare_flags, &with_user);
    }
}

static long raw_clone(unsigned long flags) {
    fflush(stdout);
    long pid = syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) syscall(SYS_exit_group, 0);
    int error = errno;
    if (pid > 0) waitpid(pid, NULL, 0);
    errno = error;
    return pid;
}

void clone_newns(int argc, char **argv) {
    (void)argc, (void)argv;
    if (raw_clone(0) < 0) {
        unsure("a plain clone: %s", strerror(errno));
        return;
    }
    for (size_t i = 0; i < COUNT(spaces); i++) {
        if (spaces[i].flag == CLONE_NEWTIME) continue; /* 0x80 is part of clone's signal number */
        char what[64];
        snprintf(what, sizeof what, "clone(%s)", spaces[i].name);
        judge(what, raw_clone(spaces[i].flag), NO_NAMESPACE, ERRNOS(EINVAL));
        snprintf(what, sizeof what, "clone(NEWUSER|%s)", spaces[i].name);
        if (i) judge(what, raw_clone(spaces[i].flag | CLONE_NEWUSER), NO_NAMESPACE, ERRNOS(EINVAL));
    }
}

static long raw_clone3(unsigned long flags) {
    struct clone_args arguments = {.flags = flags, .exit_signal = SIGCHLD};
    fflush(stdout);
    long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid == 0) syscall(SYS_exit_group, 0);
    int error = errno;
    if (pid > 0) waitpid(pid, NULL, 0);
    errno = error;
    return pid;
}

void clone3_call(int argc, char **argv) {
    (void)argc, (void)argv;
    judge("clone3 without arguments", syscall(SYS_clone3, NULL, 0), DENIED, ERRNOS(EINVAL, EFAULT));
    judge("clone3 like fork", raw_clone3(0), DENIED, NONE);
    for (size_t i = 0; i < COUNT(spaces); i++) {
        char what[64];
        snprintf(what, sizeof what, "clone3(%s)", spaces[i].name);
        judge(what, raw_clone3(spaces[i].flag), NO_NAMESPACE, ERRNOS(EINVAL));
    }
}

void keyctl_call(int argc, char **argv) {
    (void)argc, (void)argv;
    /* the process keyring dies with this process */
    judge("add_key", syscall(SYS_add_key, "user", "casemate-probe", "x", 1, KEY_SPEC_PROCESS_KEYRING), DENIED, ERRNOS(EDQUOT));
    judge("keyctl get session keyring", syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0), DENIED, ERRNOS(ENOKEY));
    judge("request_key", syscall(SYS_request_key, "user", "casemate-probe-none", NULL, 0), DENIED, ERRNOS(ENOKEY));
}

void io_uring(int argc, char **argv) {
    (void)argc, (void)argv;
    struct io_uring_params parameters;
    memset(&parameters, 0, sizeof parameters);
    judge("io_uring_setup", syscall(SYS_io_uring_setup, 1, &parameters), DENIED, ERRNOS(ENOMEM));
    judge("io_uring_enter", syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0), DENIED, ERRNOS(EBADF, EOPNOTSUPP));
    judge("io_uring_register", syscall(SYS_io_uring_register, -1, 0, NULL, 0), DENIED, ERRNOS(EBADF, EOPNOTSUPP, EINVAL));
}

void bpf_call(int argc, char **argv) {
    (void)argc, (void)argv;
    union bpf_attr map, program;
    memset(&map, 0, sizeof map), memset(&program, 0, sizeof program);
    map.map_type = BPF_MAP_TYPE_ARRAY, map.key_size = 4, map.value_size = 4, map.max_entries = 1;
    judge("bpf(MAP_CREATE)", syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map), DENIED, NONE);
    struct bpf_insn code[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0}, {.code = BPF_JMP | BPF_EXIT}};
    program.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, program.insn_cnt = 2;
    program.insns = (uintptr_t)code, program.license = (uintptr_t) "GPL";
    judge("bpf(PROG_LOAD)", syscall(SYS_bpf, BPF_PROG_LOAD, &program, sizeof program), DENIED, NONE);
}

void perf_open(int argc, char **argv) {
    (void)argc, (void)argv;
    struct perf_event_attr own = {.type = PERF_TYPE_SOFTWARE, .size = sizeof own, .config = PERF_COUNT_SW_CPU_CLOCK, .disabled = 1, .exclude_kernel = 1};
    struct perf_event_attr all = {.type = PERF_TYPE_SOFTWARE, .size = sizeof all, .config = PERF_COUNT_SW_CPU_CLOCK, .disabled = 1};
    judge("perf_event_open of itself", syscall(SYS_perf_event_open, &own, 0, -1, -1, PERF_FLAG_FD_CLOEXEC), DENIED, NONE);
    judge("perf_event_open of cpu 0", syscall(SYS_perf_event_open, &all, -1, 0, -1, PERF_FLAG_FD_CLOEXEC), DENIED, NONE);
}

void userfaultfd_open(int argc, char **argv) {
    (void)argc, (void)argv;
    judge("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC), DENIED, NONE);
    judge("userfaultfd for user faults only", syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), DENIED, ERRNOS(EINVAL));
    int fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    judge("/dev/userfaultfd", fd, ERRNOS(ENOENT, EACCES, EPERM), NONE);
}

/* On a pipe the kernel says ENOTTY; so ENOTTY, like the EIO of legacy_tiocsti=0, means that no filter was in the way. */
static void push(const char *what, int fd) {
    static const struct { const char *name; unsigned long request; } calls[] = {
        {"TIOCSTI", TIOCSTI}, {"TIOCSTI with high bits", TIOCSTI | 0x100000000UL}, {"TIOCSTI with all high bits", TIOCSTI | 0xffffffff00000000UL},
        {"TIOCLINUX", TIOCLINUX}, {"TIOCLINUX with high bits", TIOCLINUX | 0x100000000UL}};
    for (size_t i = 0; i < COUNT(calls); i++) {
        char argument = calls[i].name[4] == 'S' ? ' ' : 12 /* ask for the foreground console */, text[96];
        snprintf(text, sizeof text, "%s on %s", calls[i].name, what);
        judge(text, syscall(SYS_ioctl, fd, calls[i].request, &argument), ERRNOS(EPERM, EACCES, ENOSYS), ERRNOS(ENOTTY, EIO, EINVAL));
    }
}

static void push_on_pty(void *name) {
    setsid(); /* the pty below becomes the controlling terminal, as TIOCSTI wants */
    int slave = open(name, O_RDWR | O_CLOEXEC);
    if (slave < 0)
        say("%s: %s", (char *)name, strerror(errno));
    else
        push("a pty", slave);
}

void tiocsti(int argc, char **argv) {
    (void)argc, (void)argv;
    int ends[2];
    if (pipe(ends) == 0) push("a pipe", ends[0]);
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) || unlockpt(master))
        say("no pty here: %s", strerror(errno));
    else
        in_child(push_on_pty, ptsname(master));
}

/* getpid by another entry point; exits 1 when it answered like the normal one, 2 on ENOSYS, 3 otherwise. */
static void by_x32(void *unused) {
    (void)unused;
    long pid = syscall(0x40000000 | SYS_getpid);
    _exit(pid == getpid() ? 1 : pid < 0 && errno == ENOSYS ? 2 : 3);
}

static void by_int80(void *unused) {
    (void)unused;
    long pid;
    __asm__ volatile("int $0x80" : "=a"(pid) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
    _exit((int)pid == getpid() ? 1 : (int)pid == -ENOSYS ? 2 : 3);
}

static void judge_entry(const char *what, int status) {
    if (status == -1) return;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        held("%s: killed by SIGSYS", what);
    else if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGILL))
        held("%s: this kernel has no such entry (signal %d)", what, WTERMSIG(status));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        escaped("%s answered", what);
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        held("%s: ENOSYS, no such table here or filtered", what);
    else
        unsure("%s: wait status %x", what, status);
}

void x32_call(int argc, char **argv) {
    (void)argc, (void)argv;
    judge_entry("x32 getpid", in_child(by_x32, NULL));
}

void int80_call(int argc, char **argv) {
    (void)argc, (void)argv;
    judge_entry("int 0x80 getpid", in_child(by_int80, NULL));
}

void modules(int argc, char **argv) {
    (void)argc, (void)argv;
    judge("init_module", syscall(SYS_init_module, NULL, 0, ""), DENIED, ERRNOS(ENOEXEC, EFAULT, EINVAL));
    judge("finit_module", syscall(SYS_finit_module, -1, "", 0), DENIED, ERRNOS(EBADF));
    judge("delete_module", syscall(SYS_delete_module, "casemate_probe_none", O_NONBLOCK), DENIED, ERRNOS(ENOENT));
}

void kexec(int argc, char **argv) {
    (void)argc, (void)argv;
    judge("kexec_load", syscall(SYS_kexec_load, 0, 1000, NULL, 0xff00), DENIED, ERRNOS(EINVAL, EFAULT, EBUSY));
    judge("kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, NULL, 0xff00), DENIED, ERRNOS(EINVAL, EBADF));
}

void reboot_call(int argc, char **argv) {
    (void)argc, (void)argv;
    judge("reboot with a wrong magic", syscall(SYS_reboot, 0, 0, 0, NULL), DENIED, ERRNOS(EINVAL));
}

void swap_calls(int argc, char **argv) {
    (void)argc, (void)argv;
    judge("swapon", syscall(SYS_swapon, "/casemate-probe-none", 0), DENIED, ERRNOS(ENOENT));
    judge("swapoff", syscall(SYS_swapoff, "/casemate-probe-none"), DENIED, ERRNOS(ENOENT));
}

static void allow_all_then_retry(void *how) {
    static const struct { const char *name; long number, argument; } calls[] = {
        {"keyctl", SYS_keyctl, KEYCTL_GET_KEYRING_ID}, {"bpf", SYS_bpf, BPF_MAP_CREATE}, {"clone3", SYS_clone3, 0},
        {"userfaultfd", SYS_userfaultfd, O_CLOEXEC}, {"unshare(NEWUSER)", SYS_unshare, CLONE_NEWUSER}};
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, *(unsigned *)how)};
    struct sock_fprog program = {1, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long installed = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    say("installing a filter that returns %#x: %s", *(unsigned *)how, installed ? strerror(errno) : "done");
    for (size_t i = 0; i < COUNT(calls); i++) {
        char what[96];
        snprintf(what, sizeof what, "%s after it", calls[i].name);
        judge(what, syscall(calls[i].number, calls[i].argument, 0, 0, 0, 0), NO_NAMESPACE, ERRNOS(EINVAL, EFAULT, ENOKEY));
    }
}

void seccomp_weaken(int argc, char **argv) {
    (void)argc, (void)argv;
    unsigned answers[] = {SECCOMP_RET_ALLOW, SECCOMP_RET_LOG};
    for (size_t i = 0; i < COUNT(answers); i++) in_child(allow_all_then_retry, &answers[i]);
    judge("prctl(PR_SET_SECCOMP, disabled)", prctl(PR_SET_SECCOMP, SECCOMP_MODE_DISABLED, 0, 0, 0), ERRNOS(EINVAL, EPERM, EACCES, ENOSYS), NONE);
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        held("no_new_privs is set");
    else
        escaped("no_new_privs is not set");
}

/* Mounts a file system on a directory of our own and takes it away again. ENODEV: this kernel has no such type. */
static void mount_here(const char *type, const char *data) {
    const char *own = scratch("mount");
    if (!own) return;
    mkdir(own, 0700);
    int result = mount("none", own, type, MS_NOSUID | MS_NODEV | MS_NOEXEC, data), error = errno;
    if (result == 0) umount2(own, MNT_DETACH);
    char what[96];
    snprintf(what, sizeof what, "mount -t %s%s%s", type, data ? " -o " : "", data ? data : "");
    errno = error;
    if (result && error == ENODEV)
        say("%s: this kernel has no such type", what);
    else
        judge(what, result, DENIED, ERRNOS(EBUSY, EINVAL, ENOENT));
}

static char cgroups[64][256];
static size_t cgroup_count;

static void remember_cgroup(const char *point, const char *type, const char *line) {
    (void)line;
    if (!strncmp(type, "cgroup", 6) && cgroup_count < COUNT(cgroups)) snprintf(cgroups[cgroup_count++], sizeof *cgroups, "%s", point);
}

static void judge_cgroup_file(const char *name) {
    if (!each_mount(remember_cgroup)) say("mountinfo: %s", strerror(errno));
    snprintf(cgroups[cgroup_count++], sizeof *cgroups, "/sys/fs/cgroup");
    for (size_t i = 0; i < cgroup_count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", cgroups[i], name);
        if (access(path, F_OK) == 0) judge_write_open(path, "/");
        DIR *dir = opendir(cgroups[i]);
        for (struct dirent *e; dir && (e = readdir(dir));) {
            if (e->d_type != DT_DIR || !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
            snprintf(path, sizeof path, "%.200s/%.200s/%s", cgroups[i], e->d_name, name);
            if (access(path, F_OK) == 0) judge_write_open(path, "/");
        }
        if (dir) closedir(dir);
    }
    if (access("/proc/self/mountinfo", R_OK) == 0)
        held("%zu cgroup mounts are visible, all looked at for %s", cgroup_count - 1, name);
    else
        say("mountinfo cannot be read, so cgroup mounts elsewhere stay unknown");
    cgroup_count = 0;
}

void cgroup_mount(int argc, char **argv) {
    (void)argc, (void)argv;
    mount_here("cgroup2", NULL);
    mount_here("cgroup", "memory");
    mount_here("cgroup", "none,name=systemd");
    judge_cgroup_file("release_agent");
    judge_cgroup_file("cgroup.procs");
}

void devices_allow(int argc, char **argv) {
    (void)argc, (void)argv;
    mount_here("cgroup", "devices");
    judge_cgroup_file("devices.allow");
}

void core_pattern(int argc, char **argv) {
    (void)argc, (void)argv;
    static const char *const knobs[] = {"kernel/core_pattern", "kernel/modprobe", "kernel/poweroff_cmd", "kernel/hotplug", "kernel/panic_on_oops", "kernel/sysrq",
                                        "kernel/domainname", "kernel/kptr_restrict", "kernel/unprivileged_bpf_disabled", "kernel/usermodehelper/bset",
                                        "fs/suid_dumpable", "vm/overcommit_memory", "vm/panic_on_oom", "vm/drop_caches", "net/ipv4/ip_forward"};
    for (size_t i = 0; i < COUNT(knobs); i++) {
        char path[128];
        snprintf(path, sizeof path, "/proc/sys/%s", knobs[i]);
        judge_write_open(path, "/proc/self");
    }
}

void binfmt(int argc, char **argv) {
    (void)argc, (void)argv;
    mount_here("binfmt_misc", NULL);
    judge_write_open("/proc/sys/fs/binfmt_misc/register", "/proc/self");
    judge_write_open("/proc/sys/fs/binfmt_misc/status", "/proc/self");
}

void mount_new(int argc, char **argv) {
    (void)argc, (void)argv;
    mount_here("tmpfs", NULL);
    mount_here("proc", NULL);
    mount_here("sysfs", NULL);
    mount_here("overlay", "lowerdir=/usr:/etc");
    judge("fsopen tmpfs", syscall(SYS_fsopen, "tmpfs", 1), DENIED, ERRNOS(ENODEV));
    judge("open_tree clone of /", syscall(SYS_open_tree, AT_FDCWD, "/", 1 | O_CLOEXEC), DENIED, NONE);
    judge("fspick /", syscall(SYS_fspick, AT_FDCWD, "/", 1), DENIED, ERRNOS(EINVAL));
    judge("move_mount", syscall(SYS_move_mount, -1, "", -1, "", 4), DENIED, ERRNOS(EBADF));
}

static void chroot_here(void *unused) {
    (void)unused;
    judge("chroot", chroot("."), DENIED, NONE);
}

void chroot_call(int argc, char **argv) {
    (void)argc, (void)argv;
    in_child(chroot_here, NULL);
    judge("pivot_root", syscall(SYS_pivot_root, "/casemate-probe-none", "/casemate-probe-none"), DENIED, ERRNOS(ENOENT, EINVAL));
}

void clock_set(int argc, char **argv) {
    (void)argc, (void)argv;
    /* no time and no zone: the kernel checks the permission and changes nothing */
    judge("settimeofday(NULL, NULL)", syscall(SYS_settimeofday, NULL, NULL), DENIED, NONE);
    struct timex bad_tick = {.modes = ADJ_TICK, .tick = 0};
    judge("adjtimex with an impossible tick", syscall(SYS_adjtimex, &bad_tick), DENIED, ERRNOS(EINVAL));
    judge("clock_adjtime with an impossible tick", syscall(SYS_clock_adjtime, CLOCK_REALTIME, &bad_tick), DENIED, ERRNOS(EINVAL));
}

void raw_io(int argc, char **argv) {
    (void)argc, (void)argv;
    judge("iopl(3)", syscall(SYS_iopl, 3), DENIED, NONE);
    judge("ioperm(0x80)", syscall(SYS_ioperm, 0x80, 1, 1), DENIED, NONE);
    judge("acct", syscall(SYS_acct, "/casemate-probe-none"), DENIED, ERRNOS(ENOENT));
    char log[256];
    judge("syslog read all", syscall(SYS_syslog, 3, log, sizeof log), DENIED, NONE);
    judge("fanotify_init", syscall(SYS_fanotify_init, FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY), DENIED, NONE);
}

void hostname_set(int argc, char **argv) {
    (void)argc, (void)argv;
    struct utsname name;
    uname(&name);
    judge("sethostname", sethostname(name.nodename, strlen(name.nodename)), DENIED, NONE);
    judge("setdomainname", setdomainname(name.domainname, strlen(name.domainname)), DENIED, NONE);
}
