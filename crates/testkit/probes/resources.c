/* Attacks 65-80, 100, 102: taking more than was given. Every amount is an argument, so that a bare run stays harmless. */
#include "probe.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB (1L << 20)

/* `got` of `asked` and the errno that ended it; 0 when nothing did. */
static void tell(const char *verb, long got, long asked, const char *unit, int error, const int *limits) {
    if (!error) {
        say("%s %ld%s, no limit met", verb, got, unit);
        escaped("%s %ld%s as asked", verb, asked, unit);
        return;
    }
    say("%s %ld%s, then %s", verb, got, unit, strerrorname_np(error));
    for (; *limits; limits++) {
        if (*limits != error) continue;
        held("%s %ld of %ld%s, then %s", verb, got, asked, unit, strerrorname_np(error));
        sleep_ms(150); /* most limits are seen from outside by looking now and then */
        return;
    }
    unsure("%s %ld%s, then %s, which is no limit", verb, got, unit, strerrorname_np(error));
}

static long amount(int argc, char **argv, int index, const char *meaning, long most) {
    return need(argc, argv, index, meaning) ? number(argc, argv, index, 0, most) : 0;
}

void fork_bomb(int argc, char **argv) {
    long count = amount(argc, argv, 0, "COUNT of processes", 100000), made = 0;
    int error = 0;
    if (!count) return;
    pid_t *children = calloc(count, sizeof *children);
    for (; children && made < count; made++) {
        pid_t pid = fork();
        if (pid == 0)
            for (;;) pause();
        if (pid < 0) {
            error = errno;
            break;
        }
        children[made] = pid;
    }
    tell("forked", made, count, "", error, ERRNOS(EAGAIN, ENOMEM));
    for (long i = 0; i < made; i++) kill(children[i], SIGKILL);
    for (long i = 0; i < made; i++) waitpid(children[i], NULL, 0);
    free(children);
}

static void *stay(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

void thread_bomb(int argc, char **argv) {
    long count = amount(argc, argv, 0, "COUNT of threads", 100000), made = 0;
    if (!count) return;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    int error = 0;
    pthread_t thread;
    for (; made < count && !(error = pthread_create(&thread, &small, stay, NULL)); made++) continue;
    tell("started", made, count, " threads", error, ERRNOS(EAGAIN, ENOMEM));
}

/* Touches anonymous or shared memory piece by piece; said aloud, because an OOM kill leaves no other word. */
static void touch(char *memory, long mib) {
    for (long i = 0; i < mib; i++) {
        for (long page = 0; page < MIB; page += 4096) memory[i * MIB + page] = (char)(i + 1);
        if ((i + 1) % 16 == 0) say("touched %ld MiB", i + 1);
    }
}

void memory_bomb(int argc, char **argv) {
    long mib = amount(argc, argv, 0, "MIB to touch", 1 << 20), got = 0;
    int error = 0;
    for (; got < mib && !error; got += 16) { /* in pieces, so that an address space limit ends it midway */
        char *memory = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            error = errno;
            break;
        }
        touch(memory, 16);
    }
    if (mib) tell("touched", got, mib, " MiB", error, ERRNOS(ENOMEM, EAGAIN));
}

static int fill(int fd, long mib, long *written) {
    static char block[1 << 16];
    if (getrandom(block, sizeof block, 0) < 0) memset(block, 0x5a, sizeof block);
    signal(SIGXFSZ, SIG_IGN);
    for (*written = 0; *written < mib * MIB;) {
        ssize_t n = write(fd, block, sizeof block);
        if (n < 0) return errno;
        *written += n;
    }
    return fsync(fd) ? errno : 0;
}

void disk_fill(int argc, char **argv) {
    const char *dir = need(argc, argv, 0, "DIR to fill");
    long mib = amount(argc, argv, 1, "MIB to write", 1 << 20), written = 0;
    if (!dir || !mib) return;
    char path[4096];
    snprintf(path, sizeof path, "%s/.probe-fill-%d", dir, getpid());
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
        unsure("%s: %s", path, strerror(errno));
        return;
    }
    int error = fill(fd, mib, &written);
    tell("wrote", written / MIB, mib, " MiB", error, ERRNOS(ENOSPC, EDQUOT, EFBIG));
    close(fd);
    unlink(path);
}

