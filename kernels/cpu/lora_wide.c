/* Low-rank adapters in bf16 by AVX-512, for processors on which lora.c would widen bf16 for a library's float32
 * products: those pack sides that are too thin to be worth it. There are three products with a thin matrix, all by
 * elements that are broadcast and rows of vectors: `down` sums over the long dimension, `up` over the rank, `outer` over
 * the rows. What is thin is widened to f32 first, and everything else where it is read. A sum takes its terms in one
 * order, whatever thread computes it. Floor: as in lora.c. */
#include "sherd_config.h"

#include "kernels/cpu/base/wide.h"

#include <stddef.h>

#ifdef SH_WIDE

#include "kernels/cpu/base/block.h"
#include "kernels/cpu/panel/panel.h"
#include "src/base/isa.h"

#include <omp.h>
#include <string.h>

enum { LANES = SH_WIDE_LANES, PAIR = 2 * LANES, FEW = 8, MANY = 16 };
/* Widened elements of a row at a time, 32 KiB of 16 rows; columns, and rows, whose sums or operands stay in L1. */
enum { CHUNK = 512, COLUMNS = 256, ACROSS = 256, DEEP = 64, TALL = 64 };

#define ALWAYS_INLINE inline __attribute__((always_inline))

static int64_t up_to(int64_t n, int64_t grain)
{
    return (n + grain - 1) / grain * grain;
}

/* dst [rows][ld] f32 = src or, if turned, its transpose; zero from `cols` on. */
static void spread(const sh_bf16 *src, int64_t lds, bool turned, int64_t rows, int64_t cols, float *dst, int64_t ld)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            dst[i * ld + j] = sh_bf16_to_f32(turned ? src[j * lds + i] : src[i * lds + j]);
        for (int64_t j = cols; j < ld; j++)
            dst[i * ld + j] = 0;
    }
}

/* c [rows][16 vectors] += a b over `inner`; element (i, k) of a is a[i * row + k * step]. */
static SH_WIDE ALWAYS_INLINE void add_block(const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
                                            float *c, int64_t ldc, int64_t inner, const int rows, const int vectors)
{
    __m512 lo[MANY], hi[MANY];

    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
    {
        lo[i] = _mm512_loadu_ps(c + i * ldc);
        hi[i] = vectors > 1 ? _mm512_loadu_ps(c + i * ldc + LANES) : lo[i];
    }
    for (int64_t k = 0; k < inner; k++, a += step, b += ldb) {
        __m512 left = _mm512_loadu_ps(b), right = vectors > 1 ? _mm512_loadu_ps(b + LANES) : left;
        _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
        {
            __m512 x = _mm512_set1_ps(a[i * row]);
            lo[i] = _mm512_fmadd_ps(x, left, lo[i]);
            if (vectors > 1)
                hi[i] = _mm512_fmadd_ps(x, right, hi[i]);
        }
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
    {
        _mm512_storeu_ps(c + i * ldc, lo[i]);
        if (vectors > 1)
            _mm512_storeu_ps(c + i * ldc + LANES, hi[i]);
    }
}

/* A matrix of bf16 in memory. */
struct tall {
    const sh_bf16 *data;
    int64_t ld, rows, cols;
};

/* Up to 16 rows of `in` from r on: sums [16][ldk]. */
static SH_WIDE void down_rows(const struct tall *in, int64_t r, const float *w, int64_t ldk, float *sums)
{
    float room[MANY * CHUNK];
    int64_t rows = in->rows - r < MANY ? in->rows - r : MANY;

    memset(sums, 0, (size_t)(MANY * ldk) * sizeof *sums);
    memset(room + rows * CHUNK, 0, (size_t)((MANY - rows) * CHUNK) * sizeof *room);
    for (int64_t k = 0; k < in->cols; k += CHUNK, w += CHUNK * ldk) {
        int64_t inner = in->cols - k < CHUNK ? in->cols - k : CHUNK, j = 0;
        sh_cpu_block_load((struct sh_cpu_block){.rows = rows, .cols = inner}, room, CHUNK, in->data + r * in->ld + k,
                          in->ld, SH_BF16);
        for (; j + PAIR <= ldk; j += PAIR)
            for (int64_t i = 0; i < MANY; i += FEW)
                add_block(room + i * CHUNK, CHUNK, 1, w + j, ldk, sums + i * ldk + j, ldk, inner, FEW, 2);
        if (j < ldk)
            add_block(room, CHUNK, 1, w + j, ldk, sums + j, ldk, inner, MANY, 1);
    }
}

/* thin [rows][ld] = scale * in w, from column `col` on, rounded to bf16; also to u. w [in->cols][ldk] */
static void down(const struct tall *in, const float *w, int64_t ldk, int64_t rank, float scale, float *thin, int64_t ld,
                 sh_bf16 *u, int64_t ldu, float *rooms)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < in->rows; r += MANY) {
        float *sums = rooms + omp_get_thread_num() * MANY * ldk;
        down_rows(in, r, w, ldk, sums);
        for (int64_t i = 0; i < MANY && r + i < in->rows; i++)
            for (int64_t j = 0; j < rank; j++) {
                sh_bf16 x = sh_f32_to_bf16(scale * sums[i * ldk + j]);
                thin[(r + i) * ld + j] = sh_bf16_to_f32(x);
                if (u)
                    u[(r + i) * ldu + j] = x;
            }
    }
}

