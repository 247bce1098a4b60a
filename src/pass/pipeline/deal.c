#include "src/pass/pipeline/deal.h"

#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/config/words.h"
#include "src/pass/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int chunks_of(const struct sh_pipe_deal *d)
{
    return d->stages * d->chunks;
}

static bool chooses(const struct sh_pipe_deal *d)
{
    return d->first_less == SH_LESS_AUTO && d->last_less == SH_LESS_AUTO;
}

static struct sh_pipe_deal with(const struct sh_pipe_deal *d, int first_less, int last_less)
{
    struct sh_pipe_deal other = *d;

    other.first_less = first_less;
    other.last_less = last_less;
    return other;
}

/* With the blocks that the first and the last chunk lack, all have an equal share. */
static int share_of(const struct sh_pipe_deal *d, int chunk)
{
    int n = chunks_of(d), all = d->layers + d->first_less + d->last_less, share = all / n + (chunk < all % n);

    return share - (chunk == 0 ? d->first_less : 0) - (chunk == n - 1 ? d->last_less : 0);
}

/* Returns whether each has a block. */
static bool deal_shares(const struct sh_pipe_deal *d, int *begin)
{
    bool divides = true;

    begin[0] = 0;
    for (int c = 0; c < chunks_of(d); c++) {
        begin[c + 1] = begin[c] + share_of(d, c);
        divides = divides && begin[c + 1] > begin[c];
    }
    return divides;
}

static int64_t work_of_chunk(const struct sh_pipe_deal *d, const int *begin, int chunk)
{
    return d->sums[chunk == chunks_of(d) - 1 ? d->layers + 1 : begin[chunk + 1]] - d->sums[begin[chunk]];
}

static int64_t work_of_stage(const struct sh_pipe_deal *d, const int *begin, int stage)
{
    int64_t sum = 0;

    for (int c = stage; c < chunks_of(d); c += d->stages)
        sum += work_of_chunk(d, begin, c);
    return sum;
}

int64_t sh_pipe_most(const struct sh_pipe_deal *d, const int *begin)
{
    int64_t most = 0;

    for (int s = 0; s < d->stages; s++) {
        int64_t work = work_of_stage(d, begin, s);

        most = work > most ? work : most;
    }
    return most;
}

/* Try each number for the key whose number is not given. Returns whether one divides. */
static bool deal_other(const struct sh_pipe_deal *d, int *begin)
{
    bool any = false, first = d->first_less == SH_LESS_AUTO;
    int64_t least = INT64_MAX;
    int *tried = sh_calloc((size_t)chunks_of(d) + 1, sizeof *tried);

    for (int less = 0; less < d->layers; less++) {
        struct sh_pipe_deal one = with(d, first ? less : d->first_less, first ? d->last_less : less);

        if (!deal_shares(&one, tried) || (d->sums && sh_pipe_most(d, tried) >= least))
            continue;
        any = true;
        if (!d->sums)
            break;
        least = sh_pipe_most(d, tried);
        memcpy(begin, tried, ((size_t)chunks_of(d) + 1) * sizeof *begin);
    }
    free(tried);
    return any;
}

bool sh_pipe_divides(const struct sh_pipe_deal *d)
{
    struct sh_pipe_deal blind = *d;
    int *begin;
    bool divides;

    if (chooses(d))
        return d->layers >= chunks_of(d);
    blind.sums = NULL;
    begin = sh_calloc((size_t)chunks_of(d) + 1, sizeof *begin);
    divides = d->first_less == SH_LESS_AUTO || d->last_less == SH_LESS_AUTO ? deal_other(&blind, begin)
                                                                            : deal_shares(&blind, begin);
    free(begin);
    return divides;
}

