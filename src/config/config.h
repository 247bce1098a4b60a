/* The configuration of a run: one table of keys (src/config/keys/), filled from defaults, then a YAML file, then the
 * config.json of model.hf_assets_path, then arguments --section.key=value.
 *
 * Nothing else is read: neither the environment nor a file in the home directory. An unknown key, a key given twice, or
 * a value of the wrong type or out of range is an error that names file and line (or the argument) and the nearest
 * known name, or what to write instead of another trainer's key. All errors are reported at once, one per line, up to
 * 20. The words of torchtitan and FSDP are used if they have one; other common names (ShardingStrategy.FULL_SHARD,
 * zero_stage) are resolved while loading, so that the resolved configuration has one spelling. All functions are
 * local. */
#ifndef SH_CONFIG_CONFIG_H
#define SH_CONFIG_CONFIG_H

#include "src/base/err.h"
#include "src/config/model.h"
#include "src/config/words.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SH_CONFIG_PATH_MAX = 1024 };

/* Each section has a file of rows, one per key. The rows make the fields of the section here and the table in keys.c:
 * type, name, and the meaning in .help. A key with WORDS(x) holds an enum sh_cfg_x (words.h). */
/* clang-format off */
#define KEY(whose, type, section, key, ...) __typeof__(type) key;
#define KEY_AT(name, whose, type, section, key, ...) __typeof__(type) key;
#define ALIAS(...)
struct sh_config {
    struct {
#include "src/config/keys/job.inc"
    } job;
    struct sh_model model;
    struct { /* adapters of low rank; with them the model itself is frozen */
#include "src/config/keys/lora.inc"
    } lora;
    struct {
#include "src/config/keys/moe.inc"
    } moe;
    struct { /* keys model.hf_...: where section model comes from */
#include "src/config/keys/hf.inc"
    } hf;
    struct {
#include "src/config/keys/training.inc"
    } training;
    struct {
#include "src/config/keys/data.inc"
    } data;
    struct {
#include "src/config/keys/parallelism.inc"
    } parallelism;
    struct {
#include "src/config/keys/mesh.inc"
    } mesh;
    struct {
#include "src/config/keys/optimizer.inc"
    } optimizer;
    struct {
#include "src/config/keys/lr_scheduler.inc"
    } lr_scheduler;
    struct {
#include "src/config/keys/activation_checkpoint.inc"
    } activation_checkpoint;
    struct {
#include "src/config/keys/checkpoint.inc"
    } checkpoint;
    struct {
#include "src/config/keys/validation.inc"
    } validation;
    struct {
#include "src/config/keys/metrics.inc"
    } metrics;
    struct {
#include "src/config/keys/profiling.inc"
    } profiling;
    struct { /* what training makes small */
#include "src/config/keys/objective.inc"
    } objective;
    struct { /* operations of one's own */
#include "src/config/keys/plugin.inc"
    } plugin;
    struct {
#include "src/config/keys/guard.inc"
    } guard;
    struct {
#include "src/config/keys/fault.inc"
    } fault;
    struct {
#include "src/config/keys/comm.inc"
    } comm;
    struct {
#include "src/config/keys/memory.inc"
    } memory;
    struct { /* tensors that live in a lower tier than the device's memory */
#include "src/config/keys/offload.inc"
    } offload;
    struct {
#include "src/config/keys/debug.inc"
    } debug;
};
#undef ALIAS
#undef KEY_AT
#undef KEY
/* clang-format on */

/* Defaults, then `path` (NULL: none), then overrides "section.key=value" (no dashes), then presets and aliases. Before
 * an override there may be the option that stands for it, which messages then name: "--ranks: mesh.ranks=4". All bytes of *cfg are defined, padding included, so that memcmp() can compare two configurations.
 * Errors: SH_E_DATA if the file cannot be read, else SH_E_USAGE; the text names file and line, or the argument. On
 * failure *cfg is unchanged. */
sh_rc sh_config_load(const char *path, int n_overrides, const char *const *overrides, struct sh_config *cfg);

/* Whether ranks with parts of sequences gather keys and values, instead of exchanging rows for heads. Local. */
bool sh_config_gathers(const struct sh_config *c);

/* Set the hook that expands model.hf_assets_path=FOLDER: `read` gives values to keys of `model`, as text, through
 * give(to, ...). These values take precedence over those of a configuration file, and those of the command line over
 * them; those of keys outside `model`, such as objective.name, hold only where file and command line say nothing. `place`
 * names the file they come from in messages. `so_far` holds the values given by file and command line.
 * Without a hook the key is only a name.
 * Errors: those of give(); SH_E_DATA, SH_E_USAGE. */
typedef sh_rc (*sh_config_give_value)(void *to, const char *key, const char *text);
typedef sh_rc (*sh_config_read_folder)(const struct sh_config *so_far, const char *place, sh_config_give_value give,
                                       void *to);
void sh_config_folder_hook(sh_config_read_folder read);

enum { SH_CONFIG_FILE_MAX = 1 << 20 }; /* bytes of a file or text; a larger one is refused */

/* The same from text in memory, such as a configuration stored in a checkpoint; `name` stands for the file in
 * messages. */
