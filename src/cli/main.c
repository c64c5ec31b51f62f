/* main.c - the command `mpk`: finds the verb, parses its options, runs it.
 *
 * Relies on the table of verbs below and on options.c.  A new verb is a file cmd_VERB.c with a
 * cli_command, its name in cli.h, and one entry here.  Every way out goes through cli_finish, so
 * that output that could not be written is an error whatever the verb says. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* In the order of --help: using models, then what prepares and examines them. */
static const cli_command *const commands[] = {
    &cmd_run,     &cmd_chat,    &cmd_batch,      &cmd_serve,    &cmd_embed,
    &cmd_rank,    &cmd_score,   &cmd_perplexity, &cmd_tokenize, &cmd_quantize,
    &cmd_compile, &cmd_inspect, &cmd_opt,        &cmd_bench,    &cmd_doctor};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Standard output if help was requested, standard error in answer to a bare `mpk`. */
static void print_verbs(FILE *to)
{
    fprintf(to, "mpk %s: a language model as one compiled program\n\n", mpk_version());
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  mpk %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "\nmpk VERB --help tells the options of each, mpk --version the version.\n"
                "A MODEL is a Hugging Face folder, a GGUF file, or an image made by mpk compile.\n"
                "Exit codes: 0 done, 1 failed, 2 wrong usage.\n");
}

/* The struct of arguments is zeroed: 0, false and NULL mean "not given" in every verb. */
static int run_command(const cli_command *command, int argc, char **argv)
{
    bool help;
    void *arguments = calloc(1, command->arguments_bytes);
    if (!arguments)
        return cli_fail(command, "out of memory");
    int code = cli_parse(command, argc, argv, arguments, &help);
    if (help)
        cli_help(command);
    else if (code == CLI_DONE)
        code = command->run(command, arguments);
    free(arguments);
    return cli_finish(command, code);
}

/* A misspelt verb ends with the status for misuse, no verb at all shows the list. */
int main(int argc, char **argv)
{
    const cli_command self = {.name = "", .operands = ""};
    const char *verb = argc > 1 ? argv[1] : "";
    /* A closed pipe, and a file that reaches the limit of its size, then show up as failed writes
     * (EPIPE, EFBIG), handled where the write happens. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(verb, commands[i]->name) == 0)
            return run_command(commands[i], argc - 2, argv + 2);
    if (strcmp(verb, "--version") == 0) {
        printf("mpk %s\n", mpk_version());
        return cli_finish(&self, CLI_DONE);
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0) {
        print_verbs(stdout);
        return cli_finish(&self, CLI_DONE);
    }
    if (!*verb) {
        print_verbs(stderr);
        return CLI_MISUSED;
    }
    fprintf(stderr, "mpk: there is no verb '%s'; mpk --help lists them\n", verb);
    return CLI_MISUSED;
}
