/* Lifetimes to offsets: one arena, known before the first byte is allocated.
 *
 * Each space (own memory, this rank's part of the segment, its group's part) is laid out separately. Persistent tensors
 * lie at its front, in order. After them each section has the rest to itself: its tensors are placed largest first at
 * the lowest offset that no tensor alive at the same time takes. An output that may overwrite a dying input of the same
 * space shares its storage. At the end the spaces get their places in the arena. Tensors that live in another tier,
 * such as snapshots in host memory and slices of optimizer states in a file, lie there in order. */
#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/base/number/size.h"
#include "src/pass/build.h"
#include "src/pass/memory/lifetime.h"
#include "src/pass/memory/room.h"

#include <stdlib.h>
#include <string.h>

struct block {
    int root;
    /* A storage to place; offset counts from the end of the space's persistent part. */
    int64_t bytes, offset;
    int64_t align;
    struct sh_life life;
};

/* Pages of files, and of mappings: 64 KiB is the largest that Linux has on Arm, and a plan does not depend on the host. */
enum { PAGE = SH_FILE_PAGE, MAPPED_PAGE = 65536 };

struct place {
    struct sh_program *p;
    int64_t persistent[SH_SPACES], bytes[SH_SPACES];
    struct sh_life *life; /* [tensors] */
    int *shares;          /* [tensors] root whose storage this root takes, SH_NONE */
    bool *paged;          /* [tensors] by storage root: moved between the device and a file, which takes whole pages */
    struct block *blocks;
    int n_blocks;
};

/* Scratch depends on device and threads, so it is added here and not by an earlier pass. It is a tensor like others and
 * shares memory with them. */
static void add_scratch(struct sh_program *p, const struct sh_kernel_table *kernels, int threads)
{
    for (int i = 0; i < p->n_ops && kernels->work_bytes; i++) {
        struct sh_op_call call;
        struct sh_tensor t;
        int64_t bytes;

        if (!kernels->run[p->ops[i].kind])
            continue;
        sh_program_call(p, &p->ops[i], NULL, &call);
        bytes = (sh_rows_work_bytes(kernels, &call, threads) + 3) / 4;
        if (!bytes)
            continue;
        t = sh_tensor_make(SH_MEM_WORK, SH_F32, 1, &bytes, "scratch");
        p->ops[i].work = sh_program_add_tensor(p, &t);
    }
}

static int64_t round_up(int64_t bytes, int64_t page)
{
    return (bytes + page - 1) / page * page;
}

/* In the order of the program, so that state of neighbours lies together. Other tiers have no sections, only persistent
 * tensors. */
static void place_persistent(struct place *pl)
{
    bool any_paged = false;

    for (int i = 0; i < pl->p->n_tiers; i++)
        pl->p->tiers[i].bytes = 0;
    for (int i = 0; i < pl->p->n_tensors; i++) {
        struct sh_tensor *t = &pl->p->tensors[i];
        int64_t *end = t->tier ? &pl->p->tiers[t->tier].bytes : &pl->persistent[t->space];

        if (!t->persistent || t->base != SH_NONE)
            continue;
        t->offset_bytes = *end;
        *end += sh_lifetime_bytes(t);
        any_paged |= pl->p->tiers[t->tier].kind == SH_TIER_FILE;
    }
    if (any_paged)
        pl->persistent[SH_SPACE_OWN] = round_up(pl->persistent[SH_SPACE_OWN], PAGE);
    memcpy(pl->bytes, pl->persistent, sizeof pl->bytes);
    pl->p->persistent_bytes = pl->persistent[SH_SPACE_OWN];
}

/* Find the tensors that FETCH and EVICT move between the device and a file. In the segment of a node, pages likewise
 * begin after the persistent part. */
