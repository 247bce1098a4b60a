/* What has to be the same on all ranks of a job, and what has to fit together, found by planning every rank in turn.
 * All others are compared with the first rank of their stage, which is rank 0 if there is one stage, and only their parts
 * are kept, so that thousands of ranks take little more memory than one. Stages are compared by their messages. */
#include "src/plan/ranks.h"

#include "src/base/mem.h"
#include "src/layout/layout.h"
#include "src/pass/pipeline/links.h"
#include "src/pass/shard/shard.h"
#include "src/program/saved.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* A part of a saved tensor. */
struct part {
    int saved, rank;
    struct sh_range range;
};

struct parts {
    struct part *of;
    int n, cap;
};

/* A collective of rank 0, and its sizes. */
struct coll {
    int op, section;
    struct sh_op copy;
    int64_t in_elems, out_elems;
    enum sh_dtype in_type, out_type;
    int64_t counted; /* ranks for which it has rows; 0: it has no counted rows */
};

/* Each rank is checked while its program is there. Then it is forgotten, except for the parts that it squares and
 * updates. */
struct check {
    const struct sh_ranks *ranks;
    struct sh_ranks_found *out;
    int rank, first;            /* of the job; of its stage, the first */
    const struct sh_program *p; /* of `rank` */
    const struct sh_mesh_shape *mesh;
    struct sh_link **links; /* [stages] their messages */
    int *n_links;

    struct sh_mesh_shape first_mesh;
    struct coll *colls;
    int n_colls, cap_colls;
    struct sh_unit *units;
    int n_units;
    struct sh_saved *saved;
    int n_saved;
    struct sh_section *sections;
    int n_sections;
    unsigned char *data; /* [world] a rank has these sequences */
    struct parts squared, updated;
    int64_t node_bytes;
};

static const char *label(const struct check *c, const struct sh_op *op, char text[SH_OP_LABEL])
{
    sh_program_label(c->p, op, text);
    return text;
}

/* --- meshes --- */

/* Ranks differ only in their place. Strides are compared too: they decide who is a neighbour. */
static bool same_axes(const struct sh_mesh_shape *a, const struct sh_mesh_shape *b)
{
    if (a->n != b->n || a->shard != b->shard || a->inner != b->inner || a->replicate != b->replicate ||
        a->data != b->data || a->rows != b->rows || a->pipeline != b->pipeline)
        return false;
    for (int i = 0; i < a->n; i++)
        if (a->axis[i].size != b->axis[i].size || a->axis[i].stride != b->axis[i].stride)
            return false;
    return true;
}

/* All ranks compute groups with the same arithmetic, so groups agree if each rank finds itself where its index says. */
static sh_rc check_mesh(const struct check *c)
{
    const struct sh_mesh_shape *m = c->mesh;

    if (m->rank != c->rank)
        return sh_fail(SH_E_BUG, "rank %d: its mesh is that of rank %d", c->rank, m->rank);
    if (!same_axes(m, &c->first_mesh) || sh_mesh_ranks(m) != c->ranks->world)
        return sh_fail(SH_E_BUG, "rank %d: axes of its mesh are not those of rank 0 (%d x %d ranks, not %d x %d)",
                       c->rank, sh_group_size(m, m->replicate), sh_group_size(m, m->shard),
                       sh_group_size(&c->first_mesh, c->first_mesh.replicate),
                       sh_group_size(&c->first_mesh, c->first_mesh.shard));
    for (int i = 0; i < c->p->n_groups; i++) {
        sh_group g = c->p->groups[i].axes;

        if (sh_group_member(m, g, sh_group_index(m, g)) != c->rank)
            return sh_fail(SH_E_BUG, "rank %d: is not a member of its group %s", c->rank, c->p->groups[i].name);
    }
    return SH_OK;
}

/* --- collectives --- */

/* Sizes are noted with the operation, since the program that they come from does not stay. */
static struct coll coll_of(const struct sh_program *p, int section, int op)
{
    struct coll c = {.op = op, .section = section, .copy = p->ops[op]};
    int in = c.copy.in[0], out = sh_program_result(&c.copy);

