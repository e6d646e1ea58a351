/* Attacks 28, 43-48, 50: sockets, the network, shared memory and queues. Addresses outside are from RFC 5737 and 3849. */
#include "probe.h"

#include <arpa/inet.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define OUTSIDE_4 "198.51.100.7"
#define OUTSIDE_6 "2001:db8::7"

/* What a missing route, a filter or Landlock answers. */
#define NO_WAY ERRNOS(ENETUNREACH, EHOSTUNREACH, ENETDOWN, EPERM, EACCES, EAFNOSUPPORT, EADDRNOTAVAIL, ENOSYS)
#define NO_FAMILY ERRNOS(EPERM, EACCES, EAFNOSUPPORT, ENOSYS, EPROTONOSUPPORT, ESOCKTNOSUPPORT)

static void family(const char *name, int domain, int type, int protocol) {
    char what[64];
    snprintf(what, sizeof what, "socket(%s, %d, %d)", name, type, protocol);
    int fd = socket(domain, type | SOCK_CLOEXEC, protocol);
    judge(what, fd, NO_FAMILY, NONE);
    if (fd >= 0) close(fd);
}

void af_alg(int argc, char **argv) {
    (void)argc, (void)argv;
    family("AF_ALG", AF_ALG, SOCK_SEQPACKET, 0);
}

void af_vsock(int argc, char **argv) {
    (void)argc, (void)argv;
    family("AF_VSOCK", AF_VSOCK, SOCK_STREAM, 0);
    family("AF_VSOCK", AF_VSOCK, SOCK_DGRAM, 0);
}

void af_packet(int argc, char **argv) {
    (void)argc, (void)argv;
    family("AF_PACKET", AF_PACKET, SOCK_RAW, htons(3));
    family("AF_PACKET", AF_PACKET, SOCK_DGRAM, htons(3));
}

void af_netlink(int argc, char **argv) {
    (void)argc, (void)argv;
    static const int protocols[] = {0 /* route */, 4 /* sock_diag */, 9 /* audit */, 12 /* netfilter */, 15 /* uevent */, 16 /* generic */};
    for (size_t i = 0; i < COUNT(protocols); i++) family("AF_NETLINK", AF_NETLINK, SOCK_RAW, protocols[i]);
}

void af_others(int argc, char **argv) {
    (void)argc, (void)argv;
    static const int known[] = {AF_UNSPEC, AF_UNIX, AF_INET, AF_INET6, AF_ALG, AF_VSOCK, AF_PACKET, AF_NETLINK};
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
    for (int domain = 0; domain < 64; domain++) {
        bool skip = false;
        for (size_t i = 0; i < COUNT(known); i++) skip |= domain == known[i];
        for (size_t t = 0; !skip && t < COUNT(types); t++) {
            char name[16];
            snprintf(name, sizeof name, "%d", domain);
            family(name, domain, types[t], 0);
        }
    }
}

static void connect_unix(const char *what, const struct sockaddr_un *address, socklen_t size, const int *walls, const int *passed) {
    static const struct { const char *name; int type; } types[] = {{"stream", SOCK_STREAM}, {"dgram", SOCK_DGRAM}, {"seqpacket", SOCK_SEQPACKET}};
    for (size_t i = 0; i < COUNT(types); i++) {
        int fd = socket(AF_UNIX, types[i].type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int result = fd < 0 ? -1 : connect(fd, (const struct sockaddr *)address, size), error = errno;
        if (fd >= 0) close(fd);
        char text[300];
        snprintf(text, sizeof text, "connect %s to %.200s", types[i].name, what);
        errno = error;
        /* EPROTOTYPE: it is there, of another type; EAGAIN: it is there, its queue is full */
        judge(text, result, walls, passed);
    }
}

static void connect_abstract(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length >= sizeof address.sun_path) {
        unsure("NAME is too long");
        return;
    }
    memcpy(address.sun_path + 1, name, length);
    connect_unix(name, &address, offsetof(struct sockaddr_un, sun_path) + 1 + length, ERRNOS(ECONNREFUSED, EPERM, EACCES, ENOSYS, EAFNOSUPPORT),
                 ERRNOS(EPROTOTYPE, EAGAIN));
}

void abstract_socket(int argc, char **argv) {
    const char *name = need(argc, argv, 0, "NAME of an abstract socket of the host, without @");
    if (name) connect_abstract(name);
}

