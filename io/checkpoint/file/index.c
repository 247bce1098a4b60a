#include "io/checkpoint/file/index.h"

#include "io/checkpoint/file/digest.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

const struct sh_ckpt_states sh_ckpt_states_1 = {3, {"model", "optimizer/exp_avg", "optimizer/exp_avg_sq"}, false};

/* In the file the optimizer's states are in this group; users name them without it. */
static const char group[] = "optimizer/";

/* The states of a program: the model, and the optimizer's states by name. */
struct sh_ckpt_states sh_ckpt_states_of(const char *const *names, int n)
{
    struct sh_ckpt_states s = {.n = 1 + n, .name = {"model"}};
    for (int i = 0; i < n; i++)
        snprintf(s.name[1 + i], sizeof s.name[0], "%s%s", group, names[i]);
    return s;
}

/* `name` may be with or without the group. -1: there is none. */
int sh_ckpt_states_find(const struct sh_ckpt_states *states, const char *name)
{
    for (int s = 0; s < states->n; s++) {
        const char *own = states->name[s];
        if (!strcmp(own, name) || (s > 0 && !strcmp(own + strlen(group), name)))
            return s;
    }
    return -1;
}

const char *sh_ckpt_states_text(const struct sh_ckpt_states *states, char text[SH_CKPT_STATES_TEXT])
{
    size_t used = 0;
    for (int s = 0; s < states->n; s++)
        used += (size_t)snprintf(text + used, SH_CKPT_STATES_TEXT - used, "%s%s", s > 0 ? ", " : "",
                                 states->name[s] + (s > 0 ? strlen(group) : 0));
    return text;
}

sh_rc sh_ckpt_index_state(const struct sh_ckpt_index *index, const char *path, const char *name, int *state)
{
    char text[SH_CKPT_STATES_TEXT];
    *state = name ? sh_ckpt_states_find(&index->states, name) : SH_CKPT_MODEL;
    return *state >= 0 ? SH_OK
                       : sh_fail(SH_E_USAGE, "%s has no state %s; it has %s", path, name,
                                 sh_ckpt_states_text(&index->states, text));
}

/* Format 1 has AdamW's states and does not store their names. A file with exactly these states is still written as
 * format 1, so that older programs can read it. */
int sh_ckpt_major(const struct sh_ckpt_states *states)
{
    bool first = states->n == sh_ckpt_states_1.n;
    for (int s = 0; s < states->n && first; s++)
        first = strcmp(states->name[s], sh_ckpt_states_1.name[s]) == 0;
    if (states->masked)
        return 3;
    return first ? 1 : 2;
}

void sh_ckpt_index_alloc(struct sh_ckpt_index *index, int64_t n)
{
    index->n = n;
    index->entry = sh_calloc((size_t)n + 1, sizeof *index->entry);
}

/* Blocks are numbered over all tensors, in the same way for each state: a tensor's block b has number first_block + b,
 * and its digest is digest[state][first_block + b]. */
void sh_ckpt_index_number_blocks(struct sh_ckpt_index *index)
{
    index->n_blocks = 0;
    for (int64_t i = 0; i < index->n; i++) {
        index->entry[i].first_block = index->n_blocks;
        index->n_blocks += sh_ckpt_blocks(index->entry[i].elems);
    }
    for (int s = 0; s < index->states.n; s++)
        index->digest[s] = sh_calloc((size_t)index->n_blocks + 1, sizeof(uint64_t));
}

/* Accepts what the format can store. The caller is this program, so a violation is a bug and not a bad file. */
static sh_rc take_tensor(const struct sh_ckpt_tensor *t, struct sh_ckpt_entry *e)
{
    int64_t elems = 1;
    SH_REQUIRE(t->ndim >= 1 && t->ndim <= SH_CKPT_DIMS_MAX);
    SH_REQUIRE(t->name[0] && !strchr(t->name, '/') && strlen(t->name) <= SH_CKPT_NAME_MAX);
    strcpy(e->name, t->name);
    e->ndim = t->ndim;
    for (int d = 0; d < t->ndim; d++)
        elems *= e->dim[d] = t->dim[d];
    e->elems = t->elems;
    SH_REQUIRE(elems == t->elems && elems > 0);
    return SH_OK;
}

/* Copies the texts, since the index outlives the caller's. */
static void copy_meta(const struct sh_ckpt_meta *from, struct sh_ckpt_meta *to)
{
    *to = *from;
    to->config = sh_strdup(from->config ? from->config : "");
    to->guard = sh_strdup(from->guard ? from->guard : "");
    to->notes = sh_strdup(from->notes ? from->notes : "");
    to->base = sh_strdup(from->base ? from->base : "");
}

