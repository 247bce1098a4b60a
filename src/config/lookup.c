/* Searches in the table of keys, all linear: some 130 rows, searched a few hundred times before a run starts. */
#include "src/config/keys.h"

#include "src/base/string/str.h"

#include <string.h>

/* NULL: no such key. */
const struct sh_config_key *sh_config_key_find(const char *name)
{
    for (int i = 0; i < sh_config_n_keys; i++)
        if (strcmp(sh_config_keys[i].name, name) == 0)
            return &sh_config_keys[i];
    return NULL;
}

/* The whole name if there is no dot. */
int sh_config_section_len(const char *key_name)
{
    return (int)strcspn(key_name, ".");
}

/* Whether row i is the first one of its section. */
bool sh_config_section_starts(int i)
{
    const char *name = sh_config_keys[i].name;
    size_t len = (size_t)sh_config_section_len(name) + 1; /* with the dot, so that no section is a prefix of another */
    return i == 0 || strncmp(name, sh_config_keys[i - 1].name, len) != 0;
}

/* Compares lengths too: "mesh" must not match "meshes". */
bool sh_config_section_known(const char *section)
{
    size_t len = strlen(section);
    for (int i = 0; i < sh_config_n_keys; i++)
        if ((size_t)sh_config_section_len(sh_config_keys[i].name) == len &&
            strncmp(sh_config_keys[i].name, section, len) == 0)
            return true;
    return false;
}

/* NULL: no section is near enough. The result is in `out`. */
const char *sh_config_section_nearest(const char *section, char out[SH_CONFIG_NAME_MAX])
{
    int best = 4; /* a word that differs in more than three letters, or in more than a third, is another word */
    out[0] = '\0';
    for (int i = 0; i < sh_config_n_keys; i++) {
        char name[SH_CONFIG_NAME_MAX];
        snprintf(name, sizeof name, "%.*s", sh_config_section_len(sh_config_keys[i].name), sh_config_keys[i].name);
        int distance = sh_str_distance(section, name);
        if (distance >= best || distance > ((int)strlen(name) + 2) / 3)
            continue;
        best = distance;
        strcpy(out, name);
    }
    return out[0] != '\0' ? out : NULL;
}

/* First find the section, then the key in it: model.n_heds suggests model.n_heads, and so does modle.n_heds. */
const char *sh_config_key_nearest(const char *name)
{
    char section[SH_CONFIG_NAME_MAX], near[SH_CONFIG_NAME_MAX];
    const char *names[SH_CONFIG_KEYS_MAX], *dot = strchr(name, '.'), *in = section, *nearest;
    int n = 0;

    /* A section alone: there is another search for it. */
    if (dot == NULL)
        return NULL;
    snprintf(section, sizeof section, "%.*s", (int)(dot - name), name);
    if (!sh_config_section_known(section))
        in = sh_config_section_nearest(section, near);
    for (int i = 0; in != NULL && i < sh_config_n_keys; i++) {
        size_t length = (size_t)sh_config_section_len(sh_config_keys[i].name);
        if (strlen(in) == length && strncmp(sh_config_keys[i].name, in, length) == 0)
            names[n++] = sh_config_keys[i].name + length + 1;
    }
    nearest = sh_str_nearest(dot + 1, n, names);
    return nearest != NULL ? nearest - strlen(in) - 1 : NULL; /* each is the tail of a whole name */
}