    c.in_elems = in == SH_NONE ? 0 : sh_tensor_elems(&p->tensors[in]);
    c.out_elems = sh_tensor_elems(&p->tensors[out]);
    c.in_type = in == SH_NONE ? SH_F32 : p->tensors[in].dtype;
    c.out_type = p->tensors[out].dtype;
    c.counted = sh_program_counts_rows(&c.copy) ? p->tensors[c.copy.in[1]].dim[1] : 0;
    if (sh_program_cuts(p, &c.copy)) { /* what a rank gets is its own; the hash has the cuts */
        c.counted = c.copy.attr.exchange.cuts - 1;
        c.in_elems = c.out_elems = sh_program_part_elems(p, &c.copy, 1);
        if (c.copy.attr.exchange.sharers) {
            c.counted = c.copy.attr.exchange.sharers;
            c.in_elems = c.out_elems = 0;
        }
    }
    return c;
}

/* Why two collectives differ, in the order in which a reader asks: what it is, over whom, in which stream, of what,
 * where. NULL: they are the same. */
static const char *why_other(const struct coll *a, const struct coll *b)
{
    if (a->section != b->section || a->copy.kind != b->copy.kind || a->copy.unit != b->copy.unit)
        return "another collective";
    if (a->copy.attr.group != b->copy.attr.group)
        return "another group";
    if (a->copy.stream != b->copy.stream)
        return "another stream";
    if (a->in_type != b->in_type || a->out_type != b->out_type)
        return "another type";
    if (a->in_elems != b->in_elems || a->out_elems != b->out_elems || a->counted != b->counted)
        return "another size";
    if (a->counted && (a->copy.attr.exchange.row_elems != b->copy.attr.exchange.row_elems ||
                       a->copy.attr.exchange.back != b->copy.attr.exchange.back ||
                       a->copy.attr.exchange.others != b->copy.attr.exchange.others ||
                       a->copy.attr.exchange.wave != b->copy.attr.exchange.wave))
        return "other rows";
    /* The order is the same, but what one rank prefetches the others do not. */
    return a->op != b->op ? "another place among the operations" : NULL;
}

/* Check the two sides of a collective, which differ by the number of ranks; an all_reduce has one. */
static sh_rc check_sides(const struct check *c, const struct coll *x)
{
    int64_t n = sh_group_size(c->mesh, x->copy.attr.group);
    bool gather = x->copy.kind == SH_OP_ALL_GATHER, all = x->copy.unit != SH_NONE;
    int64_t part = gather ? x->in_elems : x->out_elems, whole = gather ? x->out_elems : x->in_elems;
    char text[SH_OP_LABEL];

    if (x->copy.kind == SH_OP_ALL_REDUCE || sh_program_is_message(&x->copy))
        return x->out_elems > 0 ? SH_OK
                                : sh_fail(SH_E_BUG, "rank %d, operation %d (%s): %lld elements", c->rank, x->op,
                                          label(c, &x->copy, text), (long long)x->out_elems);
    if (x->counted) /* the operands have room for many rows each */
        return (x->copy.attr.exchange.sharers ? n % x->counted == 0 : x->counted == n) && x->in_type == x->out_type
                   ? SH_OK
                   : sh_fail(SH_E_BUG, "rank %d, operation %d (%s): rows of %s for %lld ranks are not %s for %lld",
                             c->rank, x->op, label(c, &x->copy, text), sh_dtype_name(x->in_type), (long long)x->counted,
                             sh_dtype_name(x->out_type), (long long)n);
    if (x->copy.kind == SH_OP_ALL_TO_ALL && part > 0 && part % n == 0) /* a part for each, and one from each */
        part /= n;
    /* A gather over a part of the group goes into a buffer that has room for the padding of the whole group. */
    all = all && x->copy.attr.group == c->p->units[x->copy.unit].shard;
    if (part > 0 && whole / n >= part && (!all || whole == part * n) && x->in_type == x->out_type)
        return SH_OK;
    return sh_fail(SH_E_BUG, "rank %d, operation %d (%s): %lld elements of %s over %lld ranks are not %lld of %s",
                   c->rank, x->op, label(c, &x->copy, text), (long long)part,
                   sh_dtype_name(gather ? x->in_type : x->out_type), (long long)n, (long long)whole,
                   sh_dtype_name(gather ? x->out_type : x->in_type));
}

