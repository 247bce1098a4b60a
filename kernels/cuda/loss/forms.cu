/* Losses of rows beside plain cross entropy: capped logits, squares of lse, a teacher's words, labels each by itself, raw values. A block owns a row, as in
 * softmax.cu, whose kernel has no branch for these. Bytes per logit: 4 for each softmax, and with gradients 4 more, and
 * 4 (bf16: 2) written; a cap reads and writes them once before. */
#include "kernels/cuda/loss/forms.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/loss/soft.cuh"
#include "kernels/cuda/map.cuh"
#include "src/config/words.h"

namespace
{
/* The derivative by a logit z, which a cap still multiplies:
 * soft e^((z - max) / T) + hard e^(z - max), less `target` at the target, less soft_sum times the share of a teacher's
 * word. All are 0 in a row that does not count. */
struct derivative {
    float max, cold, soft, hard, target; /* cold: 1 / T */
    double soft_scale, soft_sum;
    bool apart; /* there is a rest: slopes of the teacher's words are computed apart, as the CPU does and says why */
};

#define NOT_NAMED INFINITY /* what a word that the teacher does not name has taken away, if slopes are computed apart */

/* Log-probabilities of a row's words as the teacher gives them, and what makes shares of them. */
struct teacher {
    const int32_t *word;
    const float *logp;
    int words;
    double max, sum, mass, temperature; /* mass: their probability */
    int form;
    double said, tail, ratio; /* as the CPU has them */

