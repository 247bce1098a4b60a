#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/edge.h"
#include "io/checkpoint/file/extents.h"
#include "io/move/replicas.h"
#include "io/move/stages.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURN = 8 }; /* blocks that a replica reads before handing them on */
enum { SHORT_BYTES = 64 << 10 };

/* A load by all ranks; the stages below fill it one after the other. */
struct load {
    const char *path;
    enum sh_cfg_trust trust;
    const struct sh_ckpt_set *set;
    struct sh_ckpt_set fewer; /* `set` without its last state, which the file lacks */
    int rank, world;
    struct sh_file_direct file;
    int64_t *place; /* [set->n_tensors]: position of each tensor in the index */
    struct sh_ckpt_index index;
    struct sh_ckpt_extents wanted;
    bool share; /* ranks that want the same data read it together */
    struct sh_move_replicas replicas;
    sh_rc handed;               /* the first of the blocks from other replicas that is bad */
    struct sh_ckpt_parts parts; /* of blocks that this rank reads only in part */
    struct sh_move_stages stages;
};

/* Rank 0 only: owner and mode are the same for all ranks, and 1000 ranks that query one metadata server at the same
 * time are a burden. */
static sh_rc look_at_owner(void *arg)
{
    struct load *l = arg;
    return sh_ckpt_trusted(l->path, l->trust);
}

/* Rank 0 only; match() sends it to the others. */
static sh_rc read_index(void *arg)
{
    struct load *l = arg;
    return sh_ckpt_index_read(l->path, &l->index);
}

/* What to do about a tensor that the file lacks, or the model. A model has a bias of routers by keys alone. */
static const char *advice(const char *name, bool lacks)
{
    const char *ending = sh_param_info(SH_PARAM_ROUTER_BIAS)->ending;
    size_t n = strlen(name), k = strlen(ending);
    if (n > k && strcmp(name + n - k, ending) == 0)
        return lacks ? "leave out model.router_bias and moe.load_balance_coeff" : "give model.router_bias=true";
    if (lacks && strcmp(name, "score.weight") == 0)
        return "the checkpoint of a language model has none: `sherd ckpt export` makes a folder of it, from which "
               "(--model.hf) a run begins with a new one";
    return "is it from another model?";
}

static sh_rc match_tensor(struct load *l, int i)
{
    const struct sh_ckpt_tensor *t = &l->set->tensors[i];
    char want[100], have[100];
    l->place[i] = sh_ckpt_index_find(&l->index, t->name, i);
    if (l->place[i] < 0)
        return sh_fail(SH_E_DATA, "%s has no tensor %s %s, which this model needs; %s", l->path, t->name,
                       sh_str_shape(t->ndim, t->dim, want), advice(t->name, true));
    const struct sh_ckpt_entry *e = &l->index.entry[l->place[i]];
    if (e->ndim != t->ndim || memcmp(e->dim, t->dim, (size_t)t->ndim * sizeof *t->dim) != 0)
        return sh_fail(SH_E_DATA, "%s: %s has shape %s, but this model needs %s; is it from another model?", l->path,
                       t->name, sh_str_shape(e->ndim, e->dim, have), sh_str_shape(t->ndim, t->dim, want));
    for (int s = 0; s < l->set->states.n; s++)
        if ((!t->states || t->states >> s & 1u) &&
            !sh_ckpt_has(e, sh_ckpt_states_find(&l->index.states, l->set->states.name[s])))
            return sh_fail(SH_E_DATA, "%s has no %s of %s, which this run's optimizer needs", l->path,
                           l->set->states.name[s], t->name);
    return SH_OK;
}

/* Tensors of the model that the set lacks. Those that are only states of an optimizer may be left out. */
static int64_t count_extra(const struct load *l)
{
    int64_t n = sh_ckpt_index_models(&l->index);
    for (int i = 0; i < l->set->n_tensors; i++)
        n -= sh_ckpt_has(&l->index.entry[l->place[i]], SH_CKPT_MODEL);
    return n;
}

/* Names the first tensor that the model does not have. At least one exists, since the file has more tensors and all of
 * the model's were found. */
static sh_rc name_extra(const struct load *l)
{
    char *used = sh_calloc((size_t)l->index.n + 1, 1);
    int64_t i = 0;
    for (int k = 0; k < l->set->n_tensors; k++)
        used[l->place[k]] = 1;
    while (i < l->index.n && used[i])
        i++;
    free(used);
    char have[100];
    return sh_fail(SH_E_DATA, "%s has %lld tensors more than this model, the first of them %s %s; %s", l->path,
                   (long long)count_extra(l), l->index.entry[i].name,
                   sh_str_shape(l->index.entry[i].ndim, l->index.entry[i].dim, have),
                   advice(l->index.entry[i].name, false));
}

