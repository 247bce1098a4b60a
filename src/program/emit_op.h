/* How an emitter makes an operation and its tensors; emit.c has the functions. Inside src/program only; local. */
#ifndef SH_PROGRAM_EMIT_OP_H
#define SH_PROGRAM_EMIT_OP_H

#include "src/program/emit.h"

/* A forward operation of the block being emitted that reads these tensors, without outputs. At most one of the
 * arguments may emit something itself, since C does not say which comes first. */
#define OP(e, kind, ...) sh_emit_op(e, kind, sizeof(int[]){__VA_ARGS__} / sizeof(int), (const int[]){__VA_ARGS__})
struct sh_op sh_emit_op(const struct sh_emit *e, enum sh_op_kind kind, int n, const int *in);

/* Add it to the program; returns its first output. out: which is an activation [dim[0],dim[1]], made here. */
int sh_emit_append(struct sh_emit *e, const struct sh_op *op);
int sh_emit_out(struct sh_emit *e, struct sh_op *op, const int64_t *dim, const char *what);

/* Add a tensor; `what` is its name inside the block. act: an activation in the compute type. keep: what a sequence
 * leaves to its next tokens. port: a port [B,T]. */
int sh_emit_tensor(struct sh_emit *e, enum sh_mem mem, enum sh_dtype dtype, int ndim, const int64_t *dim,
                   const char *what);
int sh_emit_act(struct sh_emit *e, int ndim, const int64_t *dim, const char *what);
int sh_emit_keep(struct sh_emit *e, enum sh_dtype dtype, int ndim, const int64_t *dim, const char *what);
int sh_emit_port(struct sh_emit *e, enum sh_port port);

int sh_emit_flat(struct sh_emit *e, int t); /* [B,T,C] as [B*T,C] */
int sh_emit_seq(struct sh_emit *e, int t);  /* [B*T,C] as [B,T,C] */

static inline const int64_t *sh_emit_dims(const struct sh_emit *e, int t)
{
    return e->p->tensors[t].dim;
}

/* Tokens of a whole sequence. */
static inline int sh_emit_whole(const struct sh_emit *e)
{
    return e->seq * (e->parts > 1 ? e->parts : 1);
}

#endif
