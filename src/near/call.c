/* The keeper as a rank sees it. */
#include "src/near/keep.h"

#include "src/base/time.h"
#include "src/near/pulse.h"
#include "src/near/wire.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Whoever came first has an abstract name. */
static bool is_ours(int socket)
{
    struct ucred who;
    socklen_t length = sizeof who;

    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == getuid();
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

sh_rc sh_keep_connect(const char *folder, double seconds, int *fd)
{
    struct sockaddr_un name;
    socklen_t length;
    int64_t begin = sh_now_ns();
    int s;

    SH_TRY(sh_wire_name(folder, &name, &length));
    s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    while (s >= 0 && connect(s, (struct sockaddr *)&name, length) != 0) {
        if (sh_seconds_since(begin) > seconds) {
            close(s);
            return sh_fail(SH_E_COMM,
                           "no keeper for %s on this node; start one before the run, in the same folder: "
                           "`sherd keep CONFIG &`, on each node",
                           folder);
        }
        nap();
    }
    if (s < 0)
        return sh_fail(SH_E_COMM, "no socket for the keeper");
    if (!is_ours(s)) {
        close(s);
        return sh_fail(SH_E_COMM, "another user's process has the name of the keeper for %s on this node", folder);
    }
    *fd = s;
    return SH_OK;
}

/* Wait until something can be read. The keeper greets a rank once those of the start before are gone. */
static bool is_answered(int socket, double seconds)
{
    struct pollfd p = {.fd = socket, .events = POLLIN};
    int64_t begin = sh_now_ns();

    while (poll(&p, 1, 100) <= 0)
        if (sh_seconds_since(begin) > seconds)
            return false;
    return true;
}

/* Ask, and wait for the answer for at most that long; 0: SH_KEEP_ANSWER_SECONDS. */
static sh_rc ask_for(int socket, double seconds, struct sh_wire *m, int *fd)
{
    if (seconds <= 0 || seconds > SH_KEEP_ANSWER_SECONDS)
        seconds = SH_KEEP_ANSWER_SECONDS;
    if (!sh_wire_send(socket, m, -1))
        return sh_fail(SH_E_COMM, "the keeper of near checkpoints has ended");
    if (!is_answered(socket, seconds))
        return sh_fail(SH_E_COMM,
                       "the keeper of near checkpoints has not answered for %.0f s; is it stopped, or is a rank of "
                       "an earlier start still there?",
                       seconds);
    if (!sh_wire_receive(socket, m, fd))
        return sh_fail(SH_E_COMM, "the keeper of near checkpoints has ended");
    m->text[sizeof m->text - 1] = '\0';
    return m->rc == SH_OK ? SH_OK : sh_fail((sh_rc)m->rc, "%s", m->text);
}

static sh_rc ask(int socket, struct sh_wire *m, int *fd)
{
    return ask_for(socket, 0, m, fd);
}

sh_rc sh_keep_hello(int fd, double seconds, int rank, int world, uint64_t start, uint64_t *keeper)
{
    struct sh_wire m = {.kind = SH_WIRE_HELLO, .rank = rank, .world = world, .start = start};
    const char *watch = getenv(SH_PULSE_VARIABLE), *number = getenv("SHERD_START");

    snprintf(m.text, sizeof m.text, "%s", watch ? watch : "");
    m.slot = number ? atoi(number) : 0;
    SH_TRY(ask_for(fd, seconds, &m, NULL));
    *keeper = m.start;
    return SH_OK;
}

void sh_keep_bye(int fd)
{
    struct sh_wire m = {.kind = SH_WIRE_BYE};

    sh_wire_send(fd, &m, -1); /* if the keeper has ended, there is nobody to say it to */
}

bool sh_keep_hear(int fd, int *rank)
{
    struct sh_wire m;

    if (!sh_wire_receive(fd, &m, NULL))
        return false;
    *rank = m.rank;
    return m.kind == SH_WIRE_DEATH;
}

sh_rc sh_keep_list(int fd, int index, struct sh_keep_part *part, bool *more)
{
    struct sh_wire m = {.kind = SH_WIRE_LIST, .slot = index};

    SH_TRY(ask(fd, &m, &part->fd));
    *more = m.kind != SH_WIRE_END;
    part->rank = m.rank;
    part->world = m.world;
    part->slot = m.slot;
    part->layout = m.layout;
    part->bytes = m.bytes;
    return SH_OK;
}

sh_rc sh_keep_take(int fd, double seconds, struct sh_keep_part *part)
{
    struct sh_wire m = {.kind = SH_WIRE_TAKE,
                        .rank = part->rank,
                        .world = part->world,
                        .slot = part->slot,
                        .layout = part->layout,
                        .start = part->start,
                        .bytes = part->bytes};

    return ask_for(fd, seconds, &m, &part->fd);
}

sh_rc sh_keep_forget(int fd, const struct sh_keep_part *part)
{
    struct sh_wire m = {
        .kind = SH_WIRE_FORGET, .rank = part->rank, .world = part->world, .slot = part->slot, .layout = part->layout};

    return ask(fd, &m, NULL);
}

sh_rc sh_keep_accuse(int fd, double seconds, int64_t good)
{
    struct sh_wire m = {.kind = SH_WIRE_ACCUSE, .bytes = good};

    return ask_for(fd, seconds, &m, NULL);
}

sh_rc sh_keep_follow(int fd, const char *address)
{
    struct sh_wire m = {.kind = SH_WIRE_FOLLOW};

    snprintf(m.text, sizeof m.text, "%s", address);
    return ask(fd, &m, NULL);
}

sh_rc sh_keep_lose(int fd, bool node, int *rank)
{
    struct sh_wire m = {.kind = SH_WIRE_LOSE, .slot = node};

    SH_TRY(ask(fd, &m, NULL));
    *rank = m.rank;
    return SH_OK;
}

sh_rc sh_keep_drop(int fd, double seconds, uint64_t start)
{
    struct sh_wire m = {.kind = SH_WIRE_DROP, .start = start};

    return ask_for(fd, seconds, &m, NULL);
}
