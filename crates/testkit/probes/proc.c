/* Attacks 19-21, 36-42 and the limits a process may try to lift: other processes, /proc and /sys. */
#include "probe.h"

#include <ctype.h>
#include <dirent.h>
#include <linux/ioprio.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* The process that started us; 1 when that one is outside our pid namespace. */
static pid_t parent(void) { return getppid() > 0 ? getppid() : 1; }

/* Runs fn on the given pids, or on `otherwise`. */
static void on_pids(int argc, char **argv, pid_t otherwise, void (*fn)(void *)) {
    if (argc == 0) in_child(fn, &otherwise);
    for (int i = 0; i < argc; i++) {
        pid_t pid = number(argc, argv, i, 0, 1 << 22);
        in_child(fn, &pid);
    }
}

static void setns_into(void *target) {
    pid_t pid = *(pid_t *)target;
    static const char *const kinds[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time", "pid_for_children"};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, kinds[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            if (errno == EACCES || errno == EPERM)
                held("open %s: %s", path, strerrorname_np(errno));
            else
                say("open %s: %s", path, strerror(errno));
            continue;
        }
        long result = syscall(SYS_setns, fd, 0);
        if (result && errno == EINVAL) /* entering the user namespace we are in is EINVAL for everyone */
            say("setns %s: EINVAL, it is our own", path);
        else
            judge(path, result, DENIED, NONE);
        close(fd);
    }
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        say("pidfd_open %d: %s", pid, strerror(errno));
        return;
    }
    char what[64];
    snprintf(what, sizeof what, "setns by a pidfd of %d", pid);
    judge(what, syscall(SYS_setns, pidfd, CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET), DENIED, NONE);
    close(pidfd);
}

void setns_call(int argc, char **argv) {
    pid_t self = getpid();
    on_pids(argc, argv, 1, setns_into);
    in_child(setns_into, &self);
}

/* The child that attaches ends at once, and with it the attachment. */
static void seize(void *target) {
    pid_t pid = *(pid_t *)target;
    char what[64];
    snprintf(what, sizeof what, "ptrace(SEIZE, %d)", pid);
    judge(what, ptrace(PTRACE_SEIZE, pid, NULL, NULL), DENIED, NONE);
}

void ptrace_parent(int argc, char **argv) { on_pids(argc, argv, parent(), seize); }

static void *trace_me(void *result) {
    long answer = ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    *(int *)result = answer == 0 ? 0 : errno;
    return NULL;
}

static void *trace_me_and_stay(void *result) {
    trace_me(result);
    for (;;) pause();
    return NULL;
}

/* The trap: waitpid on the pid of a process whose non-leader thread is traced never returns, even after SIGKILL. */
static void arm_trap(void) {
    pid_t pid = fork();
    if (pid < 0) {
        unsure("fork: %s", strerror(errno));
        return;
    }
    if (pid == 0) {
        static int result = -1;
        pthread_t thread;
        if (pthread_create(&thread, NULL, trace_me_and_stay, &result)) _exit(254);
        for (int i = 0; i < 200 && *(volatile int *)&result == -1; i++) sleep_ms(5);
        _exit(result < 0 ? 253 : result);
    }
    int status = 0;
    bool reaped = false;
    for (int i = 0; i < 100 && !reaped; i++) {
        sleep_ms(10);
        reaped = waitpid(pid, &status, WNOHANG) == pid;
    }
    if (!reaped) {
        escaped("a traced thread keeps its process from being reaped by pid");
        kill(pid, SIGKILL);
        for (int i = 0; i < 100 && waitpid(-1, &status, __WALL | WNOHANG) >= 0; i++) sleep_ms(5);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        escaped("PTRACE_TRACEME from a thread works, though the process was reaped");
    } else if (WIFEXITED(status) && WEXITSTATUS(status) < 200) {
        errno = WEXITSTATUS(status);
        judge("PTRACE_TRACEME from a thread", -1, DENIED, NONE);
    } else {
        unsure("the thread did not start (status %x)", status);
    }
}