/* Compare with the collective of rank 0 at the same place of the order, which is how the ranks meet. */
static sh_rc compare(struct check *c, int at, const struct coll *x)
{
    char mine[SH_OP_LABEL], its[SH_OP_LABEL];
    const char *why;

    SH_TRY(check_sides(c, x));
    if (c->rank == c->first) {
        c->colls = sh_grow(c->colls, c->n_colls, &c->cap_colls, sizeof *c->colls);
        c->colls[c->n_colls++] = *x;
        return SH_OK;
    }
    why = at < c->n_colls ? why_other(x, &c->colls[at]) : "one more collective";
    if (!why)
        return SH_OK;
    return sh_fail(SH_E_BUG, "rank %d, operation %d (%s): %s than on rank %d (%s)", c->rank, x->op,
                   label(c, &x->copy, mine), why, c->first,
                   at < c->n_colls ? label(c, &c->colls[at].copy, its) : "it has none there");
}

/* Sections must run equally often on each rank, or one rank would leave the others in a collective. */
static sh_rc check_sections(struct check *c)
{
    if (c->rank == c->first) {
        c->n_sections = c->p->n_sections;
        c->sections = sh_calloc((size_t)c->n_sections + 1, sizeof *c->sections);
        memcpy(c->sections, c->p->sections, (size_t)c->n_sections * sizeof *c->sections);
    }
    for (int s = 0; s < c->p->n_sections || s < c->n_sections; s++)
        if (s >= c->p->n_sections || s >= c->n_sections || c->p->sections[s].kind != c->sections[s].kind ||
            c->p->sections[s].repeat != c->sections[s].repeat)
            return sh_fail(SH_E_BUG, "rank %d, section %d (%s): runs %d times, not as on rank %d", c->rank, s,
                           s < c->p->n_sections ? sh_section_name(c->p->sections[s].kind) : "missing",
                           s < c->p->n_sections ? c->p->sections[s].repeat : 0, c->first);
    return SH_OK;
}

static sh_rc check_collectives(struct check *c)
{
    int n = 0;

    SH_TRY(check_sections(c));
    for (int s = 0; s < c->p->n_sections; s++)
        for (int i = c->p->sections[s].first_op; i < c->p->sections[s].first_op + c->p->sections[s].n_ops; i++) {
            struct coll x;

            if (!sh_op_info(c->p->ops[i].kind)->async)
                continue;
            x = coll_of(c->p, s, i);
            SH_TRY(compare(c, n++, &x));
        }
    if (n != c->n_colls)
        return sh_fail(SH_E_BUG, "rank %d: %d collectives, but rank %d has %d; the first that it lacks is operation %d",
                       c->rank, n, c->first, c->n_colls, c->colls[n].op);
    return SH_OK;
}

/* --- units and their parts --- */

/* Compare names, sizes and groups of units, and check that chunks reach to the last element. */
static sh_rc check_units(struct check *c)
{
    if (c->rank == c->first) {
        c->n_units = c->p->n_units;
        c->units = sh_calloc((size_t)c->n_units + 1, sizeof *c->units);
        memcpy(c->units, c->p->units, (size_t)c->n_units * sizeof *c->units);
    }
    if (c->p->n_units != c->n_units)
        return sh_fail(SH_E_BUG, "rank %d: %d units, but rank %d has %d", c->rank, c->p->n_units, c->first, c->n_units);
    for (int i = 0; i < c->n_units; i++) {
        const struct sh_unit *a = &c->p->units[i], *b = &c->units[i];

        if (strcmp(a->name, b->name) || a->room != b->room || (a->elems != b->elems && !a->split) ||
            a->chunk != b->chunk || a->shard != b->shard || a->replicate != b->replicate)
            return sh_fail(SH_E_BUG,
                           "rank %d, unit %s: %lld elements in chunks of %lld, but on rank %d %lld in chunks of %lld",
                           c->rank, a->name, (long long)a->elems, (long long)a->chunk, c->first, (long long)b->elems,
                           (long long)b->chunk);
        if (a->chunk * sh_group_size(c->mesh, a->shard) < a->elems)
            return sh_fail(SH_E_BUG, "rank %d, unit %s: chunks of %lld do not cover its %lld elements", c->rank,
                           a->name, (long long)a->chunk, (long long)a->elems);
    }
    return SH_OK;
}

