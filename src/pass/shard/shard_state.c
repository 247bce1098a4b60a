/* What a rank keeps between steps: its chunk of each unit, its optimizer state, its gradients. */
#include "src/base/number/nf4.h"
#include "src/layout/layout.h"
#include "src/optim/update.h"
#include "src/pass/shard/shard.h"
#include "src/program/saved.h"

static int keep_in(struct sh_program *p, enum sh_space space, enum sh_mem mem, enum sh_dtype dtype, int64_t elems,
                   const char *unit, const char *what)
{
    struct sh_tensor t = sh_tensor_make(mem, dtype, 1, &elems, "%.40s.%s", unit, what);

    t.persistent = true;
    t.space = space;
    return sh_program_add_tensor(p, &t);
}

static int keep(struct sh_program *p, enum sh_mem mem, enum sh_dtype dtype, int64_t elems, const char *unit,
                const char *what)
{
    return keep_in(p, SH_SPACE_OWN, mem, dtype, elems, unit, what);
}

int sh_shard_chunks(const struct sh_pass_options *opt, const struct sh_unit *u)
{
    return sh_group_size(&opt->mesh, u->shard);
}

int sh_shard_index(const struct sh_pass_options *opt, const struct sh_unit *u)
{
    return sh_group_index(&opt->mesh, u->shard);
}

int sh_shard_replicas(const struct sh_pass_options *opt, const struct sh_unit *u)
{
    return sh_group_size(&opt->mesh, u->replicate);
}

enum sh_space sh_shard_unreduced_space(const struct sh_pass_options *opt, const struct sh_unit *u, enum sh_dtype dtype)
{
    bool sent = dtype == opt->reduce && sh_shard_chunks(opt, u) > 1;

    return opt->segment_ranks && sent ? SH_SPACE_PEERS : SH_SPACE_OWN;
}

/* Replicas share a segment only if the whole job does. */
enum sh_space sh_shard_reduced_space(const struct sh_pass_options *opt, const struct sh_unit *u, enum sh_dtype dtype)
{
    bool sent = dtype == opt->reduce && sh_shard_replicas(opt, u) > 1;

    return opt->segment_ranks == sh_mesh_ranks(&opt->mesh) && sent ? SH_SPACE_PEERS : SH_SPACE_OWN;
}

int sh_shard_view(struct sh_program *p, int base, int64_t first, int ndim, const int64_t *dim, const char *name)
{
    struct sh_tensor v = sh_tensor_make(p->tensors[base].mem, p->tensors[base].dtype, ndim, dim, "%s", name);

    v.persistent = p->tensors[base].persistent;
    v.tier = p->tensors[base].tier;
    v.base = base;
    v.base_elems = first;
    return sh_program_add_tensor(p, &v);
}

/* The bytes of 64 elements of a unit in the form in which it is gathered; 0: it is in the compute type. */
static int64_t block_bytes(const struct sh_unit *u)
{
    return u->packed ? SH_NF4_BLOCK_BYTES : u->coded ? SH_CODE8_BLOCK_BYTES : 0;
}

_Static_assert((int)SH_NF4_ELEMS == (int)SH_LAYOUT_ALIGN && (int)SH_CODE8_ELEMS == (int)SH_LAYOUT_ALIGN,
               "chunks are whole blocks");

/* n elements of a unit's parameters in the form in which it is gathered: in the compute type, or in blocks, where n are
 * whole ones. */
struct sh_tensor sh_shard_stored(const struct sh_program *p, const struct sh_unit *u, enum sh_mem mem, int64_t n,
                                 const char *what)
{
    const int64_t blocks[] = {n / SH_LAYOUT_ALIGN, block_bytes(u)};

    return blocks[1] ? sh_tensor_make(mem, SH_U8, 2, blocks, "%.40s.%s", u->name, what)
                     : sh_tensor_make(mem, p->act, 1, &n, "%.40s.%s", u->name, what);
}

