/* Every operation a program is made of: operands, shapes, contract, cost. One row a kind in op.c; a device has one
 * kernel a kind (kernels/ref, kernels/cpu); a kind with a gradient has one rule in src/pass/grad.c.
 *
 * Letters: B batch, T sequence, N = B*T rows, C channels, H heads, K key-value heads, D head dim, F feed-forward,
 * V vocabulary, P positions. All tensors are row-major and dense. "act" is the compute type (f32 or bf16): activations,
 * their gradients and parameters as they are used; gradients of parameters are always f32. Kernels accumulate in f32 or
 * better and round once, at the end. (opt) operands may be absent: data == NULL.
 * "+=" on an output: adds to it when its bit is set in attr->accumulate (sh_op_adds()), else overwrites it.
 *
 * Every kernel is deterministic: same inputs, same bits, for any number of threads. */
#ifndef SH_KERNELS_OP_H
#define SH_KERNELS_OP_H

#include "src/base/floats.h"
#include "src/base/dtype.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sh_op_kind {
    SH_OP_EMBED,         /* tokens [B,T] i32, wte [V,C], wpe [P,C] (opt)            -> x [B,T,C]                        */
    SH_OP_EMBED_BWD,     /* dx [B,T,C], tokens [B,T]                                -> dwte [V,C] += (opt), dwpe [P,C] += (opt) */
    SH_OP_NORM,          /* x [N,C], w [C], b [C] (opt)                             -> y [N,C], rstd [N] f32, mean [N] f32 (opt: absent for RMSNorm) */
    SH_OP_NORM_BWD,      /* dy, x [N,C], w [C], rstd [N], mean [N] (opt), dres [N,C] (opt) -> dx = norm' + dres, dw [C] +=, db [C] += (opt) */
    SH_OP_LINEAR,        /* x [N,I], w, b [O] (opt)                                 -> y [N,O]; w is [O,I], or [I,O] when attr->w_in_out */
    SH_OP_LINEAR_BWD_X,  /* dy [N,O], w, dres [N,I] (opt)                           -> dx = dy w + dres                 */
    SH_OP_LINEAR_BWD_W,  /* dy [N,O], x [N,I]                                       -> dw += (shape of w)               */
    SH_OP_BIAS_BWD,      /* dy [N,O]                                                -> db [O] +=                        */
    SH_OP_ROPE_TABLE,    /*                                                         -> cs [T,D] f32: cos in [0,D/2), sin in [D/2,D) */
    SH_OP_ROPE,          /* qkv [B,T,(H+2K)D], cs [T,D]                             -> same shape: q and k rotated, v copied; attr->inverse turns back */
    SH_OP_ATTENTION,     /* qkv [B,T,(H+2K)D], docs [B,T] i32 (opt)                 -> o [B,T,H*D], lse [B,H,T] f32     */
    SH_OP_ATTENTION_BWD, /* do [B,T,H*D], qkv, o, lse, docs (opt)                   -> dqkv [B,T,(H+2K)D]               */
    SH_OP_GELU,          /* x [N,F]                                                 -> y [N,F], tanh form               */
    SH_OP_GELU_BWD,      /* dy, x [N,F]                                             -> dx [N,F]                         */
    SH_OP_SWIGLU,        /* gu [N,2F] (gate, then up)                               -> h [N,F] = silu(gate) * up        */
    SH_OP_SWIGLU_BWD,    /* dh [N,F], gu [N,2F]                                     -> dgu [N,2F]                       */
    SH_OP_ADD,           /* a, b [n]                                                -> y [n]                            */
    SH_OP_ADD_NORM,      /* a, b [N,C], w [C], b [C] (opt)                          -> s [N,C] as ADD; y, rstd, mean (opt) as NORM of s */
    SH_OP_NORM_BWD_BIAS, /* as NORM_BWD                                             -> as NORM_BWD, then db [C] += as BIAS_BWD of dx */
    SH_OP_GELU_BWD_BIAS, /* dy, x [N,F]                                             -> dx [N,F] as GELU_BWD, db [F] += as BIAS_BWD of dx */
    SH_OP_HEAD_LOSS,     /* x [N,C], w [V,C], targets [N] i32                       -> loss [1] f64 +=: sum over rows with target >= 0 */
    SH_OP_HEAD_LOSS_GRAD,/* x, w, targets                                           -> loss [1] f64 +=, dx [N,C], dw [V,C] +=; gradients of scalars->loss_scale * loss */
    SH_OP_LOGITS,        /* x [B,T,C], w [V,C]                                      -> logits [B,V] f32 of position scalars->position */
    SH_OP_CAST,          /* a [n]                                                   -> y [n] of another type            */
    SH_OP_COPY,          /* a [n]                                                   -> y [n], same type                 */
    SH_OP_ACCUMULATE,    /* a [n] f32                                               -> y [n] f32: y = y + a             */
    SH_OP_SUMSQ,         /* a [n] f32                                               -> s [SH_EXACT_ELEMS] f64 +=: accumulator of src/base/exact.h */
    SH_OP_EXACT_ROUND,   /* s [SH_EXACT_ELEMS] f64                                  -> y [1] f64: what the accumulator holds, rounded once */
    SH_OP_ADAMW,         /* g [n] f32                                               -> in place: p, m, v [n] f32; or p [n] bf16 and r [n] i16 (opt), the halves of floats.h */

    SH_OP_ALL_GATHER,    /* shard [n]                                               -> full [size*n]                    */
    SH_OP_REDUCE_SCATTER,/* full [size*n] f32 or bf16                               -> shard [n]: sum over the axis;
                            squares? [SH_EXACT_ELEMS] f64 +=: those of the sum, as SUMSQ has them; f32 only.
                            With tokens? [B,T] i32: what attr.rows says of all ranks' tokens, the rest stays */
    SH_OP_ALL_REDUCE,    /*                                                         -> y [n] f32, f64 or bf16: sum over the axis, in place */
    SH_OP_WAIT,          /* marker: the communication started by op attr->waits_for is complete after this one          */
    SH_OP_RELEASE,       /* in[0]: marker: the gathered unit may be overwritten                                          */

    SH_OP_SGD,           /* g [n] f32                                               -> in place: p, m [n] f32; or p [n] bf16 and r [n] i16 (opt) */
    SH_OP_LION,          /* the same                                                -> the same                         */
    SH_OP_KINDS
};

