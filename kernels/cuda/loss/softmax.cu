/* Softmax and cross entropy of rows of logits. A block owns a row. Bytes per logit: 4 for the loss, which keeps a
 * running maximum and a sum that is rescaled when the maximum grows; with gradients 4 more, and 4 (bf16: 2) written. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/loss/forms.h"
#include "kernels/cuda/loss/soft.cuh"
#include "kernels/cuda/map.cuh"

namespace
{
/* Turn the row into (softmax - onehot) * scale, or into 0 if factor and scale are 0. A gradient is never stored after
 * the logit that it comes from, so a tile of the row may be written once all of it has been read. The next tile is
 * asked for before this one is computed. */
template <class T>
__device__ __forceinline__ void write_gradient(float *row, int64_t vocab, int64_t target, float max, float factor,
                                               float scale)
{
    T *to = reinterpret_cast<T *>(row);
    int64_t at = threadIdx.x * N;
    float x[N], next[N];

    load_logits(next, row, at, vocab);
    for (int64_t tile = 0; tile < vocab; tile += blockDim.x * N, at += blockDim.x * N) {
        memcpy(x, next, sizeof x);
        load_logits(next, row, at + blockDim.x * N, vocab);
        for (int k = 0; k < N; k++)
            x[k] = factor == 0 ? 0 : expf(x[k] - max) * factor - (at + k == target ? scale : 0);
        __syncthreads();
        sh_store_some(to + at, x, vocab - at, true);
    }
}

/* T: type of the gradient; void: only the loss. A target outside the vocabulary makes the loss NaN. */
template <class T> __device__ __forceinline__ void softmax_row(const sh_cuda_softmax &s, int64_t r)
{
    float *row = s.logits + r * s.ld;
    int64_t target = s.targets[r];
    bool counts = target >= 0;
    soft of_row = {0, 1};
    float at_target = 0;

    if (counts) {
        at_target = target < s.vocab ? row[target] : nanf("");
        of_row = soft_of(row, s.vocab);
    }
    /* Only here: known earlier, the weight would cost the loops a fifth of the registers on sm_120. */
    double weight = counts ? weight_of(s, r) : 0;
    if (threadIdx.x == 0)
        s.row_loss[r] = weight != 0 ? weight * (log((double)of_row.sum) + (double)of_row.max - (double)at_target) : 0;
    if constexpr (!std::is_void<T>::value) {
        double scale = weight * s.loss_scale;

        write_gradient<T>(row, s.vocab, target, of_row.max, weight != 0 ? (float)(scale / (double)of_row.sum) : 0,
                          (float)scale);
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) softmax_kernel(sh_cuda_softmax s)
{
    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x)
        softmax_row<T>(s, r);
}

/* The row in its own type. */
template <class T> struct part {
    const T *z;
    const float *stats; /* [P,rows,3] */
    const int32_t *targets;
    float *stat;   /* [rows,3] */
    int32_t *word; /* [rows]; NULL: not wanted */
    T *dz;
    double *row_loss; /* [rows], or [2,rows] with squares */
    int64_t rows, vocab, first;
    int parts;
    double loss_scale, square; /* square: what that of lse counts */
    float cap;                 /* 0: none */
};

template <class T> __device__ __forceinline__ soft soft_of_row(const T *row, int64_t vocab, float cap)
{
    soft s = {-INFINITY, 0};
    for (int64_t at = threadIdx.x; at < vocab; at += blockDim.x) {
        float x[1] = {logit_of(row[at], cap)};
        include(s, x);
    }
    float max[1] = {s.max};
    sh_block_reduce(max, -INFINITY, sh_larger());
    float sum[1] = {s.max == -INFINITY ? s.sum : s.sum * expf(s.max - max[0])};
    sh_block_sum(sum);
    return {max[0], sum[0]};
}

