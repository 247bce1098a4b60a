/* Chooses the unit that multiplies panels. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#include <stdatomic.h>
#include <stddef.h>

/* Fastest first. */
static const struct sh_panel_unit *const units[] = {
#ifdef SH_WIDE
    &sh_panel_amx,
    &sh_panel_avx512,
    &sh_panel_wide,
#endif
#ifdef SH_QUADS
    &sh_panel_bfmmla,
#endif
    NULL,
};

const struct sh_panel_unit *sh_panel_product_unit(void)
{
    static const struct sh_panel_unit *const *_Atomic chosen; /* in units */

    /* Threads ask at each product, and whichever is first finds what all would find. */
    const struct sh_panel_unit *const *unit = atomic_load_explicit(&chosen, memory_order_acquire);
    if (!unit) {
        for (unit = units; *unit && !(*unit)->usable(); unit++)
            ;
        atomic_store_explicit(&chosen, unit, memory_order_release);
    }
    return *unit;
}

const struct sh_panel_unit *sh_panel_unit(void)
{
    const struct sh_panel_unit *unit = sh_panel_product_unit();

    return unit && !unit->wide ? unit : NULL;
}

void sh_panel_begin(void)
{
    if (sh_panel_product_unit()->begin)
        sh_panel_product_unit()->begin();
}

void sh_panel_multiply(const sh_bf16 *rows, const sh_bf16 *cols, float *sums, int64_t steps, bool add)
{
    sh_panel_product_unit()->multiply(rows, cols, sums, steps, add, SH_PANEL_SIDE);
}

void sh_panel_end(void)
{
    sh_panel_fence();
    if (sh_panel_product_unit()->end)
        sh_panel_product_unit()->end();
}
