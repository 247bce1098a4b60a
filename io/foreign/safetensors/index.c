#include "io/foreign/safetensors/index.h"

#include "io/file/outside.h"
#include "io/json/json.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const sh_st_stem_model[1] = {"model"};

/* Whether the folder has an entry of this name. */
static bool exists(const char *folder, const char *name)
{
    char *path = sh_path_join(folder, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

/* Either layout of a model's weights counts: one file, or several with an index. */
bool sh_st_has_weights(const char *folder)
{
    return exists(folder, SH_ST_ALONE) || exists(folder, SH_ST_INDEX);
}

/* Formats of torch.save(). They are recognized only to name them in a message. */
static bool is_pickle(const char *name)
{
    static const char *const ends[] = {".bin", ".pt", ".pth", ".ckpt"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* Always fails; the text depends on what the folder has instead. */
static sh_rc no_weights(const char *folder)
{
    char pickle[SH_ST_FILE_MAX + 1] = "";
    SH_TRY(sh_outside_refuse(folder));
    DIR *dir = opendir(folder);
    if (!dir)
        return sh_fail(SH_E_DATA, "%s: %s", folder, strerror(errno));
    for (struct dirent *d; (d = readdir(dir)) && !pickle[0];)
        if (is_pickle(d->d_name))
            snprintf(pickle, sizeof pickle, "%s", d->d_name);
    closedir(dir);
    if (pickle[0])
        return sh_fail(SH_E_DATA,
                       "%s has weights as %s only: pickle is code, which is not run here; load it with "
                       "transformers and save_pretrained() it as safetensors",
                       folder, pickle);
    return sh_fail(SH_E_DATA, "%s has neither " SH_ST_ALONE " nor " SH_ST_INDEX, folder);
}

/* The name is known to be short enough (is_file_name()). */
static void add_file(struct sh_st_index *x, const char *name)
{
    x->file = sh_realloc(x->file, (size_t)x->n_files + 1, sizeof *x->file);
    x->file[x->n_files] = (struct sh_st_file){{0}, 0};
    snprintf(x->file[x->n_files++].name, sizeof x->file->name, "%s", name);
}

/* Names are unique within an index, so the order is total. */
static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sh_st_entry *)a)->name, ((const struct sh_st_entry *)b)->name);
}

const struct sh_st_entry *sh_st_index_find(const struct sh_st_index *index, const char *name)
{
    struct sh_st_entry key;
    if (index->n == 0 || strlen(name) > SH_ST_NAME_MAX)
        return NULL;
    strcpy(key.name, name);
    return bsearch(&key, index->entry, (size_t)index->n, sizeof key, by_name);
}

/* Add the entries of one header, each with the number of its file. */
static void add_tensors(struct sh_st_index *x, const struct sh_st_header *h, int file)
{
    x->entry = sh_realloc(x->entry, (size_t)(x->n + h->n) + 1, sizeof *x->entry);
    for (int64_t i = 0; i < h->n; i++) {
        x->entry[x->n] = h->entry[i];
        x->entry[x->n++].file = file;
    }
}

/* The file's length is kept with it, so a later read can notice that the file has changed. */
static sh_rc read_file(struct sh_st_index *x, const char *folder, int file)
{
    struct sh_st_header h = {0};
    char *path = sh_path_join(folder, x->file[file].name);
    sh_rc rc = sh_st_header_read(path, &h);
    if (rc == SH_OK)
        x->file[file].bytes = h.file_bytes;
    if (rc == SH_OK && x->n + h.n > SH_ST_TENSORS_MAX)
        rc = sh_fail(SH_E_DATA, "%s: more than %d tensors", folder, SH_ST_TENSORS_MAX);
    if (rc == SH_OK)
        add_tensors(x, &h, file);
    free(h.entry);
    free(path);
    return rc;
}

/* Sorting lets sh_st_index_find() bisect, and makes duplicates neighbours. */
sh_rc sh_st_index_sort(struct sh_st_index *x, const char *folder)
{
    qsort(x->entry, (size_t)x->n, sizeof *x->entry, by_name);
    for (int64_t i = 1; i < x->n; i++)
        if (strcmp(x->entry[i - 1].name, x->entry[i].name) == 0)
            return sh_fail(SH_E_DATA, "%s: %s and %s both have %s", folder, x->file[x->entry[i - 1].file].name,
                           x->file[x->entry[i].file].name, x->entry[i].name);
    return SH_OK;
}

