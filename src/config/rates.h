/* The rates of the tiers below the device's memory, as offload.rates has them: "file=2.1e9/1.2e9,mixed=1.3e9". Local. */
#ifndef SH_CONFIG_RATES_H
#define SH_CONFIG_RATES_H

#include <stdbool.h>

/* Bytes a second of a node, all of its ranks together; 0: not given. */
struct sh_config_rates {
    double file_read, file_write; /* each alone */
    double mixed;                 /* bytes of both directions, while both go on */
};

/* "": nothing is given. false: the text is no such list; *bad: where its wrong part begins. */
bool sh_config_rates(const char *text, struct sh_config_rates *out, const char **bad);

#endif
