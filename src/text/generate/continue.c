#include "src/text/generate/continue.h"

#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The inputs and the output of a step. */
struct batch {
    struct sh_run *r;
    const struct sh_continue *how;
    struct sh_text *texts;
    int n, rows, piece, positions, vocab;
    int32_t *tokens, *at, *count; /* [rows,piece], [rows,piece], [rows] */
    float *logits;                /* [rows,vocab] */
    sh_rc rc;                     /* the first failure, which ended its text; the message is kept */
    char why[256];
};

static void open_batch(struct batch *b)
{
    const struct sh_model_batch *m = &b->r->build.batch;

    b->rows = m->batch;
    b->piece = m->seq;
    b->positions = m->cache;
    b->vocab = b->r->cfg.model.vocab_size;
    b->tokens = sh_calloc((size_t)b->rows * (size_t)b->piece, sizeof *b->tokens);
    b->at = sh_calloc((size_t)b->rows * (size_t)b->piece, sizeof *b->at);
    b->count = sh_calloc((size_t)b->rows, sizeof *b->count);
    b->logits = sh_calloc((size_t)b->rows * (size_t)b->vocab, sizeof *b->logits);
}

static void close_batch(struct batch *b)
{
    free(b->tokens);
    free(b->at);
    free(b->count);
    free(b->logits);
}

size_t sh_continue_kept(int positions)
{
    return positions > 1 ? (size_t)positions / 2 : 1;
}

/* A text that outgrows the cache continues from its last tokens, like a text whose beginning is not known. Its keys have
 * other positions then, and are computed again. */
static void make_room(const struct batch *b, struct sh_text *t)
{
    if (t->ids.n - t->from > (size_t)b->positions)
        t->from = t->fed = t->ids.n - sh_continue_kept(b->positions);
}

static bool goes_on(const struct batch *b, int row)
{
    return row < b->n && b->texts[row].state == SH_TEXT_GOES_ON;
}

static size_t waiting(const struct sh_text *t)
{
    return t->ids.n - t->fed;
}

/* Put a row's next tokens. While other rows read prompts, a row with one token rests: each token is computed in one way
 * only, so its bits do not depend on the neighbours of its row. */
static int feed_row(struct batch *b, int row, bool prefill)
{
    struct sh_text *t = &b->texts[row];
    int room = prefill ? b->piece : 1, n = (int)(waiting(t) < (size_t)room ? waiting(t) : (size_t)room);

    if (prefill && waiting(t) == 1)
        return 0;
    for (int i = 0; i < n; i++) {
        b->tokens[row * room + i] = (int32_t)t->ids.id[t->fed + (size_t)i];
        b->at[row * room + i] = (int32_t)(t->fed - t->from) + i;
    }
    return n;
}

/* A row without tokens gets token 0 at position 0: it does not count, but it is looked up. */
static void run_step(struct batch *b, bool prefill)
{
    int room = prefill ? b->piece : 1;

    memset(b->tokens, 0, (size_t)b->rows * (size_t)room * sizeof *b->tokens);
    memset(b->at, 0, (size_t)b->rows * (size_t)room * sizeof *b->at);
    for (int row = 0; row < b->rows; row++)
        b->count[row] = goes_on(b, row) ? feed_row(b, row, prefill) : 0;
    sh_exec_put(b->r->exec, prefill ? SH_PORT_TOKENS : SH_PORT_NEXT, b->tokens);
    sh_exec_put(b->r->exec, prefill ? SH_PORT_AT : SH_PORT_NEXT_AT, b->at);
    sh_exec_put(b->r->exec, SH_PORT_COUNT, b->count);
    sh_exec_run(b->r->exec, prefill ? SH_SECTION_PREFILL : SH_SECTION_DECODE);
}

/* Others may be in the middle of a step, so a failure ends this text only; all ranks hear of it at the end. */
static void stop_failed(struct batch *b, struct sh_text *t, sh_rc rc)
{
    if (rc == SH_OK)
        return;
    if (b->rc == SH_OK) {
        b->rc = rc;
        snprintf(b->why, sizeof b->why, "%s", sh_error_text());
    }
    sh_error_clear();
    t->state = SH_TEXT_STOPPED;
}

