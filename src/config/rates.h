/* The rates of the tiers below the device's memory, as offload.rates has them: "file=2.1e9/1.2e9,mixed=1.3e9" or
 * "host=2.4e10/2.3e10". Local. */
#ifndef SH_CONFIG_RATES_H
#define SH_CONFIG_RATES_H

#include <stdbool.h>

/* Bytes a second; 0: not given. Of the file those of a node, all of its ranks together. */
struct sh_config_rates {
    double file_read, file_write; /* each alone */
    double mixed;                 /* bytes of both directions, while both go on */
    double host_read, host_write; /* of one GPU, while the others of its node move too and both directions go on */
};

/* "": nothing is given. false: the text is no such list; *bad: where its wrong part begins. */
bool sh_config_rates(const char *text, struct sh_config_rates *out, const char **bad);

#endif