/* Up to 32 columns of z = addend + thin w, over the rank. */
static SH_WIDE ALWAYS_INLINE void up_block(const float *thin, int64_t ld, int64_t rank, const float *w, int64_t ldw,
                                           const sh_bf16 *addend, sh_bf16 *z, int64_t ldz, int64_t cols, const int rows)
{
    __mmask16 first = sh_wide_first(cols), second = cols > LANES ? sh_wide_first(cols - LANES) : 0;
    __m512 lo[FEW], hi[FEW];

    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
    {
        /* The rows after these; hardware does not foresee them. */
        __builtin_prefetch(z + (i + FEW) * ldz, 1);
        if (addend && addend != z)
            __builtin_prefetch(addend + (i + FEW) * ldz);
        lo[i] = addend ? sh_wide_load(addend + i * ldz, first) : _mm512_setzero_ps();
        hi[i] = addend ? sh_wide_load(addend + i * ldz + LANES, second) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < rank; k++, w += ldw) {
        __m512 left = _mm512_loadu_ps(w), right = _mm512_loadu_ps(w + LANES);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
        {
            __m512 x = _mm512_set1_ps(thin[i * ld + k]);
            lo[i] = _mm512_fmadd_ps(x, left, lo[i]);
            hi[i] = _mm512_fmadd_ps(x, right, hi[i]);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
    {
        sh_wide_store(z + i * ldz, lo[i], first);
        sh_wide_store(z + i * ldz + LANES, hi[i], second);
    }
}

/* One block of ACROSS columns and TALL rows. */
static SH_WIDE void up_part(const float *thin, int64_t ld, int64_t rank, const float *w, int64_t ldw,
                            const sh_bf16 *addend, sh_bf16 *z, int64_t ldz, int64_t rows, int64_t cols)
{
    int64_t i = 0;

    for (; i + FEW <= rows; i += FEW)
        for (int64_t j = 0; j < cols; j += PAIR)
            up_block(thin + i * ld, ld, rank, w + j, ldw, addend ? addend + i * ldz + j : NULL, z + i * ldz + j, ldz,
                     cols - j, FEW);
    for (; i < rows; i++)
        for (int64_t j = 0; j < cols; j += PAIR)
            up_block(thin + i * ld, ld, rank, w + j, ldw, addend ? addend + i * ldz + j : NULL, z + i * ldz + j, ldz,
                     cols - j, 1);
}

/* z [rows][cols] = addend + thin w, rounded once; z and addend are ldz apart and may be the same. w [rank][ldw] */
static void up(const float *thin, int64_t ld, int64_t rank, const float *w, int64_t ldw, const sh_bf16 *addend,
               sh_bf16 *z, int64_t ldz, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i += TALL)
        for (int64_t j = 0; j < cols; j += ACROSS)
            up_part(thin + i * ld, ld, rank, w + j, ldw, addend ? addend + i * ldz + j : NULL, z + i * ldz + j, ldz,
                    rows - i < TALL ? rows - i : TALL, cols - j < ACROSS ? cols - j : ACROSS);
}

/* sums [ld][COLUMNS] = thin' times the columns of `in` from c on. These are widened first: rows are often a multiple of
 * 4 KiB apart, so that few of them stay in the L1 cache. */
static SH_WIDE void outer_columns(const float *thin, int64_t ld, const struct tall *in, int64_t c, float *sums)
{
    float room[DEEP * COLUMNS];
    int64_t cols = in->cols - c < COLUMNS ? in->cols - c : COLUMNS;

    memset(room, 0, sizeof room);
    memset(sums, 0, (size_t)(ld * COLUMNS) * sizeof *sums);
    for (int64_t n = 0; n < in->rows; n += DEEP) {
        int64_t rows = in->rows - n < DEEP ? in->rows - n : DEEP;
        sh_cpu_block_load((struct sh_cpu_block){.rows = rows, .cols = cols}, room, COLUMNS, in->data + n * in->ld + c,
                          in->ld, SH_BF16);
        for (int64_t j = 0; j < cols; j += PAIR)
            for (int64_t k = 0; k < ld; k += FEW)
                add_block(thin + n * ld + k, 1, ld, room + j, COLUMNS, sums + k * COLUMNS + j, COLUMNS, rows, FEW, 2);
    }
}

/* to [rank][cols] or, if turned, [cols][rank] (+)= thin' in, with `ldt` between rows. */
static void outer(const float *thin, int64_t ld, int64_t rank, const struct tall *in, float *to, int64_t ldt,
                  bool turned, bool add, float *rooms)
{
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < in->cols; c += COLUMNS) {
        float *sums = rooms + omp_get_thread_num() * COLUMNS * ld;
        outer_columns(thin, ld, in, c, sums);
        for (int64_t k = 0; k < rank; k++)
            for (int64_t j = 0; j < COLUMNS && c + j < in->cols; j++) {
                float *x = turned ? to + (c + j) * ldt + k : to + k * ldt + c + j;
                *x = sums[k * COLUMNS + j] + (add ? *x : 0);
            }
    }
}

