/* The fixed costs of a checkpoint (file, layout, index, signature) for a model with as many tensors as Llama 405B but
 * one element each. The time measured here grows with the number of tensors and not with their size. One rank. */
#include "src/tools/bench/empty.h"

#include "src/base/mem.h"
#include "src/base/time.h"

#include "io/checkpoint/file/create.h"
#include "io/file/file.h"

#include <stdlib.h>
#include <unistd.h>

/* The layers of Llama 3.1 405B. */
enum { LAYERS = 126 };

static const char *const of_layer[] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",
    "mlp.up_proj",      "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm",
};
static const char *const beside[] = {"model.embed_tokens", "model.norm", "lm_head"};

enum { OF_LAYER = sizeof of_layer / sizeof *of_layer, BESIDE = sizeof beside / sizeof *beside };
enum { TENSORS = LAYERS * OF_LAYER + BESIDE };

/* The caller frees it. The names are real ones, since their length counts in the index. */
static char *name_of(int i)
{
    if (i < BESIDE)
        return sh_strfmt("%s.weight", beside[i]);
    return sh_strfmt("model.layers.%d.%s.weight", (i - BESIDE) / OF_LAYER, of_layer[(i - BESIDE) % OF_LAYER]);
}

/* Writes the index and reads it back, like a save and the load after it. */
static sh_rc lay_out_and_read(const char *path, int fd, struct sh_ckpt_index *index)
{
    struct sh_ckpt_index back;
    int memory;

    SH_TRY(sh_ckpt_create(path, fd, index, &memory));
    sh_rc rc = sh_ckpt_sign(path, fd, memory, index);
    close(memory);
    SH_TRY(rc);
    SH_TRY(sh_ckpt_index_read(path, &back));
    sh_ckpt_index_free(&back);
    return SH_OK;
}

/* The file is always deleted; the time includes that. */
static sh_rc measure(const char *path, const struct sh_ckpt_set *set, double *seconds)
{
    struct sh_ckpt_meta meta = {0};
    struct sh_ckpt_index index;
    int64_t begin;
    int fd;
    sh_rc rc;

    SH_TRY(sh_ckpt_index_make(set, &meta, &index));
    begin = sh_now_ns();
    rc = sh_file_create(path, &fd);
    if (rc == SH_OK) {
        rc = lay_out_and_read(path, fd, &index);
        close(fd);
        unlink(path);
    }
    *seconds = sh_seconds_since(begin);
    sh_ckpt_index_free(&index);
    return rc;
}

/* Local. path: where the file may be created; nothing of it remains. */
sh_rc sh_bench_empty(const char *path, double *seconds)
{
    struct sh_ckpt_tensor *tensors = sh_calloc(TENSORS, sizeof *tensors);
    struct sh_ckpt_set set = {.states = sh_ckpt_states_1, .tensors = tensors, .n_tensors = TENSORS};
    sh_rc rc;

    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (struct sh_ckpt_tensor){.name = name_of(i), .ndim = 2, .dim = {1, 1}, .elems = 1};
    rc = measure(path, &set, seconds);
    for (int i = 0; i < TENSORS; i++)
        free((char *)(uintptr_t)tensors[i].name);
    free(tensors);
    return rc;
}
