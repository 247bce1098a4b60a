/* What the library `tokenizers` regards as letters, numbers, words and composed characters, extracted from it by
 * tests/gold/unicode.py. The tables are our own because regular expressions or normal forms of the machine's libraries
 * would make ids depend on the libraries' version of Unicode. */
#ifndef IO_TOKEN_UNICODE_H
#define IO_TOKEN_UNICODE_H

#include <stdint.h>

enum { SH_UNICODE_END = 0x110000 };

struct sh_range {
    uint32_t first, last;
};

struct sh_combining {
    uint32_t first, last;
    int class; /* never 0 */
};

struct sh_decomposed {
    uint32_t code, a, b; /* one step of decomposition; b 0: a alone */
};

struct sh_composed {
    uint32_t a, b, code;
};

/* General categories, numbered as in the low five bits of sh_unicode_category: an entry is code << 5 | category and
 * holds up to the next entry. */
enum sh_category {
    SH_CN,
    SH_LU,
    SH_LL,
    SH_LT,
    SH_LM,
    SH_LO,
    SH_MN,
    SH_MC,
    SH_ME,
    SH_ND,
    SH_NL,
    SH_NO,
    SH_PC,
    SH_PD,
    SH_PS,
    SH_PE,
    SH_PI,
    SH_PF,
    SH_PO,
    SH_SM,
    SH_SC,
    SH_SK,
    SH_SO,
    SH_ZS,
    SH_ZL,
    SH_ZP,
    SH_CC,
    SH_CF,
    SH_CO,
};
extern const uint32_t sh_unicode_category[];
extern const int sh_unicode_category_n;

/* All sorted by their first code point. */
extern const struct sh_range sh_unicode_han[], sh_unicode_hiragana[], sh_unicode_katakana[], sh_unicode_hangul[];
extern const int sh_unicode_han_n, sh_unicode_hiragana_n, sh_unicode_katakana_n, sh_unicode_hangul_n;

extern const struct sh_range sh_unicode_numeric[],
    sh_unicode_word[]; /* for Digits; next to a token that must be a single word */
extern const int sh_unicode_numeric_n, sh_unicode_word_n;

extern const struct sh_combining sh_unicode_combining[];
extern const int sh_unicode_combining_n;
extern const struct sh_decomposed sh_unicode_decomposed[]; /* without Hangul syllables, which are computed */
extern const int sh_unicode_decomposed_n;
extern const struct sh_composed sh_unicode_composed[]; /* sorted by a, then b */
extern const int sh_unicode_composed_n;

#endif
