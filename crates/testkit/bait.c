/* What an attack on the host would like to find: a process with a marker in its command line and a secret in its
 * environment, that listens on an abstract socket, a unix socket and a loopback port, and holds a SysV segment and a POSIX
 * queue. `bait MARKER DIRECTORY` prints `port ID` when all of it stands, and ends when its standard input does.
 *
 * `bait neighbour MARKER NAME` is the part of it that a cell can have: the listeners; it prints its port.
 * `bait listen IP PORT [IP PORT]...` only listens, and prints `ready`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char *marker;

static int check(int result, const char *what) {
    if (result >= 0) return result;
    fprintf(stderr, "bait: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *greet(void *argument) {
    int listener = *(int *)argument;
    for (;;) {
        int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0) continue;
        (void)!send(peer, marker, strlen(marker), MSG_NOSIGNAL);
        close(peer);
    }
    return NULL;
}

static void serve(int fd) {
    static int listeners[8];
    static int count;
    pthread_t thread;
    check(listen(fd, 64), "listen");
    listeners[count] = fd;
    check(-pthread_create(&thread, NULL, greet, &listeners[count++]), "thread");
}

static void listen_unix(const char *path, size_t length) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, length);
    int fd = check(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "unix socket");
    check(bind(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + length), "bind unix socket");
    serve(fd);
}

static void listen_abstract(const char *name) {
    char path[100] = "";
    size_t length = strlen(name);
    memcpy(path + 1, name, length < 99 ? length : 99);
    listen_unix(path, length + 1);
}

static int listen_tcp(const char *ip, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(ip)};
    socklen_t size = sizeof address;
    int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "tcp socket");
    check(bind(fd, (struct sockaddr *)&address, size), "bind tcp socket");
    check(getsockname(fd, (struct sockaddr *)&address, &size), "getsockname");
    serve(fd);
    return ntohs(address.sin_port);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "neighbour")) {
        marker = argv[2];
        listen_abstract(argv[3]);
        printf("%d\n", listen_tcp("127.0.0.1", 0));
        fflush(stdout);
        for (;;) pause();
    }
    if (argc >= 4 && !strcmp(argv[1], "listen")) {
        marker = "hello";
        for (int i = 2; i + 1 < argc; i += 2) listen_tcp(argv[i], atoi(argv[i + 1]));
        puts("ready");
        fflush(stdout);
        for (;;) pause();
    }
    if (argc != 3) return 2;
    marker = argv[1];
    char path[200], queue[100];
    snprintf(path, sizeof path, "%s/socket", argv[2]);
    snprintf(queue, sizeof queue, "/%s", marker);
    listen_abstract(marker);
    listen_unix(path, strlen(path));
    check(chmod(path, 0777), "chmod");
    int port = listen_tcp("127.0.0.1", 0);
    int segment = check(shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0666), "shmget");
    char *memory = shmat(segment, NULL, 0);
    check(memory == (void *)-1 ? -1 : 0, "shmat");
    strcpy(memory, marker);
    check(shmctl(segment, IPC_RMID, NULL), "shmctl"); /* gone with its last attachment */
    umask(0);
    int mq = check(mq_open(queue, O_CREAT | O_RDWR | O_CLOEXEC, 0666, NULL), "mq_open");
    printf("%d %d\n", port, segment);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    mq_unlink(queue);
    close(mq);
    return 0;
}
