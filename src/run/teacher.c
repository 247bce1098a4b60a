#include "src/run/teacher.h"

#include "src/base/mem.h"
#include "src/base/number/half.h"
#include "src/run/teacher_file.h"
#include "src/run/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct sh_teacher {
    struct sh_teacher_header header;
    char path[SH_CONFIG_PATH_MAX];
    int fd, top_k;
    char *record;
    int32_t *words; /* [sequences, T, top_k] */
    float *logp;
};

/* Whether all bytes are there; false also if the file ends before. */
static bool read_at(int fd, void *data, int64_t bytes, int64_t at)
{
    int64_t done = 0;

    while (done < bytes) {
        ssize_t n = pread(fd, (char *)data + done, (size_t)(bytes - done), at + done);

        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        done += n > 0 ? n : 0;
    }
    return true;
}

static sh_rc check_header(const struct sh_teacher *t, const struct sh_config *cfg, const struct sh_data *d, bool docs)
{
    const struct sh_teacher_header *h = &t->header;
    uint64_t tokenizer;

    if (h->seq_len != sh_data_seq_len(d) || h->windows != sh_data_samples(d))
        return sh_fail(
            SH_E_DATA,
            "%s is of %lld sequences of %d tokens, but the training data has %lld of %d; make it of the same "
            "data, training.seq_len and data.packing",
            t->path, (long long)h->windows, h->seq_len, (long long)sh_data_samples(d), sh_data_seq_len(d));
    if (h->words > cfg->model.vocab_size)
        return sh_fail(SH_E_DATA,
                       "%s is of a model with %lld words, but model.vocab_size is %d; the teacher must have the "
                       "same tokenizer",
                       t->path, (long long)h->words, cfg->model.vocab_size);
    if (h->documents != docs)
        return sh_fail(SH_E_DATA,
                       "%s is of a teacher that %s documents apart, and this run does not do the same; "
                       "data.document_mask says which",
                       t->path, h->documents ? "kept" : "did not keep");
    if (h->top_k < cfg->objective.top_k)
        return sh_fail(SH_E_USAGE, "objective.top_k=%d, but %s has %d tokens for each place; give at most so many",
                       cfg->objective.top_k, t->path, h->top_k);
    SH_TRY(sh_run_tokenizer_hash(cfg, &tokenizer));
    if (tokenizer && h->tokenizer && tokenizer != h->tokenizer)
        return sh_fail(SH_E_DATA,
                       "%s is of a teacher with another tokenizer.json than the model's; its ids would mean "
                       "other tokens",
                       t->path);
    return SH_OK;
}

