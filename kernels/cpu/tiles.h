/* Products of panels (amx.h) by the tile unit. A thread sets the tiles up, multiplies, and drops them again; all eight
 * tiles are 16 rows of 64 bytes. Local, for one thread, no failure; only where sh_amx_usable() is true. */
#ifndef SH_KERNELS_CPU_TILES_H
#define SH_KERNELS_CPU_TILES_H

#include "kernels/cpu/amx.h"

#ifdef SH_AMX

#include <immintrin.h>

/* Static, since GCC 12 believes that loading it reads eight bytes, and drops what is written to the others. */
static const struct {
    uint8_t palette, start, rest[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} sh_tiles_all = {.palette = 1,
                  .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                  .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static SH_AMX inline void sh_tiles_set(void)
{
    _tile_loadconfig(&sh_tiles_all);
}

static SH_AMX inline void sh_tiles_drop(void)
{
    _tile_release();
}

/* sums [32][32] (+)= panel of rows a x panel of columns b, `steps` steps deep. */
static SH_AMX inline void sh_tiles_multiply(const sh_bf16 *a, const sh_bf16 *b, float *sums, int64_t steps, bool add)
{
    enum { HALF = SH_AMX_SIDE / 2, BYTES = SH_AMX_SIDE * 4, TILE = SH_AMX_STEP / 2 };
    float *low = sums + HALF * SH_AMX_SIDE;

    if (add) {
        _tile_loadd(0, sums, BYTES);
        _tile_loadd(1, sums + HALF, BYTES);
        _tile_loadd(2, low, BYTES);
        _tile_loadd(3, low + HALF, BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; steps > 0; steps--, a += SH_AMX_STEP, b += SH_AMX_STEP) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, BYTES);
    _tile_stored(1, sums + HALF, BYTES);
    _tile_stored(2, low, BYTES);
    _tile_stored(3, low + HALF, BYTES);
}

#endif

#endif
