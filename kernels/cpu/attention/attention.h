/* Shared by the forward and the backward of attention. Neither stores a [T,T] matrix: queries are taken in blocks of
 * SH_ATTN_Q rows, keys in blocks of SH_ATTN_K, and one such tile of scores at a time is in scratch, in f32 whatever
 * the compute type. Query t sees the keys docs[t] <= s <= t, with a window only the last W of them; blocks of keys
 * that no query of the block sees are skipped. Method: FlashAttention-2, Dao 2023 (arXiv:2307.08691). Internal to
 * kernels/cpu; local, no state. */
#ifndef SH_ATTENTION_ATTENTION_H
#define SH_ATTENTION_ATTENTION_H

#include "kernels/cpu/gemm/gemm_engine.h"
#include "kernels/op.h"

/* Measured with 32 to 128 queries and 64 to 256 keys: this is the fastest at T=256 and T=1024, by 3 % over 64 and
 * 128. */
enum { SH_ATTN_Q = 64, SH_ATTN_K = 256 };

/* An implementation of one direction, for the types that it takes. Adding one is one file and one row in
 * attention_engine.c. */
struct sh_attn_engine {
    bool (*takes)(enum sh_dtype dtype); /* on this CPU */
    int64_t (*work_bytes)(const struct sh_op_call *call, int threads);
    sh_kernel run;
};
extern const struct sh_attn_engine sh_attn_f32, sh_attn_f32_bwd;       /* any type, computed in f32 */
extern const struct sh_attn_engine sh_attn_panels, sh_attn_panels_bwd; /* with SH_WIDE: bf16 by packed panels */
extern const struct sh_attn_engine sh_attn_wide, sh_attn_wide_bwd;     /* with SH_WIDE: 16 bits, computed in f32 */

struct sh_attn {
    int64_t batch, seq, heads, kv_heads, dim;
    int64_t window; /* W; 0: none */
    /* Queries are known by their position t. Those of a sequence are one run of all, or runs of `rows` from first[i]
     * on; a tensor of queries has run after run, of all sequences each. */
    int runs;
    int64_t rows, first[2];
    enum sh_dtype dtype;
    float scale, cap;   /* cap 0: none */
    const void *q, *kv; /* [runs B,rows,q_ld], [B,T,kv_ld]: the same packed tensor, or two */
    int64_t q_ld, kv_ld;
    int64_t kv_head;     /* the heads before the first key head in a row of kv */
    void *o;             /* [runs B,rows,HD] */
    float *lse;          /* [runs B,H,rows] */
    const void *dout;    /* backward: as o */
    void *dq, *dkv;      /* backward: as q and kv */
    const int32_t *docs; /* [runs B,rows] or NULL */
    const struct sh_gemm_engine *f32;
};
struct sh_attn sh_attn_of(const struct sh_op_call *call);

/* The keys of a call's sequences, T. */
int64_t sh_attn_keys(const struct sh_op_call *call);

/* The run of the query at position t, where that ends, and its row among those of all sequences. */
static inline int64_t sh_attn_run(const struct sh_attn *a, int64_t t)
{
    return a->runs > 1 && t >= a->first[1];
}

static inline int64_t sh_attn_end(const struct sh_attn *a, int64_t t)
{
    return a->first[sh_attn_run(a, t)] + a->rows;
}

static inline int64_t sh_attn_row(const struct sh_attn *a, int64_t b, int64_t t)
{
    int64_t run = sh_attn_run(a, t);

    return (run * a->batch + b) * a->rows + t - a->first[run];
}

/* The lse of a head's queries from t on. */
static inline float *sh_attn_lse_at(const struct sh_attn *a, int64_t b, int64_t head, int64_t t)
{
    int64_t run = sh_attn_run(a, t);

    return a->lse + ((run * a->batch + b) * a->heads + head) * a->rows + t - a->first[run];
}

/* The first query of block i, if each run is cut into blocks of n queries. */
static inline int64_t sh_attn_block_at(const struct sh_attn *a, int64_t i, int64_t n)
{
    int64_t blocks = (a->rows + n - 1) / n;

    return a->first[i / blocks] + i % blocks * n;
}

static inline int64_t sh_attn_blocks(const struct sh_attn *a, int64_t n)
{
    return a->runs * ((a->rows + n - 1) / n);
}

/* The first column in a row of a query head, and of the key and value heads that it uses. */
static inline int64_t sh_attn_q_col(const struct sh_attn *a, int64_t head)
{
    return head * a->dim;
}

static inline int64_t sh_attn_k_col(const struct sh_attn *a, int64_t kv_head)
{
    return (a->kv_head + kv_head) * a->dim;
}

