/* Regular expressions of pre-tokenizers, matched by PCRE2. They are written for Oniguruma, so sh_pattern_translate()
 * translates them into equivalent expressions of PCRE2 and refuses the rest. All threads read the compiled code; match
 * data, context and stack belong to one thread. */
#include "src/text/base/expression.h"

#include "sherd_config.h"
#include "src/base/mem.h"
#include "src/text/base/pattern.h"

#include <stdint.h>
#include <stdlib.h>

#ifdef HAVE_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Limit on the steps of one match. The known expressions need a few; a match that backtracks over a long piece is
 * stopped. */
enum { MATCH_LIMIT = 20000000, STACK_BYTES = 1 << 20 };

struct sh_expression_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* Refuse expressions that match the empty string: cutting would make no progress. */
static sh_rc refuse_empty(pcre2_code *code)
{
    uint32_t empty = 0;

    if (pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty) != 0 || empty)
        return sh_fail(SH_E_DATA, "the expression matches the empty string, so it cannot cut text");
    return SH_OK;
}

/* If there is no JIT for the processor, or the system forbids executable memory, matching is slower but the result is
 * the same. */
sh_rc sh_expression_compile(const char *pattern, size_t bytes, void **code, bool *jit)
{
    char *text;
    int error;
    size_t at;

    SH_TRY(sh_pattern_translate(pattern, bytes, &text));
    pcre2_code *made = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
    free(text);
    if (!made) {
        PCRE2_UCHAR what[160];
        pcre2_get_error_message(error, what, sizeof what);
        return sh_fail(SH_E_DATA, "the expression does not compile: %s", (char *)what);
    }
    sh_rc rc = refuse_empty(made);
    if (rc != SH_OK) {
        pcre2_code_free(made);
        return rc;
    }
    *jit = pcre2_jit_compile(made, PCRE2_JIT_COMPLETE) == 0;
    *code = made;
    return SH_OK;
}

void sh_expression_free(void *code)
{
    pcre2_code_free(code);
}

/* One per thread: match data and stacks are written during a match. */
struct sh_expression_scratch *sh_expression_scratch_create(void)
{
    struct sh_expression_scratch *s = sh_calloc(1, sizeof *s);

    s->data = pcre2_match_data_create(1, NULL); /* the whole match only, no groups */
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(32 << 10, STACK_BYTES, NULL); /* NULL without a JIT, which is fine below */
    if (!s->data || !s->context)
        sh_stop(sh_fail(SH_E_MEMORY, "no memory for PCRE2"));
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void sh_expression_scratch_destroy(struct sh_expression_scratch *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

/* A limit on steps, memory or stack was reached: PCRE2 says which. */
static sh_rc refuse_match(int error)
{
    PCRE2_UCHAR what[160];

    pcre2_get_error_message(error, what, sizeof what);
    return sh_fail(SH_E_DATA, "the expression of the pre-tokenizer takes too long for this text (PCRE2: %s)",
                   (char *)what);
}

/* The caller's text is valid UTF-8, so PCRE2 need not check all of it at each match. */
sh_rc sh_expression_next(const void *code, bool jit, struct sh_expression_scratch *s, const unsigned char *text,
                         size_t bytes, size_t from, size_t *begin, size_t *end, bool *found)
{
    int n = jit ? pcre2_jit_match(code, text, bytes, from, PCRE2_NO_UTF_CHECK, s->data, s->context)
                : pcre2_match(code, text, bytes, from, PCRE2_NO_UTF_CHECK, s->data, s->context);

    *found = n >= 0;
    if (n < 0)
        return n == PCRE2_ERROR_NOMATCH ? SH_OK : refuse_match(n);
    *begin = pcre2_get_ovector_pointer(s->data)[0];
    *end = pcre2_get_ovector_pointer(s->data)[1];
    return *end > *begin ? SH_OK : sh_fail(SH_E_DATA, "the expression of the pre-tokenizer matches the empty string");
}

/* Without PCRE2, tokenizers still work if no expression cuts the text; the others are refused when the file is read. */
#else

static sh_rc refuse(void)
{
    return sh_fail(SH_E_DATA,
                   "its pre-tokenizer is a regular expression, and this Sherd was built without PCRE2 (Debian: "
                   "libpcre2-dev); configure and build it again");
}

sh_rc sh_expression_compile(const char *pattern, size_t bytes, void **code, bool *jit)
{
    (void)pattern, (void)bytes, (void)code, (void)jit;
    return refuse();
}

void sh_expression_free(void *code)
{
    (void)code;
}

struct sh_expression_scratch *sh_expression_scratch_create(void)
{
    return NULL;
}

void sh_expression_scratch_destroy(struct sh_expression_scratch *s)
{
    (void)s;
}

sh_rc sh_expression_next(const void *code, bool jit, struct sh_expression_scratch *s, const unsigned char *text,
                         size_t bytes, size_t from, size_t *begin, size_t *end, bool *found)
{
    (void)code, (void)jit, (void)s, (void)text, (void)bytes, (void)from, (void)begin, (void)end, (void)found;
    return refuse();
}

#endif