void traceme_thread(int argc, char **argv) {
    if (argc == 0) {
        arm_trap();
        return;
    }
    static int result = -1;
    pthread_t thread;
    if (pthread_create(&thread, NULL, trace_me_and_stay, &result)) {
        unsure("pthread_create: %s", strerror(errno));
        return;
    }
    for (int i = 0; i < 200 && *(volatile int *)&result == -1; i++) sleep_ms(5);
    say("PTRACE_TRACEME from a thread of the payload: %s", result ? strerror(result) : "done");
    if (result) {
        errno = result;
        judge("PTRACE_TRACEME from a thread", -1, DENIED, NONE);
    }
    if (!strcmp(argv[0], "hang"))
        for (;;) pause();
    if (!result) outside("the payload must be reaped by the deadline");
}

static void read_and_write(void *target) {
    pid_t pid = *(pid_t *)target;
    char here[8] = "", what[64];
    /* nothing is mapped at this address: EFAULT comes after the permission check, and nothing is changed */
    struct iovec local = {here, sizeof here}, remote = {(void *)0x10, sizeof here};
    snprintf(what, sizeof what, "process_vm_readv of %d", pid);
    judge(what, process_vm_readv(pid, &local, 1, &remote, 1, 0), DENIED, ERRNOS(EFAULT));
    snprintf(what, sizeof what, "process_vm_writev of %d", pid);
    judge(what, process_vm_writev(pid, &local, 1, &remote, 1, 0), DENIED, ERRNOS(EFAULT));
}

void process_vm(int argc, char **argv) { on_pids(argc, argv, parent(), read_and_write); }

static long send_by(int way, pid_t pid, int signal) {
    siginfo_t info = {.si_signo = signal, .si_code = SI_QUEUE};
    if (way == 0) return kill(pid, signal);
    if (way == 1) return syscall(SYS_tgkill, pid, pid, signal);
    if (way == 2) return syscall(SYS_tkill, pid, signal);
    if (way == 3) return syscall(SYS_rt_sigqueueinfo, pid, signal, &info);
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) return -1;
    long result = syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
    int error = errno;
    close(pidfd);
    errno = error;
    return result;
}

/* Signal 0 passes the same permission check. Others follow only where it was denied, or when told `really`: a bare run
 * must not stop somebody's init. */
void signal_guest(int argc, char **argv) {
    static const char *const ways[] = {"kill", "tgkill", "tkill", "rt_sigqueueinfo", "pidfd_send_signal"};
    static const int signals[] = {0, SIGTERM, SIGSTOP, SIGHUP, SIGUSR1, SIGKILL};
    pid_t pid = number(argc, argv, 0, 1, 1 << 22);
    bool really = argc > 1 && !strcmp(argv[1], "really");
    for (size_t w = 0; w < COUNT(ways); w++) {
        for (size_t s = 0; s < COUNT(signals); s++) {
            char what[96];
            snprintf(what, sizeof what, "%s(%d, %s)", ways[w], pid, signals[s] ? sigabbrev_np(signals[s]) : "0");
            bool passed = judge(what, send_by(w, pid, signals[s]), ERRNOS(EPERM, EACCES, ENOSYS, ESRCH), NONE);
            if (passed && !really) break;
        }
    }
}

void guest_fds(int argc, char **argv) {
    static const struct { const char *name; int flags; } files[] = {
        {"fd", O_RDONLY | O_DIRECTORY}, {"mem", O_RDONLY}, {"mem", O_RDWR}, {"environ", O_RDONLY}, {"maps", O_RDONLY}, {"auxv", O_RDONLY},
        {"fdinfo", O_RDONLY | O_DIRECTORY}, {"map_files", O_RDONLY | O_DIRECTORY}, {"syscall", O_RDONLY}, {"stack", O_RDONLY}};
    static const char *const links[] = {"exe", "root", "cwd", "fd/0", "fd/1", "fd/3"};
    pid_t pid = number(argc, argv, 0, 1, 1 << 22);
    char path[64], byte[1], target[512];
    bool proc = access("/proc/self", F_OK) == 0;
    if (!proc) say("there is no /proc");
    for (size_t i = 0; proc && i < COUNT(files); i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i].name);
        int fd = open(path, files[i].flags | O_CLOEXEC);
        long result = fd;
        /* some of them open for everyone and check at the first read */
        if (fd >= 0 && !(files[i].flags & O_DIRECTORY) && strcmp(files[i].name, "mem")) result = read(fd, byte, 1);
        if (fd >= 0 && files[i].flags & O_DIRECTORY) result = syscall(SYS_getdents64, fd, target, sizeof target);
        int error = errno;
        if (fd >= 0) close(fd);
        errno = error;
        if (result == 0)
            say("%s opens but is empty", path);
        else
            judge(path, result, ERRNOS(EACCES, EPERM, ENOENT, ESRCH, EROFS), NONE);
    }
    for (size_t i = 0; proc && i < COUNT(links); i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, links[i]);
        judge(path, readlink(path, target, sizeof target), ERRNOS(EACCES, EPERM, ENOENT, ESRCH), NONE);
    }
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0)
        judge("pidfd_getfd of the guest's fd 0", syscall(SYS_pidfd_getfd, pidfd, 0, 0), DENIED, ERRNOS(EBADF));
    else
        judge("pidfd_open of the guest", -1, ERRNOS(EPERM, EACCES, ENOSYS, ESRCH), NONE);
}

