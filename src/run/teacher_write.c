/* What a teacher finds likely, to a file: each rank writes the records of its sequences at their places. */
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/number/half.h"
#include "src/run/feed.h"
#include "src/run/run.h"
#include "src/run/teacher.h"
#include "src/run/teacher_file.h"
#include "src/run/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

struct writer {
    struct sh_run *r;
    struct sh_feed *f;
    struct sh_teacher_header header;
    struct sh_new_file file; /* rank 0 */
    char temp[PATH_MAX];
    int fd;
    char *record;
    int32_t *words; /* [sequences, T, top_k] */
    float *logp;
};

static sh_rc write_at(const struct writer *w, const void *data, int64_t bytes, int64_t at)
{
    int64_t done = 0;

    while (done < bytes) {
        ssize_t n = pwrite(w->fd, (const char *)data + done, (size_t)(bytes - done), at + done);

        if (n < 0 && errno != EINTR)
            return sh_fail(SH_E_DATA, "%s: %s", w->temp, strerror(errno));
        done += n > 0 ? n : 0;
    }
    return SH_OK;
}

/* One sequence of the batch, to the record of a window. A reader takes only logarithms that are numbers. */
static sh_rc pack(struct writer *w, int64_t sequence, int64_t window)
{
    const struct sh_teacher_header *h = &w->header;
    int64_t n = (int64_t)h->seq_len * h->top_k, width = sh_teacher_id_bytes(h);
    char *ids = w->record + sizeof(struct sh_teacher_record);
    struct sh_teacher_record r = {
        .tokens = sh_hash64(w->f->tokens + sequence * h->seq_len, (size_t)h->seq_len * sizeof *w->f->tokens)};

    for (int64_t i = 0; i < n; i++) {
        uint16_t small = (uint16_t)w->words[sequence * n + i];
        sh_f16 half = sh_f32_to_f16(w->logp[sequence * n + i]);

        if (!isfinite(sh_f16_to_f32(half)))
            return sh_fail(SH_E_NUMERIC,
                           "--top-k: the log-probability of word %d after token %lld of sequence %lld is %g, which is "
                           "not finite in float16, and no student can learn from it",
                           w->words[sequence * n + i], (long long)(i / h->top_k), (long long)window,
                           (double)w->logp[sequence * n + i]);
        memcpy(ids + i * width, width == 2 ? (void *)&small : (void *)&w->words[sequence * n + i], (size_t)width);
        memcpy(ids + n * width + i * 2, &half, sizeof half);
    }
    memcpy(w->record, &r, sizeof r);
    r.sum = sh_teacher_record_sum(h, w->record);
    memcpy(w->record, &r, sizeof r);
    return SH_OK;
}

static sh_rc take(void *arg, int64_t first, int64_t n)
{
    struct writer *w = arg;

    if (!n)
        return SH_OK;
    sh_feed_take(w->r, SH_PORT_TOP_WORDS, w->words);
    sh_feed_take(w->r, SH_PORT_TOP_LOGP, w->logp);
    for (int64_t i = 0; i < n; i++) {
        int64_t window = sh_data_window(w->f->data, first + i);

        SH_TRY(pack(w, i, window));
        SH_TRY(write_at(w, w->record, sh_teacher_record_bytes(&w->header), sh_teacher_record_at(&w->header, window)));
    }
    return SH_OK;
}

static sh_rc describe(struct writer *w)
{
    struct sh_teacher_header *h = &w->header;

    memcpy(h->magic, SH_TEACHER_MAGIC, sizeof h->magic);
    h->windows = sh_data_samples(w->f->data);
    h->words = w->r->cfg.model.vocab_size;
    h->seq_len = w->r->cfg.training.seq_len;
    h->top_k = w->r->cfg.objective.top_k;
    h->documents = w->r->p->port[SH_PORT_DOCS] != SH_NONE;
    SH_TRY(sh_run_tokenizer_hash(&w->r->cfg, &h->tokenizer));
    h->sum = sh_teacher_header_sum(h);
    return SH_OK;
}

static sh_rc create(struct writer *w, const char *path)
{
    SH_TRY(sh_new_file_create(path, 0644, &w->file));
    SH_TRY(sh_new_file_name(&w->file));
    if (strlen(w->file.temp) >= sizeof w->temp)
        return sh_fail(SH_E_DATA, "%s: the path is too long", path);
    strcpy(w->temp, w->file.temp);
    return SH_OK;
}

static sh_rc open_temp(struct writer *w)
{
    w->fd = open(w->temp, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    return w->fd >= 0 ? SH_OK : sh_fail(SH_E_DATA, "%s: %s", w->temp, strerror(errno));
}

/* Collective. Rank 0 makes the file under a temporary name, and all open it. */
static sh_rc open_writer(struct writer *w, const char *path)
{
    size_t n;

    SH_TRY(sh_agree(describe(w)));
    SH_TRY(sh_agree(w->r->mesh->rank == 0 ? create(w, path) : SH_OK));
    SH_TRY(sh_mesh_bcast(w->temp, (long)sizeof w->temp, 0));
    SH_TRY(sh_agree(open_temp(w)));
    n = (size_t)(w->f->sequences * w->header.seq_len * w->header.top_k);
    w->record = sh_calloc((size_t)sh_teacher_record_bytes(&w->header), 1);
    w->words = sh_calloc(n, sizeof *w->words);
    w->logp = sh_calloc(n, sizeof *w->logp);
    return SH_OK;
}

/* Collective. The file gets its name when all records are on the disk. */
static sh_rc commit(struct writer *w)
{
    sh_rc rc = w->r->mesh->rank == 0 ? write_at(w, &w->header, sizeof w->header, 0) : SH_OK;

    if (rc == SH_OK && fsync(w->fd) != 0)
        rc = sh_fail(SH_E_DATA, "%s: %s", w->temp, strerror(errno));
    SH_TRY(sh_agree(rc));
    return sh_agree(w->r->mesh->rank == 0 ? sh_new_file_commit(&w->file) : SH_OK);
}

sh_rc sh_teacher_write(struct sh_run *r, struct sh_feed *f, const char *path, struct sh_eval_result *out)
{
    struct writer w = {.r = r, .f = f, .file = {.fd = -1}, .fd = -1};
    struct sh_eval_watch watch = {.take = take, .arg = &w};
    sh_rc rc;

    SH_TRY_OUT(open_writer(&w, path));
    SH_TRY_OUT(sh_run_evaluate(r, f, 0, &watch, out));
    SH_TRY_OUT(commit(&w));
out:
    if (w.fd >= 0)
        close(w.fd);
    sh_new_file_abandon(&w.file);
    free(w.record);
    free(w.words);
    free(w.logp);
    return rc;
}
