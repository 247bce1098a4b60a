#include "src/run/reference.h"

#include "src/base/mem.h"

#include <stdlib.h>

struct sh_reference *sh_reference_create(const struct sh_data *d, int64_t sequences, int seq_len)
{
    struct sh_reference *ref = sh_calloc(1, sizeof *ref);
    size_t places = (size_t)(sequences * seq_len);

    ref->documents = sh_data_documents(d);
    ref->value = sh_calloc((size_t)ref->documents + 1, sizeof *ref->value);
    ref->places = sh_calloc(places, sizeof *ref->places);
    ref->document = sh_calloc(places, sizeof *ref->document);
    return ref;
}

void sh_reference_free(struct sh_reference *ref)
{
    if (!ref)
        return;
    free(ref->value);
    free(ref->places);
    free(ref->document);
    free(ref);
}

sh_rc sh_reference_place(struct sh_reference *ref, const struct sh_data *d, int64_t first, int64_t n)
{
    SH_TRY(sh_data_beginnings(d, first, n, ref->document));
    for (int64_t i = 0; i < n * sh_data_seq_len(d); i++)
        ref->places[i] = ref->document[i] < 0 ? 0 : ref->value[ref->document[i]];
    return SH_OK;
}

struct sh_pair_metrics sh_reference_metrics(const double sums[SH_PAIR_NUMBERS], int64_t pairs)
{
    double n = (double)pairs;

    return (struct sh_pair_metrics){.pairs = pairs,
                                    .chosen = sums[SH_PAIR_CHOSEN] / n,
                                    .rejected = sums[SH_PAIR_REJECTED] / n,
                                    .margin = (sums[SH_PAIR_CHOSEN] - sums[SH_PAIR_REJECTED]) / n,
                                    .accuracy = sums[SH_PAIR_RIGHT] / n,
                                    .logp_chosen = sums[SH_PAIR_LOGP_CHOSEN] / n,
                                    .logp_rejected = sums[SH_PAIR_LOGP_REJECTED] / n};
}
