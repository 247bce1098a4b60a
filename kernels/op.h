/* Every operation a program is made of. A kind is a line of the list below and a row of op.c, which has its operands with
 * their shapes and types, its cost and its attributes; a device has one kernel a kind (kernels/ref, kernels/cpu,
 * kernels/cuda); a kind that models emit has one rule in src/pass/grad.c. CONTRIBUTING.md has the steps.
 *
 * All tensors are row-major and dense. "act" is the compute type (f32, bf16 or f16): activations, their gradients and
 * parameters as they are used; gradients of parameters are always f32. Kernels accumulate in f32 or better and round
 * once, at the end. Optional operands may be absent: data == NULL. An output marked += is added to when its bit is set in
 * attr->accumulate (sh_op_adds()), else overwritten. kernels/shape.h describes how op.c writes shapes.
 *
 * A step that continues sequences from a cache has `count` [B], how many of the T tokens of a row count, 0 to T, and `at`
 * [B,T], their positions: rows of tables and of the cache, within both also where a token does not count. Keys and values of
 * those that do not are not kept, and their attention is 0.
 *
 * Every kernel is deterministic: same inputs, same bits, for any number of threads; but for ATTENTION_BWD where
 * attr->attn.any_order allows it not to be. */
#ifndef SH_KERNELS_OP_H
#define SH_KERNELS_OP_H

#include "src/base/floats.h"
#include "src/base/dtype.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All kinds, with the names that they have in printed programs. KERNEL: every device has a kernel sh_DEVICE_NAME; FUSED:
 * two kinds in one, which a device may do without (src/pass/fuse.c); OTHER: collectives, moves and markers, not a device's. */
