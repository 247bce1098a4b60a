#include "src/run/measure/claims.h"

#include "sherd_config.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/isa.h"
#include "src/base/mem.h"
#include "src/base/number/mixsum.h"
#include "src/program/saved.h"
#include "src/run/run.h"
#include "src/run/save/map.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 }; /* elements read at a time: whole blocks of states in codes */

struct sum {
    struct sh_run *r;
    float *piece;
    uint64_t total;
};

/* x: elements `range` of the unit, in state k. */
static void add(struct sum *s, int unit, int k, struct sh_range range, const float *x)
{
    const struct sh_program *p = s->r->p;
    const struct sh_unit *u = &p->units[unit];

    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &p->params[i];
        const char *name = sh_saved_of(p, param)->name;
        uint64_t seed = sh_mix64(sh_mix64(sh_hash64(name, strlen(name)) ^ (uint64_t)s->r->step) + (uint64_t)k);
        struct sh_range cut = sh_map_cut(range, param);

        for (int64_t at = cut.begin; at < cut.end;) {
            struct sh_rng_runs run = sh_saved_run(p, param, at - param->unit_elems, cut.end - at);
            struct sh_floats here = {.whole = (float *)x + at - range.begin};

            s->total += sh_mixsum(here, run.n, seed + (uint64_t)run.first * SH_MIXSUM_STEP);
            at += run.n;
        }
    }
}

/* A state that elements lack is 0: with states in a file they have it. */
static void look(const struct sh_map_stretch *stretch, void *arg)
{
    struct sum *s = arg;

    for (int k = 0; k < s->r->map->n_states; k++) {
        bool none = sh_floats_none(stretch->state[k]);

        if (none && !sh_map_lacks(s->r->p, stretch->unit, k, stretch->range.begin))
            continue;
        for (struct sh_range at = stretch->range; at.begin < stretch->range.end; at.begin = at.end) {
            at.end = at.begin + PIECE < stretch->range.end ? at.begin + PIECE : stretch->range.end;
            if (none)
                memset(s->piece, 0, PIECE * sizeof *s->piece);
            else
                sh_exec_get_floats(s->r->exec, s->piece,
                                   sh_floats_at(stretch->state[k], at.begin - stretch->range.begin), at.end - at.begin);
            add(s, stretch->unit, k, at, s->piece);
        }
    }
}

/* Replicas share the state as they share the writing of a checkpoint. */
static sh_rc add_up(struct sum *s)
{
    const struct sh_map *map = s->r->map;

    for (int i = 0; i < s->r->p->n_units; i++)
        if (s->r->p->units[i].trainable)
            SH_TRY(sh_map_visit(s->r, i, map->unit[i].written, (1U << map->n_states) - 1, false, look, s));
    return SH_OK;
}

/* Append a line; `line` is given up. */
static sh_rc append(const struct sh_run *r, json_t *line)
{
    char *path = sh_path_join(r->folder, SH_CLAIMS_FILE);
    FILE *out = NULL;
    sh_rc rc = sh_open_output(path, "a", &out);
    bool failed = false;

    if (rc == SH_OK) {
        failed = json_dumpf(line, out, JSON_COMPACT) != 0;
        failed = fputc('\n', out) == EOF || failed;
        failed = fclose(out) != 0 || failed;
    }
    if (failed)
        rc = sh_fail(SH_E_DATA, "write %s: %s", path, strerror(errno));
    json_decref(line);
    free(path);
    return rc;
}

sh_rc sh_claims_begin(const struct sh_run *r)
{
    char config[SH_CONFIG_DIGEST] = "", instructions[SH_ISA_TEXT];

    if (!r->cfg.metrics.state_digest_every)
        return SH_OK;
    SH_TRY(sh_config_digest(&r->cfg, config));
    sh_isa_describe(instructions);
    return append(r,
                  json_pack("{s:i, s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:s, s:s?}", "claims", 1, "version",
                            PACKAGE_VERSION, "built_with", SHERD_BUILT_WITH, "device", r->device->name, "instructions",
                            instructions, "reproducible", r->p->tree_sums, "ranks", sh_mesh_ranks(&r->mesh->shape),
                            "local_batch_size", r->build.batch.batch, "config", config, "data", r->provenance.data));
}

bool sh_claims_due(const struct sh_run *r, int64_t step)
{
    int64_t every = r->cfg.metrics.state_digest_every;

    return every && step % every == 0;
}

sh_rc sh_claims_step(struct sh_run *r)
{
    struct sum s = {.r = r, .piece = sh_calloc(PIECE, sizeof *s.piece)};
    sh_rc rc = sh_agree(add_up(&s));
    long long total = (long long)s.total;
    char digest[17];

    free(s.piece);
    if (rc == SH_OK)
        rc = sh_mesh_sum_i64(&total, 1);
    SH_TRY(rc);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)total);
    return sh_agree(
        r->mesh->rank == 0 ? append(r, json_pack("{s:I, s:s}", "step", (json_int_t)r->step, "digest", digest)) : SH_OK);
}