void inode_fill(int argc, char **argv) {
    const char *dir = need(argc, argv, 0, "DIR to fill");
    long count = amount(argc, argv, 1, "COUNT of files", 10000000), made = 0;
    if (!dir || !count) return;
    char path[4096];
    int error = 0;
    snprintf(path, sizeof path, "%s/.probe-inodes-%d", dir, getpid());
    if (mkdir(path, 0700)) {
        unsure("%s: %s", path, strerror(errno));
        return;
    }
    int at = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char name[32];
    for (; made < count; made++) {
        snprintf(name, sizeof name, "%ld", made);
        int fd = openat(at, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0) {
            error = errno;
            break;
        }
        close(fd);
    }
    tell("created", made, count, " files", error, ERRNOS(ENOSPC, EDQUOT));
    for (long i = 0; i < made; i++) snprintf(name, sizeof name, "%ld", i), unlinkat(at, name, 0);
    close(at);
    rmdir(path);
}

void memfd_fill(int argc, char **argv) {
    long mib = amount(argc, argv, 0, "MIB to write", 1 << 20), written = 0;
    if (!mib) return;
    int fd = memfd_create("probe", MFD_CLOEXEC);
    if (fd < 0) {
        judge("memfd_create", fd, DENIED, NONE);
        return;
    }
    int error = fill(fd, mib, &written);
    tell("wrote", written / MIB, mib, " MiB into a memfd", error, ERRNOS(ENOSPC, ENOMEM, EFBIG));
}

void shm_fill(int argc, char **argv) {
    long mib = amount(argc, argv, 0, "MIB to touch", 1 << 20), written = 0;
    if (!mib) return;
    int id = shmget(IPC_PRIVATE, mib * MIB, IPC_CREAT | 0600);
    if (id < 0) {
        judge("shmget", id, ERRNOS(EPERM, EACCES, ENOSYS, ENOSPC, ENOMEM, EINVAL), NONE); /* EINVAL: above shmmax */
    } else {
        char *memory = shmat(id, NULL, 0);
        shmctl(id, IPC_RMID, NULL); /* gone with the last attachment, also when we are killed */
        if (memory == (void *)-1) {
            judge("shmat", -1, ERRNOS(EPERM, EACCES, ENOSYS, ENOMEM), NONE);
        } else {
            touch(memory, mib);
            shmdt(memory);
            escaped("touched %ld MiB of SysV memory as asked", mib);
        }
    }
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/.probe-%d", getpid());
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        judge("create a file in /dev/shm", fd, ERRNOS(ENOENT, EACCES, EPERM, EROFS, ENOSPC), NONE);
        return;
    }
    unlink(path);
    int error = fill(fd, mib, &written);
    tell("wrote", written / MIB, mib, " MiB into /dev/shm", error, ERRNOS(ENOSPC, ENOMEM));
}

void fd_exhaust(int argc, char **argv) {
    long count = amount(argc, argv, 0, "COUNT of descriptors", 10000000), made = 0;
    if (!count) return;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int error = 0;
    for (; made < count; made++) {
        if (dup(1) >= 0) continue;
        error = errno;
        break;
    }
    tell("opened", made, count, " descriptors", error, ERRNOS(EMFILE, ENFILE));
    for (int fd = 3; fd < made + 3; fd++) close(fd);
}

static void *spin(void *deadline) {
    volatile unsigned long work = 0;
    while (seconds() < *(double *)deadline)
        for (int i = 0; i < 1000000; i++) work++;
    return NULL;
}

void cpu_spin(int argc, char **argv) {
    long length = amount(argc, argv, 0, "SECONDS", 3600), threads = number(argc, argv, 1, 1, 256);
    if (!length) return;
    static double deadline;
    deadline = seconds() + length;
    signal(SIGXCPU, SIG_IGN);
    pthread_t thread;
    for (long i = 1; i < threads; i++)
        if (pthread_create(&thread, NULL, spin, &deadline)) say("%ld threads spin", i);
    spin(&deadline);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    say("used %ld.%03ld s of CPU in %ld s", (long)used.ru_utime.tv_sec, (long)used.ru_utime.tv_usec / 1000, length);
    escaped("nothing ended it within %ld s", length);
}

void ignore_term(int argc, char **argv) {
    long length = amount(argc, argv, 0, "SECONDS", 3600);
    if (!length) return;
    for (int s = 1; s < NSIG; s++) signal(s, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    say("sleeping for %ld s with every signal ignored", length);
    for (double end = seconds() + length; seconds() < end;) sleep_ms(50);
    escaped("nothing ended it within %ld s", length);
}

/* Forks twice, in a session of its own, and lets go of everything that ties it to the cell. */
static pid_t forked_away(bool keep_stdio) {
    pid_t pid = fork();
    if (pid) {
        if (pid > 0) waitpid(pid, NULL, 0);
        return pid;
    }
    setsid();
    if (fork()) _exit(0);
    for (int s = 1; s < NSIG; s++) signal(s, SIG_IGN);
    int null = keep_stdio ? -1 : open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && null >= 0; fd++) dup2(null, fd);
    return 0;
}

