/* PAIR_LOSS: a block has a row. It brings pieces of the row into shared memory, where one thread walks over the
 * documents, so sums have one order; then all threads write weights. Bytes: 16 a token read, 12 written; kto walks
 * twice, because its answers are compared with what the whole row says. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/preference.h"

namespace
{
enum { THREADS = 256 };

struct pairs {
    const float *logprob;
    const int32_t *targets, *docs, *label; /* label: NULL: of pairs */
    const double *ref;                     /* NULL: 0 */
    float *weight;
    double *sum;
    float *weight_at; /* [B,T] of the document that begins at a place */
    double *parts;    /* [B,sums] */
    int64_t places;
    int sums; /* of a row */
    sh_op_pair how;
};

/* A piece of a row. */
struct piece {
    float logprob[THREADS];
    int32_t target[THREADS], doc[THREADS];
};

/* One thread's walk: the newest document, and the chosen one if this is its pair's other. */
struct walk {
    int64_t first, chosen_first; /* places in the row; -1: none */
    sh_pair_answer answer, chosen;
    double sum;
    bool second;
    bool looks; /* only for what answers are compared with: */
    double mismatched, count, z;
    double numbers[SH_PAIR_ALL];
};

__device__ void end_pair(const pairs &p, walk &w)
{
    sh_pair_slope s = {0, 0, 0};

    if (w.chosen.n > 0 && w.answer.n > 0) {
        double rewards[] = {sh_pair_reward(&p.how, w.chosen), sh_pair_reward(&p.how, w.answer)};

        s = sh_pair_slope_of(&p.how, w.chosen, w.answer);
        w.numbers[SH_PAIR_LOSS] += s.loss;
        w.numbers[SH_PAIR_CHOSEN] += rewards[0];
        w.numbers[SH_PAIR_REJECTED] += rewards[1];
        w.numbers[SH_PAIR_RIGHT] += rewards[0] > rewards[1];
        w.numbers[SH_PAIR_LOGP_CHOSEN] += w.chosen.l;
        w.numbers[SH_PAIR_LOGP_REJECTED] += w.answer.l;
    }
    p.weight_at[w.chosen_first] = (float)s.chosen;
    p.weight_at[w.first] = (float)s.rejected;
}

/* In the first walk answers to other prompts count, in the second one the others. */
__device__ void end_single(const pairs &p, walk &w)
{
    bool chosen = p.label[w.first] == 1, other = p.label[w.first] == 2;

    if (w.answer.n == 0 || other != w.looks)
        return;
    if (w.looks) {
        w.mismatched += w.answer.d;
        w.count += 1;
        return;
    }
    sh_pair_slope s = sh_pair_single_slope(&p.how, chosen, w.answer, w.z);
    w.numbers[SH_PAIR_Z] += w.z;
    w.numbers[SH_PAIR_LOSS] += s.loss;
    w.numbers[SH_PAIR_RIGHT] += chosen;
    w.numbers[chosen ? SH_PAIR_CHOSEN : SH_PAIR_REJECTED] += sh_pair_reward(&p.how, w.answer);
    w.numbers[chosen ? SH_PAIR_LOGP_CHOSEN : SH_PAIR_LOGP_REJECTED] += w.answer.l;
    p.weight_at[w.first] = (float)s.chosen;
}

__device__ void end_document(const pairs &p, walk &w)
{
    if (w.first < 0)
        return;
    p.sum[w.first] = w.sum;
    p.weight_at[w.first] = 0;
    w.answer.l = w.sum;
    w.answer.d = w.sum - (p.ref ? p.ref[w.first] : 0);
    if (p.label) {
        end_single(p, w);
    } else if (w.second) {
        end_pair(p, w);
    } else {
        w.chosen = w.answer;
        w.chosen_first = w.first;
    }
    w.second = !w.second;
}

__device__ void walk_over(const pairs &p, walk &w, const piece &s, int64_t at, int n)
{
    for (int i = 0; i < n; i++) {
        if (s.doc[i] == at + i) {
            end_document(p, w);
            w.first = at + i;
            w.answer = {0, 0, 0};
            w.sum = 0;
        }
        if (s.target[i] >= 0) {
            w.sum += s.logprob[i];
            w.answer.n += 1;
        }
    }
}

