/* PAIR_LOSS, by the definition in kernels/op.h: each document by itself, over all places of its row. */
#include "kernels/plug_loss.h"
#include "kernels/ref/ref.h"

struct document {
    int64_t row, first; /* place in the row; -1: there is none */
    double sum;
    struct sh_pair_answer answer;
};

static int64_t width(const struct sh_op_call *call)
{
    return call->in[1].dim[1];
}

static double at(const struct sh_op_call *call, int in, int64_t row, int64_t t)
{
    return sh_ref_get(&call->in[in], row * width(call) + t);
}

/* The document that begins at a place. */
static struct document document_at(const struct sh_op_call *call, int64_t row, int64_t first)
{
    struct document d = {.row = row, .first = first};

    for (int64_t t = 0; t < width(call); t++)
        if (at(call, 2, row, t) == (double)first && at(call, 1, row, t) >= 0) {
            d.sum += at(call, 0, row, t);
            d.answer.n++;
        }
    d.answer.l = d.sum;
    d.answer.d = d.sum - (call->in[3].data ? at(call, 3, row, first) : 0);
    return d;
}

static int64_t next_first(const struct sh_op_call *call, int64_t row, int64_t from)
{
    for (int64_t t = from; t < width(call); t++)
        if (at(call, 2, row, t) == (double)t)
            return t;
    return -1;
}

static void put(const struct sh_op_call *call, const struct document *d, double weight)
{
    int64_t T = width(call);

    for (int64_t t = 0; t < T; t++)
        if (at(call, 2, d->row, t) == (double)d->first) {
            sh_ref_set(&call->out[0], d->row * T + t, at(call, 1, d->row, t) >= 0 ? weight : 0);
            sh_ref_set(&call->out[1], d->row * T + t, t == d->first ? d->sum : 0);
        }
}

/* Add a pair to the numbers. */
static void take_pair(const struct sh_op_call *call, const struct document *c, const struct document *j,
                      double numbers[SH_PAIR_ALL])
{
    double rewards[2] = {sh_plug_pair_reward(call, c->answer), sh_plug_pair_reward(call, j->answer)};
    struct sh_pair_slope s = sh_plug_pair_slope(call, c->answer, j->answer);

    put(call, c, s.chosen);
    put(call, j, s.rejected);
    numbers[SH_PAIR_LOSS] += s.loss;
    numbers[SH_PAIR_CHOSEN] += rewards[0];
    numbers[SH_PAIR_REJECTED] += rewards[1];
    numbers[SH_PAIR_RIGHT] += rewards[0] > rewards[1];
    numbers[SH_PAIR_LOGP_CHOSEN] += c->sum;
    numbers[SH_PAIR_LOGP_REJECTED] += j->sum;
}

/* An answer by itself. */
static void take_single(const struct sh_op_call *call, const struct document *d, double z, double numbers[SH_PAIR_ALL])
{
    double label = at(call, 4, d->row, d->first);
    bool chosen = label == 1, counts = label != 2 && d->answer.n > 0;
    struct sh_pair_slope s = sh_pair_single_slope(&call->attr->pair, chosen, d->answer, z);

    put(call, d, counts ? s.chosen : 0);
    if (!counts)
        return;
    numbers[SH_PAIR_Z] += z;
    numbers[SH_PAIR_LOSS] += s.loss;
    numbers[SH_PAIR_RIGHT] += chosen;
    numbers[chosen ? SH_PAIR_CHOSEN : SH_PAIR_REJECTED] += sh_pair_reward(&call->attr->pair, d->answer);
    numbers[chosen ? SH_PAIR_LOGP_CHOSEN : SH_PAIR_LOGP_REJECTED] += d->sum;
}

/* The mean over the answers of a row to other prompts, at least 0. */
static double mismatch_of(const struct sh_op_call *call, int64_t row)
{
    double sum = 0, n = 0;

    for (int64_t first = next_first(call, row, 0); first >= 0; first = next_first(call, row, first + 1)) {
        struct document d = document_at(call, row, first);

        if (at(call, 4, row, first) == 2 && d.answer.n > 0) {
            sum += d.answer.d;
            n++;
        }
    }
    return n > 0 && !(sum < 0) ? sum / n : 0;
}

static void take_singles(const struct sh_op_call *call, int64_t row, double numbers[SH_PAIR_ALL])
{
    double z = call->attr->pair.loss == SH_PREFER_KTO ? mismatch_of(call, row) : 0;

    for (int64_t first = next_first(call, row, 0); first >= 0; first = next_first(call, row, first + 1)) {
        struct document d = document_at(call, row, first);

        take_single(call, &d, z, numbers);
    }
}

static void take_row(const struct sh_op_call *call, int64_t row, double numbers[SH_PAIR_ALL])
{
    int64_t first[2];

    for (first[0] = next_first(call, row, 0); first[0] >= 0; first[0] = next_first(call, row, first[1] + 1)) {
        struct document c = document_at(call, row, first[0]), j = {.row = row, .first = -1};

        first[1] = next_first(call, row, first[0] + 1);
        if (first[1] >= 0)
            j = document_at(call, row, first[1]);
        if (c.answer.n > 0 && j.answer.n > 0) {
            take_pair(call, &c, &j, numbers);
        } else {
            put(call, &c, 0);
            put(call, &j, 0);
        }
        if (first[1] < 0)
            return;
    }
}

sh_rc sh_ref_pair_loss(const struct sh_op_call *call)
{
    double numbers[SH_PAIR_ALL] = {0};

    for (int64_t row = 0; row < call->in[1].dim[0]; row++)
        (call->in[4].data ? take_singles : take_row)(call, row, numbers);
    for (int i = 0; i < call->out[2].dim[0]; i++)
        sh_ref_sum(call, 2, i, numbers[i]);
    return SH_OK;
}
