/* The section `model` of a configuration, which is all that a model is made of. The preset sets all of it; keys that the user
 * gives win. */
#ifndef SH_CONFIG_MODEL_H
#define SH_CONFIG_MODEL_H

#include <stdbool.h>

struct sh_model {
#define KEY(whose, type, section, key, ...) __typeof__(type) key;
#include "src/config/keys/model.inc"
#undef KEY
};

#endif