static pid_t parent_of(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (slurp(AT_FDCWD, path, text, sizeof text) <= 0) return 0;
    char *end = strrchr(text, ')');
    return end ? atoi(end + 4) : 0;
}

static bool is_ancestor(pid_t pid) {
    for (pid_t p = getpid(); p > 0; p = parent_of(p))
        if (p == pid) return true;
    return false;
}

struct search { const char *file, *marker; int seen, read; };

/* The command lines of our own ancestors carry the marker, because we were started with it. */
static void search_process(pid_t pid, void *argument) {
    struct search *search = argument;
    static char text[1 << 17];
    char path[64];
    search->seen++;
    if (!strcmp(search->file, "cmdline") && is_ancestor(pid)) return;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, search->file);
    ssize_t n = slurp(AT_FDCWD, path, text, sizeof text);
    if (n < 0) return;
    search->read++;
    if (holds(text, n, search->marker)) escaped("%s holds the marker", path);
}

void host_pids(int argc, char **argv) {
    const char *pid_text = need(argc, argv, 0, "HOSTPID"), *marker = need(argc, argv, 1, "MARKER in its command line");
    if (!pid_text || !marker) return;
    pid_t pid = number(argc, argv, 0, 0, 1 << 22);
    struct search search = {"cmdline", marker, 0, 0};
    if (each_pid(search_process, &search)) {
        say("%d processes are visible in /proc", search.seen);
        if (search.seen)
            held("%d command lines were read", search.read);
        else
            unsure("/proc holds no processes, not even this one");
    } else if (errno == EACCES || errno == EPERM || errno == ENOENT) {
        held("/proc: %s", strerrorname_np(errno));
    } else {
        unsure("/proc: %s", strerror(errno));
    }
    /* the number may belong to a process of the cell; then it is listed in /proc and was searched above */
    char path[64];
    snprintf(path, sizeof path, "/proc/%d", pid);
    if (access(path, F_OK) == 0)
        say("pid %d is a process of this cell, or was found above", pid);
    else
        judge("signal 0 to the host pid", kill(pid, 0), ERRNOS(ESRCH, EPERM, EACCES), NONE);
}

/* A file that gives even one byte is open; absent, denied or empty (masked by /dev/null) is a wall. */
static void judge_readable(const char *path, const char *tree) {
    char bytes[64];
    if (access(tree, F_OK)) {
        if (errno == EACCES || errno == EPERM || errno == ENOENT) held("%s: there is no %s", path, tree);
        return;
    }
    ssize_t n = slurp(AT_FDCWD, path, bytes, sizeof bytes);
    if (n == 0)
        held("%s is empty", path);
    else
        judge(path, n, ERRNOS(ENOENT, EACCES, EPERM, EIO, ENOTDIR), ERRNOS(EISDIR, EAGAIN));
}

/* Readable by everyone, but with zeros for everyone but root. */
static void judge_addresses(const char *path) {
    FILE *file = fopen(path, "re");
    char line[512];
    unsigned long first, last;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, " %lx-%lx", &first, &last) != 2 || !(first || last)) continue;
        escaped("%s shows addresses", path);
        break;
    }
    if (file)
        held("%s was looked through", path);
    else
        judge(path, -1, ERRNOS(ENOENT, EACCES, EPERM), NONE);
    if (file) fclose(file);
}