template <class T> __global__ void __launch_bounds__(THREADS) part_kernel(part<T> s)
{
    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
        const T *row = s.z + r * s.vocab;
        int64_t target = s.targets[r] - s.first;
        soft of_row = soft_of_row(row, s.vocab, s.cap);
        int word = s.word ? word_of(row, s.vocab, of_row.max, s.cap) : 0;
        if (threadIdx.x)
            continue;
        if (s.word)
            s.word[r] = (int32_t)s.first + word;
        s.stat[3 * r] = of_row.max;
        s.stat[3 * r + 1] = of_row.sum;
        s.stat[3 * r + 2] = target >= 0 && target < s.vocab ? logit_of(row[target], s.cap) : 0;
    }
}

/* The parts of a row, put together; and the first rank that has its largest. */
struct whole {
    float max;
    double sum, at_target;
    int rank;
};

/* stats [P,rows,3] */
__device__ __forceinline__ whole whole_of(const float *stats, int parts, int64_t rows, int64_t r)
{
    whole w = {-INFINITY, 0, 0, 0};

    for (int p = 0; p < parts; p++) {
        const float *stat = stats + 3 * (p * rows + r);
        w.rank = stat[0] > w.max ? p : w.rank;
        w.max = fmaxf(w.max, stat[0]);
        w.at_target += (double)stat[2];
    }
    for (int p = 0; p < parts; p++)
        w.sum += (double)stats[3 * (p * rows + r) + 1] * exp((double)stats[3 * (p * rows + r)] - (double)w.max);
    return w;
}

struct score_rest {
    const float *stats;
    const int32_t *words, *targets;
    float *logprob;
    int32_t *word;
    int64_t rows;
    int parts;

    template <int N> __device__ __forceinline__ void at(int64_t r) const
    {
        whole w = whole_of(stats, parts, rows, r);
        logprob[r] = targets[r] < 0 ? 0 : (float)(w.at_target - (double)w.max - log(w.sum));
        word[r] = words[w.rank * rows + r];
    }
};

template <class T> __global__ void __launch_bounds__(THREADS) rest_kernel(part<T> s)
{
    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
        int word = s.targets[r];
        int64_t target = word - s.first;
        whole w = whole_of(s.stats, s.parts, s.rows, r);

        double lse = log(w.sum) + (double)w.max, share = 1 + 2 * s.square * lse;
        bool here = word >= 0 && s.first == 0;

        if (threadIdx.x == 0) {
            s.row_loss[r] = here ? lse - w.at_target : 0;
            if (s.square != 0)
                s.row_loss[s.rows + r] = here ? s.square * lse * lse : 0;
        }
        float factor = word < 0 ? 0 : (float)(share * s.loss_scale / w.sum), scale = word < 0 ? 0 : (float)s.loss_scale;
        for (int64_t v = threadIdx.x; s.dz && v < s.vocab; v += blockDim.x) {
            float z = logit_of(s.z[r * s.vocab + v], s.cap);
            float x = factor == 0 ? 0 : expf(z - w.max) * factor - (v == target ? scale : 0);
            x = s.cap == 0 ? x : x * (1 - z / s.cap * (z / s.cap));
            s.dz[r * s.vocab + v] = sh_narrow<T>(x);
        }
    }
}

__global__ void __launch_bounds__(THREADS) scores_kernel(sh_cuda_scores s)
{
    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
        const float *row = s.logits + r * s.ld;
        int64_t target = s.targets[r];
        soft of_row = soft_of(row, s.vocab);
        int word = word_of(row, s.vocab, of_row.max, 0.0f);
        double lse = s.raw ? 0 : log((double)of_row.sum) + (double)of_row.max;
        for (int64_t j = r * s.words + threadIdx.x; j < (r + 1) * s.words; j += blockDim.x)
            s.best_logprob[j] = (float)((double)s.best_logprob[j] - lse);
        if (threadIdx.x)
            continue;
        s.likeliest[r] = word;
        s.logprob[r] = 0;
        if (target >= 0 && s.raw)
            s.logprob[r] = target < s.vocab ? row[target] : nanf("");
        else if (target >= 0)
            s.logprob[r] = target < s.vocab
                               ? (float)((double)row[target] - (double)of_row.max - log((double)of_row.sum))
                               : nanf("");
    }
}

