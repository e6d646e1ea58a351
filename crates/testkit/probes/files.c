/* Attacks 1-3, 8-16, 93, 98, 108: files and mounts. */
#include "probe.h"

#include <dirent.h>
#include <linux/mount.h>
#include <signal.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

/* Reads a file that should not be reachable. Another file under the same name is a wall: the name resolved inside. */
static void read_marked(const char *route, int dir, const char *path, const char *marker) {
    static char bytes[1 << 20];
    ssize_t n = slurp(dir, path, bytes, sizeof bytes);
    if (n >= 0 && holds(bytes, n, marker))
        escaped("%s: %s holds the marker", route, path);
    else if (n >= 0)
        held("%s: %s opens something else, without the marker", route, path);
    else if (errno == ENOENT || errno == EACCES || errno == EPERM || errno == ENOTDIR || errno == ELOOP || errno == EXDEV ||
             errno == EISDIR)
        held("%s: %s", route, strerrorname_np(errno));
    else
        unsure("%s: %s: %s", route, path, strerror(errno));
}

static bool path_and_marker(int argc, char **argv) {
    if (!need(argc, argv, 0, "PATH of a host file") || !need(argc, argv, 1, "MARKER in it")) return false;
    if (argv[0][0] == '/') return true;
    unsure("PATH must be absolute, not %s", argv[0]);
    return false;
}

static void through_dotdot(const char *path, const char *marker) {
    static const int depths[] = {1, 2, 3, 4, 6, 8, 16, 64};
    static const char *const starts[] = {"", "/", "/tmp/", "/proc/self/cwd/", "/usr/lib/"};
    char chain[8192];
    for (size_t s = 0; s < COUNT(starts); s++) {
        for (size_t d = 0; d < COUNT(depths); d++) {
            char *end = stpcpy(chain, starts[s]);
            for (int i = 0; i < depths[d]; i++) end = stpcpy(end, "../");
            snprintf(end, chain + sizeof chain - end, "%s", path + 1);
            char route[64];
            snprintf(route, sizeof route, "%d x ../ from %s", depths[d], starts[s][0] ? starts[s] : "the work directory");
            read_marked(route, AT_FDCWD, chain, marker);
        }
    }
}

void dotdot(int argc, char **argv) {
    if (path_and_marker(argc, argv)) through_dotdot(argv[0], argv[1]);
}

static void through_symlink(const char *target, const char *marker) {
    const char *link = scratch("link");
    if (!link) return;
    if (symlink(target, link)) {
        unsure("symlink: %s", strerror(errno));
        return;
    }
    read_marked("symlink", AT_FDCWD, link, marker);
    unlink(link);
}

static void through_symlinks(const char *path, const char *marker) {
    char target[4096];
    through_symlink(path, marker);
    snprintf(target, sizeof target, "/proc/self/root%s", path);
    through_symlink(target, marker);
    snprintf(target, sizeof target, "/proc/1/root%s", path);
    through_symlink(target, marker);
    snprintf(target, sizeof target, "../../../../../../../../../..%s", path);
    through_symlink(target, marker);
}

void symlink_out(int argc, char **argv) {
    if (path_and_marker(argc, argv)) through_symlinks(argv[0], argv[1]);
}

void read_host_file(int argc, char **argv) {
    if (!path_and_marker(argc, argv)) return;
    const char *path = argv[0], *marker = argv[1];
    static const char *const prefixes[] = {"",  "/proc/self/root", "/proc/1/root", "/proc/1/cwd/../../../../../../..", "/proc/self/cwd/../../../../../../..",
                                           "/proc/thread-self/root", "/.old_root", "/oldroot", "/mnt", "/host"};
    char full[4096];
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        snprintf(full, sizeof full, "%s%s", prefixes[i], path);
        read_marked(prefixes[i][0] ? prefixes[i] : "directly", AT_FDCWD, full, marker);
    }
    through_dotdot(path, marker);
    through_symlinks(path, marker);
    for (int fd = 0; fd < 256; fd++) {
        struct stat st;
        if (fstat(fd, &st) || !S_ISDIR(st.st_mode)) continue;
        snprintf(full, sizeof full, "../../../../../../../../../../../..%s", path);
        char route[32];
        snprintf(route, sizeof route, "directory fd %d", fd);
        read_marked(route, fd, full, marker);
    }
}

