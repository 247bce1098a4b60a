/* Checks of several keys together, as far as they need neither a mesh nor a file. Inside src/config; local. */
#ifndef SH_CONFIG_CHECK_H
#define SH_CONFIG_CHECK_H

#include "src/config/keys.h"

/* CHECK(subject): in the order of their messages. That a key is wrong in itself is a better message than that it has no
 * effect, so most come before `idle`. */
/* clang-format off */
#define SH_CONFIG_CHECK_LIST(CHECK) \
    CHECK(heads) CHECK(rotary) CHECK(family) CHECK(latent) CHECK(experts) CHECK(ffn) CHECK(window) CHECK(rope) \
    CHECK(batch) CHECK(documents) CHECK(schedule) CHECK(parallelism) CHECK(reproducible) CHECK(recompute) \
    CHECK(guard) CHECK(checkpoint) CHECK(near) CHECK(device) CHECK(lora) CHECK(offload) CHECK(float16) CHECK(idle) \
    CHECK(optimizer) CHECK(codes) CHECK(gathers) CHECK(batches) CHECK(lengths) CHECK(delta) CHECK(global) CHECK(context) \
    CHECK(leaves) CHECK(leaves_of_ranks) CHECK(tiles) CHECK(fingerprint) CHECK(tensor) CHECK(pipeline) \
    CHECK(groups) CHECK(mup) CHECK(mean) CHECK(objective)
/* clang-format on */

/* Errors: SH_E_USAGE, "place: section.key: what does not fit, and what would fit". */
typedef sh_rc sh_config_checks(struct sh_config_state *state);
#define SH_CONFIG_CHECK_DECLARE(subject) sh_config_checks sh_config_check_##subject;
SH_CONFIG_CHECK_LIST(SH_CONFIG_CHECK_DECLARE)
#undef SH_CONFIG_CHECK_DECLARE
sh_rc sh_config_check(struct sh_config_state *state); /* all of them */

#endif
