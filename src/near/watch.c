#include "src/near/pulse.h"

#include "src/base/mem.h"
#include "src/base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BEAT_MS = 200, HELLO = 128, LATE_MS = 1000, STRANGERS = 64 };

struct node {
    int fd;
    char name[HELLO]; /* "": its hello is not complete */
    char hello[HELLO];
    int length;
    int64_t heard, told, since;
};

struct watch {
    int socket;
    char token[32];
    struct node *node;
    int n, cap;
    bool full;             /* no call can be taken just now */
    int64_t looked, asked; /* asked 0: nobody asks whether all live */
    int64_t died_at;       /* 0: no rank has died since the last answer */
    long long died_in;     /* the last start of which a death is known */
    char died_on[HELLO];
    int out;    /* where the script reads */
    char *said; /* lines that it has not read yet */
    int n_said;
};

static volatile sig_atomic_t ends, asks;

static void on_signal(int which)
{
    if (which == SIGTERM)
        ends = 1;
    else
        asks = 1;
}

/* A script may not read for minutes, while a doctor runs, say, and a pipe holds the lines of some 2,000 nodes. A watch that
 * waited for it would be silent, and its keepers would end. Whole lines, no more than a pipe takes in one piece: others write
 * into it as well. */
static void flush_said(struct watch *w)
{
    struct pollfd out = {.fd = w->out, .events = POLLOUT};
    ssize_t n;

    while (w->n_said && poll(&out, 1, 0) > 0) {
        for (n = w->n_said < PIPE_BUF ? w->n_said : PIPE_BUF; w->said[n - 1] != '\n'; n--)
            ;
        n = write(w->out, w->said, (size_t)n);
        if (n <= 0)
            return;
        w->n_said -= (int)n;
        memmove(w->said, w->said + n, (size_t)w->n_said);
    }
}

static void print(struct watch *w, const char *what, const char *name)
{
    char line[3 * HELLO];
    int n = snprintf(line, sizeof line, "%s%s\n", what, name);

    w->said = sh_realloc(w->said, (size_t)(w->n_said + n), 1);
    memcpy(w->said + w->n_said, line, (size_t)n);
    w->n_said += n;
    flush_said(w);
}

/* ---- who is there ---- */

static void drop(struct watch *w, int i)
{
    close(w->node[i].fd);
    w->node[i] = w->node[--w->n];
}

/* Lines for a script hold no more than names of hosts do. */
static bool is_name(const char *s)
{
    return *s && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == strlen(s);
}

/* A keeper that was started again takes the place of the one before. */
static bool greet(struct watch *w, struct node *me)
{
    size_t token = strlen(w->token);
    const char *name = me->hello + token + 1;

    if (strncmp(me->hello, w->token, token) != 0 || me->hello[token] != ' ' || !is_name(name))
        return false;
    for (int i = 0; i < w->n; i++)
        if (strcmp(w->node[i].name, name) == 0)
            w->node[i].name[0] = '\0';
    snprintf(me->name, sizeof me->name, "%s", name);
    print(w, "here ", name);
    return true;
}

/* The others die of the first one's death, a moment later. What is left of a start before may die later still. */
static void note_death(struct watch *w, const struct node *me, long long us_ago, long long start)
{
    int64_t at = sh_now_ns() - us_ago * 1000;

    if (start < w->died_in || (start == w->died_in && w->died_at && w->died_at <= at))
        return;
    w->died_at = at;
    w->died_in = start;
    snprintf(w->died_on, sizeof w->died_on, "%s", me->name);
}

/* A line is complete. false: it is not one of ours. */
static bool take_line(struct watch *w, struct node *me)
{
    char text[2 * HELLO];
    long long step, us_ago, start;

    me->hello[me->length] = '\0';
    me->length = 0;
    if (!me->name[0])
        return greet(w, me);
    if (sscanf(me->hello, "U%lld", &step) == 1) {
        snprintf(text, sizeof text, "%s %lld", me->name, step);
        print(w, "unfit ", text);
    } else if (sscanf(me->hello, "D%lld %lld", &us_ago, &start) == 2) {
        note_death(w, me, us_ago, start);
    }
    return true;
}

/* "TOKEN NAME\n", and then dots that mean nothing but that they came, "U STEP\n" and "D MICROSECONDS START\n". false: it
 * is gone, or not one of ours. */
static bool hear(struct watch *w, struct node *me)
{
    char bytes[HELLO];
    ssize_t n = recv(me->fd, bytes, sizeof bytes, MSG_DONTWAIT);

    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    me->heard = sh_now_ns();
    for (ssize_t i = 0; i < n; i++) {
        if (me->name[0] && bytes[i] == '.')
            continue;
        if (me->length == HELLO - 1)
            return false;
        if (bytes[i] != '\n')
            me->hello[me->length++] = bytes[i];
        else if (!take_line(w, me))
            return false;
    }
    return true;
}

/* Anybody may connect, but only keepers know the token, and say it at once: of too many others the oldest goes. */
static void limit_strangers(struct watch *w)
{
    int n = 0, oldest = -1;

    for (int i = 0; i < w->n; i++)
        if (!w->node[i].name[0]) {
            n++;
            if (oldest < 0 || w->node[i].since < w->node[oldest].since)
                oldest = i;
        }
    if (n > STRANGERS)
        drop(w, oldest);
}

