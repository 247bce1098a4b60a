/* Operations of one's own, from a shared library: doc/plugins.md begins from nothing. The library defines one symbol,
 *
 *     const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "name", "version", n, rows};
 *
 * and each row is an operation. Sherd shards, recomputes, plans and prices it from the row alone: a kernel sees one call
 * with whole rows, and neither ranks nor micro-steps. So each row of an output must follow from the same row of the
 * inputs; `sherd plugin check FILE` tests that, and nine other promises.
 *
 *   shape   "gu [N,2F] act -> h [N,F] act": operands with dims and type. A letter is one number in all of them; N are the
 *           rows, [n] is any shape. An operation has one input; its backward has dy and then x, or dy alone
 *   flops   additions and multiplications over the same letters, "5NF"; an exponential, division or root is one
 *
 * Valid C and C++. */
#ifndef SHERD_PLUGIN_H
#define SHERD_PLUGIN_H

#include "op.h"

enum { SHERD_PLUGIN_ABI = 1, SHERD_NUMBERS = 4 };

/* A number that a configuration may change by plugin.OPERATION.NAME. name NULL: there is none, nor any after it. */
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

struct sherd_plugin {
    int abi;
    size_t op_bytes, call_bytes;
    const char *name, *version;
    int n_ops;
    const struct sherd_op *ops;
};

/* The first fields: which headers the library was compiled with. */
#define SHERD_PLUGIN SHERD_PLUGIN_ABI, sizeof(struct sherd_op), sizeof(struct sherd_call)

#endif
