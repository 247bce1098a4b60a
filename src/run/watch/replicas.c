#include "src/run/watch/replicas.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/job/job.h"
#include "src/run/kept/kept.h"
#include "src/run/run.h"
#include "src/run/save/map.h"
#include "src/run/save/scan.h"

#include <stdlib.h>
#include <string.h>

enum { HOST_WORDS = 8 };

/* The states of a unit that are compared: those that are saved, and as the last the remainder of the parameters. */
static int n_states(const struct sh_run *r)
{
    return r->map->n_states + 1;
}

/* Name of a state in a report; must name what look() reads. */
static const char *state_name(const struct sh_run *r, int state)
{
    return state == r->map->n_states ? "remainder" : r->map->name[state];
}

static int n_hashes(const struct sh_run *r)
{
    return r->p->n_units * n_states(r);
}

/* One hash for each state of each unit, in the order [unit][state]; frozen units have none, because frozen.c watches
 * them. */
struct hashes {
    const struct sh_run *r;
    struct sh_scan *scan;
    uint64_t *hash;
};

/* Parameters are hashed in the form that is computed with, and their remainder separately. In float16 the masters are
 * hashed, from which each update makes the compute copies again. Stretches are the same on all replicas. */
static void look(const struct sh_map_stretch *s, void *arg)
{
    const struct hashes *h = arg;
    int64_t first = s->range.begin - h->r->map->unit[s->unit].owned.begin, n = s->range.end - s->range.begin;

    for (int k = 0; k < n_states(h->r); k++) {
        bool low = k == h->r->map->n_states;
        struct sh_floats f = s->state[low ? SH_CKPT_MODEL : k];
        const void *data = sh_floats_array(f, low);

        if (data)
            sh_scan_sum(h->scan, data, sh_floats_bytes(f, n), first, &h->hash[s->unit * n_states(h->r) + k]);
    }
}

/* The hash of all hashes. It depends on their order; two swapped states give another one. */
static uint64_t hash_all(const struct sh_run *r, uint64_t *hash)
{
    struct hashes h = {.r = r, .scan = sh_scan_open(r), .hash = hash};
    uint64_t all = 0;

    sh_map_visit_all(r, false, look, &h);
    sh_scan_close(h.scan);
    for (int i = 0; i < n_hashes(r); i++)
        all = sh_mix64(all ^ hash[i]) + 1;
    return all;
}

static int n_replicas(const struct sh_run *r)
{
    return sh_group_size(&r->mesh->shape, r->mesh->shape.replicate);
}

static int own_replica(const struct sh_run *r)
{
    return sh_group_index(&r->mesh->shape, r->mesh->shape.replicate);
}

/* Collective on the replicate stream, which is idle between steps, and waited for at once. */
static sh_rc collect(struct sh_run *r, struct sh_coll coll)
{
    int64_t ticket;

    coll.stream = SH_STREAM_REPLICATE;
    coll.label = "replicas";
    SH_TRY(sh_comm_start(r->comm, &coll, &ticket));
    return sh_comm_wait(r->comm, ticket);
}

static sh_rc gather(struct sh_run *r, const uint64_t *mine, int64_t words, uint64_t *all)
{
    return collect(r, (struct sh_coll){.kind = SH_OP_ALL_GATHER,
                                       .group = r->mesh->shape.replicate,
                                       .dtype = SH_I64,
                                       .send = mine,
                                       .recv = all,
                                       .count = words});
}

/* Whether the replicas of any shard differ: all ranks learn it. */
static sh_rc any_differ(struct sh_run *r, uint64_t mine, uint64_t *all, bool *differ)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    double different = 0;

    SH_TRY(gather(r, &mine, 1, all));
    /* Count of replicas of this shard that differ from this rank. It is 0 on all of them or on none. */
    for (int i = 0; i < n_replicas(r); i++)
        different += all[i] != mine;
    /* Over all shards, so that every rank takes the same branch after it and none waits in a collective alone. */
    SH_TRY(collect(
        r, (struct sh_coll){
               .kind = SH_OP_ALL_REDUCE, .group = sh_group_world(m), .dtype = SH_F64, .recv = &different, .count = 1}));
    *differ = different > 0;
    return SH_OK;
}

/* What a rank tells its replicas once it is known that some differ: its hashes, and its node. */
struct details {
    int n_replicas, n_hashes, words;
    uint64_t *all; /* [n_replicas][words] */
    bool *outlier; /* [n_replicas] */
};

static const uint64_t *of_replica(const struct details *d, int i)
{
    return d->all + (int64_t)i * d->words;
}

/* Send the hashes and host name of each replica to all of them. This happens only after a difference, so its size does
 * not matter. */