enum { SH_OP_MAX_IN = 6, SH_OP_MAX_OUT = 4, SH_MAX_DIMS = 4 };
enum { SH_STATES_MAX = SH_OP_MAX_OUT - 2 }; /* that an optimizer keeps of a parameter, beside its two halves */

/* A run of elements of a flat shard with one rule of weight decay. */
struct sh_decay_run {
    int64_t begin, end; /* elements of the shard */
    bool decay;
};

/* The elements of a flat gradient that are complete late: rows that tokens name, and one more range. */
struct sh_op_rows {
    int64_t first, count, elems; /* rows 0 .. count - 1 of `elems` elements each begin at element `first` */
    int64_t begin, end;
    bool late;                   /* those are meant; else all others */
};

/* What an operation knows besides its operands. Only the fields of its kind are set; the rest is zero. */
struct sh_op_attr {
    float eps;                      /* NORM, NORM_BWD, and what they are fused to */
    bool rms;                       /* the same: RMSNorm instead of LayerNorm */
    bool w_in_out;                  /* LINEAR*: the weight is stored [I,O] (GPT-2), not [O,I] (Llama) */
    unsigned accumulate;            /* outputs marked +=: bit i set: out[i] is added to, else overwritten */
    bool inverse;                   /* ROPE */
    int heads, kv_heads, head_dim;  /* ROPE, ATTENTION* */
    float scale;                    /* ATTENTION*: 1/sqrt(D) */
    double rope_theta;              /* ROPE_TABLE; scaling as Llama 3: none when rope_factor == 0 */
    double rope_factor, rope_low_freq, rope_high_freq, rope_original_len;
    double rope_ramp_first, rope_ramp_last; /* or as YaRN where rope_ramp_last > 0: between these elements of a half */
    double rope_scale;              /* of cos and sin; 0: 1 */
    int64_t chunk_rows;             /* HEAD_LOSS*: rows of logits held at a time */
    int axis;                       /* collectives: enum sh_axis (src/mesh/shape.h) */
    struct sh_op_rows rows;         /* REDUCE_SCATTER with tokens */
    int64_t squared;                /* REDUCE_SCATTER with squares: of the first so many elements of the shard */
    int waits_for;                  /* WAIT: index of the communication op within its section */
    int after;                      /* collectives: start only when this communication op is complete; -1: none */
    int run_first, run_count;       /* ADAMW, SGD, LION: its rows in the program's table of decay runs */
};

/* Numbers that change from step to step, the same for all operations of a section. */
struct sh_op_scalars {
    double loss_scale;              /* 1 / unmasked target tokens of the global batch */
    float lr, beta1, beta2, adam_eps, weight_decay;
    double beta1_pow, beta2_pow;    /* beta^t for this update t = 1, 2, ... */
    float grad_scale;               /* clipping: gradients are multiplied by it before the update */
    int64_t position;               /* LOGITS */
};