/* NCCL moves 16 bytes at once between multiples of 16 bytes, else each byte by itself, so chunks of blocks are four by four. */
int64_t sh_shard_cut(const struct sh_unit *u, int size)
{
    const int64_t group = block_bytes(u) ? 4 * SH_LAYOUT_ALIGN : SH_LAYOUT_ALIGN;

    return (sh_layout_chunk(u->room, size) + group - 1) / group * group;
}

int64_t sh_shard_place(const struct sh_unit *u, int64_t elem)
{
    return block_bytes(u) ? elem / SH_LAYOUT_ALIGN * block_bytes(u) : elem;
}

int sh_shard_stretch(struct sh_program *p, const struct sh_unit *u, int base, int64_t first, int64_t n)
{
    const int64_t blocks[] = {n / SH_LAYOUT_ALIGN, block_bytes(u)};

    return blocks[1] ? sh_shard_view(p, base, sh_shard_place(u, first), 2, blocks, u->name)
                     : sh_shard_view(p, base, first, 1, &n, u->name);
}

static int keep_stored(struct sh_program *p, const struct sh_unit *u, enum sh_space space, int64_t n, const char *what)
{
    struct sh_tensor t = sh_shard_stored(p, u, u->trainable ? SH_MEM_PARAM : SH_MEM_FROZEN, n, what);

    t.persistent = true;
    t.space = space;
    return sh_program_add_tensor(p, &t);
}

/* Parameters: a chunk in the compute type, from which the others gather, and next to it, with bf16, the remainder of
 * the f32 master; with f16, the master itself. A full copy that lives from update to update holds the rank's own chunk
 * in place, so that gathering it moves nothing twice. In a segment all ranks share that copy, whatever the strategy: it
 * takes no more than their chunks. Over one rank the chunk is the full copy, unless it lives below the device. A frozen
 * unit never changes, so it has only what computing needs. If gathers are in codes, all of this is about the codes, and
 * the chunk in the compute type is beside them: over one rank too, so that each mesh computes with the same numbers. */
static void keep_params(const struct sh_pass_options *opt, struct sh_program *p, struct sh_unit *u)
{
    int size = sh_shard_chunks(opt, u), index = sh_shard_index(opt, u), *sent = u->coded ? &u->codes : &u->compute;

    if (u->balances) {
        u->full = u->compute = keep(p, SH_MEM_PARAM, SH_F32, u->chunk, u->name, "param");
        return;
    }
    if (u->coded)
        u->compute = keep(p, u->trainable ? SH_MEM_PARAM : SH_MEM_FROZEN, p->act, u->chunk, u->name, "param");
    bool shared = opt->segment_ranks > 0 && u->shard == opt->mesh.shard; /* its ranks are a group of the segment */

    if ((opt->strategy.params_resident || u->resident || shared) && size > 1) {
        u->full = keep_stored(p, u, shared ? SH_SPACE_GROUP : SH_SPACE_OWN, u->chunk * size, "full");
        *sent = sh_shard_stretch(p, u, u->full, u->chunk * index, u->chunk);
    } else {
        *sent = keep_stored(p, u, SH_SPACE_OWN, u->chunk, u->coded ? "codes" : "param");
    }
    if (p->act == SH_F16 && u->trainable)
        u->master = keep(p, SH_MEM_MASTER, SH_F32, u->chunk, u->name, "master");
    if (p->act == SH_BF16 && u->trainable)
        u->remainder = keep(p, SH_MEM_REMAINDER, SH_I16, u->chunk, u->name, "remainder");
    if (size == 1 && (!opt->fetched || opt->strategy.params_resident || u->resident))
        u->full = *sent;
}

/* The last tier of host memory; the device's if there is none, as on CPUs. */
static int host_tier(const struct sh_program *p)
{
    int tier = p->n_tiers - 1;

    while (tier > 0 && p->tiers[tier].kind != SH_TIER_HOST)
        tier--;
    return tier;
}

/* Elements of state k on a rank: the most that any has. */
static int64_t state_elems(const struct sh_pass_options *opt, const struct sh_unit *u, int k)
{
    int64_t most = sh_layout_chunk(u->others ? u->others : 1, 1);

    return opt->optim->of_others >> k & 1u && u->others < u->elems && most < u->chunk ? most : u->chunk;
}

