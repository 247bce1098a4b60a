/* Engines of oneDNN 2 and 3: dnnl_sgemm for f32, its matmul primitive for bf16.
 *
 * The first matmul implementation that needs no scratchpad is used. That is oneDNN's packed gemm (AMX, avx512_bf16),
 * which is stateless, takes any leading dimensions and lets threads share a primitive; the brgemm implementation
 * before it is 2-8 % faster on whole matrices but refuses tiles inside larger ones. */
#include "sherd_config.h"

#ifdef HAVE_DNNL

#include "kernels/cpu/gemm/dnnl_version.h"
#include "kernels/cpu/gemm/gemm_engine.h"
#include "src/base/mem.h"

#include <string.h>

/* Whether oneDNN has detected this ISA and may use it (ONEDNN_MAX_CPU_ISA can forbid it). On other processors the same
 * numbers mean other sets: SVE of 512 bits has all bits of AVX2. */
static bool has_isa(dnnl_cpu_isa_t isa)
{
#ifdef __x86_64__
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
#else
    (void)isa;
    return false;
#endif
}

/* Running out of memory is the only failure that a user can do something about. */
static sh_rc check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return SH_OK;
    return sh_fail(status == dnnl_out_of_memory ? SH_E_MEMORY : SH_E_BUG, "oneDNN: %s failed with status %d", what,
                   (int)status);
}
#define DNNL_TRY(call) SH_TRY(check((call), #call))

/* With AVX2, oneDNN's sgemm takes twice as long as OpenBLAS if the rows of an operand are a multiple of 4 KiB apart.
 * Without AVX2 it is a plain loop, as a BLAS of unknown make may be too. */
static bool f32_usable(void)
{
    return has_isa(dnnl_cpu_isa_avx512_core) || (has_isa(dnnl_cpu_isa_avx2) && !sh_gemm_cblas_is_fast());
}

static sh_rc f32_tile(const struct sh_gemm_tile *t, void *work)
{
    (void)work;
    DNNL_TRY(dnnl_sgemm(t->trans_a ? 'T' : 'N', t->trans_b ? 'T' : 'N', t->m, t->n, t->k, 1.0f, t->a, t->lda, t->b,
                        t->ldb, t->add ? 1.0f : 0.0f, t->c, t->ldc));
    return SH_OK;
}

const struct sh_gemm_engine sh_gemm_engine_dnnl_f32 = {
    .name = "oneDNN sgemm",
    .in_dtype = SH_F32,
    .usable = f32_usable,
    .tile = f32_tile,
};

enum { SRC, WEIGHTS, DST, OPERANDS };
enum { KEYS = 9 };

/* A shape seen earlier, and the primitive for it. They live as long as the process: a run sees a few dozen. */
struct known {
    int64_t key[KEYS];
    dnnl_memory_desc_t desc[OPERANDS];
    dnnl_primitive_t primitive;
};
static struct known *known;
static int n_known, cap_known;
static dnnl_engine_t cpu;
static dnnl_stream_t stream;

/* Prepare the library. A second call must not make engine and stream again: the first ones would leak. */
static bool bf16_works(void)
{
    return has_isa(dnnl_cpu_isa_avx512_core) &&
           (stream || (dnnl_engine_create(&cpu, dnnl_cpu, 0) == dnnl_success &&
                       dnnl_stream_create(&stream, cpu, dnnl_stream_default_flags) == dnnl_success));
}

/* avx512_bf16 without AMX: it ran at half the f32 rate on the Intel CPU that was measured, and at twice that rate on
 * AMD's. */
static bool bf16_usable(void)
{
#if defined(__x86_64__)
    bool fast = has_isa(dnnl_cpu_isa_avx512_core_amx) ||
                (has_isa(dnnl_cpu_isa_avx512_core_bf16) && __builtin_cpu_is("amd"));
#else
    bool fast = false;
#endif
    return fast && bf16_works();
}

/* Strides instead of copies: a transposed matrix is the same memory with its strides swapped. */
static sh_rc describe(dnnl_memory_desc_t *d, int64_t rows, int64_t cols, int64_t ld, bool trans, dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};
    DNNL_TRY(sh_dnnl_describe(d, dims, type, strides));
    return SH_OK;
}

/* Whether the implementation keeps no state between calls, so that threads can share it. "ref" is a plain loop. */
static sh_rc scratch_free(const_dnnl_primitive_desc_t pd, bool *yes)
{
    const char *name = "";
    DNNL_TRY(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name));
    sh_dnnl_desc_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    *yes = (!scratch || dnnl_memory_desc_get_size(scratch) == 0) && strncmp(name, "ref", 3) != 0;
    return SH_OK;
}