/* More states than the run needs are not an error: parameters alone can be loaded from any file. */
static sh_rc match_states(struct load *l)
{
    int last = l->set->states.n - 1;
    if (l->set->may_lack && sh_ckpt_states_find(&l->index.states, l->set->states.name[last]) < 0) {
        l->fewer = *l->set;
        l->fewer.states.n = last;
        l->set = &l->fewer;
    }
    int state;
    SH_TRY(sh_ckpt_index_state(&l->index, l->path, l->set->states.name[SH_CKPT_MODEL], &state));
    for (int s = 1; s < l->set->states.n; s++)
        if (sh_ckpt_states_find(&l->index.states, l->set->states.name[s]) < 0)
            return sh_fail(SH_E_DATA, "%s has no %s, which this run's optimizer needs; is it from another optimizer?",
                           l->path, l->set->states.name[s]);
    return SH_OK;
}

/* Collective. From here on every rank has the index and knows where its tensors are. */
static sh_rc match(void *arg)
{
    struct load *l = arg;
    SH_TRY(sh_ckpt_index_share(&l->index, l->path, l->rank));
    SH_TRY(match_states(l));
    l->place = sh_calloc((size_t)l->set->n_tensors + 1, sizeof *l->place);
    for (int i = 0; i < l->set->n_tensors; i++)
        SH_TRY(match_tensor(l, i));
    return count_extra(l) > 0 ? name_extra(l) : SH_OK;
}

static sh_rc open_data(void *arg)
{
    struct load *l = arg;
    return sh_ckpt_index_open_data(&l->index, l->path, &l->file.fd);
}

/* Makes the list of extents that this rank wants, cut at blocks. */
static sh_rc plan_reads(void *arg)
{
    struct load *l = arg;
    l->wanted.stops = true;
    return sh_ckpt_extents_of_set(&l->wanted, l->set, &l->index, l->place);
}

/* Ranks that want exactly the same extents are replicas of one shard. The request's hash finds them without knowing the
 * mesh. Collective. */
static sh_rc find_replicas(void *arg)
{
    struct load *l = arg;
    uint64_t wanted = 0;
    for (int i = 0; i < l->wanted.n; i++) {
        const struct sh_ckpt_extent *s = &l->wanted.extent[i];
        int64_t what[] = {s->state, s->entry->first_block + s->block, s->at, s->elems,
                          sh_floats_bytes(s->data, SH_NF4_ELEMS)};
        wanted = sh_mix64(wanted ^ sh_hash64(what, sizeof what));
    }
    return l->share ? sh_move_replicas_find(wanted, &l->replicas) : SH_OK;
}

/* Whether what this rank wants is scattered over the file in short stretches, between those of others: columns of
 * matrices. */
static bool wants_short_runs(const struct sh_ckpt_extents *wanted)
{
    int64_t bytes = 0, stretches = 0, end = -1;
    for (int i = 0; i < wanted->n; i++) {
        int64_t at = sh_ckpt_extent_at(&wanted->extent[i]);
        stretches += at != end;
        bytes += wanted->extent[i].elems * 4;
        end = at + wanted->extent[i].elems * 4;
    }
    return bytes < stretches * SHORT_BYTES;
}

/* Bypasses the page cache, unless ranks read the same bytes, or the same pages: the ranks of a node then share what is
 * in the cache. */
static sh_rc choose_way(void *arg)
{
    struct load *l = arg;
    long long elems[2] = {0};
    for (int i = 0; i < l->wanted.n; i++)
        elems[0] += l->wanted.extent[i].elems;
    elems[0] /= l->replicas.size;
    for (int64_t i = 0; i < l->index.n; i++)
        elems[1] += l->rank == 0 ? sh_ckpt_all_elems(&l->index.entry[i]) : 0;
    SH_TRY(sh_mesh_sum_i64(elems, 2));
    if (elems[0] <= elems[1] && !wants_short_runs(&l->wanted))
        sh_file_direct_open(l->path, l->file.fd, false, &l->file);
    return SH_OK;
}

static sh_rc read_turn(void *arg, int first, int n)
{
    struct load *l = arg;
    struct sh_ckpt_extents turn = {.extent = l->wanted.extent + first, .n = n, .stops = true};
    return sh_ckpt_extents_read(&turn, &l->file, &l->index);
}

