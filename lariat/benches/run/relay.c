/* The smallest relay in C: fork the server, poll, read, write. The floor for any wrapper that
 * copies bytes. Usage: relay command args... */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static char buffer[1 << 16];

/* Moves what is there. Returns 0 when the source has ended or the sink is gone. */
static int move(int from, int to) {
    ssize_t got = read(from, buffer, sizeof buffer);
    if (got <= 0) return 0;
    for (ssize_t sent = 0; sent < got;) {
        ssize_t done = write(to, buffer + sent, (size_t)(got - sent));
        if (done <= 0) return 0;
        sent += done;
    }
    return 1;
}

int main(int argc, char **argv) {
    int in[2], back[2];
    if (argc < 2 || pipe(in) || pipe(back)) return 125;
    pid_t server = fork();
    if (server == 0) {
        dup2(in[0], 0);
        dup2(back[1], 1);
        close(in[0]), close(in[1]), close(back[0]), close(back[1]);
        execvp(argv[1], argv + 1);
        perror(argv[1]);
        _exit(127);
    }
    close(in[0]), close(back[1]);
    signal(SIGPIPE, SIG_IGN);
    struct pollfd watched[2] = {{0, POLLIN, 0}, {back[0], POLLIN, 0}};
    while (watched[1].fd >= 0 && poll(watched, 2, -1) > 0) {
        if (watched[0].revents && !move(0, in[1])) {
            close(in[1]);
            watched[0].fd = -1;
        }
        if (watched[1].revents && !move(back[0], 1)) watched[1].fd = -1;
    }
    int status = 0;
    waitpid(server, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