/* Among numbers that are not finite no token is the likeliest; a choice would say nothing about the model. */
static sh_rc check_finite(const struct batch *b, const struct sh_text *t, const float *logits)
{
    for (int i = 0; i < b->vocab; i++)
        if (!isfinite(logits[i]))
            return sh_fail(SH_E_NUMERIC,
                           "the logit of word %d after token %zu of text %llu is %g: the model's numbers are not "
                           "finite",
                           i, t->ids.n, (unsigned long long)t->index + 1, (double)logits[i]);
    return SH_OK;
}

static void add_token(struct batch *b, struct sh_text *t, const float *logits)
{
    sh_rc rc = check_finite(b, t, logits);
    uint32_t id;

    if (rc != SH_OK) {
        stop_failed(b, t, rc);
        return;
    }
    id = sh_sample(&b->how->sampling, logits, b->vocab, t->index, t->ids.n);
    if (b->how->ends(b->how->ctx, id)) {
        t->state = SH_TEXT_ENDED;
    } else {
        sh_ids_put(&t->ids, id);
        if (t->ids.n - t->prompt == b->how->tokens)
            t->state = SH_TEXT_FULL;
        make_room(b, t);
    }
    stop_failed(b, t, b->how->added(b->how->ctx, t));
}

static void take_step(struct batch *b)
{
    bool ready = false;

    for (int row = 0; row < b->n; row++) {
        if (!b->count[row])
            continue;
        b->texts[row].fed += (size_t)b->count[row];
        ready = ready || !waiting(&b->texts[row]);
    }
    if (ready)
        sh_exec_get(b->r->exec, SH_PORT_LOGITS, b->logits);
    for (int row = 0; row < b->n; row++)
        if (b->count[row] && !waiting(&b->texts[row]))
            add_token(b, &b->texts[row], b->logits + (size_t)row * (size_t)b->vocab);
}

/* Count the texts of all ranks that are not complete, and among these the texts that have several tokens to read. */
static sh_rc count_texts(const struct batch *b, long long n[2])
{
    n[0] = n[1] = 0;
    for (int row = 0; row < b->n; row++) {
        n[0] += goes_on(b, row);
        n[1] += goes_on(b, row) && waiting(&b->texts[row]) > 1;
    }
    return sh_mesh_sum_i64(n, 2);
}

static void begin_texts(struct batch *b)
{
    for (int row = 0; row < b->n; row++) {
        struct sh_text *t = &b->texts[row];

        t->from = t->fed = 0;
        t->state = b->how->tokens ? SH_TEXT_GOES_ON : SH_TEXT_FULL;
        make_room(b, t);
    }
}

/* A step that adds tokens has waited for its logits, so its time is complete. */
static void count_time(const struct batch *b, bool prefill, int64_t ns)
{
    struct sh_continue_time *t = b->how->time;

    if (!t)
        return;
    if (prefill)
        t->read += (double)ns / 1e9;
    else
        t->write += (double)ns / 1e9;
    t->steps += !prefill;
}

sh_rc sh_continue_texts(struct sh_run *r, struct sh_text *texts, int n, const struct sh_continue *how)
{
    struct batch b = {.r = r, .how = how, .texts = texts, .n = n};
    long long left[2];
    sh_rc rc;

    open_batch(&b);
    begin_texts(&b);
    for (;;) {
        int64_t begin = sh_now_ns();

        SH_TRY_OUT(count_texts(&b, left));
        if (!left[0])
            break;
        run_step(&b, left[1] > 0);
        take_step(&b);
        count_time(&b, left[1] > 0, sh_now_ns() - begin);
    }
    rc = sh_agree(b.rc == SH_OK ? SH_OK : sh_fail(b.rc, "%s", b.why));
out:
    close_batch(&b);
    return rc;
}
