/* Frozen weights in four bits an element (src/base/number/nf4.h): which units can be packed, and what has to leave them.
 *
 * A unit is packed if it is frozen and has weights of linear layers: blocks have them, embedding and output matrix are
 * none. What else a block has (norms, biases, the router, whose choice would change) stays in the compute type, in one
 * unit for all blocks that is gathered once: for 70B that is 2.6 MB, for 48 routers of 128 experts 25 MB. The shard pass
 * then keeps and gathers packed chunks, and unpacks a weight before each use. */
#include "src/base/mem.h"
#include "src/base/number/nf4.h"
#include "src/pass/build.h"
#include "src/program/saved.h"

#include <stdlib.h>
#include <string.h>

struct pack {
    struct sh_program *p;
    bool *leaves; /* [params] it leaves its unit, for the one of all that is not packed */
};

static bool packs(const struct sh_program *p, int param)
{
    return sh_param_info(sh_saved_of(p, &p->params[param])->role)->packs;
}

static bool is_packed(const struct sh_program *p, const struct sh_unit *u)
{
    for (int i = u->first_param; i < u->first_param + u->n_params && !u->trainable; i++)
        if (packs(p, i))
            return true;
    return false;
}

/* The elements of one matrix: a stack of experts has one for each, or two, the gate's and the other one, which folders
 * have apart; one without a gate is asked for as much. */
static int64_t matrix_elems(const struct sh_param *param, const struct sh_saved *s)
{
    if (!sh_param_info(s->role)->experts)
        return param->elems;
    return s->elems / s->dim[0] / (s->role == SH_PARAM_EXPERT_UP ? 2 : 1);
}

/* Ranks own whole blocks only if each matrix has whole blocks, which are then blocks of the saved tensor too. */
static sh_rc check_matrices(const struct pack *k, const struct sh_unit *u)
{
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &k->p->params[i];
        const struct sh_saved *saved = sh_saved_of(k->p, param);
        int64_t elems = matrix_elems(param, saved);

        if (packs(k->p, i) && elems % SH_NF4_ELEMS == 0 && !sh_saved_divides(k->p, param, SH_NF4_ELEMS))
            return sh_fail(SH_E_USAGE,
                           "lora.quantize_base: nf4 packs %d neighbours of a matrix together, but these ranks have "
                           "%lld of %lld in dimension %d of %s; set none, or another number of ranks",
                           SH_NF4_ELEMS, (long long)param->dim[param->cut], (long long)saved->dim[param->cut],
                           param->cut, saved->name);
        if (packs(k->p, i) && (elems % SH_NF4_ELEMS || !sh_saved_divides(k->p, param, SH_NF4_ELEMS)))
            return sh_fail(
                SH_E_USAGE,
                "lora.quantize_base: nf4 needs matrices of a multiple of %d elements, but %s%s has %lld; set none",
                SH_NF4_ELEMS, sh_param_info(saved->role)->experts ? "one of " : "", saved->name, (long long)elems);
    }
    return SH_OK;
}

/* leaver: the first parameter that leaves; SH_NONE: none does. */
static sh_rc choose(struct pack *k, int *leaver)
{
    for (int i = 0; i < k->p->n_units; i++) {
        struct sh_unit *u = &k->p->units[i];

        u->packed = is_packed(k->p, u);
        if (!u->packed)
            continue;
        SH_TRY(check_matrices(k, u));
        for (int j = u->first_param; j < u->first_param + u->n_params; j++)
            if (!packs(k->p, j)) {
                *leaver = *leaver == SH_NONE ? j : *leaver;
                k->leaves[j] = true;
            }
    }
    return SH_OK;
}

/* If matrices are cut over ranks, vectors that all have whole have left already, and these are biases of parts. */
static void gather_vectors(struct pack *k, struct sh_unit from)
{
    int vectors = sh_program_add_unit(k->p, from.split ? "biases" : "vectors");
    struct sh_unit *u = &k->p->units[vectors];

    sh_program_move_params(k->p, k->leaves, vectors);
    u->resident = true;
    u->shard = from.shard;
    u->replicate = from.replicate;
    u->split = from.split;
    sh_program_freeze(k->p, vectors);
}

sh_rc sh_pass_pack(const struct sh_build *b, struct sh_program *micro)
{
    size_t n = (size_t)micro->n_params + 1;
    struct pack k = {.p = micro};
    int leaver = SH_NONE;
    sh_rc rc;

    if (!b->packed)
        return SH_OK;
    k.leaves = sh_calloc(n, sizeof *k.leaves);
    rc = choose(&k, &leaver);
    if (rc == SH_OK && leaver != SH_NONE)
        gather_vectors(&k, micro->units[micro->params[leaver].unit]);
    free(k.leaves);
    return rc;
}