/* All ranks list the same saved tensors, whatever they hold of them. */
static sh_rc check_saved(struct check *c)
{
    if (c->rank == 0) {
        c->n_saved = c->p->n_saved;
        c->saved = sh_calloc((size_t)c->n_saved + 1, sizeof *c->saved);
        memcpy(c->saved, c->p->saved, (size_t)c->n_saved * sizeof *c->saved);
    }
    for (int i = 0; i < c->n_saved || i < c->p->n_saved; i++) {
        const struct sh_saved *a = &c->p->saved[i], *b = &c->saved[i];

        if (i >= c->n_saved || i >= c->p->n_saved || strcmp(a->name, b->name) || a->elems != b->elems ||
            a->trainable != b->trainable)
            return sh_fail(SH_E_BUG, "rank %d, saved tensor %d (%s): not as on rank 0", c->rank, i,
                           i < c->p->n_saved ? a->name : "missing");
    }
    return SH_OK;
}

static void add_part(struct parts *l, int saved, int rank, int64_t begin, int64_t end)
{
    l->of = sh_grow(l->of, l->n, &l->cap, sizeof *l->of);
    l->of[l->n++] = (struct part){saved, rank, {begin, end}};
}

/* Note a stretch of a unit, by the elements of saved tensors that it holds: ranks may hold different bands in equal
 * units. Stretches past the last element of a small unit are empty. */
static void add_stretch(struct check *c, struct parts *l, const struct sh_unit *u, int64_t begin, int64_t end)
{
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &c->p->params[i];
        int64_t from = begin - param->unit_elems, to = end - param->unit_elems;

        to = to < param->elems ? to : param->elems;
        for (int64_t at = from > 0 ? from : 0; at < to;) {
            struct sh_rng_runs run = sh_saved_run(c->p, param, at, to - at);

            for (int64_t k = 0; k < run.count; k++)
                add_part(l, param->saved, c->rank, run.first + k * run.stride, run.first + k * run.stride + run.n);
            at += run.n * run.count;
        }
    }
}

/* Where this rank's chunk of the unit begins. */
static int64_t chunk_begin(const struct check *c, const struct sh_unit *u)
{
    return u->chunk * sh_group_index(c->mesh, u->shard);
}

/* Note what an operation reads of the chunk, in elements of the unit. */
static sh_rc note_squares(struct check *c, const struct sh_op *op)
{
    const struct sh_unit *u = &c->p->units[op->unit];
    const struct sh_tensor *t = &c->p->tensors[op->in[0]];
    int64_t begin = chunk_begin(c, u) + t->base_elems;

    add_stretch(c, &c->squared, u, begin, begin + t->dim[0]);
    return SH_OK;
}

/* Whether an operation moves parameters, not only what will move them. */
static bool moves_params(const struct sh_program *p, const struct sh_op *op)
{
    return sh_op_info(op->kind)->runs && p->tensors[op->out[0]].mem != SH_MEM_GRAD;
}

/* Note what an operation updates. Its runs lie end to end from the beginning of that, unless it is of some parameters
 * only; no two overlap. Replicas update the same, so one of them is enough. */