template <class T> part<T> part_of(const struct sh_op_call *call, const struct sh_operand *targets)
{
    return {sh_data<const T>(&call->in[0]),
            nullptr,
            sh_data<const int32_t>(targets),
            nullptr,
            nullptr,
            nullptr,
            nullptr,
            call->in[0].dim[0],
            call->in[0].dim[1],
            call->attr->part.first,
            0,
            0,
            call->attr->part.squares,
            call->attr->part.cap};
}

template <class T> sh_rc run_part(const struct sh_op_call *call)
{
    part<T> s = part_of<T>(call, &call->in[1]);
    s.stat = sh_data<float>(&call->out[0]);
    s.word = sh_data<int32_t>(&call->out[1]);
    return SH_LAUNCH(part_kernel<T>, dim3(sh_blocks(s.rows)), block_of(s.vocab), 0, call->queue, s);
}

/* loss [numbers] = or += the sums of row_loss [made,rows]; those that rows have not made are 0. */
sh_rc sum_rows(double *loss, bool add, const double *row_loss, int64_t rows, int numbers, int made, void *queue)
{
    for (int k = 0; k < numbers; k++)
        SH_TRY(sh_sum_parts(loss + k, add, row_loss + (k < made ? k * rows : 0), k < made ? rows : 0, queue));
    return SH_OK;
}

template <class T> sh_rc run_rest(const struct sh_op_call *call)
{
    part<T> s = part_of<T>(call, &call->in[2]);
    s.stats = sh_data<const float>(&call->in[1]);
    s.dz = sh_data<T>(&call->out[1]);
    s.row_loss = static_cast<double *>(call->work);
    s.parts = (int)call->in[1].dim[0];
    s.loss_scale = call->scalars->loss_scale;
    SH_TRY(SH_LAUNCH(rest_kernel<T>, dim3(sh_blocks(s.rows)), block_of(s.vocab), 0, call->queue, s));
    int numbers = s.square == 0 ? 1 : 2;
    return sum_rows(sh_data<double>(&call->out[0]), sh_op_adds(call, 0), s.row_loss, s.rows, numbers, numbers,
                    call->queue);
}

template <class T> sh_rc run(const struct sh_cuda_softmax *s, void *queue)
{
    return SH_LAUNCH(softmax_kernel<T>, dim3(sh_blocks(s->rows)), block_of(s->vocab), 0, queue, *s);
}
} // namespace

extern "C" sh_rc sh_cuda_loss_part(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) { return run_part<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_loss_rest(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) { return run_rest<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_score_rest(const struct sh_op_call *call)
{
    score_rest f = {sh_data<const float>(&call->in[0]),
                    sh_data<const int32_t>(&call->in[1]),
                    sh_data<const int32_t>(&call->in[2]),
                    sh_data<float>(&call->out[0]),
                    sh_data<int32_t>(&call->out[1]),
                    call->in[0].dim[1],
                    (int)call->in[0].dim[0]};

    return sh_map<1>("scores of words", f, f.rows, false, call->queue);
}

extern "C" sh_rc sh_cuda_softmax_loss(const struct sh_cuda_softmax *s, void *queue)
{
    bool form = s->raw || s->words || s->multi_label || s->cap != 0 || s->squares != 0;

    if (s->rows == 0)
        return s->add_loss ? SH_OK : sum_rows(s->loss, false, s->row_loss, 0, s->numbers, 0, queue);
    if (form)
        SH_TRY(sh_cuda_form_loss(s, queue));
    else if (!s->gradient)
        SH_TRY(run<void>(s, queue));
    else
        SH_TRY(sh_by_act(s->grad_dtype, [&](auto zero) { return run<decltype(zero)>(s, queue); }));
    return sum_rows(s->loss, s->add_loss, s->row_loss, s->rows, s->numbers, form ? s->numbers : 1, queue);
}

extern "C" sh_rc sh_cuda_softmax_scores(const struct sh_cuda_scores *s, void *queue)
{
    return SH_LAUNCH(scores_kernel, dim3(sh_blocks(s->rows)), block_of(s->vocab), 0, queue, *s);
}
