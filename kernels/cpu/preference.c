/* PAIR_LOSS in one pass over the places of each row, and one over those of a pair. A few operations a token beside
 * the thousands of the products, so one thread does all rows: sums have one order. Floor: 16 bytes a token read. */
#include "kernels/cpu/cpu.h"
#include "kernels/plug_loss.h"

struct row {
    const float *logprob;
    const int32_t *targets, *docs, *label; /* label: NULL: of pairs */
    const double *ref;                     /* NULL: 0 */
    float *weight;
    double *sum;
    int64_t places;
};

/* Sum up the document that begins at `first`; returns where it ends. */
static int64_t take_document(const struct row *r, int64_t first, struct sh_pair_answer *a)
{
    int64_t t = first;
    double sum = 0;

    *a = (struct sh_pair_answer){0, 0, 0};
    for (; t < r->places && r->docs[t] == first; t++)
        if (r->targets[t] >= 0) {
            sum += r->logprob[t];
            a->n++;
        }
    for (int64_t i = first; i < t; i++)
        r->sum[i] = 0;
    if (first < t)
        r->sum[first] = sum;
    a->l = sum;
    a->d = first < t && r->ref ? sum - r->ref[first] : sum;
    return t;
}

static void put_weights(const struct row *r, int64_t begin, int64_t end, double weight)
{
    for (int64_t t = begin; t < end; t++)
        r->weight[t] = r->targets[t] >= 0 ? (float)weight : 0;
}

/* What the answers of a row are compared with: 0 but for kto. */
static double mismatch_of(const struct row *r)
{
    struct sh_pair_answer a;
    double sum = 0;
    int64_t n = 0;

    for (int64_t first = 0, end; first < r->places; first = end) {
        end = take_document(r, first, &a);
        if (r->label[first] == 2 && a.n > 0) {
            sum += a.d;
            n++;
        }
    }
    return n > 0 && !(sum < 0) ? sum / (double)n : 0;
}

static void take_singles(const struct row *r, const struct sh_op_call *call, double numbers[SH_PAIR_ALL])
{
    const struct sh_op_pair *how = &call->attr->pair;
    double z = how->loss == SH_PREFER_KTO ? mismatch_of(r) : 0;

    for (int64_t first = 0, end; first < r->places; first = end) {
        struct sh_pair_slope s = {0, 0, 0};
        struct sh_pair_answer a;
        bool chosen = r->label[first] == 1;

        end = take_document(r, first, &a);
        if (a.n > 0 && r->label[first] != 2) {
            s = sh_pair_single_slope(how, chosen, a, z);
            numbers[SH_PAIR_Z] += z;
            numbers[SH_PAIR_LOSS] += s.loss;
            numbers[SH_PAIR_RIGHT] += chosen;
            numbers[chosen ? SH_PAIR_CHOSEN : SH_PAIR_REJECTED] += sh_pair_reward(how, a);
            numbers[chosen ? SH_PAIR_LOGP_CHOSEN : SH_PAIR_LOGP_REJECTED] += a.l;
        }
        put_weights(r, first, end, s.chosen);
    }
}

static void take_pairs(const struct row *r, const struct sh_op_call *call, double numbers[SH_PAIR_ALL])
{
    struct sh_pair_answer c, j;

    for (int64_t first = 0, second, end; first < r->places; first = end) {
        struct sh_pair_slope s = {0, 0, 0};

        second = take_document(r, first, &c);
        end = take_document(r, second, &j);
        if (c.n > 0 && j.n > 0) {
            double rewards[] = {sh_plug_pair_reward(call, c), sh_plug_pair_reward(call, j)};

            s = sh_plug_pair_slope(call, c, j);
            numbers[SH_PAIR_LOSS] += s.loss;
            numbers[SH_PAIR_CHOSEN] += rewards[0];
            numbers[SH_PAIR_REJECTED] += rewards[1];
            numbers[SH_PAIR_RIGHT] += rewards[0] > rewards[1];
            numbers[SH_PAIR_LOGP_CHOSEN] += c.l;
            numbers[SH_PAIR_LOGP_REJECTED] += j.l;
        }
        put_weights(r, first, second, s.chosen);
        put_weights(r, second, end, s.rejected);
    }
}

sh_rc sh_cpu_pair_loss(const struct sh_op_call *call)
{
    int64_t B = call->in[1].dim[0], T = call->in[1].dim[1];
    double numbers[SH_PAIR_ALL] = {0}, *loss = call->out[2].data;
    const double *ref = call->in[3].data;
    const int32_t *label = call->in[4].data;

    for (int64_t b = 0; b < B; b++) {
        struct row r = {.logprob = (const float *)call->in[0].data + b * T,
                        .targets = (const int32_t *)call->in[1].data + b * T,
                        .docs = (const int32_t *)call->in[2].data + b * T,
                        .ref = ref ? ref + b * T : NULL,
                        .label = label ? label + b * T : NULL,
                        .weight = (float *)call->out[0].data + b * T,
                        .sum = (double *)call->out[1].data + b * T,
                        .places = T};
        for (int64_t t = 0; t < T; t++)
            SH_REQUIRE(r.docs[t] >= 0 && r.docs[t] <= t && r.docs[r.docs[t]] == r.docs[t]);
        (label ? take_singles : take_pairs)(&r, call, numbers);
    }
    for (int i = 0; i < call->out[2].dim[0]; i++)
        loss[i] = (sh_op_adds(call, 2) ? loss[i] : 0) + numbers[i];
    return SH_OK;
}
