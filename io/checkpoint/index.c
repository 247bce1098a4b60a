#include "io/checkpoint/index.h"

#include "io/checkpoint/digest.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

const char *const sh_ckpt_state_name[SH_CKPT_STATES] = {
    [SH_CKPT_MODEL] = "model",
    [SH_CKPT_EXP_AVG] = "optimizer/exp_avg",
    [SH_CKPT_EXP_AVG_SQ] = "optimizer/exp_avg_sq",
};

void sh_ckpt_index_alloc(struct sh_ckpt_index *index, int64_t n)
{
    index->n = n;
    index->entry = sh_calloc((size_t)n + 1, sizeof *index->entry);
}

void sh_ckpt_index_number_blocks(struct sh_ckpt_index *index)
{
    index->n_blocks = 0;
    for (int64_t i = 0; i < index->n; i++) {
        index->entry[i].first_block = index->n_blocks;
        index->n_blocks += sh_ckpt_blocks(index->entry[i].elems);
    }
    for (int s = 0; s < SH_CKPT_STATES; s++)
        index->digest[s] = sh_calloc((size_t)index->n_blocks + 1, sizeof(uint64_t));
}

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

static void copy_meta(const struct sh_ckpt_meta *from, struct sh_ckpt_meta *to)
{
    *to = *from;
    to->config = sh_strdup(from->config ? from->config : "");
    to->guard = sh_strdup(from->guard ? from->guard : "");
    to->notes = sh_strdup(from->notes ? from->notes : "");
}

sh_rc sh_ckpt_index_make(const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, struct sh_ckpt_index *out)
{
    struct sh_ckpt_index index = {0};
    sh_rc rc = SH_OK;
    sh_ckpt_index_alloc(&index, set->n_tensors);
    copy_meta(meta, &index.meta);
    for (int i = 0; i < set->n_tensors && rc == SH_OK; i++)
        rc = take_tensor(&set->tensors[i], &index.entry[i]);
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
    for (int s = 0; s < SH_CKPT_STATES; s++)
        free(index->digest[s]);
    *index = (struct sh_ckpt_index){0};
}

void sh_ckpt_meta_free(struct sh_ckpt_meta *meta)
{
    free(meta->config);
    free(meta->guard);
    free(meta->notes);
    *meta = (struct sh_ckpt_meta){0};
}

static uint64_t chain(uint64_t h, const void *data, size_t bytes)
{
    return sh_mix64(h ^ sh_hash64(data, bytes));
}

uint64_t sh_ckpt_index_digest(const struct sh_ckpt_index *index)
{
    const struct sh_ckpt_meta *m = &index->meta;
    const int64_t numbers[] = {m->step, m->samples, m->tokens, m->updates, index->n, index->n_blocks};
    uint64_t h = chain(0, numbers, sizeof numbers);
    h = chain(h, m->config, strlen(m->config));
    h = chain(h, m->guard, strlen(m->guard));
    for (int64_t i = 0; i < index->n; i++) {
        const struct sh_ckpt_entry *e = &index->entry[i];
        h = chain(h, e->name, strlen(e->name));
        h = chain(h, e->dim, (size_t)e->ndim * sizeof *e->dim);
    }
    for (int s = 0; s < SH_CKPT_STATES; s++)
        h = chain(h, index->digest[s], (size_t)index->n_blocks * sizeof(uint64_t));
    return h;
}

int64_t sh_ckpt_index_find(const struct sh_ckpt_index *index, const char *name, int64_t hint)
{
    if (hint < index->n && strcmp(index->entry[hint].name, name) == 0)
        return hint;
    for (int64_t i = 0; i < index->n; i++)
        if (strcmp(index->entry[i].name, name) == 0)
            return i;
    return -1;
}

const char *sh_ckpt_shape_text(int ndim, const int64_t *dim, char text[100])
{
    int used = 0;
    for (int d = 0; d < ndim; d++)
        used += snprintf(text + used, (size_t)(100 - used), "%c%lld", d ? ',' : '[', (long long)dim[d]);
    snprintf(text + used, (size_t)(100 - used), "]");
    return text;
}
