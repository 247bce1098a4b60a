/* Measurements of this machine by the parts of Sherd themselves: `sherd bench KIND`, one file a kind. */
#ifndef SH_BENCH_BENCH_H
#define SH_BENCH_BENCH_H

#include "src/config/config.h"

struct sh_bench_options {
    const char *folder;  /* where files are written, in a new folder that is deleted at the end */
    int repeat;          /* rounds; what is compared is measured in each of them */
    const char *json;    /* (optional) file for the results */
    const char *compare; /* (optional) results of an earlier run, to be set against these */
};

/* Checkpoints: the state of the configured model, with any numbers, is saved from all ranks by each road, loaded with a cold
 * page cache, and copied; in turn with plain programs that move the same bytes. Prints a table on rank 0.
 * Collective, agreed. Needs about three times the file's size in the folder, and of memory what `sherd plan` says for
 * checkpoint.async_mode=async and once more the rank's share of the file. */
sh_rc sh_bench_io(const struct sh_config *cfg, const struct sh_bench_options *options);

#endif
