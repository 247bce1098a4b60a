#include "io/file/outside.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The way in for what sherd-import reads. */
#define BRING_IN "`sherd-import @ -o STATE` makes a state folder of it, with the moments"
#define THEN ", and `sherd ckpt import STATE -o FOLDER` a checkpoint"
#define BRING_IN_HF \
    "`sherd-import @ -o STATE --hf DIR` makes a state folder of it, with the moments (DIR has the model's config.json)" THEN

#define BRIDGE                                                                                     \
    "`from megatron.bridge import AutoBridge; AutoBridge.from_hf_pretrained('MODEL').export_ckpt(" \
    "megatron_path='@', hf_path='OUT')` in Python makes a folder of transformers of it; give --model.hf=OUT"

/* Folders, the more special first: one that has all marks of a row is what the row says. In a cure @ stands for the
 * path. */
static const struct folder {
    const char *marks[2], *name, *cure;
} folders[] = {
    {{"state.json", "exp_avg*.safetensors"},
     "a state folder",
     "`sherd ckpt import @ -o FOLDER` makes a checkpoint of it"},
    {{"trainer_state.json", "global_step*"}, "a checkpoint of Trainer with DeepSpeed", BRING_IN THEN},
    {{"trainer_state.json", "pytorch_model_fsdp*"}, "a checkpoint of Trainer with FSDP", BRING_IN THEN},
    {{"trainer_state.json", "optimizer.pt"}, "a checkpoint of Trainer", BRING_IN THEN},
    {{"model*.safetensors", "config.json"},
     "a folder of transformers",
     "--model.hf=@ starts a run from its weights (states of an optimizer are not read), and `sherd ckpt import @ -o "
     "FOLDER` makes a checkpoint of it"},
    {{"pytorch_model_fsdp*"}, "a checkpoint of accelerate (FSDP)", BRING_IN_HF},
    {{"zero_to_fp32.py"}, "a ZeRO checkpoint of DeepSpeed", BRING_IN_HF},
    {{"*zero_pp_rank_*_optim_states.pt"}, "a step of a ZeRO checkpoint of DeepSpeed", BRING_IN_HF},
    {{"zero", "*mp_rank_*_model_states.pt"}, "a universal checkpoint of DeepSpeed", BRING_IN_HF},
    {{"latest_checkpointed_iteration.txt"}, "a checkpoint of Megatron", BRIDGE},
    {{"common.pt", "*.distcp"}, "an iteration of a checkpoint of Megatron", BRIDGE},
    {{"mp_rank_*"},
     "an iteration of a checkpoint of Megatron in its former format",
     "load it in Megatron with --ckpt-convert-format torch_dist --ckpt-convert-save NEW, and give NEW here for what to "
     "do next"},
    {{"*.distcp"}, "a distributed checkpoint of torch (DCP)", BRING_IN_HF},
    {{".metadata"}, "a distributed checkpoint of torch (DCP) without its data", "name a folder that also has *.distcp"},
    {{"ckpt.pt"}, "an output folder of nanoGPT", BRING_IN THEN},
    {{"model_[0-9]*.bin", "state_[0-9]*_*.bin"}, "a log folder of llm.c", BRING_IN THEN},
    {{NULL}, NULL, NULL},
};

/* Folders whose weights are read, but which have more. */
#define LEAVE_OUT "; `sherd ckpt import @ --weights-only -o FOLDER` leaves them out"
static const struct folder with_states[] = {
    {{"state.json", "exp_avg*.safetensors"},
     "the moments of a state folder",
     "`sherd ckpt import @ -o FOLDER` reads them"},
    {{"optimizer.pt"}, "optimizer.pt, states of an optimizer", BRING_IN THEN LEAVE_OUT},
    {{"optimizer.bin"}, "optimizer.bin, states of an optimizer", BRING_IN THEN LEAVE_OUT},
    {{"optimizer_0"}, "optimizer_0, states of an optimizer", BRING_IN THEN LEAVE_OUT},
    {{"global_step*"}, "a step of DeepSpeed with states of an optimizer", BRING_IN THEN LEAVE_OUT},
    {{NULL}, NULL, NULL},
};

#define PICKLE "it is code, which is not run here; save the model with save_pretrained('OUT'), and give --model.hf=OUT"
#define ITS_FOLDER "`sherd-import FOLDER -o STATE` reads the folder that it is in"