/* Sizes of a call and its scratch: K is R times the parts. */
struct lora {
    const struct sh_op_call *call;
    int64_t N, M, I, R, K, ldk, ldr; /* rows of K and of R rounded up to vectors */
    float *thin, *part;              /* [N][ldk] u or du of all parts; [N][ldr] u of one part */
    float *w;                        /* the thin matrix of a product */
    float *rooms;                    /* [threads][COLUMNS][ldk] */
};

static struct lora lora_of(const struct sh_op_call *call)
{
    const struct sh_operand *y = &call->in[0], *x = &call->in[1], *b = &call->in[call->kind == SH_OP_LORA ? 3 : 4];
    struct lora l = {.call = call, .N = y->dim[0], .M = y->dim[1], .I = x->dim[1], .R = b->dim[1]};

    l.K = l.R * call->attr->lora.parts;
    l.ldk = up_to(l.K, LANES);
    l.ldr = up_to(l.R, LANES);
    l.thin = call->work;
    l.part = l.thin + l.N * l.ldk;
    l.w = l.part + l.N * l.ldr;
    l.rooms = l.w + up_to(l.I > l.M ? l.I : l.M, PAIR) * l.ldk;
    return l;
}

static bool usable(void)
{
    return !sh_panel_unit() && sh_isa_has(SH_ISA_AVX512_BF16);
}

int64_t sh_wide_lora_work_bytes(const struct sh_op_call *call, int threads)
{
    struct lora l = lora_of(call);

    return (l.N * (l.ldk + l.ldr) + (up_to(l.I > l.M ? l.I : l.M, PAIR) + threads * COLUMNS) * l.ldk) *
           (int64_t)sizeof(float);
}