static sh_rc gather_details(struct sh_run *r, const uint64_t *hash, struct details *d)
{
    uint64_t *mine = sh_calloc((size_t)d->words, sizeof *mine);
    sh_rc rc;

    memcpy(mine, hash, (size_t)d->n_hashes * sizeof *mine);
    snprintf((char *)(mine + d->n_hashes), HOST_WORDS * sizeof *mine, "%s", r->mesh->host);
    rc = gather(r, mine, d->words, d->all);
    free(mine);
    return rc;
}

/* Print "layers.1 remainder, layers.2 parameters and 7 more": the states of the outlier that differ from the first
 * replica that is not an outlier, or from the first other replica if all are. */
static void print_differences(const struct sh_run *r, const struct details *d, int outlier, FILE *out)
{
    enum { SHOWN = 2 };
    int other = outlier == 0, n = 0;

    for (int i = d->n_replicas - 1; i >= 0; i--)
        if (!d->outlier[i])
            other = i;
    for (int i = 0; i < d->n_hashes; i++)
        if (of_replica(d, outlier)[i] != of_replica(d, other)[i] && n++ < SHOWN)
            fprintf(out, "%s%s %s", n > 1 ? ", " : "", r->p->units[i / n_states(r)].name,
                    state_name(r, i % n_states(r)));
    if (n > SHOWN)
        fprintf(out, " and %d more", n - SHOWN);
}

/* At most four ranks by name, so that the line stays a line on a thousand ranks. */
static void print_ranks(const struct sh_run *r, const struct details *d, FILE *out)
{
    enum { SHOWN = 4 };
    int n = 0;

    for (int i = 0; i < d->n_replicas; i++)
        if (d->outlier[i] && n++ < SHOWN)
            fprintf(out, "%srank %d on %s", n > 1 ? ", " : "",
                    sh_group_member(&r->mesh->shape, r->mesh->shape.replicate, i),
                    (const char *)(of_replica(d, i) + d->n_hashes));
    if (n > SHOWN)
        fprintf(out, " and %d more", n - SHOWN);
}

/* Compose the error of a replica that differs: who, from how many, in what, and what to do. It uses open_memstream
 * because the length is not known in advance. */
static sh_rc report_outlier(const struct sh_run *r, const struct details *d, int n_outliers)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    sh_rc rc;

    if (!out)
        return sh_fail(SH_E_REPLICA, "step %lld: replicas differ; no memory to say more", (long long)r->step);
    fprintf(out, "step %lld: ", (long long)r->step);
    print_ranks(r, d, out);
    if (n_outliers < d->n_replicas)
        fprintf(out, n_outliers == 1 ? " differs from the %d other replicas: " : " differ from the %d other replicas: ",
                d->n_replicas - n_outliers);
    else
        fprintf(out, " should be replicas and differ: ");
    print_differences(r, d, own_replica(r), out);
    fprintf(out, "; memory or a processor has failed silently: leave %s out and continue from the newest checkpoint",
            n_outliers == 1 ? "that node" : "those nodes");
    fclose(out);
    sh_kept_accuse(r, r->step);
    rc = sh_fail(SH_E_REPLICA, "%s", text);
    free(text);
    return rc;
}

/* The outliers fail, so that the line comes from one of them. */
static sh_rc judge(const struct sh_run *r, const uint64_t *whole, struct details *d)
{
    int n_outliers = sh_job_outliers(d->n_replicas, whole, d->outlier);

    return d->outlier[own_replica(r)] ? report_outlier(r, d, n_outliers) : SH_OK;
}

/* Collective, in the replicate group and then over all ranks (sh_agree). All ranks of a shard with equal replicas pass
 * through it with no rank to accuse. */
static sh_rc name_outliers(struct sh_run *r, const uint64_t *hash, const uint64_t *whole)
{
    struct details d = {.n_replicas = n_replicas(r), .n_hashes = n_hashes(r), .words = n_hashes(r) + HOST_WORDS};
    sh_rc rc;

    d.all = sh_calloc((size_t)d.n_replicas * (size_t)d.words, sizeof *d.all);
    d.outlier = sh_calloc((size_t)d.n_replicas, sizeof *d.outlier);
    rc = gather_details(r, hash, &d);
    if (rc == SH_OK)
        rc = sh_agree(judge(r, whole, &d));
    free(d.all);
    free(d.outlier);
    return rc;
}

/* Collective. One word a rank in the normal case, and a second round with all hashes only when a difference is known.
 */
sh_rc sh_replicas_compare(struct sh_run *r)
{
    int n = n_replicas(r);
    uint64_t *hash, *whole;
    bool differ;
    sh_rc rc;

    if (n == 1)
        return SH_OK;
    hash = sh_calloc((size_t)n_hashes(r), sizeof *hash);
    whole = sh_calloc((size_t)n, sizeof *whole);
    rc = any_differ(r, hash_all(r, hash), whole, &differ);
    if (rc == SH_OK && differ)
        rc = name_outliers(r, hash, whole);
    free(hash);
    free(whole);
    return rc;
}