void masked_proc(int argc, char **argv) {
    (void)argc, (void)argv;
    static const char *const files[] = {"kcore", "keys", "timer_list", "timer_stats", "sched_debug", "latency_stats", "kmsg", "locks", "kpageflags", "kpagecount",
                                        "kpagecgroup", "vmallocinfo", "slabinfo", "pagetypeinfo", "scsi/scsi"};
    if (access("/proc/self", F_OK)) {
        unsure("there is no /proc");
        return;
    }
    for (size_t i = 0; i < COUNT(files); i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%s", files[i]);
        judge_readable(path, "/proc/self");
    }
    judge_addresses("/proc/iomem");
    judge_addresses("/proc/ioports");
}

void kallsyms(int argc, char **argv) {
    (void)argc, (void)argv;
    FILE *file = fopen("/proc/kallsyms", "re");
    if (!file) {
        if (access("/proc/self", F_OK))
            unsure("there is no /proc");
        else
            judge("/proc/kallsyms", -1, ERRNOS(ENOENT, EACCES, EPERM), NONE);
        return;
    }
    char line[512];
    int symbols = 0;
    for (; fgets(line, sizeof line, file); symbols++) {
        if (strtoull(line, NULL, 16) == 0) continue;
        escaped("an address is shown: %.40s", strtok(line, "\n"));
        break;
    }
    fclose(file);
    held("%d symbols were read before the first address", symbols);
}

void sysrq(int argc, char **argv) {
    (void)argc, (void)argv;
    judge_write_open("/proc/sysrq-trigger", "/proc/self");
    judge_write_open("/proc/sys/kernel/sysrq", "/proc/self");
}

void mountinfo(int argc, char **argv) {
    static const char *const files[] = {"mountinfo", "mounts", "mountstats"};
    if (!need(argc, argv, 0, "SUBSTRINGs that must not appear")) return;
    static char text[1 << 18];
    for (size_t i = 0; i < COUNT(files); i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/%s", files[i]);
        ssize_t n = slurp(AT_FDCWD, path, text, sizeof text);
        if (n <= 0) {
            if (n == 0)
                held("%s is empty", path);
            else if (errno == EACCES || errno == EPERM || (errno == ENOENT && access("/proc/self", F_OK) == 0))
                held("%s: %s", path, strerrorname_np(errno));
            else
                unsure("%s: %s", path, strerror(errno));
            continue;
        }
        int found = 0;
        for (int a = 0; a < argc; a++)
            if (holds(text, n, argv[a])) escaped("%s names %s", path, argv[a]), found++;
        if (!found) held("%s names none of them", path);
    }
}

void sysfs(int argc, char **argv) {
    (void)argc, (void)argv;
    static const char *const places[] = {"firmware/acpi", "firmware/dmi", "firmware/memmap", "firmware/efi/efivars", "class/powercap/intel-rapl:0", "devices/virtual/powercap",
                                         "devices/virtual/dmi/id/product_uuid", "kernel/security", "kernel/debug", "kernel/tracing", "kernel/boot_params/data", "kernel/vmcoreinfo",
                                         "kernel/notes", "kernel/slab", "module", "block", "bus/pci/devices", "power/state", "class/net/eth0"};
    for (size_t i = 0; i < COUNT(places); i++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/%s", places[i]);
        DIR *dir = opendir(path);
        if (!dir && errno == ENOTDIR) {
            judge_readable(path, "/");
            continue;
        }
        int entries = 0;
        for (struct dirent *e; dir && (e = readdir(dir));) entries += e->d_name[0] != '.';
        if (!dir)
            judge(path, -1, ERRNOS(ENOENT, EACCES, EPERM), NONE);
        else if (entries)
            escaped("%s lists %d entries", path, entries);
        else
            held("%s is empty", path);
        if (dir) closedir(dir);
    }
    int fd = open("/sys/power/state", O_WRONLY | O_CLOEXEC);
    judge("/sys/power/state for writing", fd, ERRNOS(ENOENT, EACCES, EPERM, EROFS), NONE);
    if (fd >= 0) close(fd);
}

void environ_secret(int argc, char **argv) {
    const char *marker = need(argc, argv, 0, "MARKER that is in a host environment");
    if (!marker) return;
    for (char **e = environ; *e; e++)
        if (strstr(*e, marker)) escaped("our own environment holds the marker");
    struct search search = {"environ", marker, 0, 0};
    bool listed = each_pid(search_process, &search);
    int error = errno;
    say("%d processes are visible, %d environments could be read", search.seen, search.read);
    if (listed && search.read)
        held("no readable environment holds the marker");
    else if (listed && search.seen)
        held("every environment is denied");
    else if (error == EACCES || error == EPERM)
        held("/proc is denied");
    else
        unsure("/proc: %s", strerror(error));
}

