#include "src/config/family.h"

#include "src/config/words.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Names of Llama, which most families took over. */
#define LLAMA_STREAM                                                                                     \
    .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", .head = "lm_head", \
    .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .o = "self_attn.o_proj"
#define LLAMA_QKV .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj"
#define QK_NORM .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define LLAMA_MLP .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"

/* Rows come from family.inc, which the words of the key come from as well: a family cannot be in one and not in the
 * other. */
static const struct sh_family families[] = {
#define FAMILY(id, word, ...) [SH_FAMILY_##id] = {.name = word, __VA_ARGS__},
#include "src/config/family.inc"
#undef FAMILY
};

/* `word` is a checked value of model.family, so the index is in range. */
const struct sh_family *sh_family_of(int word)
{
    return &families[word];
}

const char *sh_family_linear_name(const struct sh_family *f, enum sh_family_linear which)
{
    const char *const names[SH_LINEARS] = {
        [SH_LINEAR_Q] = f->q,       [SH_LINEAR_K] = f->k,   [SH_LINEAR_V] = f->v,      [SH_LINEAR_O] = f->o,
        [SH_LINEAR_GATE] = f->gate, [SH_LINEAR_UP] = f->up, [SH_LINEAR_DOWN] = f->down};
    return names[which];
}

/* Of one product, which may be a stack of several in one parameter. */
void sh_family_linear_dims(const struct sh_model *m, enum sh_family_linear which, int64_t *in, int64_t *out)
{
    const struct sh_family *f = sh_family_of(m->family);
    int64_t q = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim, ffn = m->ffn_dim;
    int64_t up = f->gelu || f->gate ? ffn : 2 * ffn;
    const int64_t dims[SH_LINEARS][2] = {[SH_LINEAR_Q] = {m->dim, f->k ? q : q + 2 * kv},
                                         [SH_LINEAR_K] = {m->dim, kv},
                                         [SH_LINEAR_V] = {m->dim, kv},
                                         [SH_LINEAR_O] = {q, m->dim},
                                         [SH_LINEAR_GATE] = {m->dim, ffn},
                                         [SH_LINEAR_UP] = {m->dim, up},
                                         [SH_LINEAR_DOWN] = {ffn, m->dim}};
    *in = dims[which][0];
    *out = dims[which][1];
}

/* As PEFT matches: the name, or its end after a dot. */
static bool is_named(const char *name, const char *word)
{
    size_t n = strlen(name), k = strlen(word);
    return n >= k && strcmp(name + n - k, word) == 0 && (n == k || name[n - k - 1] == '.');
}

/* The bits of one word; 0: it names nothing. */
static unsigned targets_of(const struct sh_family *f, const char *word)
{
    unsigned bits = 0;
    for (int i = 0; i < SH_LINEARS; i++) {
        const char *name = sh_family_linear_name(f, i);
        if (name && (strcmp(word, "all-linear") == 0 || is_named(name, word)))
            bits |= 1u << i;
    }
    return bits;
}

bool sh_family_targets(const struct sh_family *f, const char *text, unsigned *targets, char bad[SH_FAMILY_WORD])
{
    static const char between[] = ", \t";
    *targets = 0;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        size_t n = strcspn(text, between);
        snprintf(bad, SH_FAMILY_WORD, "%.*s", n < SH_FAMILY_WORD ? (int)n : SH_FAMILY_WORD - 1, text);
        unsigned bits = targets_of(f, bad);
        if (!bits)
            return false;
        *targets |= bits;
        text += n;
    }
    bad[0] = '\0';
    return *targets != 0;
}
