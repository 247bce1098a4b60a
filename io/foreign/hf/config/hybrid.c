#include "io/foreign/hf/config/hybrid.h"

#include "io/json/json.h"
#include "src/config/family.h"
#include "src/config/layers.h"

#include <string.h>

#define LIST "layers_block_type"
#define PATTERN "hybrid_override_pattern"
#define LIMIT "time_step_limit"
#define LATENT "moe_latent_size"
#define SHARED "n_shared_experts"

/* A list has words, those of transformers 5.24 or older ones; a pattern a letter for each block. */
static const struct {
    const char *word, *older;
    char letter;
    unsigned kind;
} blocks[] = {{"linear_attention", "mamba", 'M', SH_LAYER_LINEAR},
              {"full_attention", "attention", '*', SH_LAYER_NOPE},
              {"mlp", "mlp", '-', SH_LAYER_MLP},
              {"moe", "moe", 'E', SH_LAYER_MOE}};
enum { KINDS = sizeof blocks / sizeof *blocks };

/* Of experts, as check_experts() has them; of initial values; of how transformers computes; and what older
 * files have and the class does not read. */
static const char *const others[] = {
    LIST,
    PATTERN,
    LIMIT,
    LATENT,
    SHARED,
    "moe_shared_expert_overlap",
    "router_aux_loss_coef",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "output_router_logits",
    "rescale_prenorm_residual",
    "time_step_floor",
    "time_step_max",
    "time_step_rank",
    "chunk_size",
    "expand",
    "mamba_ssm_cache_dtype",
    "num_logits_to_keep",
    "residual_in_fp32",
    "use_mamba_kernels",
    "attention_head_dim",
    "norm_eps",
    "partial_rotary_factor",
    "rms_norm_eps",
    "rope_theta",
    "sliding_window",
};

/* The row of block i; KINDS: it is of another kind. */
static int row_of(const struct sh_hf_reader *r, long long i)
{
    const json_t *list = sh_hf_find(r->root, LIST);
    const char *word = json_string_value(json_array_get(list, (size_t)i));
    const char *pattern = json_string_value(sh_hf_find(r->root, PATTERN));
    int k = 0;

    while (k < KINDS && !(list ? word && (!strcmp(word, blocks[k].word) || !strcmp(word, blocks[k].older))
                               : pattern[i] == blocks[k].letter))
        k++;
    return k;
}

unsigned sh_hf_hybrid_kind(const struct sh_hf_reader *r, long long i)
{
    return blocks[row_of(r, i)].kind;
}

static sh_rc check_kinds(const struct sh_hf_reader *r, const char *key, long long n)
{
    for (long long i = 0; i < n; i++)
        if (row_of(r, i) == KINDS)
            return sh_fail(SH_E_USAGE,
                           "%s: %s, block %lld: it is none of Mamba-2, attention, a feed-forward part and experts",
                           r->place, key, i);
    return SH_OK;
}

/* transformers writes an object since its version 5. */
bool sh_hf_is_infinite(const json_t *x)
{
    const json_t *word = json_is_object(x) ? json_object_get(x, "__float__") : x;

    return json_is_number(x) ? json_number_value(x) >= 1e6
                             : json_is_string(word) && !strcmp(json_string_value(word), "Infinity");
}

/* The class does not read it, but whoever wrote the file may have computed with it. */
static sh_rc check_limit(const struct sh_hf_reader *r)
{
    const json_t *limit = sh_hf_find(r->root, LIMIT);

    if (!limit || (json_array_size(limit) == 2 && sh_hf_is_infinite(json_array_get(limit, 1))))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s: " LIMIT ": there is no upper limit of a step here, nor in transformers' %s",
                   r->place, r->f->type);
}

static bool has_experts(const struct sh_hf_reader *r, long long n)
{
    for (long long i = 0; i < n; i++)
        if (sh_hf_hybrid_kind(r, i) & SH_LAYER_MOE)
            return true;
    return false;
}

