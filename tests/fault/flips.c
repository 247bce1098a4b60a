/* Linked into sherd_flips, which is `sherd` with memory that flips a bit: the linker redirects here the call that
 * begins to write the copy of a background save, and one bit of the copy of step FLIPS_STEP changes on rank FLIPS_RANK:
 * of the parameters, or of the state FLIPS_STATE of the optimizer. */
#include "io/checkpoint/checkpoint.h"
#include "tests/fault/shim.h"

#include <stdlib.h>

sh_rc __real_sh_ckpt_async_begin(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                                 const struct sh_ckpt_options *options, struct sh_ckpt_async **out);
sh_rc __wrap_sh_ckpt_async_begin(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                                 const struct sh_ckpt_options *options, struct sh_ckpt_async **out);

static void flip(const struct sh_ckpt_set *set)
{
    const char *state = getenv("FLIPS_STATE");

    for (int i = 0; i < set->n_pieces; i++)
        if (set->pieces[i].elems > 0) {
            *(unsigned char *)sh_floats_array(set->pieces[i].data[state ? atoi(state) : SH_CKPT_MODEL], 0) ^= 1;
            return;
        }
}

sh_rc __wrap_sh_ckpt_async_begin(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                                 const struct sh_ckpt_options *options, struct sh_ckpt_async **out)
{
    const char *step = getenv("FLIPS_STEP");
    if (step && meta->step == atoi(step) && shim_rank() == atoi(getenv("FLIPS_RANK")))
        flip(set);
    return __real_sh_ckpt_async_begin(folder, set, meta, options, out);
}
