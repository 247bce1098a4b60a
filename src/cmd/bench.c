#include "src/cmd/cmd.h"

#include "src/bench/bench.h"
#include "src/bench/points.h"
#include "src/bench/rows.h"
#include "src/mesh/mesh.h"

#include <string.h>

/* In the order of the help. */
static const char there_is[] = "gemm, step, comm, io";

/* A benchmark is one row here and one file in src/bench. */
static const struct kind {
    const char *name;
    sh_rc (*run)(const struct sh_config *cfg, const struct sh_bench_options *options);
    bool sized; /* takes --max-bytes */
} kinds[] = {
    {.name = "gemm", .run = sh_bench_gemm},
    {.name = "step", .run = sh_bench_step},
    {.name = "comm", .run = sh_bench_comm, .sized = true},
    {.name = "io", .run = sh_bench_io},
};

/* *out is not changed when the word is unknown. */
static sh_rc find_kind(const struct sh_cmd_args *args, const struct kind **out)
{
    if (args->n_positional == 0)
        return sh_fail(SH_E_USAGE, "sherd bench: what to measure? %s; see sherd --help", there_is);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, args->positional[0])) {
            *out = &kinds[i];
            return SH_OK;
        }
    return sh_fail(SH_E_USAGE, "sherd bench: no such thing as %s; there is %s", args->positional[0], there_is);
}

/* The word before the configuration is the kind. Without a file the keys on the command line are all there is. */
static sh_rc configure(const struct sh_cmd_args *args, struct sh_config *cfg)
{
    struct sh_cmd_args rest = *args;

    rest.n_positional--;
    memmove(rest.positional, rest.positional + 1, (size_t)rest.n_positional * sizeof *rest.positional);
    if (rest.n_positional == 0)
        return sh_config_load(NULL, args->n_overrides, args->overrides, cfg);
    return sh_cmd_config(&rest, NULL, cfg);
}

/* Local: the caller agrees on the result. The default of three rounds is the least from which a difference is told from
 * noise. */
static sh_rc read_arguments(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct kind **kind,
                            struct sh_config *cfg, struct sh_bench_options *options)
{
    const char *folder = sh_cmd_option(cmd, args, "--folder");
    int64_t repeat, max_bytes;

    SH_TRY(find_kind(args, kind));
    SH_TRY(configure(args, cfg));
    SH_TRY(sh_cmd_whole(cmd, args, "--repeat", 1, SH_BENCH_ROUNDS, 3, &repeat));
    SH_TRY(sh_cmd_whole(cmd, args, "--max-bytes", SH_BENCH_LEAST_BYTES, SH_BENCH_MOST_BYTES, 0, &max_bytes));
    /* Refused rather than ignored. */
    if (max_bytes && !(*kind)->sized)
        return sh_fail(SH_E_USAGE, "sherd bench %s: --max-bytes is for sherd bench comm", (*kind)->name);
    *options = (struct sh_bench_options){.folder = folder ? folder : ".",
                                         .repeat = (int)repeat,
                                         .max_bytes = max_bytes,
                                         .machine = sh_cmd_option(cmd, args, "--machine"),
                                         .json = sh_cmd_option(cmd, args, "--json"),
                                         .compare = sh_cmd_option(cmd, args, "--compare")};
    return SH_OK;
}

/* Collective. What is wrong on one rank (a file that only it cannot read) ends all of them. */
sh_rc sh_cmd_bench(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const struct kind *kind = NULL;
    struct sh_config cfg;
    struct sh_bench_options options;

    SH_TRY(sh_agree(read_arguments(cmd, args, &kind, &cfg, &options)));
    /* From here on every rank has the same options. */
    SH_TRY(sh_agree(sh_bench_points_check(&options, &cfg)));
    return kind->run(&cfg, &options);
}
