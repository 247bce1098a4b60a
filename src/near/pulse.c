#include "src/near/pulse.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/thread.h"
#include "src/base/time.h"
#include "src/near/keep.h"
#include "src/near/wire.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BEAT_MS = 200, TRY_SECONDS = 30, GONE_SECONDS = 60, REACH_SECONDS = 5, FIELD = 256 };

struct address {
    char host[FIELD], port[16], token[32];
};

static bool parse(const char *text, struct address *a)
{
    return sscanf(text, "%255[^:]:%15[0-9]:%31[0-9a-f]", a->host, a->port, a->token) == 3;
}

static int reach(const struct address *a)
{
    const struct addrinfo want = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    const struct timeval most = {.tv_sec = REACH_SECONDS};
    struct addrinfo *found;
    int fd;

    if (getaddrinfo(a->host, a->port, &want, &found) != 0)
        return -1;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most); /* of connect(), too */
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static int reach_soon(const struct address *a)
{
    int64_t begin = sh_now_ns();
    int fd;

    while ((fd = reach(a)) < 0 && sh_seconds_since(begin) < TRY_SECONDS)
        poll(NULL, 0, BEAT_MS);
    return fd;
}

/* What came meanwhile; false: the other side has ended. *last: the last byte. */
static bool hear(int fd, char *last, bool *any)
{
    char bytes[FIELD];
    ssize_t n;

    *any = false;
    while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
        *last = bytes[n - 1];
        *any = true;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* A full buffer means that nobody reads: the other side will see to it. */
static void say(int fd, const char *text)
{
    if (send(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return;
}

/* ---- the keeper's side ---- */

/* A watch that has hung up, but speaks to whoever calls, has lost this node for a while: the link of the node was cut, or
 * the node stood still. That it can be called is not enough: the kernel answers for a process that stands still. */
static bool is_left_out(const struct address *a)
{
    struct pollfd p = {.fd = reach(a), .events = POLLIN};
    char byte;
    bool speaks;

    if (p.fd < 0)
        return false;
    speaks = poll(&p, 1, REACH_SECONDS * 1000) > 0 && recv(p.fd, &byte, 1, 0) == 1;
    close(p.fd);
    return speaks;
}

/* Before the next sign of life, so that whoever asks the watch whether all live has heard it. */
static void accuse(int fd, bool *said)
{
    char text[FIELD];

    if (*said || sh_keep_accused() < 0)
        return;
    snprintf(text, sizeof text, "U%lld\n", (long long)sh_keep_accused());
    say(fd, text);
    *said = true;
}

static void *beat(void *arg)
{
    struct address *a = arg;
    char text[2 * FIELD], last = 0;
    int64_t heard;
    bool any, there = true, accused = false;
    int fd = reach_soon(a);

    if (fd < 0) {
        sh_log_warn("the watch at %s:%s cannot be reached from %s: only Slurm will notice if this node is lost",
                    a->host, a->port, sh_wire_node());
        free(a);
        return NULL;
    }
    snprintf(text, sizeof text, "%s %s\n", a->token, sh_wire_node());
    say(fd, text);
    heard = sh_now_ns();
    while (last != 'Q' && sh_seconds_since(heard) < GONE_SECONDS) {
        poll(NULL, 0, BEAT_MS);
        accuse(fd, &accused);
        say(fd, ".");
        if (there && !hear(fd, &last, &any)) {
            there = false;
            if (last != 'Q' && is_left_out(a)) {
                sh_log_warn("%s was silent for too long: the job goes on without it, and its ranks and its keeper end",
                            sh_wire_node());
                sh_keep_leave(NULL);
                free(a);
                return NULL;
            }
        }
        if (there && any)
            heard = sh_now_ns();
    }
    if (last == 'Q')
        _exit(SH_OK);
    snprintf(text, sizeof text, "%s has heard nothing of the watch on %s for %d s", sh_wire_node(), a->host,
             GONE_SECONDS);
    sh_keep_leave(text);
    free(a);
    return NULL;
}

sh_rc sh_pulse_start(const char *address)
{
    struct address *a = sh_calloc(1, sizeof *a);

    if (!parse(address, a)) {
        free(a);
        return sh_fail(SH_E_USAGE, SH_PULSE_VARIABLE " is not HOST:PORT:TOKEN, which `sherd keep --watch` prints");
    }
    return sh_thread_start(NULL, "tell the watch that the node lives", beat, a, 0);
}