static void welcome(struct watch *w)
{
    int fd = accept4(w->socket, NULL, NULL, SOCK_CLOEXEC);

    w->full = fd < 0 && (errno == EMFILE || errno == ENFILE);
    if (fd < 0)
        return;
    w->node = sh_grow(w->node, w->n, &w->cap, sizeof *w->node);
    w->node[w->n++] = (struct node){.fd = fd, .heard = sh_now_ns(), .since = sh_now_ns()};
    limit_strangers(w);
}

/* ---- what follows ---- */

/* A watch that was late itself has not listened, and forgets what it suspects. */
static void forgive(struct watch *w, int64_t now)
{
    if (now - w->looked > LATE_MS * INT64_C(1000000))
        for (int i = 0; i < w->n; i++)
            w->node[i].heard = now;
    w->looked = now;
}

static void judge(struct watch *w, int64_t now, double silence)
{
    bool all = w->asked != 0;
    char text[2 * HELLO];

    for (int i = w->n - 1; i >= 0; i--) {
        struct node *me = &w->node[i];

        if (now - me->told >= BEAT_MS * INT64_C(1000000)) {
            me->told = now;
            all = send(me->fd, ".", 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 && all;
        }
        all = all && (!me->name[0] || me->heard > w->asked);
        if ((double)(now - me->heard) / 1e9 < silence)
            continue;
        if (me->name[0])
            print(w, "lost ", me->name);
        drop(w, i);
    }
    if (!all)
        return;
    snprintf(text, sizeof text, "%s %lld", w->died_on, w->died_in);
    if (w->died_at)
        print(w, "died ", text);
    print(w, "all", "");
    w->asked = w->died_at = 0;
}

/* Silences are judged as of `now`, the moment up to which nodes were heard: time that passes later in this round does not
 * count. */
static void look(struct watch *w, struct pollfd *fds, double silence)
{
    int n = w->n;
    int64_t now;

    fds[0] =
        (struct pollfd){.fd = w->full ? -1 : w->socket, .events = POLLIN}; /* a call that waits would wake it at once */
    w->full = false;
    for (int i = 0; i < n; i++)
        fds[1 + i] = (struct pollfd){.fd = w->node[i].fd, .events = POLLIN};
    if (poll(fds, (nfds_t)n + 1, BEAT_MS / 2) < 0)
        return; /* a signal */
    now = sh_now_ns();
    forgive(w, now);
    for (int i = n - 1; i >= 0; i--)
        if (fds[1 + i].revents && !hear(w, &w->node[i])) {
            if (w->node[i].name[0])
                print(w, "ended ", w->node[i].name);
            drop(w, i);
        }
    if (fds[0].revents)
        welcome(w);
    judge(w, now, silence);
    flush_said(w);
}

/* A connection for each node, of which there may be more than the usual 1,024. */
static void permit_connections(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* A pipe once more: whoever else writes into it may fill it behind poll(), and would have to be waited for. Only this one does
 * not wait, and the others still do. */
static int open_out(void)
{
    struct stat st;
    int fd = -1;

    if (fstat(STDOUT_FILENO, &st) == 0 && S_ISFIFO(st.st_mode))
        fd = open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return fd < 0 ? STDOUT_FILENO : fd;
}

static sh_rc open_socket(struct watch *w)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_ANY)}};
    socklen_t length = sizeof at;
    char host[HELLO] = "";
    uint64_t token;

    w->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (w->socket < 0 || bind(w->socket, (struct sockaddr *)&at, sizeof at) != 0 || listen(w->socket, SOMAXCONN) != 0 ||
        getsockname(w->socket, (struct sockaddr *)&at, &length) != 0 || gethostname(host, sizeof host - 1) != 0 ||
        getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        return sh_fail(SH_E_COMM, "the watch cannot listen: %s", strerror(errno));
    snprintf(w->token, sizeof w->token, "%016llx", (unsigned long long)token);
    printf("watch %s:%d:%s\n", host, ntohs(at.sin_port), w->token);
    fflush(stdout);
    return SH_OK;
}

sh_rc sh_pulse_watch(double silence)
{
    const struct sigaction act = {.sa_handler = on_signal};
    struct watch w = {.looked = sh_now_ns(), .out = open_out()};
    struct pollfd *fds = NULL;

    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGUSR1, &act, NULL);
    permit_connections();
    SH_TRY(open_socket(&w));
    while (!ends) {
        fds = sh_realloc(fds, (size_t)w.n + 1, sizeof *fds);
        look(&w, fds, silence);
        if (asks) {
            asks = 0;
            w.asked = sh_now_ns();
        }
    }
    for (int i = 0; i < w.n; i++)
        if (send(w.node[i].fd, "Q", 1, MSG_NOSIGNAL) < 0)
            continue;
    free(fds);
    free(w.node);
    free(w.said);
    if (w.out != STDOUT_FILENO)
        close(w.out);
    close(w.socket);
    return SH_OK;
}
