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

/* The table ends with an engine that takes every type, so the loop ends. */
static const struct sh_attn_engine *engine_for(const struct sh_attn_engine *const *e, enum sh_dtype dtype)
{
    while (!(*e)->takes(dtype))
        e++;
    return *e;
}

int64_t sh_cpu_attention_work_bytes(const struct sh_op_call *call, int threads)
{
    return engine_for(forward, call->in[0].dtype)->work_bytes(call, threads);
}

sh_rc sh_cpu_attention(const struct sh_op_call *call)
{
    return engine_for(forward, call->in[0].dtype)->run(call);
}

int64_t sh_cpu_attention_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    return engine_for(backward, call->in[1].dtype)->work_bytes(call, threads);
}

/* The type is that of qkv, the second operand. */
sh_rc sh_cpu_attention_bwd(const struct sh_op_call *call)
{
    return engine_for(backward, call->in[1].dtype)->run(call);
}