void unix_socket(int argc, char **argv) {
    static const char *const usual[] = {"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
                                        "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/run/snapd.socket", "/dev/log",
                                        "/run/casemate.sock", "/run/casemate/casemate.sock", "/var/lib/casemate/casemate.sock"};
    for (size_t i = 0; i < argc + COUNT(usual); i++) {
        const char *path = i < (size_t)argc ? argv[i] : usual[i - argc];
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        if (strlen(path) >= sizeof address.sun_path) {
            unsure("%s is too long", path);
            continue;
        }
        strcpy(address.sun_path, path);
        connect_unix(path, &address, sizeof address, ERRNOS(ENOENT, EACCES, EPERM, ENOTDIR, ENOSYS, EAFNOSUPPORT), ERRNOS(EPROTOTYPE, EAGAIN));
    }
}

union address { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; };

static socklen_t make_address(union address *address, const char *ip, int port) {
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, ip, &address->v4.sin_addr) == 1) {
        address->v4.sin_family = AF_INET, address->v4.sin_port = htons(port);
        return sizeof address->v4;
    }
    if (inet_pton(AF_INET6, ip, &address->v6.sin6_addr) != 1) return 0;
    address->v6.sin6_family = AF_INET6, address->v6.sin6_port = htons(port);
    return sizeof address->v6;
}

enum connected { CONNECTED, PENDING, FAILED };

/* With fast open the first bytes travel with the SYN, past rules that look at connect(2) only. */
static enum connected dial(const char *ip, int port, bool fast_open, int *fd) {
    union address address;
    socklen_t size = make_address(&address, ip, port);
    if (!size) {
        errno = EDESTADDRREQ; /* not an address: judged as proving nothing */
        return *fd = -1, FAILED;
    }
    *fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return FAILED;
    long result = fast_open ? sendto(*fd, "\n", 1, MSG_FASTOPEN | MSG_NOSIGNAL, &address.any, size) : connect(*fd, &address.any, size);
    if (result >= 0) return CONNECTED;
    if (errno != EINPROGRESS) return FAILED;
    struct pollfd wait = {*fd, POLLOUT, 0};
    if (poll(&wait, 1, 400) == 0) return PENDING;
    int error = 0;
    socklen_t room = sizeof error;
    getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &room);
    errno = error;
    return error ? FAILED : CONNECTED;
}

/* A connection counts when MARKER comes back: in a cell with egress, the broker answers on every address. */
static void reach(const char *ip, int port, const char *marker) {
    for (int fast_open = 0; fast_open < 2; fast_open++) {
        char what[96];
        snprintf(what, sizeof what, "%s port %d%s", ip, port, fast_open ? " with fast open" : "");
        int fd;
        enum connected how = dial(ip, port, fast_open, &fd);
        if (how == FAILED) {
            /* EPIPE: a kernel that takes the flag for nothing has a socket that is not connected (gVisor). */
            judge(what, -1, ERRNOS(ECONNREFUSED, ECONNRESET, ENETUNREACH, EHOSTUNREACH, ENETDOWN, EPERM, EACCES, EAFNOSUPPORT, EADDRNOTAVAIL, ENOSYS, EPIPE), NONE);
        } else if (how == PENDING) {
            unsure("%s: no answer", what);
        } else if (!marker) {
            escaped("%s is reached", what);
        } else {
            char bytes[4096];
            ssize_t got = 0;
            struct pollfd wait = {fd, POLLIN, 0};
            if (poll(&wait, 1, 1000) == 1) got = recv(fd, bytes, sizeof bytes, 0);
            if (got > 0 && holds(bytes, got, marker))
                escaped("%s answers with the marker", what);
            else
                held("%s answers, but not with the marker", what);
        }
        if (fd >= 0) close(fd);
    }
}

static void reach_loopback(int port, const char *marker) {
    static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"};
    for (size_t i = 0; i < COUNT(addresses); i++) reach(addresses[i], port, marker);
}

void host_loopback(int argc, char **argv) {
    if (!need(argc, argv, 0, "PORT of a host listener") || !need(argc, argv, 1, "MARKER it greets with")) return;
    reach_loopback(number(argc, argv, 0, 0, 65535), argv[1]);
}

