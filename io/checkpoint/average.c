/* Averages the parameters of checkpoints of one model. A save by one process of tensors that are computed while they are
 * written: memory is needed for only a few blocks, whatever the size of the model. */
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/index.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One of the checkpoints. */
struct source {
    const char *path;
    double weight;
    struct sh_ckpt_index index;
    int fd;
};

struct average {
    struct source *source; /* [n] */
    int n;
    double weights; /* their sum */
};

/* Adapters are factors of what is added to the weights: the mean of the factors is not that of their products. */
static sh_rc check_whole(const struct source *s)
{
    if (!s->index.meta.base[0])
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "%s has adapters only, whose mean is not that of their models; add each to its model with `sherd ckpt "
        "export --merge`, import these with `sherd ckpt import`, and average them",
        s->path);
}

/* Each tensor of the first file is in this one, with its shape; the order may differ. */
static sh_rc check_tensors(const struct source *first, const struct source *s)
{
    char there[100], here[100];
    for (int64_t i = 0; i < first->index.n; i++) {
        const struct sh_ckpt_entry *a = &first->index.entry[i], *b;
        int64_t k = sh_ckpt_index_find(&s->index, a->name, i);
        if (k < 0)
            return sh_fail(SH_E_DATA, "%s has no tensor %s, which %s has: they are not of one model", s->path, a->name,
                           first->path);
        b = &s->index.entry[k];
        if (b->ndim != a->ndim || memcmp(b->dim, a->dim, (size_t)a->ndim * sizeof *a->dim) != 0)
            return sh_fail(SH_E_DATA, "%s: %s is %s, but %s in %s: they are not of one model", s->path, a->name,
                           sh_str_shape(b->ndim, b->dim, here), sh_str_shape(a->ndim, a->dim, there), first->path);
    }
    return SH_OK;
}

/* Names are unique in a file, so equal numbers of tensors leave none that only the later file has. */
static sh_rc check_same(const struct source *first, const struct source *s)
{
    SH_TRY(check_tensors(first, s));
    if (s->index.n == first->index.n)
        return SH_OK;
    return sh_fail(SH_E_DATA, "%s has %lld tensors, but %s has %lld: they are not of one model", s->path,
                   (long long)s->index.n, first->path, (long long)first->index.n);
}

/* All files are open before the first byte is written. */
static sh_rc open_sources(struct average *a)
{
    for (int k = 0; k < a->n; k++) {
        struct source *s = &a->source[k];
        SH_TRY(sh_ckpt_index_read(s->path, &s->index));
        SH_TRY(check_whole(s));
        SH_TRY(check_same(&a->source[0], s));
        SH_TRY(sh_ckpt_index_open_data(&s->index, s->path, &s->fd));
    }
    return SH_OK;
}

/* Also works for sources that are not open. */
static void close_sources(struct average *a)
{
    for (int k = 0; k < a->n; k++) {
        if (a->source[k].fd >= 0)
            close(a->source[k].fd);
        sh_ckpt_index_free(&a->source[k].index);
    }
    free(a->source);
}

/* Add one file's elements to the sums; its blocks are compared with their digests. */
static sh_rc add_source(const struct source *s, const struct sh_ckpt_entry *first, int64_t hint, int64_t at, int64_t n,
                        float *room, double *sum)
{
    const struct sh_ckpt_entry *e = &s->index.entry[sh_ckpt_index_find(&s->index, first->name, hint)];
    SH_TRY(sh_ckpt_index_read_range(&s->index, s->fd, s->path, SH_CKPT_MODEL, e, at, n, room));
    for (int64_t i = 0; i < n; i++)
        sum[i] += s->weight * (double)room[i];
    return SH_OK;
}

/* Called from several threads: it changes no shared data. One rounding to float32, after all sums. */
static sh_rc get(void *arg, int tensor, int s, int64_t at, int64_t n, float *to)
{
    const struct average *a = arg;
    double *sum = sh_calloc((size_t)n, sizeof *sum);
    sh_rc rc = SH_OK;
    (void)s; /* the parameters are the only state */
    for (int k = 0; k < a->n && rc == SH_OK; k++)
        rc = add_source(&a->source[k], &a->source[0].index.entry[tensor], tensor, at, n, to, sum);
    for (int64_t i = 0; i < n && rc == SH_OK; i++)
        to[i] = (float)(sum[i] / a->weights);
    free(sum);
    return rc;
}

/* The tensors of the first file, in its order. */
static void list_tensors(const struct sh_ckpt_index *index, struct sh_ckpt_tensor *t)
{
    for (int64_t i = 0; i < index->n; i++) {
        const struct sh_ckpt_entry *e = &index->entry[i];
        t[i] = (struct sh_ckpt_tensor){.name = e->name, .ndim = e->ndim, .elems = e->elems};
        memcpy(t[i].dim, e->dim, sizeof t[i].dim);
    }
}

static sh_rc save(struct average *a, const struct sh_ckpt_meta *meta, const char *folder)
{
    const struct sh_ckpt_index *first = &a->source[0].index;
    const struct sh_ckpt_options options = {
        .io_method = SH_IO_DIRECT, .verify = SH_VERIFY_DISK, .hints = "", .threads = 4};
    const struct sh_ckpt_far far = {.get = get, .arg = a};
    struct sh_ckpt_tensor *tensors = sh_calloc((size_t)first->n + 1, sizeof *tensors);
    struct sh_ckpt_set set = {.states = sh_ckpt_states_of(NULL, 0),
                              .tensors = tensors,
                              .n_tensors = (int)sh_ckpt_index_models(first),
                              .far = &far};
    int64_t bytes;
    list_tensors(first, tensors);
    struct sh_ckpt_piece *pieces = sh_ckpt_pieces_far(&set);
    sh_rc rc = sh_ckpt_save(folder, &set, meta, &options, &bytes);
    free(pieces);
    free(tensors);
    return rc;
}

/* A folder stands for its newest checkpoint, so any other one would hide this one of step 0 or be taken for it. */
static sh_rc refuse_existing(const char *folder)
{
    char *found;
    SH_TRY(sh_ckpt_newest(folder, &found));
    if (!found)
        return SH_OK;
    sh_rc rc = sh_fail(SH_E_USAGE, "%s exists already; an average goes into a folder without checkpoints", found);
    free(found);
    return rc;
}

static sh_rc average(struct average *a, const struct sh_ckpt_meta *meta, const char *folder)
{
    struct sh_ckpt_lock *lock = NULL;
    SH_TRY(refuse_existing(folder));
    SH_TRY(open_sources(a));
    SH_TRY(sh_ckpt_lock(folder, &lock));
    sh_rc rc = refuse_existing(folder); /* now that no other process can write one */
    if (rc == SH_OK)
        rc = save(a, meta, folder);
    sh_ckpt_unlock(lock);
    return rc;
}

sh_rc sh_ckpt_average(const char *const *files, const double *weights, int n, const struct sh_ckpt_meta *meta,
                      const char *folder, char **path)
{
    struct average a = {.source = sh_calloc((size_t)n, sizeof *a.source), .n = n};
    for (int k = 0; k < n; k++) {
        a.source[k] = (struct source){.path = files[k], .weight = weights[k], .fd = -1};
        a.weights += weights[k];
    }
    sh_rc rc = average(&a, meta, folder);
    if (rc == SH_OK)
        *path = sh_strfmt("%s/step-%08lld.h5", folder, (long long)meta->step);
    close_sources(&a);
    return rc;
}
