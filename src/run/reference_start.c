/* The numbers of a reference at the start of a run: computed and written, or read again. */
#include "src/run/reference.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

/* Little-endian, then the numbers. */
struct header {
    char magic[8];
    int64_t documents;
    uint64_t sum; /* sh_hash64() of the numbers */
    char data[SH_DATA_TEXT];
};

static const char magic[8] = "SHRDREF1";

/* Run samples [first, first + n) of the first epoch, and keep what comes of their documents if n > 0. A rank without
 * samples computes with those that it had: the section has collectives. */
static sh_rc score_batch(struct sh_run *r, struct sh_feed *f, int64_t first, int64_t n, double *sums)
{
    struct sh_reference *ref = f->reference;
    int64_t unmasked, places = n * r->cfg.training.seq_len;

    if (n > 0)
        SH_TRY(sh_feed_read(f, first, n, &unmasked));
    sh_feed_put(r, f, 0);
    sh_exec_run(r->exec, SH_SECTION_EVAL);
    if (r->p->port[SH_PORT_SUMS] == SH_NONE) /* the last stage has them */
        return SH_OK;
    sh_exec_get(r->exec, SH_PORT_SUMS, sums);
    for (int64_t i = 0; i < places; i++)
        if (ref->document[i] >= 0)
            ref->value[ref->document[i]] = sums[i];
    return SH_OK;
}

/* Each number is from one rank, and 0 on the others, so the sum of their bits as integers has its bits. */
static sh_rc share(struct sh_reference *ref)
{
    enum { SOME = 1 << 20 };
    long long *bits = sh_calloc(SOME, sizeof *bits);
    sh_rc rc = SH_OK;

    for (int64_t first = 0; first < ref->documents && rc == SH_OK; first += SOME) {
        int64_t left = ref->documents - first;
        size_t n = (size_t)(left < SOME ? left : SOME);

        memcpy(bits, ref->value + first, n * sizeof *bits);
        rc = sh_mesh_sum_i64(bits, (int)n);
        memcpy(ref->value + first, bits, n * sizeof *bits);
    }
    free(bits);
    return rc;
}

/* In the order of the first epoch, so that each sequence has the neighbours that it has in its step: the bits of a row
 * may depend on its place in the batch. Reading zeros as the reference changes no sum. */
static sh_rc compute(struct sh_run *r, struct sh_feed *f)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    int64_t each = f->sequences, pass = each * sh_group_size(m, m->data), own = each * sh_group_index(m, m->data);
    int64_t all = sh_data_samples(f->data);
    double *sums = sh_calloc((size_t)(each * r->cfg.training.seq_len), sizeof *sums);

    for (int64_t first = 0; first < all; first += pass) {
        int64_t at = first + own, n = all - at < each ? all - at : each;
        sh_rc rc = score_batch(r, f, at, n > 0 ? n : 0, sums);

        if (rc != SH_OK)
            sh_stop(rc);
    }
    free(sums);
    return share(f->reference);
}

static sh_rc write_file(const struct sh_reference *ref, const char *data, const char *path)
{
    size_t bytes = (size_t)ref->documents * sizeof *ref->value;
    struct header h = {.documents = ref->documents, .sum = sh_hash64(ref->value, bytes)};
    char *text = sh_calloc(sizeof h + bytes, 1);
    sh_rc rc;

    memcpy(h.magic, magic, sizeof magic);
    snprintf(h.data, sizeof h.data, "%s", data);
    memcpy(text, &h, sizeof h);
    memcpy(text + sizeof h, ref->value, bytes);
    rc = sh_write_file_atomic(path, text, sizeof h + bytes);
    free(text);
    return rc;
}

/* Why the bytes of a file are not this reference; NULL: they are. */
static const char *misfit(const struct sh_reference *ref, const char *data, const char *text, size_t bytes)
{
    size_t numbers = (size_t)ref->documents * sizeof *ref->value;
    struct header h;

    if (bytes < sizeof h || memcmp(text, magic, sizeof magic))
        return "is no file of reference log-probabilities";
    memcpy(&h, text, sizeof h);
    if (h.documents != ref->documents || strncmp(h.data, data, sizeof h.data))
        return "is about other data than these";
    if (bytes != sizeof h + numbers || sh_hash64(text + sizeof h, numbers) != h.sum)
        return "is damaged";
    return NULL;
}

static sh_rc read_file(struct sh_reference *ref, const char *data, const char *path)
{
    const size_t most = sizeof(struct header) + (size_t)ref->documents * sizeof *ref->value;
    char *text = NULL;
    size_t bytes = 0;
    sh_rc rc = sh_read_file(path, most, &text, &bytes);

    if (rc == SH_OK) {
        const char *why = misfit(ref, data, text, bytes);

        if (why)
            rc = sh_fail(SH_E_DATA, "%s %s", path, why);
        else
            memcpy(ref->value, text + sizeof(struct header), most - sizeof(struct header));
    }
    free(text);
    return rc == SH_OK ? SH_OK
                       : sh_fail_prefix(rc, "a run of objective.name=dpo goes on with the reference that it began "
                                            "with; bring its file back, or begin anew from its parameters "
                                            "(checkpoint.initial_load_model_only) with these as the reference: ");
}

/* Rank 0 has the file; the others get the numbers from it. */
static sh_rc load(struct sh_run *r, struct sh_reference *ref, const char *data, const char *path)
{
    SH_TRY(sh_agree(r->mesh->rank == 0 ? read_file(ref, data, path) : SH_OK));
    return sh_mesh_bcast(ref->value, (long)(ref->documents * (int64_t)sizeof *ref->value), 0);
}

static sh_rc make(struct sh_run *r, struct sh_feed *f, const char *data, const char *path)
{
    int64_t begin = sh_now_ns();
    char answers[SH_STR_SHORT], took[SH_STR_SHORT];

    SH_TRY(compute(r, f));
    SH_TRY(sh_agree(r->mesh->rank == 0 ? write_file(f->reference, data, path) : SH_OK));
    if (r->mesh->rank == 0)
        sh_log_info("reference: log-probabilities of %s in %s, in %s",
                    sh_str_plural(f->reference->documents, "answer", answers), path,
                    sh_str_duration(sh_seconds_since(begin), took));
    return SH_OK;
}

sh_rc sh_reference_start(struct sh_run *r, struct sh_feed *f, const char *name)
{
    char data[SH_DATA_TEXT], *path;
    sh_rc rc;

    if (!f->reference || !f->reference->needed)
        return SH_OK;
    SH_TRY(sh_agree(sh_data_text(f->data, data)));
    path = sh_path_join(r->goes_on && r->step > 0 ? r->beside : r->folder, name);
    rc = r->step > 0 ? load(r, f->reference, data, path) : make(r, f, data, path);
    free(path);
    return rc;
}
