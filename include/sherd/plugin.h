/* Operations and losses of one's own, from a shared library: doc/plugins.md begins from nothing. The library defines one
 * symbol,
 *
 *     const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "name", "version", n, rows, n_losses, losses};
 *
 * and each row is an operation or a loss. Sherd shards, recomputes, plans and prices it from the row alone: a kernel sees one call
 * with whole rows, and neither ranks nor micro-steps. So each row of an output must follow from the same row of the
 * inputs; `sherd plugin check FILE` tests that, and ten other promises.
 *
 *   shape   "gu [N,2F] act -> h [N,F] act": operands with dims and type. A letter is one number in all of them; N are the
 *           rows, [n] is any shape. An operation has one input; its backward has dy and then x, or dy alone
 *   flops   additions and multiplications over the same letters, "5NF"; an exponential, division or root is one
 *
 * Valid C and C++. */
#ifndef SHERD_PLUGIN_H
#define SHERD_PLUGIN_H

#include "op.h"

enum { SHERD_PLUGIN_ABI = 2, SHERD_NUMBERS = 4 };

/* A number that a configuration may change by plugin.ROW.NAME. name NULL: there is none, nor any after it. */
struct sherd_number {
    const char *name;
    double value, min, max; /* its default, and its bounds */
};

/* Returns 0. On a GPU it enqueues on call->queue, waits for nothing, and allocates nothing. */
typedef int (*sherd_kernel)(const struct sherd_call *call);

struct sherd_op {
    const char *name; /* of letters, digits and _ */
    const char *shape, *flops;
    const char *backward; /* the row that makes dx, whose kernels get the numbers of this row; NULL: this is such a row */
    int costly;           /* not 0: selective recomputation keeps what it makes */
    int in_place;         /* the output may take the memory of this input, counted from 1; 0: of none */
    struct sherd_number number[SHERD_NUMBERS];
    sherd_kernel ref;  /* what is right: one loop in double, for every type of act (sh_operand_get, sh_operand_set) */
    sherd_kernel cpu;  /* what is fast: f32, bf16 and f16, perhaps with OpenMP; NULL: ref */
    sherd_kernel cuda; /* NULL: runs on GPUs refuse the operation */
    int64_t (*work_bytes)(const struct sherd_call *call); /* scratch for a call, data not set; NULL: none */
};

/* An answer: the sums of the log-probabilities of its targets, by the model and by the reference, and their number, at
 * least 1. */
struct sherd_answer {
    double logp, reference, targets;
};

/* A loss is a function of log-probabilities, in double. It has one of the two functions, which return it for a target or
 * for a pair, and write its derivatives by logp to slope: of pairs by that of the chosen and of the rejected answer.
 * Sherd calls it for each, from one thread, sums, divides by their number in the global batch, and trains by the
 * derivatives. It runs on the host, also in a job on GPUs. */
struct sherd_loss {
    const char *name;
    struct sherd_number number[SHERD_NUMBERS];
    double (*target)(double logp, const double *number, double *slope);
    double (*pair)(const struct sherd_answer *chosen, const struct sherd_answer *rejected, const double *number,
                   double slope[2]);
};

struct sherd_plugin {
    int abi;
    size_t op_bytes, call_bytes;
    const char *name, *version;
    int n_ops;
    const struct sherd_op *ops;
    int n_losses;
    const struct sherd_loss *losses;
};

/* The first fields: which headers the library was compiled with. */
#define SHERD_PLUGIN SHERD_PLUGIN_ABI, sizeof(struct sherd_op), sizeof(struct sherd_call)

#endif
