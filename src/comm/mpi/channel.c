#include "src/comm/mpi/channel.h"

#include "src/base/mem.h"
#include "src/comm/mpi/levels.h"
#include "src/comm/parts.h"

#include <stdlib.h>

/* Staging is for SH_DIRECT_ROUNDS rounds of size - 1 sources, or for what two levels need in addition to their shared
 * memory. Zeroed pages cost nothing until they are used, so a channel that only gathers has none. */
static void size_staging(struct sh_channel *ch)
{
    int64_t sources = (int64_t)SH_DIRECT_ROUNDS * (ch->size - 1);
    ch->stage_bytes = sh_part_stage_bytes(sources);
    if (ch->levels) {
        sources = sh_levels_stages(ch->levels);
        ch->stage_bytes = ch->levels->stage_bytes;
    }
    ch->staging_bytes = ch->stage_bytes * sources;
    ch->staging = sh_calloc((size_t)ch->staging_bytes, 1);
}

/* Deal out requests and staging to the slots: 2 * peers requests each, one to send and one to receive for each peer. In
 * two levels the direct algorithm still runs what needs no staging, with the same requests. */
static void share_out(struct sh_channel *ch)
{
    int peers = ch->size - 1;
    for (int i = 0; i < SH_DIRECT_ROUNDS; i++) {
        ch->direct.round[i].request = ch->request + (ptrdiff_t)i * 2 * peers;
        ch->direct.round[i].staging = ch->levels ? NULL : ch->staging + i * peers * ch->stage_bytes;
    }
}

/* Collective in the group. The communicator is the channel's own copy, so that messages of two channels are never
 * confused. */
sh_rc sh_channel_open(struct sh_channel *ch, int stream, sh_group group, const struct sh_comm *c)
{
    const struct sh_mesh *mesh = c->mesh;
    *ch = (struct sh_channel){
        .c = c,
        .stream = stream,
        .group = group,
        .comm = MPI_COMM_NULL,
        .rank = sh_group_index(&mesh->shape, group),
        .size = sh_group_size(&mesh->shape, group),
    };
    if (ch->size == 1)
        return SH_OK;
    SH_MPI(MPI_Comm_dup(sh_mesh_comm(mesh, group), &ch->comm));
    SH_TRY(sh_mesh_return_errors(ch->comm));
    ch->source = sh_calloc((size_t)ch->size, sizeof *ch->source);
    ch->request = sh_calloc((size_t)(SH_DIRECT_ROUNDS * 2 * (ch->size - 1)), sizeof *ch->request);
    SH_TRY(sh_levels_open(ch));
    size_staging(ch);
    share_out(ch);
    if (ch->levels)
        sh_levels_share_out(ch);
    return SH_OK;
}

void sh_channel_close(struct sh_channel *ch)
{
    if (ch->size <= 1)
        return;
    if (ch->comm != MPI_COMM_NULL)
        MPI_Comm_free(&ch->comm);
    sh_levels_close(ch);
    free(ch->place);
    free(ch->to);
    free(ch->from);
    free(ch->staging);
    free(ch->request);
    free(ch->source);
}

/* Only a channel whose ranks all lie in the segment can use it. place[i] is the i-th rank's number in the segment. */
void sh_channel_set_segment(struct sh_channel *ch, const struct sh_mesh *mesh, const struct sh_comm_segment *w)
{
    int first = mesh->rank - w->rank;
    bool inside = ch->size > 1;

    if (inside)
        ch->place = sh_calloc((size_t)ch->size, sizeof *ch->place);
    for (int i = 0; i < ch->size && inside; i++) {
        ch->place[i] = sh_group_member(&mesh->shape, ch->group, i) - first;
        inside = ch->place[i] >= 0 && ch->place[i] < w->ranks;
    }
    ch->segment = inside ? w : NULL;
}

/* Choose the first algorithm that takes the collective. All ranks choose the same one, since fits() looks only at what
 * is equal everywhere; direct takes all. */
sh_rc sh_channel_begin(struct sh_channel *ch)
{
    static const struct sh_algo *const algos[] = {&sh_algo_device, &sh_algo_message, &sh_algo_alone, &sh_algo_segment,
                                                  &sh_algo_small,  &sh_algo_levels,  &sh_algo_direct};
    int i = 0;
    while (!algos[i]->fits(ch, &ch->coll))
        i++;
    ch->algo = algos[i];
    return ch->algo->begin(ch);
}

/* The tables stay for the next one. */
sh_rc sh_channel_find_parts(struct sh_channel *ch)
{
    if (!ch->to) {
        ch->to = sh_calloc((size_t)ch->size, sizeof *ch->to);
        ch->from = sh_calloc((size_t)ch->size, sizeof *ch->from);
    }
    return sh_part_find(&ch->coll, ch->size, ch->rank, ch->to, ch->from);
}

sh_rc sh_channel_look(const struct sh_channel *ch, MPI_Request *request, int *arrived)
{
    *arrived = 1;
    if (ch->c->blocks)
        SH_MPI(MPI_Wait(request, MPI_STATUS_IGNORE));
    else
        SH_MPI(MPI_Test(request, arrived, MPI_STATUS_IGNORE));
    return SH_OK;
}

struct sh_channel *sh_channel_oldest(struct sh_channel *ch, int n)
{
    struct sh_channel *oldest = NULL;
    for (int i = 0; i < n; i++)
        if (ch[i].current != 0 && (oldest == NULL || ch[i].start_ns < oldest->start_ns))
            oldest = &ch[i];
    return oldest;
}