sh_rc sh_ckpt_index_make(const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, struct sh_ckpt_index *out)
{
    struct sh_ckpt_index index = {0};
    sh_rc rc = SH_OK;
    SH_REQUIRE(set->states.n >= 1 && set->states.n <= SH_CKPT_STATES_MAX);
    index.states = set->states;
    sh_ckpt_index_alloc(&index, set->n_tensors);
    copy_meta(meta, &index.meta);
    index.minor = index.meta.base[0] ? SH_CKPT_MINOR : SH_CKPT_MINOR_WHOLE;
    for (int i = 0; i < set->n_tensors && rc == SH_OK; i++)
        rc = take_tensor(&set->tensors[i], &index.entry[i]);
    for (int i = 0; i < set->n_tensors; i++) {
        unsigned all = (1u << set->states.n) - 1, own = set->tensors[i].states & all;

        index.entry[i].states = set->tensors[i].states ? own : all;
        index.states.masked |= index.entry[i].states != all;
    }
    if (rc != SH_OK) {
        sh_ckpt_index_free(&index);
        return rc;
    }
    sh_ckpt_index_number_blocks(&index);
    *out = index;
    return SH_OK;
}

void sh_ckpt_index_free(struct sh_ckpt_index *index)
{
    sh_ckpt_meta_free(&index->meta);
    free(index->entry);
    for (int s = 0; s < SH_CKPT_STATES_MAX; s++)
        free(index->digest[s]);
    *index = (struct sh_ckpt_index){0};
}

void sh_ckpt_meta_free(struct sh_ckpt_meta *meta)
{
    free(meta->config);
    free(meta->guard);
    free(meta->notes);
    free(meta->base);
    *meta = (struct sh_ckpt_meta){0};
}

/* Hashes are chained, so that the order of the parts counts. */
static uint64_t chain(uint64_t h, const void *data, size_t bytes)
{
    return sh_mix64(h ^ sh_hash64(data, bytes));
}

/* One digest over everything except the data: counters, texts, names, shapes and the digests of all blocks. Offsets are
 * left out, so that the same state has the same digest wherever its tensors lie. */
uint64_t sh_ckpt_index_digest(const struct sh_ckpt_index *index)
{
    const struct sh_ckpt_meta *m = &index->meta;
    const int64_t numbers[] = {m->step, m->samples, m->tokens, m->updates, index->n, index->n_blocks};
    uint64_t h = chain(0, numbers, sizeof numbers);
    h = chain(h, m->config, strlen(m->config));
    h = chain(h, m->guard, strlen(m->guard));
    /* Format 1 did not mix the names in, and its files must keep their digest. */
    for (int s = 0; s < index->states.n && sh_ckpt_major(&index->states) > 1; s++)
        h = chain(h, index->states.name[s], strlen(index->states.name[s]));
    for (int64_t i = 0; i < index->n; i++) {
        const struct sh_ckpt_entry *e = &index->entry[i];
        h = chain(h, e->name, strlen(e->name));
        h = chain(h, e->dim, (size_t)e->ndim * sizeof *e->dim);
        if (index->states.masked)
            h = chain(h, &e->states, sizeof e->states);
    }
    for (int s = 0; s < index->states.n; s++)
        h = chain(h, index->digest[s], (size_t)index->n_blocks * sizeof(uint64_t));
    return m->base && m->base[0] ? chain(h, m->base, strlen(m->base)) : h;
}

int64_t sh_ckpt_index_models(const struct sh_ckpt_index *index)
{
    int64_t n = index->n;
    while (n > 0 && !sh_ckpt_has(&index->entry[n - 1], SH_CKPT_MODEL))
        n--;
    return n;
}

sh_rc sh_ckpt_counts_check(const char *path, const struct sh_ckpt_meta *m)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {{"step", m->step}, {"updates", m->updates}, {"samples", m->samples}, {"tokens", m->tokens}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].value < 0 || counts[i].value > SH_CKPT_COUNT_MAX)
            return sh_fail(SH_E_DATA, "%s: its index is damaged: %s is %lld; take an earlier checkpoint", path,
                           counts[i].name, (long long)counts[i].value);
    return SH_OK;
}

/* `hint` is the expected position of the tensor, which makes a walk over all tensors linear. */
int64_t sh_ckpt_index_find(const struct sh_ckpt_index *index, const char *name, int64_t hint)
{
    if (hint < index->n && strcmp(index->entry[hint].name, name) == 0)
        return hint;
    for (int64_t i = 0; i < index->n; i++)
        if (strcmp(index->entry[i].name, name) == 0)
            return i;
    return -1;
}

/* Always returns an error; its text is the same wherever damage is found. */
sh_rc sh_ckpt_index_damaged(const struct sh_ckpt_index *index, const char *path, int state,
                            const struct sh_ckpt_entry *e, int64_t block)
{
    int64_t begin = block * SH_CKPT_BLOCK_ELEMS, elems = sh_ckpt_block_elems(e->elems, block);
    return sh_fail(
        SH_E_DATA,
        "%s: %s/%s, block %lld (elements %lld to %lld) does not match its digest: the file is damaged; take an "
        "earlier checkpoint",
        path, index->states.name[state], e->name, (long long)block, (long long)begin, (long long)(begin + elems - 1));
}
