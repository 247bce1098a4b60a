/* Low-rank adapters: thin matrix products in addition to those of the matrices that they adapt; kernels/ref/lora.c
 * has the formulas. Scaled values are computed in f32 and rounded once. Floor: x is read once, y and dy once per
 * part, for 2 R operations per element. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/base/wide.h"
#include "kernels/lora.h"

#include <omp.h>
#include <string.h>

/* Scratch: f32 values before scaling, du in the compute type, scratch of the products. Offsets and total length in bytes. */
struct room {
    int64_t scaled, products, bytes;
};

/* The most scratch that any of the products needs. */
static int64_t products_bytes(const struct sh_lora *l, int threads)
{
    int64_t rows = l->N > l->M ? l->N : l->M, cols = l->I > l->K ? l->I : l->K, most = rows > cols ? rows : cols;
    struct sh_matmul act = {.m = most, .n = most, .k = most, .in_dtype = l->act, .out_dtype = l->act}, f32 = act;

    f32.out_dtype = SH_F32;
    int64_t a = sh_gemm_work_bytes(&act, threads), b = sh_gemm_work_bytes(&f32, threads);
    return a > b ? a : b;
}

static struct room room_of(const struct sh_lora *l, int threads)
{
    struct room r = {.scaled = sh_cpu_round64(l->N * l->K * (int64_t)sizeof(float))};

    r.products = r.scaled + (l->call->kind == SH_OP_LORA ? 0 : sh_cpu_round64(l->N * l->K * sh_dtype_bytes(l->act)));
    r.bytes = r.products + products_bytes(l, threads);
    return r;
}

/* The products need separate scratch. Both output types share it, since they do not run at the same time. */
int64_t sh_cpu_lora_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_lora l = sh_lora_of(call);
    int64_t bytes = room_of(&l, threads).bytes;

    if (call->in[0].dtype == SH_BF16 && sh_wide_lora()) {
        int64_t wide = sh_wide_lora_work_bytes(call, threads);
        return wide > bytes ? wide : bytes;
    }
    return bytes;
}

static sh_rc run(const struct sh_lora *l, const struct sh_matmul *g)
{
    return sh_gemm_run(g, l->work, l->work_bytes);
}

static struct sh_lora lora_of(const struct sh_op_call *call, struct room *r)
{
    struct sh_lora l = sh_lora_of(call);

    *r = room_of(&l, omp_get_max_threads());
    l.sums = call->work;
    l.work = (char *)call->work + r->products;
    l.work_bytes = r->bytes - r->products;
    l.run = run;
    return l;
}

/* to [N,K] act = scale * sums, by all threads; in place if `to` is f32. */
static void scale_into(const struct sh_lora *l, const struct sh_operand *to)
{
    float scale = l->call->attr->lora.scale;
    int64_t n = l->N * l->K;

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < sh_cpu_pieces(n); p++) {
        float room[SH_CPU_PIECE];
        int64_t first = p * SH_CPU_PIECE, here = sh_cpu_piece_elems(n, p);
        float *out = sh_cpu_stage_out(to, first, here, room);

        for (int64_t i = 0; i < here; i++)
            out[i] = scale * l->sums[first + i];
        sh_cpu_stage_put(to, first, here, out);
    }
}

/* If z has its own storage, copy all columns of y; the parts' columns are then added to. */
static void copy_rows(const struct sh_lora *l)
{
    const struct sh_operand *y = &l->call->in[0], *z = &l->call->out[0];
    int64_t bytes = l->M * sh_dtype_bytes(l->act);

    if (z->data == y->data)
        return;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < l->N; n++)
        memcpy((char *)z->data + n * bytes, (const char *)y->data + n * bytes, (size_t)bytes);
}

/* u = scale x a', z' = y' + u' b' */
sh_rc sh_cpu_lora(const struct sh_op_call *call)
{
    struct room r;
    struct sh_lora l = lora_of(call, &r);

    SH_REQUIRE(call->work_bytes >= sh_cpu_lora_work_bytes(call, omp_get_max_threads()));
    copy_rows(&l);
    if (l.act == SH_BF16 && sh_wide_lora())
        return sh_wide_lora()(call);
    SH_TRY(sh_lora_down(&l));
    scale_into(&l, &call->out[1]);
    return sh_lora_up(&l);
}

sh_rc sh_cpu_lora_bwd(const struct sh_op_call *call)
{
    struct room r;
    struct sh_lora l = lora_of(call, &r);
    struct sh_operand du = {.data = (char *)call->work + r.scaled, .dtype = l.act, .ndim = 2, .dim = {l.N, l.K}};

    SH_REQUIRE(call->work_bytes >= sh_cpu_lora_work_bytes(call, omp_get_max_threads()));
    if (l.act == SH_BF16 && sh_wide_lora_bwd())
        return sh_wide_lora_bwd()(call);
    SH_TRY(sh_lora_bwd_parts(&l));
    scale_into(&l, &du);
    return sh_lora_bwd_down(&l, du.data);
}
