#include "io/foreign/safetensors/write.h"

#include "io/file/file.h"
#include "src/base/mem.h"
#include "src/base/temp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_MAX = 256 << 20 }; /* of a tokenizer's file */

/* Trailing slashes are removed, because the temporary folder is next to the final one. 64 bytes are kept for the
 * additional part of the temporary name. */
static sh_rc set_folder(struct sh_st_writing *w, const char *folder)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    if (n >= sizeof w->folder - 64)
        return sh_fail(SH_E_USAGE, "%s: the name is too long", folder);
    memcpy(w->folder, folder, n);
    w->folder[n] = '\0';
    return SH_OK;
}

/* Never write into an existing folder: that would leave somebody's model half replaced. */
static sh_rc refuse_existing(const char *folder)
{
    return sh_fail(SH_E_USAGE, "%s exists already; a model goes into a new folder", folder);
}

/* Local, on every rank: all ranks compute the same layout, so it need not be sent. Nothing is created yet. */
sh_rc sh_st_writing_begin(struct sh_st_writing *w, const char *folder, const struct sh_st_entry *tensor, int64_t n,
                          const char *const *stem, int n_stems, int64_t max_bytes, int verify)
{
    struct stat st;
    *w = (struct sh_st_writing){.verify = verify, .lock = -1};
    SH_TRY(set_folder(w, folder));
    if (lstat(w->folder, &st) == 0)
        /* lstat(): a dangling link is in the way as well. */
        return refuse_existing(w->folder);
    SH_TRY(sh_st_layout_make(tensor, n, stem, n_stems, max_bytes, &w->layout));
    w->file = sh_calloc((size_t)w->layout.index.n_files, sizeof *w->file);
    w->path = sh_calloc((size_t)w->layout.index.n_files, sizeof *w->path);
    for (int64_t i = 0; i < w->layout.index.n_files; i++)
        w->file[i].fd = w->file[i].direct = -1;
    return SH_OK;
}

/* Return the path of a file in the temporary folder; made when first needed, because at first only rank 0 knows the
 * folder's name. */
static const char *path_of(struct sh_st_writing *w, int file)
{
    if (!w->path[file])
        w->path[file] = sh_path_join(w->temp, w->layout.index.file[file].name);
    return w->path[file];
}

/* Rank 0: reserve space and write the header. The other ranks then write only data, each at its places. */
static sh_rc create_file(struct sh_st_writing *w, int file)
{
    const struct sh_st_layout *l = &w->layout;
    const char *path = path_of(w, file);
    int fd;
    sh_temp_add(path, -1);
    SH_TRY(sh_file_create(path, &fd));
    /* Reserve space first: a full disk is noticed before any weight is written. */
    sh_rc rc = sh_file_reserve(fd, path, l->index.file[file].bytes);
    if (rc == SH_OK && ftruncate(fd, l->index.file[file].bytes) != 0)
        rc = sh_fail(SH_E_DATA, "%s: %s", path, strerror(errno));
    if (rc == SH_OK)
        rc = sh_file_write(fd, path, l->header[file], l->header_bytes[file], 0);
    if (rc == SH_OK)
        rc = sh_file_sync(fd, path);
    close(fd);
    return rc;
}

/* Create the parent if it does not exist; the folder itself must not exist. */
static sh_rc make_parent(const char *folder)
{
    const char *slash = strrchr(folder, '/');
    if (!slash || slash == folder)
        return SH_OK;
    char *parent = sh_strfmt("%.*s", (int)(slash - folder), folder);
    sh_rc rc = sh_mkdir_private(parent);
    free(parent);
    return rc;
}