/* clang-format off */
#define SH_OP_LIST(KERNEL, FUSED, OTHER)                                                                              \
    KERNEL(EMBED, embed)                    /* rows of wte by token, plus rows of wpe by position */                  \
    KERNEL(EMBED_BWD, embed_bwd)            /* one table or both */                                                   \
    KERNEL(NORM, norm)                      /* LayerNorm, or RMSNorm, which has no mean */                            \
    KERNEL(NORM_BWD, norm_bwd)              /* dx = norm' + dres */                                                   \
    KERNEL(LINEAR, linear)                  /* y = x w' + b */                                                        \
    KERNEL(LINEAR_BWD_X, linear_bwd_x)      /* dx = dy w + dres */                                                    \
    KERNEL(LINEAR_BWD_W, linear_bwd_w)      /* dw = dy' x */                                                          \
    KERNEL(BIAS_BWD, bias_bwd)              /* sums of columns */                                                     \
    KERNEL(ROPE_TABLE, rope_table)          /* cos in [0,R/2), sin in [R/2,R) */                                      \
    KERNEL(ROPE, rope)                      /* the first R of each head of q and k rotated; attr->attn.inverse turns back, at: positions */\
    KERNEL(ATTENTION, attention)            /* causal; docs: the first position of a token's document; attr->attn.window */ \
    KERNEL(ATTENTION_BWD, attention_bwd)                                                                              \
    KERNEL(GELU, gelu)                      /* tanh form */                                                           \
    KERNEL(GELU_BWD, gelu_bwd)                                                                                        \
    KERNEL(SWIGLU, swiglu)                  /* silu(gate) * up; the gate comes first */                               \
    KERNEL(SWIGLU_BWD, swiglu_bwd)                                                                                    \
    KERNEL(ADD, add)                                                                                                  \
    FUSED(ADD_NORM, add_norm)               /* s as ADD; y, rstd, mean as NORM of s */                                \
    FUSED(NORM_BWD_BIAS, norm_bwd_bias)     /* as NORM_BWD, then the bias as BIAS_BWD of dx */                        \
    FUSED(GELU_BWD_BIAS, gelu_bwd_bias)     /* as GELU_BWD, then the bias as BIAS_BWD of dx */                        \
    KERNEL(HEAD_LOSS, head_loss)            /* sum over rows with target >= 0 */                                      \
    KERNEL(HEAD_LOSS_GRAD, head_loss_grad)  /* with the gradients of scalars->loss_scale * loss */                    \
    KERNEL(LOGITS, logits)                  /* of position scalars->position */                                       \
    KERNEL(CAST, cast)                      /* to another type */                                                     \
    KERNEL(COPY, copy)                                                                                                \
    KERNEL(ACCUMULATE, accumulate)          /* y = y + a */                                                           \
    KERNEL(SUMSQ, sumsq)                    /* into the accumulator of src/base/exact.h */                             \
    KERNEL(EXACT_ROUND, exact_round)        /* what the accumulator holds, rounded once */                            \
    KERNEL(ADAMW, adamw)                    /* in place; p is f32, or bf16 with r, the halves of floats.h; m, v: states.h */ \
    OTHER(ALL_GATHER, all_gather)                                                                                     \
    OTHER(REDUCE_SCATTER, reduce_scatter)   /* sum over the axis */                                                   \
    OTHER(ALL_REDUCE, all_reduce)           /* sum over the axis, in place */                                         \
    OTHER(WAIT, wait)                       /* marker: what op attr->waits_for has started is complete */          \
    OTHER(RELEASE, release)                 /* marker: the gathered unit may be overwritten */                     \
    KERNEL(SGD, sgd)                        /* with momentum; in place, p as ADAMW's */                            \
    KERNEL(LION, lion)                      /* the same operands */                                                   \
    KERNEL(UNPACK, unpack)                  /* a matrix of src/base/nf4.h, in the compute type */ \
    KERNEL(KV_PUT, kv_put)                  /* keys and values of qkv into the cache, at their positions */        \
    KERNEL(ATTENTION_CACHE, attention_cache) /* queries of qkv over what the cache holds up to their positions */  \
    KERNEL(PICK, pick)                      /* of each sequence the last row that counts */ \
    KERNEL(QK_NORM, qk_norm)                /* RMSNorm of queries and keys, by groups as wide as wq and wk; v copied */ \
    KERNEL(QK_NORM_BWD, qk_norm_bwd)                                                                                  \
    KERNEL(GEGLU, geglu)                    /* gelu(gate) * up, in its tanh form; the gate comes first */             \
    KERNEL(GEGLU_BWD, geglu_bwd)                                                                                      \
    KERNEL(SCALE, scale)                    /* y = attr->scale.by * x */ \
    KERNEL(LORA, lora)                      /* u = scale x a', z = y + u b': a low-rank product beside a linear one */ \
    KERNEL(LORA_BWD, lora_bwd)              /* with du = scale dy b: dx = du a + dres, da = du' x, db = dy' u */ \
    KERNEL(GELU_ERF, gelu_erf)              /* by the normal distribution itself */                                   \
    KERNEL(GELU_ERF_BWD, gelu_erf_bwd)                                                                                \
    KERNEL(REGROUP, regroup)                /* q, k, v of each head to all q, all k, all v; attr->regroup.inverse: back */ \
    KERNEL(HEAD_SCORE, head_score)          /* log-probability of each target, 0 where it is negative; likeliest word */ \
    OTHER(FETCH, fetch)                     /* from a lower tier to the device; starts only, its WAIT brings the result */ \
    OTHER(EVICT, evict)                     /* from the device to a lower tier; the same */

#define SH_OP_ENUM(KIND, name) SH_OP_##KIND,
enum sh_op_kind { SH_OP_LIST(SH_OP_ENUM, SH_OP_ENUM, SH_OP_ENUM) SH_OP_KINDS };
#undef SH_OP_ENUM

/* For lists of some kinds only. */
#define SH_OP_SKIP(KIND, name)