static void find_paged(struct place *pl)
{
    const struct sh_program *p = pl->p;
    int64_t *peers = &pl->persistent[SH_SPACE_PEERS];

    for (int i = 0; i < p->n_ops; i++) {
        bool fetch = p->ops[i].kind == SH_OP_FETCH;
        int home = fetch ? p->ops[i].in[0] : p->ops[i].out[0], copy = fetch ? p->ops[i].out[0] : p->ops[i].in[0];

        if (!sh_op_info(p->ops[i].kind)->moves || p->tiers[p->tensors[home].tier].kind != SH_TIER_FILE)
            continue;
        pl->paged[sh_tensor_root(p, copy)] = true;
        if (p->tensors[sh_tensor_root(p, copy)].space == SH_SPACE_PEERS)
            pl->bytes[SH_SPACE_PEERS] = *peers = round_up(*peers, PAGE);
    }
}

/* Sharing is transitive: c may overwrite b, which has overwritten a. */
static int storage(const struct place *pl, int root)
{
    while (pl->shares[root] != SH_NONE)
        root = pl->shares[root];
    return root;
}

static void share_storage(struct place *pl, const struct sh_section *section)
{
    for (int i = 0; i < section->n_ops; i++) {
        int in, out;

        if (sh_lifetime_inplace(pl->p, section, pl->life, i, &in, &out))
            pl->shares[out] = in;
    }
}

/* One block for each storage, alive until the last of the tensors that share it dies. */
static void collect_blocks(struct place *pl, enum sh_space space)
{
    int *at = sh_calloc((size_t)pl->p->n_tensors + 1, sizeof *at);

    pl->n_blocks = 0;
    for (int t = 0; t < pl->p->n_tensors; t++)
        if (pl->life[t].first != SH_NONE && pl->shares[t] == SH_NONE && pl->p->tensors[t].space == space) {
            at[t] = pl->n_blocks;
            pl->blocks[pl->n_blocks++] = (struct block){.root = t,
                                                        .bytes = sh_lifetime_bytes(&pl->p->tensors[t]),
                                                        .align = pl->paged[t] ? PAGE : 1,
                                                        .life = pl->life[t]};
        }
    for (int t = 0; t < pl->p->n_tensors; t++)
        if (pl->shares[t] != SH_NONE && pl->p->tensors[t].space == space) {
            struct block *b = &pl->blocks[at[storage(pl, t)]];

            b->life.last = b->life.last > pl->life[t].last ? b->life.last : pl->life[t].last;
            b->align = pl->paged[t] ? PAGE : b->align;
        }
    free(at);
}

/* The index breaks ties between equal sizes, so that all ranks and runs get the same offsets. */
static int larger_first(const void *a, const void *b)
{
    const struct block *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->root - y->root;
}

/* Largest first: small ones then fill the holes that large ones leave. Returns the bytes used. */
static int64_t assign_offsets(struct place *pl, int n_ops)
{
    struct sh_room *room = sh_room_create(n_ops);
    int64_t end = 0;

    qsort(pl->blocks, (size_t)pl->n_blocks, sizeof *pl->blocks, larger_first);
    for (int i = 0; i < pl->n_blocks; i++) {
        struct block *b = &pl->blocks[i];

        b->offset = sh_room_lowest(room, b->life, b->bytes, b->align);
        sh_room_take(room, b->life, b->offset, b->bytes);
        end = b->offset + b->bytes > end ? b->offset + b->bytes : end;
    }
    sh_room_destroy(room);
    return end;
}

/* Bytes of the space that the section needs after the persistent tensors. */
static int64_t place_in_space(struct place *pl, enum sh_space space, int n_ops)
{
    int64_t front = pl->persistent[space], peak;

    collect_blocks(pl, space);
    peak = assign_offsets(pl, n_ops);
    for (int i = 0; i < pl->n_blocks; i++)
        pl->p->tensors[pl->blocks[i].root].offset_bytes = front + pl->blocks[i].offset;
    if (front + peak > pl->bytes[space])
        pl->bytes[space] = front + peak;
    return peak;
}

/* Sections run one after the other, so each may use the same memory; the largest one decides. */
static void place_section(struct place *pl, struct sh_section *section)
{
    struct sh_program *p = pl->p;

    sh_lifetime_of_section(p, section, pl->life);
    for (int t = 0; t < p->n_tensors; t++)
        pl->shares[t] = SH_NONE;
    share_storage(pl, section);
    section->peak_bytes = 0;
    for (int space = 0; space < SH_SPACES; space++)
        section->peak_bytes += place_in_space(pl, (enum sh_space)space, section->n_ops);
    for (int t = 0; t < p->n_tensors; t++)
        if (pl->shares[t] != SH_NONE)
            p->tensors[t].offset_bytes = p->tensors[storage(pl, t)].offset_bytes;
}