static void hardlink_one(const char *target, bool given) {
    const char *name = scratch("hard");
    if (!name) return;
    int result = link(target, name);
    if (result == 0) unlink(name);
    if (result && errno == ENOENT && !given) return; /* this image has no such file */
    char what[300];
    snprintf(what, sizeof what, "link %.200s", target);
    /* ENOENT on a path the suite made on the host is the wall: it is not in this root */
    judge(what, result, ERRNOS(EXDEV, EPERM, EACCES, EROFS, ENOENT, ENOSYS), NONE);

    int fd = open(target, O_PATH | O_CLOEXEC);
    if (fd < 0) return;
    char by_fd[64];
    snprintf(by_fd, sizeof by_fd, "/proc/self/fd/%d", fd);
    result = linkat(AT_FDCWD, by_fd, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
    if (result == 0) unlink(name);
    close(fd);
    snprintf(what, sizeof what, "linkat /proc/self/fd of %.200s", target);
    judge(what, result, ERRNOS(EXDEV, EPERM, EACCES, EROFS, ENOENT, ENOSYS), NONE);
}

void hardlink_host(int argc, char **argv) {
    if (argc > 0) hardlink_one(argv[0], true);
    hardlink_one("/usr/bin/env", false);
    hardlink_one("/etc/passwd", false);
    hardlink_one("/proc/1/exe", false);
}

void cwd_sane(int argc, char **argv) {
    char cwd[4096] = "", link[4096] = "";
    if (syscall(SYS_getcwd, cwd, sizeof cwd) < 0) {
        unsure("getcwd: %s", strerror(errno));
        return;
    }
    if (cwd[0] != '/') {
        escaped("the work directory is %s, outside the root", cwd);
    } else {
        struct stat here, there;
        if (stat(".", &here) || stat(cwd, &there)) {
            unsure("stat of the work directory: %s", strerror(errno));
        } else if (here.st_dev != there.st_dev || here.st_ino != there.st_ino) {
            escaped("getcwd says %s, but that is another directory", cwd);
        } else {
            held("the work directory is %s", cwd);
        }
    }
    if (readlink("/proc/self/cwd", link, sizeof link - 1) > 0) {
        if (strcmp(link, cwd)) escaped("/proc/self/cwd is %s", link);
        if (!strncmp(link, "/proc/", 6)) escaped("the work directory is a proc link: %s", link);
    }
    char up[256] = "";
    for (int i = 0; i < 64; i++) strcat(up, "../");
    struct stat top, root;
    if (stat(up, &top) || stat("/", &root))
        unsure("stat of the top: %s", strerror(errno));
    else if (top.st_dev != root.st_dev || top.st_ino != root.st_ino)
        escaped("64 x ../ leads past the root");
    else
        held("64 x ../ leads to the root");
    if (argc > 0 && path_and_marker(argc, argv)) through_dotdot(argv[0], argv[1]);
}

/* Standard input, output and error may be pipes, files, /dev/null, terminals and unnamed socket pairs. */
static void judge_stdio(int fd, mode_t mode) {
    if (S_ISDIR(mode)) {
        escaped("fd %d is a directory", fd);
    } else if (S_ISBLK(mode)) {
        escaped("fd %d is a disk", fd);
    } else if (S_ISSOCK(mode)) {
        struct sockaddr_un peer;
        socklen_t size = sizeof peer;
        memset(&peer, 0, sizeof peer);
        int known = getpeername(fd, (struct sockaddr *)&peer, &size);
        if (known == 0 && peer.sun_family == AF_UNIX && size <= offsetof(struct sockaddr_un, sun_path))
            say("fd %d is an unnamed socket pair", fd);
        else
            escaped("fd %d is a socket of family %d with a named or unknown peer", fd, peer.sun_family);
    }
}

void inherited_fds(int argc, char **argv) {
    (void)argc, (void)argv;
    int found = 0;
    for (int fd = 0; fd < 1 << 16; fd++) {
        struct stat st;
        if (fstat(fd, &st)) continue;
        char path[64], target[512] = "?";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n > 0) target[n] = 0;
        say("fd %d: %s, mode %o", fd, target, st.st_mode);
        if (fd > 2) {
            escaped("fd %d was inherited: %s", fd, target);
            found++;
        } else {
            judge_stdio(fd, st.st_mode);
        }
    }
    if (!found) held("only 0-2 are open");
}

