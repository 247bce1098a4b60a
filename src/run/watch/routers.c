#include "src/run/watch/routers.h"

#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t loads_end(const struct sh_routers *s)
{
    return SH_ROUTER_LOSSES + (int64_t)s->blocks * s->experts;
}

/* The numbers of the port that the program writes. */
static void find_own(struct sh_routers *s, const struct sh_program *p, int port, int64_t numbers)
{
    s->own = sh_calloc((size_t)numbers, sizeof *s->own);
    for (int i = 0; i < p->n_ops; i++) {
        int out = p->ops[i].out[0];

        if (p->ops[i].phase == SH_PHASE_UPDATE || out == SH_NONE || sh_tensor_root(p, out) != port)
            continue;
        for (int64_t k = 0; p->tensors[out].base != SH_NONE && k < sh_tensor_elems(&p->tensors[out]); k++)
            s->own[p->tensors[out].base_elems + k] = true;
    }
}

void sh_routers_open(struct sh_routers *s, const struct sh_run *r)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    int port = r->p->port[SH_PORT_ROUTERS];
    int64_t numbers = port == SH_NONE ? 0 : r->p->tensors[port].dim[0];

    *s = (struct sh_routers){0};
    if (!numbers)
        return;
    s->blocks = sh_family_blocks_with_experts(&r->cfg.model, r->cfg.model.n_layers);
    s->experts = r->cfg.model.n_experts;
    s->sums = sh_calloc((size_t)numbers, sizeof *s->sums);
    s->waves = (int)(numbers - loads_end(s)) / SH_ROUTER_WAVE;
    s->largest = sh_calloc((size_t)s->blocks, sizeof *s->largest);
    s->spread = sh_calloc((size_t)s->blocks, sizeof *s->spread);
    if (sh_group_size(m, m->pipeline) > 1)
        find_own(s, r->p, port, numbers);
}

void sh_routers_close(struct sh_routers *s)
{
    free(s->sums);
    free(s->largest);
    free(s->spread);
    free(s->own);
}

void sh_routers_begin(struct sh_routers *s, struct sh_run *r)
{
    int64_t numbers = s->own ? r->p->tensors[r->p->port[SH_PORT_ROUTERS]].dim[0] : 0;

    if (!numbers)
        return;
    sh_exec_get(r->exec, SH_PORT_ROUTERS, s->sums);
    for (int64_t i = 0; i < numbers; i++)
        s->sums[i] = s->own[i] ? s->sums[i] : 0;
    sh_exec_put(r->exec, SH_PORT_ROUTERS, s->sums);
}

/* Without losses there is nothing whose sum depends on its order. */
static bool has_losses(const struct sh_run *r)
{
    return r->cfg.moe.aux_loss_coeff != 0 || r->cfg.moe.z_loss_coeff != 0;
}

void sh_routers_add(struct sh_routers *s, struct sh_run *r)
{
    if (!s->blocks || !has_losses(r))
        return;
    sh_exec_get(r->exec, SH_PORT_ROUTERS, s->sums);
    for (int i = 0; i < SH_ROUTER_LOSSES; i++)
        sh_tree_add(&s->losses[i], s->sums[i]);
}

void sh_routers_total(struct sh_routers *s, struct sh_run *r)
{
    if (!s->blocks || !has_losses(r))
        return;
    for (int i = 0; i < SH_ROUTER_LOSSES; i++) {
        s->sums[i] = sh_tree_total(&s->losses[i]);
        s->losses[i] = (struct sh_tree){0};
    }
    sh_exec_put(r->exec, SH_PORT_ROUTERS, s->sums);
}

/* The largest load over the mean, and the entropy of the shares over that of equal ones: both are 1 if all experts have
 * the same load. A single expert has no entropy. */
static void measure(const double *load, int n, double *largest, double *spread)
{
    double sum = 0, most = 0, entropy = 0;

    for (int e = 0; e < n; e++) {
        sum += load[e];
        most = fmax(most, load[e]);
    }
    for (int e = 0; e < n; e++)
        entropy -= load[e] > 0 ? load[e] / sum * log(load[e] / sum) : 0;
    *largest = most * n / sum;
    *spread = n > 1 ? entropy / log(n) : 1;
}

/* Each rank counts each wave of each block and micro-step that has rows, and what the busiest rank of its group does in
 * it. The loads are the rows of all ranks. */
static void measure_waves(const struct sh_routers *s, struct sh_router_metrics *out)
{
    const double *wave = s->sums + loads_end(s), *first = wave;
    double rows = 0, used = 0, most = 0;

    for (const double *load = s->sums + SH_ROUTER_LOSSES; load < first; load++)
        rows += *load;
    for (int w = 0; w < s->waves; w++, wave += SH_ROUTER_WAVE) {
        out->waves += wave[SH_ROUTER_USED] > 0;
        used += wave[SH_ROUTER_USED];
        most += wave[SH_ROUTER_ROWS];
    }
    out->mean_waves = used / first[SH_ROUTER_USED];
    out->busiest = most / rows;
}

void sh_routers_take(struct sh_routers *s, struct sh_run *r, int64_t tokens, struct sh_router_metrics *out)
{
    if (!s->blocks)
        return;
    sh_exec_get(r->exec, SH_PORT_ROUTERS, s->sums);
    *out = (struct sh_router_metrics){.blocks = s->blocks,
                                      .has_aux = r->cfg.moe.aux_loss_coeff != 0,
                                      .has_z = r->cfg.moe.z_loss_coeff != 0,
                                      .aux = s->sums[SH_ROUTER_AUX] / (double)tokens,
                                      .z = s->sums[SH_ROUTER_Z] / (double)tokens,
                                      .largest = s->largest,
                                      .spread = s->spread};
    for (int i = 0; i < s->blocks; i++) {
        measure(s->sums + SH_ROUTER_LOSSES + (int64_t)i * s->experts, s->experts, &s->largest[i], &s->spread[i]);
        out->most = fmax(out->most, s->largest[i]);
    }
    if (s->waves)
        measure_waves(s, out);
}