/* Read all headers, then sort by name. */
static sh_rc read_files(struct sh_st_index *x, const char *folder)
{
    for (int i = 0; i < x->n_files; i++)
        SH_TRY(read_file(x, folder, i));
    return sh_st_index_sort(x, folder);
}

/* ---- model.safetensors.index.json ---- */

/* Whether a name is a plain name within the folder, which is what save_pretrained() writes. */
static bool is_file_name(const char *name)
{
    size_t n = strlen(name);
    for (const char *s = name; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == '/' || *s == '\\' || *s == 0x7f)
            return false;
    return n >= 1 && n <= SH_ST_FILE_MAX && name[0] != '.';
}

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* List the files that the map names, each once. */
static sh_rc list_files(struct sh_st_index *x, const char *path, json_t *map)
{
    const char *tensor, **names = sh_calloc(json_object_size(map) + 1, sizeof *names);
    json_t *value;
    size_t n = 0;
    sh_rc rc = SH_OK;
    json_object_foreach(map, tensor, value)
    {
        names[n] = json_string_value(value);
        if (!sh_st_name_plain(tensor))
            rc = sh_fail(SH_E_DATA, "%s: the name of a tensor is empty, too long or has control characters", path);
        if (!names[n] || json_string_length(value) != strlen(names[n]) || !is_file_name(names[n]))
            rc = sh_fail(SH_E_DATA, "%s: the file of a tensor is not a plain file name within the folder", path);
        n += names[n] != NULL;
    }
    qsort(names, n, sizeof *names, compare_words);
    for (size_t i = 0; i < n && rc == SH_OK; i++)
        if (i == 0 || strcmp(names[i - 1], names[i]) != 0)
            add_file(x, names[i]);
    free(names);
    /* The number of files is bounded before any of them is opened. */
    if (rc == SH_OK && x->n_files > SH_ST_FILES_MAX)
        rc = sh_fail(SH_E_DATA, "%s: more than %d files", path, SH_ST_FILES_MAX);
    return rc;
}

/* Compare both ways: each tensor that the map names is in that file, and each tensor of a file is in the map. */
static sh_rc compare_map(const struct sh_st_index *x, const char *path, json_t *map)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const struct sh_st_entry *e = sh_st_index_find(x, name);
        if (!e || strcmp(x->file[e->file].name, json_string_value(value)) != 0)
            return sh_fail(SH_E_DATA, "%s: %s is not in %s, which it names", path, name, json_string_value(value));
    }
    for (int64_t i = 0; i < x->n; i++)
        if (!json_object_get(map, x->entry[i].name))
            return sh_fail(SH_E_DATA, "%s does not name %s, which is in %s", path, x->entry[i].name,
                           x->file[x->entry[i].file].name);
    return SH_OK;
}

/* Only a warning: some writers count differently, and nothing depends on it. */
static void compare_size(const struct sh_st_index *x, const char *path, json_t *root)
{
    json_t *said = json_object_get(json_object_get(root, "metadata"), "total_size");
    long long sum = 0;
    for (int64_t i = 0; i < x->n; i++)
        sum += x->entry[i].elems * sh_st_type_bytes(x->entry[i].type);
    if (json_is_integer(said) && json_integer_value(said) != sum)
        sh_log_warn("%s says %lld bytes, its tensors have %lld", path, (long long)json_integer_value(said), sum);
}

/* Sizes are bounded before any memory is allocated from them. */
static sh_rc take_files(struct sh_st_index *x, const char *path, json_t *root)
{
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0 || json_object_size(map) > SH_ST_TENSORS_MAX)
        return sh_fail(SH_E_DATA, "%s: it has no weight_map of 1 to %d tensors and their files", path,
                       SH_ST_TENSORS_MAX);
    return list_files(x, path, map);
}

/* Lists the files in an index without reading them: for callers that have only its text. */
sh_rc sh_st_index_files(const char *text, size_t bytes, const char *path, struct sh_st_index *out)
{
    struct sh_st_index x = {0};
    json_t *root;
    SH_TRY(sh_json_parse(text, bytes, path, &root));
    sh_rc rc = take_files(&x, path, root);
    json_decref(root);
    if (rc == SH_OK)
        *out = x;
    else
        sh_st_index_free(&x);
    return rc;
}

