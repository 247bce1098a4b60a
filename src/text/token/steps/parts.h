/* The parts of a tokenizer.json that are lists of steps: normalizer, pre_tokenizer, post_processor, decoder. Local. */
#ifndef IO_TOKEN_PARTS_H
#define IO_TOKEN_PARTS_H

#include "io/json/json.h"
#include "src/text/token/hf.h"

/* Read all of them, by their keys, into hf. Errors: SH_E_DATA: "pre_tokenizer: pretokenizers[1]: ...". */
sh_rc sh_token_json_read_parts(struct sh_hf *hf, const json_t *top);

/* Read a string that must be present; *text still belongs to jansson. Errors: SH_E_DATA with the key. */
sh_rc sh_token_json_string(const json_t *object, const char *key, const char **text, size_t *bytes);

/* Read a boolean that may be absent or null; `none` is its value then. */
sh_rc sh_token_json_switch(const json_t *object, const char *key, bool none, bool *out);

/* Errors: SH_E_DATA: a key that is not one of `known` (separated by blanks) and has a value. */
sh_rc sh_token_json_known(const json_t *object, const char *known);

#endif