void daemonise(int argc, char **argv) {
    long length = amount(argc, argv, 0, "SECONDS", 3600);
    if (!length) return;
    pid_t pid = forked_away(false);
    if (pid < 0) {
        unsure("fork: %s", strerror(errno));
    } else if (pid > 0) {
        outside("the daemon must die with the cell");
    } else {
        for (double end = seconds() + length; seconds() < end; sleep_ms(50)) {
            int fd = argc > 1 ? open(argv[1], O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600) : -1;
            if (fd >= 0 && write(fd, ".", 1) == 1) close(fd);
        }
        _exit(0);
    }
}

static void count_zombie(pid_t pid, void *argument) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (slurp(AT_FDCWD, path, text, sizeof text) <= 0) return;
    char *end = strrchr(text, ')');
    if (end && end[2] == 'Z' && strstr(text, "(probe-orphan)")) ++*(int *)argument;
}

/* The middle process dies first, so that its children are nobody's but init's. */
void zombies(int argc, char **argv) {
    long count = amount(argc, argv, 0, "COUNT", 100000);
    if (!count) return;
    long made = 0;
    for (; made < count; made++) {
        pid_t middle = fork();
        if (middle < 0) break;
        if (middle == 0) {
            pid_t orphan = fork();
            if (orphan == 0) {
                int fd = open("/proc/self/comm", O_WRONLY | O_CLOEXEC);
                if (fd < 0 || write(fd, "probe-orphan", 12) != 12) _exit(1);
                sleep_ms(20);
                _exit(0);
            }
            _exit(orphan < 0);
        }
        int status;
        waitpid(middle, &status, 0);
        if (status) break;
    }
    int found = 0;
    for (int tries = 0; tries < 20; tries++) {
        sleep_ms(100);
        found = 0;
        if (!each_pid(count_zombie, &found)) {
            outside("%ld orphans must be reaped; /proc cannot be read here", made);
            return;
        }
        if (!found) break;
    }
    say("orphaned %ld of %ld, %d stay unreaped", made, count, found);
    if (found)
        escaped("%d zombies stay", found);
    else if (made)
        held("all %ld orphans were reaped", made);
    else
        unsure("no orphan could be made: %s", strerror(errno));
}

void signal_storm(int argc, char **argv) {
    long length = amount(argc, argv, 0, "SECONDS", 600), sent = 0, queued = 0;
    if (!length) return;
    for (int s = SIGRTMIN; s <= SIGRTMAX; s++) signal(s, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    if (getpid() != getpgrp()) setpgid(0, 0); /* ours alone */
    double end = seconds() + length;
    pid_t group = getpgrp(), helper = fork();
    if (helper == 0) {
        while (seconds() < end) kill(-group, SIGUSR1);
        _exit(0);
    }
    sigset_t one;
    sigemptyset(&one), sigaddset(&one, SIGRTMIN + 1);
    sigprocmask(SIG_BLOCK, &one, NULL);
    signal(SIGRTMIN + 1, SIG_DFL);
    while (seconds() < end) {
        sent += kill(-group, SIGUSR1) == 0;
        queued += sigqueue(getpid(), SIGRTMIN + 1, (union sigval){0}) == 0;
    }
    if (helper > 0) kill(helper, SIGKILL), waitpid(helper, NULL, 0);
    say("sent %ld signals, queued %ld", sent, queued);
    outside("the guest must have answered and ended normally");
}

void output_flood(int argc, char **argv) {
    long mib = amount(argc, argv, 0, "MIB to write", 1 << 20);
    int fd = argc > 1 && !strcmp(argv[1], "err") ? 2 : 1;
    static char block[1 << 16];
    memset(block, 'A', sizeof block);
    for (size_t i = 79; i < sizeof block; i += 80) block[i] = '\n';
    block[sizeof block - 1] = '\n';
    for (long done = 0; done < mib * MIB;) {
        ssize_t n = write(fd, block, sizeof block);
        if (n < 0) {
            say("wrote %ld bytes, then %s", done, strerror(errno));
            break;
        }
        done += n;
    }
    if (mib) outside("cut at the limit and flagged, memory flat");
}

void hold_stdout(int argc, char **argv) {
    long length = amount(argc, argv, 0, "SECONDS", 3600);
    if (!length) return;
    pid_t pid = forked_away(true);
    if (pid == 0) {
        sleep_ms(length * 1000);
        _exit(0);
    }
    if (pid < 0)
        unsure("fork: %s", strerror(errno));
    else
        outside("the result must come at once or at the deadline, not after %ld s", length);
}

static int sparse(const char *path, long gib) {
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600), error = 0;
    if (fd < 0) return errno;
    if (ftruncate(fd, gib << 30) || pwrite(fd, "x", 1, (gib << 30) - 1) != 1) error = errno;
    close(fd);
    return error;
}

