#include "src/cmd/cmd.h"

#include "src/mesh/mesh.h"
#include "src/tools/bench/bench.h"
#include "src/tools/bench/points.h"
#include "src/tools/bench/rows.h"

#include <string.h>

/* Defaults of sherd bench tier. */
#define DEFAULT_FILE (4ll << 30)
enum { DEFAULT_SECONDS = 60, MOST_SECONDS = 86400 };

/* In the order of the help. */
static const char there_is[] = "gemm, step, comm, io, tier";

/* Each benchmark is one row here and one file in src/tools/bench. */
static const struct kind {
    const char *name;
    sh_rc (*run)(const struct sh_config *cfg, const struct sh_bench_options *options);
    bool folder; /* measures a folder, if one is given in place of a configuration */
} kinds[] = {
    {.name = "gemm", .run = sh_bench_gemm},
    {.name = "step", .run = sh_bench_step},
    {.name = "comm", .run = sh_bench_comm},
    {.name = "io", .run = sh_bench_io},
    {.name = "tier", .run = sh_bench_tier, .folder = true},
};

/* Options that only one kind has, and options that one kind lacks. */
static const struct exception {
    const char *option, *only, *never, *why;
} exceptions[] = {
    {.option = "--max-bytes", .only = "comm"},
    {.option = "--bytes", .only = "tier"},
    {.option = "--seconds", .only = "tier"},
    {.option = "--folder", .never = "tier", .why = "name the folder after tier"},
    {.option = "--machine", .never = "tier", .why = "its rates are for offload.rates, a key of the configuration"},
};

/* *out is unchanged if the word is unknown. */
static sh_rc find_kind(const struct sh_cmd_args *args, const struct kind **out)
{
    if (args->n_positional == 0)
        return sh_fail(SH_E_USAGE, "sherd bench: what to measure? %s; see sherd bench --help", there_is);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, args->positional[0])) {
            *out = &kinds[i];
            return SH_OK;
        }
    return sh_fail(SH_E_USAGE, "sherd bench: no benchmark %s; there are %s", args->positional[0], there_is);
}

/* Refused rather than ignored. */
static sh_rc check_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *kind)
{
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++) {
        const struct exception *e = &exceptions[i];

        if (!sh_cmd_option(cmd, args, e->option))
            continue;
        if (e->only && strcmp(e->only, kind))
            return sh_fail(SH_E_USAGE, "sherd bench %s: %s is for sherd bench %s", kind, e->option, e->only);
        if (e->never && !strcmp(e->never, kind))
            return sh_fail(SH_E_USAGE, "sherd bench %s: no %s; %s", kind, e->option, e->why);
    }
    return SH_OK;
}

/* Takes at most a folder, and no keys: the measurement does not depend on any. */
static sh_rc name_folder(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char **folder)
{
    if (args->n_positional == 1 && sh_cmd_option(cmd, args, "--seconds"))
        return sh_fail(SH_E_USAGE, "sherd bench %s: --seconds is for writing a file; name the folder for it",
                       args->positional[0]);
    if (args->n_positional > 2 || args->n_overrides > 0)
        return sh_fail(SH_E_USAGE, "sherd bench %s: name the folder for the scratch files, and nothing else",
                       args->positional[0]);
    *folder = args->n_positional == 2 ? args->positional[1] : NULL;
    return SH_OK;
}

/* The word before the configuration is the kind. Without a file, only the keys on the command line count. */
static sh_rc configure(const struct sh_cmd_args *args, struct sh_config *cfg)
{
    struct sh_cmd_args rest = *args;

    rest.n_positional--;
    memmove(rest.positional, rest.positional + 1, (size_t)rest.n_positional * sizeof *rest.positional);
    if (rest.n_positional == 0)
        return sh_config_load(NULL, args->n_overrides, args->overrides, cfg);
    return sh_cmd_config(&rest, NULL, cfg);
}

/* Local; the caller makes the ranks agree on the result. The default of three rounds is the minimum that separates a
 * difference from noise. */
static sh_rc read_arguments(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct kind **kind,
                            struct sh_config *cfg, struct sh_bench_options *options)
{
    const char *folder = sh_cmd_option(cmd, args, "--folder");
    int64_t repeat, max_bytes, bytes, seconds;

    SH_TRY(find_kind(args, kind));
    SH_TRY(check_options(cmd, args, (*kind)->name));
    SH_TRY((*kind)->folder ? name_folder(cmd, args, &folder) : configure(args, cfg));
    SH_TRY(sh_cmd_whole(cmd, args, "--repeat", 1, SH_BENCH_ROUNDS, 3, &repeat));
    SH_TRY(sh_cmd_bytes(cmd, args, "--max-bytes", SH_BENCH_LEAST_BYTES, SH_BENCH_MOST_BYTES, 0, &max_bytes));
    SH_TRY(sh_cmd_bytes(cmd, args, "--bytes", SH_BENCH_LEAST_FILE, SH_BENCH_MOST_FILE, DEFAULT_FILE, &bytes));
    SH_TRY(sh_cmd_whole(cmd, args, "--seconds", 0, MOST_SECONDS, DEFAULT_SECONDS, &seconds));
    *options = (struct sh_bench_options){.folder = folder || (*kind)->folder ? folder : ".",
                                         .repeat = (int)repeat,
                                         .max_bytes = max_bytes,
                                         .bytes = bytes,
                                         .seconds = seconds,
                                         .machine = sh_cmd_option(cmd, args, "--machine"),
                                         .json = sh_cmd_option(cmd, args, "--json"),
                                         .compare = sh_cmd_option(cmd, args, "--compare"),
                                         .keys = args->overrides,
                                         .n_keys = args->n_overrides};
    return SH_OK;
}

/* Collective. An error on one rank (a file that only it cannot read) ends all ranks. */
sh_rc sh_cmd_bench(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const struct kind *kind = NULL;
    struct sh_config cfg = {0};
    struct sh_bench_options options;

    SH_TRY(sh_agree(read_arguments(cmd, args, &kind, &cfg, &options)));
    /* From here on every rank has the same options. */
    SH_TRY(sh_agree(sh_bench_points_check(&options, &cfg)));
    return kind->run(&cfg, &options);
}
