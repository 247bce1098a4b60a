#include "src/near/pulse.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/thread.h"
#include "src/base/time.h"
#include "src/near/keep.h"
#include "src/near/next.h"
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

struct pulse {
    struct address at;
    int fd;
    int64_t heard;
    bool there;       /* the watch has not hung up */
    bool has_accused; /* to this watch */
    int64_t died;     /* the death that it has been told of */
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

static int reach_soon(const struct address *a, double seconds)
{
    int64_t begin = sh_now_ns();
    int fd;

    while ((fd = reach(a)) < 0 && sh_seconds_since(begin) < seconds)
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
static void accuse(struct pulse *p)
{
    char text[FIELD];

    if (p->has_accused || sh_keep_accused() < 0)
        return;
    snprintf(text, sizeof text, "U%lld\n", (long long)sh_keep_accused());
    say(p->fd, text);
    p->has_accused = true;
}

/* How long ago: clocks of nodes differ. Whoever asks the watch learns of the first death of all in that start, which caused the
 * others. */
static void tell_of_death(struct pulse *p)
{
    int number;
    int64_t died = sh_keep_died(&number);
    char text[FIELD];

    if (died == p->died)
        return;
    snprintf(text, sizeof text, "D%lld %d\n", (long long)((sh_now_ns() - died) / 1000), number);
    say(p->fd, text);
    p->died = died;
}

/* Whether the script goes on elsewhere, with a watch of its own. */
static bool take_next(struct pulse *p)
{
    char text[2 * FIELD];

    return sh_next_take(text) && parse(text, &p->at);
}

static bool join(struct pulse *p)
{
    int64_t begin = sh_now_ns();
    char text[2 * FIELD];

    while ((p->fd = reach(&p->at)) < 0 && sh_seconds_since(begin) < TRY_SECONDS) {
        poll(NULL, 0, BEAT_MS);
        if (take_next(p))
            begin = sh_now_ns();
    }
    p->there = p->fd >= 0;
    p->has_accused = false;
    p->heard = sh_now_ns();
    if (!p->there)
        return false;
    snprintf(text, sizeof text, "%s %s\n", p->at.token, sh_wire_node());
    say(p->fd, text);
    return true;
}

static void turn_to_next(struct pulse *p)
{
    if (!take_next(p))
        return;
    if (p->fd >= 0)
        close(p->fd);
    join(p);
}

/* false: the watch goes on without this node. */
static bool listen_to_watch(struct pulse *p)
{
    char last = 0;
    bool any, there = hear(p->fd, &last, &any);

    if (any)
        p->heard = sh_now_ns();
    if (last == 'Q')
        _exit(SH_OK);
    p->there = there;
    return there || !is_left_out(&p->at);
}

static void leave(const struct pulse *p, bool left_out)
{
    char text[2 * FIELD];

    if (left_out)
        sh_log_warn("%s was silent for too long: the job goes on without it, and its ranks and its keeper end",
                    sh_wire_node());
    snprintf(text, sizeof text, "%s has heard nothing of the watch on %s for %d s", sh_wire_node(), p->at.host,
             GONE_SECONDS);
    sh_keep_leave(left_out ? NULL : text);
}

static void *beat(void *arg)
{
    struct pulse *p = arg;
    bool listens = true;

    if (!join(p))
        sh_log_warn("the watch at %s:%s cannot be reached from %s: only Slurm will notice if this node is lost",
                    p->at.host, p->at.port, sh_wire_node());
    for (; !p->there; poll(NULL, 0, BEAT_MS)) /* another watch may follow: this one's node may be lost */
        turn_to_next(p);
    while (listens && sh_seconds_since(p->heard) < GONE_SECONDS) {
        poll(NULL, 0, BEAT_MS);
        turn_to_next(p);
        accuse(p);
        tell_of_death(p);
        say(p->fd, ".");
        if (p->there)
            listens = listen_to_watch(p);
    }
    leave(p, !listens);
    free(p);
    return NULL;
}

sh_rc sh_pulse_check(const char *address)
{
    struct address at;

    if (parse(address, &at))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "the address of a watch is HOST:PORT:TOKEN, which `sherd keep --watch` prints");
}

sh_rc sh_pulse_try(const char *address, double seconds)
{
    struct address at;
    int fd;

    SH_TRY(sh_pulse_check(address));
    parse(address, &at);
    fd = reach_soon(&at, seconds);
    if (fd < 0)
        return sh_fail(SH_E_COMM,
                       "%s cannot be reached from here by TCP, as a keeper reaches the watch: is its name known, "
                       "or is there a firewall?",
                       at.host);
    close(fd);
    return SH_OK;
}

sh_rc sh_pulse_start(const char *address)
{
    struct pulse *p;

    SH_TRY(sh_pulse_check(address));
    p = sh_calloc(1, sizeof *p);
    parse(address, &p->at);
    sh_next_begin();
    return sh_thread_start(NULL, "tell the watch that the node lives", beat, p, 0);
}