/* A running program answers ETXTBSY only after the permission check; it stays writable once it ends, unless sealed. */
static void overwrite_one(pid_t pid) {
    char path[64], what[96];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    snprintf(what, sizeof what, "open %s for writing", path);
    int fd = open(path, O_WRONLY | O_CLOEXEC), error = errno;
    if (fd >= 0 || error == ETXTBSY) {
        int seen = fd >= 0 ? fd : open(path, O_RDONLY | O_CLOEXEC);
        int seals = seen >= 0 ? fcntl(seen, F_GET_SEALS) : -1;
        if (seen >= 0) close(seen);
        if (seals >= 0 && seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) {
            held("%s: it is a memfd sealed against writing", what);
            return;
        }
    }
    if (error == ENOENT && access("/proc/self", F_OK)) {
        unsure("%s: there is no /proc", what);
        return;
    }
    errno = error;
    judge(what, fd, ERRNOS(EACCES, EPERM, EROFS, ENOENT), ERRNOS(ETXTBSY));
}

void overwrite_exe(int argc, char **argv) {
    overwrite_one(1);
    if (getppid() > 1) overwrite_one(getppid());
    for (int i = 0; i < argc; i++) overwrite_one(number(argc, argv, i, 1, 1 << 22));
}

/* Where a bare host lets us, mounts are tried on a private copy; where it does not, what was changed is put back. */
static void own_mounts(void) {
    if (unshare(CLONE_NEWNS) == 0) mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

static void remount_one(const char *point, const char *type, const char *line) {
    (void)type, (void)line;
    struct statvfs st;
    if (statvfs(point, &st) || !(st.f_flag & ST_RDONLY)) return;
    unsigned long keep = (st.f_flag & ST_NOSUID ? MS_NOSUID : 0) | (st.f_flag & ST_NODEV ? MS_NODEV : 0) |
                         (st.f_flag & ST_NOEXEC ? MS_NOEXEC : 0);
    char what[300];
    snprintf(what, sizeof what, "remount %.200s writable", point);
    if (judge(what, mount(NULL, point, NULL, MS_REMOUNT | MS_BIND | keep, NULL), DENIED, NONE))
        mount(NULL, point, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | keep, NULL);
    struct mount_attr attr = {.attr_clr = MOUNT_ATTR_RDONLY};
    snprintf(what, sizeof what, "mount_setattr %.200s writable", point);
    struct mount_attr back = {.attr_set = MOUNT_ATTR_RDONLY};
    if (judge(what, syscall(SYS_mount_setattr, AT_FDCWD, point, 0, &attr, sizeof attr), DENIED, NONE))
        syscall(SYS_mount_setattr, AT_FDCWD, point, 0, &back, sizeof back);
}

static void remount_each(void *unused) {
    (void)unused;
    own_mounts();
    if (!each_mount(remount_one)) say("mountinfo: %s", strerror(errno));
    const char *own = scratch("bind");
    if (!own || mkdir(own, 0700)) return;
    int bound = mount(own, own, NULL, MS_BIND, NULL);
    judge("bind mount of its own directory", bound, DENIED, NONE);
    if (bound == 0) {
        mount(NULL, own, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
        judge("remount of its own read-only bind", mount(NULL, own, NULL, MS_REMOUNT | MS_BIND, NULL), DENIED, NONE);
        umount2(own, MNT_DETACH);
    }
    /* the root by its own name: EINVAL would mean that it is no mount point, after the permission check */
    struct mount_attr nothing = {0};
    judge("mount_setattr of the root, changing nothing",
          syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &nothing, sizeof nothing), DENIED, ERRNOS(EINVAL));
}

void remount_rw(int argc, char **argv) {
    (void)argc, (void)argv;
    if (scratch("")) in_child(remount_each, NULL); /* made here, so that the parent removes it */
}

/* MNT_EXPIRE passes the permission check and then only marks the mount; the open afterwards takes the mark away. */
static void umount_one(const char *point, const char *type, const char *line) {
    (void)type, (void)line;
    if (strncmp(point, "/proc", 5) && strncmp(point, "/sys", 4) && strncmp(point, "/dev", 4)) return;
    char what[300];
    snprintf(what, sizeof what, "umount %.200s", point);
    struct stat st;
    (void)!stat(point, &st);
    int result = umount2(point, MNT_EXPIRE), error = errno;
    int fd = open(point, O_PATH | O_CLOEXEC);
    if (fd >= 0) close(fd);
    errno = error;
    /* EINVAL is the answer for a locked mount of a parent namespace */
    judge(what, result, ERRNOS(EPERM, EACCES, ENOSYS, EINVAL), ERRNOS(EAGAIN, EBUSY));
    if (result && error == EPERM) judge(what, umount2(point, MNT_DETACH), DENIED, NONE);
}

static void umount_each(void *unused) {
    (void)unused;
    own_mounts();
    if (!each_mount(umount_one)) say("mountinfo: %s", strerror(errno));
    /* a path that is no mount point: the permission check comes first */
    judge("umount of /usr", umount2("/usr", MNT_EXPIRE), DENIED, ERRNOS(EINVAL, EAGAIN, EBUSY));
}

void umount_mask(int argc, char **argv) {
    (void)argc, (void)argv;
    in_child(umount_each, NULL);
}

/* Runs a setuid program whose output is a full pipe, so that it blocks while we look at its uids. */
static void gain_through(const char *program) {
    int full[2];
    if (pipe2(full, O_CLOEXEC | O_NONBLOCK)) return;
    char block[4096];
    memset(block, 0, sizeof block);
    while (write(full[1], block, sizeof block) > 0) continue;
    fcntl(full[1], F_SETFL, 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(full[1], 1), dup2(full[1], 2);
        alarm(5);
        execl(program, program, "--help", (char *)NULL);
        _exit(127);
    }
    bool gained = false;
    for (int i = 0; pid > 0 && i < 20 && !gained; i++) {
        sleep_ms(10);
        char path[64], status[4096];
        snprintf(path, sizeof path, "/proc/%d/status", pid);
        unsigned real, effective;
        if (slurp(AT_FDCWD, path, status, sizeof status) <= 0) break;
        char *uids = strstr(status, "\nUid:");
        gained = uids && sscanf(uids, "\nUid: %u %u", &real, &effective) == 2 && effective == 0;
    }
    close(full[0]), close(full[1]);
    if (pid > 0) kill(pid, SIGKILL), waitpid(pid, NULL, 0);
    if (gained)
        escaped("%s runs as uid 0", program);
    else
        held("%s gains nothing", program);
}

static void search_setuid(void *unused) {
    (void)unused;
    static const char *const dirs[] = {"/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/lib/openssh", "/usr/lib/dbus-1.0"};
    if (getuid() == 0 && (setgid(65534) || setuid(65534))) unsure("could not become uid 65534 to test the gain");
    for (size_t i = 0; i < COUNT(dirs); i++) {
        DIR *dir = opendir(dirs[i]);
        for (struct dirent *e; dir && (e = readdir(dir));) {
            struct stat st;
            if (fstatat(dirfd(dir), e->d_name, &st, 0) || !S_ISREG(st.st_mode) || !(st.st_mode & S_ISUID)) continue;
            char path[512];
            snprintf(path, sizeof path, "%s/%s", dirs[i], e->d_name);
            if (st.st_uid == 0 && access(path, X_OK) == 0) gain_through(path);
        }
        if (dir) closedir(dir);
    }
}

static void run_copy(void *copy) {
    if (getuid() == 0 && (setgid(65534) || setuid(65534))) _exit(99);
    execl(copy, "probe", "--euid", (char *)NULL);
    _exit(98);
}

void setuid_binary(int argc, char **argv) {
    (void)argc, (void)argv;
    in_child(search_setuid, NULL);
    char copy[128];
    const char *name = scratch("setuid-copy");
    if (!name) return;
    strcpy(copy, name);
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(copy, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0700);
    if (from < 0 || to < 0) {
        unsure("no copy of itself: %s", strerror(errno));
        return;
    }
    char block[65536];
    for (ssize_t n; (n = read(from, block, sizeof block)) > 0;)
        if (write(to, block, n) != n) unsure("copy: %s", strerror(errno));
    close(from);
    if (fchown(to, 0, 0)) {
        close(to);
        judge("chown of a copy to uid 0", -1, ERRNOS(EPERM, EACCES, EINVAL, ENOSYS), NONE); /* EINVAL: uid 0 is not mapped */
        return;
    }
    int set = fchmod(to, 04755);
    close(to);
    char open_up[128];
    snprintf(open_up, sizeof open_up, "%.*s", (int)(strrchr(copy, '/') - copy), copy);
    chmod(open_up, 0755);
    int status = set ? -1 : in_child(run_copy, copy);
    if (set)
        judge("chmod u+s of a copy", -1, DENIED, NONE);
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 42)
        escaped("a setuid copy of itself runs as uid 0");
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 43)
        held("a setuid copy of itself gains nothing");
    else
        unsure("the setuid copy did not run (status %x)", status);
}

