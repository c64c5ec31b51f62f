/* options.c - parsing and --help from a verb's table of options.
 *
 * Input: a table and argv; output: the verb's struct of arguments.  Accepted: --name VALUE,
 * --name=VALUE, -n VALUE, -nVALUE, -- before operands that begin with a dash.  A lone dash is an
 * operand (standard input).
 *
 * Numbers are checked against the table's bounds here, so verbs need not look at them again; what
 * depends on two options at once is the verb's business.  Called by main.c alone. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"

/* argv[at] is the word at hand; next_operand is the row of the next word that is not an option. */
typedef struct parser {
    const cli_command *command;
    char **argv;
    int argc, at;
    char *base; /* the struct of arguments */
    const cli_option *next_operand;
    bool given[CLI_MAX_OPTIONS]; /* by row of the table */
} parser;

/* One past the last row; tables have no terminator. */
static const cli_option *end_of(const cli_command *c)
{
    return c->options + c->n_options;
}

/* Names must be given in full: --thread is not --threads. */
static const cli_option *find_name(const cli_command *c, const char *name, size_t n)
{
    for (const cli_option *o = c->options; o < end_of(c); o++)
        if (o->type != CLI_OPERAND && o->name && strlen(o->name) == n &&
            memcmp(o->name, name, n) == 0)
            return o;
    return NULL;
}

/* A row without a letter has 0, which no word of argv can hold: only "-" alone could, and that is
 * an operand. */