static sh_rc note_update(struct check *c, int i, const struct sh_op *op)
{
    const struct sh_unit *u = &c->p->units[op->unit];
    int64_t begin = chunk_begin(c, u) + sh_shard_updated(c->p, op).begin, at = 0;
    char text[SH_OP_LABEL];

    for (int k = op->attr.runs.first; k < op->attr.runs.first + op->attr.runs.count; k++) {
        bool may_skip = op->attr.runs.of != SH_RUNS_ALL;

        if (k >= c->p->n_runs || c->p->runs[k].begin < at || (c->p->runs[k].begin != at && !may_skip) ||
            c->p->runs[k].end <= c->p->runs[k].begin || c->p->runs[k].end > u->chunk)
            return sh_fail(SH_E_BUG,
                           "rank %d, operation %d (%s): runs of weight decay do not lie end to end in its chunk",
                           c->rank, i, label(c, op, text));
        if (sh_group_index(c->mesh, u->replicate) == 0)
            add_stretch(c, &c->updated, u, begin + c->p->runs[k].begin, begin + c->p->runs[k].end);
        at = c->p->runs[k].end;
    }
    return SH_OK;
}

/* Each element of a gradient must count once in the norm, and be updated once: replicas share the squares, and repeat
 * the updates. An update that is carried into a micro-step is the same update once more, so it is not counted. */
static sh_rc note_parts(struct check *c)
{
    for (int s = 0; s < c->p->n_sections; s++) {
        const struct sh_section *section = &c->p->sections[s];

        for (int i = section->first_op; i < section->first_op + section->n_ops; i++) {
            const struct sh_op *op = &c->p->ops[i];

            if (op->kind == SH_OP_SUMSQ && op->unit != SH_NONE)
                SH_TRY(note_squares(c, op));
            else if (moves_params(c->p, op) && !sh_program_carried(section, op))
                SH_TRY(note_update(c, i, op));
        }
    }
    return SH_OK;
}

/* Sort the parts of a tensor by place, so that a gap or an overlap shows between two neighbours. */
static int by_place(const void *a, const void *b)
{
    const struct part *x = a, *y = b;

    if (x->saved != y->saved)
        return x->saved < y->saved ? -1 : 1;
    return (x->range.begin > y->range.begin) - (x->range.begin < y->range.begin);
}

static sh_rc not_covered(const struct check *c, int saved, int64_t from, int64_t to, int rank, const char *what)
{
    return sh_fail(SH_E_BUG, "%s: elements %lld to %lld are %s by %s, next to those of rank %d", c->saved[saved].name,
                   (long long)(from < to ? from : to), (long long)(from < to ? to : from), what,
                   from < to ? "no rank" : "two ranks", rank);
}

static bool has_gradients(const struct sh_saved *s)
{
    return s->trainable && !sh_param_info(s->role)->still && s->role != SH_PARAM_MOMENT;
}

/* Check that parts cover each tensor with gradients from the first to the last element, without gap or overlap, and nothing
 * of others. */
static sh_rc check_covered(const struct check *c, struct parts *l, const char *what)
{
    int k = 0;

    if (l->n)
        qsort(l->of, (size_t)l->n, sizeof *l->of, by_place);
    for (int i = 0; i < c->n_saved; i++) {
        int64_t at = 0, end = has_gradients(&c->saved[i]) ? c->saved[i].elems : 0;
        int rank = 0;

        for (; k < l->n && l->of[k].saved == i; k++) {
            rank = l->of[k].rank;
            if (l->of[k].range.begin != at)
                return not_covered(c, i, at, l->of[k].range.begin, rank, what);
            at = l->of[k].range.end;
        }
        if (at != end)
            return not_covered(c, i, at, end, rank, what);
    }
    return SH_OK;
}

/* --- batch, memory --- */

