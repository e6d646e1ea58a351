/* Finds the subcommand, runs it, turns its notes into one verdict. Also the few helpers that every chapter uses. */
#include "probe.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define ROW(name, attacks, args, judge, fn, what) {name, attacks, args, judge, what, fn},
static const struct probe probes[] = {PROBES(ROW)};

/* Shared with forked children, so that what they note counts. */
struct notes {
    int held, escaped, unsure, outside;
    char why_held[200], why_escaped[200], why_unsure[200], why_outside[200];
};
static struct notes *notes;

static char scratch_dir[64];
static pid_t main_pid;

static int list(void) {
    for (size_t i = 0; i < COUNT(probes); i++)
        printf("%s\t%s\t%s\t%s\t%s\n", probes[i].name, probes[i].attacks, probes[i].what, probes[i].args,
               probes[i].judge == SELF ? "self" : "outside");
    return 0;
}

static void remove_scratch(void) {
    if (!scratch_dir[0] || getpid() != main_pid) return;
    DIR *dir = opendir(scratch_dir);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (unlinkat(dirfd(dir), e->d_name, 0)) unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
    }
    if (dir) closedir(dir);
    if (rmdir(scratch_dir)) printf("left behind: %s (%s)\n", scratch_dir, strerror(errno));
}

static int conclude(void) {
    remove_scratch();
    enum verdict verdict = INCONCLUSIVE;
    const char *word = "inconclusive", *why = "nothing was tried";
    if (notes->escaped) {
        verdict = ESCAPED, word = "escaped", why = notes->why_escaped;
    } else if (notes->unsure) {
        why = notes->why_unsure;
    } else if (notes->outside) {
        why = notes->why_outside;
    } else if (notes->held) {
        verdict = HELD, word = "held", why = notes->why_held;
    }
    if (verdict == HELD && notes->held > 1)
        printf("verdict: held — all %d attempts met a wall\n", notes->held);
    else
        printf("verdict: %s — %s\n", word, why);
    fflush(stdout);
    return verdict;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    main_pid = getpid();
    if (argc == 2 && !strcmp(argv[1], "list")) return list();
    if (argc == 2 && !strcmp(argv[1], "--euid")) return geteuid() == 0 ? 42 : 43; /* for setuid-binary */
    notes = mmap(NULL, sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (notes == MAP_FAILED) {
        printf("verdict: inconclusive — mmap: %s\n", strerror(errno));
        return INCONCLUSIVE;
    }
    for (size_t i = 0; argc > 1 && i < COUNT(probes); i++) {
        if (strcmp(argv[1], probes[i].name)) continue;
        probes[i].run(argc - 2, argv + 2);
        return conclude();
    }
    if (argc > 1)
        unsure("no probe named %s; `probe list` prints them", argv[1]);
    else
        unsure("usage: probe NAME [ARGS]; `probe list` prints the names");
    return conclude();
}

static void note(const char *word, int *count, char *why, const char *format, va_list arguments) {
    char text[200];
    vsnprintf(text, sizeof text, format, arguments);
    printf("%s: %s\n", word, text);
    fflush(stdout);
    if (!(*count)++) memcpy(why, text, sizeof text);
}

#define NOTE(name, word, field)                                      \
    void name(const char *format, ...) {                             \
        va_list arguments;                                           \
        va_start(arguments, format);                                 \
        note(word, &notes->field, notes->why_##field, format, arguments); \
        va_end(arguments);                                           \
    }
NOTE(held, "held", held)
NOTE(escaped, "escaped", escaped)
NOTE(unsure, "inconclusive", unsure)

void outside(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[160];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    notes->outside++;
    snprintf(notes->why_outside, sizeof notes->why_outside, "judged from outside: %s", text);
}

void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

static bool among(int value, const int *list) {
    for (; *list; list++)
        if (*list == value) return true;
    return false;
}

bool judge(const char *what, long result, const int *walls, const int *passed) {
    int error = errno;
    if (result >= 0) {
        escaped("%s succeeded", what);
        return true;
    }
    const char *name = strerrorname_np(error);
    if (among(error, passed)) {
        escaped("%s: %s, so the permission check let it through", what, name);
        return true;
    }
    if (among(error, walls))
        held("%s: %s", what, name);
    else
        unsure("%s: %s, which no wall gives", what, name ? name : "unknown errno");
    return false;
}

void judge_write_open(const char *path, const char *tree) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int error = errno;
    if (fd >= 0) close(fd);
    if (fd < 0 && error == ENOENT && access(tree, F_OK)) {
        unsure("%s: %s is not there either, so its absence shows nothing", path, tree);
        return;
    }
    errno = error;
    judge(path, fd, ERRNOS(EROFS, EACCES, EPERM, ENOENT), ERRNOS(ETXTBSY, EBUSY));
}

int in_child(void (*fn)(void *), void *argument) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        unsure("fork: %s", strerror(errno));
        return -1;
    }
    if (pid == 0) {
        fn(argument);
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

const char *scratch(const char *name) {
    static char path[128];
    if (!scratch_dir[0]) {
        strcpy(scratch_dir, ".probe-XXXXXX");
        if (!mkdtemp(scratch_dir)) {
            strcpy(scratch_dir, "/tmp/.probe-XXXXXX");
            if (!mkdtemp(scratch_dir)) {
                scratch_dir[0] = 0;
                unsure("neither the work directory nor /tmp can be written: %s", strerror(errno));
                return NULL;
            }
        }
    }
    snprintf(path, sizeof path, "%s/%s", scratch_dir, name);
    return path;
}

const char *need(int argc, char **argv, int index, const char *meaning) {
    if (index < argc && argv[index][0]) return argv[index];
    unsure("argument %d is missing: %s", index + 1, meaning);
    return NULL;
}

long number(int argc, char **argv, int index, long otherwise, long most) {
    if (index >= argc) return otherwise;
    char *end;
    long value = strtol(argv[index], &end, 10);
    if (*end || end == argv[index] || value < 0 || value > most) {
        unsure("argument %d must be a number up to %ld, not %s", index + 1, most, argv[index]);
        exit(conclude());
    }
    return value;
}

ssize_t slurp(int dir, const char *path, char *buffer, size_t size) {
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return -1;
    size_t got = 0;
    ssize_t n = 0;
    while (got < size - 1 && (n = read(fd, buffer + got, size - 1 - got)) > 0) got += n;
    int error = errno;
    close(fd);
    errno = error;
    buffer[got] = 0;
    return n < 0 && got == 0 ? -1 : (ssize_t)got;
}

bool holds(const char *bytes, size_t size, const char *marker) {
    return memmem(bytes, size, marker, strlen(marker)) != NULL;
}

bool each_mount(void (*fn)(const char *point, const char *type, const char *line)) {
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file) return false;
    char line[8192], point[4096], type[64];
    while (fgets(line, sizeof line, file)) {
        const char *dash = strstr(line, " - ");
        if (dash && sscanf(line, "%*s %*s %*s %*s %4095s", point) == 1 && sscanf(dash, " - %63s", type) == 1)
            fn(point, type, line);
    }
    fclose(file);
    return true;
}

bool each_pid(void (*fn)(pid_t pid, void *), void *argument) {
    DIR *dir = opendir("/proc");
    if (!dir) return false;
    for (struct dirent *e; (e = readdir(dir));)
        if (isdigit((unsigned char)e->d_name[0])) fn(atoi(e->d_name), argument);
    closedir(dir);
    return true;
}

void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
