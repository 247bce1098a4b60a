#include "src/text/command/scores.h"

#include "src/base/mem.h"
#include "src/cmd/cmd.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

enum { SOME = 1 << 20 }; /* sums at a time */

struct scores {
    struct sh_run *r;
    struct sh_feed *f;
    int64_t documents;
    int labels;        /* logits of a text, 1: its value */
    int64_t *document; /* [sequences, T] which document begins at a place, -1: none */
    double *values;    /* [sequences, T] of a batch, at the beginnings of documents; labels 1 */
    int32_t *label;    /* [sequences, T, labels] of a batch, at the ends of documents, the likeliest first; else */
    float *logit;      /* [sequences, T, labels] theirs */
    long long *bits;   /* [documents, labels] of the number, and 1; 0: another rank has it, or none */
};

static void keep(struct scores *s, int64_t document, int label, double number)
{
    long long *bits = &s->bits[document * s->labels + label];

    memcpy(bits, &number, sizeof number);
    ++*bits;
}

static void take_values(struct scores *s, int64_t places)
{
    sh_exec_get(s->r->exec, SH_PORT_SUMS, s->values);
    for (int64_t i = 0; i < places; i++)
        if (s->document[i] >= 0)
            keep(s, s->document[i], 0, s->values[i]);
}

static void take_logits(struct scores *s, int64_t places)
{
    int64_t T = s->r->cfg.training.seq_len;

    sh_feed_take(s->r, SH_PORT_TOP_WORDS, s->label);
    sh_feed_take(s->r, SH_PORT_TOP_LOGP, s->logit);
    for (int64_t i = 0; i < places; i++)
        for (int64_t k = i * s->labels; s->f->targets[i] >= 0 && k < (i + 1) * s->labels; k++)
            keep(s, s->document[i / T * T + s->f->docs[i]], s->label[k], (double)s->logit[k]);
}

/* What the sequences of a batch have made. */
static sh_rc take(void *arg, int64_t first, int64_t n)
{
    struct scores *s = arg;

    if (!n)
        return SH_OK;
    SH_TRY(sh_data_beginnings(s->f->data, first, n, s->document));
    (s->labels > 1 ? take_logits : take_values)(s, n * s->r->cfg.training.seq_len);
    return SH_OK;
}

/* A number is from one rank, so the sum of the bits has its bits. */
static sh_rc share(struct scores *s)
{
    for (int64_t at = 0, left; (left = s->documents * s->labels - at) > 0; at += SOME)
        SH_TRY(sh_mesh_sum_i64(s->bits + at, (int)(left < SOME ? left : SOME)));
    return SH_OK;
}

static void print(const struct scores *s, FILE *out)
{
    for (int64_t i = 0; out && i < s->documents; i++) {
        if (!s->bits[i * s->labels])
            continue;
        fprintf(out, "{\"document\": %lld, \"%s\": ", (long long)i, s->labels > 1 ? "logits" : "score");
        for (int k = 0; k < s->labels; k++) {
            long long bits = s->bits[i * s->labels + k] - 1;
            double number;

            memcpy(&number, &bits, sizeof number);
            fprintf(out, "%s%.9g", k ? ", " : s->labels > 1 ? "[" : "", number);
        }
        fputs(s->labels > 1 ? "]}\n" : "}\n", out);
    }
}

static void make_room(struct scores *s)
{
    size_t places = (size_t)(s->f->sequences * s->r->cfg.training.seq_len), n = places * (size_t)s->labels;

    s->document = sh_calloc(places, sizeof *s->document);
    s->bits = sh_calloc((size_t)(s->documents * s->labels) + 1, sizeof *s->bits);
    if (s->labels == 1) {
        s->values = sh_calloc(n, sizeof *s->values);
        return;
    }
    s->label = sh_calloc(n, sizeof *s->label);
    s->logit = sh_calloc(n, sizeof *s->logit);
}

sh_rc sh_scores_write(struct sh_run *r, struct sh_feed *f, int64_t sequences, const char *path,
                      struct sh_eval_result *out)
{
    struct scores s = {.r = r, .f = f, .documents = sh_data_documents(f->data), .labels = r->cfg.model.num_labels};
    const struct sh_eval_watch watch = {.take = take, .arg = &s};
    struct sh_cmd_output o = {0};
    sh_rc rc;

    if (!s.labels)
        return sh_agree(sh_fail(SH_E_USAGE,
                                "sherd eval: -o goes with --requests, --choices or --top-k, or with a model "
                                "that gives texts labels or a value (model.num_labels)"));
    SH_TRY(sh_agree(sh_cmd_output_open(path, &o)));
    make_room(&s);
    SH_TRY_OUT(sh_run_evaluate(r, f, sequences, &watch, out));
    SH_TRY_OUT(share(&s));
    print(&s, o.out);
out:
    rc = sh_agree(sh_cmd_output_close(&o, rc));
    free(s.document);
    free(s.values);
    free(s.label);
    free(s.logit);
    free(s.bits);
    return rc;
}