void out_bomb(int argc, char **argv) {
    const char *dir = need(argc, argv, 0, "DIR, the output directory");
    long gib = amount(argc, argv, 1, "GIB each file claims", 1 << 13);
    if (!dir || !gib) return;
    if (chdir(dir)) {
        unsure("chdir %s: %s", dir, strerror(errno));
        return;
    }
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "bomb-%d", i);
        int error = sparse(name, gib);
        say("%s of %ld GiB: %s", name, gib, error ? strerror(error) : "made");
    }
    int depth = 0;
    while (depth < 200 && mkdir("deep", 0700) == 0 && chdir("deep") == 0) depth++;
    say("directories nested %d deep", depth);
    outside("what comes out is capped by bytes, entries and depth");
}

void sparse_file(int argc, char **argv) {
    const char *dir = need(argc, argv, 0, "DIR");
    long gib = amount(argc, argv, 1, "GIB", 1 << 13);
    if (!dir || !gib) return;
    char path[4096];
    snprintf(path, sizeof path, "%s/.probe-sparse-%d", dir, getpid());
    int error = sparse(path, gib);
    tell("made a sparse file of", error ? 0 : gib, gib, " GiB", error, ERRNOS(EFBIG, ENOSPC, EDQUOT));
    unlink(path);
}

/* Socket pairs and pipes, each filled until it would block; ends at MIB, or where descriptors or memory end. */
void socket_buffers(int argc, char **argv) {
    long mib = amount(argc, argv, 0, "MIB", 1 << 16), parked = 0;
    if (!mib) return;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    static char block[1 << 16];
    int error = 0;
    for (long said = 0; parked < mib * MIB && !error;) {
        int pair[2], size = 16 << 20;
        bool pipes = parked / MIB % 2;
        if (pipes ? pipe2(pair, O_NONBLOCK) : socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) {
            error = errno;
            break;
        }
        if (pipes)
            fcntl(pair[1], F_SETPIPE_SZ, 1 << 20);
        else
            setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        ssize_t n = 0;
        while (parked < mib * MIB && (n = write(pair[1], block, sizeof block)) > 0) parked += n;
        if (n < 0 && errno != EAGAIN) error = errno;
        if (parked / MIB >= said + 16) say("parked %ld MiB", said = parked / MIB);
    }
    tell("parked", parked / MIB, mib, " MiB in buffers", error, ERRNOS(EMFILE, ENFILE, ENOBUFS, ENOMEM));
}

void forged_result(int argc, char **argv) {
    (void)argc, (void)argv;
    say("{\"id\":\"forged\",\"stack\":[\"microvm\"],\"status\":{\"kind\":\"exited\",\"code\":0},\"stdout\":\"\",\"receipt\":\"forged\"}");
    say("verdict: held");
    fflush(stdout);
    /* what could be taken for frames: lengths in both orders, then JSON */
    static const char frames[] = "\x00\x00\x00\x1b{\"exited\":{\"code\":0}}\n\x1b\x00\x00\x00{\"type\":\"exit\",\"code\":0}\n";
    for (int fd = 1; fd < 32; fd++)
        if (write(fd, frames, sizeof frames - 1) > 0 && fd > 2) dprintf(1, "fd %d took a frame\n", fd);
    fprintf(stderr, "exit status 0\n");
    exit(7); /* the one true status; no verdict, the suite looks for 7 */
}

void hostile_output(int argc, char **argv) {
    (void)argc, (void)argv;
    static const char bytes[] = "plain\n\033[2J\033[H\033]0;title\007\033]52;c;Zm9yZ2Vk\007\033[31mred\033[0m\033[6n\033P$q\033\\\n"
                                "nul:\0:end\ninvalid:\xff\xfe\xc3\x28\xed\xa0\x80\xf4\x90\x80\x80:end\ncr:visible\rhidden\nbs:abc\b\b\bxyz\n"
                                "c1:\x9b" "31m\xc2\x9b" "31m\nbidi:\xe2\x80\xae" "txt.exe\nlone:\x7f\x01\x02\x1f\n\033[?1049h";
    fflush(stdout);
    if (write(1, bytes, sizeof bytes - 1) != sizeof bytes - 1 || write(2, bytes, sizeof bytes - 1) < 0) unsure("write: %s", strerror(errno));
    (void)!write(1, "\n", 1);
    outside("escaped on a terminal, exact bytes in the API (%zu of them)", sizeof bytes - 1);
}
