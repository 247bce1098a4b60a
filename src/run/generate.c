#include "src/run/run.h"

#include "io/token/token.h"
#include "src/base/mem.h"
#include "src/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In (0, 1), from a counter: sample i has the same value for the same key, however long the text before it took. Adding
 * 0.5 keeps 0 out, which would choose a word of no weight. */
static double uniform(uint64_t key, int64_t i)
{
    uint32_t bits[4];

    sh_philox(key, 0, (uint64_t)i, bits);
    return ((double)bits[0] + 0.5) / 4294967296.0;
}

/* The first of equal ones, so that temperature 0 is deterministic. */
static int likeliest(const float *logits, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

/* The smallest logit among the top k; ties at it all stay. */
static float top_k_limit(const float *logits, int n, int k)
{
    float *sorted = sh_calloc((size_t)n, sizeof *sorted), limit;

    memcpy(sorted, logits, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, descending);
    limit = sorted[k - 1];
    free(sorted);
    return limit;
}

/* One word by its weight exp(logit / temperature). The largest logit is subtracted first, or exp() would overflow.
 * `last` is what is left when rounding lets u stay at 0 or above after all words. */
static int sample(const float *logits, int n, const struct sh_generate *g, double u)
{
    float limit = g->top_k > 0 && g->top_k < n ? top_k_limit(logits, n, g->top_k) : -INFINITY;
    double most = logits[likeliest(logits, n)], sum = 0;
    int last = 0;

    for (int i = 0; i < n; i++)
        if (logits[i] >= limit)
            sum += exp((logits[i] - most) / g->temperature);
    u *= sum;
    for (int i = 0; i < n && u >= 0; i++)
        if (logits[i] >= limit) {
            u -= exp((logits[i] - most) / g->temperature);
            last = i;
        }
    return last;
}

/* The last seq_len tokens of the text so far, at the front of the window; the rest does not matter to a causal model.
 */
static int64_t fill_window(struct sh_run *r, const uint32_t *ids, size_t n, int32_t *window)
{
    size_t seq = (size_t)r->cfg.training.seq_len, from = n > seq ? n - seq : 0;

    memset(window, 0, seq * sizeof *window);
    memcpy(window, ids + from, (n - from) * sizeof *ids);
    sh_exec_put(r->exec, r->p->tokens, window);
    return (int64_t)(n - from) - 1;
}

/* Rank 0's choice is everybody's: the others may round a logit differently, and a text that differs between ranks would
 * send them into different forwards. */
static sh_rc next_token(struct sh_run *r, const struct sh_generate *g, const uint32_t *ids, size_t n, float *logits,
                        int32_t *window, uint32_t *next)
{
    int vocab = r->cfg.model.vocab_size;

    sh_exec_scalars(r->exec)->position = fill_window(r, ids, n, window);
    sh_exec_run(r->exec, SH_SECTION_LOGITS);
    sh_exec_get(r->exec, r->p->logits, logits);
    *next = g->temperature > 0 ? (uint32_t)sample(logits, vocab, g, uniform(g->seed, (int64_t)n))
                               : (uint32_t)likeliest(logits, vocab);
    return sh_mesh_bcast(next, sizeof *next, 0);
}

/* What rank 0 has printed of the text. */
struct printed {
    const struct sh_tokenizer *tok;
    bool mine;    /* this is rank 0 */
    size_t bytes; /* of the text */
    size_t ids;   /* whose text is all printed: of a tokenizer whose ids have a text each */
};

/* Bytes of a text that will not change with the next token: a character whose bytes are not all there is U+FFFD so
 * far. */
static size_t settled(const char *text, size_t bytes, bool last)
{
    while (!last && bytes >= 3 && memcmp(text + bytes - 3, "\xef\xbf\xbd", 3) == 0)
        bytes -= 3;
    return bytes;
}

/* Print what is new. A word has no text of its own, it depends on those before: all are decoded again. */
static sh_rc print_text(struct printed *p, const struct sh_ids *ids, bool last)
{
    char *text;
    size_t bytes, end;

    if (!p->mine)
        return SH_OK;
    if (!p->tok->ops->whole)
        p->bytes = 0;
    SH_TRY(sh_decode_ids(p->tok, ids->id + p->ids, ids->n - p->ids, false, &text, &bytes));
    end = p->tok->ops->whole ? settled(text, bytes, last) : bytes;
    if (end > p->bytes)
        fwrite(text + p->bytes, 1, end - p->bytes, stdout);
    fflush(stdout);
    p->bytes = end > p->bytes ? end : p->bytes;
    if (!p->tok->ops->whole)
        p->ids = ids->n;
    free(text);
    return SH_OK;
}

/* The prompt's ids, and room for `more`. */
static sh_rc encode_prompt(const struct sh_tokenizer *tok, const char *prompt, size_t more, struct sh_ids *ids)
{
    struct sh_encoder *e = sh_encoder_create(tok);
    sh_rc rc = sh_encode(e, prompt, strlen(prompt), SH_ENCODE_BEGIN, ids);

    sh_encoder_destroy(e);
    sh_ids_room(ids, more);
    if (rc == SH_OK && ids->n == 0)
        return sh_fail(SH_E_USAGE, "generate: no token stands in front of an empty prompt; give --prompt TEXT");
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "--prompt: ");
}

/* Until the tokens are made, or the model ends the text. */
static sh_rc continue_text(struct sh_run *r, const struct sh_generate *g, struct printed *p, struct sh_ids *ids)
{
    int32_t *window = sh_calloc((size_t)r->cfg.training.seq_len, sizeof *window);
    float *logits = sh_calloc((size_t)r->cfg.model.vocab_size, sizeof *logits);
    size_t end = ids->n + (size_t)g->tokens;
    sh_rc rc;

    SH_TRY_OUT(print_text(p, ids, false));
    while (ids->n < end) {
        SH_TRY_OUT(next_token(r, g, ids->id, ids->n, logits, window, &ids->id[ids->n]));
        if (p->tok->end >= 0 && ids->id[ids->n] == (uint32_t)p->tok->end)
            break;
        ids->n++;
        SH_TRY_OUT(print_text(p, ids, false));
    }
    SH_TRY_OUT(print_text(p, ids, true));
    if (p->mine)
        putchar('\n');
out:
    free(window);
    free(logits);
    return rc;
}

/* Collective: each token is a forward over the whole window, since no keys and values are kept between tokens. */
sh_rc sh_run_generate(struct sh_run *r, const struct sh_generate *g)
{
    struct sh_ids ids = {0};
    struct sh_tokenizer *tok = NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(sh_run_tokenizer_open(r, g->tokenizer, &tok)));
    SH_TRY_OUT(sh_agree(encode_prompt(tok, g->prompt, (size_t)g->tokens, &ids)));
    struct printed p = {.tok = tok, .mine = r->mesh->rank == 0};
    rc = continue_text(r, g, &p, &ids);
out:
    sh_tokenizer_close(tok);
    free(ids.id);
    return rc;
}
