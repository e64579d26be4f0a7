/* `wherry fetch`: files from a `wherry serve`. */
#include <string.h>

#include "arrival.h"
#include "command.h"
#include "interrupt.h"
#include "visit.h"

typedef struct fetch_options {
    wh_common common;
    const char *output;
    const char *only;
    bool resume;
    bool sync;
    const char *token_file;
    const char *lanes;
    int64_t timeout;
    const char *trace;
} fetch_options;

static const wh_option options_taken[] = {
    {"output", 'o', WH_OPTION_FILE, offsetof(fetch_options, output), "PATH",
     "the file, or the folder, to write (default: the present folder)", 0, 0, NULL},
    {"only", 0, WH_OPTION_TEXT, offsetof(fetch_options, only), "PATTERN",
     "only tensors whose name fits a pattern of the shell, such as 'layers.*'", 0, 0, NULL},
    {"resume", 'r', WH_OPTION_FLAG, offsetof(fetch_options, resume), NULL,
     "go on with what an earlier fetch left: only what is missing or differs is asked for; and keep what has come if "
     "this one "
     "fails",
     0, 0, NULL},
    {"sync", 0, WH_OPTION_FLAG, offsetof(fetch_options, sync), NULL, "end when the bytes are on the disk", 0, 0, NULL},
    {"token-file", 't', WH_OPTION_FILE, offsetof(fetch_options, token_file), "FILE",
     "read the token from this file (default: the environment variable WHERRY_TOKEN, else it is asked for)", 0, 0,
     NULL},
    {"lanes", 0, WH_OPTION_TEXT, offsetof(fetch_options, lanes), "LANES",
     "which lanes may be used, such as stream or ^cma (default: all)", 0, 0, NULL},
    {"trace", 0, WH_OPTION_FILE, offsetof(fetch_options, trace), "FILE",
     "write what was done when, for chrome://tracing or Perfetto: phases, and each range by thread and lane", 0, 0,
     NULL},
    {"timeout", 0, WH_OPTION_NUMBER, offsetof(fetch_options, timeout), "SECONDS",
     "how long to wait for the server to answer (default 30)", 1, 1000000, NULL},
    {.name = NULL},
};

static int run(int argc, char **argv);

const wh_command wh_command_fetch = {
    .name = "fetch",
    .summary = "get checkpoint files from a `wherry serve`",
    .operands = "ADDRESS",
    .least = 1,
    .most = 1,
    .text =
        "Gets the files that are served at an address, byte for byte, over the fastest way that reaches it, and "
        "verifies them by "
        "digests. A file is written beside, as .NAME.part, and has its name when all of it is there and is right.\n\n"
        "Where PATH asks for another format than the file has (.safetensors, .wherry), or with --only, the "
        "tensors are "
        "written in the format of PATH.\n\n"
        "The token is never given as an argument, since others can read those.",
    .options = options_taken,
    .json = true,
    .examples = "WHERRY_TOKEN=... wherry fetch tcp://127.0.0.1:41234 -o model.safetensors\n"
                "wherry fetch tcp://trainer7:29700 --token-file token -o models/ --resume\n"
                "wherry fetch tcp://trainer7:29700 --token-file token -o part.safetensors --only 'layers.0.*'\n",
    .run = run,
};

static wherry_status visit_once(const fetch_options *options, const char *address, wh_arrival *arrival, char wish,
                                wherry_error *error) {
    wh_visit visit = {0};
    wherry_status status = wh_visit_begin(&visit, address, options->token_file, options->timeout, wish, error);
    if (status == WHERRY_OK) {
        status = wh_arrival_receive(arrival, visit.transport, 0, options->lanes, error);
    }
    wh_visit_end(&visit);
    return status;
}

static int run(int argc, char **argv) {
    fetch_options options = {.output = "./", .timeout = 30};
    wh_operands operands;
    wherry_error error;
    wh_bar bar;
    int code;
    if (!wh_options_parse(&wh_command_fetch, argc, argv, &options, &operands, &code)) {
        return code;
    }
    const char *address = operands.items[0];
    if (!wh_is_server(address)) {
        return wh_fail_address(&wh_command_fetch, address);
    }
    wh_interrupt_catch();
    wh_set_log(&options.common);
    wh_bar_begin(&bar, &options.common, "receiving");
    const wh_arrival wishes = {.output = options.output,
                               .only = options.only,
                               .resume = options.resume,
                               .sync = options.sync,
                               .bar = &bar,
                               .trace = options.trace};
    wh_arrival arrival = wishes;
    wherry_status status =
        visit_once(&options, address, &arrival, options.only ? WH_VISIT_STATES : WH_VISIT_BYTES, &error);
    if (status != WHERRY_OK && arrival.needs_states && !options.only) {
        wh_arrival_end(&arrival);
        arrival = wishes;
        status = visit_once(&options, address, &arrival, WH_VISIT_STATES, &error);
    }
    if (status == WHERRY_OK) {
        wh_arrival_tell(&arrival, &options.common);
    }
    wh_arrival_end(&arrival);
    return wh_end_command(&wh_command_fetch, status, &error);
}