__device__ pairs row_of(pairs p, int64_t b)
{
    int64_t at = b * p.places;

    p.logprob += at, p.targets += at, p.docs += at;
    p.ref = p.ref ? p.ref + at : nullptr;
    p.label = p.label ? p.label + at : nullptr;
    p.weight += at, p.sum += at, p.weight_at += at;
    p.parts += b * p.sums;
    return p;
}

/* The whole block, piece after piece; its first thread has the walk. */
__device__ void walk_row(const pairs &p, walk &w, piece &s)
{
    int me = (int)threadIdx.x;

    for (int64_t at = 0; at < p.places; at += THREADS) {
        int n = p.places - at < THREADS ? (int)(p.places - at) : THREADS;

        if (me < n) {
            s.logprob[me] = p.logprob[at + me];
            s.target[me] = p.targets[at + me];
            s.doc[me] = p.docs[at + me];
            p.sum[at + me] = 0;
        }
        __syncthreads();
        if (me == 0)
            walk_over(p, w, s, at, n);
        __syncthreads();
    }
    if (me == 0)
        end_document(p, w);
}

/* The mean over the answers of a row to other prompts, at least 0. */
__device__ double mismatch_of(const pairs &p, piece &s)
{
    walk w = {-1, -1, {0, 0, 0}, {0, 0, 0}, 0, false, true, 0, 0, 0, {0}};

    walk_row(p, w, s);
    __syncthreads();
    return w.count > 0 && !(w.mismatched < 0) ? w.mismatched / w.count : 0;
}

__global__ void __launch_bounds__(THREADS) pair_rows(pairs all)
{
    SH_SHARED(piece, pieces, 1);
    piece &s = *pieces;
    pairs p = row_of(all, blockIdx.x);
    int me = (int)threadIdx.x;
    walk w = {-1, -1, {0, 0, 0}, {0, 0, 0}, 0, false, false, 0, 0, 0, {0}};

    if (p.how.loss == SH_PREFER_KTO)
        w.z = mismatch_of(p, s);
    walk_row(p, w, s);
    SH_UNROLL
    for (int i = 0; i < SH_PAIR_ALL; i++) /* a constant index keeps the numbers in registers */
        if (me == 0 && i < p.sums)
            p.parts[i] = w.numbers[i];
    __syncthreads();
    for (int64_t t = me; t < p.places; t += THREADS)
        p.weight[t] = p.targets[t] >= 0 ? p.weight_at[p.docs[t]] : 0;
}

/* loss [sums] = or += the sums over rows, in their order. */
__global__ void pair_numbers(double *loss, bool add, const double *parts, int64_t rows, int sums)
{
    double sum = 0;

    if ((int)threadIdx.x >= sums)
        return;
    for (int64_t b = 0; b < rows; b++)
        sum += parts[b * sums + threadIdx.x];
    loss[threadIdx.x] = add ? loss[threadIdx.x] + sum : sum;
}
} // namespace

extern "C" sh_rc sh_cuda_pair_loss(const struct sh_op_call *call)
{
    int64_t B = call->in[1].dim[0], T = call->in[1].dim[1], sums = call->out[2].dim[0];
    double *parts = static_cast<double *>(call->work);
    pairs p = {sh_data<float>(&call->in[0]),
               sh_data<int32_t>(&call->in[1]),
               sh_data<int32_t>(&call->in[2]),
               sh_data<int32_t>(&call->in[4]),
               sh_data<double>(&call->in[3]),
               sh_data<float>(&call->out[0]),
               sh_data<double>(&call->out[1]),
               reinterpret_cast<float *>(parts + B * sums),
               parts,
               T,
               (int)sums,
               call->attr->pair};

    SH_REQUIRE(sums <= SH_PAIR_ALL);
    SH_REQUIRE(call->work_bytes >= sh_cuda_pair_loss_work_bytes(call));
    SH_TRY(SH_LAUNCH(pair_rows, dim3((unsigned)B), dim3(THREADS), 0, call->queue, p));
    return SH_LAUNCH(pair_numbers, dim3(1), dim3(32), 0, call->queue, sh_data<double>(&call->out[2]),
                     sh_op_adds(call, 2), parts, B, (int)sums);
}
