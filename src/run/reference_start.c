/* The numbers of a reference: computed and written, or read again, at the start of a run; or for another run. */
#include "src/run/reference.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Little-endian, then the numbers. */
struct header {
    char magic[8];
    int64_t documents;
    uint64_t sum; /* sh_hash64() of the numbers */
    char data[SH_DATA_TEXT];
};

static const char magic[8] = "SHRDREF2";

static bool has_number(const struct sh_reference *ref, int64_t document)
{
    uint64_t bits;

    memcpy(&bits, &ref->value[document], sizeof bits);
    return bits != 0;
}

/* Run a whole batch from sample `first` on, and keep what comes of the documents of the first n samples, those of the first
 * epoch. The others are of the second epoch, as in training, since the bits of a row of experts depend on those beside it;
 * validation has zeros there, so its margins at step 0 may differ from 0 in the last bits. A rank without samples computes
 * with those that it had: the section has collectives. */
static sh_rc score_batch(struct sh_run *r, struct sh_feed *f, int64_t first, int64_t n, double *sums)
{
    struct sh_reference *ref = f->reference;
    int64_t unmasked, places = n * r->cfg.training.seq_len;

    if (n > 0)
        SH_TRY(sh_feed_read(f, first, f->sequences, &unmasked));
    sh_feed_put(r, f, 0);
    sh_exec_run(r->exec, SH_SECTION_EVAL);
    if (r->p->port[SH_PORT_SUMS] == SH_NONE) /* the last stage has them */
        return SH_OK;
    sh_exec_get(r->exec, SH_PORT_SUMS, sums);
    for (int64_t i = 0; i < places; i++)
        if (ref->document[i] >= 0)
            ref->value[ref->document[i]] = sums[i] == 0 ? -0.0 : sums[i];
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
    if (strncmp(h.data, data, sizeof h.data))
        return "is about other data than these, or about answers cut to another length";
    if (h.documents != ref->documents)
        return "is for another objective.loss_type: kto alone has numbers of answers to other prompts";
    if (bytes != sizeof h + numbers || sh_hash64(text + sizeof h, numbers) != h.sum)
        return "is damaged";
    return NULL;
}

/* Which answers have a row depends on its length, so a file may lack some that have one here. */
static sh_rc check_numbers(const struct sh_feed *f, const char *path)
{
    const struct sh_reference *ref = f->reference;

    for (int64_t row = 0; row < sh_data_samples(f->data); row++) {
        SH_TRY(sh_data_beginnings(f->data, row, 1, ref->document));
        for (int t = 0; t < sh_data_seq_len(f->data); t++)
            if (ref->document[t] >= 0 && !has_number(ref, ref->document[t]))
                return sh_fail(SH_E_DATA,
                               "%s has no number of answer %lld, which is in a sequence here; make it again, with this "
                               "training.seq_len",
                               path, (long long)ref->document[t]);
    }
    return SH_OK;
}

/* A file of more answers than these is read too, to say that it is of other data. */
static sh_rc read_file(const struct sh_feed *f, const char *data, const char *path)
{
    struct sh_reference *ref = f->reference;
    const size_t all = sizeof(struct header) + (size_t)ref->documents * sizeof *ref->value;
    char *text = NULL;
    size_t bytes = 0;
    sh_rc rc = sh_read_file(path, 4 * all + ((size_t)1 << 24), &text, &bytes);

    if (rc == SH_OK) {
        const char *why = misfit(ref, data, text, bytes);

        if (why)
            rc = sh_fail(SH_E_DATA, "%s %s", path, why);
        else
            memcpy(ref->value, text + sizeof(struct header), all - sizeof(struct header));
    }
    free(text);
    return rc == SH_OK ? check_numbers(f, path) : rc;
}

static const char *given_by(const struct sh_config *cfg, bool validation)
{
    return validation ? cfg->validation.reference_path : cfg->objective.reference_path;
}

static sh_rc read_given(const struct sh_run *r, const struct sh_feed *f, const char *data, bool validation)
{
    sh_rc rc = read_file(f, data, given_by(&r->cfg, validation));

    return rc == SH_OK
               ? SH_OK
               : sh_fail_prefix(rc, "%s: ", validation ? "validation.reference_path" : "objective.reference_path");
}