/* The index says where the tensors are, and the headers must agree with it. */
static sh_rc take_map(struct sh_st_index *x, const char *folder, const char *path, json_t *root)
{
    SH_TRY(take_files(x, path, root));
    SH_TRY(read_files(x, folder));
    SH_TRY(compare_map(x, path, json_object_get(root, "weight_map")));
    compare_size(x, path, root);
    return SH_OK;
}

/* The JSON is freed again; the index has copies of the names. */
static sh_rc read_map(struct sh_st_index *x, const char *folder, const char *index)
{
    char *path = sh_path_join(folder, index);
    json_t *root;
    sh_rc rc = sh_json_load(path, SH_ST_INDEX_MAX, &root);
    if (rc == SH_OK) {
        rc = take_map(x, folder, path, root);
        json_decref(root);
    }
    free(path);
    return rc;
}

char *sh_st_index_name(const char *stem)
{
    return sh_strfmt("%s.safetensors.index.json", stem);
}

/* If both layouts are there, the single file is used, as in transformers. */
static sh_rc read_folder(struct sh_st_index *x, const char *folder, const char *alone, const char *index)
{
    if (exists(folder, alone)) {
        add_file(x, alone);
        return read_files(x, folder);
    }
    if (exists(folder, index))
        return read_map(x, folder, index);
    return strcmp(alone, SH_ST_ALONE) == 0 ? no_weights(folder)
                                           : sh_fail(SH_E_DATA, "%s has neither %s nor %s", folder, alone, index);
}

sh_rc sh_st_index_read(const char *folder, struct sh_st_index *out)
{
    return sh_st_index_read_stem(folder, sh_st_stem_model[0], out);
}

/* On success the caller frees *out with sh_st_index_free(). */
sh_rc sh_st_index_read_stem(const char *folder, const char *stem, struct sh_st_index *out)
{
    struct sh_st_index x = {0};
    char *alone = sh_strfmt("%s.safetensors", stem), *index = sh_st_index_name(stem);
    sh_rc rc = read_folder(&x, folder, alone, index);
    free(alone);
    free(index);
    if (rc == SH_OK)
        *out = x;
    else
        sh_st_index_free(&x);
    return rc;
}

sh_rc sh_st_index_read_one(const char *folder, const char *file, struct sh_st_index *out)
{
    struct sh_st_index x = {0};
    add_file(&x, file);
    sh_rc rc = read_files(&x, folder);
    if (rc == SH_OK)
        *out = x;
    else
        sh_st_index_free(&x);
    return rc;
}

/* Also works for an index that was only partly read. */
void sh_st_index_free(struct sh_st_index *index)
{
    free(index->file);
    free(index->entry);
    *index = (struct sh_st_index){0};
}

/* Send in parts, because MPI counts in int; the entries of a million tensors are 340 MB. */
static sh_rc send(void *data, int64_t bytes)
{
    enum { PIECE = 1 << 28 };
    for (int64_t at = 0; at < bytes; at += PIECE)
        SH_TRY(sh_mesh_bcast((char *)data + at, (long)(bytes - at < PIECE ? bytes - at : PIECE), 0));
    return SH_OK;
}

/* Collective: sends rank 0's index to all. Entries contain no pointers, so their bytes can be sent. */
sh_rc sh_st_index_share(struct sh_st_index *index, int rank)
{
    int64_t n[2] = {index->n_files, index->n};
    SH_TRY(sh_mesh_bcast(n, sizeof n, 0));
    if (rank != 0) {
        sh_st_index_free(index);
        index->file = sh_calloc((size_t)n[0] + 1, sizeof *index->file);
        index->entry = sh_calloc((size_t)n[1] + 1, sizeof *index->entry);
        /* The counts come from rank 0, which has bounded them. */
        index->n_files = n[0];
        index->n = n[1];
    }
    SH_TRY(send(index->file, n[0] * (int64_t)sizeof *index->file));
    return send(index->entry, n[1] * (int64_t)sizeof *index->entry);
}