/* The others check the data that they receive, since the network may damage it, too. */
static sh_rc hand_extent(void *arg, int i, int root)
{
    struct load *l = arg;
    struct sh_ckpt_extent *s = &l->wanted.extent[i];
    SH_TRY(sh_move_replicas_broadcast(&l->replicas, root, s->data, s->elems));
    if (root != l->replicas.rank && l->handed == SH_OK)
        l->handed = sh_ckpt_extent_check(s, &l->index, l->path);
    return SH_OK;
}

static sh_rc read_together(struct load *l)
{
    int any;
    sh_rc own = sh_move_replicas_read(&l->replicas, l->wanted.n, TURN, read_turn, hand_extent, l);
    SH_TRY(sh_move_replicas_any(&l->replicas, own != SH_OK, &any));
    /* Bad data from a replica that failed is not a failure of this rank. */
    return any ? own : l->handed;
}

static sh_rc read_data(void *arg)
{
    struct load *l = arg;
    if (l->replicas.size == 1)
        return sh_ckpt_extents_read(&l->wanted, &l->file, &l->index);
    sh_move_deadline_wait(l->stages.deadline); /* it meets the replicas on the way */
    return read_together(l);
}

/* Adds the blocks that this rank reads only in part; whole blocks have been compared already. */
static void add_edges(struct load *l)
{
    for (int i = 0; i < l->wanted.n; i++) {
        const struct sh_ckpt_extent *s = &l->wanted.extent[i];
        if (s->elems == sh_ckpt_block_elems(s->entry->elems, s->block))
            continue;
        l->parts.part = sh_grow(l->parts.part, l->parts.n, &l->parts.cap, sizeof *l->parts.part);
        l->parts.part[l->parts.n++] =
            (struct sh_ckpt_part){.block = s->state * l->index.n_blocks + s->entry->first_block + s->block,
                                  .begin = (int32_t)s->at,
                                  .end = (int32_t)(s->at + s->elems),
                                  .sum = s->sum};
    }
}

/* Collective, even for a rank without edges: it may be the home of others' blocks. */
static sh_rc check_edges(void *arg)
{
    struct load *l = arg;
    add_edges(l);
    return sh_ckpt_edge_check(&l->parts, &l->index, l->file.fd, l->path, l->world);
}

static const struct sh_move_stage stages[] = {
    {.name = "looking at its owner", .local = true, .rank0 = true, .run = look_at_owner},
    {.name = "reading the index", .local = true, .rank0 = true, .run = read_index},
    {.name = "matching tensors", .run = match},
    {.name = "opening the checkpoint", .local = true, .run = open_data},
    {.name = "planning the reads", .local = true, .run = plan_reads},
    {.name = "finding replicas", .run = find_replicas},
    {.name = "choosing how to read", .run = choose_way},
    {.name = "reading the data", .local = true, .run = read_data},
    {.name = "comparing shared blocks", .run = check_edges},
};

/* Collective. On success *meta belongs to the caller, who frees it. report->damaged tells whether an earlier checkpoint
 * may help: not if the model does not match or the owner is not trusted. */
sh_rc sh_ckpt_load(const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_load_options *options,
                   struct sh_ckpt_meta *meta, struct sh_ckpt_load_report *report)
{
    struct load l = {.path = path,
                     .trust = options->trust,
                     .set = set,
                     .file = {.path = path, .fd = -1, .direct = -1},
                     .share = options->share,
                     .replicas = sh_move_replicas_alone(),
                     .stages = {.stage = stages, .n = sizeof stages / sizeof *stages, .arg = &l}};
    sh_mesh_world(&l.rank, &l.world);
    sh_move_stages_open(&l.stages, sh_strfmt("loading %s", path), options->timeout_seconds);
    sh_rc rc = sh_move_stages_run(&l.stages);
    sh_move_stages_close(&l.stages);
    sh_rc (*last)(void *) = stages[l.stages.next - 1].run;
    report->lacks = l.set == &l.fewer;
    report->damaged = rc == SH_E_DATA && last != match && last != look_at_owner;
    if (rc == SH_OK) {
        *meta = l.index.meta;
        l.index.meta = (struct sh_ckpt_meta){0};
    }
    sh_file_direct_close(&l.file);
    if (l.file.fd >= 0)
        close(l.file.fd);
    sh_move_replicas_free(&l.replicas);
    sh_ckpt_extents_free(&l.wanted);
    free(l.place);
    free(l.parts.part);
    sh_ckpt_index_free(&l.index);
    return rc;
}
