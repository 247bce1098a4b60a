/* The words of --fsdp, and the keys of its file. */
#include "src/cmd/run_clm.h"

#include "io/json/json.h"
#include "src/base/str.h"

#include <string.h>
#include <strings.h>

enum { FILE_MAX = 1 << 20 };

static const char *const strategies[] = {"full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2",
                                         "no_shard"};

static const char STRATEGY[] = "parallelism.sharding_strategy";

/* Which values a key of the file may have, and what each sets. NULL for `key`: Sherd always does this; NULL for `to`:
 * the strategy that keeps the parameters gathered by the forward. */
static const struct {
    const char *name, *value; /* value NULL: any string or list, "true", "false", or a string */
    const char *key, *to;
} rows[] = {
    {"activation_checkpointing", "true", "activation_checkpoint.mode", "full"},
    {"activation_checkpointing", "false", "activation_checkpoint.mode", "none"},
    {"forward_prefetch", "true", "parallelism.forward_prefetch", "1"},
    {"forward_prefetch", "false", "parallelism.forward_prefetch", "0"},
    {"backward_prefetch", "backward_pre", "parallelism.backward_prefetch", "1"},
    {"backward_prefetch", "no_prefetch", "parallelism.backward_prefetch", "0"},
    {"reshard_after_forward", "true", NULL, NULL},
    {"reshard_after_forward", "false", STRATEGY, NULL},
    {"transformer_layer_cls_to_wrap", NULL, NULL, NULL}, /* units are blocks */
    {"use_orig_params", "true", NULL, NULL},
    {"sync_module_states", "true", NULL, NULL}, /* each rank loads its part of the file */
    {"cpu_ram_efficient_loading", "true", NULL, NULL},
    {"offload_params", "false", NULL, NULL},
};
enum { N_ROWS = sizeof rows / sizeof rows[0], N_STRATEGIES = sizeof strategies / sizeof strategies[0] };

/* Offload means parameters, gradients and states in host memory; a CPU has them there anyway. */
static sh_rc refuse_offload(const char *where)
{
    return sh_fail(
        SH_E_USAGE,
        "%s: leave it out; on GPUs give --training.enable_cpu_offload=true, which puts all state in host memory; "
        "a CPU has it there already, and --offload.optimizer=nvme --offload.nvme_path=DIR puts optimizer states "
        "in a file",
        where);
}

/* One word of --fsdp. auto_wrap asks for blocks as units, which is what Sherd does. */
static sh_rc take_word(const char *word, const char **strategy)
{
    if (!strcmp(word, "auto_wrap") || !strcasecmp(word, "true"))
        return SH_OK;
    if (!strcmp(word, "offload"))
        return refuse_offload("sherd run_clm: --fsdp offload");
    for (int i = 0; i < N_STRATEGIES; i++)
        if (!strcmp(word, strategies[i])) {
            if (*strategy)
                return sh_fail(SH_E_USAGE, "sherd run_clm: --fsdp has two strategies, %s and %s", *strategy, word);
            *strategy = strategies[i];
            return SH_OK;
        }
    const char *near = sh_str_nearest(word, N_STRATEGIES, strategies);

    return sh_fail(SH_E_USAGE,
                   "sherd run_clm: --fsdp has no word %s%s%s; full_shard, shard_grad_op, hybrid_shard, "
                   "hybrid_shard_zero2 or no_shard, and auto_wrap",
                   word, near ? "; nearest is " : "", near ? near : "");
}

/* Words separated by spaces or commas. No word, True or auto_wrap alone means full_shard, as in newer versions of
 * Trainer. */
static sh_rc take_words(const char *given, const char **strategy)
{
    char word[32];

    *strategy = NULL;
    for (const char *at = given + strspn(given, " ,"); *at; at += strspn(at, " ,")) {
        int length = (int)strcspn(at, " ,");

        snprintf(word, sizeof word, "%.*s", length, at);
        SH_TRY(take_word(word, strategy));
        at += length;
    }
    if (!*strategy)
        *strategy = "full_shard";
    return SH_OK;
}

static const char *kept(const struct sh_clm_keys *keys)
{
    for (int i = 0; i < keys->n; i++)
        if (!strcmp(keys->key[i], STRATEGY))
            return !strncmp(keys->value[i], "hybrid", 6) ? "hybrid_shard_zero2"
                   : !strcmp(keys->value[i], "no_shard") ? "no_shard"
                                                         : "shard_grad_op";
    return "shard_grad_op";
}

static bool matches(int row, const json_t *value)
{
    if (!rows[row].value)
        return json_is_string(value) || json_is_array(value);
    if (json_is_boolean(value))
        return !strcmp(rows[row].value, json_is_true(value) ? "true" : "false");
    return json_is_string(value) && !strcmp(rows[row].value, json_string_value(value));
}

/* Older files have the prefix fsdp_ on each key. */
static sh_rc take_key(const char *path, const char *name, const json_t *value, struct sh_clm_keys *keys)
{
    const char *bare = strncmp(name, "fsdp_", 5) ? name : name + 5, *names[N_ROWS], *near;
    bool known = false;

    for (int i = 0; i < N_ROWS; i++) {
        names[i] = rows[i].name;
        if (strcmp(rows[i].name, bare) != 0)
            continue;
        known = true;
        if (!matches(i, value))
            continue;
        if (rows[i].key)
            sh_clm_set(keys, rows[i].key, rows[i].to ? rows[i].to : kept(keys));
        return SH_OK;
    }
    if (known && !strcmp(bare, "offload_params") && json_is_true(value))
        return refuse_offload("sherd run_clm: --fsdp_config: offload_params");
    if (known)
        return sh_fail(SH_E_USAGE, "--fsdp_config %s: %s: this value is not supported; leave the key out", path, name);
    near = sh_str_nearest(bare, N_ROWS, names);
    return sh_fail(SH_E_USAGE, "--fsdp_config %s: unknown key: %s%s%s", path, name, near ? "; nearest is " : "",
                   near ? near : "");
}

/* The first refused key ends the loop: later ones are not checked. */
static sh_rc take_file(const char *path, struct sh_clm_keys *keys)
{
    json_t *file, *value;
    const char *name;
    sh_rc rc = SH_OK;

    SH_TRY(sh_json_load(path, FILE_MAX, &file));
    if (!json_is_object(file))
        rc = sh_fail(SH_E_DATA, "--fsdp_config %s: is %s, not an object", path, sh_json_is(file));
    if (rc == SH_OK)
        json_object_foreach(file, name, value)
        {
            if (rc == SH_OK)
                rc = take_key(path, name, value, keys);
        }
    json_decref(file);
    return rc;
}

/* Without --fsdp Trainer replicates the model (DDP). */
sh_rc sh_clm_fsdp(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys)
{
    const char *given = sh_cmd_option(cmd, args, "--fsdp"), *file = sh_cmd_option(cmd, args, "--fsdp_config");
    const char *strategy = "no_shard";

    if (given && !strcasecmp(given, "false"))
        given = NULL;
    if (file && !given)
        return sh_fail(SH_E_USAGE, "sherd run_clm: --fsdp_config without --fsdp has no effect; add --fsdp full_shard");
    if (given)
        SH_TRY(take_words(given, &strategy));
    sh_clm_set(keys, STRATEGY, strategy);
    return file ? take_file(file, keys) : SH_OK;
}
