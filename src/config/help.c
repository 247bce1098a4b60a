/* The help of the keys, as text, man page and Markdown. Everything comes from the table of keys: the accepted values
 * are printed from the words and bounds that check them. */
#include "src/config/foreign/alias.h"
#include "src/config/keys.h"
#include "src/config/read/value.h"

#include "src/base/string/str.h"

#include <string.h>

enum { FACTS_MAX = 1280, WIDTH = 74 };

/* The accepted values: "false | true", "1 .. 64 units", "auto | 1 .. 1048576 ranks". */
static const char *accepted(const struct sh_config_key *key, char out[FACTS_MAX])
{
    char words[SH_CONFIG_WORDS_MAX], also[SH_CONFIG_WORDS_MAX], range[SH_CONFIG_NAME_MAX];
    sh_config_value_words(key, words);
    sh_config_value_range(key, range);
    sh_config_alias_words(key->name, also);
    if (key->only_words)
        snprintf(out, FACTS_MAX, "%s%s%s", words, also[0] != '\0' ? "; also: " : "", also);
    else if (key->type == SH_KEY_STRING)
        snprintf(out, FACTS_MAX, "%s",
                 key->pairs    ? "name=value,name=value, or a mapping"
                 : key->groups ? "key=value key=value; ..., or a list of mappings"
                               : "text");
    else
        snprintf(out, FACTS_MAX, "%s%s%s%s%s%s", words, words[0] != '\0' ? " | " : "",
                 key->type == SH_KEY_DOUBLE ? "number " : "", range, key->unit != NULL ? " " : "",
                 key->unit != NULL ? key->unit : "");
    return out;
}

/* A key without a default has a sentence instead, such as "the preset's". */
static const char *default_of(const struct sh_config_key *key)
{
    if (key->def == NULL)
        return key->derived;
    return key->def[0] != '\0' ? key->def : "\"\"";
}

/* The introduction, the same in all forms. */
static const char intro[] =
    "A configuration is a YAML file of sections with keys below them. Each key can also be given on the command line, "
    "as --section.key=value, which takes precedence. Unknown keys, keys given twice and values that do not fit are "
    "errors.";

/* Only the introduction. */
static void text_header(FILE *out)
{
    sh_str_wrap(out, WIDTH, 0, 0, intro);
    fputc('\n', out);
}

/* Printed as in a file, so that it can be copied. */
static void text_section(FILE *out, int len, const char *name)
{
    fprintf(out, "%.*s:\n", len, name);
}

/* Name, then values and default, then meaning: three indented lines or more. */
static void text_key(FILE *out, const struct sh_config_key *key)
{
    char facts[FACTS_MAX], both[2 * FACTS_MAX];
    fprintf(out, "  %s\n", strchr(key->name, '.') + 1);
    snprintf(both, sizeof both, "%s; default: %s", accepted(key, facts), default_of(key));
    sh_str_wrap(out, WIDTH, 0, 6, both);
    if (key->alias_of != NULL)
        fprintf(out, "      Another name for %s.\n", key->alias_of);
    sh_str_wrap(out, WIDTH, 0, 6, key->help);
}

/* A dot or apostrophe at the start of a line is a request to roff, and a backslash anywhere an escape. */
static void roff_text(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    /* A bare dash would become a hyphen. */
    for (; *text != '\0'; text++)
        fputs(*text == '\\' ? "\\e" : *text == '-' ? "\\-" : (char[2]){*text, '\0'}, out);
}

/* `before` is roff itself and not escaped. */
static void roff_line(FILE *out, const char *before, const char *text)
{
    fputs(before, out);
    roff_text(out, text);
    fputc('\n', out);
}

/* Section 5: file formats. */
static void roff_header(FILE *out)
{
    fputs(
        ".TH SHERD\\-CONFIG 5\n.nh\n.ad l\n.SH NAME\nsherd\\-config \\- configuration of a training run\n.SH DESCRIPTION\n",
        out);
    roff_line(out, "", intro);
    fputs(".SH KEYS\n", out);
}

/* A subsection of KEYS. */
static void roff_section(FILE *out, int len, const char *name)
{
    fprintf(out, ".SS %.*s\n", len, name);
}

/* .TP makes a paragraph with a hanging tag. */
static void roff_key(FILE *out, const struct sh_config_key *key)
{
    char facts[FACTS_MAX];
    roff_line(out, ".TP\n.B ", strchr(key->name, '.') + 1);
    roff_line(out, "", accepted(key, facts));
    roff_line(out, ".br\nDefault: ", default_of(key));
    if (key->alias_of != NULL)
        roff_line(out, ".br\nAnother name for ", key->alias_of);
    roff_line(out, ".br\n", key->help);
}

/* In a table of Markdown a bar ends the cell. */
static void markdown_cell(FILE *out, const char *text)
{
    fputs(" ", out);
    for (; *text != '\0'; text++)
        fputs(*text == '|' ? "\\|" : *text == '_' ? "\\_" : (char[2]){*text, '\0'}, out);
    fputs(" |", out);
}

/* The start of the page in doc/. */
static void markdown_header(FILE *out)
{
    fputs("# Keys of the configuration\n\n", out);
    sh_str_wrap(out, WIDTH, 0, 0, intro);
}

