/* Completion for bash and zsh, from the tables of commands, options and keys. The keys are printed by
 * sh_config_help(). */
#include "src/cmd/cmd.h"

#include <string.h>

/* The verbs of a command, such as info and verify of ckpt: the lower-case words with which its arguments may begin. */
static void print_verbs(FILE *out, const char *arguments)
{
    for (const char *word = arguments; *word; word += strcspn(word, "|"), word += *word == '|') {
        word += strspn(word, " ");
        size_t length = strspn(word, "abcdefghijklmnopqrstuvwxyz");

        if (length && (word[length] == '\0' || strchr(" |", word[length])))
            fprintf(out, " %.*s", (int)length, word);
    }
}

/* help takes the name of a command, or all. */
static void print_positional(FILE *out, const struct sh_cmd *c)
{
    if (c->run != sh_cmd_help_run) {
        print_verbs(out, c->arguments);
        return;
    }
    fputs(" all", out);
    for (const struct sh_cmd *other = sh_commands; other->name; other++)
        fprintf(out, " %s", other->name);
}

/* All words that are possible in each position. The value of an option is completed as a file name, since most are. */
static void bash_command(FILE *out, const struct sh_cmd *c)
{
    fprintf(out, "    %s)\n        words='", c->name);
    print_positional(out, c);
    fputs("'\n        options='", out);
    for (const struct sh_cmd_option *o = sh_cmd_listed(c->options); o->name; o = sh_cmd_listed(o + 1))
        fprintf(out, " %s", o->name);
    fprintf(out, " --help'\n        config=%s\n        ;;\n", c->config ? "yes" : "");
}

/* "--training.dtype=b" reaches the function as three words, since "=" separates words for bash. */
static const char bash_end[] =
    "    esac\n"
    "}\n\n"
    "_sherd_examples() {\n"
    "    local sherd file\n"
    "    sherd=$(command -v sherd) || return\n"
    "    for file in \"${sherd%/*}\"/../share/sherd/examples/*.yaml; do\n"
    "        [ ! -e \"$file\" ] || basename \"$file\" .yaml\n"
    "    done\n"
    "}\n\n"
    "_sherd_reply() {\n"
    "    local line\n"
    "    while IFS= read -r line; do COMPREPLY+=(\"$line\"); done\n"
    "}\n\n"
    "_sherd() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} key='' words='' options='' config=''\n"
    "    COMPREPLY=()\n"
    "    if [ \"$cur\" = = ]; then\n"
    "        key=$prev cur=''\n"
    "    elif [ \"$prev\" = = ]; then\n"
    "        key=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n"
    "    if [ -n \"$key\" ]; then\n"
    "        words=$(_sherd_values \"${key#--}\")\n"
    "        if [ -n \"$words\" ]; then\n"
    "            _sherd_reply < <(compgen -W \"$words\" -- \"$cur\")\n"
    "        else\n"
    "            _sherd_reply < <(compgen -f -- \"$cur\")\n"
    "        fi\n"
    "        return\n"
    "    fi\n"
    "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
    "        _sherd_reply < <(compgen -W \"$_sherd_commands\" -- \"$cur\")\n"
    "        return\n"
    "    fi\n"
    "    _sherd_command \"${COMP_WORDS[1]}\"\n"
    "    case $cur in\n"
    "    -*)\n"
    "        _sherd_reply < <(compgen -W \"$options\" -- \"$cur\")\n"
    "        [ -z \"$config\" ] || _sherd_reply < <(compgen -W \"$_sherd_keys\" -- \"$cur\")\n"
    "        case ${COMPREPLY[0]-} in *=) compopt -o nospace 2>/dev/null || : ;; esac\n"
    "        ;;\n"
    "    *)\n"
    "        _sherd_reply < <(compgen -W \"$words\" -- \"$cur\")\n"
    "        [ -z \"$config\" ] || _sherd_reply < <(compgen -W \"$(_sherd_examples)\" -- \"$cur\")\n"
    "        _sherd_reply < <(compgen -f -- \"$cur\")\n"
    "        ;;\n"
    "    esac\n"
    "}\n\n"
    "complete -o filenames -F _sherd sherd\n";

void sh_cmd_complete_bash(FILE *out)
{
    fputs("# Completion of sherd for bash, made from its tables of commands and keys.\n\n_sherd_commands='", out);
    for (const struct sh_cmd *c = sh_commands; c->name; c++)
        fprintf(out, " %s", c->name);
    fputs("'\n\n", out);
    sh_config_help(out, SH_HELP_BASH);
    fputs("_sherd_command() {\n    case $1 in\n", out);
    for (const struct sh_cmd *c = sh_commands; c->name; c++)
        bash_command(out, c);
    fputs(bash_end, out);
}

/* Text within single quotes of the shell. Colons and brackets are escaped, because _arguments and _describe use them
 * themselves. */
static void zsh_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (strchr(":[]\\", *text))
            fputc('\\', out);
        fputs(*text == '\'' ? "'\\''" : (char[2]){*text, '\0'}, out);
    }
}

static void zsh_option(FILE *out, const struct sh_cmd_option *o)
{
    fprintf(out, "        '%s%s[", o->name, !o->value ? "" : o->name[1] == '-' ? "=" : "");
    zsh_text(out, o->help);
    if (o->value)
        fprintf(out, "]:%s:_files'\n", o->value);
    else
        fputs("]'\n", out);
}

static void zsh_command(FILE *out, const struct sh_cmd *c)
{
    fprintf(out, "    %s)\n        words_here=(", c->name);
    print_positional(out, c);
    fputs(" )\n        options=(\n", out);
    for (const struct sh_cmd_option *o = sh_cmd_listed(c->options); o->name; o = sh_cmd_listed(o + 1))
        zsh_option(out, o);
    fprintf(out, "        )\n%s        ;;\n", c->config ? "        options+=($_sherd_keys)\n" : "");
}

void sh_cmd_complete_zsh(FILE *out)
{
    fputs("#compdef sherd\n# Completion of sherd for zsh, made from its tables of commands and keys.\n\n", out);
    sh_config_help(out, SH_HELP_ZSH);
    fputs("_sherd_what() {\n"
          "    local -a found\n"
          "    found=(${commands[sherd]:h}/../share/sherd/examples/*.yaml(N:t:r))\n"
          "    compadd -a words_here\n"
          "    compadd -a found\n"
          "    _files\n"
          "}\n\n"
          "_sherd() {\n"
          "    local -a names options words_here\n"
          "    names=(\n",
          out);
    for (const struct sh_cmd *c = sh_commands; c->name; c++) {
        fprintf(out, "        '%s:", c->name);
        zsh_text(out, c->brief);
        fputs("'\n", out);
    }
    fputs(
        "    )\n    if (( CURRENT == 2 )); then\n        _describe command names\n        return\n    fi\n    case $words[2] in\n",
        out);
    for (const struct sh_cmd *c = sh_commands; c->name; c++)
        zsh_command(out, c);
    fputs(
        "    esac\n    shift words\n    (( CURRENT-- ))\n    _arguments -S $options '*:argument:_sherd_what'\n}\n\n_sherd \"$@\"\n",
        out);
}