/* Files, by their first bytes. */
static const struct file {
    const char *begin, *name, *cure;
    bool alone; /* never a part of one of the folders above */
} files[] = {
    {"PK\3\4", "a file of torch.save(), a pickle", "pickle is code, which is not run here; " BRING_IN_HF, false},
    {"\x80\2", "a pickle", PICKLE, false},
    {"\x80\4", "a pickle", PICKLE, false},
    {"\x80\5", "a pickle", PICKLE, false},
    {"\xc6\xd7\x34\x01", "a model of llm.c", ITS_FOLDER, false},
    {"\x8f\xd8\x34\x01", "a state of llm.c", ITS_FOLDER, false},
    {"GGUF", "a file of GGUF", "give the folder of transformers that it was made of as --model.hf=DIR", true},
};

/* Whether one of the names in the folder has the form. */
static bool has(char *const *names, int n, const char *form)
{
    for (int i = 0; i < n; i++)
        if (fnmatch(form, names[i], 0) == 0)
            return true;
    return false;
}

/* Looks at rows up to the one that is all zero. */
static const struct folder *find_folder(const struct folder *row, char *const *names, int n)
{
    for (; row->name; row++)
        if (has(names, n, row->marks[0]) && (!row->marks[1] || has(names, n, row->marks[1])))
            return row;
    return NULL;
}

static void free_names(char **names, int n)
{
    while (n > 0)
        free(names[--n]);
    free(names);
}

/* Returns how many there are; 0: it is no folder, or cannot be read. */
static int list(const char *path, char ***names)
{
    DIR *dir = opendir(path);
    int n = 0, cap = 0;
    *names = NULL;
    if (!dir)
        return 0;
    for (struct dirent *d; (d = readdir(dir));) {
        *names = sh_grow(*names, n, &cap, sizeof **names);
        (*names)[n++] = sh_strdup(d->d_name);
    }
    closedir(dir);
    return n;
}

/* NULL: none, or it cannot be read. */
static const struct folder *look_into(const char *path, const struct folder *row)
{
    char **names;
    int n = list(path, &names);
    const struct folder *found = find_folder(row, names, n);
    free_names(names, n);
    return found;
}

/* The newest of the steps that other trainers save into folders of their own, side by side; NULL: there is none. */
static char *newest_step(const char *path)
{
    static const char *const begins[] = {"checkpoint-", "step-", "global_step"};
    char **names;
    int n = list(path, &names), newest = -1;
    long long most = -1;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof begins / sizeof *begins; k++) {
            size_t length = strlen(begins[k]);
            if (strncmp(names[i], begins[k], length) != 0)
                continue;
            char *end;
            long long step = strtoll(names[i] + length, &end, 10);
            if (end > names[i] + length && *end == '\0' && step > most) {
                most = step;
                newest = i;
            }
        }
    char *out = newest < 0 ? NULL : sh_path_join(path, names[newest]);
    free_names(names, n);
    return out;
}

/* The folder that a file is in. */
static char *folder_of(const char *path)
{
    const char *end = strrchr(path, '/');
    return !end ? sh_strdup(".") : end == path ? sh_strdup("/") : sh_strfmt("%.*s", (int)(end - path), path);
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

sh_rc sh_outside_states(const char *path)
{
    const struct folder *found = look_into(path, with_states);
    if (!found)
        return SH_OK;
    char *cure = fill_in(found->cure, path);
    sh_rc rc = sh_fail(SH_E_DATA, "%s also has %s, which are not read here: %s", path, found->name, cure);
    free(cure);
    return rc;
}

/* `how`: what the path has to do with the folder `about`, which is "" if it is the path itself. */
static sh_rc refuse(const char *path, const char *how, const char *about, const char *name, const char *cure)
{
    char *text = fill_in(cure, about[0] ? about : path);
    sh_rc rc = sh_fail(SH_E_DATA, "%s %s%s%s%s: %s", path, how, about, about[0] ? ", " : "", name, text);
    free(text);
    return rc;
}

static sh_rc refuse_folder(const char *path)
{
    const struct folder *row = look_into(path, folders);
    if (row)
        return refuse(path, "is ", "", row->name, row->cure);
    char *step = newest_step(path);
    row = step ? look_into(step, folders) : NULL;
    sh_rc rc = row ? refuse(path, "is a folder with ", step, row->name, row->cure) : SH_OK;
    free(step);
    return rc;
}

static sh_rc refuse_file(const char *path)
{
    const struct file *file = find_file(path);
    if (!file)
        return SH_OK;
    char *folder = folder_of(path);
    const struct folder *row = file->alone ? NULL : look_into(folder, folders);
    sh_rc rc = row ? refuse(path, "is a part of ", folder, row->name, row->cure)
                   : refuse(path, "is ", "", file->name, file->cure);
    free(folder);
    return rc;
}

sh_rc sh_outside_refuse(const char *path)
{
    return sh_is_folder(path) ? refuse_folder(path) : refuse_file(path);
}