sh_rc sh_config_parse(const char *text, size_t bytes, const char *name, int n_overrides, const char *const *overrides,
                      struct sh_config *cfg);

/* The same from options of a command, which rank as a file: "--option: section.key=value", or without "--option: " for
 * what the command sets by itself. Lent. */
sh_rc sh_config_options(int n_options, const char *const *options, int n_overrides, const char *const *overrides,
                        struct sh_config *cfg);

/* Resolved configuration as YAML that loads back to the same values; *text freed with free(). */
sh_rc sh_config_print(const struct sh_config *cfg, char **text);
/* The same of the keys for which shows(of, key) is true; NULL: of all. */
sh_rc sh_config_print_some(const struct sh_config *cfg, bool (*shows)(const void *of, const char *key), const void *of,
                           char **text);

/* XXH3 of that text, 64 bits in hexadecimal, as `xxhsum -H3 config.yaml` prints it for the file of a run. Equal digests
 * mean that two runs had the same configuration. */
enum { SH_CONFIG_DIGEST = 17 };
sh_rc sh_config_digest(const struct sh_config *cfg, char digest[SH_CONFIG_DIGEST]);

/* Whether that many ranks can share each sequence (parallelism.context_parallel_degree). Local. */
bool sh_config_cuts_sequences(const struct sh_config *cfg, int degree);

/* Whether its degrees of tensor and of pipeline fit the model and all other keys. */
bool sh_config_cuts_matrices(const struct sh_config *cfg);
bool sh_config_cuts_layers(const struct sh_config *cfg);

/* The value of "section.key" as one line without YAML's quotes, for scripts; *text freed with free().
 * Errors: SH_E_USAGE: no such key, or one that only sets another. */
sh_rc sh_config_get(const struct sh_config *cfg, const char *name, char **text);

/* "section.key=value" of an override, without an option before it. Local. */
const char *sh_config_argument_pair(const char *argument);

/* Check overrides by themselves: names, values, and none twice. Local. Errors: SH_E_USAGE, a line for each problem. */
sh_rc sh_config_check_arguments(int n_overrides, const char *const *overrides);

/* Check a value of a key by itself. Local. Errors: SH_E_USAGE: "section.key: what is wrong". */
sh_rc sh_config_check_value(const char *key, const char *text);

/* Convert "67108864", "64MiB" or "64 MB" to bytes, as keys that are sizes accept it; false: not a size, or beyond 2^63.
 * Local. */
bool sh_config_size(const char *text, int64_t *bytes);

/* Print the names of the keys that the file and the overrides set, as sh_config_load() reads them, one per line in the
 * order of the table. Errors: those of sh_config_load(). */
sh_rc sh_config_given(const char *path, int n_overrides, const char *const *overrides, FILE *out);

/* What to write for a word without a section: "training.steps" for "steps" (*is_key true), or the advice for another
 * trainer's "max_steps" (*is_key false). NULL: the word is not known, or several sections have such a key. Local. */
const char *sh_config_bare_word(const char *word, bool *is_key);

/* Every key with type, unit, range, default and help, as text, man page (roff) or Markdown. */
enum sh_config_help { SH_HELP_TEXT, SH_HELP_ROFF, SH_HELP_MARKDOWN, SH_HELP_BASH, SH_HELP_ZSH };
void sh_config_help(FILE *out, enum sh_config_help form);

/* The text of one key, section.key; false if there is none of this name. */
bool sh_config_help_key(FILE *out, const char *name);

/* Whose key it is: a column of the table. */
enum sh_config_of {
    SH_OF_MODEL,   /* the model's: needed by eval and generate too */
    SH_OF_RUN,     /* the training run's: another value would change the state of the run */
    SH_OF_NOTE,    /* a note: kept in checkpoints, without effect on the state */
    SH_OF_MACHINE, /* the machine's and how a run uses it: not kept in checkpoints; a resume may change it */
    SH_OF_KINDS
};
#define SH_OF(kind) (1u << SH_OF_##kind)
#define SH_OF_ALL ((1u << SH_OF_KINDS) - 1)

/* Copy the keys of the kinds in `of`, a sum of SH_OF(), from one configuration to another. */
void sh_config_take(struct sh_config *to, const struct sh_config *from, unsigned of);

/* Print one line per difference, "section.key: a -> b", in keys of the kinds in `of`. */
void sh_config_diff(const struct sh_config *a, const struct sh_config *b, unsigned of, FILE *out);

/* Why a run of this configuration can have no near checkpoints, whatever checkpoint.near_interval; NULL: it can. */
const char *sh_config_no_near(const struct sh_config *cfg);

/* The loss of answers (enum sh_cfg_loss_type): objective.loss_type, unless the objective has its own. */
static inline int sh_config_loss(const struct sh_config *cfg)
{
    switch (cfg->objective.name) {
    case SH_OBJECTIVE_REWARD: return SH_PREFER_REWARD;
    case SH_OBJECTIVE_REGRESSION: return SH_PREFER_REGRESSION;
    default: return cfg->objective.loss_type;
    }
}

#endif