    __device__ __forceinline__ double log_share(int j) const
    {
        return form != SH_KD_NORMALIZED ? (double)logp[j] : ((double)logp[j] - max) / temperature - log(sum);
    }
};

/* For all threads of the block. */
__device__ teacher teacher_of(const sh_cuda_softmax &s, int64_t r)
{
    teacher t = {
        s.word + r * s.words, s.teacher + r * s.words, s.words, -INFINITY, 0, 0, s.temperature, s.form, 1, 0, 0};
    float max[1] = {-INFINITY};
    double sums[2] = {0, 0};

    for (int j = threadIdx.x; j < t.words; j += blockDim.x)
        max[0] = fmaxf(max[0], t.logp[j]);
    sh_block_reduce(max, -INFINITY, sh_larger());
    for (int j = threadIdx.x; j < t.words; j += blockDim.x) {
        sums[0] += exp(((double)t.logp[j] - (double)max[0]) / t.temperature);
        sums[1] += exp((double)t.logp[j]);
    }
    sh_block_sum(sums);
    t.max = (double)max[0];
    t.sum = sums[0];
    t.mass = sums[1];
    return t;
}

/* Sum of e^((logit - max) / T), for all threads of the block. */
__device__ double soft_sum_of(const float *row, int64_t vocab, float max, float cold)
{
    float sum[1] = {0};

    for (int64_t at = threadIdx.x; at < vocab; at += blockDim.x)
        sum[0] += expf((row[at] - max) * cold);
    sh_block_sum(sum);
    return (double)sum[0];
}

/* The log of the model's probability of the teacher's word j. */
__device__ __forceinline__ double log_own(const teacher &t, int j, const float *row, int64_t vocab, float max,
                                          double soft_sum)
{
    bool there = t.word[j] >= 0 && t.word[j] < vocab;

    return ((there ? (double)row[t.word[j]] : (double)nanf("")) - (double)max) / t.temperature - log(soft_sum);
}

/* What teacher and model have left beside its words, in one order; for all threads. */
__device__ void sum_rest(teacher &t, const float *row, int64_t vocab, float max, double soft_sum)
{
    double own[1] = {0};

    if (t.form == SH_KD_NORMALIZED)
        return;
    for (int j = threadIdx.x; j < t.words; j += blockDim.x)
        own[0] += exp(log_own(t, j, row, vocab, max, soft_sum));
    sh_block_sum(own);
    t.said = t.mass;
    t.tail = t.form == SH_KD_TAIL && t.said < 1 ? 1 - t.said : 0;
    t.ratio = t.tail / (1 - own[0] > SH_KD_REST ? 1 - own[0] : SH_KD_REST);
}

/* sum over the teacher's words of share (log share - log of the model's), in one order; for all threads. */
__device__ double teacher_loss(const teacher &t, const float *row, int64_t vocab, float max, double soft_sum)
{
    double loss[1] = {0};

    for (int j = threadIdx.x; j < t.words; j += blockDim.x) {
        double share = t.log_share(j);
        loss[0] += exp(share) * (share - log_own(t, j, row, vocab, max, soft_sum));
    }
    sh_block_sum(loss);
    return loss[0] + (t.tail > 0 ? t.tail * log(t.ratio) : 0);
}

/* said [tile of the row] = what the teacher's words there take away, or, if they are apart, the whole of their slopes by the
 * teacher, negated. A word that it names twice counts twice. Logits of the tile are not overwritten yet. */
__device__ void said_of(const teacher &t, const derivative &d, const float *row, int64_t vocab, int64_t tile,
                        float *said)
{
    int width = (int)blockDim.x * N;

    for (int i = threadIdx.x; i < width; i += blockDim.x)
        said[i] = d.apart ? NOT_NAMED : 0;
    __syncthreads();
    for (int j = threadIdx.x; j < t.words; j += blockDim.x) {
        int64_t place = t.word[j] - tile;
        double sum = 0;

        if (place < 0 || place >= width || t.word[j] >= vocab)
            continue;
        if (d.apart)
            sum = -exp(log_own(t, j, row, vocab, d.max, d.soft_sum));
        for (int i = 0; i < t.words; i++)
            sum += t.word[i] == t.word[j] ? exp(t.log_share(i)) : 0;
        said[place] = (float)(d.soft_scale * sum);
    }
    __syncthreads();
}

__device__ __forceinline__ float slope_of(const derivative &d, float z, bool at_target, float said, float cap)
{
    bool not_named = d.apart && said == NOT_NAMED, soft = d.soft != 0 && (not_named || !d.apart);
    float x = (soft ? d.soft * expf((z - d.max) * d.cold) : 0) + (d.hard == 0 ? 0 : d.hard * expf(z - d.max));

    x -= (at_target ? d.target : 0) + (not_named ? 0 : said);
    return cap == 0 ? x : x * (1 - z / cap * (z / cap));
}

/* The numbers of a row of labels, each by itself; for all threads of the block. */
__device__ void multi_label_numbers(const sh_cuda_softmax &s, int64_t r, double (&n)[SH_HEAD_NUMBERS])
{
    const float *row = s.logits + r * s.ld, *wanted = s.teacher + r * s.vocab;
    double sums[4] = {0, 0, 0, 0}; /* the fourth: labels that are wrong */

    for (int64_t v = threadIdx.x; v < s.vocab; v += blockDim.x) {
        double z = (double)row[v], y = (double)wanted[v];
        bool found = z > 0, there = y >= 0.5;

        sums[0] += (z > 0 ? z : 0) + log1p(exp(-fabs(z))) - y * z;
        sums[1] += found && there;
        sums[2] += found + there;
        sums[3] += found != there;
    }
    sh_block_sum(sums);
    n[SH_HEAD_SUM] = sums[0] / (double)s.vocab;
    n[SH_HEAD_TRUE_POSITIVES] = sums[1];
    n[SH_HEAD_POSITIVES] = sums[2];
    n[SH_HEAD_RIGHT] = sums[3] == 0;
}

__device__ __forceinline__ float multi_label_slope(const sh_cuda_softmax &s, int64_t r, int64_t v, float z, float scale)
{
    return v < s.vocab && scale != 0 ? scale * (1 / (1 + expf(-z)) - s.teacher[r * s.vocab + v]) : 0;
}

/* In place, tile by tile, as softmax.cu writes gradients: no logit is overwritten before it was read. */
template <class T>
__device__ void write_slopes(const sh_cuda_softmax &s, int64_t r, const derivative &d, const teacher &t, float *said)
{
    float *row = s.logits + r * s.ld, x[N], next[N];
    T *to = reinterpret_cast<T *>(row);
    int64_t at = threadIdx.x * N;

    load_logits(next, row, at, s.vocab);
    for (int64_t tile = 0; tile < s.vocab; tile += blockDim.x * N, at += blockDim.x * N) {
        memcpy(x, next, sizeof x);
        load_logits(next, row, at + blockDim.x * N, s.vocab);
        if (t.words)
            said_of(t, d, row, s.vocab, tile, said);
        for (int k = 0; k < N; k++)
            x[k] = s.multi_label
                       ? multi_label_slope(s, r, at + k, x[k], d.target)
                       : slope_of(d, x[k], at + k == s.targets[r], t.words ? said[threadIdx.x * N + k] : 0, s.cap);
        __syncthreads();
        sh_store_some(to + at, x, s.vocab - at, true);
    }
}

/* The numbers of a row that counts, without its weight; d: the derivative of its loss. */
__device__ void row_numbers(const sh_cuda_softmax &s, int64_t r, double weight, derivative &d, teacher &t,
                            double (&n)[SH_HEAD_NUMBERS])
{
    const float *row = s.logits + r * s.ld;
    int64_t target = s.targets[r];
    double at_target = target < s.vocab ? (double)row[target] : (double)nanf(""), scale = weight * s.loss_scale;
    double T = s.temperature, alpha = s.words ? s.alpha : 0;

    d.target = (float)(scale * (1 - alpha) / (s.multi_label ? (double)s.vocab : 1));
    if (s.multi_label) {
        multi_label_numbers(s, r, n);
        return;
    }
    n[SH_HEAD_SUM] = -at_target;
    if (s.raw)
        return;
    soft all = soft_of(row, s.vocab);
    double lse = log((double)all.sum) + (double)all.max, loss = lse - at_target;
    n[SH_HEAD_SUM] = loss;
    n[SH_HEAD_SQUARES] = s.squares * lse * lse;
    d.max = all.max;
    d.hard = (float)(scale * (1 - alpha + 2 * s.squares * lse) / (double)all.sum);
    if (!s.words)
        return;
    t = teacher_of(s, r);
    d.cold = (float)(1 / T);
    double sum = T == 1 ? (double)all.sum : soft_sum_of(row, s.vocab, all.max, d.cold);
    sum_rest(t, row, s.vocab, all.max, sum);
    d.soft_sum = sum;
    d.apart = t.tail > 0;
    d.soft_scale = scale * alpha * T;
    d.soft = (float)(d.soft_scale * (t.tail > 0 ? 1 - t.ratio : t.said) / sum);
    n[SH_HEAD_KL] = teacher_loss(t, row, s.vocab, all.max, sum);
    n[SH_HEAD_MASS] = t.mass;
    n[SH_HEAD_RIGHT] = at_target == (double)all.max && word_of(row, s.vocab, all.max, 0.0f) == target;
    n[SH_HEAD_SUM] = alpha * T * T * n[SH_HEAD_KL] + (1 - alpha) * loss;
}

/* T: type of the gradient; void: only the loss. */
template <class T> __global__ void __launch_bounds__(THREADS) form_kernel(sh_cuda_softmax s)
{
    SH_SHARED(float, said, THREADS *N);

    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
        derivative d = {0, 1, 0, 0, 0, 0, 1, false};
        teacher t = {nullptr, nullptr, 0, 0, 0, 0, 1, SH_KD_NORMALIZED, 1, 0, 0};
        double weight = s.targets[r] < 0 ? 0 : weight_of(s, r), numbers[SH_HEAD_NUMBERS] = {0};

        if (weight != 0)
            row_numbers(s, r, weight, d, t, numbers);
        SH_UNROLL
        for (int k = 0; k < SH_HEAD_NUMBERS; k++) /* a constant index keeps the numbers in registers */
            if (threadIdx.x == 0 && k < s.numbers)
                s.row_loss[k * s.rows + r] = weight == 0 ? 0 : weight * numbers[k];
        __syncthreads(); /* all have read what gradients replace */
        if constexpr (!std::is_void<T>::value)
            write_slopes<T>(s, r, d, t, said);
    }
}

