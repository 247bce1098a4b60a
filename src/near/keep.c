#include "src/near/keep.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/near/next.h"
#include "src/near/pulse.h"
#include "src/near/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OTHERS_MS = 2000, LOOK_MS = 50, NAME_SECONDS = 2, NAME_MS = 10 };

struct client {
    int fd, rank, number; /* of its start in the job: SHERD_START */
    pid_t pid;
    uint64_t start;
    bool present;             /* has said hello, and not bye */
    bool killed;              /* by this keeper */
    int64_t since;            /* when its hello came; 0: it has been answered */
    char watch[SH_WIRE_TEXT]; /* of the script that started it, by its hello; "": it said none */
};

struct keeper {
    int socket;
    uint64_t id;
    int64_t limit, reserved;
    int number;     /* of the newest start that has said hello: SHERD_START; 0: none said it */
    double seconds; /* that a hello waits for ranks of an earlier start */
    struct client *client;
    struct sh_keep_part *part;
    int n_clients, cap_clients, n_parts, cap_parts;
    char watch[SH_WIRE_TEXT]; /* of the script that this keeper follows; "": none */
    bool leaves;              /* once the ranks are gone */
    /* The death that is being told. */
    struct {
        int64_t since; /* 0: none */
        uint64_t start;
        int rank;
        bool lowest_told;
    } death;
};

/* How another thread says that the keeper leaves; -1: nobody serves yet. */
static struct {
    atomic_int event;
    char why[256];
} left_out = {.event = -1};

static atomic_llong accused = -1, died;
static atomic_int died_in; /* set before `died` */

int64_t sh_keep_accused(void)
{
    return accused;
}

int64_t sh_keep_died(int *start)
{
    int64_t at = died;

    *start = died_in;
    return at;
}

/* ---- parts ---- */

static int find_part(const struct keeper *k, const struct sh_wire *m)
{
    for (int i = 0; i < k->n_parts; i++) {
        const struct sh_keep_part *p = &k->part[i];

        if (p->rank == m->rank && p->world == m->world && p->slot == m->slot && p->layout == m->layout)
            return i;
    }
    return -1;
}

static sh_rc no_room(const struct keeper *k, int64_t bytes)
{
    char need[SH_STR_SHORT], has[SH_STR_SHORT], limit[SH_STR_SHORT];

    return sh_fail(SH_E_MEMORY,
                   "the keeper cannot reserve %s for a near checkpoint: it holds %s, and may hold %s "
                   "(checkpoint.near_limit_bytes; by default half of what was free when it started)",
                   sh_str_bytes(bytes, need), sh_str_bytes(k->reserved, has), sh_str_bytes(k->limit, limit));
}

/* All pages now, and by the keeper: a rank must not meet the end of the memory in a copy, and pages are charged to whose
 * first touch they were. */
static sh_rc reserve(struct keeper *k, const struct sh_wire *m)
{
    int fd, failed;

    if (m->bytes <= 0 || m->bytes > k->limit - k->reserved)
        return no_room(k, m->bytes);
    fd = memfd_create("sherd-near", MFD_CLOEXEC);
    if (fd < 0)
        return sh_fail(SH_E_MEMORY, "the keeper has no memory: %s", strerror(errno));
    failed = posix_fallocate(fd, 0, m->bytes);
    if (failed) {
        close(fd);
        return sh_fail(SH_E_MEMORY, "the keeper has no memory: %s", strerror(failed));
    }
    k->part = sh_grow(k->part, k->n_parts, &k->cap_parts, sizeof *k->part);
    k->part[k->n_parts++] = (struct sh_keep_part){
        .rank = m->rank, .world = m->world, .slot = m->slot, .layout = m->layout, .bytes = m->bytes, .fd = fd};
    k->reserved += m->bytes;
    return SH_OK;
}

