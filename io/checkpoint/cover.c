/* Whether the pieces of all ranks are each element of each tensor exactly once, found without a list of all pieces: a
 * sum over the pieces of
 *
 *     mix(end) - mix(begin)     mod 2^64
 *
 * If they lie end to end, all but the first begin and the last end cancel out. If two overlap, or leave a gap, some
 * place has more begins than ends, or fewer, and the sum is another, except by a chance of one in 2^64. */
#include "io/checkpoint/checkpoint.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>

/* For each tensor the number of elements, for the message, and the sum. */
static void add_pieces(const struct sh_ckpt_set *set, long long *held, uint64_t *sum)
{
    for (int i = 0; i < set->n_pieces; i++) {
        const struct sh_ckpt_piece *p = &set->pieces[i];

        held[p->tensor] += p->elems;
        sum[p->tensor] += sh_mix64((uint64_t)(p->begin + p->elems)) - sh_mix64((uint64_t)p->begin);
    }
}

static sh_rc compare(const struct sh_ckpt_tensor *t, long long held, uint64_t sum)
{
    if (held != t->elems)
        return sh_fail(SH_E_BUG, "checkpoint: the ranks hold %lld of the %lld elements of %s", held,
                       (long long)t->elems, t->name);
    if (sum != sh_mix64((uint64_t)t->elems) - sh_mix64(0))
        return sh_fail(SH_E_BUG, "checkpoint: the ranks hold some elements of %s twice, and others not at all",
                       t->name);
    return SH_OK;
}

sh_rc sh_ckpt_set_covers(const struct sh_ckpt_set *set)
{
    long long *all = sh_calloc(2 * (size_t)set->n_tensors + 1, sizeof *all);
    uint64_t *sum = (uint64_t *)all + set->n_tensors;
    sh_rc rc;

    add_pieces(set, all, sum);
    rc = sh_mesh_sum_i64(all, 2 * set->n_tensors);
    for (int i = 0; i < set->n_tensors && rc == SH_OK; i++)
        rc = compare(&set->tensors[i], all[i], sum[i]);
    free(all);
    return rc;
}