/* One table for each section. */
static void markdown_section(FILE *out, int len, const char *name)
{
    fprintf(out, "\n## %.*s\n\n| key | value | default | meaning |\n|---|---|---|---|\n", len, name);
}

/* One row of the table of its section. */
static void markdown_key(FILE *out, const struct sh_config_key *key)
{
    char facts[FACTS_MAX], meaning[2 * FACTS_MAX];
    fprintf(out, "| `%s` |", strchr(key->name, '.') + 1);
    markdown_cell(out, accepted(key, facts));
    markdown_cell(out, default_of(key));
    snprintf(meaning, sizeof meaning, "%s%s%s%s", key->alias_of != NULL ? "Another name for " : "",
             key->alias_of != NULL ? key->alias_of : "", key->alias_of != NULL ? ". " : "", key->help);
    markdown_cell(out, meaning);
    fputc('\n', out);
}

/* ---- for completion: the shells' own code, see src/cmd/completion.c ---- */

/* For forms that print nothing for a section. */
static void no_section(FILE *out, int len, const char *name)
{
    (void)out, (void)len, (void)name;
}

/* "--section.key=" for all keys, and the start of a function that prints the words of a key. */
static void bash_header(FILE *out)
{
    fputs("_sherd_keys='", out);
    for (int i = 0; i < sh_config_n_keys; i++)
        fprintf(out, " --%s=", sh_config_keys[i].name);
    fputs("'\n\n_sherd_values() {\n    case $1 in\n", out);
}

/* Separated by blanks. */
static void words_of(FILE *out, const struct sh_config_key *key)
{
    if (key->type == SH_KEY_BOOL)
        fputs("false true", out);
    for (const struct sh_config_word *w = key->words; key->type != SH_KEY_BOOL && w != NULL && w->name != NULL; w++)
        fprintf(out, "%s%s", w == key->words ? "" : " ", w->name);
}

/* Prints nothing for a key of numbers or text. */
static void bash_key(FILE *out, const struct sh_config_key *key)
{
    if (key->type != SH_KEY_BOOL && key->words == NULL)
        return;
    fprintf(out, "    %s) echo '", key->name);
    words_of(out, key);
    fputs("' ;;\n", out);
}

static void bash_footer(FILE *out)
{
    fputs("    esac\n}\n\n", out);
}

/* Specifications of zsh's _arguments. */
static void zsh_header(FILE *out)
{
    fputs("typeset -ga _sherd_keys\n_sherd_keys=(\n", out);
}

/* With the first sentence of its help; its colons and brackets are escaped, because _arguments uses them itself. */
static void zsh_key(FILE *out, const struct sh_config_key *key)
{
    const char *end = strstr(key->help, ". ");

    fprintf(out, "    '--%s=[", key->name);
    for (const char *c = key->help; *c != '\0' && c != end; c++) {
        if (strchr(":[]\\", *c) != NULL)
            fputc('\\', out);
        fputs(*c == '\'' ? "'\\''" : (char[2]){*c, '\0'}, out);
    }
    if (key->type == SH_KEY_STRING && key->words == NULL) {
        fputs("]:value:_files'\n", out);
        return;
    }
    fputs("]:value:(", out);
    words_of(out, key);
    fputs(")'\n", out);
}

static void zsh_footer(FILE *out)
{
    fputs(")\n\n", out);
}

static void no_footer(FILE *out)
{
    (void)out;
}

/* Keys of a section are adjacent in the table, so the heading of a section is due when the name before the dot
 * changes. */
void sh_config_help(FILE *out, enum sh_config_help form)
{
    static const struct {
        void (*header)(FILE *out);
        void (*section)(FILE *out, int len, const char *name);
        void (*key)(FILE *out, const struct sh_config_key *key);
        void (*footer)(FILE *out);
    } forms[] = {
        [SH_HELP_TEXT] = {.header = text_header, .section = text_section, .key = text_key, .footer = no_footer},
        [SH_HELP_ROFF] = {.header = roff_header, .section = roff_section, .key = roff_key, .footer = no_footer},
        [SH_HELP_MARKDOWN] = {.header = markdown_header,
                              .section = markdown_section,
                              .key = markdown_key,
                              .footer = no_footer},
        [SH_HELP_BASH] = {.header = bash_header, .section = no_section, .key = bash_key, .footer = bash_footer},
        [SH_HELP_ZSH] = {.header = zsh_header, .section = no_section, .key = zsh_key, .footer = zsh_footer},
    };
    /* One walk through the table for all forms. */
    forms[form].header(out);
    for (int i = 0; i < sh_config_n_keys; i++) {
        const char *name = sh_config_keys[i].name;
        if (sh_config_section_starts(i))
            forms[form].section(out, sh_config_section_len(name), name);
        forms[form].key(out, &sh_config_keys[i]);
    }
    forms[form].footer(out);
}

bool sh_config_help_key(FILE *out, const char *name)
{
    for (int i = 0; i < sh_config_n_keys; i++)
        if (!strcmp(sh_config_keys[i].name, name)) {
            text_section(out, sh_config_section_len(name), name);
            text_key(out, &sh_config_keys[i]);
            return true;
        }
    return false;
}