static sh_rc take(struct keeper *k, const struct sh_wire *m, int *fd)
{
    int i = find_part(k, m);

    if (i < 0) {
        SH_TRY(reserve(k, m));
        i = k->n_parts - 1;
    }
    if (k->part[i].bytes != m->bytes)
        return sh_fail(SH_E_BUG, "a near checkpoint of rank %d has %lld bytes, not %lld", m->rank,
                       (long long)k->part[i].bytes, (long long)m->bytes);
    k->part[i].start = m->start;
    *fd = k->part[i].fd;
    return SH_OK;
}

static void drop(struct keeper *k, int i)
{
    if (i < 0)
        return;
    k->reserved -= k->part[i].bytes;
    close(k->part[i].fd);
    k->part[i] = k->part[--k->n_parts];
}

static void drop_others(struct keeper *k, uint64_t start)
{
    for (int i = k->n_parts - 1; i >= 0; i--)
        if (k->part[i].start != start)
            drop(k, i);
}

/* ---- ranks ---- */

/* Whoever is left of another start would write into what this one reads. Returns one of them. */
static const struct client *kill_others(const struct keeper *k, uint64_t start)
{
    const struct client *left = NULL;

    for (int i = 0; i < k->n_clients; i++)
        if (k->client[i].present && k->client[i].start != start) {
            left = &k->client[i];
            k->client[i].killed = true;
            if (left->pid > 0)
                kill(left->pid, SIGKILL);
        }
    return left;
}

static void refuse_beside(struct client *c, const struct client *left)
{
    struct sh_wire m = {.kind = SH_WIRE_ANSWER, .rc = SH_E_COMM};

    snprintf(m.text, sizeof m.text,
             "rank %d of an earlier start, process %lld on %s, does not end although it was killed: a device or a file "
             "system hangs in it, and its memory is not free; leave this node out",
             left->rank, (long long)left->pid, sh_wire_node());
    c->since = 0;
    sh_wire_send(c->fd, &m, -1);
}

/* A death of an earlier start is of no interest any more. */
static void let_in(struct keeper *k, struct client *c)
{
    const struct sh_wire m = {.kind = SH_WIRE_ANSWER, .start = k->id};

    c->since = 0;
    c->present = true;
    if (k->death.start != c->start)
        k->death.since = 0;
    sh_wire_send(c->fd, &m, -1);
}

/* Answer those hellos whose start has the node to itself, and those that have waited long enough. Returns whether one
 * still waits. */
static bool answer_hellos(struct keeper *k)
{
    bool waits = false;

    for (int i = 0; i < k->n_clients; i++) {
        struct client *c = &k->client[i];
        const struct client *left = c->since ? kill_others(k, c->start) : NULL;

        if (c->since && !left)
            let_in(k, c);
        else if (c->since && sh_seconds_since(c->since) > k->seconds)
            refuse_beside(c, left);
        waits = waits || c->since;
    }
    return waits;
}

static void leave(struct keeper *k, int i)
{
    struct client gone = k->client[i];

    close(gone.fd);
    k->client[i] = k->client[--k->n_clients];
    if (!gone.present || k->death.since)
        return;
    k->death.since = sh_now_ns();
    k->death.start = gone.start;
    k->death.rank = gone.rank;
    k->death.lowest_told = false;
    if (gone.killed)
        return;
    died_in = gone.number;
    died = k->death.since;
}

static void tell(struct keeper *k, struct client *c)
{
    struct sh_wire m = {.kind = SH_WIRE_DEATH, .rank = k->death.rank};

    sh_wire_send(c->fd, &m, -1);
}

/* One rank says it; the others follow only if that one cannot end them. */
static void tell_of_death(struct keeper *k)
{
    int64_t ms = k->death.since ? (sh_now_ns() - k->death.since) / 1000000 : 0;
    struct client *lowest = NULL;

    if (!k->death.since || ms < SH_KEEP_TELL_MS)
        return;
    for (int i = 0; i < k->n_clients; i++) {
        struct client *c = &k->client[i];

        if (!c->present || c->start != k->death.start)
            continue;
        if (k->death.lowest_told && ms >= SH_KEEP_TELL_MS + OTHERS_MS)
            tell(k, c);
        if (!lowest || c->rank < lowest->rank)
            lowest = c;
    }
    if (lowest && !k->death.lowest_told)
        tell(k, lowest);
    k->death.lowest_told = true;
    if (!lowest || ms >= SH_KEEP_TELL_MS + OTHERS_MS)
        k->death.since = 0;
}