void neighbour_cell(int argc, char **argv) {
    if (!need(argc, argv, 0, "NAME of its abstract socket") || !need(argc, argv, 1, "PORT it listens on") || !need(argc, argv, 2, "MARKER it greets with")) return;
    connect_abstract(argv[0]);
    reach_loopback(number(argc, argv, 1, 0, 65535), argv[2]);
}

void tcp_out(int argc, char **argv) {
    if (argc > 0 && !need(argc, argv, 1, "PORT")) return;
    if (argc > 0) {
        reach(argv[0], number(argc, argv, 1, 443, 65535), NULL);
        return;
    }
    reach(OUTSIDE_4, 443, NULL);
    reach(OUTSIDE_6, 443, NULL);
}

static void send_datagram(const char *ip, int port) {
    union address address;
    socklen_t size = make_address(&address, ip, port);
    char what[96];
    snprintf(what, sizeof what, "datagram to %s port %d", ip, port);
    int fd = size ? socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    int yes = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes);
    long result = fd < 0 ? -1 : sendto(fd, "probe", 5, MSG_DONTWAIT, &address.any, size);
    int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    judge(what, result, NO_WAY, NONE);
}

void udp_out(int argc, char **argv) {
    if (argc > 0 && !need(argc, argv, 1, "PORT")) return;
    if (argc > 0) {
        send_datagram(argv[0], number(argc, argv, 1, 443, 65535));
        return;
    }
    send_datagram(OUTSIDE_4, 443); /* QUIC */
    send_datagram(OUTSIDE_4, 53);
    send_datagram(OUTSIDE_6, 443);
    send_datagram("255.255.255.255", 9);
    send_datagram("224.0.0.251", 5353);
}

static void ping(const char *ip, int type, int protocol) {
    union address address;
    socklen_t size = make_address(&address, ip, 0);
    char what[96];
    snprintf(what, sizeof what, "%s socket to %s", type == SOCK_RAW ? "raw" : "ping", ip);
    int fd = socket(address.any.sa_family, type | SOCK_CLOEXEC, protocol);
    struct icmphdr echo = {.type = protocol == IPPROTO_ICMPV6 ? ICMP6_ECHO_REQUEST : ICMP_ECHO, .checksum = 0xfff7};
    long result = fd < 0 ? -1 : sendto(fd, &echo, sizeof echo, MSG_DONTWAIT, &address.any, size);
    int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    judge(what, result, ERRNOS(ENETUNREACH, EHOSTUNREACH, ENETDOWN, EPERM, EACCES, EAFNOSUPPORT, EADDRNOTAVAIL, ENOSYS, EPROTONOSUPPORT), NONE);
}

void raw_icmp(int argc, char **argv) {
    (void)argc, (void)argv;
    ping(OUTSIDE_4, SOCK_RAW, IPPROTO_ICMP);
    ping(OUTSIDE_4, SOCK_DGRAM, IPPROTO_ICMP);
    ping(OUTSIDE_6, SOCK_RAW, IPPROTO_ICMPV6);
    ping(OUTSIDE_6, SOCK_DGRAM, IPPROTO_ICMPV6);
    family("AF_INET, raw", AF_INET, SOCK_RAW, IPPROTO_RAW);
}

/* Asks for casemate-probe.invalid; any answer but REFUSED came from a resolver. */
static void ask(const char *server) {
    static const unsigned char query[] = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x0e" "casemate-probe\x07" "invalid\x00\x00\x01\x00\x01";
    union address address;
    socklen_t size = make_address(&address, server, 53);
    if (!size) {
        unsure("%s is no address", server);
        return;
    }
    int fd = socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    long sent = fd < 0 || connect(fd, &address.any, size) ? -1 : send(fd, query, sizeof query - 1, 0);
    char what[96];
    snprintf(what, sizeof what, "DNS query to %s", server);
    if (sent < 0) {
        judge(what, -1, ERRNOS(ENETUNREACH, EHOSTUNREACH, ENETDOWN, EPERM, EACCES, EAFNOSUPPORT, EADDRNOTAVAIL, ENOSYS, ECONNREFUSED), NONE);
    } else {
        unsigned char answer[512];
        struct pollfd wait = {fd, POLLIN, 0};
        int ready = poll(&wait, 1, 1500);
        long got = ready == 1 ? recv(fd, answer, sizeof answer, 0) : -1;
        if (ready == 0)
            unsure("%s: sent, no answer", what);
        else if (got < 0)
            judge(what, -1, ERRNOS(ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EPERM, EACCES), NONE);
        else if (got >= 4 && (answer[3] & 15) == 5)
            held("%s: refused by the resolver", what);
        else
            escaped("%s: answered", what);
    }
    if (fd >= 0) close(fd);
}

