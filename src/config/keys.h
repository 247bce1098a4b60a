/* The table of configuration keys (src/config/keys/): the one place that knows their names, types, ranges, defaults and
 * meanings. A key is a row there, from which config.h makes its field and keys.c its entry in the table:
 *   KEY(whose, type, section, key, ...)           key "section.key", field cfg.section.key
 *   KEY_AT("name", whose, type, section, key, ...) the same under another name
 *   ALIAS("name", "main key", field, ...)          sets another key; `field` is that of struct sh_config_alias
 * where `whose` is RUN, MACHINE, MODEL or NOTE (enum sh_config_of), and ... are fields of struct sh_config_key, of
 * which WORDS(x) and BOOL set two (keys.c). Keys for kernels and for sizes of chunks and micro-batches are the
 * machine's: they change roundings, like a change of machine. The types that are rounded to (mixed_precision_...) and
 * the order of sums (reproducible) are the run's: they hold on every machine.
 *
 * Loading, printing, help and comparison read the table; lookup.c finds keys by name. A new key also needs a row in
 * tests/unit/test_stored.c, which says whether it is kept in checkpoints or belongs to the machine, and one in
 * tests/user/test_options.py, which shows that the key has an effect. Inside src/config only; all local. */
#ifndef SH_CONFIG_KEYS_H
#define SH_CONFIG_KEYS_H

#include "src/base/problems.h"
#include "src/config/config.h"

#include <stddef.h>

enum sh_config_type { SH_KEY_BOOL, SH_KEY_INT, SH_KEY_INT64, SH_KEY_UINT64, SH_KEY_DOUBLE, SH_KEY_STRING };

/* A word that stands for a number; arrays end with name NULL. */
struct sh_config_word {
    const char *name;
    int64_t value;
};

struct sh_config_key {
    const char *name;                   /* "section.key" */
    enum sh_config_type type;           /* how it is stored */
    size_t offset, size;                /* in struct sh_config_state */
    const struct sh_config_word *words; /* (optional) accepted in place of a number */
    bool only_words;                    /* numbers are not accepted */
    bool pairs;                         /* text of the form "name=value,name=value"; in a file a mapping too */
    bool groups;                        /* text of the form of read/groups.h; in a file a list of mappings too */
    bool files;                         /* with pairs: the names are file names */
    bool sizes;                         /* bytes: numbers may end in KiB, MiB, GiB ... */
    double min, max;                    /* of numbers, both allowed; not for uint64 */
    const char *unit;                   /* (optional) of numbers */
    const char *def;                    /* default, as it would be written in a file; NULL: see derived */
    const char *derived;                /* where the value comes from if it is not given and def is NULL */
    const char *alias_of;               /* (optional) this key only sets another one */
    enum sh_config_of of;               /* not for aliases */
    const char *help;
};

extern const struct sh_config_key sh_config_keys[];
extern const int sh_config_n_keys;
enum { SH_CONFIG_KEYS_MAX = 288, SH_CONFIG_NAME_MAX = 96 };

/* The values given to keys that are aliases; resolved in alias.c. */
struct sh_config_alias {
    int window_first_layer, full_attention_interval, no_rope_layer_interval;
    int zero_stage, replicate_degree, shard_degree, selective_option, reshard;
    char hf[SH_CONFIG_PATH_MAX];
    int lora_rank;
    double lora_alpha;
    bool cpu_offload;
};
enum { SH_ALIAS_SELECTIVE_OP }; /* or k */
enum { SH_ALIAS_RESHARD_DEFAULT, SH_ALIAS_RESHARD_ALWAYS, SH_ALIAS_RESHARD_NEVER };

/* Where a value was given. A higher source wins; twice in the same one is an error. */
enum sh_config_source { SH_SOURCE_DEFAULT, SH_SOURCE_FILE, SH_SOURCE_OPTION, SH_SOURCE_FOLDER, SH_SOURCE_ARGUMENT };
struct sh_config_place {
    enum sh_config_source source;
    const char *file; /* lent; of an OPTION or ARGUMENT: "--option: ..." if an option stands for the key, else NULL */
    int line;         /* of a FILE */
};

/* A configuration while it is being loaded. */
struct sh_config_state {
    struct sh_config cfg;
    struct sh_config_alias alias;
    struct sh_config_place given[SH_CONFIG_KEYS_MAX]; /* by index in sh_config_keys */
    struct sh_problems problems;
};

/* The key of that name, or NULL. */
const struct sh_config_key *sh_config_key_find(const char *name);

/* The key nearest to an unknown "section.key", in its section or in the section that is spelled most nearly like it; or
 * NULL. Other sections are not searched: their keys mean something else. */
const char *sh_config_key_nearest(const char *name);

/* Sections, in the order of the table. "training" for "training.steps": its length without the dot. */
int sh_config_section_len(const char *key_name);
bool sh_config_section_starts(int i); /* whether row i is the first of its section */
bool sh_config_section_known(const char *section);
const char *sh_config_section_nearest(const char *section, char out[SH_CONFIG_NAME_MAX]); /* out, or NULL */

#endif
