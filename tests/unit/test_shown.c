/* Text as its tokens arrive: whole characters, and nothing after the text that ends it. */
#include "src/text/generate/shown.h"

#include "src/base/string/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Each byte is a token; the first is the prompt. `shown` gets the text that is final after each token, with | between
 * steps that show something. */
static void show(const char *text, size_t bytes, const char *stop, char *shown, bool *stopped)
{
    struct sh_tokenizer *tok;
    struct sh_shown s;
    uint32_t ids[64];
    size_t printed = 0;

    assert_int_equal(sh_tokenizer_open("byte", &tok), SH_OK);
    for (size_t i = 0; i < bytes; i++)
        ids[i] = (unsigned char)text[i];
    sh_shown_begin(&s, tok, stop, 1);
    for (size_t n = 2; n <= bytes && !s.stopped; n++) {
        size_t upto;

        assert_int_equal(sh_shown_add(&s, ids, n, n == bytes), SH_OK);
        upto = sh_shown_settled(&s, n == bytes || s.stopped);
        if (upto > printed) {
            memcpy(shown, s.text + printed, upto - printed);
            shown += upto - printed;
            *shown++ = '|';
            printed = upto;
        }
    }
    *shown = '\0';
    *stopped = s.stopped;
    free(s.text);
    sh_tokenizer_close(tok);
}

static void bytes_and_characters(void **state)
{
    static const struct {
        const char *text, *stop, *shown;
        bool stopped;
    } table[] = {
        {"xabc", NULL, "a|b|c|", false},
        {"xa\xd0\xb4\xe6\x97\xa5z", NULL, "a|\xd0\xb4|\xe6\x97\xa5|z|", false},
        {"x\xf0\x9f\x98\x80!", NULL, "\xf0\x9f\x98\x80|!|", false},
        {"xa\xf0\x9f\x98", NULL, "a|\xf0\x9f\x98|", false}, /* cut at the end: shown as it is */
        {"x\x80\x81z", NULL, "\x80|\x81|z|", false},        /* not the start of a character */
        {"x\xe6zz", NULL, "\xe6z|z|", false},
        {"xab\n\ncd", "\n\n", "a|b|", true},
        {"xa\nb\n", "\n\n", "a|\nb|\n|", false}, /* the start of a stop text that did not come */
        {"xaab", "aab", "", true},
        {"xaaab", "aab", "a|", true},
        {"xstop", "stop", "", true},
        {"xsto", "stop", "sto|", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char shown[256];
        bool stopped;

        show(table[i].text, strlen(table[i].text), table[i].stop, shown, &stopped);
        if (strcmp(shown, table[i].shown) != 0 || stopped != table[i].stopped)
            fail_msg("row %zu: '%s'%s", i, shown, stopped ? ", stopped" : "");
    }
}

/* With words: the pieces shown form the text of all tokens minus the prompt's, and are always UTF-8. */
static void words(void **state)
{
    static const char *const names[] = {"llama2", "gpt2", "llama3", "qwen"};
    static const char text[] = "The large house, die Stra\xc3\x9f"
                               "e, \xd0\xb4\xd0\xbe\xd0\xbc \xe6\x97\xa5\xe6\x9c\xac "
                               "\xf0\x9f\x98\x80  two  spaces\n\nend";
    const char *source = getenv("SHERD_SRCDIR");

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512], *all, *prompt;
        size_t all_bytes, prompt_bytes;
        struct sh_tokenizer *tok;
        struct sh_encoder *e;
        struct sh_ids ids = {0};
        struct sh_shown s;

        snprintf(path, sizeof path, "%s/tests/golden/tokenizer/%s.json", source ? source : ".", names[i]);
        if (sh_tokenizer_open(path, &tok) != SH_OK)
            fail_msg("%s", sh_error_text());
        e = sh_encoder_create(tok);
        assert_int_equal(sh_encode(e, text, strlen(text), SH_ENCODE_BEGIN, &ids), SH_OK);
        for (size_t first = 1; first < ids.n; first += 3) {
            sh_shown_begin(&s, tok, NULL, first);
            for (size_t n = first + 1; n <= ids.n; n++) {
                assert_int_equal(sh_shown_add(&s, ids.id, n, n == ids.n), SH_OK);
                if (n < ids.n && s.bytes)
                    assert_int_equal(sh_utf8_check((unsigned char *)s.text, s.bytes), s.bytes);
            }
            assert_int_equal(sh_decode_ids(tok, ids.id, ids.n, false, &all, &all_bytes), SH_OK);
            assert_int_equal(sh_decode_ids(tok, ids.id, first, false, &prompt, &prompt_bytes), SH_OK);
            /* A prompt that ends in the middle of a character ends in U+FFFD, as its text does. */
            if (sh_utf8_check((unsigned char *)prompt, prompt_bytes) == prompt_bytes &&
                memcmp(all, prompt, prompt_bytes) == 0) {
                assert_int_equal(s.bytes, all_bytes - prompt_bytes);
                assert_memory_equal(s.text, all + prompt_bytes, s.bytes);
            }
            free(all);
            free(prompt);
            free(s.text);
        }
        free(ids.id);
        sh_encoder_destroy(e);
        sh_tokenizer_close(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_and_characters),
        cmocka_unit_test(words),
    };
    return cmocka_run_group_tests_name("shown", tests, NULL, NULL);
}