/* The library lists its implementations best first. */
static sh_rc pick(struct sh_dnnl_matmul *m, dnnl_primitive_t *primitive)
{
    bool found = false;
    dnnl_status_t more = dnnl_success;
    while (!found && more == dnnl_success) {
        SH_TRY(scratch_free(m->pd, &found));
        more = found ? dnnl_success : sh_dnnl_next(m);
    }
    if (!found)
        return sh_fail(SH_E_BUG, "oneDNN has no stateless bf16 matmul for this shape");
    DNNL_TRY(dnnl_primitive_create(primitive, m->pd));
    return SH_OK;
}

/* The attributes are always freed; the primitive keeps what it needs. */
static sh_rc build_primitive(struct known *k, bool add)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t sum = NULL;
    struct sh_dnnl_matmul m = {0};

    sh_rc rc;
    SH_TRY_OUT(check(dnnl_primitive_attr_create(&attr), "attr_create"));
    SH_TRY_OUT(check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad_mode"));
    SH_TRY_OUT(check(dnnl_post_ops_create(&sum), "post_ops_create"));
    if (add)
        SH_TRY_OUT(check(sh_dnnl_append_sum(sum), "append_sum"));
    SH_TRY_OUT(check(dnnl_primitive_attr_set_post_ops(attr, sum), "set_post_ops"));
    SH_TRY_OUT(check(sh_dnnl_first(&m, cpu, SH_DNNL_REF(k->desc[SRC]), SH_DNNL_REF(k->desc[WEIGHTS]),
                                   SH_DNNL_REF(k->desc[DST]), attr),
                     "matmul"));
    SH_TRY_OUT(pick(&m, &k->primitive));
    rc = SH_OK;
out:
    sh_dnnl_end(&m);
    dnnl_post_ops_destroy(sum);
    dnnl_primitive_attr_destroy(attr);
    return rc;
}

/* A row of the table is completed before it is added, so a failure leaves no half row. */
static sh_rc learn(const struct sh_gemm_tile *t, const int64_t key[KEYS], struct known *out)
{
    struct known k = {0};
    memcpy(k.key, key, sizeof k.key);
    SH_TRY(describe(&k.desc[SRC], t->m, t->k, t->lda, t->trans_a, dnnl_bf16));
    SH_TRY(describe(&k.desc[WEIGHTS], t->k, t->n, t->ldb, t->trans_b, dnnl_bf16));
    SH_TRY(describe(&k.desc[DST], t->m, t->n, t->ldc, false, dnnl_f32));
    SH_TRY(build_primitive(&k, t->add));
    known = sh_grow(known, n_known, &cap_known, sizeof *known);
    known[n_known++] = k;
    *out = k;
    return SH_OK;
}

/* Returns a copy of the row, since another thread may move the table as soon as this one has left. */
static sh_rc look_up(const struct sh_gemm_tile *t, struct known *out)
{
    int64_t key[KEYS] = {t->m, t->n, t->k, t->lda, t->ldb, t->ldc, t->trans_a, t->trans_b, t->add};
    for (int i = 0; i < n_known; i++) {
        if (memcmp(known[i].key, key, sizeof key) == 0) {
            *out = known[i];
            return SH_OK;
        }
    }
    return learn(t, key, out);
}

/* Memory objects are cheap handles and belong to this call, so that threads share only the primitive. */
static sh_rc execute(const struct known *k, const struct sh_gemm_tile *t)
{
    static const int slot[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    void *data[OPERANDS] = {(void *)(uintptr_t)t->a, (void *)(uintptr_t)t->b, t->c};
    dnnl_exec_arg_t args[OPERANDS] = {{0}};

    sh_rc rc;
    for (int i = 0; i < OPERANDS; i++) {
        args[i].arg = slot[i];
        SH_TRY_OUT(
            check(dnnl_memory_create(&args[i].memory, SH_DNNL_REF(k->desc[i]), cpu, data[i]), "dnnl_memory_create"));
    }
    SH_TRY_OUT(check(dnnl_primitive_execute(k->primitive, stream, OPERANDS, args), "dnnl_primitive_execute"));
    rc = SH_OK;
out:
    for (int i = 0; i < OPERANDS; i++)
        dnnl_memory_destroy(args[i].memory);
    return rc;
}

/* Only the look-up is in the critical section; products run concurrently. */
static sh_rc bf16_tile(const struct sh_gemm_tile *t, void *work)
{
    (void)work;
    struct known k;
    sh_rc rc;
#pragma omp critical(sh_gemm_dnnl)
    rc = look_up(t, &k);
    SH_TRY(rc);
    return execute(&k, t);
}

const struct sh_gemm_engine sh_gemm_engine_dnnl_bf16 = {
    .name = "oneDNN bf16 matmul",
    .in_dtype = SH_BF16,
    .usable = bf16_usable,
    .works = bf16_works,
    .tile = bf16_tile,
};

#endif
