/* Being present at the keeper of the node, and at one that takes its place. */
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/thread.h"
#include "src/base/time.h"
#include "src/near/wire.h"
#include "src/plan/topology.h"
#include "src/run/kept/parts.h"
#include "src/run/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const double KEEPER_SECONDS = 20; /* it may start later than the ranks */
static const double ENDING_SECONDS = 60; /* one after another may end meanwhile */

/* Ranks die at any time, and the others then wait in collectives: only a thread of its own can hear of it. */
static void *listen_to_keeper(void *arg)
{
    struct sh_kept *k = arg;
    int rank;

    if (sh_keep_hear(k->presence, &rank))
        sh_stop(
            sh_fail(SH_E_COMM, "rank %d has ended without a word; the others end, to start again from memory", rank));
    atomic_store(&k->gone, true);
    return NULL;
}

/* A number that only this start has. */
static sh_rc name_start(uint64_t *start)
{
    *start = sh_mix64((uint64_t)sh_now_ns() ^ (uint64_t)time(NULL) << 32 ^ (uint64_t)getpid());
    return sh_mesh_bcast(start, sizeof *start, 0);
}

/* Over a presence that is connected; seconds: see sh_keep_hello(). */
static sh_rc greet(struct sh_run *r, double seconds, uint64_t *keeper)
{
    struct sh_kept *k = r->kept;

    SH_TRY(sh_keep_hello(k->presence, seconds, k->rank, k->world, k->start, keeper));
    SH_TRY(sh_keep_connect(r->folder, 1, &k->socket));
    atomic_store(&k->gone, false);
    return sh_thread_start(&k->listener, "hear of other ranks' deaths", listen_to_keeper, k, 0);
}

/* With a bye, or the keeper would tell others of a death; and with a shutdown, which ends the listener's wait. */
static void leave_keeper(struct sh_kept *k)
{
    if (k->presence >= 0) {
        sh_keep_bye(k->presence);
        shutdown(k->presence, SHUT_RDWR);
    }
    if (k->listener)
        pthread_join(k->listener, NULL);
    k->listener = 0;
    if (k->presence >= 0)
        close(k->presence);
    if (k->socket >= 0)
        close(k->socket);
    k->presence = k->socket = -1;
}