void dns_out(int argc, char **argv) {
    if (argc > 0) {
        ask(argv[0]);
        return;
    }
    FILE *file = fopen("/etc/resolv.conf", "re");
    char line[256], server[128];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "nameserver %127s", server) == 1) ask(server);
    if (file) fclose(file);
    send_datagram(OUTSIDE_4, 53);
    ask("127.0.0.1");
}

void metadata(int argc, char **argv) {
    (void)argc, (void)argv;
    reach("169.254.169.254", 80, NULL);
    reach("fd00:ec2::254", 80, NULL);
}

static void look_for_routes(const char *path, bool v6) {
    FILE *file = fopen(path, "re");
    char line[512], device[64];
    while (file && fgets(line, sizeof line, file)) {
        if (v6 ? sscanf(line, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %63s", device) != 1 : sscanf(line, "%63s", device) != 1) continue;
        if (strcmp(device, "lo") && strcmp(device, "Iface")) escaped("%s has a route through %s", path, device);
    }
    if (file) fclose(file);
}

void interfaces(int argc, char **argv) {
    (void)argc, (void)argv;
    int looked = 0;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool denied = fd < 0 && (errno == EPERM || errno == EACCES || errno == EAFNOSUPPORT);
    for (int index = 1; fd >= 0 && index < 256; index++) {
        struct ifreq request = {.ifr_ifindex = index};
        if (ioctl(fd, SIOCGIFNAME, &request)) {
            if (errno == ENODEV) looked++;
            continue;
        }
        looked++;
        bool lo = !strcmp(request.ifr_name, "lo");
        char name[IFNAMSIZ + 1] = "";
        memcpy(name, request.ifr_name, IFNAMSIZ);
        if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) say("interface %s, flags %x", name, (unsigned short)request.ifr_flags);
        /* tunl0, sit0 and their like come with every new namespace and stay down */
        if (!lo && request.ifr_flags & IFF_UP) escaped("there is an interface %s", name);
    }
    if (fd >= 0) close(fd);
    FILE *devices = fopen("/proc/net/dev", "re");
    char line[512], name[64];
    while (devices && fgets(line, sizeof line, devices))
        if (sscanf(line, " %63[^: ]:", name) == 1 && strchr(line, ':')) looked++, say("/proc/net/dev lists %s", name);
    denied = denied && !devices && (errno == EPERM || errno == EACCES);
    if (devices) fclose(devices);
    look_for_routes("/proc/net/route", false);
    look_for_routes("/proc/net/ipv6_route", true);
    if (looked)
        held("no interface is up but lo, no route leads elsewhere");
    else if (denied)
        held("there is no socket to ask with, and /proc/net is denied");
    else
        unsure("interfaces could not be listed");
}

void shm_sysv(int argc, char **argv) {
    if (!need(argc, argv, 0, "ID of a SysV segment of the host") || !need(argc, argv, 1, "MARKER at its start")) return;
    int id = number(argc, argv, 0, 0, 0x7fffffff);
    char *memory = shmat(id, NULL, SHM_RDONLY);
    if (memory != (void *)-1) {
        if (!strncmp(memory, argv[1], strlen(argv[1])))
            escaped("segment %d holds the marker", id);
        else
            held("segment %d is another one", id);
        shmdt(memory);
        return;
    }
    judge("shmat", -1, ERRNOS(EINVAL, EIDRM, EPERM, ENOSYS), NONE); /* EACCES: it is there, only its mode protects it */
}

void posix_mq(int argc, char **argv) {
    const char *name = need(argc, argv, 0, "NAME of a message queue of the host, with a leading /");
    if (!name) return;
    mqd_t queue = mq_open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    judge(name, queue, ERRNOS(ENOENT, EPERM, ENOSYS), NONE);
    if (queue >= 0) mq_close(queue);
    char path[256];
    snprintf(path, sizeof path, "/dev/mqueue%s", name);
    if (access(path, F_OK) == 0) escaped("%s is visible", path);
}