enum { SH_OP_MAX_IN = 6, SH_OP_MAX_OUT = 4, SH_MAX_DIMS = 4 };
enum { SH_LORA_PARTS = 3, SH_ROPE_DIVISORS = 128 };
enum { SH_STATES_MAX = SH_OP_MAX_OUT - 2 }; /* that an optimizer keeps of a parameter, beside its two halves */

/* A run of elements of a flat shard with one rule of weight decay. Where states are rounded stochastically it is of one
 * tensor, and says which: element i of the shard is element i - origin of that tensor, on any mesh. Who cuts the shard so
 * that its elements have other numbers moves all three by the same. */
struct sh_decay_run {
    int64_t begin, end; /* elements of the shard */
    bool decay;
    uint64_t tensor; /* sh_rng_name() of the tensor's name */
    int64_t origin;  /* where the tensor begins; negative: in an earlier shard */
};

/* What an operation knows besides its operands. Passes set the first four on any operation; what kernels read is a row of
 * the union, that of the kind: `attrs` of struct sh_op_info says which, and which fields it has. */
/* clang-format off */
struct sh_op_attr {
    unsigned accumulate;                           /* of outputs marked +=: bit i: out[i] is added to */
    unsigned group;                                /* collectives: over these axes (sh_group of src/mesh/shape.h) */
    int waits_for;                                 /* WAIT: index of the collective or move within its section */
    int after;                                     /* collectives: start only when this one is complete; -1: none */
    union {
        struct {
            float eps;
            bool rms;                              /* RMSNorm instead of LayerNorm */
            bool plus_one;                         /* times (1 + w) instead of w (Gemma) */
        } norm;                                    /* NORM, NORM_BWD, and what they are fused to */
        struct {
            bool w_in_out;                         /* the weight is stored [I,O] (GPT-2), not [O,I] (Llama) */
        } linear;                                  /* LINEAR* */
        struct {
            int heads, kv_heads, head_dim;
            float scale;                           /* ATTENTION*: 1/sqrt(D) */
            bool inverse;                          /* ROPE: turns back */
            bool any_order;                        /* ATTENTION_BWD: may add in an order that changes from run to run */
            int window;                            /* ATTENTION*, ATTENTION_CACHE: a query sees itself and window - 1 keys before; 0: all */
            int rotary_dim;                        /* ROPE: elements of a head that turn, the width of its table */
        } attn;                                    /* ROPE, ATTENTION* */
        struct {
            double theta;                          /* scaling as Llama 3: none when factor == 0 */
            double factor, low_freq, high_freq, original_len;
            double ramp_first, ramp_last;          /* or as YaRN where ramp_last > 0: between these elements of a half */
            double scale;                          /* of cos and sin; 0: 1 */
            int divisors, first_divisor;           /* or as LongRoPE where there are R/2: frequency i divided by row i, counted
                                                      from the first, of the program's table of divisors */
        } rope;                                    /* ROPE_TABLE */
        struct {
            int heads, kv_heads, head_dim;
            int q_width, k_width, groups;          /* elements of a group of queries and of keys; groups of a row */
            float eps;
            bool plus_one;                         /* as norm's */
        } qk;                                      /* QK_NORM* */
        struct {
            float by;
        } scale;                                   /* SCALE */
        struct {
            int heads, head_dim;
            bool inverse;
        } regroup;                                 /* REGROUP */
        struct {
            int64_t chunk_rows;                    /* rows of logits held at a time */
        } head;                                    /* HEAD_LOSS*, HEAD_SCORE */
        struct {
            int first, count;                      /* its rows in the program's table of decay runs */
        } runs;                                    /* ADAMW, SGD, LION */
        struct {
            int parts;                             /* matrices of y's stack that have one: part i has rows [R i, R (i + 1)) of
                                                      a, and after those of the parts before its width of rows of b */
            int first[SH_LORA_PARTS], width[SH_LORA_PARTS]; /* columns of y */
            float scale;
        } lora;                                    /* LORA* */
    };
};
/* clang-format on */

