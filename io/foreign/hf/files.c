#include "io/foreign/hf/files.h"

#include "io/file/file.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <unistd.h>

enum { PIECE_BYTES = 64 << 10 }; /* on a stack; still in the cache when it is widened */

void sh_hf_files_make(struct sh_hf_files *f, const char *folder, const struct sh_st_index *index)
{
    *f = (struct sh_hf_files){.index = index,
                              .file = sh_calloc((size_t)index->n_files + 1, sizeof *f->file),
                              .path = sh_calloc((size_t)index->n_files + 1, sizeof *f->path)};
    for (int64_t i = 0; i < index->n_files; i++) {
        f->path[i] = sh_path_join(folder, index->file[i].name);
        f->file[i].fd = f->file[i].direct = -1;
    }
}

/* Through the page cache: a model that was just downloaded is still there, and the ranks of a node share it. */
sh_rc sh_hf_files_open(struct sh_hf_files *f, int64_t i)
{
    int64_t bytes;
    int fd;
    if (f->file[i].fd >= 0)
        return SH_OK;
    SH_TRY(sh_file_open(f->path[i], &fd, &bytes));
    sh_file_cached_open(f->path[i], fd, &f->file[i]);
    if (bytes != f->index->file[i].bytes)
        return sh_fail(SH_E_DATA, "%s has changed while it was read", f->path[i]);
    return SH_OK;
}

sh_rc sh_hf_files_open_all(struct sh_hf_files *f)
{
    for (int64_t i = 0; i < f->index->n_files; i++)
        SH_TRY(sh_hf_files_open(f, i));
    return SH_OK;
}

sh_rc sh_hf_files_read(struct sh_hf_files *f, const struct sh_st_entry *e, int64_t at, int64_t n, void *to)
{
    SH_TRY(sh_hf_files_open(f, e->file));
    return sh_file_read(f->file[e->file].fd, f->path[e->file], to, n, e->at + at);
}

sh_rc sh_hf_files_floats(struct sh_hf_files *f, const struct sh_st_entry *e, int64_t first, int64_t n, float *out,
                         int64_t *bad)
{
    char piece[PIECE_BYTES];
    int64_t size = sh_st_type_bytes(e->type);
    *bad = n;
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < PIECE_BYTES / size ? n - at : PIECE_BYTES / size;
        SH_TRY(sh_hf_files_read(f, e, (first + at) * size, m * size, piece));
        int64_t here = sh_move_widen(sh_hf_move_type(e), piece, m, (struct sh_floats){.whole = out + at});
        if (here < m && *bad == n)
            *bad = at + here;
    }
    return SH_OK;
}

/* Matching has checked the type, so a type other than F32 and F16 is BF16. */
enum sh_move_type sh_hf_move_type(const struct sh_st_entry *e)
{
    return e->type == SH_ST_F32 ? SH_MOVE_F32 : e->type == SH_ST_F16 ? SH_MOVE_F16 : SH_MOVE_BF16;
}

void sh_hf_files_close(struct sh_hf_files *f)
{
    for (int64_t i = 0; f->file && i < f->index->n_files; i++) {
        if (f->file[i].fd >= 0)
            close(f->file[i].fd);
        free(f->path[i]);
    }
    free(f->file);
    free(f->path);
    *f = (struct sh_hf_files){0};
}
