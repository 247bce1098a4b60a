/* The reference kernels as a table. They define what is right: plain loops, sums in double, one thread; tests compare
 * the other tables with this one. Fused kinds and collectives have no kernel
 * here. */
#include "kernels/plug.h"
#include "kernels/plug_loss.h"
#include "kernels/ref/ref.h"

#include <stddef.h>

/* Kinds that are not listed need no scratch: they keep nothing between their loops. */
static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads; /* one thread, always */
    switch (call->kind) {
    case SH_OP_ATTENTION:
    case SH_OP_ATTENTION_ROWS: return sh_ref_attention_work_bytes(call);
    case SH_OP_ATTENTION_BWD:
    case SH_OP_ATTENTION_ROWS_BWD: return sh_ref_attention_bwd_work_bytes(call);
    case SH_OP_ATTENTION_CACHE: return sh_ref_attention_cache_work_bytes(call);
    case SH_OP_LORA_BWD: return sh_ref_lora_bwd_work_bytes(call);
    case SH_OP_ROUTE_BWD: return sh_ref_route_bwd_work_bytes(call);
    case SH_OP_GATED_DELTA:
    case SH_OP_GATED_DELTA_CACHE: return sh_ref_gated_delta_work_bytes(call);
    case SH_OP_GATED_DELTA_BWD: return sh_ref_gated_delta_bwd_work_bytes(call);
    case SH_OP_SCAN:
    case SH_OP_SCAN_CACHE: return sh_ref_scan_work_bytes(call);
    case SH_OP_SCAN_BWD: return sh_ref_scan_bwd_work_bytes(call);
    case SH_OP_ORTHO: return sh_ref_ortho_work_bytes(call);
    case SH_OP_ORTHO_ROWS: return sh_ref_ortho_rows_work_bytes(call);
    case SH_OP_HEAD_LOSS:
    case SH_OP_HEAD_SCORE:
    case SH_OP_HEAD_LOSS_GRAD: return sh_ref_head_loss_work_bytes(call);
    default: return sh_plug_work_bytes(call);
    }
}

#define ROW(KIND, name) [SH_OP_##KIND] = sh_ref_##name,

/* An operation, or a loss of pairs or of targets. */
static sh_rc run_plug(const struct sh_op_call *call)
{
    const struct sherd_loss *loss = sh_plug_loss(call->kind);

    return !loss ? sh_plug_ref(call) : loss->pair ? sh_ref_pair_loss(call) : sh_plug_target_loss(call);
}

const struct sh_kernel_table sh_kernels_ref = {
    .name = "ref",
    .run = {SH_OP_LIST(ROW, SH_OP_SKIP, SH_OP_SKIP)[SH_OP_KINDS... SH_OP_ROOM - 1] = run_plug},
    .fill_normal = sh_ref_fill_normal,
    .work_bytes = work_bytes,
};
