/* The smallest MCP server: one line in, one line out, the text given back as content.
 *
 *   stub            answers until end of input, then exits
 *   stub -s CMD     begins a session and becomes another program
 *   stub -c DIR CMD moves into a cgroup and becomes another program
 *   stub -w N       first forks N children that ignore every signal they can, and stays with them
 *
 * Fast on purpose. What a wrapper adds must not drown in what the server does. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void out(const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t done = write(1, bytes, n);
        if (done <= 0) exit(1);
        bytes += done;
        n -= (size_t)done;
    }
}

static void answer(char *line, size_t n) {
    static char *reply;
    static size_t room;
    char *id = memmem(line, n < 64 ? n : 64, "\"id\":", 5);
    if (!id) return; /* a notification */
    long number = strtol(id + 5, NULL, 10);
    if (room < n + 256) {
        room = 2 * n + 256;
        reply = realloc(reply, room);
        if (!reply) exit(1);
    }
    int head;
    if (memmem(line, n < 128 ? n : 128, "\"initialize\"", 12)) {
        head = sprintf(reply, "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"result\":{\"protocolVersion\":"
            "\"2025-06-18\",\"capabilities\":{\"tools\":{}},"
            "\"serverInfo\":{\"name\":\"stub\",\"version\":\"1\"}}}\n", number);
        out(reply, (size_t)head);
        return;
    }
    char *text = memmem(line, n < 256 ? n : 256, "\"text\":\"", 8);
    char *end = memrchr(line, '"', n);
    size_t length = text && end > text + 8 ? (size_t)(end - text - 8) : 0;
    head = sprintf(reply, "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"result\":{\"content\":[{"
        "\"type\":\"text\",\"text\":\"", number);
    if (length) memcpy(reply + head, text + 8, length);
    memcpy(reply + head + length, "\"}]}}\n", 6);
    out(reply, (size_t)head + length + 6);
}

static void deafen(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "-s")) {
        setsid();
        execvp(argv[2], argv + 2);
        return 127;
    }
    if (argc > 3 && !strcmp(argv[1], "-c")) {
        if (chdir(argv[2])) return 125;
        FILE *members = fopen("cgroup.procs", "w");
        if (!members || fputs("0", members) < 0 || fclose(members)) return 125;
        execvp(argv[3], argv + 3);
        return 127;
    }
    int wide = argc == 3 && !strcmp(argv[1], "-w") ? atoi(argv[2]) : 0;
    if (wide) deafen();
    for (int i = 0; i < wide; i++) {
        if (fork() == 0) {
            for (int age = 0; age < 120; age++) sleep(1); /* the bench itself must not leak */
            _exit(0);
        }
    }
    size_t room = 1 << 16, have = 0;
    char *buffer = malloc(room);
    if (!buffer) return 1;
    for (;;) {
        if (have == room) {
            room *= 2;
            buffer = realloc(buffer, room);
            if (!buffer) return 1;
        }
        ssize_t got = read(0, buffer + have, room - have);
        if (got <= 0) break;
        size_t from = have, start = 0;
        have += (size_t)got;
        char *newline;
        while ((newline = memchr(buffer + from, '\n', have - from))) {
            size_t end = (size_t)(newline - buffer);
            answer(buffer + start, end - start);
            start = from = end + 1;
        }
        memmove(buffer, buffer + start, have - start);
        have -= start;
    }
    for (int age = 0; wide && age < 120; age++) sleep(1);
    return 0;
}
