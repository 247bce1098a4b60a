#include "src/base/hash.h"
#include "src/pass/pass.h"

/* Order matters: h is mixed in as well. */
static uint64_t mix(uint64_t h, int64_t v)
{
    return sh_mix64(h ^ (uint64_t)v);
}

/* What a rank gets differs; where the whole is cut does not. */
static uint64_t mix_cuts(uint64_t h, const struct sh_program *p, const struct sh_op *op)
{
    for (int i = 0; i < op->attr.exchange.cuts; i++)
        h = mix(h, sh_program_cuts(p, op)[i]);
    return mix(h, op->attr.exchange.back);
}

/* Only collectives, and tiles, whose size changes bits: ranks may differ in what they compute (threads, scratch), but must start the same collectives in
 * the same order with the same sizes, or they hang. */
uint64_t sh_pass_hash(const struct sh_program *p)
{
    uint64_t h = 1;

    for (int s = 0; s < p->n_sections; s++) {
        h = mix(h, p->sections[s].kind);
        h = mix(h, p->sections[s].repeat);
        for (int i = 0; i < p->sections[s].n_ops; i++) {
            const struct sh_op *op = &p->ops[p->sections[s].first_op + i];

            if (op->tiles)
                h = mix(mix(h, op->tiles), p->tensors[op->in[0]].dim[0]);
            if (!sh_op_info(op->kind)->async)
                continue;
            if (sh_program_is_message(op))
                h = mix(mix(h, op->attr.link.peer), op->attr.link.micro);
            h = mix(h, op->kind);
            h = mix(h, op->attr.group);
            h = mix(h, op->stream);
            h = mix(h, op->unit);
            h = sh_program_cuts(p, op) ? mix_cuts(h, p, op)
                                       : mix(h, sh_tensor_bytes(&p->tensors[sh_program_result(op)]));
            if (sh_program_counts_rows(op))
                h = mix(mix(h, op->attr.exchange.row_elems), op->attr.exchange.back + 2 * op->attr.exchange.others);
            else if (op->kind == SH_OP_ALL_TO_ALL)
                h = mix(h, op->attr.exchange.sequences);
        }
    }
    return h;
}
