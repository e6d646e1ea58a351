/* The hostile probe: one static program, one subcommand per attack.
 *
 * A probe tries an attack for real and notes what came of each attempt; main() turns the notes into one verdict:
 *   any attempt got through      -> escaped       exit 20
 *   any attempt proved nothing   -> inconclusive  exit 30
 *   every attempt met a wall     -> held          exit 10
 * No notes at all is inconclusive: a probe that could not try has shown nothing.
 */
#ifndef PROBE_H
#define PROBE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "table.h"

enum verdict { HELD = 10, ESCAPED = 20, INCONCLUSIVE = 30 };

/* Who can tell whether the wall stood: the probe itself, or only the suite that watches the cell. */
enum judge_is { SELF, OUTSIDE };

struct probe {
    const char *name, *attacks, *args;
    enum judge_is judge;
    const char *what;
    void (*run)(int argc, char **argv); /* argv[0] is the first argument after the name */
};

#define PROTOTYPE(name, attacks, args, judge, fn, what) void fn(int argc, char **argv);
PROBES(PROTOTYPE)
#undef PROTOTYPE

#define FORMAT __attribute__((format(printf, 1, 2)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A list of errno values, for judge(). */
#define ERRNOS(...) ((const int[]){__VA_ARGS__, 0})
#define NONE ((const int[]){0})
#define DENIED ERRNOS(EPERM, EACCES, ENOSYS)

/* Notes. say() carries no weight; the others count, also from a forked child. */
FORMAT void say(const char *format, ...);
FORMAT void held(const char *format, ...);
FORMAT void escaped(const char *format, ...);
FORMAT void unsure(const char *format, ...);
FORMAT void outside(const char *format, ...); /* done; the suite must judge */

/* Judges one call by its result and errno: success or an errno in `passed` (the permission check was behind us when it
 * failed) is an escape, an errno in `walls` is a wall, anything else proves nothing. Returns true on an escape. */
bool judge(const char *what, long result, const int *walls, const int *passed);

/* Opens for writing what must not be writable, and writes nothing. A path that is absent counts as a wall only when
 * its directory tree is really there (`tree`, such as /proc/self). */
void judge_write_open(const char *path, const char *tree);

/* Runs fn in a forked child and returns its wait status, or -1 (noted as unsure) when no child could be made. */
int in_child(void (*fn)(void *), void *argument);

/* A path inside a private directory that is made on first use (in the work directory, else /tmp) and removed at the
 * end. NULL, noted as unsure, when neither can be written. */
const char *scratch(const char *name);

/* Arguments: the text, or NULL noted as unsure; a number within bounds, or the default when it is not given. */
const char *need(int argc, char **argv, int index, const char *meaning);
long number(int argc, char **argv, int index, long otherwise, long most);

/* Reads up to size-1 bytes and ends them with NUL; -1 with errno set. */
ssize_t slurp(int dir, const char *path, char *buffer, size_t size);
bool holds(const char *bytes, size_t size, const char *marker);

/* Calls fn with each mount point and file system type of /proc/self/mountinfo; false when that cannot be read. */
bool each_mount(void (*fn)(const char *point, const char *type, const char *line));

/* Calls fn with each process id in /proc; false when that cannot be listed. */
bool each_pid(void (*fn)(pid_t pid, void *), void *argument);

void sleep_ms(long ms);
double seconds(void);

#endif
