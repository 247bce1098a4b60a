/* The state of an optimizer that has a number for each row of a matrix, an output of its product: a unit beside each unit
 * with matrices. Its parameters are cut where their matrices are, since it is the owner of a matrix who knows all of a row. */
#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/optim/matrices.h"
#include "src/optim/update.h"
#include "src/program/saved.h"

#include <stdlib.h>

/* The rows of a saved matrix, with all of its experts. */
static struct sh_saved rows_of(const struct sh_model *m, const struct sh_saved *matrix)
{
    bool experts = matrix->ndim == 3;
    struct sh_saved s = {.role = SH_PARAM_MOMENT, .ndim = 1 + experts, .init = SH_INIT_ZERO, .trainable = true};
    int64_t in, out;

    sh_matrices_dims(m, matrix, &in, &out);
    snprintf(s.name, sizeof s.name, "%.70s.%s", matrix->name, sh_param_info(SH_PARAM_MOMENT)->ending);
    s.dim[0] = matrix->dim[0];
    s.dim[experts] = out;
    s.elems = experts ? s.dim[0] * out : out;
    return s;
}

/* List the rows of all matrices, since those of other stages are saved too.
 *   rows  out  [saved tensors] of each matrix, the row of the list */
static void list_rows(struct sh_program *p, const struct sh_model *m, int *rows)
{
    int n = p->n_saved;

    for (int i = 0; i < n; i++)
        if (p->saved[i].trainable && sh_optim_takes(p, SH_RUNS_MATRICES, &p->saved[i])) {
            struct sh_saved s = rows_of(m, &p->saved[i]);

            rows[i] = sh_program_add_saved(p, &s);
        }
}

/* Those of a matrix that this rank has, or of its experts. */
static void add_moment(struct sh_program *p, const struct sh_param *of, int saved, int unit)
{
    struct sh_param param = *of;
    bool experts = of->ndim == 3;
    int64_t out = p->saved[saved].dim[experts];

    param.ndim = 1 + experts;
    param.dim[experts] = out;
    param.elems = experts ? param.dim[0] * out : out;
    param.unit = unit;
    param.unit_elems = p->units[unit].elems;
    param.saved = saved;
    sh_program_add_param(p, &param);
    p->units[unit].n_params++;
    p->units[unit].elems += param.elems;
}

static void add_unit(struct sh_program *p, int of, const int *rows)
{
    char name[SH_NAME_MAX];
    int unit;

    snprintf(name, sizeof name, "%.60s.%.16s", p->units[of].name, p->row_state);
    unit = sh_program_add_unit(p, name);
    for (int i = p->units[of].first_param; i < p->units[of].first_param + p->units[of].n_params; i++)
        if (sh_optim_has(p, SH_RUNS_MATRICES, &p->params[i])) {
            struct sh_param param = p->params[i];

            add_moment(p, &param, rows[param.saved], unit);
        }
    p->units[of].moments = unit;
    p->units[unit].of_rows = true;
    p->units[unit].shard = p->units[of].shard;
    p->units[unit].replicate = p->units[of].replicate;
    p->units[unit].split = p->units[of].split;
    p->units[unit].room = p->units[unit].others = p->units[unit].elems;
}

void sh_optim_add_moments(struct sh_program *p, const struct sh_optim *optim, const struct sh_model *m)
{
    int n = p->n_units, *rows;

    if (!optim->rows)
        return;
    snprintf(p->row_state, sizeof p->row_state, "%s", optim->rows);
    rows = sh_calloc((size_t)p->n_saved + 1, sizeof *rows);
    list_rows(p, m, rows);
    for (int u = 0; u < n; u++) {
        bool any = false;

        for (int i = p->units[u].first_param; i < p->units[u].first_param + p->units[u].n_params; i++)
            any |= sh_optim_has(p, SH_RUNS_MATRICES, &p->params[i]);
        if (any && sh_program_descends(&p->units[u]))
            add_unit(p, u, rows);
    }
    free(rows);
}

/* Room for the rows of the rank that owns most. */
void sh_optim_keep_moments(struct sh_program *p, int unit, int ranks)
{
    struct sh_unit *u = &p->units[unit];
    struct sh_tensor t;
    int64_t most = 1;

    for (int r = 0; r < ranks; r++) {
        int64_t n = p->cuts[u->first_cut + r + 1] - p->cuts[u->first_cut + r];

        most = n > most ? n : most;
    }
    u->chunk = u->held = most;
    t = sh_tensor_make(SH_MEM_OPTIM, SH_F32, 1, &most, "%.60s", u->name);
    t.persistent = true;
    u->compute = sh_program_add_tensor(p, &t);
}