/* Replicas share the writing, so each has room only for its part, cut as sh_layout_split() cuts what a rank owns. */
void sh_shard_snapshot(const struct sh_pass_options *opt, struct sh_program *p, struct sh_unit *u)
{
    int64_t part = sh_layout_chunk(u->chunk, sh_shard_replicas(opt, u));
    int64_t bytes = part * sh_dtype_bytes(SH_F32); /* the masters too */

    if (!opt->snapshot)
        return;
    for (int i = 0; i < p->n_states && !u->of_rows; i++) { /* codes are widened */
        int64_t elems = state_elems(opt, u, i);

        bytes +=
            (elems < part ? elems : part) * sh_dtype_bytes(p->state[i].dtype == SH_U8 ? SH_F32 : p->state[i].dtype);
    }
    u->snapshot = keep(p, SH_MEM_SNAPSHOT, SH_F32, bytes / sh_dtype_bytes(SH_F32), u->name, "snapshot");
    p->tensors[u->snapshot].tier = host_tier(p);
}

/* Where the parameters end that have all states. Slices of a file are of all states. */
static int64_t end_of_others(const struct sh_pass_options *opt, const struct sh_program *p, const struct sh_unit *u)
{
    int64_t end = 0;

    if (!opt->optim->of_others || opt->states_away)
        return u->elems;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++)
        if (sh_optim_has(p, SH_RUNS_OTHERS, &p->params[i]))
            end = p->params[i].unit_elems + p->params[i].elems;
    return end;
}

/* The states of a unit: of one type, or in codes but for what belongs to vectors, up to the next whole block. */
static void keep_states(const struct sh_pass_options *opt, struct sh_program *p, struct sh_unit *u)
{
    const int64_t blocks[] = {u->chunk / SH_CODE8_ELEMS, SH_CODE8_BLOCK_BYTES};
    bool any_coded = p->state[0].dtype == SH_U8;
    int64_t wide;

    for (int i = u->first_param; any_coded && i < u->first_param + u->n_params; i++)
        if (sh_param_info(sh_saved_of(p, &p->params[i])->role)->vector)
            u->wide = sh_layout_chunk(p->params[i].unit_elems + p->params[i].elems, 1);
    wide = u->wide < u->chunk ? u->wide : u->chunk;
    for (int i = 0; i < p->n_states; i++) {
        bool coded = p->state[i].dtype == SH_U8;
        struct sh_tensor t = sh_tensor_make(SH_MEM_OPTIM, SH_U8, 2, blocks, "%.40s.%s", u->name, p->state[i].name);

        t.persistent = true;
        if (coded && wide)
            u->wide_state[i] = keep(p, SH_MEM_OPTIM, SH_F32, wide, u->name, p->state[i].name);
        u->state[i] = coded
                          ? sh_program_add_tensor(p, &t)
                          : keep(p, SH_MEM_OPTIM, p->state[i].dtype, state_elems(opt, u, i), u->name, p->state[i].name);
    }
}

static void keep_training(const struct sh_pass_options *opt, struct sh_program *p, struct sh_unit *u)
{
    int64_t sum = u->chunk * sh_shard_chunks(opt, u) * u->leaves; /* all of a gradient that is not reduced yet */
    enum sh_space unreduced = sh_shard_unreduced_space(opt, u, SH_F32);

    u->others = end_of_others(opt, p, u);
    keep_states(opt, p, u);
    sh_shard_snapshot(opt, p, u);
    if (u->balances)
        return;
    u->grad_shard = keep_in(p, sh_shard_reduced_space(opt, u, SH_F32), SH_MEM_GRAD, SH_F32, u->chunk, u->name, "grad");
    if (sum > u->chunk && opt->strategy.sync_last_only && opt->micro_steps > p->unrolled)
        u->grad_full = keep_in(p, unreduced, SH_MEM_GRAD, SH_F32, sum, u->name, "grad_full");
    for (int level = 1; opt->reproducible && 2 << level <= opt->micro_steps / p->unrolled; level++)
        u->grad_level[level] = keep_in(p, unreduced, SH_MEM_GRAD, SH_F32, sum, u->name, "grad_level");
}