/* All ranks of a node need as much as this one. */
static sh_rc check_segment(const struct sh_program *p)
{
    const struct sh_segment *w = &p->segment;
    int64_t groups = sh_size_mul(w->ranks / w->group_ranks, w->group_bytes);
    int64_t all = sh_size_add(p->own_bytes, sh_size_add(groups, sh_size_mul(w->ranks, w->peer_bytes)));

    return all < INT64_MAX
               ? SH_OK
               : sh_fail(SH_E_MEMORY,
                         "the %d ranks of a node (mesh.ranks_per_node) would share more than 2^63 bytes; use fewer, "
                         "or a smaller model or training.local_batch_size",
                         w->ranks);
}

/* Turn offsets in a space into offsets in the arena. Without a segment the own part is all of it. */
static sh_rc place_spaces(struct place *pl)
{
    struct sh_program *p = pl->p;
    struct sh_segment *w = &p->segment;
    int64_t at[SH_SPACES] = {0};

    p->own_bytes = pl->bytes[SH_SPACE_OWN];
    p->tiers[0].bytes = p->own_bytes;
    p->arena_bytes = p->own_bytes + pl->bytes[SH_SPACE_PEERS];
    if (w->ranks) {
        p->own_bytes = p->tiers[0].bytes = round_up(p->own_bytes, MAPPED_PAGE);
        w->group_bytes = round_up(pl->bytes[SH_SPACE_GROUP], MAPPED_PAGE);
        w->peer_bytes = round_up(pl->bytes[SH_SPACE_PEERS], MAPPED_PAGE);
        SH_TRY(check_segment(p));
        at[SH_SPACE_GROUP] = p->own_bytes + sh_program_segment_group_at(w, w->rank);
        at[SH_SPACE_PEERS] = p->own_bytes + sh_program_segment_peer_at(w, w->rank);
    }
    for (int t = 0; t < p->n_tensors; t++) {
        if (p->tensors[t].base != SH_NONE)
            continue;
        p->tensors[t].offset_bytes += at[p->tensors[t].space];
        if (p->tensors[t].space == SH_SPACE_GROUP)
            p->arena_bytes += sh_lifetime_share(p, &p->tensors[t]);
    }
    return SH_OK;
}

/* Offsets of views of views add up. */
static void place_views(struct sh_program *p)
{
    for (int i = 0; i < p->n_tensors; i++) {
        int64_t offset = 0;
        int t = i;

        for (; p->tensors[t].base != SH_NONE; t = p->tensors[t].base)
            offset += p->tensors[t].base_elems * sh_dtype_bytes(p->tensors[t].dtype);
        p->tensors[i].offset_bytes = p->tensors[t].offset_bytes + offset;
    }
}

/* After this pass every tensor has its address, as an offset into its tier. */
sh_rc sh_pass_place(const struct sh_build *b, struct sh_program *p)
{
    struct place pl = {.p = p};
    sh_rc rc;

    add_scratch(p, b->kernels, b->threads);
    place_persistent(&pl);
    pl.life = sh_calloc((size_t)p->n_tensors + 1, sizeof *pl.life);
    pl.shares = sh_calloc((size_t)p->n_tensors + 1, sizeof *pl.shares);
    pl.paged = sh_calloc((size_t)p->n_tensors + 1, sizeof *pl.paged);
    pl.blocks = sh_calloc((size_t)p->n_tensors + 1, sizeof *pl.blocks);
    find_paged(&pl);
    for (int i = 0; i < p->n_sections; i++)
        place_section(&pl, &p->sections[i]);
    rc = place_spaces(&pl);
    if (rc == SH_OK)
        place_views(p);
    free(pl.life);
    free(pl.shares);
    free(pl.paged);
    free(pl.blocks);
    return rc;
}
