/* Parameters in codes of eight bits, as ranks gather them (src/base/number/code8.h): in pieces that stay in the cache.
 * Blocks are independent: threads change no bit. */
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"

_Static_assert(SH_CPU_PIECE % SH_CODE8_ELEMS == 0, "pieces are whole blocks");

sh_rc sh_cpu_encode(const struct sh_op_call *call)
{
    const struct sh_operand *a = &call->in[0];
    unsigned char *codes = call->out[0].data;
    int64_t n = sh_cpu_elems(a), pieces = sh_cpu_pieces(n);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t at = p * SH_CPU_PIECE, here = sh_cpu_piece_elems(n, p);
        float room[SH_CPU_PIECE];

        sh_code8_put(codes + sh_code8_bytes(at), SH_CODE8_LINEAR, here, sh_cpu_stage_in(a, at, here, room));
    }
    return SH_OK;
}

sh_rc sh_cpu_decode(const struct sh_op_call *call)
{
    const struct sh_operand *w = &call->out[0];
    const unsigned char *codes = call->in[0].data;
    int64_t n = sh_cpu_elems(w), pieces = sh_cpu_pieces(n);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t at = p * SH_CPU_PIECE, here = sh_cpu_piece_elems(n, p);
        float room[SH_CPU_PIECE], *to = sh_cpu_stage_out(w, at, here, room);

        sh_code8_get(codes + sh_code8_bytes(at), SH_CODE8_LINEAR, here, to);
        sh_cpu_stage_put(w, at, here, to);
    }
    return SH_OK;
}
