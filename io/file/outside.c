#include "io/file/outside.h"

#include "src/base/mem.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_OUT "then put config.json and the tokenizer's files beside them, and give --model.hf=OUT"
#define SAVE "save_pretrained('OUT'), and give --model.hf=OUT"

#define BRIDGE                                                                                     \
    "`from megatron.bridge import AutoBridge; AutoBridge.from_hf_pretrained('MODEL').export_ckpt(" \
    "megatron_path='@', hf_path='OUT')` in Python makes a folder of transformers of it; give --model.hf=OUT"

/* Folders, the more special first: one that has all marks of a row is what the row says. In a cure @ stands for the
 * path. */
static const struct folder {
    const char *marks[2], *name, *cure;
} folders[] = {
    {{"model*.safetensors", "config.json"},
     "a folder of transformers",
     "--model.hf=@ starts a run from its weights (states of an optimizer are not read), and `sherd ckpt import @ -o "
     "FOLDER` makes a checkpoint of it"},
    {{"pytorch_model_fsdp_0"},
     "a sharded checkpoint of accelerate (FSDP)",
     "`accelerate merge-weights @/pytorch_model_fsdp_0 OUT` makes safetensors of it; " READ_OUT},
    {{"zero_to_fp32.py"},
     "a ZeRO checkpoint of DeepSpeed",
     "`python @/zero_to_fp32.py @ OUT --safe_serialization` makes safetensors of it; " READ_OUT},
    {{"*zero_pp_rank_*_optim_states.pt"},
     "a step of a ZeRO checkpoint of DeepSpeed",
     "the folder above it has zero_to_fp32.py; `python zero_to_fp32.py . OUT --safe_serialization` there makes "
     "safetensors of it; " READ_OUT},
    {{"latest_checkpointed_iteration.txt"}, "a checkpoint of Megatron", BRIDGE},
    {{"common.pt", "*.distcp"}, "an iteration of a checkpoint of Megatron", BRIDGE},
    {{"mp_rank_*"},
     "an iteration of a checkpoint of Megatron in its former format",
     "load it in Megatron with --ckpt-convert-format torch_dist --ckpt-convert-save NEW, and give NEW here for what to "
     "do next"},
    {{"*.distcp"},
     "a distributed checkpoint of torch (DCP)",
     "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch @ model.pt` makes one file of it; load that "
     "with torch.load('model.pt', weights_only=True) into a model of transformers, " SAVE},
};

/* Files, by their first bytes. */
static const struct file {
    const char *begin, *name, *cure;
} files[] = {
    {"PK\3\4", "a file of torch.save(), a pickle",
     "pickle is code, which is not run here; load it with torch.load('@', weights_only=True) into a model of "
     "transformers, " SAVE},
    {"\x80\2", "a pickle", "it is code, which is not run here; load it into a model of transformers, " SAVE},
    {"GGUF", "a file of GGUF", "give the folder of transformers that it was made of as --model.hf=DIR"},
};

/* Whether one of the names in the folder has the form. */
static bool has(char *const *names, int n, const char *form)
{
    for (int i = 0; i < n; i++)
        if (fnmatch(form, names[i], 0) == 0)
            return true;
    return false;
}

static const struct folder *find_folder(char *const *names, int n)
{
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (has(names, n, folders[i].marks[0]) && (!folders[i].marks[1] || has(names, n, folders[i].marks[1])))
            return &folders[i];
    return NULL;
}

/* NULL: none, or it cannot be read. */
static const struct folder *look_into(DIR *dir)
{
    char **names = NULL;
    int n = 0, cap = 0;
    for (struct dirent *d; (d = readdir(dir));) {
        names = sh_grow(names, n, &cap, sizeof *names);
        names[n++] = sh_strdup(d->d_name);
    }
    const struct folder *found = find_folder(names, n);
    while (n > 0)
        free(names[--n]);
    free(names);
    return found;
}

static const struct file *find_file(const char *path)
{
    char begin[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t bytes = fd >= 0 ? read(fd, begin, sizeof begin) : 0;
    if (fd >= 0)
        close(fd);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (bytes == sizeof begin && memcmp(begin, files[i].begin, strlen(files[i].begin)) == 0)
            return &files[i];
    return NULL;
}

/* The caller frees the cure with the path in it. */
static char *fill_in(const char *cure, const char *path)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = sh_memstream(&text, &bytes);
    for (; *cure != '\0'; cure++)
        if (*cure == '@')
            fputs(path, out);
        else
            fputc(*cure, out);
    fclose(out);
    return text;
}

sh_rc sh_outside_refuse(const char *path)
{
    DIR *dir = opendir(path);
    const struct folder *folder = dir ? look_into(dir) : NULL;
    const struct file *file = dir ? NULL : find_file(path);
    if (dir)
        closedir(dir);
    if (!folder && !file)
        return SH_OK;
    char *cure = fill_in(folder ? folder->cure : file->cure, path);
    sh_rc rc = sh_fail(SH_E_DATA, "%s is %s: %s", path, folder ? folder->name : file->name, cure);
    free(cure);
    return rc;
}