void mknod_disk(int argc, char **argv) {
    (void)argc, (void)argv;
    static const struct { const char *name; mode_t type; unsigned major, minor; } nodes[] = {
        {"vda", S_IFBLK, 254, 0}, {"sda", S_IFBLK, 8, 0}, {"loop0", S_IFBLK, 7, 0}, {"mem", S_IFCHR, 1, 1}, {"kmsg", S_IFCHR, 1, 11}};
    const char *const dirs[] = {NULL, "/tmp", "/dev", "/dev/shm"};
    for (size_t d = 0; d < COUNT(dirs); d++) {
        for (size_t i = 0; i < COUNT(nodes); i++) {
            char path[200], what[300];
            const char *own = dirs[d] ? "" : scratch(nodes[i].name);
            if (!own) return;
            if (dirs[d])
                snprintf(path, sizeof path, "%s/.probe-%d-%s", dirs[d], getpid(), nodes[i].name);
            else
                snprintf(path, sizeof path, "%s", own);
            if (dirs[d] && access(dirs[d], F_OK)) continue;
            int made = mknod(path, nodes[i].type | 0600, makedev(nodes[i].major, nodes[i].minor));
            snprintf(what, sizeof what, "mknod %s in %s", nodes[i].name, dirs[d] ? dirs[d] : "the work directory");
            judge(what, made, ERRNOS(EPERM, EACCES, ENOSYS, EROFS), NONE);
            if (made) continue;
            int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
            say("opening it: %s", fd >= 0 ? "works" : strerror(errno));
            if (fd >= 0) close(fd);
            unlink(path);
        }
    }
}

