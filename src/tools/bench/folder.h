/* A temporary folder for a measurement. */
#ifndef SH_BENCH_FOLDER_H
#define SH_BENCH_FOLDER_H

#include "src/config/config.h"
#include "src/tools/bench/bench.h"

/* Make a new folder in `folder`, so that no existing file is touched, and set cfg->job.dump_folder to it. Collective,
 * agreed. Errors: SH_E_DATA. */
sh_rc sh_bench_folder_make(struct sh_config *cfg, const char *folder);

/* Delete a file of the folder once no rank needs it any more; if it existed, it is gone on return. Collective. */
void sh_bench_folder_drop(const char *path);

/* Delete the folder, which is empty again. Local: a rank that comes second finds it gone. */
void sh_bench_folder_delete(const struct sh_config *cfg);

/* Leave of a run nothing but so many steps, on a file of tokens in the folder, and a rate without a warm-up. Local. */
void sh_bench_only_steps(struct sh_config *cfg, const char *file, int64_t steps);

/* Room for one setting that shortens sequences, and how many there are at most. */
enum { SH_BENCH_SETTING = 64, SH_BENCH_SHORTER = 2 };

/* The settings that make sequences `tokens` long, or as much longer as what cuts them over leaves and ranks needs, if the
 * configuration has longer ones. A phase of data.length_schedule becomes one that divides them. Returns how many. Pure. */
int sh_bench_shorten(const struct sh_config *asked, int tokens, char text[][SH_BENCH_SETTING]);

/* Refuse a key of the command line that has another value in `cfg`, because the benchmark `kind` sets it itself. Those
 * of a file are of the runs that it was made for. Local. Errors: SH_E_USAGE. */
sh_rc sh_bench_refuse_replaced(const char *kind, const struct sh_bench_options *options, const struct sh_config *asked,
                               const struct sh_config *cfg);

/* Write that file: arbitrary tokens, the same again after `period` of them; 0: never. Local. Errors: SH_E_DATA. */
sh_rc sh_bench_write_tokens(const struct sh_config *cfg, int64_t n, int64_t period);

#endif
