/* The watch for collectives that do not end. The progress thread of a rank that has waited too long asks the ranks of
 * the group how far they are. It keeps working meanwhile, so a job that was only suspended continues.
 *
 * Usually several ranks notice at the same time, but one line is wanted, from a rank that sees the cause. The lowest
 * rank that is in the collective speaks; the others see from its answer that it is there, and wait a little longer than
 * it needs. A rank that is missing because it waits in another collective is not the cause: the rank that asks waits as
 * well, for one that is closer to the cause. A question makes its receiver look at once into what it waits for itself,
 * so that it need not reach its own limit. */
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/comm/mpi/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECONDS(s) ((int64_t)((s)*1e9))
#define LOOK_NS SECONDS(0.01)
#define FLIGHT_NS SECONDS(1) /* between two writings of the file, however many ask */
#define ANSWER_NS SECONDS(2) /* a rank that lives answers in milliseconds, unless its node swaps */
#define DEFER_NS SECONDS(1.5)
#define TURN_NS SECONDS(0.1) /* between the reports of different groups; the first silences the others */
#define QUIET_NS SECONDS(5)  /* for the rank that reports to take the job down */
enum { MISSING_SHOWN = 8, TELL_TURNS = 20, TELL_TURN_US = 10000 };

static void write_flight(struct sh_mpi *m)
{
    if (sh_now_ns() < m->watch.next_flight_ns)
        return;
    sh_comm_write_flight(m->c);
    m->watch.next_flight_ns = sh_now_ns() + FLIGHT_NS;
}

static int member(const struct sh_mpi *m, const struct sh_channel *ch, int index)
{
    return sh_group_member(&m->c->mesh->shape, ch->group, index);
}

/* Whether a member takes part in the running collective of the channel, besides this rank; a message has one other
 * side. */
static bool takes_part(const struct sh_channel *ch, int index)
{
    bool message = ch->coll.kind == SH_OP_SEND || ch->coll.kind == SH_OP_RECEIVE;
    return index != ch->rank && (!message || index == ch->coll.peer);
}

/* Ask all members how far they are. Until an answer arrives, a rank counts as silent. */
static sh_rc begin(struct sh_mpi *m, struct sh_channel *ch)
{
    struct sh_watch *w = &m->watch;
    w->channel = ch;
    w->ticket = ch->current;
    w->begin_ns = sh_now_ns();
    w->ask = (struct sh_watch_ask){.channel = (int32_t)(ch - m->channel), .sequence = ch->entered};
    for (int i = 0; i < ch->size; i++)
        w->answer[member(m, ch, i)].entered = SH_WATCH_NO_ANSWER;
    for (int i = 0; i < ch->size; i++)
        if (takes_part(ch, i))
            SH_TRY(sh_watch_send_ask(m, member(m, ch, i)));
    return SH_OK;
}

/* A question of another rank. A rank that has passed that collective has nothing to find out; a rank that waits in
 * another collective starts to ask there. */
static sh_rc take_question(struct sh_mpi *m, const struct sh_watch_ask *ask, int from)
{
    struct sh_channel *ch = &m->channel[ask->channel];
    write_flight(m);
    if (ask->told) {
        m->watch.quiet_until_ns = sh_now_ns() + QUIET_NS;
        m->watch.lower_reports = m->watch.lower_reports || from < m->c->mesh->rank;
    }
    if (ask->told || m->watch.channel != NULL || ch->entered > ask->sequence)
        return SH_OK;
    bool in_it = ch->current != 0 && ch->entered == ask->sequence;
    struct sh_channel *waits = in_it ? ch : sh_channel_oldest(m->channel, m->n_channels);
    return waits != NULL ? begin(m, waits) : SH_OK;
}

/* Only the oldest collective is examined: the others wait behind it, or with it. */
static sh_rc find_overdue(struct sh_mpi *m)
{
    struct sh_channel *oldest = sh_channel_oldest(m->channel, m->n_channels);
    if (oldest == NULL || m->c->opt.timeout_seconds == 0 ||
        sh_now_ns() - oldest->start_ns < SECONDS(m->c->opt.timeout_seconds))
        return SH_OK;
    return begin(m, oldest);
}

