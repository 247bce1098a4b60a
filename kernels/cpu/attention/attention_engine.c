/* Which attention is used: the first engine of a list that takes the type of the operands. Scratch sizes follow the
 * same choice, so they cannot belong to another engine. */
#include "sherd_config.h"

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel/panel.h"

/* Engines in order of preference; the last one takes every type. */
static const struct sh_attn_engine *const forward[] = {
#ifdef SH_WIDE
    &sh_attn_panels,
    &sh_attn_wide,
#endif
    &sh_attn_f32,
};

static const struct sh_attn_engine *const backward[] = {
#ifdef SH_WIDE
    &sh_attn_panels_bwd,
    &sh_attn_wide_bwd,
#endif
    &sh_attn_f32_bwd,
};

/* Runs of queries begin at multiples of their length; the engines of panels need whole panels. */
static bool is_whole(const struct sh_op_call *call)
{
    bool runs = call->kind == SH_OP_ATTENTION_ROWS || call->kind == SH_OP_ATTENTION_ROWS_BWD;

    return !runs || call->in[0].dim[1] % SH_PANEL_SIDE == 0;
}

/* The table ends with an engine that takes everything, so the loop ends. The first operand has the compute type, and
 * the rows of queries. */
static const struct sh_attn_engine *engine_for(const struct sh_attn_engine *const *e, const struct sh_op_call *call)
{
    while (e[0] != &sh_attn_f32 && e[0] != &sh_attn_f32_bwd && (!(*e)->takes(call->in[0].dtype) || !is_whole(call)))
        e++;
    return *e;
}

int64_t sh_cpu_attention_work_bytes(const struct sh_op_call *call, int threads)
{
    return engine_for(forward, call)->work_bytes(call, threads);
}

sh_rc sh_cpu_attention(const struct sh_op_call *call)
{
    return engine_for(forward, call)->run(call);
}

int64_t sh_cpu_attention_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    return engine_for(backward, call)->work_bytes(call, threads);
}

sh_rc sh_cpu_attention_bwd(const struct sh_op_call *call)
{
    return engine_for(backward, call)->run(call);
}

sh_rc sh_cpu_attention_rows(const struct sh_op_call *call)
{
    return sh_cpu_attention(call);
}

sh_rc sh_cpu_attention_rows_bwd(const struct sh_op_call *call)
{
    return sh_cpu_attention_bwd(call);
}