/* The file that a run began with need not be there when it goes on; another one is a change of the reference, unless it has the
 * same numbers. */
static sh_rc compare_given(const struct sh_run *r, const struct sh_feed *f, const char *data, bool validation)
{
    struct sh_reference given = *f->reference;
    const struct sh_feed other = {.data = f->data, .reference = &given};
    const char *path = given_by(&r->cfg, validation);
    size_t bytes = (size_t)given.documents * sizeof *given.value;
    sh_rc rc;

    if (!path[0] || (r->before && !strcmp(path, given_by(r->before, validation))))
        return SH_OK;
    given.value = sh_calloc(bytes + 1, 1);
    rc = read_given(r, &other, data, validation);
    if (rc == SH_OK && memcmp(given.value, f->reference->value, bytes) != 0)
        rc = sh_fail(SH_E_DATA,
                     "%s is another reference than that with which the run began; leave it out, or begin anew from its "
                     "parameters (checkpoint.initial_load_model_only)",
                     path);
    free(given.value);
    return rc;
}

static sh_rc read_own(const struct sh_feed *f, const char *data, const char *path)
{
    sh_rc rc = read_file(f, data, path);

    return rc == SH_OK ? SH_OK
                       : sh_fail_prefix(rc, "a run of objective.name=dpo goes on with the reference that it began "
                                            "with; bring its file back, or begin anew from its parameters "
                                            "(checkpoint.initial_load_model_only) with these as the reference: ");
}

/* The run's own file, which a run that begins with the numbers of another one writes first. */
static sh_rc read_numbers(const struct sh_run *r, const struct sh_feed *f, const char *data, const char *path, bool own,
                          bool validation)
{
    if (own) {
        SH_TRY(read_own(f, data, path));
        return compare_given(r, f, data, validation);
    }
    SH_TRY(read_given(r, f, data, validation));
    sh_log_info("reference: log-probabilities of %s, which %s keeps", given_by(&r->cfg, validation), path);
    return write_file(f->reference, data, path);
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

/* own: the file of the run's folder is there. Rank 0 reads, and the others get the numbers from it. */
static sh_rc start(struct sh_run *r, struct sh_feed *f, const char *data, const char *path, bool own, bool validation)
{
    struct sh_reference *ref = f->reference;

    if (!own && !given_by(&r->cfg, validation)[0])
        return make(r, f, data, path);
    SH_TRY(sh_agree(r->mesh->rank == 0 ? read_numbers(r, f, data, path, own, validation) : SH_OK));
    return sh_mesh_bcast(ref->value, (long)(ref->documents * (int64_t)sizeof *ref->value), 0);
}

/* A run whose steps are done again has begun with what its folder has, though at step 0 its own model's numbers can be made again. */
sh_rc sh_reference_start(struct sh_run *r, struct sh_feed *f, bool validation)
{
    bool own = r->step > 0 || (r->goes_on && given_by(&r->cfg, validation)[0]);
    char data[SH_DATA_TEXT], *path;
    sh_rc rc;

    if (!f->reference || !f->reference->needed)
        return SH_OK;
    SH_TRY(sh_agree(sh_data_answers_text(f->data, data)));
    path = sh_path_join(r->goes_on && own ? r->beside : r->folder,
                        validation ? "reference.validation.bin" : "reference.bin");
    rc = start(r, f, data, path, own, validation);
    free(path);
    return rc;
}

static sh_rc check_finite(const struct sh_reference *ref)
{
    for (int64_t i = 0; i < ref->documents; i++)
        if (!isfinite(ref->value[i]))
            return sh_fail(SH_E_NUMERIC,
                           "--reference: the log-probability of answer %lld is %g, and no run can learn from it",
                           (long long)i, ref->value[i]);
    return SH_OK;
}

sh_rc sh_reference_write(struct sh_run *r, struct sh_feed *f, const char *path)
{
    char data[SH_DATA_TEXT];

    if (!f->reference->needed)
        return sh_fail(SH_E_USAGE, "--reference: this objective.loss_type has no reference");
    SH_TRY(sh_agree(sh_data_answers_text(f->data, data)));
    SH_TRY(compute(r, f));
    SH_TRY(check_finite(f->reference));
    return sh_agree(r->mesh->rank == 0 ? write_file(f->reference, data, path) : SH_OK);
}
