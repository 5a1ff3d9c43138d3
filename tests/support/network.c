/* Notes every name look-up and every address that a process connects, sends or listens to.
 *
 * Loaded with LD_PRELOAD into a process and all that it starts; the notes go to $NETWORK_LOG.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *call, const char *address, int port) {
    const char *path = getenv("NETWORK_LOG");
    if (!path) return;
    char line[600];
    int length = snprintf(line, sizeof line, "%s %s %d %s\n", call, address, port,
                          program_invocation_short_name);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (write(file, line, length) < 0) { /* nothing to be done about it */ }
    close(file);
}

static void note_address(const char *call, const struct sockaddr *address) {
    char text[INET6_ADDRSTRLEN];
    if (!address) return;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)address;
        note(call, inet_ntop(AF_INET, &four->sin_addr, text, sizeof text), ntohs(four->sin_port));
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
        note(call, inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text), ntohs(six->sin6_port));
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    if (node && !(hints && hints->ai_flags & (AI_PASSIVE | AI_NUMERICHOST)))
        note("lookup", node, 0);
    return REAL(getaddrinfo)(node, service, hints, found);
}

struct hostent *gethostbyname(const char *name) {
    note("lookup", name, 0);
    return REAL(gethostbyname)(name);
}

int gethostbyname_r(const char *name, struct hostent *entry, char *buffer, size_t size,
                    struct hostent **found, int *error) {
    note("lookup", name, 0);
    return REAL(gethostbyname_r)(name, entry, buffer, size, found, error);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    note_address("connect", address);
    return REAL(connect)(socket, address, length);
}

ssize_t sendto(int socket, const void *data, size_t size, int flags,
               const struct sockaddr *address, socklen_t length) {
    note_address("send", address);
    return REAL(sendto)(socket, data, size, flags, address, length);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    note_address("send", message->msg_name);
    return REAL(sendmsg)(socket, message, flags);
}

int sendmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags) {
    for (unsigned int i = 0; i < count; i++) note_address("send", messages[i].msg_hdr.msg_name);
    return REAL(sendmmsg)(socket, messages, count, flags);
}

int listen(int socket, int backlog) {
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    if (!getsockname(socket, (struct sockaddr *)&own, &length))
        note_address("listen", (struct sockaddr *)&own);
    return REAL(listen)(socket, backlog);
}