void open_by_handle(int argc, char **argv) {
    (void)argc, (void)argv;
    int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* any file of the mount will do */
    if (root < 0) {
        unsure("neither / nor the work directory can be opened: %s", strerror(errno));
        return;
    }
    union { struct file_handle handle; char room[sizeof(struct file_handle) + MAX_HANDLE_SZ]; } real, guess;
    memset(&real, 0, sizeof real), memset(&guess, 0, sizeof guess);
    real.handle.handle_bytes = MAX_HANDLE_SZ;
    int mount_id;
    if (name_to_handle_at(AT_FDCWD, "/", &real.handle, &mount_id, 0) == 0)
        judge("open_by_handle_at of the root", open_by_handle_at(root, &real.handle, O_RDONLY | O_CLOEXEC), DENIED, ERRNOS(ESTALE));
    else
        say("name_to_handle_at: %s", strerror(errno));
    guess.handle.handle_bytes = 8, guess.handle.handle_type = 1;
    guess.handle.f_handle[0] = 2; /* inode 2, generation 0: the root of ext4 */
    judge("open_by_handle_at of inode 2", open_by_handle_at(root, &guess.handle, O_RDONLY | O_CLOEXEC), DENIED, ERRNOS(ESTALE, EOPNOTSUPP, EINVAL));
    close(root);
}

