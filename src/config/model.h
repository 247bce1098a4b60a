/* The section `model` of a configuration; a model is built from these keys alone. The preset sets all of them; keys
 * that the user gives win. */
#ifndef SH_CONFIG_MODEL_H
#define SH_CONFIG_MODEL_H

#include <stdbool.h>

struct sh_model {
#define KEY(whose, type, section, key, ...) __typeof__(type) key;
#define ALIAS(...)
#include "src/config/keys/model.inc"
#undef ALIAS
#undef KEY
};

#endif