/* The class has one shared expert of its own width, whatever their number is, and others multiply the two. */
static sh_rc check_experts(const struct sh_hf_reader *r)
{
    const json_t *latent = sh_hf_find(r->root, LATENT), *shared = sh_hf_find(r->root, SHARED);

    if (latent)
        return sh_fail(SH_E_USAGE,
                       "%s: " LATENT ": experts of a vector shorter than the stream, as in Nemotron 3 Super, are not "
                       "computed here",
                       r->place);
    if (shared && !(json_is_integer(shared) && json_integer_value(shared) == 1))
        return sh_fail(SH_E_USAGE,
                       "%s: " SHARED " must be 1: transformers has one shared expert of "
                       "moe_shared_expert_intermediate_size, and others as many as this says",
                       r->place);
    return SH_OK;
}

/* The class has these keys without any block of experts too. */
static sh_rc read_experts(struct sh_hf_reader *r, long long n)
{
    const int of[] = {SH_HF_EXPERTS,    SH_HF_CHOSEN,      SH_HF_EXPERT_FFN, SH_HF_SHARED_FFN,
                      SH_HF_ROUTE_NORM, SH_HF_ROUTE_SCALE, SH_HF_GROUPS,     SH_HF_TOP_GROUPS};

    for (size_t i = 0; i < sizeof of / sizeof *of && !has_experts(r, n); i++)
        r->value[of[i]][0] = '\0';
    if (!has_experts(r, n))
        return SH_OK;
    SH_TRY(check_experts(r));
    SH_TRY(r->give(r->to, "model.router", "sigmoid"));
    return r->give(r->to, "model.router_bias", "true");
}

sh_rc sh_hf_hybrid_read(struct sh_hf_reader *r)
{
    const json_t *list = sh_hf_find(r->root, LIST), *pattern = sh_hf_find(r->root, PATTERN);
    const json_t *said = sh_hf_find(r->root, "num_hidden_layers");
    long long n = list ? (long long)json_array_size(list) : (long long)json_string_length(pattern);

    if (!r->f->hybrid)
        return SH_OK;
    if (!json_is_array(list) && (list || !json_is_string(pattern)))
        return sh_fail(SH_E_USAGE, "%s: " LIST " must have a word for each block, or " PATTERN " a letter", r->place);
    if (said && !(json_is_integer(said) && json_integer_value(said) == n))
        return sh_fail(SH_E_USAGE, "%s: num_hidden_layers must be %lld, as many as %s has", r->place, n,
                       list ? LIST : PATTERN);
    SH_TRY(check_kinds(r, list ? LIST : PATTERN, n));
    SH_TRY(check_limit(r));
    SH_TRY(read_experts(r, n));
    snprintf(r->value[SH_HF_LAYERS], sizeof r->value[0], "%lld", n);
    return SH_OK;
}

bool sh_hf_hybrid_is_key(const struct sh_hf_family *f, const char *key)
{
    for (size_t i = 0; i < sizeof others / sizeof *others && f->hybrid; i++)
        if (strcmp(others[i], key) == 0)
            return true;
    return false;
}

static void print_experts(const struct sh_model *m, FILE *out)
{
    fprintf(out, ",\n  \"" SHARED "\": 1,\n  \"" LATENT "\": null,\n  \"n_group\": %d,\n  \"topk_group\": %d",
            m->route_groups ? m->route_groups : 1, m->route_groups ? m->route_top_groups : 1);
    fprintf(out, ",\n  \"routed_scaling_factor\": %.17g", m->route_scale != 0 ? m->route_scale : 1.0);
}

/* The pattern is for readers that do not know the list. */
void sh_hf_hybrid_print(const struct sh_hf_family *f, const struct sh_config *cfg, FILE *out)
{
    const struct sh_model *m = &cfg->model;

    for (int form = 0; form < 2 && f->hybrid; form++) {
        fputs(form ? ",\n  \"" PATTERN "\": \"" : ",\n  \"" LIST "\": [", out);
        for (int i = 0; i < m->n_layers; i++) {
            int k = 0;

            while (blocks[k].kind != sh_layers_kind(m, i))
                k++;
            if (form)
                fputc(blocks[k].letter, out);
            else
                fprintf(out, "%s\"%s\"", i ? ", " : "", blocks[k].word);
        }
        fputs(form ? "\"" : "]", out);
    }
    if (f->hybrid && sh_family_blocks_with_experts(m, m->n_layers))
        print_experts(m, out);
}
