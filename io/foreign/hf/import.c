/* Converts a folder of transformers into a checkpoint of Sherd: a save by one process of tensors that are in the
 * folder. Memory is needed for only a few blocks, whatever the size of the model. */
#include "io/foreign/hf/import.h"

#include "io/foreign/hf/names.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <sys/stat.h>

struct import {
    const char *from;
    const struct sh_hf_import_options *options;
    struct sh_st_index index;
    struct sh_hf_match match;
    struct sh_hf_files files;
};

static sh_rc open_files(struct import *m)
{
    sh_hf_files_make(&m->files, m->from, &m->index);
    for (int64_t i = 0; i < m->index.n_files; i++)
        SH_TRY(sh_ckpt_trusted(m->files.path[i], m->options->trust));
    return sh_hf_files_open_all(&m->files);
}

/* Called from several threads: it changes no shared data. */
static sh_rc get(void *arg, int piece, int s, int64_t at, int64_t n, float *to)
{
    struct import *m = arg;
    (void)s;
    return sh_hf_match_read(&m->match, &m->files, piece, at, n,
                            m->options->allow_nan ? NULL : "; --allow-nan takes it as it is", to);
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
    for (int s = 1; s < set.states.n; s++)
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
    SH_TRY(sh_st_index_read(m->from, &m->index));
    SH_TRY(sh_hf_match(m->from, &m->index, set, family, &m->match));
    SH_TRY(open_files(m));
    SH_TRY(sh_hf_copy_compare(m->from, &m->match, &m->files, 0, 1));
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
    struct import m = {.from = from, .options = options};
    char *file = sh_strfmt("%s/step-%08lld.h5", folder, (long long)meta->step);
    sh_rc rc = import(&m, family, set, meta, folder, file);
    if (rc == SH_OK)
        *path = file;
    else
        free(file);
    sh_hf_files_close(&m.files);
    sh_hf_match_free(&m.match);
    sh_st_index_free(&m.index);
    return rc;
}