/* A field of a row of that union: for printing, and for comparing programs. */
struct sh_attr_field {
    const char *name; /* NULL: the end of the list */
    enum sh_attr_type { SH_ATTR_BOOL, SH_ATTR_INT, SH_ATTR_I64, SH_ATTR_FLOAT, SH_ATTR_DOUBLE } type;
    size_t at;   /* of struct sh_op_attr */
    char letter; /* that stands for it in shapes; 0: none does */
};

/* Its value; of a bool 0 or 1. */
double sh_attr_value(const struct sh_op_attr *attr, const struct sh_attr_field *field);

/* Numbers that change from step to step, the same for all operations of a section. */
struct sh_op_scalars {
    double loss_scale; /* 1 / unmasked target tokens of the global batch; in f16 times a power of two */
    float lr, beta1, beta2, adam_eps, weight_decay;
    double beta1_pow, beta2_pow; /* beta^t for this update t = 1, 2, ... */
    float grad_scale;      /* clipping, over what scaled the loss: gradients are multiplied by it before the update */
    uint64_t seed, update; /* of the random bits by which states in bf16 are rounded (kernels/states.h); t */
    int64_t position;      /* LOGITS */
};

struct sh_operand {
    void *data; /* NULL: absent */
    enum sh_dtype dtype;
    int ndim;
    int64_t dim[SH_MAX_DIMS];
};

struct sh_op_call {
    enum sh_op_kind kind;
    const struct sh_op_attr *attr;
    const struct sh_op_scalars *scalars;
    const struct sh_decay_run *runs; /* ADAMW: attr->runs.count rows */
    const double *divisors;          /* ROPE_TABLE: attr->rope.divisors rows; NULL: none */
    struct sh_operand in[SH_OP_MAX_IN], out[SH_OP_MAX_OUT];
    void *work; /* sh_op_work_bytes() bytes, 64-byte aligned; contents undefined */
    int64_t work_bytes;
    void *queue; /* where the device puts the call: a stream of CUDA; NULL on the CPU */
};

static inline bool sh_op_adds(const struct sh_op_call *call, int out)
{
    return (call->attr->accumulate >> out) & 1u;
}

/* A kernel runs one call to its end; on a GPU it puts it into call->queue and returns, having read *call and its
 * scalars. It trusts shapes and types, which the check pass has compared with the table, and allocates nothing. */
typedef sh_rc (*sh_kernel)(const struct sh_op_call *call);

enum { SH_DAMAGE_SLOTS = 1024 };

/* Calls for which a library has several kernels, of which it names the first as the best by its tables, and which is the
 * best only a clock can tell. Beside the program, by the thread that enqueues; known when all calls are prepared. Another
 * kernel may round in other places, so who measures has all ranks take the same. */
enum { SH_CHOICE_TEXT = 256 };
struct sh_choices {
    int (*count)(void);
    /* What the answers depend on besides the call: the library and its version. */
    const char *(*library)(void);
    /* One line: all that the answers for call i depend on. The same text on two ranks: the same answers, on equal GPUs. */
    void (*name)(int i, char text[SH_CHOICE_TEXT]);
    int (*answers)(int i);
    /* Put call i, by answer `which`, into the queue; it writes what the call writes. Errors: SH_E_BUG: not that one. */
    sh_rc (*attempt)(int i, int which, void *queue);
    /* From now on. Before: answer 0. */
    void (*choose)(int i, int which);
};