struct findings {
    int silent, behind; /* ranks without answer; ranks that answered, are not in it and do not wait themselves */
    int waiting;        /* ranks that are not in it because they wait in another one */
    bool lower_in_it;   /* a rank before this one is in it and will speak */
};

/* Truth table of an answer:
 *  none                           silent
 *  waits in another collective    waiting
 *  has not entered this one       behind: the likely cause
 *  has entered                    in it, as this rank is */
static struct findings evaluate(const struct sh_mpi *m)
{
    const struct sh_watch *w = &m->watch;
    struct findings f = {0};
    for (int i = 0; i < w->channel->size; i++) {
        const struct sh_watch_answer *a = &w->answer[member(m, w->channel, i)];
        if (!takes_part(w->channel, i))
            continue;
        if (a->entered == SH_WATCH_NO_ANSWER)
            f.silent++;
        else if (a->waits)
            f.waiting++;
        else if (a->entered < w->ask.sequence)
            f.behind++;
        else if (i < w->channel->rank)
            f.lower_in_it = true;
    }
    return f;
}

static void print_missing(const struct sh_mpi *m, FILE *out)
{
    const struct sh_watch *w = &m->watch;
    int shown = 0, more = 0;
    for (int i = 0; i < w->channel->size; i++) {
        int rank = member(m, w->channel, i);
        const struct sh_watch_answer *a = &w->answer[rank];
        if (!takes_part(w->channel, i) || a->entered >= w->ask.sequence)
            continue;
        if (shown == MISSING_SHOWN) {
            more++;
            continue;
        }
        fprintf(out, "%s rank %d on %s (", shown++ > 0 ? "," : "", rank, w->host[rank]);
        if (a->entered == SH_WATCH_NO_ANSWER)
            fprintf(out, "no answer)");
        else
            fprintf(out, "step %lld, %s)", (long long)a->step, a->doing);
    }
    if (more > 0)
        fprintf(out, " and %d more", more);
}

/* One line: which collective, how long, who is missing, and where the records are. The caller frees it. */
static char *describe(struct sh_mpi *m, struct findings f)
{
    const struct sh_watch *w = &m->watch;
    const struct sh_coll *coll = &w->channel->coll;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return sh_strdup("a collective is stalled; no memory to say more");
    if (coll->kind == SH_OP_SEND || coll->kind == SH_OP_RECEIVE)
        fprintf(out, "stage %d waits for stage %d: ", w->channel->rank, coll->peer);
    fprintf(out, "%s %s (ticket %lld, stream %s, axis %s of %d ranks) is not complete after %g s; ",
            sh_op_info(coll->kind)->name, coll->label != NULL ? coll->label : "", (long long)w->ticket,
            m->c->opt.streams[coll->stream].name, sh_comm_group_name(m->c, coll->group), w->channel->size,
            m->c->opt.timeout_seconds);
    if (f.silent + f.behind + f.waiting > 0) {
        fprintf(out, "not in it:");
        print_missing(m, out);
    } else {
        fprintf(out, "all its ranks are in it: the network between them is broken or too slow");
    }
    if (m->c->opt.report_dir != NULL)
        fprintf(out, "; last collectives of each rank: %s/rank-*.flight.txt", m->c->opt.report_dir);
    fclose(out);
    return text;
}

/* Every rank writes its records and leaves the report to this rank. */
static sh_rc tell_all(struct sh_mpi *m)
{
    m->watch.ask.told = 1;
    for (int r = 0; r < m->c->mesh->world; r++)
        if (r != m->c->mesh->rank)
            SH_TRY(sh_watch_send_ask(m, r));
    for (int i = 0; i < TELL_TURNS; i++) {
        SH_TRY(sh_watch_read(m, take_question));
        usleep(TELL_TURN_US);
    }
    return SH_OK;
}

/* Keep answering, so that the rank that reports gets its answers; then it ends the job. */
static sh_rc stay_quiet(struct sh_mpi *m)
{
    int64_t until = sh_now_ns() + QUIET_NS;

    while (sh_now_ns() < until) {
        SH_TRY(sh_watch_read(m, take_question));
        usleep(TELL_TURN_US);
    }
    return SH_OK;
}

