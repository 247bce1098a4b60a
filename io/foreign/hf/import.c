/* Converts a folder of transformers or a state folder into a checkpoint of Sherd: a save by one process of tensors that are in the
 * folder. Memory is needed for only a few blocks, whatever the size of the model. */
#include "io/foreign/hf/import.h"

#include "io/foreign/hf/names.h"
#include "io/foreign/hf/state.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <sys/stat.h>

/* The files of one state, with what they have for the model. */
struct source {
    char *name; /* of the folder and the state, for messages */
    struct sh_st_index index;
    struct sh_hf_match match;
    struct sh_hf_files files;
};

struct import {
    const char *from;
    const struct sh_hf_import_options *options;
    struct source source[SH_HF_STATES];
    int n; /* states that the folder has */
};

static sh_rc match_source(const char *from, int state, const char *family, const struct sh_ckpt_set *set,
                          struct source *s)
{
    s->name = state == 0 ? sh_strdup(from) : sh_strfmt("%s (%s)", from, sh_hf_state_stem[state]);
    SH_TRY(sh_st_index_read_stem(from, sh_hf_state_stem[state], &s->index));
    SH_TRY(sh_hf_match(s->name, &s->index, set, family, false, &s->match));
    return SH_OK;
}

static void close_source(struct source *s)
{
    sh_hf_files_close(&s->files);
    sh_hf_match_free(&s->match);
    sh_st_index_free(&s->index);
    free(s->name);
}

static sh_rc open_files(const struct import *m, struct source *s)
{
    sh_hf_files_make(&s->files, m->from, &s->index);
    for (int64_t i = 0; i < s->index.n_files; i++)
        SH_TRY(sh_ckpt_trusted(s->files.path[i], m->options->trust));
    SH_TRY(sh_hf_files_open_all(&s->files));
    return sh_hf_copy_compare(s->name, &s->match, &s->files, 0, 1);
}

/* The square root of a negative one would be the first update. */
static sh_rc check_squares(const struct source *s, int piece, int64_t at, int64_t n, const float *x)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] < 0)
            return sh_fail(SH_E_DATA, "%s: element %lld of %s is negative; a mean of squares is not", s->name,
                           (long long)(at + i), s->match.entry[s->match.spread.first[piece]]->name);
    return SH_OK;
}

/* Called from several threads: it changes no shared data. Weights that are not finite may be wanted; moments never. */
static sh_rc get(void *arg, int piece, int s, int64_t at, int64_t n, float *to)
{
    struct import *m = arg;
    const char *cure = s > 0 ? "" : m->options->allow_nan ? NULL : "; --allow-nan takes it as it is";
    SH_TRY(sh_hf_match_read(&m->source[s].match, &m->source[s].files, piece, at, n, cure, to));
    return s == SH_HF_STATES - 1 ? check_squares(&m->source[s], piece, at, n, to) : SH_OK;
}

/* lstat(): a dangling link would be in the way, too. */
static sh_rc refuse_existing(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s exists already; name another folder, or delete it", path);
}

static sh_rc save(struct import *m, const struct sh_ckpt_set *model, const struct sh_ckpt_meta *meta,
                  const char *folder)
{
    const struct sh_ckpt_options options = {
        .io_method = SH_IO_DIRECT, .verify = SH_VERIFY_DISK, .hints = "", .threads = 4};
    struct sh_ckpt_set set = *model;
    int64_t bytes;
    set.far = &(struct sh_ckpt_far){.get = get, .arg = m};
    for (int s = m->n; s < set.states.n; s++)
        set.zero[s] = true; /* as before the first step */
    struct sh_ckpt_piece *pieces = sh_ckpt_pieces_far(&set);
    sh_rc rc = sh_ckpt_save(folder, &set, meta, &options, &bytes);
    free(pieces);
    return rc;
}

/* Everything is matched before the first byte is written. */
static sh_rc import(struct import *m, const char *family, const struct sh_ckpt_set *set,
                    const struct sh_ckpt_meta *meta, const char *folder, const char *path)
{
    struct sh_ckpt_lock *lock = NULL;
    for (int i = 0; i < m->n; i++)
        SH_TRY(match_source(m->from, i, family, set, &m->source[i]));
    for (int i = 0; i < m->n; i++)
        SH_TRY(open_files(m, &m->source[i]));
    SH_TRY(sh_ckpt_lock(folder, &lock));
    sh_rc rc = refuse_existing(path);
    if (rc == SH_OK)
        rc = save(m, set, meta, folder);
    sh_ckpt_unlock(lock);
    return rc;
}

/* Everything is freed here, also after a failure. */
sh_rc sh_hf_import(const char *from, const char *family, const struct sh_hf_import_options *options,
                   const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, const char *folder, char **path)
{
    struct import m = {.from = from, .options = options, .n = options->moments ? SH_HF_STATES : 1};
    char *file = sh_strfmt("%s/step-%08lld.h5", folder, (long long)meta->step);
    sh_rc rc = import(&m, family, set, meta, folder, file);
    if (rc == SH_OK)
        *path = file;
    else
        free(file);
    for (int i = 0; i < m.n; i++)
        close_source(&m.source[i]);
    return rc;
}

sh_rc sh_hf_import_decays(const char *from, const char *family, const struct sh_ckpt_set *set,
                          const struct sh_hf_state *state, bool *all)
{
    struct source s = {0};
    sh_rc rc = match_source(from, 0, family, set, &s);
    if (rc == SH_OK)
        rc = sh_hf_state_decays(from, state, &s.match.spread, s.match.entry, all);
    close_source(&s);
    return rc;
}
