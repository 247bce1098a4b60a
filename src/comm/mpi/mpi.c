/* The mpi backend: a channel for each stream and group in use, and one progress thread. */
#include "src/base/mem.h"
#include "src/base/thread.h"
#include "src/comm/mpi/levels.h"
#include "src/comm/mpi/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Only one thread at a time uses MPI. The main thread asks for it and waits until the progress thread has parked itself
 * outside MPI. */
static void take_mpi(void *arg)
{
    struct sh_mpi *m = arg;
    struct sh_comm *c = m->c;
    pthread_mutex_lock(&c->lock);
    m->main_owns = true;
    pthread_cond_signal(&c->work);
    while (!m->parked)
        pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* Inline: MPI has never left this thread, but open collectives must not be left half done when somebody else calls
 * it. */
static void finish_all(void *arg)
{
    struct sh_mpi *m = arg;
    struct sh_comm *c = m->c;
    pthread_mutex_lock(&c->lock);
    while (c->oldest_open <= c->newest)
        sh_mpi_work_until(m, c->oldest_open);
    pthread_mutex_unlock(&c->lock);
}

static sh_rc start_thread(struct sh_mpi *m)
{
    SH_TRY(sh_thread_start(&m->thread, "communicate", sh_mpi_run, m, 0));
    m->started = true;
    return SH_OK;
}

/* Wake the thread, which leaves its loop when nothing is open. */
static void stop_thread(struct sh_mpi *m)
{
    if (!m->started)
        return;
    pthread_mutex_lock(&m->c->lock);
    m->quit = true;
    pthread_cond_signal(&m->c->work);
    pthread_mutex_unlock(&m->c->lock);
    pthread_join(m->thread, NULL);
}

/* A channel for each pair of group and stream that the program uses. All ranks open them in the same order, since
 * opening is collective, and agree after each one: otherwise another group's ranks would wait in the next one for ranks
 * that failed. */
static sh_rc open_channels(struct sh_mpi *m)
{
    const struct sh_comm_options *opt = &m->c->opt;
    m->channel = sh_calloc((size_t)(opt->n_groups * opt->n_streams) + 1, sizeof *m->channel);
    for (int g = 0; g < opt->n_groups; g++)
        for (int s = 0; s < opt->n_streams; s++)
            if (opt->groups[g].streams >> s & 1)
                SH_TRY(sh_agree(sh_channel_open(&m->channel[m->n_channels++], s, opt->groups[g].axes, m->c)));
    return m->c->blocks ? SH_OK : sh_watch_open(m); /* nobody would read the questions of others */
}

static void free_mpi(struct sh_mpi *m)
{
    for (int i = 0; i < m->n_channels; i++)
        sh_channel_close(&m->channel[i]);
    free(m->channel);
    free(m);
}

/* MPI belongs to the main thread until the first collective: it opens the channels. */
static sh_rc create(struct sh_comm *c)
{
    sh_mesh_own_mpi();
    struct sh_mpi *m = sh_calloc(1, sizeof *m);
    m->c = c;
    m->main_owns = true;
    m->parked = true;
    c->backend = m;
    sh_rc rc = open_channels(m);
    if (rc == SH_OK && !c->opt.inline_progress)
        rc = start_thread(m);
    rc = sh_agree(rc);
    if (rc != SH_OK) { /* the caller frees c and ends the program; what MPI holds ends with it */
        stop_thread(m);
        return rc;
    }
    sh_mesh_own_mpi_hook(c->opt.inline_progress ? finish_all : take_mpi, m);
    return SH_OK;
}

static void destroy(struct sh_comm *c)
{
    struct sh_mpi *m = c->backend;
    stop_thread(m);
    sh_mesh_own_mpi_hook(NULL, NULL);
    if (!c->blocks)
        sh_watch_close(m);
    free_mpi(m);
}

/* Here and not when the thread wakes up: the caller may want MPI back before that. With the lock held. */
static void give_mpi(struct sh_mpi *m)
{
    if (!m->started)
        return;
    m->main_owns = m->parked = false;
    pthread_cond_signal(&m->c->work);
}

void sh_mpi_lend(struct sh_mpi *m)
{
    pthread_mutex_lock(&m->c->lock);
    give_mpi(m);
    pthread_mutex_unlock(&m->c->lock);
}

/* The caller cannot report by itself, since it may be in the middle of a collective: the progress thread tells the
 * others and ends the job. */
void sh_mpi_fail(struct sh_mpi *m, sh_rc rc)
{
    pthread_mutex_lock(&m->c->lock);
    snprintf(m->failure, sizeof m->failure, "%s", sh_error_text());
    m->failed = rc;
    give_mpi(m);
    pthread_mutex_unlock(&m->c->lock);
    for (;;)
        pause();
}

/* There always is one: the caller has checked that stream and group are named. */
static struct sh_channel *find_channel(const struct sh_mpi *m, const struct sh_coll *coll)
{
    int i = 0;
    while (m->channel[i].stream != coll->stream || m->channel[i].group != coll->group)
        i++;
    return &m->channel[i];
}

/* With the lock held. Collectives of one channel form a list and run one after the other; channels run side by side. */
static void start(struct sh_comm *c, int64_t ticket)
{
    struct sh_mpi *m = c->backend;
    const struct sh_comm_item *item = sh_comm_item(c, ticket);
    struct sh_channel *ch = find_channel(m, &item->coll);
    if (c->blocks && !item->events && sh_channel_is_message(&item->coll)) {
        sh_mpi_start_message(m, ch, ticket);
        return;
    }
    if (ch->first == 0)
        ch->first = ticket;
    else
        sh_comm_item(c, ch->last)->next = ticket;
    ch->last = ticket;
    give_mpi(m);
}

static void wait(struct sh_comm *c, int64_t ticket)
{
    sh_mpi_work_until(c->backend, ticket);
}

static void set_segment(struct sh_comm *c)
{
    struct sh_mpi *m = c->backend;

    for (int i = 0; i < m->n_channels; i++)
        sh_channel_set_segment(&m->channel[i], c->mesh, &c->segment);
}

/* All channels of a group have the same block size, or none. */
static int block(const struct sh_comm *c, sh_group group)
{
    const struct sh_mpi *m = c->backend;

    for (int i = 0; i < m->n_channels; i++)
        if (m->channel[i].group == group && m->channel[i].levels)
            return m->channel[i].levels->ranks;
    return 1;
}

const struct sh_comm_ops sh_comm_mpi = {
    .name = "mpi",
    .create = create,
    .destroy = destroy,
    .start = start,
    .launch = sh_stage_out,
    .join = sh_stage_back,
    .wait = wait,
    .set_segment = set_segment,
    .block = block,
};