/* A micro-step has the same number of sequences everywhere, and all of them together are the global batch. */
static sh_rc check_data(struct check *c)
{
    int index = sh_group_index(c->mesh, c->mesh->data), parts = sh_group_size(c->mesh, c->mesh->data), micro = 0;
    int64_t rows = (int64_t)c->ranks->batch * (c->ranks->runs > 1 ? c->ranks->runs : 1) * c->p->unrolled;
    const struct sh_tensor *tokens = c->p->port[SH_PORT_TOKENS] == SH_NONE ? NULL
                                                                           : &c->p->tensors[c->p->port[SH_PORT_TOKENS]];

    for (int s = 0; s < c->p->n_sections; s++)
        micro += c->p->sections[s].kind <= SH_SECTION_ONLY && c->p->sections[s].kind != SH_SECTION_INIT
                     ? c->p->sections[s].repeat * c->p->unrolled
                     : 0;
    if (tokens && tokens->dim[0] != rows)
        return sh_fail(SH_E_BUG, "rank %d: a micro-step of %lld sequences, but the others have %lld", c->rank,
                       (long long)tokens->dim[0], (long long)rows);
    if ((int64_t)micro * c->ranks->batch * parts != c->ranks->sequences)
        return sh_fail(SH_E_BUG, "rank %d: %d micro-steps of %d sequences on %d ranks are not the %lld of a step",
                       c->rank, micro, c->ranks->batch, parts, (long long)c->ranks->sequences);
    c->data[index]++;
    return SH_OK;
}

static sh_rc check_sequences(const struct check *c)
{
    int parts = sh_group_size(&c->first_mesh, c->first_mesh.data), each = c->ranks->world / parts;

    for (int i = 0; i < parts; i++)
        if (c->data[i] != each)
            return sh_fail(SH_E_BUG, "part %d of the batch is read by %d ranks, not by %d", i, c->data[i], each);
    return SH_OK;
}

/* Ranks come in the order of their nodes, so one sum that starts again with each node is enough. */
static sh_rc check_memory(struct check *c)
{
    const struct sh_ranks *r = c->ranks;
    int64_t mine = c->p->arena_bytes;

    if (c->rank % r->ranks_per_node == 0)
        c->node_bytes = 0;
    c->node_bytes += mine;
    if (mine > c->out->most_bytes) {
        c->out->most_bytes = mine;
        c->out->largest_rank = c->rank;
    }
    if (c->node_bytes > c->out->node_bytes) {
        c->out->node_bytes = c->node_bytes;
        c->out->fullest_node = c->rank / r->ranks_per_node;
    }
    if (r->rank_bytes && mine > r->rank_bytes)
        return sh_fail(SH_E_MEMORY, "rank %d needs %lld bytes, but may take only %lld", c->rank, (long long)mine,
                       (long long)r->rank_bytes);
    if (r->node_bytes && c->node_bytes > r->node_bytes)
        return sh_fail(SH_E_MEMORY, "node %d (ranks to %d) needs %lld bytes, but has only %lld",
                       c->rank / r->ranks_per_node, c->rank, (long long)c->node_bytes, (long long)r->node_bytes);
    return SH_OK;
}

static void note_state(struct check *c)
{
    int64_t owned = 0;

    for (int i = 0; i < c->n_units; i++) {
        const struct sh_unit *u = &c->p->units[i];
        struct sh_range r = sh_program_owned(c->p, u, c->mesh);

        owned += u->trainable ? r.end - r.begin : 0;
    }
    if (c->rank == 0 || owned < c->out->state_least)
        c->out->state_least = owned;
    if (owned > c->out->state_most)
        c->out->state_most = owned;
}

static int stages_of(const struct check *c)
{
    return sh_group_size(&c->first_mesh, c->first_mesh.pipeline);
}

/* Collectives of a step of the stage that has been checked; the most of all stages count. */
static void end_stage(struct check *c)
{
    int n = 0;

    for (int i = 0; i < c->n_colls; i++)
        n += c->sections[c->colls[i].section].repeat;
    c->out->collectives = n > c->out->collectives ? n : c->out->collectives;
    free(c->units);
    free(c->sections);
    c->units = NULL;
    c->sections = NULL;
    c->n_colls = 0;
}

/* Stages are neighbouring ranks. The first rank of each is the one that the others are compared with. */
static void begin_rank(struct check *c)
{
    int stage = sh_group_index(c->mesh, c->mesh->pipeline);

    if (c->rank == 0) {
        c->first_mesh = *c->mesh;
        c->links = sh_calloc((size_t)stages_of(c), sizeof *c->links);
        c->n_links = sh_calloc((size_t)stages_of(c), sizeof *c->n_links);
    }
    if (c->links[stage])
        return;
    end_stage(c);
    c->first = c->rank;
    c->n_links[stage] = sh_links_of(c->p, &c->links[stage]);
}

