/* The tile unit (AMX): 2 x 16 x 16 x 32 operations in 16 cycles. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_WIDE

#include "src/base/isa.h"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SH_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

enum { SIDE = SH_PANEL_SIDE, HALF = SIDE / 2, TILE = SH_PANEL_STEP / 2 };

/* All eight tiles: 16 rows of 64 bytes. Static, because GCC 12 believes that loading it reads only eight bytes, and
 * drops the stores to the others. */
static const struct {
    uint8_t palette, start, rest[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} all_tiles = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Linux saves the tiles only for processes that have requested them. */
static bool system_allows(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

/* The permission belongs to the process; threads created later inherit it. */
static bool usable(void)
{
    return sh_isa_has(SH_ISA_AMX) && system_allows();
}

/* Per thread, since tiles are registers. Between begin and end nothing else may use them. */
static SH_AMX void begin(void)
{
    _tile_loadconfig(&all_tiles);
}

static SH_AMX void end(void)
{
    _tile_release();
}

/* Rows as tiles read them: the second tile is `below` elements after the first, the next step `step`. */
struct rows {
    const sh_bf16 *at;
    int64_t bytes, below, step;
};

/* C [32][32] (+)= rows [32][32 steps] cols. Four tiles of C and two of each side: each loaded tile is used twice,
 * which is the most that eight tiles allow. tall, wide: whether there are more than 16 rows, or columns. */
static SH_AMX inline __attribute__((always_inline)) void multiply_tiles(struct rows r, const sh_bf16 *cols, float *sums,
                                                                        int64_t steps, bool add, const bool tall,
                                                                        const bool wide)
{
    enum { BYTES = SIDE * 4 };

    if (add) {
        _tile_loadd(0, sums, BYTES);
        if (wide)
            _tile_loadd(1, sums + HALF, BYTES);
        if (tall)
            _tile_loadd(2, sums + HALF * SIDE, BYTES);
        if (tall && wide)
            _tile_loadd(3, sums + HALF * SIDE + HALF, BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; steps > 0; steps--, r.at += r.step, cols += SH_PANEL_STEP) {
        _tile_loadd(6, cols, 64);
        _tile_loadd(4, r.at, r.bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (wide) {
            _tile_loadd(7, cols + TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (tall) {
            _tile_loadd(5, r.at + r.below, r.bytes);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (tall && wide)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, BYTES);
    if (wide)
        _tile_stored(1, sums + HALF, BYTES);
    if (tall)
        _tile_stored(2, sums + HALF * SIDE, BYTES);
    if (tall && wide)
        _tile_stored(3, sums + HALF * SIDE + HALF, BYTES);
}

static SH_AMX void multiply(const void *rows, const void *cols, float *sums, int64_t steps, bool add, int64_t live)
{
    struct rows packed = {.at = rows, .bytes = 64, .below = TILE, .step = SH_PANEL_STEP};

    if (live > HALF)
        multiply_tiles(packed, cols, sums, steps, add, true, true);
    else
        multiply_tiles(packed, cols, sums, steps, add, false, true);
}

static SH_AMX void multiply_stored(const sh_bf16 *rows, int64_t ld, const sh_bf16 *cols, float *sums, int64_t steps,
                                   bool add, int64_t live)
{
    struct rows stored = {.at = rows, .bytes = ld * (int64_t)sizeof *rows, .below = HALF * ld, .step = SIDE};

    if (live > HALF)
        multiply_tiles(stored, cols, sums, steps, add, true, true);
    else
        multiply_tiles(stored, cols, sums, steps, add, true, false);
}

/* For 2 MiB of L2: slices of 4 panels are 12 % slower. */
const struct sh_panel_unit sh_panel_amx = {.name = "AMX",
                                           .usable = usable,
                                           .begin = begin,
                                           .end = end,
                                           .multiply = multiply,
                                           .multiply_stored = multiply_stored,
                                           .slice = 8};

#endif