/* Whether stages of at most `most` are enough: from the last one on, each takes what it can and leaves others one each. */
static bool is_enough(const struct sh_pipe_deal *d, int64_t most)
{
    int end = d->layers + 1; /* the head is with the last block */

    for (int s = d->stages - 1; s >= 0; s--) {
        int first = end > d->layers ? d->layers - 1 : end - 1;

        while (first > s && d->sums[end] - d->sums[first - 1] <= most)
            first--;
        if (d->sums[end] - d->sums[first] > most)
            return false;
        end = first;
    }
    return end == 0;
}

static int64_t least_most(const struct sh_pipe_deal *d)
{
    int64_t low = 0, high = 2 * (int64_t)SH_PIPE_WORK;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (is_enough(d, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* From the last stage to the first, the least sum of squares for blocks [i, layers), and where the stage ends then.
 *   squares  in   [layers + 1] of the stages after this one; out: with this one
 *   ends     out  [layers + 1]; of equal ones the first */
static void add_stage(const struct sh_pipe_deal *d, bool last, int64_t most, int64_t *squares, int *ends)
{
    for (int i = 0; i < d->layers; i++) {
        int64_t best = INT64_MAX;

        for (int end = last ? d->layers : i + 1; end <= d->layers; end++) {
            int64_t work = d->sums[end + last] - d->sums[i];

            if (work > most)
                break;
            if (squares[end] < INT64_MAX && work * work + squares[end] < best) {
                best = work * work + squares[end];
                ends[i] = end;
            }
        }
        squares[i] = best;
    }
    squares[d->layers] = INT64_MAX;
}

static void deal_stages(const struct sh_pipe_deal *d, int64_t most, int *begin)
{
    size_t row = (size_t)d->layers + 1;
    int64_t *squares = sh_calloc(row, sizeof *squares);
    int *ends = sh_calloc((size_t)d->stages * row, sizeof *ends);

    for (int s = d->stages - 1; s >= 0; s--)
        add_stage(d, s == d->stages - 1, most, squares, ends + (size_t)s * row);
    for (int s = 0; s < d->stages; s++)
        begin[s + 1] = ends[(size_t)s * row + (size_t)begin[s]];
    free(squares);
    free(ends);
}

/* How good a deal of several chunks is: the most of a stage; squares of stages; what the first ones have; squares of chunks, as a
 * chunk waits for the one before it. Less is better, and the first that differs decides. */
enum { MOST, SQUARES, EARLY, EVEN, SCORES };
struct score {
    int64_t of[SCORES];
};

static struct score score_of(const struct sh_pipe_deal *d, const int *begin)
{
    struct score score = {{0}};

    for (int s = 0; s < d->stages; s++) {
        int64_t work = work_of_stage(d, begin, s);

        score.of[MOST] = work > score.of[MOST] ? work : score.of[MOST];
        score.of[SQUARES] += work * work;
        score.of[EARLY] += work * (d->stages - s);
    }
    for (int c = 0; c < chunks_of(d); c++)
        score.of[EVEN] += work_of_chunk(d, begin, c) * work_of_chunk(d, begin, c);
    return score;
}

static bool is_better(const struct score *a, const struct score *b)
{
    int i = 0;

    while (i < SCORES - 1 && a->of[i] == b->of[i])
        i++;
    return a->of[i] < b->of[i];
}

/* One block less for chunk `from` and one more for `to`; those between move by one. */
static void move_block(int *begin, int from, int to, int by)
{
    for (int c = from < to ? from + 1 : to + 1; c <= (from < to ? to : from); c++)
        begin[c] += from < to ? -by : by;
}

/* The best move of one block, if it is an improvement. */
static bool improve(const struct sh_pipe_deal *d, int *begin)
{
    struct score best = score_of(d, begin);
    int best_from = -1, best_to = -1;

    for (int from = 0; from < chunks_of(d); from++)
        for (int to = 0; to < chunks_of(d) && begin[from + 1] - begin[from] > 1; to++) {
            struct score score;

            if (from == to)
                continue;
            move_block(begin, from, to, 1);
            score = score_of(d, begin);
            move_block(begin, from, to, -1);
            if (is_better(&score, &best)) {
                best = score;
                best_from = from;
                best_to = to;
            }
        }
    if (best_from >= 0)
        move_block(begin, best_from, best_to, 1);
    return best_from >= 0;
}

static void deal_chunks(const struct sh_pipe_deal *d, int *begin)
{
    while (improve(d, begin))
        continue;
}

void sh_pipe_deal(const struct sh_pipe_deal *d, int *begin)
{
    struct sh_pipe_deal equal = with(d, 0, 0);
    int64_t most;

    if (!chooses(d)) {
        if (d->first_less == SH_LESS_AUTO || d->last_less == SH_LESS_AUTO)
            deal_other(d, begin);
        else
            deal_shares(d, begin);
        return;
    }
    deal_shares(&equal, begin);
    most = sh_pipe_most(d, begin);
    if (d->chunks > 1)
        deal_chunks(d, begin);
    else
        deal_stages(d, least_most(d), begin);
    if (most - sh_pipe_most(d, begin) < most / SH_PIPE_GAIN)
        deal_shares(&equal, begin);
}

static int64_t *sums_of(const struct sh_build *b)
{
    struct sh_model_batch batch = {.seq = b->batch.seq, .adapters = b->batch.adapters};
    int n = b->model.n_layers + 1;
    struct sh_model_flops *of = sh_calloc((size_t)n, sizeof *of);
    int64_t *sums = sh_calloc((size_t)n + 1, sizeof *sums);
    double all = 0;

    sh_model_flops_of_blocks(&b->model, &batch, of);
    for (int i = 0; i < n; i++) {
        of[i].matmul += of[i].attention_causal;
        if (i < n - 1 && !b->fit && sh_pass_recomputes_all(&b->recompute, i))
            of[i].matmul += of[i].forward;
        all += of[i].matmul;
    }
    for (int i = 0; i < n; i++)
        sums[i + 1] = sums[i] + llround(of[i].matmul / all * SH_PIPE_WORK);
    free(of);
    return sums;
}

/* Whether each stage has a block with experts, and the first already in its first chunk: its adapters, if only experts have
 * some, are all that sends gradients there. */
static bool have_experts(const struct sh_build *b, const struct sh_pipe_deal *d, const int *begin)
{
    bool all = sh_family_blocks_with_experts(&b->model, begin[1]) > 0;

    for (int s = 0; s < d->stages; s++) {
        int n = 0;

        for (int c = s; c < chunks_of(d); c += d->stages)
            n += sh_family_blocks_with_experts(&b->model, begin[c + 1]) -
                 sh_family_blocks_with_experts(&b->model, begin[c]);
        all = all && n > 0;
    }
    return all;
}

static bool needs_experts(const struct sh_build *b)
{
    bool asks = b->batch.adapters.rank || sh_group_size(&b->options.mesh, b->options.mesh.expert) > 1;

    return asks && sh_family_blocks_with_experts(&b->model, b->model.n_layers) > 0;
}

struct sh_pipe_deal sh_pipe_deal_of(const struct sh_build *b, int **begin)
{
    const struct sh_pass_options *o = &b->options;
    int stages = sh_group_size(&o->mesh, o->mesh.pipeline);
    struct sh_pipe_deal d = {b->model.n_layers, stages, stages > 1 ? o->chunks : 1, o->first_less, o->last_less, NULL};
    struct sh_pipe_deal equal = with(&d, 0, 0);

    *begin = sh_calloc((size_t)chunks_of(&d) + 1, sizeof **begin);
    if (stages == 1 || d.layers < chunks_of(&d)) { /* the latter is refused: sh_pipe_divides() */
        deal_shares(&equal, *begin);
        return d;
    }
    d.sums = sums_of(b);
    sh_pipe_deal(&d, *begin);
    if (chooses(&d) && needs_experts(b) && !have_experts(b, &d, *begin))
        deal_shares(&equal, *begin);
    return d;
}

void sh_pipe_deal_free(struct sh_pipe_deal *d, int *begin)
{
    free((void *)d->sums);
    free(begin);
}
