#include "src/text/command/scores.h"

#include "src/base/mem.h"
#include "src/cmd/cmd.h"
#include "src/run/feed.h"
#include "src/run/reference.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

enum { SOME = 1 << 20 }; /* sums at a time */

struct scores {
    struct sh_run *r;
    struct sh_feed *f;
    double *sums;    /* [sequences, T] of a batch */
    long long *bits; /* [documents] of the number, and 1; 0: another rank has it, or none */
};

/* What the sequences of a batch have made. */
static sh_rc take(void *arg, int64_t first, int64_t n)
{
    struct scores *s = arg;
    const struct sh_reference *ref = s->f->reference;

    (void)first;
    if (n)
        sh_exec_get(s->r->exec, SH_PORT_SUMS, s->sums);
    for (int64_t i = 0; i < n * s->r->cfg.training.seq_len; i++)
        if (ref->document[i] >= 0) {
            memcpy(&s->bits[ref->document[i]], &s->sums[i], sizeof s->sums[i]);
            s->bits[ref->document[i]]++;
        }
    return SH_OK;
}

/* A number is from one rank, so the sum of the bits has its bits. */
static sh_rc share(struct scores *s)
{
    for (int64_t at = 0, left; (left = s->f->reference->documents - at) > 0; at += SOME)
        SH_TRY(sh_mesh_sum_i64(s->bits + at, (int)(left < SOME ? left : SOME)));
    return SH_OK;
}

static void print(const struct scores *s, FILE *out)
{
    for (int64_t i = 0; out && i < s->f->reference->documents; i++) {
        long long bits = s->bits[i] - 1;
        double score;

        memcpy(&score, &bits, sizeof score);
        if (s->bits[i])
            fprintf(out, "{\"document\": %lld, \"score\": %.9g}\n", (long long)i, score);
    }
}

sh_rc sh_scores_write(struct sh_run *r, struct sh_feed *f, int64_t sequences, const char *path,
                      struct sh_eval_result *out)
{
    struct scores s = {.r = r, .f = f};
    const struct sh_eval_watch watch = {.take = take, .arg = &s};
    struct sh_cmd_output o = {0};
    sh_rc rc;

    if (!f->reference || r->cfg.model.num_labels != 1)
        return sh_agree(sh_fail(SH_E_USAGE,
                                "sherd eval: -o goes with --requests, --choices or --top-k, or with a model that "
                                "gives texts a value (model.num_labels=1)"));
    SH_TRY(sh_agree(sh_cmd_output_open(path, &o)));
    s.sums = sh_calloc((size_t)(f->sequences * r->cfg.training.seq_len), sizeof *s.sums);
    s.bits = sh_calloc((size_t)f->reference->documents + 1, sizeof *s.bits);
    SH_TRY_OUT(sh_run_evaluate(r, f, sequences, &watch, out));
    SH_TRY_OUT(share(&s));
    print(&s, o.out);
out:
    rc = sh_agree(sh_cmd_output_close(&o, rc));
    free(s.sums);
    free(s.bits);
    return rc;
}