/* The states have the optimizer's names, by which checkpoints find them. */
static void name_states(const struct sh_pass_options *opt, struct sh_program *p)
{
    p->n_states = p->n_optim_states = opt->optim->n_states;
    for (int i = 0; i < p->n_states; i++) {
        p->state[i].dtype = opt->state_dtype;
        snprintf(p->state[i].name, sizeof p->state[i].name, "%s", opt->optim->state[i]);
    }
    if (opt->ema_decay > 0)
        p->state[p->n_states++] = (struct sh_state){.dtype = SH_F32, .name = SH_STATE_EMA};
}

static int keep_like(struct sh_program *p, const struct sh_tensor *t)
{
    struct sh_tensor copy = *t;

    copy.persistent = true;
    return sh_program_add_tensor(p, &copy);
}

/* Memory for continuing sequences: keys and values of each block, or its state. */
static void keep_cache(struct sh_program *p, const struct sh_program *micro)
{
    for (int t = 0; t < micro->n_tensors; t++)
        if (micro->tensors[t].mem == SH_MEM_KV)
            keep_like(p, &micro->tensors[t]);
}

/* Ports must be where they were when the section is over. With a cache there is a DECODE, which has views of some. */
static void keep_ports(struct sh_program *p, const struct sh_program *micro)
{
    bool decodes = micro->port[SH_PORT_COUNT] != SH_NONE;

    for (int port = 0; port < SH_PORTS; port++) {
        enum sh_port next = sh_port_row(port)->decode;
        int t = micro->port[port];

        if (t == SH_NONE)
            continue;
        p->port[port] = keep_like(p, &micro->tensors[t]);
        if (decodes && next)
            p->port[next] = sh_shard_view(p, p->port[port], 0, 2, (const int64_t[]){micro->tensors[t].dim[0], 1},
                                          sh_port_row(next)->name);
    }
}

/* Everything that lives between sections is made here, once. */
void sh_shard_state(const struct sh_program *micro, const struct sh_pass_options *opt, struct sh_program *out)
{
    if (opt->segment_ranks)
        out->segment = (struct sh_segment){.ranks = opt->segment_ranks,
                                           .rank = opt->segment_rank,
                                           .group_ranks = sh_group_size(&opt->mesh, opt->mesh.shard)};
    for (int i = SH_STREAMS; i < micro->n_streams; i++) /* of collectives that exchange rows */
        sh_program_add_stream(out, micro->streams[i].name, micro->streams[i].runs);
    if (opt->training)
        name_states(opt, out);
    for (int i = 0; i < micro->n_numbers; i++)
        sh_program_add_numbers(out, micro->numbers[i]);
    for (int i = 0; i < micro->n_saved; i++)
        sh_program_add_saved(out, &micro->saved[i]);
    for (int i = 0; i < micro->n_params; i++)
        sh_program_add_param(out, &micro->params[i]);
    for (int i = 0; i < micro->n_units; i++) {
        struct sh_unit u = micro->units[i];

        if (!u.shard && !u.replicate) {
            u.shard = u.balances ? 0 : opt->mesh.shard;
            u.replicate = opt->mesh.replicate | (opt->mesh.shard & ~u.shard);
        }
        u.room = u.room ? u.room : u.elems;
        u.others = u.elems;
        u.resident |= opt->training && i < opt->resident_units;
        u.coded = opt->gather_coded && !u.packed && !u.balances;
        u.held = u.chunk = sh_shard_cut(&u, sh_shard_chunks(opt, &u));
        keep_params(opt, out, &u);
        if (opt->training && u.trainable)
            keep_training(opt, out, &u);
        sh_program_add_unit(out, u.name);
        out->units[i] = u;
    }
    keep_cache(out, micro);
    keep_ports(out, micro);
    for (enum sh_port port = SH_PORT_SQUARES; opt->training && port <= SH_PORT_SUMSQ; port++)
        sh_program_add_port(out, port, 0, 0, 0);
}
