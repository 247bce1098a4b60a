/* The transfer rates of the lower tiers, in the form of offload.rates: "file=2.1e9/1.2e9,mixed=1.3e9" or
 * "host=2.4e10/2.3e10". Local. */
#ifndef SH_CONFIG_RATES_H
#define SH_CONFIG_RATES_H

#include <stdbool.h>

/* Bytes per second; 0: not given. The rates of the file are per node, for all of its ranks together. */
struct sh_config_rates {
    double file_read, file_write; /* each alone */
    double mixed;                 /* sum of both directions, while both are busy */
    double host_read, host_write; /* one GPU, while the others of its node move too and both directions are busy */
};

/* "": nothing is given. false: the text is not such a list; *bad: the start of the wrong part. */
bool sh_config_rates(const char *text, struct sh_config_rates *out, const char **bad);

#endif
