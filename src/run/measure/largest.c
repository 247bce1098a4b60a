#include "src/run/measure/largest.h"

#include "src/base/mem.h"
#include "src/base/number/half.h"
#include "src/base/string/str.h"
#include "src/pass/build.h"
#include "src/run/run.h"
#include "src/run/watch/fingerprint_rows.h"

#include <stdlib.h>

enum { SIGN_LESS = 0x7fffffff, SIGN_LESS_16 = 0x7fff };

static uint32_t largest_32(const uint32_t *x, int64_t n)
{
    uint32_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = x[i] & SIGN_LESS;

        most = bits > most ? bits : most;
    }
    return most;
}

static uint16_t largest_16(const uint16_t *x, int64_t n)
{
    uint16_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        uint16_t bits = x[i] & SIGN_LESS_16;

        most = bits > most ? bits : most;
    }
    return most;
}

/* As the bits of a float. */
static uint32_t largest(const void *data, enum sh_dtype dtype, int64_t n)
{
    if (dtype == SH_F32)
        return largest_32(data, n);
    if (dtype == SH_BF16)
        return (uint32_t)largest_16(data, n) << 16;
    return sh_f32_to_bits(sh_f16_to_f32((sh_f16){largest_16(data, n)}));
}

/* The first output of an operation is what it is for; the others help the backward. A fused one is two operations. */
static bool is_result(enum sh_op_kind kind, int k)
{
    enum sh_op_kind first, second;

    return k == 0 || (sh_fuse_pair(kind, &first, &second) && k == sh_op_info(first)->n_out);
}

/* Computes nothing of a micro-step's forward: moves, makes weights from codes, updates, or is of another micro-step. */
static bool is_between(const struct sh_program *p, const struct sh_op *op, int micro)
{
    return sh_op_info(op->kind)->marker || p->streams[op->stream].runs != SH_RUNS_KERNELS || op->micro != micro ||
           op->phase != SH_PHASE_FORWARD || (op->out[0] != SH_NONE && p->tensors[op->out[0]].mem == SH_MEM_UNPACKED);
}

/* The block that makes output k of an operation. A fused one has the block of its second; its first may be the sum that ends
 * the block before, and belongs to that of what is computed before it. So devices and stages that fuse less say the same. */
static int block_of(const struct sh_program *p, int op, int k)
{
    enum sh_op_kind first, second;
    int i = op;

    if (sh_fuse_pair(p->ops[op].kind, &first, &second) && k < sh_op_info(first)->n_out)
        for (i--; i > 0 && is_between(p, &p->ops[i], p->ops[op].micro);)
            i--;
    return p->ops[i].block;
}

static bool counts(const struct sh_program *p, const struct sh_op *op, int k)
{
    const struct sh_tensor *t = op->out[k] == SH_NONE ? NULL : &p->tensors[op->out[k]];

    return t && is_result(op->kind, k) && p->tensors[sh_tensor_root(p, op->out[k])].mem == SH_MEM_ACT &&
           (t->dtype == SH_F32 || t->dtype == SH_BF16 || t->dtype == SH_F16) && !sh_print_sorts_rows(op->kind);
}

static const void *read(struct sh_largest *l, int tensor)
{
    int64_t bytes = sh_tensor_bytes(&l->r->p->tensors[tensor]);
    const void *data = sh_exec_data(l->r->exec, tensor);

    if (!l->r->device->gpu)
        return data;
    if (bytes > l->room) {
        free(l->copy);
        l->copy = sh_calloc((size_t)bytes, 1);
        l->room = bytes;
    }
    sh_exec_get_at(l->r->exec, l->copy, data, bytes);
    return l->copy;
}

/* Called by the executor around each operation. */
static void look(void *arg, int op, bool done)
{
    struct sh_largest *l = arg;
    const struct sh_program *p = l->r->p;
    const struct sh_op *o = &p->ops[op];

    if (!done || o->phase != SH_PHASE_FORWARD || p->streams[o->stream].runs != SH_RUNS_KERNELS ||
        sh_op_info(o->kind)->marker)
        return;
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (counts(p, o, k) && block_of(p, op, k) != SH_NONE) {
            const struct sh_tensor *t = &p->tensors[o->out[k]];
            uint32_t found = largest(read(l, o->out[k]), t->dtype, sh_tensor_elems(t)),
                     *most = &l->bits[block_of(p, op, k)];

            *most = found > *most ? found : *most;
        }
}

void sh_largest_begin(struct sh_largest *l, struct sh_run *r)
{
    if (!l->r) {
        *l = (struct sh_largest){.r = r, .blocks = r->cfg.model.n_layers};
        l->bits = sh_calloc((size_t)l->blocks, sizeof *l->bits);
        l->value = sh_calloc((size_t)l->blocks, sizeof *l->value);
        l->name = sh_calloc((size_t)l->blocks, sizeof *l->name);
        for (int i = 0; i < l->blocks; i++)
            l->name[i] = sh_strfmt("layers.%d", i);
    }
    for (int i = 0; i < l->blocks; i++)
        l->bits[i] = 0;
    sh_exec_set_look(r->exec, SH_LOOKS_FOR_NORMS, look, l);
}

void sh_largest_end(struct sh_largest *l)
{
    sh_exec_set_look(l->r->exec, SH_LOOKS_FOR_NORMS, NULL, NULL);
}

/* The order of bits is that of numbers. */
sh_rc sh_largest_gather(struct sh_largest *l)
{
    for (int i = 0; i < l->blocks; i++)
        l->value[i] = (double)l->bits[i];
    SH_TRY(sh_mesh_max(l->value, l->blocks));
    for (int i = 0; i < l->blocks; i++)
        l->value[i] = (double)sh_bits_to_f32((uint32_t)l->value[i]);
    return SH_OK;
}

void sh_largest_close(struct sh_largest *l)
{
    for (int i = 0; i < l->blocks; i++)
        free(l->name[i]);
    free(l->name);
    free(l->bits);
    free(l->value);
    free(l->copy);
    *l = (struct sh_largest){0};
}