struct sh_operand {
    void *data;                     /* NULL: absent */
    enum sh_dtype dtype;
    int ndim;
    int64_t dim[SH_MAX_DIMS];
};

struct sh_op_call {
    enum sh_op_kind kind;
    const struct sh_op_attr *attr;
    const struct sh_op_scalars *scalars;
    const struct sh_decay_run *runs; /* ADAMW, SGD, LION: attr->run_count rows */
    struct sh_operand in[SH_OP_MAX_IN], out[SH_OP_MAX_OUT];
    void *work;                      /* sh_op_work_bytes() bytes, 64-byte aligned; contents undefined */
    int64_t work_bytes;
    void *queue;                     /* where the device puts the call: a stream of CUDA; NULL on the CPU */
};

static inline bool sh_op_adds(const struct sh_op_call *call, int out)
{
    return (call->attr->accumulate >> out) & 1u;
}

/* A kernel runs one call to its end; on a GPU it puts it into call->queue and returns, having read *call and its
 * scalars. It trusts the shapes (the check pass has checked them) and allocates nothing. */
typedef sh_rc (*sh_kernel)(const struct sh_op_call *call);

enum { SH_DAMAGE_SLOTS = 1024 };

/* A device's kernels, indexed by enum sh_op_kind; NULL for collectives and markers, and maybe for fused kinds. */
struct sh_kernel_table {
    const char *name;
    sh_kernel run[SH_OP_KINDS];
    /* Before the first run of a call (shapes, attr and data set): what takes time, as libraries and their plans.
     * Errors: those of run that shapes and libraries alone tell. NULL: nothing to do. */
    sh_kernel prepare;
    /* Initial values, beside the program: elements [first, first + n) of sh_rng_fill_normal(key, std), the same bits on
     * every device.   out  out  [n], on the device; written behind what is in the queue */
    sh_rc (*fill_normal)(uint64_t key, int64_t first, int64_t n, float std, struct sh_floats out, void *queue);
    /* Beside the program: the sums (mixsum.h) of parts of SH_MIXSUM_PART of n floats, the last one shorter.
     *   sums  out  [parts], in memory of the device or pinned; written behind what is in the queue
     * NULL: the data is in host memory, and has sh_mixsum(). */
    sh_rc (*mixsum)(struct sh_floats data, int64_t n, uint64_t place, uint64_t *sums, void *queue);
    /* A look for damage, beside the program, behind what is in the queue. The device keeps SH_DAMAGE_SLOTS numbers, zeros at
     * first, that count_bad (how many of [n] are not finite) and sum_words (of all words of the memory, each mixed with its
     * place; 8-byte aligned) add to; take_slots hands the first n out to pinned memory and sets them to zero. NULL where the
     * host can look itself. */
    sh_rc (*count_bad)(struct sh_floats x, int64_t n, int slot, void *queue);
    sh_rc (*sum_words)(const void *x, int64_t bytes, int slot, void *queue);
    sh_rc (*take_slots)(uint64_t *out, int n, void *queue);
    /* Scratch bytes that a call (shapes and attr set, data not) needs with `threads` threads. NULL: none ever. */
    int64_t (*work_bytes)(const struct sh_op_call *call, int threads);
};

extern const struct sh_kernel_table sh_kernels_ref; /* plain loops: what is right */
extern const struct sh_kernel_table sh_kernels_cpu; /* threads, vector code, CBLAS, oneDNN */
extern const struct sh_kernel_table sh_kernels_cuda; /* one GPU; without CUDA only its work_bytes is of use, for plans */

struct sh_op_cost {
    double flops; /* multiply-adds counted as two */
    double bytes; /* read + written once each: the floor of memory traffic */
};

struct sh_op_info {
    const char *name;
    int n_in, n_out;          /* operands, optional ones included */
    unsigned opt_in, opt_out; /* bit i: operand i may be absent */
    unsigned rw_out;          /* bit i: output i is also read (its earlier value counts) whatever attr->accumulate says */
    int inplace_in, inplace_out; /* output inplace_out may take the storage of input inplace_in when that dies here; -1: no */
    bool comm;                /* ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE */
    bool marker;              /* WAIT, RELEASE */
    bool fused;               /* two kinds in one, with the same bits; a device may do without (src/pass/fuse.c) */
};

const struct sh_op_info *sh_op_info(enum sh_op_kind kind);

/* Operations and bytes of one call (shapes and attr set). */
struct sh_op_cost sh_op_cost(const struct sh_op_call *call);

#ifdef __cplusplus
}
#endif

#endif
