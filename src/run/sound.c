#include "src/run/sound.h"

#include "src/base/mem.h"
#include "src/run/pieces.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 1 << 16 };

/* Through a buffer that stays in the cache, so that the data may be on any device; to a GPU one thread talks. */
static bool is_finite(const struct sh_run *r, struct sh_floats data, int64_t n)
{
    int bad = 0;

#pragma omp parallel reduction(+ : bad) if (!r->device->gpu)
    {
        float *buffer = sh_calloc(BLOCK, sizeof *buffer);

#pragma omp for schedule(static)
        for (int64_t at = 0; at < n; at += BLOCK) {
            int64_t here = n - at < BLOCK ? n - at : BLOCK;

            sh_exec_get_floats(r->exec, buffer, sh_floats_at(data, at), here);
            for (int64_t i = 0; i < here; i++)
                bad |= !isfinite(buffer[i]);
        }
        free(buffer);
    }
    return bad == 0;
}

static sh_rc check_unit(const struct sh_run *r, const struct sh_unit *u)
{
    static const char *const name[SH_CKPT_STATES] = {"parameters", "exp_avg", "exp_avg_sq"};
    struct sh_range own = sh_pieces_owned(r, u);

    for (int k = 0; k < SH_CKPT_STATES; k++)
        if (!is_finite(r, sh_pieces_state(r, u, (enum sh_ckpt_state)k), own.end - own.begin))
            return sh_fail(SH_E_NUMERIC, "step %lld: %s %s hold NaN or infinity; not saved", (long long)r->step,
                           u->name, name[k]);
    return SH_OK;
}

static sh_rc check_units(const struct sh_run *r)
{
    for (int i = 0; i < r->p->n_units; i++)
        SH_TRY(check_unit(r, &r->p->units[i]));
    return SH_OK;
}

sh_rc sh_run_is_sound(struct sh_run *r)
{
    return sh_agree(check_units(r));
}