/* ---- packets ---- */

static void refuse(const struct client *c, const char *why)
{
    struct sh_wire m = {.kind = SH_WIRE_ANSWER, .rc = SH_E_COMM};

    snprintf(m.text, sizeof m.text, "%s this rank, process %lld", why, (long long)c->pid);
    sh_wire_send(c->fd, &m, -1);
}

/* Its script stood still while another took its place: ranks of both would write the same files. */
static void refuse_stale(const struct client *c)
{
    refuse(c, "another script has taken the place of the one that started");
}

static bool is_stale(const struct keeper *k, const struct client *c)
{
    return k->watch[0] && c->watch[0] && strcmp(k->watch, c->watch) != 0;
}

static const char LATER[] = "a later start of the run has come to this node before";

/* Those of earlier starts that still wait would end the ranks of this one once they are let in. */
static void begin_start(struct keeper *k, int number)
{
    k->number = number;
    for (int i = 0; i < k->n_clients; i++) {
        struct client *c = &k->client[i];

        if (c->since && c->number > 0 && c->number < number) {
            c->since = 0;
            refuse(c, LATER);
        }
    }
}

/* A rank may have stood still while its start ended and the next one began, which is not to end for it. */
static void greet(struct keeper *k, struct client *c, struct sh_wire *m)
{
    m->text[sizeof m->text - 1] = '\0';
    snprintf(c->watch, sizeof c->watch, "%s", m->text);
    if (is_stale(k, c)) {
        refuse_stale(c);
        return;
    }
    if (m->slot > 0 && m->slot < k->number) {
        refuse(c, LATER);
        return;
    }
    if (m->slot > k->number)
        begin_start(k, m->slot);
    c->rank = m->rank;
    c->start = m->start;
    c->number = m->slot;
    c->since = sh_now_ns();
}

static struct client *find_lowest(const struct keeper *k)
{
    struct client *lowest = NULL;

    for (int i = 0; i < k->n_clients; i++)
        if (k->client[i].present && (!lowest || k->client[i].rank < lowest->rank))
            lowest = &k->client[i];
    return lowest;
}

/* A drill. */
static sh_rc lose_rank(const struct keeper *k, int *rank)
{
    const struct client *c = find_lowest(k);

    if (!c || c->pid <= 0)
        return sh_fail(SH_E_USAGE, "no rank of the run is on this node");
    *rank = c->rank;
    kill(c->pid, SIGKILL);
    return SH_OK;
}

static void stop_node(const struct keeper *k)
{
    for (int i = 0; i < k->n_clients; i++)
        if (k->client[i].present && k->client[i].pid > 0)
            kill(k->client[i].pid, SIGSTOP);
    raise(SIGSTOP);
}

/* From here on this is the only script whose ranks may be here; those of the one before end now, or are not let in. A
 * script that asks again may have ranks here already. */
static sh_rc follow(struct keeper *k, struct sh_wire *m)
{
    m->text[sizeof m->text - 1] = '\0';
    if (!strcmp(k->watch, m->text))
        return SH_OK;
    SH_TRY(sh_next_tell(m->text));
    snprintf(k->watch, sizeof k->watch, "%s", m->text);
    k->number = 0; /* another script may count its starts from 1 on */
    kill_others(k, 0);
    for (int i = 0; i < k->n_clients; i++)
        if (k->client[i].since && is_stale(k, &k->client[i])) {
            k->client[i].since = 0;
            refuse_stale(&k->client[i]);
        }
    return SH_OK;
}