static const sh_bf16 *in_at(const struct lora *l, int i, int64_t elem)
{
    return (const sh_bf16 *)l->call->in[i].data + elem;
}

static struct tall part_of(const struct lora *l, int64_t p)
{
    const struct sh_op_attr *attr = l->call->attr;
    return (struct tall){
        .data = in_at(l, 0, attr->lora.first[p]), .ld = l->M, .rows = l->N, .cols = attr->lora.width[p]};
}

/* u = scale x A', all parts at once; the parts' columns of z += u B'. The rest of z is that of y already. */
static sh_rc forward(const struct sh_op_call *call)
{
    struct lora l = lora_of(call);
    const struct sh_op_attr *attr = call->attr;
    struct tall x = {.data = in_at(&l, 1, 0), .ld = l.I, .rows = l.N, .cols = l.I};

    spread(in_at(&l, 2, 0), l.I, true, l.I, l.K, l.w, l.ldk);
    down(&x, l.w, l.ldk, l.K, attr->lora.scale, l.thin, l.ldk, call->out[1].data, l.K, l.rooms);
    for (int64_t p = 0, row = 0; p < attr->lora.parts; row += attr->lora.width[p++]) {
        int64_t cols = attr->lora.width[p], ld = up_to(cols, PAIR);
        sh_bf16 *z = (sh_bf16 *)call->out[0].data + attr->lora.first[p];
        spread(in_at(&l, 3, row * l.R), l.R, true, l.R, cols, l.w, ld);
        up(l.thin + p * l.R, l.ldk, l.R, l.w, ld, z, z, l.M, l.N, cols);
    }
    return SH_OK;
}

/* db (+)= dy' u and du = scale dy B, part by part; then da (+)= du' x and dx = dres + du A. */
static sh_rc backward(const struct sh_op_call *call)
{
    struct lora l = lora_of(call);
    const struct sh_op_attr *attr = call->attr;
    struct tall x = {.data = in_at(&l, 1, 0), .ld = l.I, .rows = l.N, .cols = l.I};

    memset(l.thin, 0, (size_t)(l.N * l.ldk) * sizeof *l.thin);
    for (int64_t p = 0, row = 0; p < attr->lora.parts; row += attr->lora.width[p++]) {
        struct tall dy = part_of(&l, p);
        spread(in_at(&l, 2, p * l.R), l.K, false, l.N, l.R, l.part, l.ldr);
        outer(l.part, l.ldr, l.R, &dy, (float *)call->out[2].data + row * l.R, l.R, true, sh_op_adds(call, 2), l.rooms);
        spread(in_at(&l, 4, row * l.R), l.R, false, dy.cols, l.R, l.w, l.ldr);
        down(&dy, l.w, l.ldr, l.R, attr->lora.scale, l.thin + p * l.R, l.ldk, NULL, 0, l.rooms);
    }
    outer(l.thin, l.ldk, l.K, &x, call->out[1].data, l.I, false, sh_op_adds(call, 1), l.rooms);
    if (call->out[0].data) {
        int64_t ld = up_to(l.I, PAIR);
        spread(in_at(&l, 3, 0), l.I, false, l.K, l.I, l.w, ld);
        up(l.thin, l.ldk, l.K, l.w, ld, call->in[5].data, call->out[0].data, l.I, l.N, l.I);
    }
    return SH_OK;
}

sh_kernel sh_wide_lora(void)
{
    return usable() ? forward : NULL;
}

sh_kernel sh_wide_lora_bwd(void)
{
    return usable() ? backward : NULL;
}

#else

sh_kernel sh_wide_lora(void)
{
    return NULL;
}

sh_kernel sh_wide_lora_bwd(void)
{
    return NULL;
}

int64_t sh_wide_lora_work_bytes(const struct sh_op_call *call, int threads)
{
    (void)call;
    (void)threads;
    return 0;
}

#endif