static inline int64_t sh_attn_v_col(const struct sh_attn *a, int64_t kv_head)
{
    return (a->kv_head + a->kv_heads + kv_head) * a->dim;
}

/* Scratch of one thread in a forward; floats are carved up in this order. */
struct sh_attn_scratch {
    float *q, *k, *v; /* [Q,D], [K,D], [K,D]: copies of bf16 operands */
    float *o;         /* [Q,D] unscaled output */
    float *s;         /* [Q,K] */
    float *max, *sum; /* [Q] maximum of the scaled scores; sum of their exponentials */
};

static inline int64_t sh_attn_scratch_elems(int64_t dim)
{
    return (2 * SH_ATTN_Q + 2 * SH_ATTN_K) * dim + SH_ATTN_Q * SH_ATTN_K + 2 * SH_ATTN_Q;
}

static inline struct sh_attn_scratch sh_attn_scratch_cut(float *p, int64_t dim)
{
    struct sh_attn_scratch w = {.q = p};

    w.k = w.q + SH_ATTN_Q * dim;
    w.v = w.k + SH_ATTN_K * dim;
    w.o = w.v + SH_ATTN_K * dim;
    w.s = w.o + SH_ATTN_Q * dim;
    w.max = w.s + SH_ATTN_Q * SH_ATTN_K;
    w.sum = w.max + SH_ATTN_Q;
    return w;
}

/* An f32 matrix: in the tensor itself if the tensor is f32, otherwise in scratch. */
struct sh_attn_view {
    const float *data;
    int64_t ld;
};

/* [rows, dim] at row `row` and column `col` of a tensor [.., ld] of the compute type, as f32; scratch [rows*dim]. */
struct sh_attn_view sh_attn_read(const struct sh_attn *a, const void *tensor, int64_t ld, int64_t row, int64_t rows,
                                 int64_t col, float *scratch);

/* The rows from `row` on. */
static inline struct sh_attn_view sh_attn_rows(struct sh_attn_view v, int64_t row)
{
    return (struct sh_attn_view){.data = v.data + row * v.ld, .ld = v.ld};
}

/* The first key that row t of sequence b sees, and the first that any of the rows [t, t+rows) sees. */
int64_t sh_attn_first_key(const struct sh_attn *a, int64_t b, int64_t t);
int64_t sh_attn_first_key_of(const struct sh_attn *a, int64_t b, int64_t t, int64_t rows);

/* The keys [lo, hi) that a row sees of a tile that starts at key k0 and has nk keys; lo >= hi: none. */
struct sh_attn_span {
    int64_t lo, hi;
};
struct sh_attn_span sh_attn_span_of(const struct sh_attn *a, int64_t b, int64_t t, int64_t k0, int64_t nk);

/* The three products of a tile s [nq,nk] whose rows are SH_ATTN_K apart; x [nq,D], y [nk,D], sums densely D apart.
 *   scores    s = x y'
 *   to_rows   sums [nq,D] += s y
 *   to_cols   sums [nk,D] += s' x */
struct sh_attn_tile {
    int64_t nq, nk;
    float *s;
};
sh_rc sh_attn_scores(const struct sh_attn *a, struct sh_attn_tile t, struct sh_attn_view x, struct sh_attn_view y);
sh_rc sh_attn_to_rows(const struct sh_attn *a, struct sh_attn_tile t, struct sh_attn_view y, float *sums);
sh_rc sh_attn_to_cols(const struct sh_attn *a, struct sh_attn_tile t, struct sh_attn_view x, float *sums);

/* Cap scores s [rows,cols], of one tile or a part of it, that are not yet scaled: s = c / scale tanh(scale s / c). Does
 * nothing without a cap. Backward: ds, the gradients of weights, come to contain the derivative of the cap too, in such
 * a way that ds - delta is the same multiple of it: all that follows is as without a cap. delta: of a row, or `across`:
 * of a column. */
void sh_attn_cap(const struct sh_attn *a, float *s, int64_t ld, int64_t rows, int64_t cols);
void sh_attn_cap_bwd(const struct sh_attn *a, float *s, float *ds, int64_t ld, int64_t rows, int64_t cols,
                     const float *delta, bool across);

/* s[j] = exp(s[j] * scale - shift) in the span, 0 in the rest of [0,n); returns the sum. */
float sh_attn_exp_row(float *s, int64_t n, struct sh_attn_span in, float scale, float shift);

/* Turn row i of a tile of nk scores into exponentials of its scaled scores, and rescale what the row has accumulated
 * so far to the new maximum. */
void sh_attn_take_row(const struct sh_attn *a, struct sh_attn_scratch *w, int64_t i, struct sh_attn_span in,
                      int64_t nk);

#endif