template <class T> sh_rc run(const struct sh_cuda_softmax *s, void *queue)
{
    return SH_LAUNCH(form_kernel<T>, dim3(sh_blocks(s->rows)), block_of(s->vocab), 0, queue, *s);
}

struct cap_rows {
    float *x;
    int64_t columns, ld;
    float cap;

    template <int M> __device__ __forceinline__ void at(int64_t i) const
    {
        float *z = x + i / columns * ld + i % columns;
        *z = cap * tanhf(*z / cap);
    }
};

/* Element i of the columns beside [first, first + columns), row after row. */
struct zero_others {
    float *x;
    int64_t first, columns, ld;

    template <int M> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t others = ld - columns, c = i % others;
        x[i / others * ld + (c < first ? c : c + columns)] = 0;
    }
};
} // namespace

extern "C" sh_rc sh_cuda_form_loss(const struct sh_cuda_softmax *s, void *queue)
{
    if (!s->gradient)
        return run<void>(s, queue);
    return sh_by_act(s->grad_dtype, [&](auto zero) { return run<decltype(zero)>(s, queue); });
}

extern "C" sh_rc sh_cuda_cap_rows(float *x, int64_t rows, int64_t columns, int64_t ld, float cap, void *queue)
{
    if (cap == 0)
        return SH_OK;
    return sh_map<1>("cap of logits", cap_rows{x, columns, ld, cap}, rows * columns, false, queue);
}

extern "C" sh_rc sh_cuda_zero_others(float *x, int64_t rows, int64_t first, int64_t columns, int64_t ld, void *queue)
{
    return sh_map<1>("words of others", zero_others{x, first, columns, ld}, rows * (ld - columns), false, queue);
}