static void crash(void *unused) {
    (void)unused;
    struct rlimit limit;
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_CORE, &limit);
    if (chdir("crash")) _exit(1);
    abort();
}

void core_dump(int argc, char **argv) {
    (void)argc, (void)argv;
    char dir[128];
    const char *own = scratch("");
    if (!own || strlen(own) >= sizeof dir) return;
    strcpy(dir, own);
    int back = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (chdir(dir) || mkdir("crash", 0700)) {
        unsure("no directory for a core: %s", strerror(errno));
        return;
    }
    int status = in_child(crash, NULL);
    if (status == -1 || !WIFSIGNALED(status))
        unsure("the child did not crash (status %x)", status);
    else if (WCOREDUMP(status))
        escaped("a core was dumped");
    else
        held("no core was dumped");
    DIR *cores = opendir("crash");
    for (struct dirent *e; cores && (e = readdir(cores));)
        if (strstr(e->d_name, "core")) unlinkat(dirfd(cores), e->d_name, 0);
    if (cores) closedir(cores);
    rmdir("crash");
    if (fchdir(back)) say("fchdir: %s", strerror(errno));
}

static void raise_one(const char *what, pid_t pid, int resource) {
    struct rlimit now, more;
    if (prlimit(pid, resource, NULL, &now)) {
        char text[64];
        snprintf(text, sizeof text, "prlimit of %s", what);
        if (pid) judge(text, -1, DENIED, NONE);
        return;
    }
    if (now.rlim_max == RLIM_INFINITY) {
        say("%s: the hard limit is already infinite", what);
        return;
    }
    more = now, more.rlim_max++;
    if (judge(what, prlimit(pid, resource, &more, NULL), DENIED, NONE)) prlimit(pid, resource, &now, NULL);
}

void prlimit_raise(int argc, char **argv) {
    raise_one("own open files", 0, RLIMIT_NOFILE);
    raise_one("own processes", 0, RLIMIT_NPROC);
    raise_one("own locked memory", 0, RLIMIT_MEMLOCK);
    raise_one("own core size", 0, RLIMIT_CORE);
    raise_one("own file size", 0, RLIMIT_FSIZE);
    raise_one("the parent's open files", number(argc, argv, 0, parent(), 1 << 22), RLIMIT_NOFILE);
}

static void raise_priority(void *unused) {
    (void)unused;
    struct sched_param rt = {.sched_priority = 1};
    int now = getpriority(PRIO_PROCESS, 0);
    judge("a lower nice value", setpriority(PRIO_PROCESS, 0, now - 1 < -20 ? -20 : now - 1), DENIED, NONE);
    judge("SCHED_FIFO", sched_setscheduler(0, SCHED_FIFO, &rt), DENIED, NONE);
    judge("real-time I/O", syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_RT, 0)), DENIED, NONE);
}

void nice_raise(int argc, char **argv) {
    (void)argc, (void)argv;
    in_child(raise_priority, NULL);
}

static void lower_score(void *unused) {
    (void)unused;
    char text[32];
    if (slurp(AT_FDCWD, "/proc/self/oom_score_adj", text, sizeof text) <= 0) {
        if (errno == EACCES || errno == EPERM)
            held("oom_score_adj: %s", strerrorname_np(errno));
        else
            unsure("oom_score_adj: %s", strerror(errno));
        return;
    }
    int now = atoi(text), targets[] = {-1000, now - 1};
    say("oom_score_adj is %d", now);
    for (size_t i = 0; i < COUNT(targets); i++) {
        char what[64];
        snprintf(what, sizeof what, "oom_score_adj %d", targets[i]);
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        int length = snprintf(text, sizeof text, "%d", targets[i]);
        long result = fd < 0 ? -1 : write(fd, text, length);
        int error = errno;
        if (fd >= 0) close(fd);
        errno = error;
        judge(what, result, ERRNOS(EACCES, EPERM, EROFS), NONE);
    }
}

void oom_score(int argc, char **argv) {
    (void)argc, (void)argv;
    in_child(lower_score, NULL);
}