static sh_rc open_file(struct sh_teacher *t)
{
    struct sh_teacher_header *h = &t->header;
    struct stat st;

    t->fd = open(t->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (t->fd < 0 || fstat(t->fd, &st) != 0)
        return sh_fail(SH_E_DATA, "objective.teacher_path: %s: %s", t->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || !read_at(t->fd, h, sizeof *h, 0) || memcmp(h->magic, SH_TEACHER_MAGIC, sizeof h->magic))
        return sh_fail(SH_E_DATA, "%s is no file of a teacher's tokens; `sherd eval --top-k` makes one", t->path);
    if (h->sum != sh_teacher_header_sum(h))
        return sh_fail(SH_E_DATA, "%s is damaged: its header does not match its sum", t->path);
    if (st.st_size != sh_teacher_record_at(h, h->windows))
        return sh_fail(SH_E_DATA, "%s has %lld bytes, but should have %lld: it was cut short, or something was added",
                       t->path, (long long)st.st_size, (long long)sh_teacher_record_at(h, h->windows));
    return SH_OK;
}

sh_rc sh_teacher_open(const struct sh_config *cfg, const struct sh_data *d, bool docs, int64_t sequences,
                      struct sh_teacher **out)
{
    struct sh_teacher *t;
    size_t n;
    sh_rc rc;

    if (!cfg->objective.teacher_path[0])
        return sh_fail(SH_E_USAGE, "objective.name=distillation: objective.teacher_path is not set; `sherd eval "
                                   "--checkpoint TEACHER --data FILE --top-k K -o FILE` makes one");
    t = sh_calloc(1, sizeof *t);
    t->top_k = cfg->objective.top_k;
    memcpy(t->path, cfg->objective.teacher_path, sizeof t->path);
    rc = open_file(t);
    if (rc == SH_OK)
        rc = check_header(t, cfg, d, docs);
    if (rc != SH_OK) {
        sh_teacher_close(t);
        return rc;
    }
    n = (size_t)(sequences * t->header.seq_len * t->top_k);
    t->record = sh_calloc((size_t)sh_teacher_record_bytes(&t->header), 1);
    t->words = sh_calloc(n, sizeof *t->words);
    t->logp = sh_calloc(n, sizeof *t->logp);
    *out = t;
    return SH_OK;
}

void sh_teacher_close(struct sh_teacher *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    free(t->record);
    free(t->words);
    free(t->logp);
    free(t);
}

/* Take the first top_k words of each place from the record. False: one is no word, or not the logarithm of a probability.
 * A sum does not tell who made a file. */
static bool unpack(struct sh_teacher *t, int64_t sequence)
{
    const struct sh_teacher_header *h = &t->header;
    const char *ids = t->record + sizeof(struct sh_teacher_record);
    int64_t width = sh_teacher_id_bytes(h), most = h->top_k, T = h->seq_len, k = t->top_k;
    const char *halves = ids + T * most * width;

    for (int64_t i = 0; i < T * k; i++) {
        int64_t from = i / k * most + i % k, to = sequence * T * k + i;
        uint16_t small;
        sh_f16 half;

        memcpy(&small, ids + from * 2, sizeof small);
        memcpy(&half, halves + from * 2, sizeof half);
        t->words[to] = small;
        if (width == 4)
            memcpy(&t->words[to], ids + from * 4, sizeof *t->words);
        t->logp[to] = sh_f16_to_f32(half);
        if (t->words[to] < 0 || t->words[to] >= h->words || !isfinite(t->logp[to]) || t->logp[to] > 0)
            return false;
    }
    return true;
}

static sh_rc read_window(struct sh_teacher *t, int64_t window, int64_t sequence, const int32_t *tokens)
{
    const struct sh_teacher_header *h = &t->header;
    struct sh_teacher_record r;

    if (!read_at(t->fd, t->record, sh_teacher_record_bytes(h), sh_teacher_record_at(h, window)))
        return sh_fail(SH_E_DATA, "%s: sequence %lld cannot be read; the file has changed", t->path, (long long)window);
    memcpy(&r, t->record, sizeof r);
    if (r.sum != sh_teacher_record_sum(h, t->record))
        return sh_fail(SH_E_DATA, "%s is damaged: sequence %lld does not match its sum", t->path, (long long)window);
    if (r.tokens != sh_hash64(tokens, (size_t)h->seq_len * sizeof *tokens))
        return sh_fail(
            SH_E_DATA,
            "%s is of other data: sequence %lld has other tokens than the training data; make it of the same "
            "data, training.seq_len and data.packing",
            t->path, (long long)window);
    if (!unpack(t, sequence))
        return sh_fail(SH_E_DATA,
                       "%s is damaged: sequence %lld has what is no token of the teacher's, or no probability", t->path,
                       (long long)window);
    return SH_OK;
}

sh_rc sh_teacher_read(struct sh_teacher *t, const struct sh_data *d, int64_t first, int64_t n, const int32_t *tokens)
{
    for (int64_t i = 0; i < n; i++)
        SH_TRY(read_window(t, sh_data_window(d, first + i), i, tokens + i * t->header.seq_len));
    return SH_OK;
}

const int32_t *sh_teacher_words(const struct sh_teacher *t)
{
    return t->words;
}

const float *sh_teacher_logp(const struct sh_teacher *t)
{
    return t->logp;
}