/* What a packet asks for, but for hello and bye, is answered at once. */
static void answer(struct keeper *k, struct client *c, struct sh_wire *m)
{
    sh_rc rc = SH_OK;
    int fd = -1, i = m->slot;
    bool listed = m->kind == SH_WIRE_LIST && i >= 0 && i < k->n_parts, end = m->kind == SH_WIRE_LIST && !listed;
    bool stops = m->kind == SH_WIRE_LOSE && i == 1;

    if (m->kind == SH_WIRE_TAKE)
        rc = take(k, m, &fd);
    if (m->kind == SH_WIRE_DROP)
        drop_others(k, m->start);
    if (m->kind == SH_WIRE_FORGET)
        drop(k, find_part(k, m));
    if (m->kind == SH_WIRE_ACCUSE)
        accused = m->bytes;
    if (m->kind == SH_WIRE_FOLLOW)
        rc = follow(k, m);
    if (m->kind == SH_WIRE_LOSE && !stops)
        rc = lose_rank(k, &m->rank);
    if (listed) {
        const struct sh_keep_part *p = &k->part[i];

        m->rank = p->rank;
        m->world = p->world;
        m->slot = p->slot;
        m->layout = p->layout;
        m->bytes = p->bytes;
        fd = p->fd;
    }
    m->kind = end ? SH_WIRE_END : SH_WIRE_ANSWER;
    m->rc = rc;
    snprintf(m->text, sizeof m->text, "%s", rc == SH_OK ? "" : sh_error_text());
    sh_wire_send(c->fd, m, fd);
    if (stops)
        stop_node(k);
}

/* false: the other side is gone. */
static bool read_packet(struct keeper *k, int i)
{
    struct client *c = &k->client[i];
    struct sh_wire m;

    if (!sh_wire_receive(c->fd, &m, NULL))
        return false;
    if (m.kind == SH_WIRE_HELLO)
        greet(k, c, &m);
    else if (m.kind == SH_WIRE_BYE)
        c->present = false;
    else
        answer(k, c, &m);
    return true;
}

/* Other users may connect to an abstract socket. */
static void welcome(struct keeper *k)
{
    int fd = accept4(k->socket, NULL, NULL, SOCK_CLOEXEC);
    struct ucred who;
    socklen_t length = sizeof who;

    if (fd < 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || who.uid != getuid()) {
        close(fd);
        return;
    }
    k->client = sh_grow(k->client, k->n_clients, &k->cap_clients, sizeof *k->client);
    k->client[k->n_clients++] = (struct client){.fd = fd, .pid = who.pid};
}

enum { OWN = 2 }; /* descriptors before those of clients */

static void serve_once(struct keeper *k, struct pollfd *fds)
{
    bool looks = answer_hellos(k) || k->death.since || k->leaves;
    int n = k->n_clients;

    fds[0] = (struct pollfd){.fd = k->socket, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = k->leaves ? -1 : left_out.event, .events = POLLIN};
    for (int i = 0; i < n; i++)
        fds[OWN + i] = (struct pollfd){.fd = k->client[i].fd, .events = POLLIN};
    if (poll(fds, (nfds_t)n + OWN, looks ? LOOK_MS : -1) < 0) {
        if (errno != EINTR)
            sh_stop(sh_fail(SH_E_COMM, "poll: %s", strerror(errno)));
        return;
    }
    /* From the last on, since one that leaves is replaced by the last. */
    for (int i = n - 1; i >= 0; i--)
        if (fds[OWN + i].revents && !read_packet(k, i))
            leave(k, i);
    if (fds[0].revents)
        welcome(k);
    k->leaves = k->leaves || fds[1].revents;
    tell_of_death(k);
}

void sh_keep_leave(const char *why)
{
    snprintf(left_out.why, sizeof left_out.why, "%s", why ? why : "");
    if (left_out.event < 0 || eventfd_write(left_out.event, 1) != 0)
        _exit(why ? SH_E_COMM : SH_OK); /* no rank can have said hello */
}

/* The kernel takes calls for a keeper that was killed until all of its memory is free, which takes a second or two for each
 * ten gigabytes, and then hangs up. One that says nothing at all is stopped, and still has the name. */