/* Rank 0. Everything goes into a folder with a temporary name, so a model exists either completely or not at all. */
sh_rc sh_st_writing_create(struct sh_st_writing *w)
{
    SH_TRY(make_parent(w->folder));
    sh_temp_sweep(w->folder);
    char *temp = sh_output_temp_name(w->folder);
    snprintf(w->temp, sizeof w->temp, "%s", temp);
    free(temp);
    if (mkdir(w->temp, 0750) != 0) {
        sh_rc rc = sh_fail(SH_E_DATA, "create %s: %s", w->temp, strerror(errno));
        w->temp[0] = '\0';
        return rc;
    }
    /* From here on sh_st_writing_end() deletes the folder. */
    w->created = true;
    w->lock = open(w->temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sh_temp_add(w->temp, w->lock);
    for (int i = 0; i < w->layout.index.n_files; i++)
        SH_TRY(create_file(w, i));
    return SH_OK;
}

/* Each rank opens only the files in which it has parts. */
static sh_rc open_file(struct sh_st_writing *w, int file)
{
    const char *path = path_of(w, file);
    int64_t bytes;
    int fd;
    if (w->file[file].fd >= 0)
        return SH_OK;
    /* The file was created by rank 0; its length is set already. */
    SH_TRY(sh_file_reopen(path, &fd, &bytes));
    if (w->verify == SH_ST_FROM_DISK)
        sh_file_direct_open(path, fd, true, &w->file[file]);
    else
        sh_file_cached_open(path, fd, &w->file[file]);
    return SH_OK;
}

/* Write this rank's parts. They stay listed, so that sh_st_writing_compare() can read them back. */
sh_rc sh_st_writing_put(struct sh_st_writing *w, const struct sh_move_part *part, int n)
{
    /* All files are opened before any is written, so a missing one is noticed first. */
    for (int i = 0; i < n; i++)
        SH_TRY(open_file(w, part[i].file));
    SH_TRY(sh_move_parts_make(part, n, &w->parts));
    return sh_move_parts_write(&w->parts, w->file);
}

/* Called by every rank, for the data that it has written. */
sh_rc sh_st_writing_sync(struct sh_st_writing *w)
{
    for (int i = 0; i < w->layout.index.n_files; i++) {
        if (w->file[i].fd < 0)
            continue;
        SH_TRY(sh_file_sync(w->file[i].fd, path_of(w, i)));
        if (w->verify == SH_ST_FROM_DISK && w->file[i].direct < 0) /* makes the comparison read from the disk, too */
            (void)posix_fadvise(w->file[i].fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    return SH_OK;
}

/* Compare the chunks that this rank has written with the checksums made while writing. */
sh_rc sh_st_writing_compare(struct sh_st_writing *w)
{
    return w->verify == SH_ST_UNVERIFIED ? SH_OK : sh_move_parts_compare(&w->parts, w->file);
}

/* Write a small file and sync it, because the folder's final name will promise that it is there. */
static sh_rc write_note(const struct sh_st_writing *w, const char *name, const char *text, size_t bytes)
{
    char *path = sh_path_join(w->temp, name);
    int fd;
    sh_temp_add(path, -1);
    sh_rc rc = sh_file_create(path, &fd);
    if (rc == SH_OK) {
        rc = sh_file_write(fd, path, text, (int64_t)bytes, 0);
        if (rc == SH_OK)
            rc = sh_file_sync(fd, path);
        close(fd);
    }
    free(path);
    return rc;
}

/* Writes a text file next to the weights. */
sh_rc sh_st_writing_note(const struct sh_st_writing *w, const char *name, const char *text)
{
    return write_note(w, name, text, strlen(text));
}

/* A file that the source does not have is left out: folders differ in the files that accompany the weights. */
sh_rc sh_st_writing_copy(const struct sh_st_writing *w, const char *from, const char *name)
{
    char *path = sh_path_join(from, name), *text;
    size_t bytes;
    sh_rc rc = SH_OK;
    if (access(path, F_OK) == 0) {
        /* The size is bounded: a tokenizer's file is read as a whole. */
        rc = sh_read_file(path, COPY_MAX, &text, &bytes);
        if (rc == SH_OK) {
            rc = write_note(w, name, text, bytes);
            free(text);
        }
    }
    free(path);
    return rc;
}

/* Give the folder its name. A plain rename would replace an empty folder that somebody created meanwhile. */
static sh_rc give_name(const struct sh_st_writing *w)
{
    struct stat st;
    if (renameat2(AT_FDCWD, w->temp, AT_FDCWD, w->folder, RENAME_NOREPLACE) == 0)
        return SH_OK;
    /* File systems without RENAME_NOREPLACE: look, then rename, which leaves a moment for another process. */
    if (errno == EEXIST || ((errno == EINVAL || errno == ENOSYS) && lstat(w->folder, &st) == 0))
        return refuse_existing(w->folder);
    if ((errno == EINVAL || errno == ENOSYS) && rename(w->temp, w->folder) == 0)
        return SH_OK;
    return sh_fail(SH_E_DATA, "rename %s to %s: %s", w->temp, w->folder, strerror(errno));
}

/* A single file needs no index. */
static sh_rc write_index(const struct sh_st_writing *w, int stem)
{
    char *text, *name;
    int first;
    if (sh_st_layout_files(&w->layout, stem, &first) == 1)
        return SH_OK;
    text = sh_st_layout_index_text(&w->layout, stem);
    name = sh_st_index_name(w->layout.stem[stem]);
    sh_rc rc = sh_st_writing_note(w, name, text);
    free(name);
    free(text);
    return rc;
}

/* Rank 0, after all ranks have synced and compared. The model exists from the moment of the rename. */
sh_rc sh_st_writing_commit(struct sh_st_writing *w)
{
    for (int i = 0; i < w->layout.n_stems; i++)
        SH_TRY(write_index(w, i));
    SH_TRY(sh_output_sync(path_of(w, 0))); /* the names of the files are the folder's data */
    SH_TRY(give_name(w));
    w->created = false;
    return sh_output_sync(w->folder);
}

/* Whether a name is ".BEGIN...<16 hex digits>.tmp", as made by sh_output_temp_name(). */
static bool is_unfinished(const char *name, const char *begin)
{
    size_t n = strlen(name), tail = strlen(".0123456789abcdef.tmp");
    if (name[0] != '.' || strncmp(name + 1, begin, strlen(begin)) != 0 || n < 1 + strlen(begin) + tail)
        return false;
    const char *end = name + n - tail;
    return end[0] == '.' && strspn(end + 1, "0123456789abcdef") == 16 && strcmp(end + 17, ".tmp") == 0;
}

void sh_st_writing_sweep(const char *parent, const char *begin, int *n)
{
    DIR *dir = opendir(parent);
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (!is_unfinished(d->d_name, begin))
            continue;
        char *path = sh_path_join(parent, d->d_name);
        struct stat st;
        bool folder = lstat(path, &st) == 0 && S_ISDIR(st.st_mode); /* and not a link to one */
        if (folder)
            sh_temp_remove(path);
        *n += folder;
        free(path);
    }
    if (dir)
        closedir(dir);
}

void sh_st_writing_end(struct sh_st_writing *w)
{
    for (int64_t i = 0; w->file && i < w->layout.index.n_files; i++) {
        sh_file_direct_close(&w->file[i]);
        if (w->file[i].fd >= 0)
            close(w->file[i].fd);
        free(w->path[i]);
    }
    if (w->created)
        sh_temp_remove(w->temp);
    if (w->temp[0])
        sh_temp_drop(w->temp);
    if (w->temp[0] && w->lock >= 0)
        close(w->lock);
    free(w->file);
    free(w->path);
    sh_move_parts_free(&w->parts);
    sh_st_layout_free(&w->layout);
    *w = (struct sh_st_writing){0};
}