static const cli_option *find_letter(const cli_command *c, char letter)
{
    for (const cli_option *o = c->options; o < end_of(c); o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

/* The option as the user writes it: --name or -x. */
static const char *shown_name(const cli_option *o, char buffer[64])
{
    if (o->name)
        snprintf(buffer, 64, "--%s", o->name);
    else
        snprintf(buffer, 64, "-%c", o->letter);
    return buffer;
}

/* Digits only: no sign, blank or suffix, and at most what 64 bits hold. */
static bool parse_unsigned(const char *word, uint64_t *value)
{
    char *end;
    errno = 0;
    if (*word < '0' || *word > '9')
        return false;
    *value = strtoull(word, &end, 10);
    return !*end && errno == 0;
}

/* What strtod accepts, except infinities and NaN. */
static bool parse_number(const char *word, double *value)
{
    char *end;
    *value = strtod(word, &end);
    return end != word && !*end && isfinite(*value);
}

/* Index of a word among "a|b|c", or -1. */
static int find_choice(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (int i = 0;; i++) {
        size_t length = strcspn(choices, "|");
        if (length == n && memcmp(choices, word, n) == 0)
            return i;
        choices += length;
        if (!*choices++)
            return -1;
    }
}

/* A row without bounds has both 0. */
static bool is_within(const cli_option *o, double value)
{
    return (o->least == 0 && o->most == 0) || (value >= o->least && value <= o->most);
}

/* Report the word given and what was expected in its place. */
static int refuse_number(parser *p, const cli_option *o, const char *word, const char *kind)
{
    char name[64];
    if (o->least == 0 && o->most == 0)
        return cli_misuse(p->command, "%s: '%s' is not %s", shown_name(o, name), word, kind);
    return cli_misuse(p->command, "%s: '%s' is not %s from %.10g to %.10g", shown_name(o, name),
                      word, kind, o->least, o->most);
}

/* The four functions below store a word that is valid for the row's type and lies within the
 * row's bounds. */
static int set_number(parser *p, const cli_option *o, const char *word, cli_number *to)
{
    double value;
    if (!parse_number(word, &value) || !is_within(o, value))
        return refuse_number(p, o, word, "a number");
    *to = (cli_number){true, (float)value};
    return CLI_DONE;
}

/* A whole number that may be 0, hence `given` beside it. */
static int set_whole(parser *p, const cli_option *o, const char *word, cli_whole *to)
{
    uint64_t value;
    if (!parse_unsigned(word, &value) || !is_within(o, (double)value))
        return refuse_number(p, o, word, "a whole number");
    *to = (cli_whole){true, value};
    return CLI_DONE;
}

/* `most` of every such row is below 2^32, so that the value fits. */
static int set_count(parser *p, const cli_option *o, const char *word, uint32_t *to)
{
    cli_whole whole;
    int code = set_whole(p, o, word, &whole);
    if (code == CLI_DONE)
        *to = (uint32_t)whole.value;
    return code;
}

/* An option that may be given several times; its words stay in the order of the command line. */
static int set_list(parser *p, const cli_option *o, const char *word, cli_list *list)
{
    char name[64];
    if (list->n == CLI_MAX_LIST)
        return cli_misuse(p->command, "%s: more than %d times", shown_name(o, name), CLI_MAX_LIST);
    list->at[list->n++] = word;
    return CLI_DONE;
}

/* What follows the last colon is a scale if it is a number; the word is cut there. */
static int set_adapter(parser *p, const cli_option *o, char *word, cli_adapters *to)
{
    char name[64], *colon = strrchr(word, ':');
    double scale = 1, found;
    if (to->n == CLI_MAX_LIST)
        return cli_misuse(p->command, "%s: more than %d times", shown_name(o, name), CLI_MAX_LIST);
    if (colon && !file_exists(word) && parse_number(colon + 1, &found)) {
        *colon = 0;
        scale = found;
    }
    if (!*word)
        return cli_misuse(p->command, "%s: the path is empty", shown_name(o, name));
    to->at[to->n++] = (mpk_adapter){word, (float)scale};
    return CLI_DONE;
}

/* Put a word into the member of the row.  A flag has no word.  Words are borrowed from argv.
 * o->offset is where in the command's own structure the value goes. */
static int set_value(parser *p, const cli_option *o, char *word)
{
    char name[64];
    void *to = p->base + o->offset;
    switch (o->type) {
    case CLI_OPERAND:
    case CLI_TEXT:
        *(const char **)to = word;
        return CLI_DONE;
    case CLI_FLAG:
        *(bool *)to = true;
        return CLI_DONE;
    case CLI_COUNT:
        return set_count(p, o, word, to);
    case CLI_NUMBER:
        return set_number(p, o, word, to);
    case CLI_WHOLE:
        return set_whole(p, o, word, to);
    case CLI_CHOICE:
        *(int *)to = find_choice(o->value, word);
        if (*(int *)to < 0)
            return cli_misuse(p->command, "%s: '%s' is none of %s", shown_name(o, name), word,
                              o->value);
        return CLI_DONE;
    case CLI_LIST:
        return set_list(p, o, word, to);
    case CLI_ADAPTER:
        return set_adapter(p, o, word, to);
    }
    return CLI_MISUSED;
}

/* Parse the option at p->at, whose value is `attached` to it or the next word. */
static int take_option(parser *p, const cli_option *o, char *attached)
{
    char name[64];
    p->given[o - p->command->options] = true;
    if (o->type == CLI_FLAG) {
        if (attached)
            return cli_misuse(p->command, "%s takes no value", shown_name(o, name));
        return set_value(p, o, NULL);
    }
    if (!attached && p->at + 1 >= p->argc)
        return cli_misuse(p->command, "%s needs a value, %s", shown_name(o, name), o->value);
    return set_value(p, o, attached ? attached : p->argv[++p->at]);
}

/* Operands are rows like options, in the order in which they are expected. */
static int take_operand(parser *p, char *word)
{
    while (p->next_operand < end_of(p->command) && p->next_operand->type != CLI_OPERAND)
        p->next_operand++;
    if (p->next_operand == end_of(p->command))
        return cli_misuse(p->command, "'%s' is one word too many", word);
    return set_value(p, p->next_operand++, word);
}

/* An option with one dash or two, and its value. */
static int take_word(parser *p, char *word)
{
    const cli_command *c = p->command;
    if (word[1] == '-') {
        size_t n = strcspn(word + 2, "=");
        const cli_option *o = find_name(c, word + 2, n);
        if (!o)
            return cli_misuse(c, "there is no option --%.*s", (int)n, word + 2);
        return take_option(p, o, word[2 + n] ? word + 3 + n : NULL);
    }
    const cli_option *o = find_letter(c, word[1]);
    if (!o)
        return cli_misuse(c, "there is no option -%c", word[1]);
    if (o->type == CLI_FLAG && word[2])
        return cli_misuse(c, "'%s': give one-letter options one by one", word);
    return take_option(p, o, word[2] ? word + 2 : NULL);
}

/* Is one of the options given that o->needs names? */
static bool has_needed(const parser *p, const cli_option *o)
{
    for (const char *word = o->needs; *word;) {
        size_t n = strcspn(word, "|");
        const cli_option *needed = find_name(p->command, word, n);
        if (needed && p->given[needed - p->command->options])
            return true;
        word += n + (word[n] == '|');
    }
    return false;
}

/* Check that required operands are present, and that options which need another option have it. */
static int check_complete(const parser *p)
{
    const cli_command *c = p->command;
    char name[64];
    for (const cli_option *o = c->options; o < end_of(c); o++) {
        if (o->type == CLI_OPERAND && o->required && !*(const char **)(p->base + o->offset))
            return cli_misuse(c, "%s is missing: %s", o->name, o->help);
        if (o->needs && p->given[o - c->options] && !has_needed(p, o))
            return cli_misuse(c, "%s says nothing without --%s", shown_name(o, name), o->needs);
    }
    return CLI_DONE;
}

/* --help counts at any position, except as the value of an option: in -p --help it is a text.
 * Everything after "--" is an operand, and so is "-" alone. */
int cli_parse(const cli_command *command, int argc, char **argv, void *arguments, bool *help)
{
    parser p = {command, argv, argc, 0, arguments, command->options, {false}};
    bool only_operands = false;
    *help = false;
    for (; p.at < argc; p.at++) {
        char *word = argv[p.at];
        if (!only_operands && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            *help = true;
            return CLI_DONE;
        }
        if (!only_operands && strcmp(word, "--") == 0) {
            only_operands = true;
            continue;
        }
        int code = only_operands || word[0] != '-' || !word[1] ? take_operand(&p, word)
                                                               : take_word(&p, word);
        if (code != CLI_DONE)
            return code;
    }
    return check_complete(&p);
}

/* ---- help ---- */

/* Names that are too long for the column get a line of their own. */
static void print_row(const cli_option *o)
{
    char left[96];
    const char *value = o->type == CLI_FLAG || o->type == CLI_OPERAND ? "" : o->value;
    if (o->type == CLI_OPERAND)
        snprintf(left, sizeof left, "%s", o->name);
    else if (!o->name)
        snprintf(left, sizeof left, "-%c %s", o->letter, value);
    else if (o->letter)
        snprintf(left, sizeof left, "-%c, --%s%s%s", o->letter, o->name, *value ? " " : "", value);
    else
        snprintf(left, sizeof left, "--%s%s%s", o->name, *value ? "=" : "", value);
    printf(strlen(left) <= 28 ? "  %-28s  %s\n" : "  %s\n                                %s\n",
           left, o->help);
}

/* Operands first, then the options in the order of the table, which is the order of importance. */
void cli_help(const cli_command *command)
{
    printf("mpk %s%s%s\n%s\n\n", command->name, *command->operands ? " " : "", command->operands,
           command->summary);
    for (const cli_option *o = command->options; o < end_of(command); o++)
        if (o->type == CLI_OPERAND)
            print_row(o);
    for (const cli_option *o = command->options; o < end_of(command); o++)
        if (o->type != CLI_OPERAND)
            print_row(o);
    printf("  %-28s  %s\n", "-h, --help", "this text");
    if (command->notes)
        printf("\n%s\n", command->notes);
}