static sh_rc check_rank(struct check *c, int rank)
{
    c->rank = rank;
    SH_TRY(c->ranks->get(c->ranks->from, rank, &c->p, &c->mesh));
    begin_rank(c);
    SH_TRY(check_mesh(c));
    SH_TRY(check_units(c));
    SH_TRY(check_saved(c));
    SH_TRY(check_collectives(c));
    SH_TRY(note_parts(c));
    SH_TRY(check_data(c));
    note_state(c);
    return check_memory(c);
}

sh_rc sh_ranks_check(const struct sh_ranks *ranks, struct sh_ranks_found *out)
{
    struct check c = {.ranks = ranks, .out = out, .data = sh_calloc((size_t)ranks->world, 1)};
    sh_rc rc = SH_OK;

    memset(out, 0, sizeof *out);
    for (int r = 0; r < ranks->world && rc == SH_OK; r++)
        rc = check_rank(&c, r);
    if (rc == SH_OK)
        rc = check_covered(&c, &c.squared, "squared");
    if (rc == SH_OK)
        rc = check_covered(&c, &c.updated, "updated");
    if (rc == SH_OK)
        rc = check_sequences(&c);
    if (rc == SH_OK && stages_of(&c) > 1)
        rc = sh_links_check((const struct sh_link *const *)c.links, c.n_links, stages_of(&c));
    end_stage(&c);
    for (int i = 0; c.links && i < stages_of(&c); i++)
        free(c.links[i]);
    free(c.links);
    free(c.n_links);
    free(c.data);
    free(c.colls);
    free(c.saved);
    free(c.squared.of);
    free(c.updated.of);
    return rc;
}

/* --- programs of a request --- */

struct sh_ranks_built {
    struct sh_build b;
    struct sh_program **of; /* [2: the last of a shard group][places in the groups tensor, inner and pipeline together];
                               NULL: not built yet */
    int n;                  /* both together */
};

/* Ranks with the same place in it have the same program, but for views of their own elements (sh_pass_rank). A job builds each
 * rank's own; so that an order of operations that depends on those views is found, the last of a shard group, whose parts are
 * the smallest, has one of its own. */
static sh_group of_programs(const struct sh_mesh_shape *mesh)
{
    return mesh->tensor | mesh->inner | mesh->pipeline;
}

sh_rc sh_ranks_build(const struct sh_build *b, struct sh_ranks_built **out)
{
    int n = 2 * sh_group_size(&b->options.mesh, of_programs(&b->options.mesh));

    *out = sh_calloc(1, sizeof **out);
    **out = (struct sh_ranks_built){.b = *b, .of = sh_calloc((size_t)n, sizeof *(*out)->of), .n = n};
    (*out)->b.limit_bytes = 0; /* memory is checked together with that of the others */
    return SH_OK;
}

void sh_ranks_free(struct sh_ranks_built *b)
{
    for (int i = 0; i < b->n; i++)
        sh_program_destroy(b->of[i]);
    free(b->of);
    free(b);
}

sh_rc sh_ranks_get(void *built, int rank, const struct sh_program **p, const struct sh_mesh_shape **mesh)
{
    struct sh_ranks_built *l = built;
    const struct sh_mesh_shape *m = &l->b.options.mesh;
    struct sh_program **mine;
    bool last;

    l->b.options.mesh.rank = rank;
    last = sh_group_index(m, m->shard) == sh_group_size(m, m->shard) - 1;
    l->b.options.segment_rank = l->b.options.segment_ranks ? rank % l->b.options.segment_ranks : 0;
    mine = &l->of[(last ? l->n / 2 : 0) + sh_group_index(m, of_programs(m))];
    if (!*mine)
        SH_TRY(sh_pass_build(&l->b, mine));
    else
        sh_pass_rank(&l->b.options, *mine);
    *p = *mine;
    *mesh = m;
    return SH_OK;
}