static bool is_ending(const char *folder, bool *there)
{
    struct sh_wire m = {.kind = SH_WIRE_LIST, .slot = -1};
    struct pollfd p = {.events = POLLIN};
    bool ends;

    *there = sh_keep_connect(folder, 0, &p.fd) == SH_OK;
    sh_error_clear();
    if (!*there)
        return false;
    ends = !sh_wire_send(p.fd, &m, -1) ||
           (poll(&p, 1, SH_KEEP_ANSWER_SECONDS * 1000) > 0 && !sh_wire_receive(p.fd, &m, NULL));
    close(p.fd);
    return ends;
}

/* Have the name by which ranks of the folder find a keeper; nobody can connect until listen(). Whoever has the name and
 * does not answer has it for a moment only: a doctor, or a keeper that begins or ends. */
static sh_rc take_name(const char *folder, int *out)
{
    int64_t begin = sh_now_ns();
    struct sockaddr_un name;
    socklen_t length;
    int s, failed;
    bool there;

    SH_TRY(sh_wire_name(folder, &name, &length));
    s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    while ((failed = s < 0 || bind(s, (struct sockaddr *)&name, length) != 0 ? errno : 0) == EADDRINUSE &&
           sh_seconds_since(begin) < NAME_SECONDS) {
        if (is_ending(folder, &there))
            begin = sh_now_ns();
        else if (there)
            break;
        poll(NULL, 0, NAME_MS);
    }
    *out = s;
    if (!failed)
        return SH_OK;
    if (s >= 0)
        close(s);
    return failed == EADDRINUSE ? sh_fail(SH_E_USAGE, "there is a keeper for %s on this node already", folder)
                                : sh_fail(SH_E_COMM, "the keeper has no socket: %s", strerror(failed));
}

static sh_rc try_memory(void)
{
    int fd = memfd_create("sherd-near", MFD_CLOEXEC), failed = fd < 0 ? errno : posix_fallocate(fd, 0, 1);

    if (fd >= 0)
        close(fd);
    return failed ? sh_fail(SH_E_MEMORY, "the keeper has no memory: %s", strerror(failed)) : SH_OK;
}

static sh_rc add_parts(const char *folder, int64_t *reserved)
{
    struct sh_keep_part part;
    bool more = true;
    int fd;
    sh_rc rc = SH_OK;

    SH_TRY(sh_keep_connect(folder, 0, &fd));
    for (int i = 0; more && rc == SH_OK; i++) {
        rc = sh_keep_list(fd, i, &part, &more);
        if (rc == SH_OK && more) {
            *reserved += part.bytes;
            close(part.fd);
        }
    }
    close(fd);
    return rc;
}

sh_rc sh_keep_try(const char *folder, bool *running, int64_t *reserved)
{
    int s = -1;
    sh_rc rc = take_name(folder, &s);

    *running = rc == SH_E_USAGE;
    *reserved = 0;
    if (*running) {
        sh_error_clear();
        return add_parts(folder, reserved);
    }
    SH_TRY(rc);
    close(s);
    return try_memory();
}

sh_rc sh_keep_serve(const char *folder, int64_t limit, double seconds)
{
    struct keeper k = {
        .limit = limit, .seconds = seconds, .id = sh_mix64((uint64_t)sh_now_ns() ^ (uint64_t)getpid() << 40)};
    const char *watch = getenv(SH_PULSE_VARIABLE);
    struct pollfd *fds = NULL;

    SH_TRY(take_name(folder, &k.socket));
    if (listen(k.socket, SOMAXCONN) != 0)
        return sh_fail(SH_E_COMM, "the keeper has no socket: %s", strerror(errno));
    snprintf(k.watch, sizeof k.watch, "%s", watch ? watch : "");
    left_out.event = eventfd(0, EFD_CLOEXEC);
    while (!k.leaves || kill_others(&k, 0)) {
        fds = sh_realloc(fds, (size_t)k.n_clients + OWN, sizeof *fds);
        serve_once(&k, fds);
    }
    free(fds);
    free(k.client);
    free(k.part);
    return left_out.why[0] ? sh_fail(SH_E_COMM, "%s", left_out.why) : SH_OK;
}