/* A device's kernels, indexed by enum sh_op_kind; NULL for collectives, moves and markers, and maybe for fused kinds. */
struct sh_kernel_table {
    const char *name;
    sh_kernel run[SH_OP_KINDS];
    /* Before the first run of a call (shapes, attr and data set): what takes time, as libraries and their plans.
     * Errors: those of run that shapes and libraries alone tell. NULL: nothing to do. */
    sh_kernel prepare;
    /* Initial values, beside the program: elements [first, first + n) of sh_rng_fill_normal(key, std), the same bits on
     * every device.   out  out  [n], on the device; written after what is in the queue */
    sh_rc (*fill_normal)(uint64_t key, int64_t first, int64_t n, float std, struct sh_floats out, void *queue);
    /* Beside the program: the sums (mixsum.h) of parts of SH_MIXSUM_PART of n floats, the last one shorter.
     *   sums  out  [parts], in memory of the device or pinned; written after what is in the queue
     * NULL: the data is in host memory, and has sh_mixsum(). */
    sh_rc (*mixsum)(struct sh_floats data, int64_t n, uint64_t place, uint64_t *sums, void *queue);
    /* A look for damage, beside the program, after what is in the queue. The device keeps SH_DAMAGE_SLOTS numbers, zeros at
     * first, that count_bad (how many of [n] are not finite) and sum_words (of all words of the memory, each mixed with its
     * place; 8-byte aligned) add to; take_slots hands the first n out to pinned memory and sets them to zero. NULL where the
     * host can look itself. */
    sh_rc (*count_bad)(struct sh_floats x, int64_t n, int slot, void *queue);
    sh_rc (*sum_words)(const void *x, int64_t bytes, int slot, void *queue);
    sh_rc (*take_slots)(uint64_t *out, int n, void *queue);
    const struct sh_choices *choices; /* NULL: there is nothing to choose */
    /* Scratch bytes that a call (shapes and attr set, data not) needs with `threads` threads. NULL: none ever. */
    int64_t (*work_bytes)(const struct sh_op_call *call, int threads);
};

extern const struct sh_kernel_table sh_kernels_ref; /* plain loops: what is right */
extern const struct sh_kernel_table sh_kernels_cpu; /* threads, vector code, CBLAS, oneDNN */
extern const struct sh_kernel_table
    sh_kernels_cuda; /* one GPU; without CUDA only its work_bytes is of use, for plans */

struct sh_op_cost {
    double flops; /* multiply-adds counted as two */
    double bytes; /* read + written once each: the floor of memory traffic */
};

/* clang-format off */
struct sh_op_info {
    const char *name;
    const char *shape;        /* operands with their shapes and types, as shape.h reads them */
    const char *flops;        /* a formula over the letters of shape; NULL: none */
    bool forward;             /* models emit it for training: it has a rule in src/pass/grad.c */
    enum sh_op_kind backward; /* of a kind y = f(x), without other operands: dy, x -> dx; 0: another rule */
    bool costly;              /* selective recomputation keeps its result */
    int inplace_in, inplace_out; /* the output may take the storage of the input when that dies here; -1: no */
    bool async;               /* the collectives: it goes on beside others until its WAIT */
    bool moves;               /* FETCH, EVICT: between tiers; goes on beside others until its WAIT too */
    bool marker;              /* WAIT, RELEASE */
    bool runs;                /* an update: reads runs of the table of weight decay (attr->runs) */
    bool fused;               /* two kinds in one, with the same bits; a device may do without (src/pass/fuse.c) */
    const struct sh_attr_field *attrs; /* of its row of the union in struct sh_op_attr; NULL: it has none */

    /* Read from shape. */
    int n_in, n_out;          /* operands, optional ones included */
    unsigned opt_in, opt_out; /* bit i: operand i may be absent */
    unsigned add_out;         /* bit i: output i is marked += */
    unsigned rw_out;          /* bit i: the earlier value of output i counts, whatever attr->accumulate says */
};
/* clang-format on */

const struct sh_op_info *sh_op_info(enum sh_op_kind kind);

/* Whether an operation only starts something, whose result is there after its WAIT. */
static inline bool sh_op_starts(const struct sh_op_info *info)
{
    return info->async || info->moves;
}

/* Operations and bytes of one call (shapes and attr set). */
struct sh_op_cost sh_op_cost(const struct sh_op_call *call);

#ifdef __cplusplus
}
#endif

#endif
