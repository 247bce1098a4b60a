/* Evaluation files of llm.c: a header of 256 32-bit numbers, then 16-bit ones: for each example 65535, its bytes, its
 * index, the label, the number of completions, the length of the context and the context, and for each completion its
 * length and itself. Source: dev/data/data_common.py of llm.c, write_evalfile(). */
#include "src/text/score/task.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC = 20240522, VERSION = 1, HEADER_BYTES = 1024, START = 65535, MOST_COMPLETIONS = 64 };

struct reader {
    const char *data, *path;
    size_t bytes, at;
};

static int32_t number_of(const char *data, int i)
{
    int32_t v;

    memcpy(&v, data + 4 * (size_t)i, sizeof v);
    return v;
}

bool sh_task_is_bin(const char *data, size_t bytes)
{
    return bytes >= HEADER_BYTES && number_of(data, 0) == MAGIC;
}

/* Read the next n numbers into `to`. */
static sh_rc take(struct reader *r, size_t n, uint32_t *to)
{
    if ((r->bytes - r->at) / 2 < n)
        return sh_fail(SH_E_DATA, "%s ends within an example, at byte %zu", r->path, r->bytes);
    for (size_t i = 0; i < n; i++, r->at += 2) {
        uint16_t v;

        memcpy(&v, r->data + r->at, sizeof v);
        to[i] = v;
    }
    return SH_OK;
}

/* Read a length and that many tokens, and append these to `ids`. */
static sh_rc take_tokens(struct reader *r, struct sh_ids *ids)
{
    uint32_t n;

    SH_TRY(take(r, 1, &n));
    SH_TRY(take(r, n, sh_ids_room(ids, n)));
    ids->n += n;
    return SH_OK;
}

/* Read the context and the completions; each completion continues the context. */
static sh_rc take_completions(struct reader *r, struct sh_task *t, uint32_t completions)
{
    struct sh_ids ids = {0};
    size_t context;
    sh_rc rc;

    SH_TRY_OUT(take_tokens(r, &ids));
    context = ids.n;
    for (uint32_t i = 0; i < completions; i++) {
        struct sh_task_choice *c;

        ids.n = context;
        SH_TRY_OUT(take_tokens(r, &ids));
        if (!context || ids.n == context) {
            rc = sh_fail(SH_E_DATA, "%s: an example without tokens, before byte %zu", r->path, r->at);
            goto out;
        }
        c = sh_task_add_choice(t);
        c->score = t->n_scores;
        c->bytes = c->chars = ids.n - context; /* what its probability is divided by */
        sh_task_add_score(t, ids.id, ids.n, context);
    }
out:
    free(ids.id);
    return rc;
}

static sh_rc take_example(struct reader *r, int index, struct sh_task *t)
{
    uint32_t head[5];
    size_t begin = r->at;

    SH_TRY(take(r, 5, head));
    if (head[0] != START || head[2] != (uint32_t)(index & 0xffff) || head[4] < 2 || head[4] > MOST_COMPLETIONS ||
        head[3] >= head[4])
        return sh_fail(SH_E_DATA, "%s: no example %d before byte %zu", r->path, index, r->at);
    sh_task_add_doc(t, NULL, (int)head[3]);
    SH_TRY(take_completions(r, t, head[4]));
    if (r->at - begin != head[1])
        return sh_fail(SH_E_DATA, "%s: example %d says that it has %u bytes, but it has %zu", r->path, index, head[1],
                       r->at - begin);
    return SH_OK;
}

sh_rc sh_task_read_bin(const char *data, size_t bytes, const char *path, struct sh_task *t)
{
    struct reader r = {.data = data, .path = path, .bytes = bytes, .at = HEADER_BYTES};
    int n = number_of(data, 2);

    if (number_of(data, 1) != VERSION)
        return sh_fail(SH_E_DATA, "%s has version %d, but only version %d can be read", path, number_of(data, 1),
                       VERSION);
    t->tokens = true;
    for (int i = 0; i < n; i++)
        SH_TRY(take_example(&r, i, t));
    return n > 0 ? SH_OK : sh_fail(SH_E_DATA, "%s has no examples", path);
}