void out_specials(int argc, char **argv) {
    const char *dir = need(argc, argv, 0, "DIR, the output directory");
    if (!dir || chdir(dir)) {
        if (dir) unsure("chdir %s: %s", dir, strerror(errno));
        return;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), f = open("setuid", O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
#define MADE(what, call) say("%-28s %s", what, (call) == 0 ? "made" : strerrorname_np(errno))
    MADE("fifo", mkfifo("fifo", 0666));
    MADE("socket", bind(s, (struct sockaddr *)&address, sizeof address));
    MADE("whiteout by mknod", mknod("whiteout", S_IFCHR, 0));
    MADE("setuid file", fchmod(f, 06755));
    MADE("symlink to /etc/passwd", symlink("/etc/passwd", "link-absolute"));
    MADE("symlink upwards", symlink("../../../../../../etc/passwd", "link-upwards"));
    MADE("symlink to a directory", symlink("/", "link-root"));
    MADE("symlink to itself", symlink("link-loop", "link-loop"));
    MADE("hardlink", link("setuid", "hardlink"));
    MADE("name with a newline", symlink("x", "new\nline"));
    MADE("name with an escape", mkdir("\033[2J\033[31mred", 0755));
    MADE("name that is not UTF-8", mkdir("\xff\xfe", 0755));
    MADE("unreadable directory", mkdir("unreadable", 0));
    MADE("plain file", close(open("plain", O_CREAT | O_WRONLY | O_CLOEXEC, 0644)));
    MADE("whiteout by rename", syscall(SYS_renameat2, AT_FDCWD, "plain", AT_FDCWD, "plain-moved", 4 /* RENAME_WHITEOUT */));
    outside("all but plain files and directories skipped and reported, no setuid bit, no link followed");
}

void write_root(int argc, char **argv) {
    (void)argc, (void)argv;
    static const char *const dirs[] = {"/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/bin", "/lib", "/lib64", "/sbin", "/var", "/var/tmp", "/var/lib",
                                       "/root", "/home", "/opt", "/run", "/srv", "/boot", "/mnt", "/dev", "/dev/pts", "/proc", "/proc/sys", "/sys"};
    static const char *const files[] = {"/usr/bin/env", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/ld.so.cache", "/etc/ld.so.preload"};
    struct stat tmp = {0}, dir;
    (void)!stat("/tmp", &tmp);
    for (size_t i = 0; i < COUNT(dirs); i++) {
        char path[128], what[160];
        if (stat(dirs[i], &dir)) continue;
        if (dir.st_dev == tmp.st_dev && dir.st_ino == tmp.st_ino) continue; /* another name of what is ours to write */
        snprintf(path, sizeof path, "%s/.probe-%d", dirs[i], getpid());
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600), error = errno;
        if (fd >= 0) close(fd), unlink(path);
        snprintf(what, sizeof what, "create a file in %s", dirs[i]);
        errno = error;
        /* procfs and sysfs refuse new files with ENOENT whoever asks */
        judge(what, fd, ERRNOS(EROFS, EACCES, EPERM, ENOENT), NONE);
    }
    for (size_t i = 0; i < COUNT(files); i++)
        if (access(files[i], F_OK) == 0) judge_write_open(files[i], "/");
}

void device_open(int argc, char **argv) {
    (void)argc, (void)argv;
    static const char *const devices[] = {"mem", "kmem", "port", "kmsg", "vda", "vda1", "sda", "sda1", "nvme0n1", "xvda", "dm-0", "loop0", "loop-control",
                                          "kvm", "vhost-net", "vhost-vsock", "vsock", "net/tun", "fuse", "mapper/control", "cuse", "uinput", "console", "tty0",
                                          "tty1", "ttyS0", "hvc0", "vport0p1", "hwrng", "rtc0", "nvram", "btrfs-control", "autofs", "userfaultfd", "dri/card0",
                                          "sg0", "sr0", "mtd0", "cpu/0/msr", "disk/by-id", "bsg", "vfio/vfio", "udmabuf", "dma_heap/system", "binder"};
    if (access("/dev/null", F_OK)) {
        unsure("there is no /dev to look at");
        return;
    }
    for (size_t i = 0; i < COUNT(devices); i++) {
        char path[128];
        snprintf(path, sizeof path, "/dev/%s", devices[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        int error = errno;
        if (fd >= 0) close(fd);
        errno = error;
        judge(path, fd, ERRNOS(ENOENT, EACCES, EPERM, ENOTDIR, ENXIO, ENODEV), ERRNOS(EBUSY, EIO));
    }
}

void tmp_leftovers(int argc, char **argv) {
    static const char *const dirs[] = {".", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run"};
    int looked = 0;
    for (size_t i = 0; i < COUNT(dirs); i++) {
        DIR *dir = opendir(dirs[i]);
        if (!dir) continue;
        looked++;
        for (struct dirent *e; (e = readdir(dir));) {
            bool expected = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
            for (int a = 0; a < argc; a++) expected |= !strcmp(e->d_name, argv[a]);
            if (!expected) escaped("%s holds %s", dirs[i], e->d_name);
        }
        closedir(dir);
    }
    if (looked) held("%d directories were read, nothing unexpected", looked);
}

void policy_write(int argc, char **argv) {
    const char *path = need(argc, argv, 0, "PATH of a policy or state file of the host");
    if (path) judge_write_open(path, "/");
}