static bool has_hung_up(int presence)
{
    char byte;
    ssize_t n = recv(presence, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* A keeper that was killed still takes calls until its memory is free, and another one may follow. */
static sh_rc reach_keeper(struct sh_run *r, uint64_t *keeper)
{
    int64_t begin = 0; /* when one first hung up */

    for (;;) {
        sh_rc rc;

        SH_TRY(sh_keep_connect(r->folder, KEEPER_SECONDS, &r->kept->presence));
        rc = greet(r, 0, keeper);
        if (rc == SH_OK || !has_hung_up(r->kept->presence))
            return rc;
        begin = begin ? begin : sh_now_ns();
        if (sh_seconds_since(begin) > ENDING_SECONDS)
            return rc;
        sh_error_clear();
        leave_keeper(r->kept);
    }
}

/* In containers with networks of their own there may be several; or one has ended, and another has taken its place. */
static sh_rc check_one_keeper(const struct sh_topology *at, const struct sh_kept *k, uint64_t keeper)
{
    double ended = has_hung_up(k->presence);
    int alike;

    SH_TRY(sh_mesh_alike_on_node(keeper, &alike));
    SH_TRY(sh_mesh_max(&ended, 1));
    if (alike == at->node_size)
        return SH_OK;
    if (ended > 0)
        return sh_fail(SH_E_COMM, "the keeper on %s has ended as the ranks came to it", sh_wire_node());
    return sh_fail(SH_E_USAGE,
                   "the ranks of %s reach different keepers; start one keeper on each node, and containers with the "
                   "network of their host",
                   sh_wire_node());
}

sh_rc sh_kept_arrive(struct sh_run *r, const struct sh_topology *at)
{
    uint64_t keeper = 0;

    if (!r->cfg.checkpoint.near_interval)
        return SH_OK;
    r->kept = sh_calloc(1, sizeof *r->kept);
    r->kept->presence = r->kept->socket = -1;
    r->kept->loaded = r->kept->safe = r->kept->done = -1;
    r->kept->rank = at->rank;
    r->kept->world = at->world;
    SH_TRY(name_start(&r->kept->start));
    SH_TRY(sh_agree(reach_keeper(r, &keeper)));
    return sh_agree(check_one_keeper(at, r->kept, keeper));
}

static void unmap(struct sh_near_slot slot[SH_NEAR_SLOTS], int64_t bytes)
{
    for (int i = 0; i < SH_NEAR_SLOTS; i++) {
        if (slot[i].head)
            munmap(slot[i].head, (size_t)bytes);
        slot[i] = (struct sh_near_slot){0};
    }
}

void sh_kept_close(struct sh_run *r)
{
    struct sh_kept *k = r->kept;

    if (!k)
        return;
    leave_keeper(k);
    unmap(k->slot, k->bytes);
    unmap(k->copy, k->copy_bytes);
    sh_ckpt_meta_free(&k->meta);
    free(k->unit);
    free(k);
    r->kept = NULL;
}

/* Memory of the new keeper in the place of what the old one held. If it gives none, the old memory stays: a partner still
 * waits for what is written there. */
static sh_rc take_again(struct sh_run *r)
{
    struct sh_kept *k = r->kept;
    struct sh_near_slot slot[SH_NEAR_SLOTS], copy[SH_NEAR_SLOTS];
    sh_rc rc;

    memcpy(slot, k->slot, sizeof slot);
    memcpy(copy, k->copy, sizeof copy);
    memset(k->slot, 0, sizeof k->slot);
    memset(k->copy, 0, sizeof k->copy);
    rc = sh_kept_take_slots(r);
    unmap(rc == SH_OK ? slot : k->slot, k->bytes);
    unmap(rc == SH_OK ? copy : k->copy, k->copy_bytes);
    if (rc != SH_OK) {
        memcpy(k->slot, slot, sizeof slot);
        memcpy(k->copy, copy, sizeof copy);
    }
    return rc;
}

/* What failed may pass, except for a lack of memory: one that has none is not asked again. */
static void give_up(struct sh_kept *k, sh_rc rc)
{
    k->refused = rc == SH_E_MEMORY;
    if (k->refused)
        sh_log_warn("no near checkpoints until the next start: %s", sh_error_text());
    sh_error_clear();
    if (!k->refused || !k->listener) /* else it still hears of deaths */
        leave_keeper(k);
    atomic_store(&k->gone, true);
}

/* A keeper that does not answer is asked again so seldom that training waits for it in 1 % of its time. One that ends while
 * it is asked is not: a keeper that is being killed may close a rank's connection before it stops to listen. */
static void give_up_for_now(struct sh_run *r, sh_rc rc, int64_t begin)
{
    struct sh_kept *k = r->kept;
    int64_t waited = sh_now_ns() - begin;
    bool silent = (double)waited >= 1e9 * k->patience, there = !has_hung_up(k->presence);

    if (rc == SH_E_COMM && silent)
        sh_log_warn("rank %d: %s; it is asked again after %.0f s", r->mesh->rank, sh_error_text(),
                    100e-9 * (double)waited);
    else if (rc == SH_E_COMM && there && !k->said_why)
        sh_log_warn("rank %d: the keeper on %s does not let it in: %s; no near checkpoints until one does",
                    r->mesh->rank, r->mesh->host, sh_error_text());
    k->said_why = k->said_why || there;
    if (there)
        k->again_ns = sh_now_ns() + 100 * waited;
    give_up(k, rc);
}

/* Whether a keeper is there again that this rank could join. */
static bool join_again(struct sh_run *r)
{
    struct sh_kept *k = r->kept;
    int64_t begin = sh_now_ns();
    uint64_t keeper;
    int presence;
    sh_rc rc;

    if (begin < k->again_ns)
        return false;
    if (sh_keep_connect(r->folder, 0, &presence) != SH_OK) {
        sh_error_clear();
        return false;
    }
    leave_keeper(k);
    k->presence = presence;
    rc = greet(r, k->patience, &keeper);
    if (rc == SH_OK)
        rc = take_again(r);
    if (rc != SH_OK) {
        give_up_for_now(r, rc, begin);
        return false;
    }
    k->said_gone = k->said_why = false;
    if (r->mesh->node_rank == 0)
        sh_log_warn("a keeper on %s is there again: near checkpoints go on", r->mesh->host);
    return true;
}

bool sh_kept_has_keeper(struct sh_run *r)
{
    struct sh_kept *k = r->kept;

    if (!atomic_load(&k->gone))
        return true;
    if (!k->said_gone && r->mesh->node_rank == 0)
        sh_log_warn("the keeper on %s has ended: no near checkpoints until one is there again; training continues",
                    r->mesh->host);
    if (!k->said_gone &&
        k->to == SH_NONE) { /* nobody waits for what lies there, and the next keeper needs the memory */
        unmap(k->slot, k->bytes);
        unmap(k->copy, k->copy_bytes);
    }
    k->said_gone = true;
    return !k->refused && join_again(r);
}
