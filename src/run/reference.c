#include "src/run/reference.h"

#include "src/base/mem.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>

struct sh_reference *sh_reference_create(const struct sh_data *d, int loss, int64_t sequences, int seq_len)
{
    struct sh_reference *ref = sh_calloc(1, sizeof *ref);
    size_t places = (size_t)(sequences * seq_len);

    ref->documents = sh_data_documents(d);
    ref->loss = loss;
    ref->labelled = sh_cfg_loss_takes(loss) & SH_TAKES_LABELS;
    ref->numbered = sh_cfg_loss_takes(loss) & SH_TAKES_NUMBERS;
    ref->needed = sh_cfg_loss_takes(loss) & SH_TAKES_REFERENCE;
    ref->value = sh_calloc((size_t)ref->documents + 1, sizeof *ref->value);
    ref->places = sh_calloc(places, sizeof *ref->places);
    ref->label = sh_calloc(places, sizeof *ref->label);
    ref->document = sh_calloc(places, sizeof *ref->document);
    return ref;
}

void sh_reference_free(struct sh_reference *ref)
{
    if (!ref)
        return;
    free(ref->value);
    free(ref->places);
    free(ref->label);
    free(ref->document);
    free(ref);
}

/* What belongs to a document that begins at a place. */
static sh_rc place_document(struct sh_reference *ref, const struct sh_data *d, int64_t document, int64_t at)
{
    ref->places[at] = ref->value[document];
    if (ref->numbered) {
        ref->label[at] = ref->labelled;
        return sh_data_numbers(d, document, &ref->places[at]);
    }
    return ref->labelled ? sh_data_label(d, document, &ref->label[at]) : SH_OK;
}

sh_rc sh_reference_place(struct sh_reference *ref, const struct sh_data *d, int64_t first, int64_t n)
{
    SH_TRY(sh_data_beginnings(d, first, n, ref->document));
    for (int64_t i = 0; i < n * sh_data_seq_len(d); i++) {
        ref->places[i] = 0;
        ref->label[i] = 0;
        if (ref->document[i] >= 0)
            SH_TRY(place_document(ref, d, ref->document[i], i));
    }
    return SH_OK;
}

bool sh_reference_scores(const struct sh_reference *ref)
{
    return ref && ref->numbered && !ref->labelled;
}

void sh_reference_forget(struct sh_reference *ref)
{
    if (!ref)
        return;
    ref->least = INFINITY;
    ref->most = -INFINITY;
}

/* A document has one target, its last token, and its value is at its first place. */
static void take_values(struct sh_reference *ref, const int32_t *targets, const int32_t *docs, const double *sums,
                        int64_t rows, int64_t places)
{
    for (int64_t i = 0; i < rows * places; i++) {
        double value = targets[i] < 0 ? NAN : sums[i / places * places + docs[i]];

        ref->least = fmin(ref->least, value);
        ref->most = fmax(ref->most, value);
    }
}

void sh_reference_take(struct sh_reference *ref, const struct sh_run *r, int micro_steps)
{
    static const enum sh_port ports[] = {SH_PORT_TARGETS, SH_PORT_DOCS, SH_PORT_SUMS};
    void *data[3];

    if (!sh_reference_scores(ref) || r->p->port[SH_PORT_SUMS] == SH_NONE)
        return;
    for (int i = 0; i < 3; i++) {
        data[i] = sh_calloc((size_t)sh_tensor_bytes(&r->p->tensors[r->p->port[ports[i]]]), 1);
        sh_exec_get(r->exec, ports[i], data[i]);
    }
    take_values(ref, data[0], data[1], data[2], (int64_t)micro_steps * r->build.batch.batch, r->build.batch.seq);
    for (int i = 0; i < 3; i++)
        free(data[i]);
}

/* Of pairs that a head scores. */
static struct sh_pair_metrics scores(const struct sh_reference *ref, const double sums[SH_PAIR_ALL], double n)
{
    return (struct sh_pair_metrics){.scored = (int64_t)n,
                                    .reward = (sums[SH_PAIR_CHOSEN] + sums[SH_PAIR_REJECTED]) / (2 * n),
                                    .least = ref->least,
                                    .most = ref->most,
                                    .margin = (sums[SH_PAIR_CHOSEN] - sums[SH_PAIR_REJECTED]) / n,
                                    .accuracy = sums[SH_PAIR_RIGHT] / n};
}

struct sh_pair_metrics sh_reference_metrics(const struct sh_reference *ref, const double sums[SH_PAIR_ALL],
                                            int64_t answers)
{
    bool single = ref->labelled;
    int64_t chosen = single ? (int64_t)sums[SH_PAIR_RIGHT] : answers, rejected = single ? answers - chosen : answers;
    double c = (double)chosen, r = (double)rejected;

    if (ref->numbered)
        return single ? (struct sh_pair_metrics){.values = answers} : scores(ref, sums, (double)answers);
    return (struct sh_pair_metrics){.pairs = single ? 0 : answers,
                                    .singles = single ? answers : 0,
                                    .n_chosen = chosen,
                                    .n_rejected = rejected,
                                    .n_less = chosen < rejected ? chosen : rejected,
                                    .chosen = sums[SH_PAIR_CHOSEN] / c,
                                    .rejected = sums[SH_PAIR_REJECTED] / r,
                                    .margin = single ? sums[SH_PAIR_CHOSEN] / c - sums[SH_PAIR_REJECTED] / r
                                                     : (sums[SH_PAIR_CHOSEN] - sums[SH_PAIR_REJECTED]) / c,
                                    .accuracy = sums[SH_PAIR_RIGHT] / c,
                                    .logp_chosen = sums[SH_PAIR_LOGP_CHOSEN] / c,
                                    .logp_rejected = sums[SH_PAIR_LOGP_REJECTED] / r,
                                    .compared = ref->loss == SH_PREFER_KTO ? answers : 0,
                                    .kl = sums[SH_PAIR_Z] / (double)answers};
}