/* Several ranks may have found the same failure, or each its own, at the same time. A rank that has heard of another's
 * before its own lets that rank speak and end the job; among the ranks that have not, the lowest does. */
static sh_rc take_turn(struct sh_mpi *m)
{
    write_flight(m);
    SH_TRY(sh_watch_read(m, take_question));
    if (sh_now_ns() < m->watch.quiet_until_ns)
        SH_TRY(stay_quiet(m));
    SH_TRY(tell_all(m));
    return m->watch.lower_reports ? stay_quiet(m) : SH_OK;
}

/* Report `text` when it is this rank's turn. Always an error. */
static sh_rc speak(struct sh_mpi *m, sh_rc rc, const char *text)
{
    sh_rc turn = take_turn(m);
    (void)turn; /* the failure is what matters, not that telling the others failed too */
    return sh_fail(rc, "%s", text);
}

static sh_rc report(struct sh_mpi *m, struct findings f)
{
    char *text = describe(m, f);
    sh_rc rc = speak(m, SH_E_COMM, text);
    free(text);
    return rc;
}

/* A failure of the backend, or of the caller in it. */
static sh_rc find_failure(struct sh_mpi *m, char text[sizeof m->failure])
{
    sh_rc rc;

    pthread_mutex_lock(&m->c->lock);
    rc = m->failed;
    memcpy(text, m->failure, sizeof m->failure);
    pthread_mutex_unlock(&m->c->lock);
    if (rc == SH_OK && m->c->ops->look != NULL) {
        rc = m->c->ops->look(m->c);
        snprintf(text, sizeof m->failure, "%s", sh_error_text());
    }
    return rc;
}

/* Whether the findings suffice, and it is this rank's turn to report them. */
static bool is_my_turn(const struct sh_mpi *m, struct findings f)
{
    const struct sh_watch *w = &m->watch;
    /* A rank is in several groups, so one rank of each may see the same culprit. */
    int64_t turn = sh_program_find_group(m->c->opt.groups, m->c->opt.n_groups, w->channel->group);
    int64_t waited = sh_now_ns() - w->begin_ns - turn * TURN_NS;
    /* With all ranks in it, the collective may end any moment: that is how a suspended job looks when it continues. The
     * same holds for one that has hardly started and is examined only because another rank asked. */
    bool old = w->begin_ns - w->channel->start_ns > SECONDS(m->c->opt.timeout_seconds) / 2;
    bool clear = old && f.silent == 0 && f.behind > 0;
    /* A rank that waits in another collective is closer to the cause, even if this rank sees the cause too. */
    bool other_speaks = f.lower_in_it || f.waiting > 0 || f.silent + f.behind == 0;
    return waited >= (clear ? 0 : ANSWER_NS) + (other_speaks ? DEFER_NS : 0);
}

/* Evaluate the answers so far. The collective may end at any time; then everything is forgotten. */
static sh_rc judge(struct sh_mpi *m)
{
    struct sh_watch *w = &m->watch;
    struct findings f = evaluate(m);
    if (w->channel->current != w->ticket) { /* it has ended after all */
        w->channel = NULL;
        return SH_OK;
    }
    bool quiet = sh_now_ns() < w->quiet_until_ns;
    return !quiet && is_my_turn(m, f) ? report(m, f) : SH_OK;
}

/* Called at each turn of the progress thread, but looks only every 10 ms. */
sh_rc sh_stall_look(struct sh_mpi *m)
{
    struct sh_watch *w = &m->watch;
    if (sh_now_ns() < w->next_look_ns)
        return SH_OK;
    w->next_look_ns = sh_now_ns() + LOOK_NS;
    SH_TRY(sh_watch_read(m, take_question));
    char text[sizeof m->failure];
    sh_rc rc = find_failure(m, text);
    if (rc != SH_OK)
        return speak(m, rc, text);
    return w->channel == NULL ? find_overdue(m) : judge(m);
}
