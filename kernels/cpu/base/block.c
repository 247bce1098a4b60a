/* Rows of a matrix converted between types, by way of f32. A block has rows and columns; ld is the distance between
 * its rows, in elements of the tensor that it belongs to. */
#include "kernels/cpu/base/block.h"

#include "kernels/cpu/base/math.h"
#include "src/base/number/half.h"

#include <string.h>

/* Rows of this many bytes at most are fetched ahead, by so many rows. */
enum { SHORT = 1024, AHEAD = 8 };

/* Copy a row to f32 and back; the compiler vectorises these for each kind of processor. */
SH_CLONES static void load_bf16(float *dst, const sh_bf16 *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = sh_bf16_to_f32(src[i]);
}

SH_CLONES static void store_bf16(sh_bf16 *dst, const float *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = sh_f32_to_bf16(src[i]);
}

SH_CLONES static void add_f32(float *dst, const float *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += src[i];
}

SH_CLONES static void add_bf16(float *dst, const sh_bf16 *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += sh_bf16_to_f32(src[i]);
}

/* Widened in the L1 cache. */
static void add_f16(float *dst, const sh_f16 *src, int64_t n)
{
    float room[512];

    for (int64_t at = 0, here; at < n; at += here) {
        here = n - at < 512 ? n - at : 512;
        sh_half_widen(room, src + at, here);
        add_f32(dst + at, room, here);
    }
}

/* The type is checked once per row, not per element. */
static void add_one_row(float *dst, const void *src, enum sh_dtype dtype, int64_t n)
{
    if (dtype == SH_BF16)
        add_bf16(dst, src, n);
    else if (dtype == SH_F16)
        add_f16(dst, src, n);
    else
        add_f32(dst, src, n);
}

/* No processor foresees rows that lie pages apart, and a short row is over before the next one has arrived. */
static void fetch(const void *row, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const char *)row + at);
}

/* f32 to f32 is a copy; rows may be further apart on one side than on the other. */
void sh_cpu_block_load(struct sh_cpu_block b, float *dst, int64_t ldd, const void *src, int64_t lds,
                       enum sh_dtype dtype)
{
    int64_t bytes = b.cols * sh_dtype_bytes(dtype);

    for (int64_t i = 0; i < b.rows; i++) {
        const void *row = sh_cpu_at(src, dtype, i * lds);
        if (i + AHEAD < b.rows && bytes <= SHORT)
            fetch(sh_cpu_at(src, dtype, (i + AHEAD) * lds), bytes);
        if (dtype == SH_BF16)
            load_bf16(dst + i * ldd, row, b.cols);
        else if (dtype == SH_F16)
            sh_half_widen(dst + i * ldd, row, b.cols);
        else
            memcpy(dst + i * ldd, row, (size_t)b.cols * sizeof(float));
    }
}

/* 16 bits are rounded to nearest, once. */
void sh_cpu_block_store(struct sh_cpu_block b, void *dst, int64_t ldd, enum sh_dtype dtype, const float *src,
                        int64_t lds)
{
    for (int64_t i = 0; i < b.rows; i++) {
        void *row = sh_cpu_at(dst, dtype, i * ldd);
        if (dtype == SH_BF16)
            store_bf16(row, src + i * lds, b.cols);
        else if (dtype == SH_F16)
            sh_half_narrow(row, src + i * lds, b.cols);
        else
            memcpy(row, src + i * lds, (size_t)b.cols * sizeof(float));
    }
}

/* Add one row to all rows of the block, e.g. a bias. */
void sh_cpu_block_add_row(struct sh_cpu_block b, float *dst, int64_t ldd, const void *row, enum sh_dtype dtype)
{
    for (int64_t i = 0; i < b.rows; i++)
        add_one_row(dst + i * ldd, row, dtype, b.cols);
}

void sh_cpu_block_add(struct sh_cpu_block b, float *dst, int64_t ldd, const void *src, int64_t lds, enum sh_dtype dtype)
{
    for (int64_t i = 0; i < b.rows; i++)
        add_one_row(dst + i * ldd, sh_cpu_at(src, dtype, i * lds), dtype, b.cols);
}
